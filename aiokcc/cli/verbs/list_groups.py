"""``aiokcc list``: lists the groups at and below a path."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any, Final

from aiokcc.cli.group_list import path_of, summaries
from aiokcc.cli.verb import Verb, argument
from aiokcc.core.formatting import format_elapsed
from aiokcc.core.periods import format_time
from aiokcc.credentials import hide_secrets
from aiokcc.errors import AiokccError
from aiokcc.runtime.roots import RootSummary

if TYPE_CHECKING:
    from aiokcc.cli.group_list import GroupStore

__all__ = ["VERB"]


async def _run(options: argparse.Namespace) -> int:
    """Print one line for each root at and below the URL's path."""
    rows = [_row(store, summary) for store, summary in await summaries(options)]
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    if not rows:
        print(f"There is no group under {path_of(options) or '/'}.")
        return 0
    titles = ("ROOT", "STATE", "EVENT TIME", "DONE", "MEMBERS", "LAST MOVED")
    lines = [titles, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if "error" in row:
        return (row["root"], "unreadable", row["error"], "", "", "")
    done = "" if row["done"] is None else f"{row['done']:.0%}"
    ago = f"{format_elapsed(time.time() - row['active'] / 1000)} ago"
    return (row["root"], row["state"], row["limit_time"] or "", done, str(row["members"]), ago)


def _row(store: GroupStore, found: RootSummary | AiokccError) -> dict[str, Any]:
    if isinstance(found, AiokccError):
        return {"root": store.root, "error": hide_secrets(str(found))}
    status = found.status
    total, processed = status.offsets_total, status.offsets_done
    limit = status.limit if status.limit is not None else status.closed
    return {
        "root": store.root,
        "state": status.state,
        "limit_time": None if limit is None else format_time(limit),
        "done": 1.0 if found.ended is not None else None if not total or processed is None else processed / total,
        "members": len(status.members),
        "founded": found.founded,
        "active": found.active,
        "ended": found.ended,
    }


VERB: Final = Verb(
    name="list",
    brief="list the groups at and below a path",
    usage="[URL] [--json]",
    arguments=(argument("--json", action="store_true", help="one JSON list"),),
    run=_run,
    description="""\
List the groups of a ZooKeeper or a Kafka: the root of each, its state, the
event time that it has reached, how much is done, its members, and when its
limit last moved.
The path of the URL is where to look; without one, everywhere.
""",
    epilog="""\
examples:
  aiokcc list zk://127.0.0.1:2181
  aiokcc list zk://127.0.0.1:2181/team-a --json
  aiokcc list kafka://127.0.0.1:9092
""",
)
