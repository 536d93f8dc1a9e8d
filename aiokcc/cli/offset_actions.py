"""The actions of ``aiokcc offsets``.

Nothing written here can harm a run, which resumes from its own commits and cuts only. Writing is refused all the same while a
run has not ended, because the run would overwrite the new offsets with its next commit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

from aiokcc.cli import offset_files
from aiokcc.cli.offset_storage import OffsetStorage, Sources
from aiokcc.cli.render import write_table
from aiokcc.cli.verb import command, operator_name
from aiokcc.core.committed_offset import CommittedOffset
from aiokcc.core.formatting import count, format_elapsed, join_names, short_names
from aiokcc.core.masking import mask_url
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import format_time
from aiokcc.errors import NoGroupError, UsageError
from aiokcc.views.model import Table

__all__ = ["export_offsets", "import_offsets", "migrate_offsets", "reset_offsets", "set_offsets", "show_offsets"]

# -- reading ------------------------------------------------------------------------------------------------------------


async def show_offsets(sources: Sources) -> None:
    """Print the committed offsets of all known partitions, with their lag."""
    options, storage = sources.options, sources.storage
    found = await storage.read()
    commits = _of_topics(found, options.topic)
    partitions = sorted(_of_topics(dict.fromkeys(await sources.known(found)), options.topic))
    ends = await sources.ends(partitions)
    lags = {p: max(0, ends[p] - commits[p].offset) for p in partitions if p in ends and p in commits}
    if options.json:
        entries = [
            {**offset_files.as_entry(p, commits.get(p)), "end": ends.get(p), "lag": lags.get(p)} for p in partitions
        ]
        print(offset_files.as_json(storage.where, storage.name, entries))
        return
    if not partitions:
        print(f"There are no offsets in {storage.where}.")
        return
    names = short_names(commit.by for commit in commits.values() if commit.by is not None)
    rows = tuple(
        (
            p.topic,
            str(p.number),
            str(commits[p].offset) if p in commits else "—",
            f"{lags[p]:,}" if p in lags else "—",
            *(_when_and_by(commits[p], names) if p in commits else ("—", "—")),
        )
        for p in partitions
    )
    note = f"{sum(lags.values()):,} records behind in all" if lags else ""
    if options.bootstrap_servers is None:
        note = "The lag is shown with Kafka's address: --bootstrap-servers HOST:PORT"
    elif sources.kafka is None:
        note = "The lag is shown with: pip install 'aiokcc[kafka]'"
    columns = ("topic", "partition", "offset", "lag", "when", "by")
    print(write_table(Table(storage.where, columns, rows, right=frozenset({1, 2, 3}), note=note)))


def _when_and_by(commit: CommittedOffset, names: Mapping[str, str]) -> tuple[str, str]:
    when = "—"
    if commit.at is not None:
        when = f"{format_time(commit.at // 1000 * 1000)} ({format_elapsed(time.time() - commit.at / 1000)} ago)"
    return when, "—" if commit.by is None else names[commit.by]


async def export_offsets(sources: Sources) -> None:
    """Print the committed offsets as JSON or CSV."""
    storage = sources.storage
    found = await storage.read()
    await sources.known(found)
    commits = _of_topics(found, sources.options.topic)
    if sources.options.format == "csv":
        sys.stdout.write(offset_files.as_csv(commits))
    else:
        entries = [offset_files.as_entry(p, commit) for p, commit in sorted(commits.items())]
        print(offset_files.as_json(storage.where, storage.name, entries))


def _of_topics(found: Mapping[Partition, Any], topics: list[str] | None) -> dict[Partition, Any]:
    """Return the entries of these topics, or all if it is None."""
    return {p: value for p, value in found.items() if topics is None or p.topic in topics}


# -- writing ------------------------------------------------------------------------------------------------------------


async def set_offsets(sources: Sources) -> None:
    """Set the offset of one partition. Raises UsageError if it is not in the log."""
    options = sources.options
    partition = Partition(options.topic, options.partition)
    there = await sources.existing([partition])
    begins, ends = await sources.cluster.begins(there), await sources.cluster.ends(there)
    if not begins[partition] <= options.offset <= ends[partition]:
        raise UsageError(
            f"offset {options.offset} is not in the log of {partition}, which begins at {begins[partition]} "
            f"and ends at {ends[partition]}"
        )
    await _write(sources, sources.storage, {partition: options.offset})


async def reset_offsets(sources: Sources) -> None:
    """Set the offsets to a time, to the earliest record or to the end of the log."""
    options, cluster = sources.options, sources.cluster
    topics = options.topic or sorted({p.topic for p in await sources.known(await sources.storage.read())})
    if not topics:
        raise UsageError(f"there are no offsets in {sources.storage.where} yet; name the topics with --topic")
    partitions = await cluster.partitions(topics)
    if options.to == "earliest":
        offsets = await cluster.begins(partitions)
    elif options.to == "latest":
        offsets = await cluster.ends(partitions)
    else:
        offsets = await cluster.at(options.to, partitions, await cluster.ends(partitions))
    await _write(sources, sources.storage, offsets)


async def import_offsets(sources: Sources) -> None:
    """Set the offsets that a file holds."""
    file = sources.options.file
    shown = "standard input" if file == "-" else file
    try:
        text = await anyio.to_thread.run_sync(_read_text, file)
    except UnicodeDecodeError:
        raise UsageError(f"{shown} is not text; expected JSON or CSV") from None
    offsets = offset_files.read(text, shown)
    await sources.check_ends(offsets)
    await _write(sources, sources.storage, offsets)


def _read_text(file: str) -> str:
    return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig")


async def migrate_offsets(sources: Sources) -> None:
    """Copy the offsets from Kafka to the store, or back."""
    options = sources.options
    if "store" not in sources.storages:
        raise NoGroupError(f"there is no group under {mask_url(options.store)}; a member founds one when it connects")
    target = sources.storages[options.to]
    (source,) = (storage for storage in sources.storages.values() if storage is not target)
    found = _of_topics(await source.read(), options.topic)
    if not found:
        raise UsageError(f"{source.where} holds no offsets{' of these topics' if options.topic else ''}")
    offsets = {p: commit.offset for p, commit in found.items()}
    await sources.check_ends(offsets)
    await _write(sources, target, offsets)
    print(f"The offsets in {source.where} stay as they are.")


async def _write(sources: Sources, storage: OffsetStorage, offsets: Mapping[Partition, int]) -> None:
    """Write the offsets and show them with the previous ones. Raises UsageError while a run could overwrite them."""
    options = sources.options
    if not options.force and not options.dry_run:
        _refuse_while_running(sources)
    before = await storage.read()
    now, by = time.time_ns() // 1_000_000, operator_name()
    if not options.dry_run:
        await storage.write({p: CommittedOffset(offset, at=now, by=by) for p, offset in offsets.items()})
    rows = tuple(
        (p.topic, str(p.number), str(before[p].offset) if p in before else "—", str(offset))
        for p, offset in sorted(offsets.items())
    )
    print(write_table(Table(storage.where, ("topic", "partition", "before", "now"), rows, right=frozenset({1, 2, 3}))))
    if options.dry_run:
        print("Nothing was written: these are the offsets that would be.")


def _refuse_while_running(sources: Sources) -> None:
    activity, options = sources.activity, sources.options
    if not activity.running and not activity.members:
        return
    where = mask_url(options.store)
    if activity.members:
        names = join_names(short_names(activity.members).values())
        why = f"{count(len(activity.members), 'member')} of the run under {where} may commit at any moment ({names})"
        what = "Stop them first"
    else:
        why = f"the run under {where} has not ended"
        what = "Let it end first, or write under the root of the new run"
    raise UsageError(
        f"{why}. A run resumes from its own cuts and commits, so what is written now would have no effect on it, and "
        f"would be overwritten.\n{what}; --force writes all the same. See `{command(options, 'status')}`."
    )
