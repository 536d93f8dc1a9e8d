"""The pace of a group: how fast the limit, the periods and the records go, and how long the rest takes."""

from __future__ import annotations

from dataclasses import dataclass

from aiokcc.runtime.status import GroupState, Status
from aiokcc.views.meters import RateMeter

__all__ = ["GroupPace", "Pace"]


@dataclass(frozen=True, slots=True)
class Pace:
    """Rates per second; None where they are not known."""

    event_time: float | None
    """Seconds of event time per second."""
    periods: float | None
    records: float | None
    """Offsets per second, as far as members report them: once per period."""
    seconds_left: float | None
    """The time left; None if the run has no end, or its pace is not known."""
    share: float | None
    """The part of the run that is done, from 0 to 1; None if the run has no end."""


class GroupPace:
    """Measures the pace of a group from its statuses of the last ten seconds."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._closed = 0
        self._limit = RateMeter(seconds=10.0, least=1.0)
        self._periods = RateMeter(seconds=10.0, least=1.0)
        self._records = RateMeter(seconds=10.0, least=1.0)
        self._reached: dict[str, int] = {}
        self._first: dict[str, int] = {}

    def add(self, status: Status, at: float) -> None:
        """Add a status that was read at this time of the monotonic clock."""
        if status.periods_closed < self._closed:  # another run under the same root
            self._begin()
        self._closed = status.periods_closed
        if status.limit:
            self._limit.add(status.limit, at)
        self._periods.add(status.periods_closed, at)
        for partition in status.partitions:
            if partition.offset is not None:
                self._first.setdefault(partition.partition, partition.offset)
                self._reached[partition.partition] = max(
                    partition.offset, self._reached.get(partition.partition, partition.offset)
                )
        self._records.add(sum(self._reached.values()) - sum(self._first.values()), at)

    def pace(self, status: Status) -> Pace:
        """Return the pace, for the last status that was added."""
        limit, records = self._limit.per_second(), self._records.per_second()
        share = left = None
        if status.offsets_total:
            done = status.offsets_done or 0
            share = done / status.offsets_total
            left = (status.offsets_total - done) / records if records and records > 0 else None
        elif status.end is not None and status.start is not None and status.limit:
            share = (status.limit - status.start) / (status.end - status.start)
            left = (status.end - status.limit) / limit if limit and limit > 0 else None
        if status.state is not GroupState.RUNNING:
            left = None
        return Pace(
            None if limit is None else limit / 1000,
            self._periods.per_second(),
            records,
            None if left is None else max(0.0, left),
            None if share is None else min(max(share, 0.0), 1.0),
        )
