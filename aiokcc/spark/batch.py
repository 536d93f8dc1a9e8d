"""A batch: the neighbouring periods that one Spark job computes, each as exact offset ranges.

The content of a batch is decided once and recorded in the store before anything is published. A retry, or the next driver,
reads that record and never resolves the offsets again. So a batch holds the same records however often it is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from aiokcc.core.partitions import Partition

__all__ = ["Batch", "LateRecords", "Slice"]


@dataclass(frozen=True, slots=True)
class Slice:
    """One period: ``[start, end)`` in event time, and per partition the offsets it is read from, the second exclusive.

    Empty ranges are left out. Under a bound on lateness neighbouring ranges overlap; then the time of a row decides, too.
    """

    start: int
    end: int
    ranges: Mapping[Partition, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LateRecords:
    """Late records of one partition that belong to the period ``[start, end)``, which was decided before they were read.

    All records of the partition from offset ``first`` to ``last`` (exclusive) with a time in this period are late for it.
    """

    start: int
    end: int
    partition: Partition
    first: int
    last: int
    records: int
    """Their number."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Neighbouring periods of a pipeline, computed by one job. Batches are numbered from 0 without a gap."""

    pipeline: str
    number: int
    periods: tuple[Slice, ...]
    behind: Mapping[Partition, int] = field(default_factory=dict)
    """Under a bound on lateness, the upper offset of the boundary at which the batch starts. Records before it that are older
    than ``start`` belong to earlier batches. If a partition is not in it, all of its first range belongs to this batch."""

    late: tuple[LateRecords, ...] = ()
    """With ``late="restate"``, the late records in the ranges. They are left out, and wait until their periods are restated."""
    replaces: tuple[int, int] | None = None
    """For a batch that restates periods: the bounds of event time whose published periods it replaces. Its number is that of
    the restatement."""
    included: tuple[LateRecords, ...] = ()
    """For a batch that restates periods: late records of earlier batches that it includes, beside the ranges."""

    @property
    def start(self) -> int:
        """The start of the first period."""
        return self.periods[0].start

    @property
    def end(self) -> int:
        """The end of the last period."""
        return self.periods[-1].end

    @property
    def is_empty(self) -> bool:
        """True if no period holds a record."""
        return not self.full

    @property
    def full(self) -> list[int]:
        """The indexes of the periods that hold records."""
        cells = {(late.start, late.end) for late in self.included}
        return [
            n
            for n, period in enumerate(self.periods)
            if period.ranges or any(start < period.end and period.start < end for start, end in cells)
        ]

    @property
    def ranges(self) -> dict[Partition, tuple[int, int]]:
        """The offsets that the batch is read from: per partition the start of its first range and the end of its last one."""
        result: dict[Partition, tuple[int, int]] = {}
        for period in self.periods:
            for partition, (low, high) in period.ranges.items():
                result[partition] = (result.get(partition, (low, high))[0], high)
        return result

    def part(self, first: int, count: int = 1) -> Batch:
        """Return a batch of only these periods, each with exactly the records that it has in the whole batch."""
        behind = dict(self.behind)
        for period in self.periods[:first]:
            behind |= {partition: high for partition, (_, high) in period.ranges.items()}
        periods = self.periods[first : first + count]
        included = tuple(late for late in self.included if late.start < periods[-1].end and periods[0].start < late.end)
        return replace(self, periods=periods, behind=behind, included=included)
