"""One consumer for all partitions of a process: whoever has used up its records is given the next list.

A partition is fetched while nothing of it is left unread but what is being used up, and then no more. So one that waits at the
gate stops being fetched, with one list and two fetches at hand, while the one that everybody waits for is fetched again and
again. Nothing that may bring more is paused: aiokafka drops what it has fetched of a paused partition. What was fetched up to
the run's end is paused: a broker would keep a fetch for it open, and all others behind that.

Records are made from the fetched bytes in short lists, at the moment they are needed: such a list is soon used up, while many
records at hand would cost more, in the processor's caches and in the garbage collector, than the gate does. A stream takes them
itself where they are at hand; the pump waits for those that are not, and finds out where the log ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Final

import anyio
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError as AiokafkaError
from aiokafka.errors import OffsetOutOfRangeError

from aiokcc.core.partitions import Partition
from aiokcc.errors import KafkaError, RecordError, UsageError
from aiokcc.kafka.fast_fetch import prepare_fetcher
from aiokcc.runtime.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aiokcc.kafka.cluster import Cluster
    from aiokcc.kafka.partition_consumer import PartitionConsumer
    from aiokcc.runtime.member import Member

__all__ = ["FetchLoop"]

log = logging.getLogger("aiokcc.kafka")

_WAIT_MS: Final = 100
_UNBROKEN: Final = 500
"""After so many records that were at hand, others get their turn."""
_SILENCE: Final = 5.0
"""Seconds without a record for somebody who needs one, after which we ask whether the topics are still there."""


class FetchLoop:
    """Fetches for the streams of one process."""

    def __init__(
        self, consumer: AIOKafkaConsumer, cluster: Cluster, member: Member, *, assigns: bool, ahead: bool, batch: int
    ) -> None:
        self._consumer = consumer
        self._wanted = Signal()
        self._cluster = cluster
        self._member = member
        self._assigns = assigns
        """Whether the consumer is told its partitions by us; otherwise Kafka's group tells it."""
        self._batch = batch
        self._streams: dict[TopicPartition, PartitionConsumer] = {}
        self._unbroken = 0
        self._heard = time.monotonic()
        self._fetching: anyio.CancelScope | None = None
        self._at_hand = prepare_fetcher(consumer, ahead=ahead)

    def wake(self) -> None:
        """A stream waits for records, or wants to know anew whether it is at its end: the running fetch left it out."""
        self._wanted.set()
        if self._fetching is not None:
            self._fetching.cancel()

    def add(self, streams: Mapping[Partition, PartitionConsumer]) -> None:
        """Fetch for these too, each from where it is."""
        added = {TopicPartition(*p): stream for p, stream in streams.items()}
        self._streams = {**self._streams, **added}
        if self._assigns:
            self._consumer.assign(list(self._streams))  # which forgets where the others were
            added = self._streams
        for tp, stream in added.items():
            self._consumer.seek(tp, stream.position)
            self._rest(tp, stream)
        self.wake()

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Fetch for these no longer."""
        gone = {TopicPartition(*p) for p in partitions}
        for tp in gone:
            self._at_hand.forget(tp)
        self._streams = {tp: stream for tp, stream in self._streams.items() if tp not in gone}
        self.wake()

    async def run(self) -> None:
        """Fetch until cancelled. KafkaError if the log is no longer what the run started on."""
        while True:
            hungry = [tp for tp, stream in self._streams.items() if stream.hungry]
            if not hungry:
                await self._wanted.wait()
                continue
            wait = 0 if any(self._streams[tp].wants_end for tp in hungry) else _WAIT_MS
            await self._fetch(hungry, wait)

    async def pull(self, stream: PartitionConsumer) -> bool:
        """Hand on what is at hand for this stream, without waiting for any. Whether there was something."""
        tp = stream.tp
        # Where Kafka assigns, getmany waits for the end of a rebalance, which may wait for this stream.
        if not self._assigns or self._streams.get(tp) is not stream:
            return False
        with self._naming_errors():
            records = self._at_hand.take(tp, self._batch, stream.end)
        if records is None:
            records = (await self._getmany([tp], 0)).get(tp)
        if not records:
            return False
        self._heard = time.monotonic()
        stream.feed(records)
        self._rest(tp, stream)
        self._unbroken += len(records)
        if self._unbroken >= _UNBROKEN:
            self._unbroken = 0
            await asyncio.sleep(0)  # with data at hand getmany never yields, and a handler may not either
        return True

    async def _fetch(self, wanted: list[TopicPartition], wait: int) -> None:
        """Hand on what is there for these, or comes within so many milliseconds."""
        as_of = self._member.progress.limit
        fetched: dict[TopicPartition, list[Any]] = {}
        self._wanted.clear()
        try:
            with anyio.CancelScope() as self._fetching:  # cancelling it loses nothing
                fetched = await self._getmany(wanted, wait)
        finally:
            self._fetching = None
        if fetched:
            self._heard = time.monotonic()
        for tp, records in fetched.items():
            if tp in self._streams:  # not revoked meanwhile
                self._streams[tp].feed(records)
                self._rest(tp, self._streams[tp])
        if sum(map(len, fetched.values())) < self._batch:  # else there may be more at hand, even for the hungry
            hungry = [tp for tp in wanted if tp in self._streams and self._streams[tp].hungry]
            if hungry:
                await self._look_at_ends(hungry, as_of)
        await anyio.lowlevel.checkpoint()  # with data at hand getmany never yields

    async def _getmany(self, wanted: list[TopicPartition], wait: int) -> dict[TopicPartition, list[Any]]:
        found: dict[TopicPartition, list[Any]]
        with self._naming_errors():
            found = await self._consumer.getmany(*wanted, timeout_ms=wait, max_records=self._batch)
        return found

    @contextlib.contextmanager
    def _naming_errors(self) -> Iterator[None]:
        try:
            yield
        except OffsetOutOfRangeError as error:
            raise KafkaError(
                f"records were deleted under the replay: {self._named(error)}; nothing was skipped. "
                f"Raise the topic's retention, or start again from what is left"
            ) from error
        except AiokafkaError as error:
            raise KafkaError(f"could not fetch from Kafka: {error}") from error
        except Exception as error:  # a deserializer of the user's may raise anything
            raise _at_record(error) from error

    def _rest(self, tp: TopicPartition, stream: PartitionConsumer) -> None:
        """Do not fetch any more of a partition that is complete."""
        if stream.complete and tp in self._consumer.assignment():
            self._consumer.pause(tp)
            self._at_hand.forget(tp)

    async def _look_at_ends(self, hungry: list[TopicPartition], as_of: object) -> None:
        """Whether those that have nothing left are at the end: of the run, or of the log as it is under this limit."""
        unknown: list[TopicPartition] = []
        for tp in hungry:
            stream = self._streams.get(tp)
            if stream is None or not self._consumer.assignment() >= {tp}:  # revoked meanwhile
                continue
            position = await self._cluster.ask(self._consumer.position(tp), "ask for our position in")
            if not stream.hungry:  # what was fetched counts as read when the first of it is taken
                continue
            stream.moved_to(position)
            self._rest(tp, stream)
            if not stream.complete and stream.wants_end:
                unknown.append(tp)
        if time.monotonic() - self._heard > _SILENCE:
            self._heard = time.monotonic()
            await self._look_for_topics({tp.topic for tp in hungry})
        if not unknown:
            return
        asked_at = self._member.clock()
        try:
            ends = await self._cluster.ends([Partition(*tp) for tp in unknown])
        except KafkaError as error:
            log.warning("%s; nobody counts as idle until it answers", error)
            await self._look_for_topics({tp.topic for tp in unknown})
            await anyio.sleep(_WAIT_MS / 1000)  # time is the event: a broker that is away does not say when it is back
            return
        for tp in unknown:
            if tp in self._streams:
                self._streams[tp].log_ends_at(ends[Partition(*tp)], as_of, asked_at)

    async def _look_for_topics(self, topics: set[str]) -> None:
        """From a topic that was deleted comes nothing, not even an error."""
        try:
            await self._cluster.partitions(topics)
        except UsageError as error:
            if self._member.grows and self._member.group is not None:
                log.warning("%s; the leader takes it out of the set", error)
                return
            raise KafkaError(f"a topic was deleted under the replay: {error}") from error
        except KafkaError as error:
            log.warning("%s; waiting until it answers", error)

    def _named(self, error: OffsetOutOfRangeError) -> str:
        places = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
        return ", ".join(f"{tp.topic}.{tp.partition} at offset {offset}" for tp, offset in places.items()) or str(error)


def _at_record(error: Exception) -> Exception:
    """The same error with the place at which a deserializer raised it: only the frame in which it was called knows."""
    trace = error.__traceback__
    while trace is not None:
        known = trace.tb_frame.f_locals
        tp, offset = known.get("tp"), getattr(known.get("record"), "offset", None)
        if isinstance(tp, TopicPartition) and offset is not None:
            return RecordError(f"a deserializer raised {error!r}", tp.topic, tp.partition, offset)
        trace = trace.tb_next
    return error
