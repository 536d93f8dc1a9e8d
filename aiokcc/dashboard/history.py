"""The staircase: how far in event time each partition was, at each moment that is kept."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from aiokcc.core.partitions import Partition
from aiokcc.runtime.status import GroupState, PartitionCondition, PartitionStatus, Status

__all__ = ["History", "Sample", "Staircase"]

FEW: Final = 40
"""Up to this number, each partition has a line; above it, each topic has a band, and the worst partitions have lines."""
WORST: Final = 8
MOST_SAMPLES: Final = 1200
"""A history has at most about this many samples, however long it is kept."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment. Times are milliseconds since the epoch."""

    at: int
    limit: int
    partitions: dict[str, int]
    """The event time that these partitions have reached."""
    topics: dict[str, tuple[int, int]]
    """The event time that the last and the first partition of each topic have reached; empty if there are few partitions."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data with short names, for JSON."""
        plain: dict[str, Any] = {"t": self.at, "limit": self.limit, "p": self.partitions}
        if self.topics:
            plain["topics"] = self.topics
        return plain


class Staircase:
    """Takes a sample of each status. A partition never goes back, as long as the limit does not."""

    def __init__(self) -> None:
        self._reached: dict[str, int] = {}
        self._limit = 0

    def sample(self, status: Status, at: int) -> Sample | None:
        """Return the sample; None if there is no limit to draw: before the first period, and after a release."""
        limit = status.limit if status.state is not GroupState.ENDED else status.closed
        if not limit:
            return None
        if limit < self._limit:  # another run under the same root
            self._reached.clear()
        self._limit = limit
        # A report says where a partition was when it was written. A later one may say less, but not that it has gone back.
        known = {p.partition: _reached(p, status, limit) for p in status.partitions}
        self._reached = {
            name: max(value, self._reached.get(name, value)) for name, value in known.items() if value is not None
        }
        if len(known) <= FEW:
            return Sample(at, limit, dict(self._reached), {})
        topics: dict[str, tuple[int, int]] = {}
        for name, value in self._reached.items():
            topic = Partition.parse(name).topic
            low, high = topics.get(topic, (value, value))
            topics[topic] = (min(low, value), max(high, value))
        late = [b.partition for b in status.blocking if b.partition in self._reached]
        late.sort(key=lambda name: (self._reached[name], name))
        return Sample(at, limit, {name: self._reached[name] for name in late[:WORST]}, topics)


def _reached(partition: PartitionStatus, status: Status, limit: int) -> int | None:
    """Return the event time before which the partition has processed everything; None if the store does not tell."""
    if partition.at_end or partition.state is PartitionCondition.WAITING or status.state is GroupState.ENDED:
        return limit
    least = _least(status, limit)
    if partition.timestamp is None:
        return least
    return min(max(partition.timestamp, least or 0), limit)


def _least(status: Status, limit: int) -> int | None:
    """Return the event time that every partition has reached; None if it is not known."""
    if status.closed:
        return min(limit, status.closed)
    if status.start is not None:
        return min(limit, status.start)
    # No period has closed yet, and the run began with the earliest records: all of them are in the first period.
    period = status.period or status.held_period or status.agreed_period
    return None if period is None else max(0, (status.floor or limit) - period)


class History:
    """Keeps the samples of the last ``seconds``, with at most about MOST_SAMPLES of them, spread evenly over time."""

    def __init__(self, seconds: float) -> None:
        self._keep = int(seconds * 1000)
        self._grain = max(1, self._keep // MOST_SAMPLES)
        self._samples: deque[Sample] = deque()

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, sample: Sample) -> None:
        """Add a sample. It replaces the last one if both are in the same grain of time."""
        if self._samples and self._samples[-1].at // self._grain == sample.at // self._grain:
            self._samples.pop()
        self._samples.append(sample)
        while self._samples[0].at < sample.at - self._keep:
            self._samples.popleft()

    def since(self, at: int) -> list[Sample]:
        """Return the samples that are newer than this time."""
        return [sample for sample in self._samples if sample.at > at]
