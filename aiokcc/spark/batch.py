"""A batch: the neighbouring periods that one Spark job computes, each as exact offset ranges.

What a batch holds is decided once and recorded in the store before anything is published. A retry, or the next driver, reads
that and never resolves it again; so however often a batch is run, its periods hold the same records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from aiokcc.core.partitions import Partition

__all__ = ["Batch", "Slice"]


@dataclass(frozen=True, slots=True)
class Slice:
    """One period: ``[start, end)`` in event time, and per partition the offsets it is read from, the second exclusive.

    Empty ranges are left out. Under a bound on lateness neighbouring ranges overlap: a row's label then decides.
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
    """Under a bound on lateness, the upper offset of the boundary where the batch starts: of the records before it, those older
    than ``start`` belong to earlier batches. Where it is left out, all of the first range belongs to this one."""

    @property
    def start(self) -> int:
        """Where the first period starts."""
        return self.periods[0].start

    @property
    def end(self) -> int:
        """Where the last period ends."""
        return self.periods[-1].end

    @property
    def is_empty(self) -> bool:
        """Whether no period holds a record."""
        return not any(period.ranges for period in self.periods)

    @property
    def ranges(self) -> dict[Partition, tuple[int, int]]:
        """What the batch is read from: per partition the first offset of its first range and the end of its last."""
        result: dict[Partition, tuple[int, int]] = {}
        for period in self.periods:
            for partition, (low, high) in period.ranges.items():
                result[partition] = (result.get(partition, (low, high))[0], high)
        return result

    def part(self, first: int, count: int = 1) -> Batch:
        """Some of its periods by themselves, each with exactly the records that it has in the whole."""
        behind = dict(self.behind)
        for period in self.periods[:first]:
            behind |= {partition: high for partition, (_, high) in period.ranges.items()}
        return replace(self, periods=self.periods[first : first + count], behind=behind)
