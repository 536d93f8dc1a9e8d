"""Finds boundaries by a scan of the records, for event times by an expression, which Kafka's index of times does not know.

A boundary ``T`` needs the first record in log order at or past it: ``low(T)`` is its offset. ``high(T)`` is the offset of the
first record at or past ``T`` plus the bound on lateness. (A record belongs to a period after ``T`` if its own time is at or
past ``T``, or if it stands at or behind ``high(T)``; the record at that offset is itself at or past ``T``.)

So one aggregation over the records is enough, however many periods they span: by partition and period the first offset and its
time. It answers later requests for all boundaries of periods, for boundaries plus the bound on lateness, and for the few *odd*
times that were given. Each period gives one or two rows, so the answers fit in the driver's memory.

The same aggregation finds records without a usable time. The error names the first of them.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokcc.core.partitions import Partition
from aiokcc.kafka.cluster import Cluster
from aiokcc.spark.finder import Finder, Found
from aiokcc.spark.source import event_millis, load, poison
from aiokcc.spark.spark_thread import SparkThread

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["ScanGroup", "ScanIndex", "Scanner", "ScanningFinder", "summarize"]

_TS: Final = "__aiokcc_event_ts"
Range = tuple[int, int]


class ScanGroup(NamedTuple):
    """Records of one partition that no scanned time separates, and the first of them in the log."""

    partition: Partition
    by_time: int
    """The start of their period."""
    by_bound: int
    """The start of the period that holds their time minus the bound on lateness."""
    odd: int
    """The number of odd times that they are at or past."""
    first: Found


class ScanIndex:
    """Gives the first record at or past a time, for the times of the scan."""

    def __init__(self, period: int, lateness: Mapping[str, int] | None = None, odd: Iterable[int] = ()) -> None:
        self.period = period
        self.lateness = dict(lateness or {})
        self.odd = sorted(set(odd))
        self._groups: dict[Partition, list[ScanGroup]] = {}
        self._sorted: dict[Partition, tuple[_Firsts, _Firsts, _Firsts]] = {}

    def add(self, groups: Iterable[ScanGroup]) -> None:
        """Add the result of a scan to those of earlier ones."""
        for group in groups:
            self._groups.setdefault(group.partition, []).append(group)
            self._sorted.pop(group.partition, None)

    def knows(self, topic: str, ts: int) -> bool:
        """Return whether the scan was made for this time."""
        return ts % self.period == 0 or self._unbound(topic, ts) % self.period == 0 or ts in self.odd

    def first(self, partition: Partition, ts: int) -> Found | None:
        """Return the first record in log order at or past a known time; None if there is none. ValueError for other times."""
        if not self.knows(partition.topic, ts):
            raise ValueError(f"{ts} is no time that was scanned for")
        groups = self._groups.get(partition, [])
        if partition not in self._sorted:
            self._sorted[partition] = (
                _Firsts((group.by_time, group.first) for group in groups),
                _Firsts((group.by_bound, group.first) for group in groups),
                _Firsts((group.odd, group.first) for group in groups),
            )
        by_time, by_bound, by_odd = self._sorted[partition]
        if ts % self.period == 0:
            return by_time.from_key(ts)
        if (less := self._unbound(partition.topic, ts)) % self.period == 0:
            return by_bound.from_key(less)
        return by_odd.from_key(bisect.bisect_right(self.odd, ts))

    def _unbound(self, topic: str, ts: int) -> int:
        return ts - self.lateness.get(topic, 0)


class _Firsts:
    """Gives for each key the first record, in log order, of those with this key or a greater one."""

    def __init__(self, items: Iterable[tuple[int, Found]]) -> None:
        least: dict[int, Found] = {}
        for key, first in items:
            least[key] = min(first, least.get(key, first))
        self._keys = sorted(least)
        self._firsts = [least[key] for key in self._keys]
        for n in reversed(range(len(self._keys) - 1)):
            self._firsts[n] = min(self._firsts[n], self._firsts[n + 1])

    def from_key(self, key: int) -> Found | None:
        n = bisect.bisect_left(self._keys, key)
        return self._firsts[n] if n < len(self._keys) else None


# -- the job -----------------------------------------------------------------------------------------------------------


def summarize(frame: DataFrame, millis: Column, index: ScanIndex, *, ceiling: int | None = None) -> list[ScanGroup]:
    """Run the aggregation over records with Kafka's columns, whose event time in milliseconds is given.

    Raise PoisonTimestampError for a record without a time, with a time before 1970, or with one past the ceiling.
    """
    from pyspark.sql import functions as F  # noqa: N812

    ts = F.col(_TS)
    bound = F.lit(0)
    for topic, late in sorted(index.lateness.items()):
        bound = F.when(F.col("topic") == F.lit(topic), F.lit(late)).otherwise(bound)
    sound = ts.isNotNull() & (ts >= 0)
    if ceiling is not None:
        sound &= ts <= ceiling
    reached = F.lit(0)
    for time in index.odd:
        reached += (ts >= time).cast("int")
    less = ts - bound
    keys = {
        "by_time": ts - F.pmod(ts, F.lit(index.period)),
        "by_bound": less - F.pmod(less, F.lit(index.period)),
        "odd": reached,
    }
    keyed = frame.withColumn(_TS, millis).select(
        "topic",
        "partition",
        F.struct("offset", ts.alias("ts")).alias("record"),
        sound.alias("sound"),
        *(F.when(sound, key).alias(name) for name, key in keys.items()),
    )
    rows = keyed.groupBy("topic", "partition", "sound", *keys).agg(F.min("record").alias("first")).collect()
    wrong = [row for row in rows if not row["sound"]]
    if wrong:
        row = min(wrong, key=lambda row: (row["topic"], row["partition"], row["first"]["offset"]))
        raise poison(row["first"]["ts"], row["topic"], row["partition"], row["first"]["offset"], ceiling)
    return [
        ScanGroup(
            Partition(row["topic"], row["partition"]),
            row["by_time"],
            row["by_bound"],
            row["odd"],
            Found(row["first"]["offset"], row["first"]["ts"]),
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class Scanner:
    """Scans topics by a Spark job; a call blocks while the job runs."""

    spark: SparkSession
    timestamp: Column | str | None
    bootstrap_servers: str
    options: Mapping[str, str] = field(repr=False)  # a password may be among them
    ceiling: Callable[[], int]
    """Returns the greatest accepted time in milliseconds; it moves with the clock."""

    def __call__(self, index: ScanIndex, ranges: Mapping[Partition, Range]) -> list[ScanGroup]:
        """Scan these offset ranges for the times of an index."""
        if not any(start < end for start, end in ranges.values()):
            return []
        frame = load(self.spark, ranges, bootstrap_servers=self.bootstrap_servers, options=self.options)
        return summarize(frame, event_millis(frame, self.timestamp), index, ceiling=self.ceiling())


class ScanningFinder(Finder):
    """Finds records as :class:`Finder` does, by a scan. Each record is scanned once; appended records are scanned later."""

    def __init__(
        self,
        cluster: Cluster,
        spark_thread: SparkThread,
        scanner: Callable[[ScanIndex, Mapping[Partition, Range]], list[ScanGroup]],
        bounds: Callable[[Partition], tuple[int, int | None]],
        period: int,
        lateness: Mapping[str, int],
        odd: Iterable[int] = (),
    ) -> None:
        super().__init__(cluster)
        self._spark_thread = spark_thread
        self._scanner = scanner
        self._bounds = bounds
        """Returns the first offset of a partition that is still needed, and the offset at which the run ends in it, or None."""
        self._index = ScanIndex(period, lateness, odd)
        self._odd = tuple(self._index.odd)
        self._reached: dict[Partition, int] = {}
        """The offset up to which each partition is scanned."""

    async def at(self, times: Mapping[Partition, int]) -> dict[Partition, Found | None]:
        """Return the first record at or past a time, for each partition; None where there is none."""
        await self._scan({p: [ts] for p, ts in times.items()})
        return {p: self._index.first(p, ts) for p, ts in times.items()}

    async def across(
        self, known: Mapping[Partition, Found | None], boundaries: Sequence[int]
    ) -> dict[Partition, list[Found | None]]:
        """Return for each boundary, ascending, the first record at or past it; None where there is none."""
        await self._scan(dict.fromkeys(known, boundaries))
        return {p: [self._index.first(p, ts) for ts in boundaries] for p in known}

    async def _scan(self, asked: Mapping[Partition, Sequence[int]]) -> None:
        strange = {ts for p, times in asked.items() for ts in times if not self._index.knows(p.topic, ts)}
        if strange:
            # An operator has changed the period during the run: what is not published is scanned again, for these times too.
            self._index = ScanIndex(self._index.period, self._index.lateness, [*self._odd, *strange])
            self._reached = {}
        followed = await self.ends(p for p in asked if self._bounds(p)[1] is None)
        ranges: dict[Partition, Range] = {}
        for partition in asked:
            begin, end = self._bounds(partition)
            stop = followed[partition] if end is None else end
            start = self._reached.get(partition, begin)
            if start < stop:
                ranges[partition] = (start, stop)
        if ranges:
            groups = await self._spark_thread.job("looking for the boundaries", self._scanner, self._index, ranges)
            self._index.add(groups)
            self._reached |= {p: stop for p, (_, stop) in ranges.items()}
