"""The health of a process that takes part in a group: whether it is alive, in step, stuck, fenced, or without its store."""

from __future__ import annotations

import enum
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio

from aiokcc.core.limit import Mode
from aiokcc.credentials import hide_secrets
from aiokcc.errors import AiokccError
from aiokcc.runtime.health import HealthKind, assess
from aiokcc.runtime.status import STANDSTILL_SECONDS
from aiokcc.runtime.status_reader import read_status
from aiokcc.stores.port import Session, SessionState, boottime

if TYPE_CHECKING:
    from aiokcc.runtime.member import Member

__all__ = ["MemberHealth", "MemberState", "read_health"]

_READ_SECONDS: Final = 2.0
"""The seconds that the status may take before the store counts as away."""
_MOST: Final = 10


class MemberState(enum.StrEnum):
    """The states of a process in which the state of its group says nothing about it."""

    FAILED = "failed"
    """The process cannot go on. Only a new process can help."""
    FENCED = "fenced"
    """Its session is lost, and others may run its partitions. Ends when it has joined again."""
    AWAY = "away"
    """The store does not answer. Ends when it does, or with the session."""


@dataclass(frozen=True, slots=True)
class MemberHealth:
    """The health of one process, for probes and for people."""

    state: MemberState | HealthKind
    """The state of the process if it does not take part, otherwise the health of the group."""
    live: bool
    """False if only a new process can help: this one has failed."""
    ready: bool
    """True if it takes part: it has a session, and the group is not stuck because of its partitions."""
    stuck: bool
    """True if the limit has stood for longer than ``stuck_after`` because of a partition."""
    why: str
    """A sentence for people; its wording may change."""
    member: str
    limit: int | None
    generation: int | None
    leads: bool
    waiting_seconds: float | None = None
    """Seconds since the limit last moved; None if the status could not be read."""
    blocking: tuple[str, ...] = ()
    """The partitions for which the limit waits, ten at most."""
    blocking_here: tuple[str, ...] = ()
    """The partitions among them that this process runs."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return asdict(self)


async def read_health(member: Member, *, stuck_after: float = STANDSTILL_SECONDS) -> MemberHealth:
    """Return the health of a member. It never raises, and answers within two seconds, also if the store is away."""
    session, member_session = member.session, member.member_session
    limit = member.progress.limit

    def health(
        state: MemberState | HealthKind, why: str, *, live: bool = True, ready: bool = False, **facts: Any
    ) -> MemberHealth:
        return MemberHealth(
            state,
            live,
            ready,
            facts.pop("stuck", False),
            hide_secrets(why),
            member.name,
            limit.value if limit.mode is Mode.GATED else None,
            None if member_session is None else member_session.generation.number,
            member_session is not None and member_session.term is not None,
            **facts,
        )

    if limit.mode is Mode.END:
        return health(HealthKind.ENDED, "The run has ended.", ready=True)
    if member.failure is not None:
        return health(MemberState.FAILED, f"This process cannot go on: {member.failure}", live=False)
    if member_session is None or not isinstance(session, Session):
        return health(
            MemberState.FENCED, "The session with the store is lost; this process stands still and joins again."
        )
    if session.state is SessionState.SUSPENDED or boottime() >= session.stop_at:
        return health(MemberState.AWAY, "The store does not answer; records before the limit go on for a while.")
    try:
        with anyio.fail_after(_READ_SECONDS):
            status = await read_status(member.store, session)
    except (AiokccError, TimeoutError) as error:
        return health(MemberState.AWAY, f"The status cannot be read: {str(error) or 'the store does not answer'}")
    verdict = assess(status, stuck_after=stuck_after, now=time.time())
    blocking = tuple(b.partition for b in status.blocking)
    mine = {str(partition) for partition, gate in member.gates.items() if gate.progress.owned}
    here = tuple(b.partition for b in status.blocking if b.member is not None and b.partition in mine)
    return health(
        verdict.kind,
        verdict.text,
        ready=not (verdict.stuck and here),
        stuck=verdict.stuck,
        waiting_seconds=status.waiting_seconds,
        blocking=blocking[:_MOST],
        blocking_here=here[:_MOST],
    )
