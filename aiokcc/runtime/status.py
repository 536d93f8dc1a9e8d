"""The status of a group: its state, its members and partitions, and the partitions for which the limit waits."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any, Final, assert_never

from aiokcc.core.leader import BlockerState
from aiokcc.runtime.group_status import GroupStatus
from aiokcc.runtime.pipelines import PipelineStatus

__all__ = [
    "STANDSTILL_SECONDS",
    "Blocking",
    "GroupState",
    "MemberStatus",
    "PartitionCondition",
    "PartitionStatus",
    "ProcessStatus",
    "Status",
    "why_blocked",
]

STANDSTILL_SECONDS: Final = 30.0
"""The group stands still when its limit has waited this long for a partition."""


class GroupState(enum.StrEnum):
    """The state of a group. The value is what ``--json`` shows, and a member of the enum equals it."""

    RUNNING = "running"
    """The leader moves the limit. Ends with a hold, a release, or the end of the run."""
    HELD = "held"
    """An operator holds the limit. Ends with ``aiokcc period`` or ``aiokcc release``."""
    RELEASED = "released"
    """Every record passes, for the rest of the run."""
    ENDED = "ended"
    """Every partition has finished. Nothing follows."""
    UNREADABLE = "unreadable"
    """The limit or the operator's request cannot be decoded. Ends when the node is repaired."""


class PartitionCondition(enum.StrEnum):
    """The condition of one partition. The value is what ``--json`` shows, and a member of the enum equals it."""

    RUNNING = "running"
    """Its owner has records before the limit, as far as it has reported."""
    WAITING = "waiting"
    """Its next record is at or past the limit: it waits for the other partitions."""
    IDLE = "idle"
    """Its log is read to the end. Ends with a new record."""
    FINISHED = "finished"
    """It has passed the end of the run."""
    UNREPORTED = "unreported"
    """It has an owner, and the owner's report does not have it."""
    UNOWNED = "unowned"
    """No member holds its lock."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition of the agreed set."""

    partition: str
    member: str | None
    """The member that holds its lock; None if it is unowned."""
    state: PartitionCondition
    timestamp: int | None = None
    """The timestamp of its next record, if it is blocked and that is known."""
    offset: int | None = None

    @property
    def at_end(self) -> bool:
        """True if it has nothing to read now: it is idle, or has finished."""
        return self.state in {PartitionCondition.IDLE, PartitionCondition.FINISHED}


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process of a host whose processes share one member."""

    name: str
    pid: int | None
    partitions: str
    """Its partitions, as ``orders:0,1;payments:0;``."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One live member."""

    name: str
    host: str | None
    pid: int | None
    since: int | None
    """The time when it joined, in milliseconds since the epoch."""
    partitions: int
    leads: bool
    processes: tuple[ProcessStatus, ...] = ()
    """The processes of the host, if they share this member; empty otherwise."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """A partition for which the limit waits."""

    partition: str
    member: str | None
    """The member that holds it; None if it is unowned."""
    state: BlockerState
    last_member: str | None
    """The member that ran it when the last period closed."""
    process: str | None = None
    """The process of the member's host that has it, if the processes there share the member."""


@dataclass(frozen=True, slots=True)
class Status:
    """The group at one moment. Times are milliseconds since the epoch; None where there is nothing to tell."""

    where: str
    state: GroupState
    limit: int | None
    floor: int | None
    """The boundary that closes next; below the limit only under lookahead."""
    closed: int | None
    """The boundary that closed last."""
    period: int | None
    """The period in force; None while held or released."""
    agreed_period: int | None
    """The period the run was founded with."""
    start: int | None
    end: int | None
    lookahead: int
    generation: int
    leader: str | None
    epoch: int | None
    members: tuple[MemberStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    blocking: tuple[Blocking, ...]
    waiting_seconds: float
    """Seconds since the limit last moved, by this machine's clock."""
    periods_closed: int
    problems: tuple[str, ...]
    """The nodes that could not be read, and why."""
    group: GroupStatus | None = None
    """The assignment in a managed group; None in other groups."""
    standstill: str | None = None
    """Says which partition the limit waits for, on which member and why, once it has waited for 30 seconds; None otherwise."""

    source: str = ""
    """Describes the records; the same text for all members. A replay says here how its start and end were given."""
    offsets_done: int | None = None
    """The number of processed offsets, of ``offsets_total``; None if the run does not know the end of each log."""
    offsets_total: int | None = None
    held_period: int | None = None
    """The period that was in force before the hold; None where there is no hold, or the store does not tell."""

    pipelines: tuple[PipelineStatus, ...] = ()
    """The Spark pipelines of the group."""

    def as_dict(self) -> dict[str, Any]:
        """Returns plain data, for JSON."""
        return asdict(self)


def why_blocked(blocking: Blocking) -> str:
    """Returns a sentence that says why the limit waits for a partition."""
    who = blocking.member if blocking.process is None else f"process {blocking.process} of {blocking.member}"
    match blocking.state:
        case BlockerState.UNOWNED:
            last = "" if blocking.last_member is None else f" ({blocking.last_member} ran it last)"
            return f"no member runs it{last}; start the process that opens its gate"
        case BlockerState.UNREPORTED:
            return f"{who} has it and has not reported; look whether that process is alive and its event loop is free"
        case BlockerState.DISPUTED:
            return "two members report it"
        case BlockerState.IDLE:
            return f"{who} has not looked at the end of its log since the limit moved"
        case BlockerState.RUNNING:
            return f"{who} is still at work on records before the limit"
        case _:
            assert_never(blocking.state)
