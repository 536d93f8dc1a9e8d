"""Chooses how many periods go into one job, so that it takes about the time that was asked for and reads not too many bytes.

A job has a fixed cost, so catch-up puts many periods into one job. After each job the number of periods is scaled by the ratio
of the target to the time that the job took. The factor is four at most, so that one unusual job does not change much. Before
the first job no time is known, so only the bounds on periods and bytes limit it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["BatchSizer"]

_STEP: Final = 4.0
_SMOOTH: Final = 0.3


@dataclass(slots=True)
class BatchSizer:
    """Chooses the number of periods for the next job."""

    max_periods: int
    target_seconds: float
    max_bytes: int
    record_bytes: float = 1000.0
    """The average size of a record, measured while the replay runs."""
    _periods: float = 0.0

    @property
    def periods(self) -> int:
        """The number of periods with records that the next job may have."""
        return max(1, min(self.max_periods, int(self._periods or self.max_periods)))

    @property
    def max_records(self) -> int:
        """The number of records that the next job may have, by the bound on bytes."""
        return max(1, int(self.max_bytes / max(self.record_bytes, 1.0)))

    def record_job(self, periods: int, seconds: float) -> None:
        """Record how long a job with this number of periods took."""
        if periods < 1 or seconds <= 0:
            return
        if periods < self.periods and seconds <= self.target_seconds:
            return  # no more periods were open: this says nothing about a larger job
        factor = min(_STEP, max(1 / _STEP, self.target_seconds / seconds))
        self._periods = max(1.0, min(float(self.max_periods), periods * factor))

    def record_size(self, mean_bytes: float) -> None:
        """Record the average size of the records of a sample."""
        self.record_bytes += (mean_bytes - self.record_bytes) * (_SMOOTH if self.record_bytes != 1000.0 else 1.0)

    def count_fitting(self, records: Sequence[int]) -> int:
        """Return how many of these periods go into the next job, at least one. ``records`` has each period's size."""
        total = full = 0
        for count, mine in enumerate(records):
            total += mine
            full += mine > 0
            if count and (total > self.max_records or full > self.periods):
                return count
        return len(records)
