"""The leader's rule: may the limit move, and to where.

The limit closes a boundary only when reports of the *current generation* cover *exactly* the agreed set, and each entry proves
that everything before the floor was processed: blocked at or past it, idle under this very limit, or finished. Anything else
waits; nothing is skipped, and nothing is guessed.

Then the floor moves to the first boundary after the smallest timestamp anybody is blocked at, so that an empty night is one
step, but not past the end of the run, nor further past the clock than the settings allow: a record with an absurd timestamp
must not pull the limit to where it can never come back from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from aiokcc.core.limit import END, OPEN, Limit, Mode, Request, RequestKind
from aiokcc.core.partitions import Partition
from aiokcc.core.progress import FINISHED, IDLE, RUNNING, Cut, Mark, Report
from aiokcc.core.run import Settings

__all__ = ["Advance", "Blocker", "Decision", "Leader", "Wait", "blockers"]


@dataclass(frozen=True, slots=True)
class Advance:
    """Write this limit. ``cut`` is what the reports prove; ``request`` replaces the operator's, where a policy says so."""

    limit: Limit
    cut: str | None = None
    request: Request | None = None
    finished: Mapping[Partition, tuple[str, Mark]] = field(default_factory=dict)
    """What the cut says has finished, by the reports it was made from: they may have changed once it is written."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until something changes, or until the clock shows ``until`` (milliseconds since the epoch)."""

    reason: str
    until: int | None = None


Decision: TypeAlias = Advance | Wait


@dataclass(slots=True)
class Leader:
    """What a leader in office knows. The fields are facts it has read; :meth:`decide` is the rule."""

    settings: Settings
    generation: int
    limit: Limit
    version: int
    """Of the ``coordinator`` node: it numbers the cuts."""
    request: Request | None
    """None if the node cannot be read: then the limit stays."""
    closed: int = 0
    """The boundary that closed last."""
    finished: Mapping[Partition, tuple[str, Mark]] = field(default_factory=dict)
    """Finished in a cut: no report is needed for these any more."""
    reports: dict[str, Report] = field(default_factory=dict)
    """By member; only those that could be read."""
    _templates: dict[tuple[str, tuple[str, ...]], str] = field(default_factory=dict)
    _names: frozenset[str] | None = None

    def decide(self, now: int) -> Decision:
        """Whether the limit may move, and to where. ``now`` is the wall clock in milliseconds since the epoch."""
        early = self._refuse()
        if early is not None:
            return early
        floor = self.limit.floor
        least: int | None = None
        idle = False
        end = self.settings.end
        for member, report in self.reports.items():
            if report.generation != self.generation or report.running:
                return Wait(f"{member} has not reported yet")
            if report.idle and report.limit != floor:
                return Wait(f"{member} has to look again whether it is idle")
            if report.minimum is not None:
                if report.minimum < floor:
                    return Wait(f"{member} has work before the limit")
                if least is None or report.minimum < least:
                    least = report.minimum
            idle = idle or report.idle
        reason = self._uncovered()
        if reason is not None:
            return Wait(reason)
        past_the_end = end is not None and least is not None and least >= end
        if least is None or past_the_end:  # what lies past the end will never come: as good as finished
            if idle:
                return Wait("some are idle before the end of the run" if past_the_end else "every partition is idle")
            return Advance(END, self._cut(), finished=self._newly_finished())
        return self._advance(least, now)

    def _refuse(self) -> Decision | None:
        if self.limit.mode is Mode.END:
            return Wait("the run is over")
        if self.limit.mode is Mode.OPEN:
            return Wait("released")
        if self.request is None:
            return Wait("the operator's request cannot be read")
        if self.request.kind is RequestKind.HOLD:
            return Wait("on hold")
        if self.request.kind is RequestKind.OFF:
            return Advance(OPEN)
        return None

    def _uncovered(self) -> str | None:
        """Why the reports do not cover exactly the agreed set; None if they do."""
        if self._names is None:
            self._names = frozenset(map(str, self.settings.partitions))
        names: set[str] = set()
        total = 0
        for report in self.reports.values():
            names.update(report.entries)
            total += len(report.entries)
        finished = {str(p) for p in self.finished} - names
        if total != len(names):
            return "a partition is reported by two members"
        if names | finished != self._names:
            outside = sorted(names - self._names)
            if outside:
                return f"{outside[0]} is reported and is not in the agreed set"
            return f"nobody has reported {min(self._names - names - finished)}"
        return None

    def _advance(self, least: int, now: int) -> Decision:
        assert self.request is not None
        period, policy, settings = self.request.period, self.settings.caught_up, self.settings
        horizon = now + settings.ahead
        target = self.limit.after(min(least, horizon), period, settings.lookahead, settings.end)
        if not self.limit.precedes(target):
            return Wait("waiting for the clock", until=self.limit.floor - settings.ahead)
        if target.floor > now and policy != "follow":
            if policy == "release":
                return Advance(OPEN, self._cut(), Request(RequestKind.OFF), self._newly_finished())
            if policy != period:
                longer = self.limit.after(min(least, horizon), policy, settings.lookahead, settings.end)
                if self.limit.precedes(longer):
                    return Advance(longer, self._cut(), Request.every(policy), self._newly_finished())
        return Advance(target, self._cut(), finished=self._newly_finished())

    def _cut(self) -> str:
        """The text of the cut that closes the present floor."""
        lines = [Cut.header(self.version + 1, self.closed, self.limit.floor, self.generation)]
        for member, report in self.reports.items():
            if not report.entries:
                continue
            key = (member, tuple(report.entries))
            template = self._templates.get(key)
            if template is None:
                template = self._templates[key] = Cut.template(member, map(Partition.parse, report.entries))
            lines.append(template % report.marks)
        covered = {name for report in self.reports.values() for name in report.entries} if self.finished else set()
        gone: dict[str, dict[Partition, Mark]] = {}
        for partition, (member, mark) in sorted(self.finished.items()):
            if str(partition) not in covered:
                gone.setdefault(member, {})[partition] = mark
        lines += [Cut.template(m, marks) % tuple(map(str, marks.values())) for m, marks in gone.items()]
        return "\n".join(lines)

    def _newly_finished(self) -> dict[Partition, tuple[str, Mark]]:
        newly: dict[Partition, tuple[str, Mark]] = {}
        for member, report in self.reports.items():
            for name, value in report.entries.items() if report.finished else ():
                if value.startswith(FINISHED):
                    offset = value.partition("@")[2].partition("-")[0]
                    newly[Partition.parse(name)] = (member, Mark(int(offset) if offset else None, finished=True))
        return newly

    def change_set(self, settings: Settings) -> None:
        """The agreed set has grown, or has lost what is not there any more."""
        self.settings, self._names = settings, None
        self.finished = {p: mark for p, mark in self.finished.items() if p in settings.partitions}

    def advanced(self, decision: Advance) -> None:
        """The advance was written: what we know now."""
        if decision.cut is not None:
            self.closed = self.limit.floor
        if decision.finished:
            self.finished = {**self.finished, **decision.finished}
        self.limit = decision.limit
        self.version += 1
        if decision.request is not None:
            self.request = decision.request
        if len(self._templates) > 4 * len(self.reports) + 16:
            self._templates.clear()


@dataclass(frozen=True, slots=True)
class Blocker:
    """A partition the limit waits for."""

    partition: Partition
    member: str | None
    """Who runs it; None if it is in nobody's hands."""
    state: str
    """``running``, ``idle`` (under an earlier limit), ``unreported``, ``unowned``, or ``disputed`` (two members report it)."""


_UNKNOWN: Final = "unreported"
_DISPUTED: Final = "disputed"


def blockers(
    limit: Limit,
    generation: int,
    partitions: frozenset[Partition],
    reports: Mapping[str, Report],
    finished: Mapping[Partition, object],
    owners: Mapping[Partition, str],
) -> list[Blocker]:
    """Which partitions keep the limit where it is, in the order of their names. Empty when none does."""
    if limit.mode is not Mode.GATED:
        return []
    entries: dict[Partition, tuple[str, Report, str]] = {}
    disputed: set[Partition] = set()
    for member, report in reports.items():
        for name, value in report.entries.items():
            partition = Partition.parse(name)
            if partition in entries:
                disputed.add(partition)
            entries[partition] = (member, report, value.partition("@")[0])
    result: list[Blocker] = []
    for partition in sorted(partitions):
        found = entries.get(partition)
        if partition in disputed:
            result.append(Blocker(partition, owners.get(partition), _DISPUTED))
            continue
        if found is None:
            if partition in finished:
                continue
            owner = owners.get(partition)
            result.append(Blocker(partition, owner, "unowned" if owner is None else _UNKNOWN))
            continue
        member, report, word = found
        if word == FINISHED and report.generation == generation:
            continue
        if report.generation != generation:
            result.append(Blocker(partition, member, _UNKNOWN))
        elif word == RUNNING:
            result.append(Blocker(partition, member, RUNNING))
        elif word == IDLE:
            if report.limit != limit.floor:
                result.append(Blocker(partition, member, IDLE))
        elif int(word) < limit.floor:
            result.append(Blocker(partition, member, RUNNING))
    return result
