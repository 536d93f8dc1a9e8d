"""A batch: the neighbouring periods that one Spark job computes, each as exact offset ranges.

The content of a batch is decided once and recorded in the store before anything is published. A retry, or the next driver,
reads that record and never resolves the offsets again. So a batch holds the same records however often it is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from aiokcc.core.partitions import Partition

__all__ = ["Batch", "Slice"]


@dataclass(frozen=True, slots=True)
class Slice:
    """One period: ``[start, end)`` in event time, and per partition the offsets it is read from, the second exclusive.

    Empty ranges are left out. Under a bound on lateness neighbouring ranges overlap; then the time of a row decides, too.
    """

    start: int
    end: int
    ranges: Mapping[Partition, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """Neighbouring periods of a pipeline, computed by one job. Batches are numbered from 0 without a gap."""

    pipeline: str
    number: int
    periods: tuple[Slice, ...]
    behind: Mapping[Partition, int] = field(default_factory=dict)
    """Under a bound on lateness, the upper offset of the boundary at which the batch starts. Records before it that are older
    than ``start`` belong to earlier batches. If a partition is not in it, all of its first range belongs to this batch."""

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
        return not any(period.ranges for period in self.periods)

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
        return replace(self, periods=self.periods[first : first + count], behind=behind)
