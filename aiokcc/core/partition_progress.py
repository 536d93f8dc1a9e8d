"""One partition of a member: where it stands, and what it has crossed."""

from __future__ import annotations

import enum
from typing import Final

from aiokcc.core.limit import Limit
from aiokcc.core.partitions import Partition
from aiokcc.core.report import FINISHED, IDLE, RUNNING, Cut

__all__ = ["NEVER", "PartitionProgress", "PartitionState"]

NEVER: Final = -1
"""No limit, and no timestamp."""


class PartitionState(enum.Enum):
    """Where a partition stands."""

    RUNNING = "running"
    """Has work below the limit, as far as we know. Ends by blocking, idling or finishing."""
    BLOCKED = "blocked"
    """The next record is at or past the limit. Ends when the limit passes it."""
    IDLE = "idle"
    """At the end of the log, looked up under this limit. Ends with the limit, or with a record."""
    FINISHED = "finished"
    """Nothing more before the run's end. Final."""


class PartitionProgress:
    """One partition of this member. ``late_below <= ts < open_below`` is the whole test of an open gate."""

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
        """Whether we hold its lock in the present session. Nothing passes and nothing is reported otherwise."""
        self.state = PartitionState.RUNNING
        self.ts = 0
        self.offset: int | None = None
        self.idle_at = NEVER
        self.crossings: dict[int, tuple[int, int | None]] = {}
        """For each open boundary that was crossed: timestamp and offset of the first record at or past it."""
        self.late_below = 0
        """Records below it belong to a closed period: they pass, and are late."""
        self.open_below = 0
        """Records from here on need a second look: a boundary to note down, or the limit."""
        self.holders: set[str] = set()
        """The names under which this member has held the lock: one for each session."""
        self.cut = 0
        """The number of the last cut that was read after a claim."""
        self.resume: int | None = None
        """The offset at which that cut lies in this partition, if it is known."""
        self.displaced = False
        """Whether another member has closed periods of the partition since we held its lock, and the task does not know it."""
        self.skips_closed = False
        """Whether the task itself leaves out the records before the last cut. Then it is never displaced."""

    def claim(self, holder: str, cut: Cut | None) -> None:
        """We hold the lock under this name, and have read this cut since.

        If the cut was made from another member's report, the task may stand before it, and what lies between is closed. A
        task whose position is not known counts as one that stands before it.
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
        """Whether the partition is ours and has nothing left before the limit's floor."""
        if not self.owned:
            return False
        if self.state is PartitionState.FINISHED or limit.floor in self.crossings:
            return True
        if self.state is PartitionState.BLOCKED:
            return self.ts >= limit.floor
        return self.state is PartitionState.IDLE and self.idle_at == limit.floor

    def entry(self, limit: Limit) -> str:
        """What to report for the limit's floor. Where it was crossed counts first, even if the partition has finished since."""
        crossing = self.crossings.get(limit.floor)
        if crossing is not None:
            return _entry(str(crossing[0]), crossing[1])
        if self.state is PartitionState.FINISHED:
            return _entry(FINISHED, self.offset)
        if self.state is PartitionState.BLOCKED and self.ts >= limit.floor:
            return _entry(str(self.ts), self.offset)
        if self.state is PartitionState.IDLE and self.idle_at == limit.floor:
            return _entry(IDLE, self.offset)
        return RUNNING


def _entry(word: str, offset: int | None) -> str:
    return word if offset is None else f"{word}@{offset}"
