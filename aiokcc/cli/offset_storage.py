"""Reads and writes committed offsets for ``aiokcc offsets``, in the store or in Kafka."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from aiokcc.cli.kafka_options import consumer_settings
from aiokcc.cli.verb import open_existing
from aiokcc.core.committed_offset import CommittedOffset
from aiokcc.core.formatting import count, join_names
from aiokcc.core.partitions import Partition
from aiokcc.errors import CoordinationError, NoGroupError, PartitionError, UsageError
from aiokcc.runtime.store_offsets import Activity, list_offsets, read_activity, write_offsets
from aiokcc.stores.port import Session, Store

if TYPE_CHECKING:
    from aiokcc.kafka.cluster import Cluster

__all__ = ["OffsetStorage", "Sources", "has_aiokafka", "open_sources"]


class OffsetStorage(Protocol):
    """Reads and writes the committed offsets of one group, in the store or in Kafka."""

    name: str
    """The name of this storage in exported JSON: ``kafka`` or ``store``."""
    where: str

    async def read(self) -> dict[Partition, CommittedOffset]:
        """Return all committed offsets."""

    async def write(self, commits: Mapping[Partition, CommittedOffset]) -> None:
        """Write these offsets; others stay as they are."""


class _StoreOffsets:
    name = "store"

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


class Sources:
    """An action works with these: the storages, the Kafka cluster if its address is given, and the run under the root."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.storages: dict[str, OffsetStorage] = {}
        self.activity = Activity(False, (), frozenset())
        self.kafka: Cluster | None = None

    @property
    def storage(self) -> OffsetStorage:
        """The storage that was asked for: in Kafka with --group-id, otherwise in the store."""
        return self.storages["kafka" if self.options.group_id else "store"]

    @property
    def cluster(self) -> Cluster:
        """The Kafka cluster, for actions that need one."""
        assert self.kafka is not None  # the verb has checked the arguments
        return self.kafka

    async def known(self, found: Iterable[Partition]) -> frozenset[Partition]:
        """Return the partitions that have offsets, those of the run, and those of the topics given with --topic.

        Raises UsageError for an unknown topic.
        """
        known = self.activity.partitions | frozenset(found)
        topics = {p.topic for p in known}
        for topic in self.options.topic or ():
            if self.kafka is not None:
                try:
                    known |= await self.kafka.partitions([topic])
                except UsageError:
                    if topic not in topics:  # otherwise the topic was deleted; its offsets still exist
                        raise
            elif topic not in topics:
                there = join_names(sorted(topics), 20) or "none"
                raise UsageError(f"the topic {topic!r} is unknown in {self.storage.where}; the topics are: {there}")
        return known

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the log ends of the partitions that exist; empty if the address of Kafka is not given."""
        if self.kafka is None:
            return {}
        there: set[Partition] = set()
        for topic in {p.topic for p in partitions}:
            try:
                there |= await self.kafka.partitions([topic])
            except UsageError:  # the topic was deleted
                continue
        wanted = there & set(partitions)
        return await self.kafka.ends(wanted) if wanted else {}

    async def existing(self, partitions: Iterable[Partition]) -> frozenset[Partition]:
        """Return the partitions. Raises UsageError if a topic does not exist, PartitionError if a partition does not."""
        wanted = frozenset(partitions)
        there = await self.cluster.partitions(sorted({p.topic for p in wanted}))
        if missing := sorted(wanted - there):
            of = sum(p.topic == missing[0].topic for p in there)
            raise PartitionError(
                f"{missing[0]} does not exist; {missing[0].topic} has {count(of, 'partition')}, from 0 up"
            )
        return wanted

    async def check_ends(self, offsets: Mapping[Partition, int]) -> None:
        """Raise UsageError for an offset past the end of its log. One before the beginning is valid: old records go."""
        ends = await self.cluster.ends(await self.existing(offsets))
        for partition, offset in sorted(offsets.items()):
            if offset > ends[partition]:
                raise UsageError(f"offset {offset} lies past the log of {partition}, which ends at {ends[partition]}")


@asynccontextmanager
async def open_sources(options: argparse.Namespace) -> AsyncIterator[Sources]:
    """Connect to Kafka and to the store, as far as their addresses are given."""
    async with AsyncExitStack() as stack:
        sources = Sources(options)
        if options.bootstrap_servers and has_aiokafka():
            from aiokcc.kafka.cluster import Cluster
            from aiokcc.kafka.source_options import SourceOptions

            source = SourceOptions(
                bootstrap_servers=options.bootstrap_servers,
                group_id=options.group_id,
                consumer=consumer_settings(options),
            )
            sources.kafka = await stack.enter_async_context(Cluster(source, options.timeout).connected())
            if options.group_id:
                sources.storages["kafka"] = _KafkaOffsets(sources.kafka, options.group_id)
        if options.store:
            store = open_existing(options)
            try:
                session = await stack.enter_async_context(store.session(connect_timeout=options.timeout))
            except NoGroupError:
                if not options.group_id:
                    raise  # otherwise nobody is active there, and the offsets asked for are in Kafka
            else:
                sources.storages["store"] = _StoreOffsets(store, session)
                sources.activity = await read_activity(store, session)
        yield sources


def has_aiokafka() -> bool:
    """Return whether aiokafka is installed; offsets in the store can be shown without it."""
    try:
        import aiokafka  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "aiokafka":
            raise
        return False
    return True
