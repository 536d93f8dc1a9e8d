"""Fetches for all partitions of a process through one Kafka consumer: a partition that has used up its records gets more.

A partition is fetched while its only unread records are those of the list in use. So a partition that waits at the gate is
no longer fetched, with one list and two fetches held, while the partition that all others wait for is fetched again and again.
A partition that may bring more is never paused: aiokafka drops what it has fetched of a paused partition. A partition that was
fetched up to the run's end is paused: a broker would keep a fetch for it open, and delay all others behind it.

Records are made from the fetched bytes in short lists, at the moment they are needed. Many records at once would cost more, in
the processor's caches and in the garbage collector, than the gate does. A partition takes fetched records itself
(:meth:`FetchLoop.fetch_now`); the loop waits for those that are not there yet, and looks up where the log ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import anyio
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError as AiokafkaError
from aiokafka.errors import OffsetOutOfRangeError

from aiokcc.core.partitions import Partition
from aiokcc.credentials.kafka_refusal import NOT_ALLOWED, describe_denial
from aiokcc.errors import KafkaError, KafkaRefusedError, RecordError, UsageError
from aiokcc.kafka.fast_fetch import FetchedRecords, prepare_fetcher
from aiokcc.runtime.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aiokcc.core.limit import Limit
    from aiokcc.kafka.cluster import Cluster
    from aiokcc.kafka.partition_feed import PartitionFeed
    from aiokcc.runtime.member import Member

__all__ = ["FetchLoop"]

log = logging.getLogger("aiokcc.kafka")

_WAIT_MS: Final = 100
_RECORDS_PER_TURN: Final = 500
"""After so many records that were taken without waiting, other tasks run."""
_SILENCE_SECONDS: Final = 5.0
"""After so long without a record for a partition that wants some, we ask Kafka whether the topics still exist."""


class FetchLoop:
    """Fills the feeds of all partitions of one process."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        cluster: Cluster,
        member: Member,
        *,
        assigns: bool,
        fast: bool,
        fetch_ahead: bool,
        batch: int,
    ) -> None:
        self._kafka_consumer = consumer
        self._woken = Signal()
        self._cluster = cluster
        self._member = member
        self._assigns = assigns
        """True if we tell the Kafka consumer its partitions; otherwise Kafka's group does."""
        self._batch = batch
        self._feeds: dict[TopicPartition, PartitionFeed] = {}
        self._taken_in_turn = 0
        self._coordinator_known = False
        self._last_records_at = monotonic()
        self._unanswered: set[str] = set()
        """The questions that Kafka has not answered, in the present outage."""
        self._fetching: anyio.CancelScope | None = None
        self._fetched_records = prepare_fetcher(consumer, fetch_ahead=fetch_ahead) if fast else FetchedRecords()

    def wake(self) -> None:
        """Start a new fetch: a partition wants records, or the end of its log, and the running fetch does not include it."""
        self._woken.set()
        if self._fetching is not None:
            self._fetching.cancel()

    @property
    def buffered(self) -> int:
        """The number of records that were fetched and that no consumer has taken."""
        return sum(feed.buffered for feed in self._feeds.values())

    @property
    def buffered_bytes(self) -> int | None:
        """The size of the fetches that are held until all their records are unpacked; None if aiokafka does not tell."""
        return self._fetched_records.held_bytes()

    def add(self, feeds: Mapping[Partition, PartitionFeed]) -> None:
        """Fetch for these partitions too, each from its position."""
        added = {TopicPartition(*p): feed for p, feed in feeds.items()}
        self._feeds = {**self._feeds, **added}
        if self._assigns:
            self._kafka_consumer.assign(list(self._feeds))  # this forgets the positions of the others
            added = self._feeds
        for tp, feed in added.items():
            self._kafka_consumer.seek(tp, feed.position)
            self._pause_if_complete(tp, feed)
        self.wake()

    async def find_coordinator(self) -> None:
        """Wait, once, until aiokafka knows the broker that keeps the offsets of our group id, or has not found it in time.

        aiokafka begins to look for it at the first ``assign()``. A second one in the meantime, for partitions whose locks come
        one after the other, makes an assertion in its background task fail, and the consumer is of no use any more.
        """
        if not self._coordinator_known and self._feeds:
            self._coordinator_known = True
            with contextlib.suppress(KafkaError):
                await self._cluster.ask(self._kafka_consumer.committed(next(iter(self._feeds))), "ask the group of")

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Fetch for these partitions no longer."""
        gone = {TopicPartition(*p) for p in partitions}
        for tp in gone:
            self._fetched_records.forget(tp)
        self._feeds = {tp: feed for tp, feed in self._feeds.items() if tp not in gone}
        self.wake()

    async def run(self) -> None:
        """Fetch until cancelled. Raises KafkaError if records of the run were deleted, RecordError if a deserializer raises."""
        while True:
            waiting = [tp for tp, feed in self._feeds.items() if feed.wants_records]
            if not waiting:
                await self._woken.wait()
                continue
            wait = 0 if any(self._feeds[tp].wants_log_end for tp in waiting) else _WAIT_MS
            await self._fetch(waiting, wait)

    async def fetch_now(self, feed: PartitionFeed) -> bool:
        """Hand over records that are fetched already, without waiting for others. Returns whether there were any."""
        tp = feed.tp
        # Where Kafka assigns, getmany waits for the end of a rebalance, which may wait for this partition.
        if not self._assigns or self._feeds.get(tp) is not feed:
            return False
        with self._translated_errors():
            records = self._fetched_records.take(tp, self._batch, feed.end)
        if records is None:
            records = (await self._getmany([tp], 0)).get(tp)
        if not records:
            return False
        self._last_records_at = monotonic()
        feed.add_records(records)
        self._pause_if_complete(tp, feed)
        self._taken_in_turn += len(records)
        if self._taken_in_turn >= _RECORDS_PER_TURN:
            self._taken_in_turn = 0
            await asyncio.sleep(0)  # with fetched data getmany never yields, and a handler may not either
        return True

    async def _fetch(self, wanted: list[TopicPartition], wait: int) -> None:
        """Hand over records of these partitions that are there, or that come within so many milliseconds."""
        as_of = self._member.progress.limit
        fetched: dict[TopicPartition, list[Any]] = {}
        self._woken.clear()
        try:
            with anyio.CancelScope() as self._fetching:  # cancelling getmany loses no record
                fetched = await self._getmany(wanted, wait)
        finally:
            self._fetching = None
        if fetched:
            self._last_records_at = monotonic()
        for tp, records in fetched.items():
            if tp in self._feeds:  # not revoked meanwhile
                self._feeds[tp].add_records(records)
                self._pause_if_complete(tp, self._feeds[tp])
        if sum(map(len, fetched.values())) < self._batch:  # else more may be there, also for those that wait
            waiting = [tp for tp in wanted if tp in self._feeds and self._feeds[tp].wants_records]
            if waiting:
                await self._check_log_ends(waiting, as_of)
        await anyio.lowlevel.checkpoint()  # with fetched data getmany never yields

    async def _getmany(self, wanted: list[TopicPartition], wait: int) -> dict[TopicPartition, list[Any]]:
        found: dict[TopicPartition, list[Any]]
        with self._translated_errors():
            found = await self._kafka_consumer.getmany(*wanted, timeout_ms=wait, max_records=self._batch)
        return found

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raise errors of aiokafka as KafkaError, and those of a deserializer as RecordError."""
        try:
            yield
        except OffsetOutOfRangeError as error:
            raise KafkaError(
                f"records were deleted under the replay: {self._places_in(error)}; nothing was skipped. "
                f"Raise the topic's retention, or start again from what is left"
            ) from error
        except NOT_ALLOWED as error:
            raise KafkaRefusedError(f"not allowed to fetch from Kafka: {describe_denial(error)}") from error
        except AiokafkaError as error:
            raise KafkaError(f"could not fetch from Kafka: {error}") from error
        except Exception as error:  # the user's deserializer may raise anything
            raise _with_place(error) from error

    def _pause_if_complete(self, tp: TopicPartition, feed: PartitionFeed) -> None:
        """Stop fetching a partition that was fetched up to the run's end."""
        if feed.complete and tp in self._kafka_consumer.assignment():
            self._kafka_consumer.pause(tp)
            self._fetched_records.forget(tp)

    async def _check_log_ends(self, waiting: list[TopicPartition], as_of: Limit) -> None:
        """Find out whether partitions that wait are at the end of the run, or at the end of the log under this limit."""
        unknown: list[TopicPartition] = []
        for tp in waiting:
            feed = self._feeds.get(tp)
            if feed is None or not self._kafka_consumer.assignment() >= {tp}:  # revoked meanwhile
                continue
            position = await self._cluster.ask(self._kafka_consumer.position(tp), "ask for our position in")
            if not feed.wants_records:  # a fetch counts as read when its first record is taken
                continue
            feed.move_to(position)
            self._pause_if_complete(tp, feed)
            if not feed.complete and feed.wants_log_end:
                unknown.append(tp)
        if monotonic() - self._last_records_at > _SILENCE_SECONDS:
            self._last_records_at = monotonic()
            await self._check_topics({tp.topic for tp in waiting})
        if not unknown:
            return
        asked_at = self._member.clock()
        try:
            ends = await self._cluster.ends([Partition(*tp) for tp in unknown])
        except KafkaError as error:
            self._warn_of_outage("ends", "%s; no partition counts as idle until it answers", error)
            await self._check_topics({tp.topic for tp in unknown})
            await anyio.sleep(_WAIT_MS / 1000)  # time is the event: a broker that is down does not say when it is back
            return
        self._note_answer("ends")
        for tp in unknown:
            if tp in self._feeds:
                self._feeds[tp].note_log_end(ends[Partition(*tp)], as_of, asked_at)

    async def _check_topics(self, topics: set[str]) -> None:
        """Raise KafkaError if a topic was deleted: aiokafka brings neither records nor an error for it."""
        try:
            await self._cluster.partitions(topics)
            self._note_answer("topics")
        except UsageError as error:
            if self._member.options.grows and self._member.options.managed is not None:
                log.warning("%s; the leader takes it out of the set", error)
                return
            raise KafkaError(f"a topic was deleted under the replay: {error}") from error
        except KafkaError as error:
            self._warn_of_outage("topics", "%s; waiting until it answers", error)

    def _warn_of_outage(self, question: str, text: str, error: KafkaError) -> None:
        """Log that Kafka does not answer: once for each outage, which may last long."""
        if not self._unanswered:
            log.warning(text, error)
        self._unanswered.add(question)

    def _note_answer(self, question: str) -> None:
        if question in self._unanswered:
            self._unanswered.remove(question)
            if not self._unanswered:
                log.info("Kafka answers again")

    def _places_in(self, error: OffsetOutOfRangeError) -> str:
        places = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
        return ", ".join(f"{tp.topic}.{tp.partition} at offset {offset}" for tp, offset in places.items()) or str(error)


def _with_place(error: Exception) -> Exception:
    """Return a RecordError with the place at which a deserializer raised. Only the frame that called it knows the place."""
    trace = error.__traceback__
    while trace is not None:
        known = trace.tb_frame.f_locals
        tp, offset = known.get("tp"), getattr(known.get("record"), "offset", None)
        if isinstance(tp, TopicPartition) and offset is not None:
            return RecordError(f"a deserializer raised {error!r}", tp.topic, tp.partition, offset)
        trace = trace.tb_next
    return error
