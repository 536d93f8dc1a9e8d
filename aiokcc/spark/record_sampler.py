"""Reads single records: to measure their size, and to check that an entry of the index of times is a record.

A job is bounded in bytes, but offsets only count records; so a few records are read where the next batch begins. Kafka's index
of times also has the markers that end transactions. They have an offset and the time at which they were written, but no
consumer can read them. If an old history was written in transactions today, each marker is of today, and the index gives the
first marker as the first record at or past any time. A read from that offset shows the error: the first record has another
offset.
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
from aiokcc.kafka.source_options import SourceOptions
from aiokcc.spark.finder import Finder, Found

__all__ = ["CheckedFinder", "RecordSampler"]

T = TypeVar("T")

log = logging.getLogger("aiokcc.spark")

_PARTITIONS: Final = 6
"""A sample is taken from at most this number of partitions."""
_SAMPLE: Final = 200
_SECONDS: Final = 5.0
_OVERHEAD: Final = 40
"""The bytes of a row besides key and value: topic, partition, offset, timestamp."""


class RecordSampler:
    """Reads samples through a consumer of its own, which connects at the first call."""

    def __init__(self, source: SourceOptions) -> None:
        self._source = source
        self._consumer: Any = None
        self._stack = AsyncExitStack()
        self._lock = asyncio.Lock()
        """One call at a time: two would move each other's positions."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[RecordSampler]:
        """Disconnect the consumer at the end of the block."""
        async with self._stack:
            yield self

    async def mean_size(self, ranges: Mapping[Partition, tuple[int, int]]) -> float | None:
        """Return the mean size of a sample of records of these offset ranges; None if no record could be read soon."""
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
        """Return whether records with these timestamps can be read at these offsets; False if they could not be read soon."""

        async def look(consumer: Any) -> bool:
            for partition, record in found.items():
                place = TopicPartition(*partition)
                brought: dict[Any, list[Any]] = {}
                # An empty answer may be slow: only a position that has moved on shows that there was no record.
                while not brought and await consumer.position(place) == record.offset:
                    brought = await consumer.getmany(place, timeout_ms=200, max_records=1)
                first = next((records[0] for records in brought.values()), None)
                if first is None or (first.offset, first.timestamp) != tuple(record):
                    return False
            return True

        # None means that it is not known; then the scan is used, which is always right.
        return await self._look({p: record.offset for p, record in found.items()}, look) is True

    async def _look(self, positions: Mapping[Partition, int], look: Callable[[Any], Awaitable[T]]) -> T | None:
        """Seek to these offsets and return what ``look`` returns; None if Kafka fails or takes too long."""
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
            consumer = AIOKafkaConsumer(**{**consumer_settings(self._source), **wanted}, group_id=None)
            async with AsyncExitStack() as connecting:  # a consumer that could not connect is not kept
                await connecting.enter_async_context(stopping(consumer))
                await consumer.start()
                self._stack.push_async_exit(connecting.pop_all())
            self._consumer = consumer
        return self._consumer


class CheckedFinder(Finder):
    """Finds records by Kafka's index until it turns out to be wrong; from then on by the other finder.

    It checks records that seem to lie further ahead than the next period: there a marker would do harm, and such gaps are
    rare, so that the check is cheap. A marker inside the present period only ends it a moment early.
    """

    def __init__(self, cluster: Cluster, sampler: RecordSampler, period: int, other: Callable[[], Finder]) -> None:
        super().__init__(cluster)
        self._sampler = sampler
        self._period = period
        self._make_other = other
        self._other: Finder | None = None

    @property
    def looks_ahead(self) -> bool:
        """True while the index is used. The other finder needs a Spark job, which must not run beside another one."""
        return self._other is None

    async def at(self, times: Mapping[Partition, int]) -> dict[Partition, Found | None]:
        """Return the first record at or past a time, for each partition; None where there is none."""
        if self._other is None:
            found = await super().at(times)
            # For the time 0 the index gives the first offset, which is right in any case.
            far = {
                p: record for p, record in found.items() if record and record.ts >= times[p] + self._period and times[p]
            }
            if await self._is_right(far):
                return found
        return await self._otherwise().at(times)

    async def across(
        self, known: Mapping[Partition, Found | None], boundaries: Sequence[int]
    ) -> dict[Partition, list[Found | None]]:
        """Return for each boundary, ascending, the first record at or past it; None where there is none."""
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
