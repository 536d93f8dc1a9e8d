"""Measures how long a process had nothing to do because it waited for the limit, where it runs without lookahead."""

from __future__ import annotations

from typing import Final

__all__ = ["Waits"]

_BLOCK: Final = 16


class Waits:
    """The time from the last arrival of a process to the move of the limit, period by period."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """The whole time."""
        self.round_trips = 0.0
        """An estimate of the part of it that round trips to the store took: even the process that arrives last waits for those.

        A member does not see which process arrives last. So the shortest of 16 waits in a row counts for all of them. That is
        too little where this member never arrives last, and never too much.
        """
        self._began: float | None = None
        self._block: list[float] = []

    def begin(self, now: float) -> None:
        """Notes that every partition has arrived. A second call for the same period changes nothing."""
        if self._began is None:
            self._began = now

    def end(self, now: float, *, counts: bool) -> None:
        """Notes that the limit has moved. ``counts``: it waited for the group only, neither for the clock nor for records."""
        began, self._began = self._began, None
        if began is None or not counts:
            return
        self.seconds += now - began
        self._block.append(now - began)
        if len(self._block) == _BLOCK:
            self.round_trips += min(self._block) * _BLOCK
            self._block.clear()
