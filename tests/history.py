"""Recorded histories of a group, and their check against the invariants.

A history is a list of events on one clock, in any order: virtual time in unit tests, CLOCK_MONOTONIC where real processes write
JSON lines. ``check`` raises ViolationError, which names each rule that was broken and the event that broke it:

==============  =======================================================================================================
alignment       no record starts at or past the limit at that time
completeness    when a boundary closes, every record before it has been processed, on every partition
barrier         no record at or past a limit starts before every record below the floor under it is done
monotony        the limit never goes back
at least once   every record of the run is processed
cuts            they tile: each starts where the one before ended, in time and in every partition, at the right offset
redelivery      no record is delivered again after a cut holds it
one owner       no two members process records of one partition at the same time
==============  =======================================================================================================

The limit's events carry the time at which it was written. Where only an observer's time is known, which is later, pass its
greatest delay as ``slack``.
"""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from aiokcc.core.limit import Limit, Mode
from aiokcc.core.report import Cut

__all__ = ["Event", "History", "ViolationError"]

START, DONE, GONE, LIMIT, CUT = "start", "done", "gone", "limit", "cut"


class ViolationError(AssertionError):
    """The history breaks an invariant."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a history."""

    time: float
    event: str
    """``start`` and ``done`` of a record, ``gone`` if it never will be; ``limit`` and ``cut`` when they were written."""
    member: str = ""
    partition: str = ""
    ts: int = 0
    offset: int = 0
    data: str = ""
    """The node's content, for ``limit`` and ``cut``."""


@dataclass
class History:
    """Events, with the clock that gives their times."""

    clock: Callable[[], float] = lambda: 0.0
    events: list[Event] = field(default_factory=list)

    def start(self, member: str, partition: str, ts: int, offset: int) -> None:
        """Record that a handler got the record."""
        self.events.append(Event(self.clock(), START, member, partition, ts, offset))

    def done(self, member: str, partition: str, ts: int, offset: int) -> None:
        """Record that a handler has processed the record."""
        self.events.append(Event(self.clock(), DONE, member, partition, ts, offset))

    def gone(self, member: str, partition: str, ts: int, offset: int) -> None:
        """Record that the handler was stopped before its end."""
        self.events.append(Event(self.clock(), GONE, member, partition, ts, offset))

    def limit(self, data: bytes) -> None:
        """Record that the ``coordinator`` node was written."""
        self.events.append(Event(self.clock(), LIMIT, data=data.decode(errors="replace")))

    def cut(self, data: bytes) -> None:
        """Record that a slot of the cuts was written."""
        self.events.append(Event(self.clock(), CUT, data=data.decode(errors="replace")))

    # -- files ------------------------------------------------------------------------------------------------------------

    def dump(self) -> str:
        """Return the events as JSON lines."""
        return "".join(json.dumps(asdict(event)) + "\n" for event in self.events)

    @classmethod
    def load(cls, *texts: str) -> History:
        """Read the JSON lines of several processes. A last line that a crash has cut short is left out."""
        events: list[Event] = []
        for text in texts:
            for line in text.splitlines(keepends=True):
                if line.endswith("\n"):
                    raw: dict[str, Any] = json.loads(line)
                    events.append(Event(**raw))
        return cls(events=sorted(events, key=lambda event: event.time))

    # -- the check --------------------------------------------------------------------------------------------------------

    def check(
        self,
        logs: Mapping[str, Sequence[int]],
        *,
        slack: float = 0.0,
        complete: bool = True,
        end: int | None = None,
        one_owner: bool = True,
    ) -> None:
        """Raise ViolationError if the history breaks an invariant. ``logs``: each partition's timestamps, in order.

        ``complete``: the run has ended, so every record below ``end`` must have been processed. ``one_owner``: every member
        that stopped in the middle of a record has recorded that; leave it out if processes were killed or frozen.
        """
        found = [
            *self._alignment(slack),
            *self._barrier(logs),
            *self._monotony(),
            *self._completeness(logs),
            *self._cuts(logs),
            *(self._owners() if one_owner else ()),
            *(self._at_least_once(logs, end) if complete else ()),
        ]
        if found:
            shown = "\n".join(found[:20])
            raise ViolationError(f"{len(found)} violations in {len(self.events)} events:\n{shown}")

    def _of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.event == kind]

    def _limits(self) -> list[tuple[float, Limit]]:
        return [(event.time, Limit.decode("coordinator", event.data.encode())) for event in self._of(LIMIT)]

    def _alignment(self, slack: float) -> Iterable[str]:
        limits = self._limits()
        times = [time - slack for time, _ in limits]
        for event in self._of(START):
            place = bisect.bisect_right(times, event.time)
            greatest = max((limit.value for _, limit in limits[:place]), default=0)
            if event.ts >= greatest:
                yield f"alignment: {event} under the limit {greatest}"

    def _monotony(self) -> Iterable[str]:
        limits = self._limits()
        for (_, before), (time, after) in itertools.pairwise(limits):
            if not before.precedes(after):
                yield f"monotony: {before} became {after} at {time}"

    def _done_at(self) -> dict[tuple[str, int], float]:
        result: dict[tuple[str, int], float] = {}
        for event in self._of(DONE):
            result.setdefault((event.partition, event.offset), event.time)
        return result

    def _closings(self) -> Iterable[tuple[float, int]]:
        """Return the time at which each boundary closed."""
        limits = self._limits()
        for (_, before), (time, after) in itertools.pairwise(limits):
            if before.mode is Mode.GATED and after.mode is not Mode.OPEN:
                yield time, before.floor

    def _completeness(self, logs: Mapping[str, Sequence[int]]) -> Iterable[str]:
        done = self._done_at()
        for time, floor in self._closings():
            for partition, stamps in logs.items():
                for offset, ts in enumerate(stamps):
                    if ts < floor and not done.get((partition, offset), time + 1) <= time:
                        yield f"completeness: {floor} closed at {time} before {partition}@{offset} ({ts}) was done"

    def _barrier(self, logs: Mapping[str, Sequence[int]]) -> Iterable[str]:
        """Check the barrier only by what the handlers saw, without the limits that the leader wrote."""
        done = self._done_at()
        ready: list[tuple[int, int, float]] = []
        limits = [limit for _, limit in self._limits()]
        for before, after in itertools.pairwise(limits):
            if before.mode is Mode.GATED and after.mode is Mode.GATED:
                last = max(
                    (
                        done.get((partition, offset), float("inf"))
                        for partition, stamps in logs.items()
                        for offset, ts in enumerate(stamps)
                        if ts < before.floor
                    ),
                    default=0.0,
                )
                ready.append((before.value, before.floor, last))
        released = any(limit.mode is Mode.OPEN for limit in limits)
        for event in () if released else self._of(START):
            for value, floor, last in ready:
                if event.ts >= value and event.time < last:
                    yield f"barrier: {event} started before everything below {floor} was done, at {last}"

    def _at_least_once(self, logs: Mapping[str, Sequence[int]], end: int | None) -> Iterable[str]:
        done = self._done_at()
        for partition, stamps in logs.items():
            for offset, ts in enumerate(stamps):
                if (end is None or ts < end) and (partition, offset) not in done:
                    yield f"at least once: {partition}@{offset} ({ts}) was never processed"

    def _cuts(self, logs: Mapping[str, Sequence[int]]) -> Iterable[str]:
        previous: Cut | None = None
        held: dict[str, tuple[float, int]] = {}
        starts = self._of(START)
        for event in self._of(CUT):
            cut = Cut.decode("cut", event.data.encode())
            assert cut is not None
            if previous is not None and (cut.previous != previous.limit or cut.number <= previous.number):
                yield f"cuts: {cut.number} [{cut.previous}, {cut.limit}) does not go on after [.., {previous.limit})"
            for marks in cut.marks.values():
                for partition, mark in marks.items():
                    stamps = logs[str(partition)]
                    right = next((n for n, ts in enumerate(stamps) if ts >= cut.limit), len(stamps))
                    if mark.offset is not None and mark.offset != right:
                        yield f"cuts: {cut.limit} cuts {partition} at {mark.offset}, not at {right}"
                    if mark.offset is not None:
                        held[str(partition)] = (event.time, mark.offset)
            missing = set(logs) - {str(p) for marks in cut.marks.values() for p in marks}
            if missing:
                yield f"cuts: {cut.limit} says nothing of {sorted(missing)}"
            for again in starts:
                time, offset = held.get(again.partition, (float("inf"), 0))
                if again.offset < offset and event.time == time < again.time:
                    yield f"redelivery: {again}, although the cut of {time} holds it"
            previous = cut

    def _owners(self) -> Iterable[str]:
        busy: dict[str, Event] = {}
        for event in self.events:
            other = busy.get(event.partition)
            if event.event == START:
                if other is not None and other.member != event.member:
                    yield f"one owner: {event} while {other.member} processes {other.partition}@{other.offset}"
                busy[event.partition] = event
            elif event.event in {DONE, GONE} and other is not None and other.member == event.member:
                del busy[event.partition]
