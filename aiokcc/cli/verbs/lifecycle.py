"""``aiokcc list``, ``describe``, ``delete`` and ``prune``: find runs, say what they agreed on, and remove what is over."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from aiokcc.cli.argument_types import seconds
from aiokcc.cli.verb import Verb, argument, open_existing
from aiokcc.core.formatting import count, format_elapsed
from aiokcc.core.masking import mask_url
from aiokcc.core.periods import format_duration, format_time
from aiokcc.credentials import hide_secrets
from aiokcc.errors import AiokccError, NoGroupError, StoreUnreachableError, UsageError
from aiokcc.runtime.agreement import find_run
from aiokcc.runtime.roots import RootSummary, delete_root, find_roots, summarize
from aiokcc.stores.zookeeper import ZooKeeperStore

if TYPE_CHECKING:
    from aiokcc.stores.kafka import KafkaStore

    GroupStore: TypeAlias = ZooKeeperStore | KafkaStore

__all__ = ["DELETE", "DESCRIBE", "LIST", "PRUNE"]


# list


async def _list(options: argparse.Namespace) -> int:
    """Print one line for each root at and below the URL's path."""
    rows: list[dict[str, Any]] = []
    async for store, summary in _summaries(options):
        rows.append(_row(store, summary))
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    if not rows:
        print(f"There is no group under {_prefix(options) or '/'}.")
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


def _prefix(options: argparse.Namespace) -> str:
    """Return the path of the URL, without the slash at its end; empty if it has none."""
    path = options.store.partition("://")[2].partition("?")[0].rpartition("@")[2].partition("/")[2]
    return f"/{path}".rstrip("/")


async def _stores(options: argparse.Namespace) -> list[GroupStore]:
    """Return the stores of all roots at and below the URL's path."""
    store, prefix = open_existing(options), _prefix(options)
    if isinstance(store, ZooKeeperStore):
        above = store.at(prefix)
        async with above.session(connect_timeout=options.timeout) as session:
            if prefix and await session.find("") is None:
                raise UsageError(f"there is no node {prefix} on this server")
            return [store.at(f"{prefix}/{path}".rstrip("/")) async for path in find_roots(session)]
    from aiokcc.stores.kafka import KafkaStore

    assert isinstance(store, KafkaStore)
    if store.is_named:
        return [store]
    same = prefix.replace(".", "/")
    roots = await store.list_roots(options.timeout)
    return [store.at(root) for root in roots if f"{root}/".startswith(f"{same}/")]


async def _summaries(options: argparse.Namespace) -> AsyncIterator[tuple[GroupStore, RootSummary | AiokccError]]:
    """Yield each store with its summary, or the error for which there is none. A topic without a group is passed over."""
    for store in await _stores(options):
        try:
            yield await _summarize(store, options.timeout)
        except NoGroupError:
            continue
        except StoreUnreachableError:
            raise
        except AiokccError as error:
            yield store, error


async def _summarize(store: GroupStore, timeout: float) -> tuple[GroupStore, RootSummary]:
    """Return the summary of a root, and its store: on Kafka the name of a topic does not tell dots from slashes."""
    if not isinstance(store, ZooKeeperStore):
        from aiokcc.stores.kafka.topic import OtherRootError

        try:
            async with store.session(connect_timeout=timeout):
                pass
        except OtherRootError as error:
            store = store.at(error.root)
    async with store.session(connect_timeout=timeout) as session:
        return store, await summarize(store, session)


LIST: Final = Verb(
    name="list",
    brief="list the groups at and below a path",
    usage="[URL] [--json]",
    arguments=(argument("--json", action="store_true", help="one JSON list"),),
    run=_list,
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


# describe


async def _describe(options: argparse.Namespace) -> int:
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


DESCRIBE: Final = Verb(
    name="describe",
    brief="show what a run agreed on when it was founded",
    usage="[URL] [--json]",
    arguments=(argument("--json", action="store_true", help="one JSON object"),),
    run=_describe,
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


# delete


_YES: Final = argument("-y", "--yes", action="store_true", help="do not ask")


def _confirm_delete(options: argparse.Namespace) -> bool:
    """Ask the user. Raises UsageError without --yes if stdin is no terminal."""
    where = mask_url(options.store.partition("?")[0])
    return _ask(options, "delete", f"This deletes {where}: the run, its cuts, committed offsets and pipelines.")


def _ask(options: argparse.Namespace, verb: str, text: str) -> bool:
    if options.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"{verb} cannot be undone; add --yes to confirm")
    print(text)
    try:
        answer = input(f"{verb.capitalize()}? [y/N] ")
    except EOFError:
        answer = ""
    return answer.strip().lower() in {"y", "yes"}


async def _delete(options: argparse.Namespace) -> int:
    """Delete the group. Raises UsageError if it is alive."""
    store = open_existing(options)
    async with store.session(connect_timeout=options.timeout) as session:
        number = await delete_root(store, session)
    print(f"Deleted {store.root}: {count(number, 'node')}.")
    return 0


DELETE: Final = Verb(
    name="delete",
    brief="delete a group that nobody takes part in",
    usage="[URL] [--yes]",
    arguments=(_YES,),
    confirm=_confirm_delete,
    run=_delete,
    description="""\
Delete a group: its run, its cuts, the offsets that are committed in the store,
and the records of its Spark pipelines. Refused while anybody is alive in it,
also if somebody joins at this moment. Results of sinks, and offsets in Kafka,
stay. This cannot be undone.
""",
    epilog="""\
examples:
  aiokcc delete zk://127.0.0.1:2181/january          asks first
  aiokcc delete zk://127.0.0.1:2181/january --yes    for scripts
""",
)


# prune


def _confirm_prune(options: argparse.Namespace) -> bool:
    if options.dry_run:
        return True
    where = mask_url(options.store.partition("?")[0])
    return _ask(options, "prune", f"This deletes all runs under {where} that ended at least {_kept(options)} ago.")


def _kept(options: argparse.Namespace) -> str:
    return format_duration(round(options.keep_ended * 1000))


async def _prune(options: argparse.Namespace) -> int:
    """Delete the groups whose run ended long enough ago. One that cannot be deleted does not stop the others."""
    horizon = (time.time() - options.keep_ended) * 1000
    failed = deleted = kept = 0
    async for store, found in _summaries(options):
        if isinstance(found, AiokccError) or found.ended is None or found.ended > horizon or found.status.members:
            kept += 1
            continue
        if not options.dry_run:
            try:
                async with store.session(connect_timeout=options.timeout) as session:
                    await delete_root(store, session, version=found.run_version)
            except AiokccError as error:
                print(f"aiokcc: {hide_secrets(str(error))}", file=sys.stderr)
                failed += 1
                continue
        deleted += 1
        print(
            f"{'Would delete' if options.dry_run else 'Deleted'} {store.root}, which ended {format_time(found.ended)}."
        )
    verb = "would be deleted" if options.dry_run else "deleted"
    print(f"{count(deleted, 'run')} {verb}, {kept} kept{f', {failed} failed' if failed else ''}.")
    return 1 if failed else 0


PRUNE: Final = Verb(
    name="prune",
    brief="delete runs that ended long ago",
    usage="[URL] --keep-ended TIME [--dry-run] [--yes]",
    arguments=(
        argument(
            "--keep-ended",
            type=seconds("--keep-ended"),
            required=True,
            metavar="TIME",
            help="keep runs that ended less than this ago, such as 7d",
        ),
        argument("--dry-run", action="store_true", help="show what would be deleted, and delete nothing"),
        _YES,
    ),
    confirm=_confirm_prune,
    run=_prune,
    description="""\
Delete the groups at and below a path whose run has ended, and ended at least
--keep-ended ago by the store's clock. Groups that have not ended, also those
that nobody takes part in, are kept: they can be resumed.
""",
    epilog="""\
examples:
  aiokcc prune zk://127.0.0.1:2181/team-a --keep-ended 7d --dry-run
  0 3 * * *  aiokcc prune --profile production --keep-ended 7d --yes     cron
""",
)
