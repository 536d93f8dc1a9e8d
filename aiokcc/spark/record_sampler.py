"""A look at single records: how large they are, and whether what the index of times has found is a record at all.

A job is bounded in bytes, and offsets only count records; so a few are read where the next batch begins. And Kafka's index of
times knows the markers that end transactions: they have offsets and the time at which they were written, but nobody can read
them. In a history that was written in transactions each marker is of today, and the index takes the first one for the first
record at or past any time. A read from that offset shows it: the first record that comes is another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError as AiokafkaError

from aiokcc.core.partitions import Partition
from aiokcc.kafka.cluster import Cluster, consumer_settings, stopping
from aiokcc.kafka.settings import ReplaySettings
from aiokcc.spark.finder import Finder, Found

__all__ = ["CheckedFinder", "RecordSampler"]

T = TypeVar("T")

log = logging.getLogger("aiokcc.spark")

_PARTITIONS: Final = 6
"""Of so many a sample is taken."""
_SAMPLE: Final = 200
_SECONDS: Final = 5.0
_OVERHEAD: Final = 40
"""Bytes of a row besides key and value: topic, partition, offset, timestamp."""


class RecordSampler:
    """A consumer that is asked now and then. It connects when it is first asked."""

    def __init__(self, settings: ReplaySettings) -> None:
        self._settings = settings
        self._consumer: Any = None
        self._stack = AsyncExitStack()
        self._lock = asyncio.Lock()
        """Who comes second waits: they would read at each other's offsets."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[RecordSampler]:
        """Disconnect at the end."""
        async with self._stack:
            yield self

    async def mean_size(self, ranges: Mapping[Partition, tuple[int, int]]) -> float | None:
        """The mean size of records of these offset ranges, by a sample; None if there is none to be had."""
        full = sorted((p for p, (start, end) in ranges.items() if start < end), key=lambda p: p.number)[:_PARTITIONS]
        if not full:
            return None

        async def look(consumer: Any) -> float | None:
            batches = (await consumer.getmany(timeout_ms=500, max_records=_SAMPLE)).values()
            sizes = [
                max(0, r.serialized_key_size) + max(0, r.serialized_value_size) for batch in batches for r in batch
            ]
            return sum(sizes) / len(sizes) + _OVERHEAD if sizes else None

        return await self._look({p: ranges[p][0] for p in full}, look)

    async def are_records(self, found: Mapping[Partition, Found]) -> bool:
        """Whether at these offsets there are records of these times, for whoever reads the log as we do."""

        async def look(consumer: Any) -> bool:
            for partition, record in found.items():
                place = TopicPartition(*partition)
                brought: dict[Any, list[Any]] = {}
                # Slow is not empty: only a position that has moved on tells that there was nothing.
                while not brought and await consumer.position(place) == record.offset:
                    brought = await consumer.getmany(place, timeout_ms=200, max_records=1)
                first = next((records[0] for records in brought.values()), None)
                if first is None or (first.offset, first.timestamp) != tuple(record):
                    return False
            return True

        # None: nobody knows, and the other way is always right.
        return await self._look({p: record.offset for p, record in found.items()}, look) is True

    async def _look(self, positions: Mapping[Partition, int], look: Callable[[Any], Awaitable[T]]) -> T | None:
        """What a look at the records from these offsets on gives; None where they cannot be had soon, whatever the reason."""
        async with self._lock:
            try:
                async with asyncio.timeout(_SECONDS):
                    consumer = await self._connected()
                    asked = {TopicPartition(*p): offset for p, offset in positions.items()}
                    consumer.assign(list(asked))
                    for place, offset in asked.items():
                        consumer.seek(place, offset)
                    return await look(consumer)
            except (TimeoutError, AiokafkaError) as error:
                log.debug("could not look at records: %r", error)
                return None
            finally:
                if self._consumer is not None:
                    self._consumer.unsubscribe()

    async def _connected(self) -> Any:
        if self._consumer is None:
            wanted = {"max_partition_fetch_bytes": 64 * 1024, "fetch_max_wait_ms": 10}
            consumer = AIOKafkaConsumer(**{**consumer_settings(self._settings), **wanted}, group_id=None)
            async with AsyncExitStack() as connecting:  # one that could not connect is not kept
                await connecting.enter_async_context(stopping(consumer))
                await consumer.start()
                self._stack.push_async_exit(connecting.pop_all())
            self._consumer = consumer
        return self._consumer


class CheckedFinder(Finder):
    """Finds times by Kafka's index, for as long as it does not mislead; then in the other way, for good.

    What is checked is a record that seems to lie further ahead than the next period: that is where believing a marker would
    do harm, and a gap is rare enough to be looked at. A marker within the period at hand only ends it a moment early.
    """

    def __init__(self, cluster: Cluster, sampler: RecordSampler, period: int, other: Callable[[], Finder]) -> None:
        super().__init__(cluster)
        self._sampler = sampler
        self._period = period
        self._make_other = other
        self._other: Finder | None = None

    @property
    def looks_ahead(self) -> bool:
        """Whether a question is cheap enough to be asked while a job runs: the other way takes a job itself."""
        return self._other is None

    async def at(self, times: Mapping[Partition, int]) -> dict[Partition, Found | None]:
        """The first record at or past a time, of each partition; None where there is none."""
        if self._other is None:
            found = await super().at(times)
            # Asked about all times, the index can but name the first offset there is.
            far = {
                p: record for p, record in found.items() if record and record.ts >= times[p] + self._period and times[p]
            }
            if await self._is_right(far):
                return found
        return await self._otherwise().at(times)

    async def across(
        self, known: Mapping[Partition, Found | None], boundaries: Sequence[int]
    ) -> dict[Partition, list[Found | None]]:
        """For each boundary, ascending, the first record at or past it; None where there is none."""
        if self._other is None:
            answer = await super().across(known, boundaries)
            last = {p: found[-1] for p, found in answer.items()}
            ahead = boundaries[-1] + self._period
            if await self._is_right({p: record for p, record in last.items() if record and record.ts >= ahead}):
                return answer
        return await self._otherwise().across(known, boundaries)

    async def _is_right(self, found: Mapping[Partition, Found]) -> bool:
        if not found or await self._sampler.are_records(found):
            return True
        log.info(
            "the index of times of %s also tells of what are no records, such as the ends of transactions; "
            "the records themselves are scanned for the boundaries",
            ", ".join(sorted({p.topic for p in found})),
        )
        return False

    def _otherwise(self) -> Finder:
        if self._other is None:
            self._other = self._make_other()
        return self._other
