"""Logs the progress of one member: one line at most every ten seconds, the first after ten, however fast the limit moves."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from aiokcc.core.limit import Mode
from aiokcc.core.periods import format_time

if TYPE_CHECKING:
    from aiokcc.runtime.member import Member

__all__ = ["PROGRESS", "ProgressLog", "log_facts"]

log = logging.getLogger("aiokcc.runtime")

PROGRESS: Final = "%s: the limit is %s; %d periods have closed since this member joined, and it runs %d partitions"
_SECONDS: Final = 10.0


def log_facts(member: Member, **more: object) -> dict[str, Any]:
    """Return the facts of a log record about a member, for ``extra=``: its name, the generation, the limit, and ``more``."""
    us, limit = member.member_session, member.progress.limit
    return {
        "member": member.name if us is None else us.name,
        "generation": None if us is None else us.generation.number,
        "limit": limit.value if limit.mode is Mode.GATED and limit.value else None,
        **more,
    }


class ProgressLog:
    """Logs the limit when it moves, if the last line is old enough. A limit that stands is logged by ``standstill.py``."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._next: float | None = None

    def moved(self, now: float) -> None:
        """Note that the limit has moved, at this time of the event loop."""
        if self._next is None:
            self._next = now + _SECONDS
        if now < self._next or not log.isEnabledFor(logging.INFO):
            return
        member, limit = self._member, self._member.progress.limit
        if limit.mode is not Mode.GATED or not limit.value:
            return
        self._next = now + _SECONDS
        facts = log_facts(member, periods=member.closed, partitions=len(member.gates))
        log.info(PROGRESS, facts["member"], format_time(limit.value), member.closed, len(member.gates), extra=facts)
