"""The progress of one partition of a member: its state, its position, and the boundaries that it has crossed."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from aiokcc.core.limit import Limit, Mode
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import MAX_LIMIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiokcc.core.marks import Mark
    from aiokcc.core.report import Cut, Entry

__all__ = ["NEVER", "PartitionProgress", "PartitionState"]

NEVER: Final = -1
"""Lies below every limit and every timestamp."""


class PartitionState(enum.Enum):
    """The state of a partition."""

    RUNNING = "running"
    """The partition has work below the limit, as far as we know. Ends when it blocks, is idle or finishes."""
    BLOCKED = "blocked"
    """The next record is at or past the limit. Ends when the limit passes that record."""
    IDLE = "idle"
    """The log held nothing more when it was read under this limit. Ends when the limit moves or a record comes."""
    FINISHED = "finished"
    """The partition brings nothing more before the end of the run. Final."""


class PartitionProgress:
    """One partition of this member. A gate is open for a record if ``late_below <= ts < open_below``."""

    __slots__ = (
        "crossings",
        "cut",
        "displaced",
        "holders",
        "idle_at",
        "late_below",
        "name",
        "offset",
        "open_below",
        "owned",
        "partition",
        "resume",
        "skips_closed",
        "state",
        "ts",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.name = str(partition)
        self.owned = False
        """True while we hold the lock in the present session. Otherwise no record passes and nothing is reported."""
        self.state = PartitionState.RUNNING
        self.ts = 0
        self.offset: int | None = None
        self.idle_at = NEVER
        self.crossings: dict[int, tuple[int, int | None]] = {}
        """For each open boundary that was crossed: timestamp and offset of the first record at or past it."""
        self.late_below = 0
        """Records below this are late, and pass: their period has closed, or is one that this partition has left behind."""
        self.open_below = 0
        """Records from here on take the slow path: they cross a boundary, or the limit blocks them."""
        self.holders: set[str] = set()
        """The member sessions in which this member has held the lock."""
        self.cut = 0
        """The number of the last cut that was read after a claim."""
        self.resume: int | None = None
        """The offset of that cut in this partition, if it is known."""
        self.displaced = False
        """True if another member has closed periods since we lost the lock, and the task has not been told."""
        self.skips_closed = False
        """True if the task itself skips the records before the last cut. Then it is never displaced."""

    def claim(self, holder: str, cut: Cut | None) -> None:
        """Notes that the member session ``holder`` holds the lock and has read this cut since.

        If the cut was made from another member's report, the task may be before it, and the records in between are closed:
        the partition is displaced. A task whose position is not known counts as one before the cut.
        """
        known = bool(self.holders)
        self.holders.add(holder)
        self.owned = True
        mark = None if cut is None or cut.number <= self.cut else cut.find(self.partition)
        if cut is None or mark is None:
            return
        self.cut, self.resume = cut.number, mark.offset
        if not known or cut.owner(self.partition) in self.holders:
            return
        if self.offset is not None and mark.offset is not None and self.offset >= mark.offset:
            return
        if self.state is PartitionState.FINISHED:  # it brings nothing more, and a cut does not go back
            self.offset = mark.offset
        elif not self.skips_closed:
            self.displaced = True
            self.state = PartitionState.RUNNING
            self.crossings = {}  # the task goes back to the cut, and has crossed nothing from there
            self.late_below = cut.limit

    def mirror(self, floor: int, entry: Entry, further: Sequence[tuple[int, int | None, Mark]], limit: Limit) -> None:
        """Takes what another process reported of this partition under ``floor``; ``limit`` is the present one.

        ``further`` has the boundaries that it has crossed behind that floor: the boundary, a lower bound of the timestamp
        behind it, and the mark. An idle entry holds for its own floor only; a crossing stays true.
        """
        self.ts, self.offset, self.crossings = entry.ts or 0, entry.offset, {}
        self.state = PartitionState.RUNNING
        if entry.state is PartitionState.FINISHED:
            self.state = PartitionState.FINISHED
        elif entry.state is PartitionState.IDLE and floor == limit.floor:
            self.state, self.idle_at = PartitionState.IDLE, floor
        elif entry.ts is not None:
            crossed = {floor: (entry.ts, entry.offset)}
            if not further:  # nothing lies between the floor and the record
                crossed |= {b: (entry.ts, entry.offset) for b in limit.boundaries if b <= entry.ts}
            for boundary, least, mark in further:
                if mark.finished:
                    self.state, self.offset = PartitionState.FINISHED, mark.offset
                elif least is not None:
                    crossed[boundary] = (least, mark.offset)
            self.crossings = {b: c for b, c in crossed.items() if b >= limit.floor}
            if self.state is PartitionState.RUNNING and not further and entry.ts >= limit.value:
                self.state = PartitionState.BLOCKED

    def arrived(self, limit: Limit) -> bool:
        """Returns whether we own the partition and it has nothing left before the limit's floor."""
        if not self.owned:
            return False
        if self.state is PartitionState.FINISHED or limit.floor in self.crossings:
            return True
        if self.state is PartitionState.BLOCKED:
            return self.ts >= limit.floor
        return self.state is PartitionState.IDLE and self.idle_at == limit.floor

    def set_thresholds(self, limit: Limit) -> None:
        """Sets the thresholds of the open gate for the present state under this limit."""
        if not self.owned or self.displaced or limit.mode is Mode.END or self.state is PartitionState.FINISHED:
            self.open_below = NEVER
        elif limit.mode is Mode.OPEN:
            self.open_below = MAX_LIMIT
        else:
            crossings, crossed = self.crossings, 0
            for boundary in limit.boundaries:
                if boundary not in crossings:
                    self.open_below = boundary
                    break
                crossed = boundary
            else:
                self.open_below = limit.value
            # A boundary that it has crossed is closed to it. So which of its records are late does not depend on how far the
            # others were.
            self.late_below = max(self.late_below, crossed)
