"""Measures rates, and which partitions are slow, from samples of the last seconds."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

__all__ = ["BusyMeter", "RateMeter"]

_BUSY_SECONDS: Final = 4.0
_LEAST_SAMPLES: Final = 5
_MOSTLY: Final = 0.75


class RateMeter:
    """Measures the rate at which a count grows, over the last ``seconds``."""

    def __init__(self, seconds: float = 5.0, least: float = 0.3) -> None:
        """``least`` is the time that the samples must span before there is a rate."""
        self._seconds, self._least = seconds, least
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, count: float, at: float) -> None:
        """Record one sample of the count."""
        self._samples.append((at, count))
        while at - self._samples[0][0] > self._seconds and len(self._samples) > 2:
            self._samples.popleft()

    def per_second(self) -> float | None:
        """Return the rate; None while there are too few samples."""
        if len(self._samples) < 2:
            return None
        (begun, first), (ended, last) = self._samples[0], self._samples[-1]
        return (last - first) / (ended - begun) if ended - begun > self._least else None


class BusyMeter:
    """Finds the partitions that the others wait for, among those of one worker.

    Each sample holds the partitions that had records before the limit. One sample proves nothing: while a period is open, some
    partition is always busy. A partition that is busy in nearly every sample, while most of the others wait, is the one that
    all wait for.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, frozenset[str]]] = deque()

    def add(self, busy: Iterable[str], at: float) -> None:
        """Add one sample; samples older than _BUSY_SECONDS are dropped."""
        self._samples.append((at, frozenset(busy)))
        while at - self._samples[0][0] > _BUSY_SECONDS:
            self._samples.popleft()

    def mostly_busy(self) -> list[str]:
        """Return the partitions that were busy in nearly every sample, the busiest first; none if there are too few samples."""
        if len(self._samples) < _LEAST_SAMPLES:
            return []
        times = Counter(partition for _, busy in self._samples for partition in sorted(busy))
        return [partition for partition, number in times.most_common() if number >= _MOSTLY * len(self._samples)]
