"""Which periods come next, and what the gate is told about those that are published.

A period may be planned when it is open under the limit and *ripe*: where each of its ends lies is certain. In a bounded replay
it always is. Where a log is followed, an end is certain once a record at or past it is there; where none is, the log may still
bring records of this period, and the clock decides: past the boundary, and the bound on lateness, none is waited for.
The same holds for saying that a partition is idle. Kafka tells nobody that records have come, so a followed log is looked at
whenever the clock passes a boundary: before that nothing could be published anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aiokcc.core.limit import Limit, Mode
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import boundary_after
from aiokcc.spark.finder import Finder, Found
from aiokcc.spark.pace import Pace
from aiokcc.spark.participant import Participant, Track
from aiokcc.spark.plan import MAX_INTENT, Intent, Place, Stretch, next_boundaries, starts_of
from aiokcc.spark.source import poison

__all__ = ["Plan", "Planner"]

MOST_BOUNDARIES: Final = 1000
"""So many periods a batch may hold, with those that have no records."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch, and the first record after it of each partition, where there is one."""

    intent: Intent
    upcoming: Mapping[Partition, Found | None] = field(default_factory=dict)
    as_of: Limit | None = None
    """The limit under which the ends of followed logs were read."""


@dataclass(frozen=True, slots=True)
class _Column:
    """Where boundaries lie in one partition."""

    places: list[Place]
    found: list[Found | None]
    """The first record at or past the boundary, and the bound on lateness."""
    following: list[Found | None]
    """The first record at or past the boundary."""


class Planner:
    """Goes through event time: what is published, what comes next."""

    def __init__(
        self,
        participant: Participant,
        finder: Finder,
        pace: Pace,
        *,
        period: int,
        start: int,
        end: int | None,
        lateness: Mapping[str, int],
        alone: bool,
        clock: Callable[[], int],
    ) -> None:
        self._participant = participant
        self._finder = finder
        self._pace = pace
        self._period = period
        self._end = end
        self._lateness = lateness
        self._most_late = max(lateness.values(), default=0)
        self._alone = alone
        """Whether we run all partitions: then nobody but us keeps the limit from moving."""
        self._clock = clock
        self.published = start
        """Everything before this time is published."""
        self._trail: deque[Stretch] = deque()
        """Published periods that the gate may not have closed."""

    # -- what is known --------------------------------------------------------------------------------------------------

    async def look(self, limit: Limit) -> None:
        """Find the next record of partitions of which none is known; at the end of a followed log, look again."""
        missing = [
            track
            for track in self._participant.tracks.values()
            if track.next is None and not track.is_finished and not track.is_complete
        ]
        if not missing:
            return
        ends = await self._finder.ends(track.partition for track in missing if track.bounds.end is None)
        found = await self._finder.at({track.partition: self.published for track in missing})
        for track in missing:
            self._learn(track, found[track.partition])
            end = ends.get(track.partition, track.bounds.end)
            assert end is not None
            if track.next is None and track.place.low < end:
                # All that is left is older than what is published, or it is no record at all: it is next all the same.
                track.next = Found(end, self.published)
            track.end_seen = limit if track.next is None else None

    def _learn(self, track: Track, found: Found | None) -> None:
        if found is not None and track.bounds.end is not None and found.offset >= track.bounds.end:
            found = None
        ceiling = self._clock() + self._participant.member.settings.ahead
        if found is not None and found.ts > ceiling:
            raise poison(found.ts, *track.partition, found.offset, ceiling)
        track.next = found

    def _next_ts(self, track: Track) -> int:
        """Nothing of the partition that is not published belongs before this time."""
        assert track.next is not None
        return max(self.published, track.next.ts - self._lateness.get(track.partition.topic, 0))

    def _is_due(self, boundary: int) -> bool:
        return self._clock() >= boundary + self._most_late

    def seconds_to_next_look(self) -> float | None:
        """Until a boundary is due by the clock; None where no log is followed."""
        if all(track.bounds.end is not None or track.is_finished for track in self._participant.tracks.values()):
            return None
        now = self._clock()
        due = boundary_after(max(0, now - self._most_late), self._period)
        if self._end is not None:
            due = min(due, max(self._end, now - self._most_late))
        return max(0.02, (due + self._most_late - now) / 1000)

    # -- what is said ---------------------------------------------------------------------------------------------------

    def say(self, limit: Limit) -> None:
        """Tell the gate where each partition stands."""
        participant, end = self._participant, self._end
        for track in participant.tracks.values():
            if track.is_finished:
                continue
            if track.is_complete or (end is not None and self._has_passed(track, end)):
                participant.finish(track)
            elif track.next is not None:
                participant.block(track, self._next_ts(track))
            elif limit.mode is Mode.GATED and self._is_due(limit.floor):
                participant.idle(track)
        participant.done()

    def _has_passed(self, track: Track, end: int) -> bool:
        """Whether the partition has nothing left before the run's end."""
        if self.published >= end:
            return True
        return self._is_due(end) if track.next is None else self._next_ts(track) >= end

    def passed(self, plan: Plan) -> None:
        """A batch is published: tell the gate where its boundaries were crossed, and what comes next."""
        for partition, place in plan.intent.positions().items():
            track = self._participant.tracks.get(partition)
            if track is not None:
                track.place = place
                self._learn(track, plan.upcoming.get(partition))
                track.end_seen = plan.as_of if track.next is None else None
        known = {stretch.end for stretch in self._trail}
        new = [stretch for stretch in plan.intent.stretches() if stretch.end not in known]
        self._trail.extend(new)
        self.published = plan.intent.periods[-1][1]
        self._participant.walk(new)
        limit = self._participant.limit
        while self._trail and (limit.mode is not Mode.GATED or self._trail[0].end < limit.floor):
            self._trail.popleft()

    # -- what is next ---------------------------------------------------------------------------------------------------

    async def plan(self, number: int, limit: Limit) -> Plan | None:
        """The next batch; None while there is nothing that may be computed."""
        tracks = [track for track in self._participant.tracks.values() if not track.is_finished]
        times = [self._next_ts(track) for track in tracks if track.next is not None]
        if not times:
            return None
        wanted = 1 if self._pace.periods == 1 else min(4 * self._pace.periods, MOST_BOUNDARIES)
        boundaries = next_boundaries(self.published, min(times), self._period, limit.value, self._end, wanted)
        if not boundaries or (len(boundaries) < min(wanted, self._pace.periods) and self._will_open_more(limit)):
            return None
        ends = await self._finder.ends(track.partition for track in tracks if track.bounds.end is None)
        columns = await self._columns(tracks, boundaries, ends)
        ripe = self._ripe(boundaries, [columns[p] for p in ends])
        if not ripe:
            return None
        intent = self._intent(number, limit, boundaries[:ripe], columns)
        last = len(intent.periods) - 1
        return Plan(intent, {p: column.following[last] for p, column in columns.items()}, limit)

    def _will_open_more(self, limit: Limit) -> bool:
        """Whether to wait for a larger batch: the limit is on its way, and nobody but us could stop it."""
        return self._alone and limit.mode is Mode.GATED and limit.value != self._end and self._participant.is_through

    async def _columns(
        self, tracks: Sequence[Track], boundaries: Sequence[int], ends: Mapping[Partition, int]
    ) -> dict[Partition, _Column]:
        following = await self._finder.across({track.partition: track.next for track in tracks}, boundaries)
        behind = following
        for late in sorted(set(self._lateness.values()) - {0}):
            mine = {t.partition: t.next for t in tracks if self._lateness.get(t.partition.topic) == late}
            behind = {**behind, **await self._finder.across(mine, [b + late for b in boundaries])}
        result = {}
        for track in tracks:
            partition, place = track.partition, track.place
            end = track.bounds.end if track.bounds.end is not None else ends[partition]
            places = []
            for low, high in zip(following[partition], behind[partition], strict=True):
                bottom = max(place.low, _within(low, track.bounds.end, end))
                place = Place(bottom, max(place.high, bottom, _within(high, track.bounds.end, end)))
                places.append(place)
            result[partition] = _Column(places, behind[partition], following[partition])
        return result

    def _ripe(self, boundaries: Sequence[int], followed: Sequence[_Column]) -> int:
        for n, boundary in enumerate(boundaries):
            if not self._is_due(boundary) and any(column.found[n] is None for column in followed):
                return n
        return len(boundaries)

    def _intent(
        self, number: int, limit: Limit, boundaries: Sequence[int], columns: Mapping[Partition, _Column]
    ) -> Intent:
        walked = [s for s in self._trail if limit.mode is Mode.GATED and s.end >= limit.floor]
        tracks = self._participant.tracks
        places: dict[Partition, tuple[Place, ...]] = {}
        for partition, track in tracks.items():
            before = (stretch.places.get(partition, track.place) for stretch in walked)
            column = columns.get(partition)  # none of a partition that has finished: it stays where it is
            after = [track.place] * len(boundaries) if column is None else column.places[: len(boundaries)]
            places[partition] = (*before, track.place, *after)
        starts = starts_of(boundaries, self.published, self._period)
        intent = Intent(
            number,
            tuple((stretch.start, stretch.end) for stretch in walked),
            tuple(zip(starts, boundaries, strict=True)),
            places,
        )
        intent = intent.shortened(self._pace.fitting(intent.counts())).trimmed()
        while len(intent.periods) > 1 and len(intent.encode()) > MAX_INTENT:
            intent = intent.shortened(len(intent.periods) // 2).trimmed()
        return intent


def _within(found: Found | None, bound: int | None, end: int) -> int:
    if found is None:
        return end
    return found.offset if bound is None else min(found.offset, bound)
