"""How many periods go into one job: as many as take about the time that was asked for, and never more than is safe.

A job has a fixed price, so catch-up puts many periods into one. How many is found by doing: after each job the number is scaled
by how far its time was from the target, at most by a factor of four at once, so that one odd job does not upset it. The
first job may be large: nothing is known yet, and what bounds it then is the number of records and bytes.
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
    """The number of periods for the next job."""

    max_periods: int
    target_seconds: float
    max_bytes: int
    record_bytes: float = 1000.0
    """What a record takes, on average; measured while the replay runs."""
    _periods: float = 0.0

    @property
    def periods(self) -> int:
        """How many periods that hold records the next job may have."""
        return max(1, min(self.max_periods, int(self._periods or self.max_periods)))

    @property
    def max_records(self) -> int:
        """How many records the next job may have, by the bound on bytes."""
        return max(1, int(self.max_bytes / max(self.record_bytes, 1.0)))

    def record_job(self, periods: int, seconds: float) -> None:
        """A job with so many periods has taken so long."""
        if periods < 1 or seconds <= 0:
            return
        if periods < self.periods and seconds <= self.target_seconds:
            return  # there were no more to be had: that says nothing about a larger job
        factor = min(_STEP, max(1 / _STEP, self.target_seconds / seconds))
        self._periods = max(1.0, min(float(self.max_periods), periods * factor))

    def record_size(self, mean_bytes: float) -> None:
        """What records of a sample have taken, on average."""
        self.record_bytes += (mean_bytes - self.record_bytes) * (_SMOOTH if self.record_bytes != 1000.0 else 1.0)

    def count_fitting(self, records: Sequence[int]) -> int:
        """How many of these periods, given by how many records each of them has, go into the next job: at least one."""
        total = full = 0
        for count, mine in enumerate(records):
            total += mine
            full += mine > 0
            if count and (total > self.max_records or full > self.periods):
                return count
        return len(records)
