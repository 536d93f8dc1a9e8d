"""The leader's rule: it decides whether the limit may move, and to where.

The limit closes a boundary only when reports of the *current generation* cover *exactly* the agreed set, and each entry proves
that everything before the floor was processed: blocked at or past it, idle under this very limit, or finished. In all other
cases the leader waits.

Then the floor moves to the first boundary after the smallest timestamp at which a partition is blocked, so that a gap in all
logs is one step. It does not move past the end of the run, nor further past the clock than the settings allow: a limit never
goes back, so a record with an absurd timestamp must not move it.

With lookahead the reports may have several boundaries that all partitions have crossed. Then one decision closes them one
after the other, each with its cut.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from aiokcc.core.limit import END, OPEN, Limit, Mode, Request, RequestKind
from aiokcc.core.marks import Mark
from aiokcc.core.partition_progress import PartitionState
from aiokcc.core.partitions import Partition, PartitionList
from aiokcc.core.report import Crossing, Cut, Entry, Report
from aiokcc.core.run import MOST_AT_ONCE, Settings

__all__ = ["Advance", "Blocker", "BlockerState", "Decision", "Leader", "Step", "Wait", "blockers"]

_MOST_BYTES: Final = 300_000
"""The most bytes of cuts in one transaction: the store takes 1 MB for the whole transaction."""


class Step(NamedTuple):
    """One new limit of an advance."""

    limit: Limit
    cut: str | None = None
    """The text of the cut for the boundary that this step closes; None if it closes none."""


@dataclass(frozen=True, slots=True)
class Advance:
    """Write these limits, all or none. ``request``, if set, replaces the operator's request, as ``caught_up`` demands."""

    steps: tuple[Step, ...]
    request: Request | None = None
    finished: Mapping[Partition, tuple[str, Mark]] = field(default_factory=dict)
    """The partitions that have finished by these cuts. The reports themselves may change before the advance is written."""

    @property
    def limit(self) -> Limit:
        """The last of the limits."""
        return self.steps[-1].limit

    @property
    def closes(self) -> bool:
        """True if the advance closes a boundary, so that it depends on the reports."""
        return self.steps[0].cut is not None


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until something changes, or until the clock shows ``until`` (milliseconds since the epoch)."""

    reason: str
    until: int | None = None


Decision: TypeAlias = Advance | Wait


class _Coverage(NamedTuple):
    """The comparison of some reports with the agreed set."""

    lists: list[PartitionList]
    """The partitions of each report."""
    finished: Mapping[Partition, tuple[str, Mark]]
    reason: str | None
    """Says why they do not cover exactly the agreed set; None if they do."""
    gone: list[str]
    """The lines of a cut for the finished partitions that no report has."""

    @classmethod
    def of(
        cls,
        lists: list[PartitionList],
        finished: Mapping[Partition, tuple[str, Mark]],
        agreed: frozenset[Partition],
    ) -> _Coverage:
        """Compares the partitions of the reports, and those that have finished, with the agreed set."""
        covered = frozenset(itertools.chain.from_iterable(lists))
        left = {p: found for p, found in sorted(finished.items()) if p not in covered}
        reason: str | None = None
        if sum(map(len, lists)) != len(covered):
            reason = "a partition is reported by two members"
        elif covered - agreed:
            reason = f"{min(covered - agreed)} is reported and is not in the agreed set"
        elif agreed - covered - left.keys():
            reason = f"nobody has reported {min(agreed - covered - left.keys())}"
        gone: dict[str, dict[Partition, Mark]] = {}
        for partition, (member, mark) in left.items():
            gone.setdefault(member, {})[partition] = mark
        return cls(lists, finished, reason, [Cut.line_of(member, marks) for member, marks in gone.items()])


class _MemberWait(NamedTuple):
    """A decision to wait for one member. It stands as long as this is the member's report, under this floor."""

    wait: Wait
    member: str
    floor: int
    generation: int
    report: Report


@dataclass(slots=True)
class Leader:
    """The state of a leader in its term. The fields are facts that it has read; :meth:`decide` is the rule."""

    settings: Settings
    generation: int
    limit: Limit
    version: int
    """The version of the ``coordinator`` node. It numbers the cuts."""
    request: Request | None
    """The operator's request; None if the node cannot be read: then the limit stays."""
    closed: int = 0
    """The boundary that closed last."""
    finished: Mapping[Partition, tuple[str, Mark]] = field(default_factory=dict)
    """The partitions that have finished in a cut. They need no report any more."""
    reports: dict[str, Report] = field(default_factory=dict)
    """The reports by member; only those that could be read."""
    chosen: int = 0
    """The lookahead that the leader has chosen, in a run that leaves the choice to it."""
    _coverages: dict[int, _Coverage] = field(default_factory=dict, repr=False)
    """The last comparisons, by the number of reports: in each period the leader decides without its own, and then with it."""
    _last_wait: _MemberWait | None = field(default=None, repr=False, compare=False)

    def decide(self, now: int) -> Decision:
        """Returns whether the limit may move, and to where. ``now`` is the wall clock in milliseconds since the epoch."""
        early = self._refuse()
        if early is not None:
            return early
        floor = self.limit.floor
        last = self._last_wait
        if last is not None and last[2:4] == (floor, self.generation) and self.reports.get(last.member) is last.report:
            return last.wait  # the usual case, faster: another member has reported meanwhile
        crossings: dict[str, Crossing] = {}
        idle = False
        end = self.settings.end
        for member, report in self.reports.items():
            crossing = report.at(floor)
            if report.generation != self.generation or report.running:
                why = "has not reported yet"
            elif report.idle and report.limit != floor:
                why = "has to look again whether it is idle"
            elif crossing is None:
                why = "has work before the limit"
            else:
                crossings[member] = crossing
                idle = idle or report.idle
                continue
            wait = Wait(f"{member} {why}")
            self._last_wait = _MemberWait(wait, member, floor, self.generation, report)
            return wait
        reason = self._uncovered()
        if reason is not None:
            return Wait(reason)
        least = _least(crossings)
        past_the_end = end is not None and least is not None and least >= end
        if least is None or past_the_end:  # records past the end never pass, so the partition has finished
            if idle:
                return Wait("some are idle before the end of the run" if past_the_end else "every partition is idle")
            return Advance((Step(END, self._cut(crossings)),), finished=self._newly_finished(crossings))
        return self._advance(crossings, least, now)

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
            return Advance((Step(OPEN),))
        return None

    def _uncovered(self) -> str | None:
        """Returns why the reports do not cover exactly the agreed set; None if they do."""
        return self._cover().reason

    def _cover(self) -> _Coverage:
        """Compares the reports with the agreed set; again only if the partitions of a report have changed, or the finished."""
        lists = [report.partitions for report in self.reports.values()]
        known = self._coverages.get(len(lists))
        if known is None or known.lists != lists or known.finished is not self.finished:
            known = _Coverage.of(lists, self.finished, self.settings.partitions)
            self._coverages = {
                number: other for number, other in self._coverages.items() if other.finished is self.finished
            }
            self._coverages[len(lists)] = known
        return known

    def _advance(self, crossings: Mapping[str, Crossing], least: int, now: int) -> Decision:
        assert self.request is not None
        period, policy, settings = self.request.period, self.settings.caught_up, self.settings
        horizon = now + settings.ahead
        target = self._after(self.limit, min(least, horizon), period)
        if not self.limit.precedes(target):
            return Wait("waiting for the clock", until=self.limit.floor - settings.ahead)
        if target.floor > now and policy != "follow":
            finished = self._newly_finished(crossings)
            if policy == "release":
                return Advance((Step(OPEN, self._cut(crossings)),), Request(RequestKind.OFF), finished)
            if policy != period:
                longer = self._after(self.limit, min(least, horizon), policy)
                if self.limit.precedes(longer):
                    return Advance((Step(longer, self._cut(crossings)),), Request.every(policy), finished)
        return self._steps(target, crossings, now)

    def _after(self, limit: Limit, ts: int, period: int) -> Limit:
        """Returns the limit after this one, with the lookahead of the run, or the chosen one within the bound of the run."""
        settings = self.settings
        if settings.max_apart is None:
            return limit.after(ts, period, settings.lookahead, settings.end)
        chosen = min(self.chosen, settings.lookahead)
        return limit.after(ts, period, chosen, settings.end, max_apart=settings.max_apart)

    def _steps(self, first: Limit, crossings: Mapping[str, Crossing], now: int) -> Advance:
        """Returns the first step and the steps that may follow at once. Special cases wait for the next decision."""
        steps: list[Step] = []
        finished: dict[Partition, tuple[str, Mark]] = {}
        previous, limit, target, size = self.closed, self.limit, first, 0
        while True:
            cut = self._cut(crossings, len(steps), previous, limit.floor)
            steps.append(Step(target, cut))
            finished.update(self._newly_finished(crossings))
            size += len(cut)
            if not self.settings.lookahead or len(steps) == MOST_AT_ONCE or size + len(cut) > _MOST_BYTES:
                break
            previous, limit = limit.floor, target
            crossings = self._all_at(limit.floor)
            further = self._plainly_after(limit, _least(crossings), now)
            if further is None:
                break
            target = further
        return Advance(tuple(steps), finished=finished)

    def _all_at(self, floor: int) -> dict[str, Crossing]:
        """Returns the crossings of a later floor by member; empty unless all reports have it."""
        result: dict[str, Crossing] = {}
        for member, report in self.reports.items():
            crossing = None if report.idle else report.at(floor)
            if crossing is None:
                return {}
            result[member] = crossing
        return result

    def _plainly_after(self, limit: Limit, least: int | None, now: int) -> Limit | None:
        """Returns the next limit; None if the end of the run, the clock or ``caught_up`` affects it."""
        assert self.request is not None
        settings = self.settings
        if least is None or least > now + settings.ahead or (settings.end is not None and least >= settings.end):
            return None
        result = self._after(limit, least, self.request.period)
        caught_up = result.floor > now and settings.caught_up != "follow"
        return result if limit.precedes(result) and not caught_up else None

    def _cut(
        self, crossings: Mapping[str, Crossing], steps: int = 0, previous: int | None = None, floor: int | None = None
    ) -> str:
        """Returns the text of the cut that closes the present floor, or the floor after ``steps`` further steps."""
        lines = [
            Cut.header(
                self.version + 1 + steps,
                self.closed if previous is None else previous,
                self.limit.floor if floor is None else floor,
                self.generation,
            )
        ]
        for member, report in sorted(self.reports.items(), key=itemgetter(0)):  # the same bytes for the same reports
            lines.append(Cut.line(member, report.partitions, crossings[member].marks))
        return "\n".join(lines + self._cover().gone)

    def _newly_finished(self, crossings: Mapping[str, Crossing]) -> dict[Partition, tuple[str, Mark]]:
        newly: dict[Partition, tuple[str, Mark]] = {}
        for member, report in self.reports.items():
            marks = crossings[member].marks
            if not marks.any_finished:
                continue
            for partition, mark in zip(report.partitions, marks.values(), strict=True):
                if mark.finished:
                    newly[partition] = (member, mark)
        return newly

    def change_set(self, settings: Settings) -> None:
        """Takes the new settings after partitions were added to the agreed set or removed from it."""
        self.settings, self._coverages = settings, {}
        self.finished = {p: mark for p, mark in self.finished.items() if p in settings.partitions}

    def advanced(self, decision: Advance) -> None:
        """Updates the state after the advance was written."""
        for step in decision.steps:
            if step.cut is not None:
                self.closed = self.limit.floor
            self.limit = step.limit
            self.version += 1
        if decision.finished:
            self.finished = {**self.finished, **decision.finished}
        if decision.request is not None:
            self.request = decision.request


def _least(crossings: Mapping[str, Crossing]) -> int | None:
    return min((c.minimum for c in crossings.values() if c.minimum is not None), default=None)


class BlockerState(enum.StrEnum):
    """The reason why the limit waits for a partition. The value is what the status shows."""

    RUNNING = "running"
    """Its owner has records before the limit, as far as it has reported."""
    IDLE = "idle"
    """Its owner has not read the end of the log again since the limit moved."""
    UNREPORTED = "unreported"
    """It has an owner, and no report of this generation has it."""
    UNOWNED = "unowned"
    """No member holds its lock."""
    DISPUTED = "disputed"
    """Two members report it."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A partition for which the limit waits."""

    partition: Partition
    member: str | None
    """The member that runs it; None if it is unowned."""
    state: BlockerState


def blockers(
    limit: Limit,
    generation: int,
    partitions: frozenset[Partition],
    reports: Mapping[str, Report],
    finished: Mapping[Partition, object],
    owners: Mapping[Partition, str],
) -> list[Blocker]:
    """Returns the partitions for which the limit waits, sorted; empty if there are none."""
    if limit.mode is not Mode.GATED:
        return []
    entries: dict[Partition, tuple[str, Report, Entry]] = {}
    disputed: set[Partition] = set()
    for member, report in reports.items():
        for partition, entry in report.entries.items():
            if partition in entries:
                disputed.add(partition)
            entries[partition] = (member, report, entry)
    result: list[Blocker] = []
    for partition in sorted(partitions):
        found = entries.get(partition)
        if partition in disputed:
            result.append(Blocker(partition, owners.get(partition), BlockerState.DISPUTED))
        elif found is None:
            owner = owners.get(partition)
            if partition not in finished:
                result.append(
                    Blocker(partition, owner, BlockerState.UNOWNED if owner is None else BlockerState.UNREPORTED)
                )
        else:
            member, report, entry = found
            state = (
                BlockerState.UNREPORTED if report.generation != generation else _blocked_by(entry, report, limit.floor)
            )
            if state is not None:
                result.append(Blocker(partition, member, state))
    return result


def _blocked_by(entry: Entry, report: Report, floor: int) -> BlockerState | None:
    """Returns the state of a partition for which the limit waits; None if it does not wait for this entry of the report."""
    if entry.state is PartitionState.IDLE:
        return None if report.limit == floor else BlockerState.IDLE
    if entry.state is PartitionState.RUNNING:
        return BlockerState.RUNNING
    if entry.ts is not None and entry.ts < floor and report.at(floor) is None:
        return BlockerState.RUNNING
    return None
