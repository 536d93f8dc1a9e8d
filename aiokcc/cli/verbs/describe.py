"""``aiokcc describe``: shows what a run agreed on when it was founded."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from aiokcc.cli.verb import Verb, argument, open_existing
from aiokcc.core.formatting import count
from aiokcc.core.periods import format_duration, format_time
from aiokcc.errors import NoGroupError
from aiokcc.runtime.agreement import find_run

__all__ = ["VERB"]


async def _run(options: argparse.Namespace) -> int:
    """Print what the run agreed on when it was founded."""
    store = open_existing(options)
    async with store.session(connect_timeout=options.timeout) as session:
        found = await find_run(store, session)
        if found is None:
            raise NoGroupError(f"there is no group under {store.describe('')}; a member founds one when it connects")
        run, node = found
    settings = run.settings
    facts: dict[str, Any] = {
        "where": store.url,
        "founded": format_time(node.created),
        "state": "ended" if run.ended else "not ended",
        "assignment": "managed" if run.managed else "fixed",
        "period": format_duration(settings.period),
        "start": None if settings.start is None else format_time(settings.start),
        "end": None if settings.end is None else format_time(settings.end),
        "lookahead": settings.lookahead,
        "caught_up": settings.caught_up if isinstance(settings.caught_up, str) else format_duration(settings.caught_up),
        "ahead": format_duration(settings.ahead) if settings.ahead else "0s",
        "source": settings.source,
    }
    partitions = sorted(settings.partitions)
    if options.json:
        bounds = {str(p): None if p not in run.bounds else run.bounds[p]._asdict() for p in partitions}
        print(json.dumps({**facts, "partitions": bounds}, indent=2))
        return 0
    for name, value in facts.items():
        print(f"{name:11} {'—' if value is None or value == '' else value}")
    print(f"{'partitions':11} {count(len(partitions), 'partition')}")
    for partition in partitions:
        if (known := run.bounds.get(partition)) is None:
            print(f"  {partition}")
        else:
            print(f"  {partition}  offsets {known.start} to {'no end' if known.end is None else known.end}")
    return 0


VERB: Final = Verb(
    name="describe",
    brief="show what a run agreed on when it was founded",
    usage="[URL] [--json]",
    arguments=(argument("--json", action="store_true", help="one JSON object"),),
    run=_run,
    description="""\
Show what a run agreed on when it was founded: period, start, end, policies, and
the offsets of each partition that it replays. Members with other settings are
refused. `aiokcc status` shows where it stands.
""",
    epilog="""\
examples:
  aiokcc describe zk://127.0.0.1:2181/replay
""",
)
