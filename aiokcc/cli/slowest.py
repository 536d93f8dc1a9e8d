"""Finds the partitions that the others wait for, from many samples at which partitions are still busy."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

__all__ = ["Slowest"]

_WINDOW_SECONDS: Final = 4.0
_LEAST_SAMPLES: Final = 5
_MOSTLY: Final = 0.75


class Slowest:
    """Collects samples at one worker: which of its partitions had records before the limit.

    One sample tells nothing: while a period is open, somebody is always busy. A partition that is busy in nearly every sample,
    while most of the others wait in theirs, is the one that all wait for.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, frozenset[str]]] = deque()

    def add(self, busy: Iterable[str], at: float) -> None:
        """Note which partitions were busy at this time; samples that are seconds older are forgotten."""
        self._samples.append((at, frozenset(busy)))
        while at - self._samples[0][0] > _WINDOW_SECONDS:
            self._samples.popleft()

    def mostly_busy(self) -> list[str]:
        """Return the partitions that were busy in nearly every sample, the busiest first; none while the samples are few."""
        if len(self._samples) < _LEAST_SAMPLES:
            return []
        times = Counter(partition for _, busy in self._samples for partition in sorted(busy))
        return [partition for partition, number in times.most_common() if number >= _MOSTLY * len(self._samples)]
