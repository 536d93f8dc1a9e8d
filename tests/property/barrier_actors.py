"""The members, leader terms and writes of :mod:`tests.property.barrier_model`, and the rules that can be switched off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from aiokcc.core.leader import Advance, Leader
from aiokcc.core.limit import Limit, Request
from aiokcc.core.member_progress import MemberProgress
from aiokcc.core.partitions import Partition
from aiokcc.core.report import Cut, Report
from tests.property.tree import Op

__all__ = [
    "NOW",
    "RULES",
    "Broken",
    "CountingLeader",
    "HastyMemberProgress",
    "LeaderTerm",
    "Member",
    "WaitingMemberProgress",
    "Write",
]

RULES: Final = frozenset(
    {
        "idle at T",
        "fresh end",
        "sets, not numbers",
        "check of generation",
        "take-over bump",
        "check of period",
        "check of reports",
        "level",
        "unique name",
        "deadline",
        "owner lock",
        "T after claim",
        "leader applies requests",
        "finished in cut",
        "resume at cut",
        "resume at cut, same gate",
        "owned only",
        "withheld",
        "clamp",
        "monotone",
        "generation in report",
        "one transaction",
        "whole limit",
        "checksum",
        "read when in place",
    }
)
NOW: Final = 10**12


class Broken(AssertionError):  # noqa: N818 - it is an invariant that is broken
    """An invariant does not hold."""


class CountingLeader(Leader):
    """Leads without the rule "sets, not numbers": it only counts entries, and compares with the number of partitions."""

    def _uncovered(self) -> str | None:
        total = sum(len(report.partitions) for report in self.reports.values())
        return None if total + len(self.finished) >= len(self.settings.partitions) else "somebody has not reported"


class WaitingMemberProgress(MemberProgress):
    """Works without the rule "owned only": no report while another member holds the lock of one of the partitions."""

    def report(self, *, even_running: bool = False) -> Report | None:
        waits = any(not progress.owned for progress in self.partitions.values())
        return None if waits and not even_running else super().report(even_running=even_running)


class HastyMemberProgress(MemberProgress):
    """Works without the rule "withheld": a report holds what has arrived, also if it is not processed yet."""

    def report(self, *, even_running: bool = False) -> Report | None:
        withheld, self.withheld_from = self.withheld_from, None
        try:
            return super().report(even_running=even_running)
        finally:
            self.withheld_from = withheld


@dataclass(eq=False)
class Write:
    """A transaction in flight."""

    member: Member
    session: int
    kind: str
    """``report``, ``take`` or ``advance``."""
    ops: Sequence[Op]
    sender: str = ""
    """The member session that sent it."""
    generation: int = 0
    """The generation of the leader that sent it."""
    report: Report | None = None
    own: Report | None = None
    """The leader's own report, for an advance: it counts, and is not written."""
    decision: Advance | None = None
    landed: bool | None = None
    """True if it was applied, False if it was refused; None while it is under way."""
    awaited: bool = True
    """True while its sender waits for the answer."""
    version: int = 0
    """The version of the generation, for a take-over."""
    announcement: str = ""
    """Without the rule "one transaction": what it announces, whatever becomes of the write."""


@dataclass(eq=False)
class LeaderTerm:
    """The knowledge of a member that believes that it leads."""

    leader: Leader
    generation_version: int
    request_version: int
    versions: dict[str, int] = field(default_factory=dict)
    """The versions of the reports that it has heard."""
    flying: Write | None = None


@dataclass(eq=False)
class Member:
    """One process over all of its sessions."""

    name: str
    progress: MemberProgress = field(default_factory=MemberProgress)
    session: int | None = None
    """The session that it believes it has; in the store it may have expired."""
    member_session: str = ""
    positions: dict[Partition, int] = field(default_factory=dict)
    looked: dict[Partition, tuple[Limit, int]] = field(default_factory=dict)
    claimed: set[Partition] = field(default_factory=set)
    """Locks taken, with the limit not read since."""
    read_before: Cut | None = None
    """Without the rule "T after claim": the last cut when it came to want another partition."""
    version: int | None = None
    """The version of the limit that it has seen last."""
    inbox: list[tuple[Limit, int]] = field(default_factory=list)
    """Limits that were read, with their versions, and not seen yet."""
    listening: bool = False
    """True while its watch for announcements is in place."""
    announced: list[str] = field(default_factory=list)
    """Names that were created while it was, and not seen yet, in order."""
    requests: list[Request] = field(default_factory=list)
    wanted: frozenset[Partition] = frozenset()
    written: Report | None = None
    reporting: Write | None = None
    generation_version: int = -1
    leader: str = "-"
    """The member session that has written the generation that it has seen last."""
    overdue: bool = False
    """True once the deadline has passed: by the member's own clock the session may have expired."""
    taking: Write | None = None
    term: LeaderTerm | None = None
