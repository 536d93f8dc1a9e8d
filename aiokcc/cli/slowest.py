"""Finds the partitions that the others wait for, from many looks at which partitions are still busy."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

__all__ = ["Slowest"]

_OVER: Final = 4.0
_LOOKS: Final = 5
_MOSTLY: Final = 0.75


class Slowest:
    """Collects looks at one worker: which of its partitions had records before the limit.

    One look tells nothing: while a period is open, somebody is always busy. A partition that is busy in nearly every look,
    while most of the others wait in theirs, is the one that all wait for.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, frozenset[str]]] = deque()

    def add(self, busy: Iterable[str], at: float) -> None:
        """Note which partitions were busy at this time; looks that are seconds older are forgotten."""
        self._looks.append((at, frozenset(busy)))
        while at - self._looks[0][0] > _OVER:
            self._looks.popleft()

    def mostly_busy(self) -> list[str]:
        """Return the partitions that were busy in nearly every look, the busiest first; none while the looks are few."""
        if len(self._looks) < _LOOKS:
            return []
        times = Counter(partition for _, busy in self._looks for partition in sorted(busy))
        return [partition for partition, number in times.most_common() if number >= _MOSTLY * len(self._looks)]
