"""The health of a group: one word, one sentence, and whether the group is stuck."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from aiokcc.core.formatting import count, format_elapsed, join_names, short_names
from aiokcc.core.leader import BlockerState
from aiokcc.core.periods import format_time
from aiokcc.runtime.status import Blocking, GroupState, PartitionCondition, Status

__all__ = ["Health", "HealthKind", "assess", "place", "reason"]

_SETTLED: Final = 2.0
"""Seconds. A limit that moved less than this ago counts as moving, unless a slow or an unowned partition is known."""

_SLOW: Final = 1.0
"""Seconds. A member says after this time which of its partitions are slow."""


class HealthKind(enum.StrEnum):
    """The kinds of health. The value is what ``--json`` shows as ``verdict``."""

    MOVING = "moving"
    """The limit moved a moment ago. Ends when it stands for longer."""
    BLOCKED = "blocked"
    """Some partitions have records before the limit, or are unowned. Ends when they reach the limit."""
    STALLED = "stalled"
    """All partitions have reached the limit, but the leader does not move it, or there is no leader."""
    NO_MEMBERS = "empty"
    """The group has no member. Ends when one joins."""
    IDLE = "idle"
    """All logs are read to their ends. Ends with a new record."""
    CLOCK = "clock"
    """The next records have timestamps in the future. Ends when the clock reaches them."""
    HELD = "held"
    """An operator holds the limit, until ``aiokcc period``."""
    RELEASED = "released"
    """The gate is released for the rest of the run."""
    ENDED = "ended"
    """The run has ended."""
    UNREADABLE = "unreadable"
    """A node that the leader needs cannot be decoded. Ends when it is repaired."""


_CAN_BE_STUCK: Final = {HealthKind.BLOCKED, HealthKind.STALLED, HealthKind.NO_MEMBERS}


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a group: its kind, a sentence for people, and whether the group is stuck."""

    kind: HealthKind
    text: str
    stuck: bool


def assess(status: Status, *, stuck_after: float, now: float) -> Health:
    """Return the health for a status. ``now`` is the wall clock in seconds since the epoch."""
    kind, text = _assess(status, now)
    stuck = kind is HealthKind.UNREADABLE or (kind in _CAN_BE_STUCK and status.waiting_seconds >= stuck_after)
    return Health(kind, text, stuck)


def _assess(status: Status, now: float) -> tuple[HealthKind, str]:
    stood = format_elapsed(status.waiting_seconds)
    match status.state:
        case GroupState.ENDED:
            return HealthKind.ENDED, f"The run has ended, {stood} ago. Every partition has finished."
        case GroupState.RELEASED:
            return HealthKind.RELEASED, "Released: every record passes, and partitions are not kept in step any more."
        case GroupState.UNREADABLE:
            return (
                HealthKind.UNREADABLE,
                f"The limit cannot move: {'; '.join(status.problems) or 'a node cannot be read'}.",
            )
        case GroupState.HELD:
            return HealthKind.HELD, f"On hold. The limit has stood for {stood}."
        case GroupState.RUNNING:
            pass  # what it waits for follows from the members, the partitions and the clock
        case _:
            assert_never(status.state)
    if not status.members:
        return (
            HealthKind.NO_MEMBERS,
            f"The group has no members. The limit has stood for {stood}; it moves again when members join.",
        )
    lost = [b for b in status.blocking if b.member is None]
    # The leader's report is taken from the cut, and says of its partitions at once that they run: that proves nothing yet.
    late = status.waiting_seconds >= _SLOW and any(
        p.state is PartitionCondition.RUNNING and p.timestamp is None for p in status.partitions
    )
    if status.waiting_seconds < _SETTLED and not lost and not late:
        return HealthKind.MOVING, f"The limit moves; it last did {stood} ago."
    if status.blocking:
        return HealthKind.BLOCKED, _blocked(status, lost, stood)
    if status.partitions and all(p.at_end for p in status.partitions):
        return HealthKind.IDLE, f"Waiting for new records for {stood}: every partition is read to its end."
    nearest = min((p.timestamp for p in status.partitions if p.timestamp is not None), default=None)
    if nearest is not None and nearest > now * 1000:
        return HealthKind.CLOCK, f"Waiting for the clock for {stood}: the next record is of {format_time(nearest)}."
    leader = short_names([status.leader])[status.leader] if status.leader else None
    who = f"the leader, {leader}, has not moved the limit" if leader else "there is no leader,"
    return HealthKind.STALLED, f"Every partition has reached the limit, but {who} for {stood}."


def _blocked(status: Status, lost: list[Blocking], stood: str) -> str:
    names = short_names(n for b in status.blocking for n in (b.member, b.last_member) if n is not None)
    if lost:
        first = lost[0]
        state, them = ("is unowned", "it") if len(lost) == 1 else ("are unowned", "them")
        last = {names[b.last_member] for b in lost if b.last_member is not None}
        before = f" (last run by {join_names(sorted(last))})" if last else f" (nobody has run {them} yet)"
        which = first.partition if len(lost) == 1 else count(len(lost), "partition")
        return f"Blocked for {stood}: {which} {state}{before}."
    if len(status.blocking) == 1:
        first = status.blocking[0]
        return f"Blocked for {stood} by {first.partition} on {place(first, names)}, which {reason(first, names)}."
    where = join_names(dict.fromkeys(place(b, names) for b in status.blocking))
    return f"Blocked for {stood} by {count(len(status.blocking), 'partition')} on {where}."


def place(blocking: Blocking, names: Mapping[str, str]) -> str:
    """Return the member that has a partition, and its process if the processes of a host share the member."""
    if blocking.member is None:
        return "—"
    name = names[blocking.member]
    return name if blocking.process is None else f"{blocking.process} of {name}"


def reason(blocking: Blocking, names: Mapping[str, str]) -> str:
    """Return why the limit waits for a partition."""
    if blocking.member is None:
        if blocking.last_member is None:
            return "unowned"
        return f"unowned; last run by {names[blocking.last_member]}"
    match blocking.state:
        case BlockerState.RUNNING:
            return "still has records before the limit"
        case BlockerState.IDLE:
            return "was idle and has to be checked again"
        case BlockerState.UNREPORTED:
            return "has not reported yet"
        case BlockerState.DISPUTED:
            return "is reported by two members"
        case BlockerState.UNOWNED:
            return "is unowned"
        case _:
            assert_never(blocking.state)
