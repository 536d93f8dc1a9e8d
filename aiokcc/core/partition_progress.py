"""The progress of one partition of a member: its state, its position, and the boundaries that it has crossed."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from aiokcc.core.limit import Limit
from aiokcc.core.partitions import Partition

if TYPE_CHECKING:
    from aiokcc.core.report import Cut

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
        """Records below this belong to a closed period. They pass, and are late."""
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

    def arrived(self, limit: Limit) -> bool:
        """Returns whether we own the partition and it has nothing left before the limit's floor."""
        if not self.owned:
            return False
        if self.state is PartitionState.FINISHED or limit.floor in self.crossings:
            return True
        if self.state is PartitionState.BLOCKED:
            return self.ts >= limit.floor
        return self.state is PartitionState.IDLE and self.idle_at == limit.floor
