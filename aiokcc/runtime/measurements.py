"""Measures a member for metrics: the time of its periods, and its requests to the store."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from aiokcc.runtime.metrics import Histogram

if TYPE_CHECKING:
    from aiokcc.stores.port import Session

__all__ = ["Measurements"]


class Measurements:
    """The measurements of one member, over all its sessions."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.labels = dict(labels)
        """The attributes of all metrics of the member."""
        self.period_durations = Histogram("aiokcc.period.duration", self.labels)
        self._moved_at: float | None = None
        self._requests, self._seconds = 0, 0.0

    def limit_moved(self, closed: int) -> None:
        """Note that the limit has moved, and how many periods that closed: each took an equal part of the time."""
        now = time.perf_counter()
        if closed and self._moved_at is not None and self.period_durations.is_due(now):
            self.period_durations.record((now - self._moved_at) / closed)
        self._moved_at = now

    def session_over(self, session: Session) -> None:
        """Keep the counts of a session that has ended."""
        self._requests, self._seconds = self.requests(session)

    def requests(self, session: Session | None) -> tuple[int, float]:
        """Return the number of requests that the store has answered, up to this session, and the time that they took."""
        if session is None:
            return self._requests, self._seconds
        return self._requests + session.requests, self._seconds + session.request_seconds
