"""Chooses the lookahead of a run with ``lookahead="auto"``, from what its advances take. Pure: times come in as numbers.

While the limit moves, a group in step does nothing: a period costs its work and one round trip. With a lookahead of one the
work goes on meanwhile. With more, one round trip closes several periods, which also spares its cost. So the lookahead depends
on how much of a period's time the round trip is. It is no more than that needs, because after a crash the records of all open
periods come again.

The leader chooses, because it measures both and writes the open boundaries anyway. The members follow the node, so nothing
else has to tell them the choice. Another leader may choose otherwise: the boundaries that are open stay open.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import Final

from aiokcc.core.run import MOST_AT_ONCE

__all__ = ["LookaheadChoice"]

_WINDOW: Final = 5
"""The number of advances on which a choice rests. Their median does not show a pause."""
_NEGLIGIBLE: Final = 0.01
"""If the round trip is a smaller part of a period's time than this, no lookahead is needed."""
_ENOUGH: Final = 0.05
"""The number of periods that close at once is chosen so that the round trip is about this part of their time."""


class LookaheadChoice:
    """The advances of one leader term, and what follows from them."""

    def __init__(self) -> None:
        self.lookahead = 0
        """The lookahead that the last advances call for; 0 before there were enough of them."""
        self._previous: float | None = None
        self._round_trips: deque[float] = deque(maxlen=_WINDOW)
        self._works: deque[float] = deque(maxlen=_WINDOW)

    def advanced(self, began: float, ended: float, closed: int, members: int, *, in_step: bool) -> None:
        """Takes an advance: its times in seconds, the boundaries it closed, the members, and whether all waited for it."""
        round_trip = (ended - began) * (1 if members == 1 else 2)  # the others write their reports, and read the limit
        previous, self._previous = self._previous, ended
        if previous is None:
            return
        work = (ended - previous) / closed - (round_trip if in_step else 0)
        self._round_trips.append(round_trip)
        self._works.append(max(work, 1e-6))
        if len(self._works) == _WINDOW:
            self.lookahead = lookahead_for(median(self._round_trips), median(self._works))


def lookahead_for(round_trip: float, work: float) -> int:
    """Returns the lookahead for periods that take so many seconds of work, and so many for their round trip."""
    if round_trip < _NEGLIGIBLE * work:
        return 0
    at_once = min(math.ceil(round_trip / (_ENOUGH * work)), MOST_AT_ONCE)
    return 2 * at_once - 1
