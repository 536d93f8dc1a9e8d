"""One consumer for all partitions of a process: it fetches for those that have room, and hands on whole lists.

A partition that waits at the gate fills its buffer and is then no longer asked for, so the fast one stops being fetched
while the one that everybody waits for never does. Nothing is paused: aiokafka drops what it has buffered of a paused
partition.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import anyio
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError as AiokafkaError
from aiokafka.errors import OffsetOutOfRangeError

from aiokcc.core.partitions import Partition
from aiokcc.errors import KafkaError
from aiokcc.runtime.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aiokcc.kafka.cluster import Cluster
    from aiokcc.kafka.stream import Stream
    from aiokcc.runtime.member import Member

__all__ = ["Pump"]

log = logging.getLogger("aiokcc.kafka")

_WAIT_MS: Final = 100
_BATCH: Final = 4000


class Pump:
    """Fetches for the streams of one process."""

    def __init__(self, consumer: AIOKafkaConsumer, cluster: Cluster, member: Member, *, assigns: bool) -> None:
        self._consumer = consumer
        self._cluster = cluster
        self._member = member
        self._assigns = assigns
        """Whether the consumer is told its partitions by us; otherwise Kafka's group tells it."""
        self._streams: dict[TopicPartition, Stream] = {}
        self._room = Signal()
        self._fetching: anyio.CancelScope | None = None

    def wake(self) -> None:
        """A stream has room again, or wants to know anew whether it is at its end: the running fetch left it out."""
        self._room.set()
        if self._fetching is not None:
            self._fetching.cancel()

    def add(self, streams: Mapping[Partition, Stream]) -> None:
        """Fetch for these too, each from where it is."""
        added = {TopicPartition(*p): stream for p, stream in streams.items()}
        self._streams = {**self._streams, **added}
        if self._assigns:
            self._consumer.assign(list(self._streams))  # which forgets where the others were
            added = self._streams
        for tp, stream in added.items():
            self._consumer.seek(tp, stream.position)
        self.wake()

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Fetch for these no longer."""
        gone = {TopicPartition(*p) for p in partitions}
        self._streams = {tp: stream for tp, stream in self._streams.items() if tp not in gone}
        self.wake()

    async def run(self) -> None:
        """Fetch until cancelled. KafkaError if the log is no longer what the run started on."""
        while True:
            wanted = [tp for tp, stream in self._streams.items() if stream.has_room]
            if wanted:
                await self._fetch(wanted)
            else:
                await self._room.wait()

    async def _fetch(self, wanted: list[TopicPartition]) -> None:
        as_of = self._member.ledger.limit
        wait = 0 if any(self._streams[tp].wants_end for tp in wanted) else _WAIT_MS
        fetched: dict[TopicPartition, list[Any]] = {}
        self._room.clear()
        try:
            with anyio.CancelScope() as self._fetching:  # cancelling it loses nothing
                fetched = await self._consumer.getmany(*wanted, timeout_ms=wait, max_records=_BATCH)
        except OffsetOutOfRangeError as error:
            raise KafkaError(
                f"records were deleted under the replay: {self._named(error)}; nothing was skipped. "
                f"Raise the topic's retention, or start again from what is left"
            ) from error
        except AiokafkaError as error:
            raise KafkaError(f"Kafka refused a fetch: {error}") from error
        finally:
            self._fetching = None
        for tp, records in fetched.items():
            if tp in self._streams:  # not revoked meanwhile
                self._streams[tp].feed(records)
        hungry = [tp for tp in wanted if tp in self._streams and self._streams[tp].hungry]
        if hungry:
            await self._look_at_ends(hungry, as_of)
        await anyio.lowlevel.checkpoint()  # with data at hand getmany never yields

    async def _look_at_ends(self, hungry: list[TopicPartition], as_of: object) -> None:
        """Whether those that have nothing left are at the end: of the run, or of the log as it is under this limit."""
        unknown: list[TopicPartition] = []
        for tp in hungry:
            stream = self._streams[tp]
            position = await asyncio.wait_for(self._consumer.position(tp), 30)
            stream.moved_to(position)
            if not stream.complete and stream.wants_end:
                unknown.append(tp)
        if not unknown:
            return
        try:
            ends = await self._cluster.ends([Partition(*tp) for tp in unknown])
        except KafkaError as error:
            log.warning("%s; nobody counts as idle until it answers", error)
            return
        for tp in unknown:
            stream = self._streams[tp]
            if stream.hungry and stream.position >= ends[Partition(*tp)]:
                stream.at_end(as_of)

    def _named(self, error: OffsetOutOfRangeError) -> str:
        places = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
        return ", ".join(f"{tp.topic}.{tp.partition} at offset {offset}" for tp, offset in places.items()) or str(error)
