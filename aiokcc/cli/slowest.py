"""Finds the partitions that the others wait for, from samples of the partitions that are busy."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

__all__ = ["Slowest"]

_WINDOW_SECONDS: Final = 4.0
_LEAST_SAMPLES: Final = 5
_MOSTLY: Final = 0.75


class Slowest:
    """Collects samples from one worker; each holds the partitions that had records before the limit.

    One sample proves nothing: while a period is open, some partition is always busy. A partition that is busy in nearly every
    sample, while most of the others wait, is the one that all wait for.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, frozenset[str]]] = deque()

    def add(self, busy: Iterable[str], at: float) -> None:
        """Add one sample; samples older than _WINDOW_SECONDS are dropped."""
        self._samples.append((at, frozenset(busy)))
        while at - self._samples[0][0] > _WINDOW_SECONDS:
            self._samples.popleft()

    def mostly_busy(self) -> list[str]:
        """Return the partitions that were busy in nearly every sample, the busiest first; none if there are too few samples."""
        if len(self._samples) < _LEAST_SAMPLES:
            return []
        times = Counter(partition for _, busy in self._samples for partition in sorted(busy))
        return [partition for partition, number in times.most_common() if number >= _MOSTLY * len(self._samples)]
