"""A batch: the neighbouring periods that one Spark job computes, each as exact offset ranges.

What a batch holds is decided once and recorded in the store before anything is published. A retry, or the next driver, reads
that and never resolves it again; so however often a batch is run, its periods hold the same records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
