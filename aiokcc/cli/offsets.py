"""``aiokcc offsets``: shows committed offsets, and changes them between two runs.

Offsets are stored in the store or in Kafka; an :class:`OffsetStorage` reads and writes either. Nothing written here can harm a
run, which resumes from its own commits and cuts only. Writing is refused all the same while a run has not ended, because the
run would overwrite the new offsets with its next commit.
"""

from __future__ import annotations

import argparse
import getpass
import re
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from aiokcc.cli import offset_files
from aiokcc.cli.arguments import command
from aiokcc.cli.formatting import count, format_elapsed, join_names, short_names
from aiokcc.cli.render_text import write_table
from aiokcc.cli.replay_arguments import SERVERS, check_typed
from aiokcc.cli.status_view import Table
from aiokcc.core.committed_offset import CommittedOffset
from aiokcc.core.masking import mask_url
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import format_time
from aiokcc.errors import CoordinationError, PartitionError, UsageError
from aiokcc.runtime.store_offsets import Activity, list_offsets, read_activity, write_offsets
from aiokcc.stores import open_store
from aiokcc.stores.port import Session, Store

if TYPE_CHECKING:
    from aiokcc.kafka.cluster import Cluster

__all__ = ["check_offsets", "run_offsets"]


class OffsetStorage(Protocol):
    """Reads and writes the committed offsets of one group, in the store or in Kafka."""

    name: str
    """The name of this storage in exported JSON: ``kafka`` or ``zookeeper``."""
    where: str

    async def read(self) -> dict[Partition, CommittedOffset]:
        """Return all committed offsets."""

    async def write(self, commits: Mapping[Partition, CommittedOffset]) -> None:
        """Write these offsets; others stay as they are."""


class _StoreOffsets:
    name = "zookeeper"

    def __init__(self, store: Store, session: Session) -> None:
        self._store, self._session = store, session
        self.where = store.url

    async def read(self) -> dict[Partition, CommittedOffset]:
        return await list_offsets(self._store, self._session)

    async def write(self, commits: Mapping[Partition, CommittedOffset]) -> None:
        await write_offsets(self._store, self._session, commits)


class _KafkaOffsets:
    name = "kafka"

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster, self._group = cluster, group
        self.where = f"Kafka, group {group}"

    async def read(self) -> dict[Partition, CommittedOffset]:
        return await self._cluster.commits()

    async def write(self, commits: Mapping[Partition, CommittedOffset]) -> None:
        if members := await self._cluster.group_members():
            raise CoordinationError(
                f"Kafka's group {self._group} has {count(len(members), 'member')} ({join_names(members)}), "
                f"and Kafka accepts offsets from them only; stop them first"
            )
        await self._cluster.commit(commits)


class _Context:
    """What an action needs: the storages, a Kafka cluster if its address is given, and the activity under the root."""

    def __init__(
        self, options: argparse.Namespace, cluster: Cluster | None, storages: dict[str, OffsetStorage]
    ) -> None:
        self.options = options
        self._cluster = cluster
        self.storages = storages
        self.activity = Activity(False, (), frozenset())

    @property
    def storage(self) -> OffsetStorage:
        return self.storages["kafka" if self.options.group_id else "store"]

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None  # check_offsets has made sure
        return self._cluster

    @property
    def knows_kafka(self) -> bool:
        return self._cluster is not None

    async def known(self, found: Iterable[Partition]) -> frozenset[Partition]:
        """Return the partitions that have offsets, those of the run, and those of the topics given with --topic.

        Raises UsageError for an unknown topic.
        """
        known = self.activity.partitions | frozenset(found)
        topics = {p.topic for p in known}
        for topic in self.options.topic or ():
            if self._cluster is not None:
                try:
                    known |= await self._cluster.partitions([topic])
                except UsageError:
                    if topic not in topics:  # the topic was deleted; its offsets still exist
                        raise
            elif topic not in topics:
                there = join_names(sorted(topics), 20) or "none"
                raise UsageError(f"the topic {topic!r} is unknown in {self.storage.where}; the topics are: {there}")
        return known

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the log ends of the partitions that exist; empty if the address of Kafka is not given."""
        if self._cluster is None:
            return {}
        there: set[Partition] = set()
        for topic in {p.topic for p in partitions}:
            try:
                there |= await self._cluster.partitions([topic])
            except UsageError:  # deleted since
                continue
        wanted = there & set(partitions)
        return await self._cluster.ends(wanted) if wanted else {}


def check_offsets(options: argparse.Namespace) -> None:
    """Raise UsageError for arguments that are invalid whatever the store and Kafka hold."""
    servers = options.bootstrap_servers or ""
    shown = mask_url(servers)
    if "://" in servers or "@" in servers or shown != servers:
        raise UsageError(f"--bootstrap-servers {shown}: expected HOST:PORT, without a scheme and a user")
    needs = options.group_id is not None or options.action not in {"show", "export"}
    if (needs or options.consumer) and not _has_aiokafka():
        raise UsageError(f"aiokcc offsets {options.action} needs aiokafka: pip install 'aiokcc[kafka]'")
    if options.consumer:
        from aiokcc.kafka.settings import check_consumer

        check_typed(options.consumer)
        check_consumer(dict(options.consumer))
    if needs and not options.bootstrap_servers:
        why = "offsets are checked against the logs" if options.group_id is None else "the offsets are stored in Kafka"
        raise UsageError(f"where is Kafka? Give --bootstrap-servers HOST:PORT, or set {SERVERS} to it; {why}")
    if options.action == "migrate" and not (options.group_id and options.store):
        raise UsageError("migrate needs --group-id, for Kafka, and the store's URL")
    if options.action == "import" and options.file != "-" and not Path(options.file).is_file():
        raise UsageError(f"there is no file {options.file}; '-' is standard input")


def _has_aiokafka() -> bool:
    """Return whether aiokafka is installed; offsets in the store can be shown without it."""
    try:
        import aiokafka  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "aiokafka":
            raise
        return False
    return True


async def run_offsets(options: argparse.Namespace) -> int:
    """Run one action of ``aiokcc offsets``; return the exit code."""
    action = {
        "show": _show,
        "set": _set,
        "reset": _reset,
        "export": _export,
        "import": _import,
        "migrate": _migrate,
    }[options.action]
    async with _open_context(options) as context:
        await action(context)
    return 0


@asynccontextmanager
async def _open_context(options: argparse.Namespace) -> AsyncIterator[_Context]:
    async with AsyncExitStack() as stack:
        storages: dict[str, OffsetStorage] = {}
        cluster: Cluster | None = None
        if options.bootstrap_servers and _has_aiokafka():
            from aiokcc.kafka.cluster import Cluster
            from aiokcc.kafka.settings import ReplaySettings

            consumer = dict(options.consumer)
            settings = ReplaySettings((), options.bootstrap_servers, group_id=options.group_id, consumer=consumer)
            cluster = await stack.enter_async_context(Cluster(settings, options.timeout).connected())
            if options.group_id:
                storages["kafka"] = _KafkaOffsets(cluster, options.group_id)
        context = _Context(options, cluster, storages)
        if options.store:
            store = open_store(options.store)
            session = await stack.enter_async_context(store.session(connect_timeout=options.timeout))
            storages["store"] = _StoreOffsets(store, session)
            context.activity = await read_activity(store, session)
        yield context


# -- reading ---------------------------------------------------------------------------------------------------------------


async def _show(context: _Context) -> None:
    options, storage = context.options, context.storage
    found = await storage.read()
    commits = _of_topics(found, options.topic)
    known = await context.known(found)
    partitions = sorted(_of_topics(dict.fromkeys(known), options.topic))
    ends = await context.ends(partitions)
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
    if context.options.bootstrap_servers is None:
        note = "The lag is shown with Kafka's address: --bootstrap-servers HOST:PORT"
    elif not context.knows_kafka:
        note = "The lag is shown with: pip install 'aiokcc[kafka]'"
    columns = ("topic", "partition", "offset", "lag", "when", "by")
    print(write_table(Table(storage.where, columns, rows, right=frozenset({1, 2, 3}), note=note)))


def _when_and_by(commit: CommittedOffset, names: Mapping[str, str]) -> tuple[str, str]:
    when = "—"
    if commit.at is not None:
        when = f"{format_time(commit.at // 1000 * 1000)} ({format_elapsed(time.time() - commit.at / 1000)} ago)"
    return when, "—" if commit.by is None else names[commit.by]


async def _export(context: _Context) -> None:
    storage = context.storage
    found = await storage.read()
    await context.known(found)
    commits = _of_topics(found, context.options.topic)
    if context.options.format == "csv":
        sys.stdout.write(offset_files.as_csv(commits))
    else:
        entries = [offset_files.as_entry(p, commit) for p, commit in sorted(commits.items())]
        print(offset_files.as_json(storage.where, storage.name, entries))


def _of_topics(found: Mapping[Partition, Any], topics: list[str] | None) -> dict[Partition, Any]:
    """Return the entries of these topics, or all if it is None."""
    return {p: value for p, value in found.items() if topics is None or p.topic in topics}


# -- writing ---------------------------------------------------------------------------------------------------------------


async def _set(context: _Context) -> None:
    options = context.options
    partition = Partition(options.topic, options.partition)
    there = await _existing(context, [partition])
    begins, ends = await context.cluster.begins(there), await context.cluster.ends(there)
    if not begins[partition] <= options.offset <= ends[partition]:
        raise UsageError(
            f"offset {options.offset} is not in the log of {partition}, which begins at {begins[partition]} "
            f"and ends at {ends[partition]}"
        )
    await _write(context, context.storage, {partition: options.offset})


async def _reset(context: _Context) -> None:
    options, cluster = context.options, context.cluster
    topics = options.topic or sorted({p.topic for p in await context.known(await context.storage.read())})
    if not topics:
        raise UsageError(f"there are no offsets in {context.storage.where} yet; name the topics with --topic")
    partitions = await cluster.partitions(topics)
    if options.to == "earliest":
        offsets = await cluster.begins(partitions)
    elif options.to == "latest":
        offsets = await cluster.ends(partitions)
    else:
        offsets = await cluster.at(options.to, partitions, await cluster.ends(partitions))
    await _write(context, context.storage, offsets)


async def _import(context: _Context) -> None:
    name = "standard input" if context.options.file == "-" else context.options.file
    try:
        text = await anyio.to_thread.run_sync(_read_text, context.options.file)
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not text; expected JSON or CSV") from None
    offsets = offset_files.read(text, name)
    await _check(context, offsets)
    await _write(context, context.storage, offsets)


def _read_text(name: str) -> str:
    return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8-sig")


async def _migrate(context: _Context) -> None:
    options = context.options
    target = context.storages[options.to]
    (source,) = (storage for storage in context.storages.values() if storage is not target)
    found = _of_topics(await source.read(), options.topic)
    if not found:
        raise UsageError(f"{source.where} holds no offsets{' of these topics' if options.topic else ''}")
    offsets = {p: commit.offset for p, commit in found.items()}
    await _check(context, offsets)
    await _write(context, target, offsets)
    print(f"The offsets in {source.where} stay as they are.")


async def _existing(context: _Context, partitions: Iterable[Partition]) -> frozenset[Partition]:
    """Return the partitions. Raises UsageError if a topic does not exist, PartitionError if a partition does not."""
    wanted = frozenset(partitions)
    there = await context.cluster.partitions(sorted({p.topic for p in wanted}))
    if missing := sorted(wanted - there):
        of = sum(p.topic == missing[0].topic for p in there)
        raise PartitionError(f"{missing[0]} does not exist; {missing[0].topic} has {count(of, 'partition')}, from 0 up")
    return wanted


async def _check(context: _Context, offsets: Mapping[Partition, int]) -> None:
    """Raise UsageError for an offset past the end of its log. One before the beginning is valid: the log was shortened."""
    ends = await context.cluster.ends(await _existing(context, offsets))
    for partition, offset in sorted(offsets.items()):
        if offset > ends[partition]:
            raise UsageError(f"offset {offset} lies past the log of {partition}, which ends at {ends[partition]}")


async def _write(context: _Context, storage: OffsetStorage, offsets: Mapping[Partition, int]) -> None:
    """Write the offsets and show them with the previous ones. Raises UsageError while a run could overwrite them."""
    options = context.options
    if not options.force and not options.dry_run:
        _refuse_while_running(context)
    before = await storage.read()
    now, by = time.time_ns() // 1_000_000, _operator()
    if not options.dry_run:
        await storage.write({p: CommittedOffset(offset, at=now, by=by) for p, offset in offsets.items()})
    rows = tuple(
        (p.topic, str(p.number), str(before[p].offset) if p in before else "—", str(offset))
        for p, offset in sorted(offsets.items())
    )
    print(write_table(Table(storage.where, ("topic", "partition", "before", "now"), rows, right=frozenset({1, 2, 3}))))
    if options.dry_run:
        print("Nothing was written: these are the offsets that would be.")


def _refuse_while_running(context: _Context) -> None:
    activity, options = context.activity, context.options
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


def _operator() -> str:
    """Return the user and host that are stored with the offsets."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # no name in this container
        name = "operator"
    return re.sub(r"[^!-~]", "-", f"{name}@{socket.gethostname()}")[:200]
