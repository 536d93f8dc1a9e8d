"""The member's rule: it decides which record may pass, and what the member reports.

A member runs many partitions. A partition runs until it *arrives*: it is blocked at the timestamp of its next record, idle at
the end of its log, or finished. When the last partition that the member owns has arrived, the member reports, once.

The report is a pure function of the generation, the limit and the partitions ([level] in docs/explanation/protocol.md). It is
written whenever it differs from the content of the node, so a missed event cannot prevent the write. It has only partitions
whose locks the member holds ([owned only]); the others are reported by the members that hold their locks.

With lookahead a partition goes on past the floor. For the floor counts where the partition *crossed* it: the first record at
or past it. The crossings of all open boundaries are kept, so the cuts of a run do not depend on how far ahead a member was.
One report has all boundaries that every partition has crossed, so one advance can close several.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Final

from aiokcc.core.limit import Limit, Mode
from aiokcc.core.marks import mark_offset
from aiokcc.core.partition_progress import NEVER, PartitionProgress, PartitionState
from aiokcc.core.partitions import Partition, PartitionList
from aiokcc.core.report import Cut, Report
from aiokcc.core.report_builder import build_report, milestone_interval, withheld_report
from aiokcc.core.run import MOST_AT_ONCE
from aiokcc.errors import UsageError

__all__ = ["MemberProgress", "ReportTime"]

_CLOSED: Final = Limit((0,))
# To look them up in their classes costs as much as the rest of approach(), up to Python 3.11.
_RUNNING: Final = PartitionState.RUNNING
_BLOCKED: Final = PartitionState.BLOCKED
_GATED: Final = Mode.GATED


class ReportTime(Enum):
    """The times at which a member may have to report."""

    NOW = "now"
    SOON = "soon"
    """The report is delayed (LINGER), because the member may soon have more boundaries."""
    NOT_YET = "not yet"


class MemberProgress:
    """The partitions of one member, and the limit and the generation that it has seen."""

    def __init__(self, milestone_interval: int = 0) -> None:
        self.limit = _CLOSED
        """The highest limit seen. A new session keeps it: limits never go back."""
        self.generation: int | None = None
        """The generation; None while this session has not read it."""
        self.partitions: dict[Partition, PartitionProgress] = {}
        """Sorted, so that equal facts give equal reports."""
        self.late_below = 0
        """The boundary that closed last, as far as we know. Records below it are late."""
        self.withheld_from: int | None = None
        """The end of the first period whose records have passed and are not processed yet: the member must report neither this
        boundary nor a later one. None: a record that has passed is processed when the next one comes."""
        self.milestone_interval = milestone_interval
        """Under lookahead the member reports when its partitions cross a multiple of this; 0: each boundary at once."""
        self.chain_period = 0
        """Set where the leader chooses the lookahead: the period from which the milestones of each limit follow."""
        self.delay_over = False
        """True once the crossings under this limit have waited long enough for a report (LINGER)."""
        self.overdue = False
        """True once this limit is old (LATE): then the member reports even what does not count, for people to see."""
        self._behind: deque[PartitionProgress] | None = None
        """The partitions that may still be before the next milestone; None if they have to be looked up."""
        self._before: tuple[int, deque[PartitionProgress]] = (NEVER, deque())
        """A boundary, and the partitions that may still be before it, for :meth:`has_crossed`."""
        self.missing = 0
        """The number of partitions whose locks we hold and that have not arrived."""
        self._owned: list[PartitionProgress] = []
        """The partitions whose locks we hold, sorted."""
        self._listed = PartitionList.of(())
        """The same partitions, as the report lists them."""
        self._last_report: Report | None = None
        """The last report; None once something has happened that could change it."""

    # -- partitions come and go ------------------------------------------------------------------------------------------

    def add(self, partition: Partition) -> PartitionProgress:
        """Adds a partition that this member wants to run. It counts for the report as soon as we hold its lock."""
        progress = PartitionProgress(partition)
        progress.late_below = self.late_below
        self._look_again()
        self.partitions = dict(sorted([*self.partitions.items(), (partition, progress)]))
        progress.set_thresholds(self.limit)
        self._recount()
        return progress

    def claim(self, partitions: Iterable[Partition], holder: str = "", cut: Cut | None = None) -> None:
        """Notes that the member session ``holder`` holds these locks and has read the last cut since."""
        self._look_again()
        for partition in partitions:
            progress = self.partitions.get(partition)
            if progress is not None:
                progress.claim(holder, cut)
                progress.set_thresholds(self.limit)
        self._recount()

    def locate(self, progress: PartitionProgress, offset: int | None) -> bool:
        """Takes the offset of a displaced partition's task. Returns False if the task has to go back to the last cut.

        The partition is no longer displaced after that.
        """
        progress.displaced = False
        progress.set_thresholds(self.limit)
        return offset is not None and progress.resume is not None and offset >= progress.resume

    def forget(self, partition: Partition) -> None:
        """Forgets a partition: it is no longer ours to report."""
        progress = self.partitions.pop(partition, None)
        self._look_again()
        if progress is not None:
            progress.owned = False
            progress.set_thresholds(self.limit)
        self._recount()

    def lose(self) -> None:
        """Notes that the session is over: all locks are lost, and the generation has to be read again."""
        self.generation = None
        self._look_again()
        for progress in self.partitions.values():
            progress.owned = False
            progress.set_thresholds(self.limit)
        self._recount()

    # -- partitions arrive ------------------------------------------------------------------------------------------------

    def approach(self, progress: PartitionProgress, ts: int, offset: int | None) -> bool:
        """Takes the partition's next record. Returns True if it may pass now, False if it waits until the limit passes ``ts``.

        Raises UsageError if the partition has finished: a report of that cannot be taken back.
        """
        limit = self.limit
        if progress.state is _RUNNING and 0 <= progress.open_below <= ts and not progress.crossings:
            boundaries = limit.boundaries
            if len(boundaries) == 1 and limit.mode is _GATED:  # the usual case, faster
                progress.ts, progress.offset, progress.state = ts, offset, _BLOCKED
                progress.crossings[boundaries[0]] = (ts, offset)
                self.missing -= 1
                self._last_report = None
                return False
        self._refuse_finished(progress)
        self._last_report = None
        progress.ts, progress.offset = ts, offset
        if limit.mode is not Mode.GATED:
            progress.state = PartitionState.RUNNING if limit.mode is Mode.OPEN else PartitionState.BLOCKED
            return limit.mode is Mode.OPEN and progress.owned and not progress.displaced
        arrived = progress.arrived(limit)
        for boundary in limit.boundaries:
            if boundary > ts:
                break
            progress.crossings.setdefault(boundary, (ts, offset))
        progress.state = PartitionState.RUNNING if ts < limit.value else PartitionState.BLOCKED
        progress.set_thresholds(self.limit)
        self.missing += arrived - progress.arrived(limit)
        return ts < limit.value and progress.owned and not progress.displaced

    def walk(self, progress: PartitionProgress, steps: Sequence[tuple[int, int | None]], reached: int = 0) -> None:
        """Takes many records, in ascending order, as :meth:`approach` takes one.

        ``reached``: the partition has nothing left before this time, so the limit need not stop at the boundaries before it.
        Their crossings are noted all the same, because other partitions may make the limit stop there.
        """
        self._refuse_finished(progress)
        if not steps:
            return
        self._last_report = None
        limit = self.limit
        progress.ts, progress.offset = steps[-1]
        if limit.mode is not Mode.GATED:
            progress.state = PartitionState.RUNNING if limit.mode is Mode.OPEN else PartitionState.BLOCKED
            return
        arrived = progress.arrived(limit)
        boundaries, n = limit.boundaries, 0
        for ts, offset in steps:
            while n < len(boundaries) and boundaries[n] <= ts:
                progress.crossings.setdefault(boundaries[n], (max(ts, reached), offset))
                n += 1
        progress.state = PartitionState.RUNNING if progress.ts < limit.value else PartitionState.BLOCKED
        progress.set_thresholds(self.limit)
        self.missing += arrived - progress.arrived(limit)

    def idle(self, progress: PartitionProgress, as_of: Limit, offset: int | None) -> bool:
        """Notes that the log held nothing more when it was read under ``as_of``. Returns False if the limit has moved.

        The whole limit is compared. Its value alone is not enough: near the end of the run the floor moves and the value does
        not. Raises UsageError if the partition has finished.
        """
        self._refuse_finished(progress)
        if as_of != self.limit or self.limit.mode is not Mode.GATED:
            return False
        arrived = progress.arrived(self.limit)
        progress.state, progress.idle_at, progress.offset = PartitionState.IDLE, self.limit.floor, offset
        self._last_report = None
        self.missing += arrived - progress.arrived(self.limit)
        return True

    def finish(self, progress: PartitionProgress, offset: int | None) -> None:
        """Notes that the partition brings nothing more before the end of the run. A second call changes nothing."""
        if progress.state is PartitionState.FINISHED:
            return
        arrived = progress.arrived(self.limit)
        progress.state, progress.offset = PartitionState.FINISHED, offset
        self._last_report = None
        self.missing += arrived - progress.arrived(self.limit)
        progress.set_thresholds(self.limit)

    def resume(self, progress: PartitionProgress) -> None:
        """Makes a blocked or idle partition running again. Its crossings stay, except that of the unprocessed record."""
        if progress.state in {PartitionState.IDLE, PartitionState.BLOCKED}:
            self._last_report = None
            arrived = progress.arrived(self.limit)
            if progress.state is PartitionState.BLOCKED:  # its record was not processed, so it has not crossed anything
                unread = (progress.ts, progress.offset)
                progress.crossings = {b: c for b, c in progress.crossings.items() if c != unread}
            progress.state = PartitionState.RUNNING
            progress.late_below = self.late_below  # and neither has it passed anything
            self._look_again()
            progress.set_thresholds(self.limit)
            self.missing += arrived - progress.arrived(self.limit)

    def mirror(self, report: Report, chosen: Container[Partition]) -> None:
        """Takes the report of another process of this host: the facts about those of its partitions that are ``chosen``.

        What held under an earlier limit is weighed under the present one, as if the partition had told it just now.
        """
        limit = self.limit
        if limit.mode is not Mode.GATED:
            return
        self._last_report = None
        self._look_again()
        plain = len(limit.boundaries) == 1 and not (report.idle or report.running or report.finished or report.further)
        if plain and (report.minimum or 0) >= limit.floor:  # the usual case, faster: all of them are blocked
            for partition, ts, text in zip(report.partitions, report.stops, report.marks.texts(), strict=True):
                progress = self.partitions.get(partition)
                if progress is None or partition not in chosen or progress.state is PartitionState.FINISHED:
                    continue
                assert isinstance(ts, int)
                self.missing -= progress.owned and not progress.arrived(limit)
                progress.ts, progress.offset, progress.state = ts, mark_offset(text), PartitionState.BLOCKED
                progress.crossings = {limit.floor: (progress.ts, progress.offset)}
            return
        behind_floor = [(crossing, crossing.marks.values()) for crossing in report.further]
        for n, (partition, entry) in enumerate(report.entries.items()):
            progress = self.partitions.get(partition)
            if progress is None or partition not in chosen or progress.state is PartitionState.FINISHED:
                continue
            arrived = progress.arrived(limit)
            further = [(crossing.boundary, crossing.minimum, marks[n]) for crossing, marks in behind_floor]
            progress.mirror(report.limit, entry, further, limit)
            progress.set_thresholds(self.limit)
            self.missing += arrived - progress.arrived(limit) if progress.owned else 0

    # -- the limit moves ---------------------------------------------------------------------------------------------

    def see(self, limit: Limit) -> bool:
        """Takes a limit that was read. Returns False if it is not later than the known one: reads may arrive late."""
        if not self.limit.precedes(limit):
            return False
        previous, self.limit = self.limit, limit
        self.delay_over = False
        self._look_again()
        if self.chain_period:
            self.milestone_interval = milestone_interval(self.chain_period, len(limit.boundaries) - 1)
        if limit.mode is _GATED:  # a release closes nothing, and modes never go back
            self.late_below = max(self.late_below, previous.floor, limit.closed)
            if len(limit.boundaries) == len(previous.boundaries) == 1:
                self._step(previous.boundaries[0], limit.boundaries[0])
                return True
        for progress in self.partitions.values():
            if limit.mode is Mode.GATED:
                progress.late_below = max(progress.late_below, self.late_below)
                if progress.crossings:
                    progress.crossings = {b: c for b, c in progress.crossings.items() if b >= limit.floor}
                if progress.state is PartitionState.BLOCKED:
                    for boundary in limit.boundaries:
                        if boundary > progress.ts:
                            break
                        progress.crossings.setdefault(boundary, (progress.ts, progress.offset))
            if progress.state is PartitionState.IDLE or (
                progress.state is PartitionState.BLOCKED and progress.ts < limit.value
            ):
                progress.state = PartitionState.RUNNING
            progress.set_thresholds(self.limit)
        self._recount()
        return True

    def _step(self, previous: int, value: int) -> None:
        """Does the work of :meth:`see` where both limits have one boundary: each period of a replay without lookahead."""
        late_below, missing = self.late_below, 0
        blocked, running = _BLOCKED, _RUNNING
        for progress in self.partitions.values():
            progress.late_below = late_below
            crossings, state = progress.crossings, progress.state
            usable = progress.owned and not progress.displaced
            if state is blocked and progress.ts < value and usable and len(crossings) == 1 and previous in crossings:
                crossings.clear()  # the usual case, faster: it goes on
                progress.state, progress.open_below = running, value
                missing += 1
                continue
            if crossings:
                if len(crossings) == 1 and previous in crossings:
                    crossings.clear()
                else:
                    crossings = progress.crossings = {b: c for b, c in crossings.items() if b >= value}
            if state is PartitionState.BLOCKED:
                if progress.ts < value:
                    state = progress.state = PartitionState.RUNNING
                else:
                    crossings.setdefault(value, (progress.ts, progress.offset))
            elif state is PartitionState.IDLE:
                state = progress.state = PartitionState.RUNNING
            if not progress.owned or state is PartitionState.FINISHED:
                progress.open_below = NEVER
            else:
                progress.open_below = NEVER if progress.displaced else value
                missing += value not in crossings
        self.missing = missing
        self._last_report = None

    def closed(self, boundary: int) -> None:
        """Notes a boundary that is closed, by the last cut: records below it are late."""
        self.late_below = max(self.late_below, boundary)
        for progress in self.partitions.values():
            progress.late_below = max(progress.late_below, self.late_below)

    def next_boundary(self, progress: PartitionProgress) -> int:
        """Returns the first open boundary that the partition has not crossed; the limit if it has crossed all of them."""
        return next((b for b in self.limit.boundaries if b not in progress.crossings), self.limit.value)

    # -- the report --------------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """True if we hold the locks of all partitions, and every partition has arrived."""
        return self.missing == 0 and len(self._owned) == len(self.partitions)

    @property
    def has_arrived(self) -> bool:
        """True if we hold a lock, and every partition whose lock we hold has arrived."""
        return self.missing == 0 and bool(self._owned)

    def has_crossed(self, boundary: int) -> bool:
        """Returns whether we hold a lock, and every partition whose lock we hold has nothing left before this boundary."""
        if boundary <= self.limit.floor or not self.has_arrived:
            return self.has_arrived
        if self._before[0] != boundary:
            self._before = (boundary, deque(self._owned))
        before = self._before[1]
        while before and (boundary in before[0].crossings or before[0].state is PartitionState.FINISHED):
            before.popleft()
        return not before

    @property
    def withheld(self) -> bool:
        """True while the caller still processes records of the period that closes next."""
        return self.withheld_from is not None and self.withheld_from <= self.limit.floor

    @property
    def ready(self) -> bool:
        """True if a report would count: every partition that we own has arrived, and nothing is withheld."""
        return self.has_arrived and not self.withheld

    @property
    def report_time(self) -> ReportTime:
        """The time at which the member has to report. It is asked whenever something has changed here."""
        if self.overdue or self.due:
            return ReportTime.NOW
        return ReportTime.SOON if self.ready else ReportTime.NOT_YET

    @property
    def due(self) -> bool:
        """True if a report that counts is to be made now: with milestones, when no running partition is before the next one.

        The partitions go on meanwhile, up to the limit, so no partition waits for the report and its answer. Partitions that
        cannot go on do not count: if there are no others, it is time. The member session bounds the wait (LINGER).
        The milestones are the same for all members, so that their reports have the same boundaries.
        """
        if not self.ready:
            return False
        boundaries = self.limit.boundaries
        if not self.milestone_interval or self.delay_over or self.overdue or len(boundaries) < 3:
            return True
        half = boundaries[: min(len(boundaries) // 2, MOST_AT_ONCE)]
        milestone = next((b for b in half if b % self.milestone_interval == 0), half[-1])
        if self.withheld_from is not None and self.withheld_from <= milestone and self.has_crossed(self.withheld_from):
            return False  # the caller has another whole period to process before it has to wait
        behind = self._behind
        if behind is None:
            behind = self._behind = deque(self._owned)
        while behind and (behind[0].state is not PartitionState.RUNNING or milestone in behind[0].crossings):
            behind.popleft()
        return not behind

    def positions(self, boundary: int | None = None) -> dict[Partition, int]:
        """Returns each partition's first offset that was not processed at this boundary (default: the floor), if known."""
        crossed = self.limit.floor if boundary is None else boundary
        result: dict[Partition, int] = {}
        for partition, progress in self.partitions.items():
            crossing = progress.crossings.get(crossed)
            if crossing is None and progress.state is PartitionState.RUNNING:
                continue
            offset = progress.offset if crossing is None else crossing[1]
            if offset is not None and progress.owned:
                result[partition] = int(offset)  # of a span the lower one
        return result

    def report(self, *, even_running: bool = False) -> Report | None:
        """Returns the report that the member's node should hold; None while the node should stay as it is.

        ``even_running`` also returns a report that does not count: it shows people which partition is slow.
        """
        if self.generation is None or not self._owned or self.limit.mode is not _GATED:
            return None
        if not (self.ready or even_running):
            return None
        if self.withheld:
            return withheld_report(self.generation, self.limit, self._listed)
        said = self._last_report
        if said is None or said.generation != self.generation or said.limit != self.limit.floor:
            said = build_report(self.generation, self.limit, self._listed, self._owned, self.milestone_interval)
            self._last_report = said
        if self.withheld_from is not None and said.further:
            return replace(said, further=tuple(c for c in said.further if c.boundary < self.withheld_from))
        return said

    # -- inside ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _refuse_finished(progress: PartitionProgress) -> None:
        if progress.state is PartitionState.FINISHED:
            raise UsageError(f"{progress.name} was declared finished; it cannot bring another record")

    def _look_again(self) -> None:
        """Forgets which partitions were found past a boundary: that may have changed."""
        self._behind, self._before = None, (NEVER, deque())

    def _recount(self) -> None:
        self._last_report = None
        owned = [progress for progress in self.partitions.values() if progress.owned]
        if owned != self._owned:
            self._owned, self._listed = owned, PartitionList.of(progress.partition for progress in owned)
        self.missing = sum(not progress.arrived(self.limit) for progress in self._owned)
