"""The member's rule: which record may pass, and what the member has to report.

A member runs many partitions, each on its own *lane*. A lane is running until it *arrives*: blocked at the timestamp of its
next record, idle at the end of the log, or finished. When the last lane has arrived the member has something to say, once.

The report is level-triggered: a pure function of the generation, the limit, and the lanes. Whoever drives the ledger writes it
whenever it differs from what the node holds; then it does not matter which event was missed.

The report speaks for the lanes whose locks we hold. A lane that waits for a lock is reported by the member that holds it, so it
neither appears in our report nor delays it.

With lookahead a lane goes on past the floor. What counts for the floor is where the lane *crossed* it: the first record at or
past it. Crossings of all open boundaries are kept, so that the cuts of a run do not depend on how far ahead anybody was. And
all that every lane has crossed is said in one report, so that it takes no more than one to close several.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from aiokcc.core.lane import NEVER, Lane, LaneState
from aiokcc.core.limit import Limit, Mode
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import MAX_LIMIT
from aiokcc.core.progress import Crossing, Cut, Report
from aiokcc.core.run import MOST_AT_ONCE
from aiokcc.errors import UsageError

__all__ = ["Ledger", "gathered"]

_CLOSED: Final = Limit((0,))
_MOST_MARKS: Final = 4000
"""Of further boundaries in one report: far below the store's 1 MB."""


def gathered(period: int, lookahead: int) -> int:
    """For :attr:`Ledger.gathers`: half of what is open lies between two milestones; the other half is to go on in."""
    return period * min((lookahead + 1) // 2, MOST_AT_ONCE)


class Ledger:
    """All lanes of one member, the limit and the generation it has seen."""

    def __init__(self, gathers: int = 0) -> None:
        self.limit = _CLOSED
        """The highest limit seen. A new session keeps it: limits never go back."""
        self.generation: int | None = None
        """None while this session has not read it."""
        self.lanes: dict[Partition, Lane] = {}
        """Sorted, so that reports are equal when they say the same."""
        self.late_below = 0
        """The boundary that closed last, as far as we know."""
        self.withheld = False
        """Whether what the lanes have brought is still being worked on elsewhere: then there is nothing to report yet."""
        self.gathers = gathers
        """Under lookahead, boundaries are reported when a multiple of this is crossed; 0: each at once."""
        self.hurries = False
        """Whether what was crossed under this limit has waited long enough to be reported."""
        self._behind: deque[Lane] | None = None
        """The lanes for which that may wait, from the first that was found to be one; None: not looked up yet."""
        self._missing = 0
        """The number of lanes that we hold and that have not arrived."""
        self._unowned = 0
        """The number of lanes whose locks we do not hold."""
        self._said: Report | None = None
        """The last report, while nothing has happened that could change it."""

    # -- lanes come and go ------------------------------------------------------------------------------------------

    def add(self, partition: Partition) -> Lane:
        """Adds a partition that this member wants to run. It counts for the report as soon as we hold its lock."""
        lane = Lane(partition)
        lane.late_below = self.late_below
        self._behind = None
        self.lanes = dict(sorted([*self.lanes.items(), (partition, lane)]))
        self._set_thresholds(lane)
        self._recount()
        return lane

    def claim(self, partitions: Iterable[Partition], holder: str = "", cut: Cut | None = None) -> None:
        """We hold the locks of these partitions, under this name, and have read the last cut since."""
        self._behind = None
        for partition in partitions:
            lane = self.lanes.get(partition)
            if lane is not None:
                lane.hold(holder, cut)
                self._set_thresholds(lane)
        self._recount()

    def locate(self, lane: Lane, offset: int | None) -> bool:
        """The task of a displaced lane comes with this offset. False, once: it has to go on from the last cut."""
        lane.displaced = False
        self._set_thresholds(lane)
        return offset is not None and lane.resume is not None and offset >= lane.resume

    def drop(self, partition: Partition) -> None:
        """A partition was given up: it is no longer ours to report."""
        lane, self._behind = self.lanes.pop(partition, None), None
        if lane is not None:
            lane.owned = False
            self._set_thresholds(lane)
        self._recount()

    def lose(self) -> None:
        """The session is over: all locks are gone, and the generation has to be read again."""
        self.generation = None
        self._behind = None
        for lane in self.lanes.values():
            lane.owned = False
            self._set_thresholds(lane)
        self._recount()

    # -- lanes arrive ------------------------------------------------------------------------------------------------

    def approach(self, lane: Lane, ts: int, offset: int | None) -> bool:
        """The lane's next record. True: it may pass now. False: the lane is blocked until the limit has passed ``ts``.

        UsageError if the lane has finished: what it said cannot be taken back.
        """
        limit = self.limit
        if lane.state is LaneState.RUNNING and 0 <= lane.open_below <= ts and not lane.crossings:
            boundaries = limit.boundaries
            if len(boundaries) == 1 and limit.mode is Mode.GATED:  # the plain case, and nothing but a shorter way
                lane.ts, lane.offset, lane.state = ts, offset, LaneState.BLOCKED
                lane.crossings[boundaries[0]] = (ts, offset)
                self._missing -= 1
                self._said = None
                return False
        self._refuse_finished(lane)
        self._said = None
        lane.ts, lane.offset = ts, offset
        if limit.mode is not Mode.GATED:
            lane.state = LaneState.RUNNING if limit.mode is Mode.OPEN else LaneState.BLOCKED
            return limit.mode is Mode.OPEN and lane.owned and not lane.displaced
        arrived = lane.arrived(limit)
        for boundary in limit.boundaries:
            if boundary > ts:
                break
            lane.crossings.setdefault(boundary, (ts, offset))
        lane.state = LaneState.RUNNING if ts < limit.value else LaneState.BLOCKED
        self._set_thresholds(lane)
        self._missing += arrived - lane.arrived(limit)
        return ts < limit.value and lane.owned and not lane.displaced

    def walk(self, lane: Lane, steps: Sequence[tuple[int, int | None]], reached: int = 0) -> None:
        """What :meth:`approach` does with each of these in turn, ascending, but in one go however many there are.

        ``reached``: nothing of the lane is left before this time, so the limit need not stop at the boundaries before it.
        Where they were crossed is noted down all the same, for others may make it stop there.
        """
        self._refuse_finished(lane)
        if not steps:
            return
        self._said = None
        limit = self.limit
        lane.ts, lane.offset = steps[-1]
        if limit.mode is not Mode.GATED:
            lane.state = LaneState.RUNNING if limit.mode is Mode.OPEN else LaneState.BLOCKED
            return
        arrived = lane.arrived(limit)
        boundaries, n = limit.boundaries, 0
        for ts, offset in steps:
            while n < len(boundaries) and boundaries[n] <= ts:
                lane.crossings.setdefault(boundaries[n], (max(ts, reached), offset))
                n += 1
        lane.state = LaneState.RUNNING if lane.ts < limit.value else LaneState.BLOCKED
        self._set_thresholds(lane)
        self._missing += arrived - lane.arrived(limit)

    def idle(self, lane: Lane, as_of: Limit, offset: int | None) -> bool:
        """The lane was at the end of its log, looked up after the limit ``as_of`` was seen. False: look again.

        The whole limit, since its value alone does not tell two apart whose chain the run's end has cut short: there the
        floor moves and the value does not. UsageError if the lane has finished.
        """
        self._refuse_finished(lane)
        if as_of != self.limit or self.limit.mode is not Mode.GATED:
            return False
        arrived = lane.arrived(self.limit)
        lane.state, lane.idle_at, lane.offset = LaneState.IDLE, self.limit.floor, offset
        self._said = None
        self._missing += arrived - lane.arrived(self.limit)
        return True

    def finish(self, lane: Lane, offset: int | None) -> None:
        """The lane will bring nothing more before the run's end. The first word on it stands."""
        if lane.state is LaneState.FINISHED:
            return
        arrived = lane.arrived(self.limit)
        lane.state, lane.offset = LaneState.FINISHED, offset
        self._said = None
        self._missing += arrived - lane.arrived(self.limit)
        self._set_thresholds(lane)

    def resume(self, lane: Lane) -> None:
        """The lane no longer waits: it has a record, or gave up waiting. What it said before stays true."""
        if lane.state in {LaneState.IDLE, LaneState.BLOCKED}:
            self._said = None
            arrived = lane.arrived(self.limit)
            if lane.state is LaneState.BLOCKED:  # the record was not processed, so it crossed nothing yet
                unread = (lane.ts, lane.offset)
                lane.crossings = {b: c for b, c in lane.crossings.items() if c != unread}
            lane.state = LaneState.RUNNING
            self._behind = None
            self._set_thresholds(lane)
            self._missing += arrived - lane.arrived(self.limit)

    # -- the world moves ---------------------------------------------------------------------------------------------

    def see(self, limit: Limit) -> bool:
        """A limit was read. False: it is not later than the one we know, which a late read may well be."""
        if not self.limit.precedes(limit):
            return False
        previous, self.limit = self.limit, limit
        self.hurries, self._behind = False, None
        if limit.mode is Mode.GATED:  # a release closes nothing, and modes never go back
            self.late_below = max(self.late_below, previous.floor, limit.closed)
            if len(limit.boundaries) == len(previous.boundaries) == 1:
                self._step(previous.boundaries[0], limit.boundaries[0])
                return True
        for lane in self.lanes.values():
            if limit.mode is Mode.GATED:
                lane.late_below = self.late_below
                if lane.crossings:
                    lane.crossings = {b: c for b, c in lane.crossings.items() if b >= limit.floor}
                if lane.state is LaneState.BLOCKED:
                    for boundary in limit.boundaries:
                        if boundary > lane.ts:
                            break
                        lane.crossings.setdefault(boundary, (lane.ts, lane.offset))
            if lane.state is LaneState.IDLE or (lane.state is LaneState.BLOCKED and lane.ts < limit.value):
                lane.state = LaneState.RUNNING
            self._set_thresholds(lane)
        self._recount()
        return True

    def _step(self, previous: int, value: int) -> None:
        """What :meth:`see` does from one single boundary to the next: it is every period of every replay without lookahead."""
        late_below, missing = self.late_below, 0
        for lane in self.lanes.values():
            lane.late_below = late_below
            crossings, state = lane.crossings, lane.state
            if crossings:
                if len(crossings) == 1 and previous in crossings:
                    crossings.clear()
                else:
                    crossings = lane.crossings = {b: c for b, c in crossings.items() if b >= value}
            if state is LaneState.BLOCKED:
                if lane.ts < value:
                    state = lane.state = LaneState.RUNNING
                else:
                    crossings.setdefault(value, (lane.ts, lane.offset))
            elif state is LaneState.IDLE:
                state = lane.state = LaneState.RUNNING
            if not lane.owned or state is LaneState.FINISHED:
                lane.open_below = NEVER
            else:
                lane.open_below = NEVER if lane.displaced else value
                missing += value not in crossings
        self._missing = missing
        self._said = None

    def closed(self, boundary: int) -> None:
        """A boundary that is known to be closed, from the last cut: records below it are late."""
        self.late_below = max(self.late_below, boundary)
        for lane in self.lanes.values():
            lane.late_below = self.late_below

    # -- the report --------------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """Whether we hold the locks of all lanes, and every lane has arrived."""
        return self._missing == 0 and self._unowned == 0

    @property
    def has_arrived(self) -> bool:
        """Whether every lane whose lock we hold has arrived."""
        return self._missing == 0

    @property
    def ready(self) -> bool:
        """Whether there is a report that counts: every lane that we hold has arrived, and what they brought is done with."""
        return self._missing == 0 and self._unowned < len(self.lanes) and not self.withheld

    @property
    def due(self) -> bool:
        """Whether it is time to report: at once, or, where we gather, when no lane that runs is before the next milestone.

        The lanes go on meanwhile, up to the limit, so that nobody waits for the report and its answer. Those that cannot go on
        do not count: if there is nothing else, it is time. And whoever drives the ledger does not let it wait for long.
        The milestones are the same for all members, so that their reports tell of the same boundaries.
        """
        if not self.ready:
            return False
        boundaries = self.limit.boundaries
        if not self.gathers or self.hurries or len(boundaries) < 3:
            return True
        half = boundaries[: min(len(boundaries) // 2, MOST_AT_ONCE)]
        milestone = next((b for b in half if b % self.gathers == 0), half[-1])
        behind = self._behind
        if behind is None:
            behind = self._behind = deque(self._owned())
        while behind and (behind[0].state is not LaneState.RUNNING or milestone in behind[0].crossings):
            behind.popleft()
        return not behind

    def positions(self, boundary: int | None = None) -> dict[Partition, int]:
        """Where each lane crossed this boundary, by default the floor, or stands: the first offset not processed, if known."""
        crossed = self.limit.floor if boundary is None else boundary
        result: dict[Partition, int] = {}
        for partition, lane in self.lanes.items():
            crossing = lane.crossings.get(crossed)
            if crossing is None and lane.state is LaneState.RUNNING:
                continue
            offset = lane.offset if crossing is None else crossing[1]
            if offset is not None and lane.owned:
                result[partition] = offset
        return result

    def report(self, *, even_running: bool = False) -> Report | None:
        """What the member's node should hold; None while it should stay as it is.

        ``even_running`` gives one that does not count, for people who want to know who is slow.
        """
        if self.generation is None or not self.lanes or self.limit.mode is not Mode.GATED:
            return None
        if not (self.ready or even_running):
            return None
        floor = self.limit.floor
        said = self._said
        if said is not None and said.generation == self.generation and said.limit == floor:
            return said
        entries: dict[str, str] = {}
        marks: list[str] = []
        least: int | None = None
        for lane in self.lanes.values():
            if not lane.owned:
                continue
            crossing = lane.crossings.get(floor)
            if crossing is None:  # not all of them are simply blocked
                break
            ts, offset = crossing
            if least is None or ts < least:
                least = ts
            if offset is None:
                entries[lane.name] = str(ts)
                marks.append("?")
            else:
                mark = str(offset)
                entries[lane.name] = f"{ts}@{mark}"
                marks.append(mark)
        else:
            if not entries:
                return None
            self._said = Report(self.generation, floor, entries, least, marks=tuple(marks), further=self._further())
            return self._said
        entries = {lane.name: lane.entry(self.limit) for lane in self._owned()}
        report = Report.of(self.generation, floor, entries)
        return report if report.running or report.idle else replace(report, further=self._further())

    def _further(self) -> tuple[Crossing, ...]:
        """The boundaries behind the floor that every lane has crossed, or has finished before.

        Where we gather, up to the last milestone: so all reports end at the same boundaries, whoever is further.
        """
        crossed = self._crossed_by_all()
        if self.gathers:
            reached = [self.limit.floor, *(crossing.boundary for crossing in crossed)]
            last = max((n for n, boundary in enumerate(reached) if boundary % self.gathers == 0), default=len(crossed))
            crossed = crossed[:last]
        return tuple(crossed)

    def _crossed_by_all(self) -> list[Crossing]:
        result: list[Crossing] = []
        owned = self._owned()
        most = min(MOST_AT_ONCE - 1, max(1, _MOST_MARKS // len(owned)))
        for boundary in itertools.islice(self.limit.boundaries, 1, 1 + most):
            least: int | None = None
            marks: list[str] = []
            for lane in owned:
                crossing = lane.crossings.get(boundary)
                if crossing is not None:
                    ts, offset = crossing
                    marks.append("?" if offset is None else str(offset))
                    if least is None or ts < least:
                        least = ts
                elif lane.state is LaneState.FINISHED:
                    marks.append("?!" if lane.offset is None else f"{lane.offset}!")
                else:
                    return result
            result.append(Crossing(boundary, least, tuple(marks)))
        return result

    # -- inside ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _refuse_finished(lane: Lane) -> None:
        if lane.state is LaneState.FINISHED:
            raise UsageError(f"{lane.name} was declared finished; it cannot bring another record")

    def _owned(self) -> list[Lane]:
        return [lane for lane in self.lanes.values() if lane.owned]

    def _recount(self) -> None:
        self._said = None
        owned = self._owned()
        self._missing = sum(not lane.arrived(self.limit) for lane in owned)
        self._unowned = len(self.lanes) - len(owned)

    def _set_thresholds(self, lane: Lane) -> None:
        limit = self.limit
        if not lane.owned or lane.displaced or limit.mode is Mode.END or lane.state is LaneState.FINISHED:
            lane.open_below = NEVER
        elif limit.mode is Mode.OPEN:
            lane.open_below = MAX_LIMIT
        else:
            lane.open_below = next((b for b in limit.boundaries if b not in lane.crossings), limit.value)
