"""Plans which periods come next, and reports the published ones to the group.

A period may be planned when it is below the limit and *ripe*: the places of its ends are certain. In a bounded replay they
always are. In a followed log an end is certain when the log has a record at or past it. If it has none, records of this period
may still come, and the clock decides: they are not waited for after the boundary plus the bound on lateness.
The same rule decides whether a partition is idle, or has passed the end of the run. Only a log that was read can show that: a
partition whose log was not read yet, such as after a restart, is unknown, and nothing is reported for it. The clock at the
moment of reading counts, because records may come while a job runs. Kafka does not notify anybody of new records, so a followed
log is read whenever the clock passes a boundary; nothing could be published before that.

Records that were found are remembered: the first record at or past a time stays the first. So the boundaries of the next batch
are looked up while the job of a batch runs. This decides nothing: the next batch is planned when its turn has come, under the
limit of that moment, and boundaries that are not remembered are looked up then. That a followed log has *no* record at or past
a time is never remembered, because it is true for the moment only.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aiokcc.core.limit import Limit, Mode
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import MAX_LIMIT, boundary_after
from aiokcc.errors import AiokccError
from aiokcc.spark.batch_sizer import BatchSizer
from aiokcc.spark.finder import Finder, Found
from aiokcc.spark.participant import Participant, Track
from aiokcc.spark.plan import MAX_INTENT, CrossedPeriod, Intent, Place, next_boundaries, starts_of
from aiokcc.spark.source import poison

__all__ = ["Plan", "Planner"]

log = logging.getLogger("aiokcc.spark")

MOST_BOUNDARIES: Final = 1000
"""The greatest number of periods in a batch, with those that have no records."""
MOST_PLACES: Final = MAX_INTENT // 2
"""The greatest number of places in an intent. A place takes at least two bytes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch, and for each partition the first record after it, if there is one."""

    intent: Intent
    upcoming: Mapping[Partition, Found | None] = field(default_factory=dict)
    as_of: Limit | None = None
    """The limit under which the ends of followed logs were read; None if no log was read and ``upcoming`` is not known."""


@dataclass(frozen=True, slots=True)
class _PartitionBoundaries:
    """The places of boundaries in one partition."""

    places: list[Place]
    found: list[Found | None]
    """For each boundary, the first record at or past the boundary plus the bound on lateness."""
    following: list[Found | None]
    """For each boundary, the first record at or past it."""


class Planner:
    """Keeps what is published, and plans what comes next."""

    def __init__(
        self,
        participant: Participant,
        finder: Finder,
        sizer: BatchSizer,
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
        self._sizer = sizer
        self._period = period
        self._end = end
        self._lateness = lateness
        self._most_late = max(lateness.values(), default=0)
        self._alone = alone
        """True if this driver runs all partitions of the group: then no other member holds the limit back."""
        self._clock = clock
        self._read_at = 0
        """The clock right before the logs were read last. Records that they did not have then may have come since."""
        self.published = start
        """Everything before this time is published."""
        self._unclosed: deque[CrossedPeriod] = deque()
        """Published periods whose ends the limit may not have passed."""
        self._remembered: dict[Partition, dict[int, Found | None]] = {}
        """For times past the published time, the first record at or past each; None if a bounded log has none."""

    # -- what is known --------------------------------------------------------------------------------------------------

    async def find_next_records(self, limit: Limit) -> None:
        """Find the next record of each partition whose next record is not known; at the end of a followed log, read again.

        Call it first in each round: the reports and the plan after it use the clock of this moment.
        """
        self._read_at = self._clock()
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
                # The rest is older than what is published, or has no records at all: it comes next all the same.
                track.next = Found(end, self.published)
            track.end_seen = limit if track.next is None else None

    def _learn(self, track: Track, found: Found | None) -> None:
        if found is not None and track.bounds.end is not None and found.offset >= track.bounds.end:
            found = None
        ceiling = self._clock() + self._participant.member.settings.ahead
        if found is not None and found.ts > ceiling:
            raise poison(found.ts, *track.partition, found.offset, ceiling)
        if found is not None and self._is_outside(track, found) and track.place.low < found.offset:
            found = Found(found.offset, self.published)  # late records are before it in the log: they come first
        track.next = found

    def _is_outside(self, track: Track, found: Found) -> bool:
        """Return whether this record and all after it lie at or past the run's end."""
        return self._end is not None and found.ts - self._lateness.get(track.partition.topic, 0) >= self._end

    def _next_ts(self, track: Track) -> int:
        """Return a time before which the partition has no unpublished record."""
        assert track.next is not None
        return max(self.published, track.next.ts - self._lateness.get(track.partition.topic, 0))

    def _is_due(self, boundary: int) -> bool:
        """Return whether the logs were read when records before this boundary were no longer waited for."""
        return self._read_at >= boundary + self._most_late

    def has_published_until(self, clock: int) -> bool:
        """Return whether no partition has an unpublished record in a period that was closed at this time by the clock.

        A period is closed when records of it are no longer waited for: at its end plus the bound on lateness. Records that come
        after its end and are older belong to a later period, unless nothing of the period is published yet.
        """
        boundary = max(0, clock - self._most_late) // self._period * self._period
        if self.published >= boundary:
            return True
        return all(
            track.is_finished
            or (track.end_seen is not None if track.next is None else self._next_ts(track) >= boundary)
            for track in self._participant.tracks.values()
        )

    def seconds_to_next_look(self) -> float | None:
        """Return how long until a boundary is due by the clock; None if no log is followed, or all are due up to the run's end.

        A boundary that has become due since the logs were read counts as well: they are read once more, soon.
        """
        if all(track.bounds.end is not None or track.is_finished for track in self._participant.tracks.values()):
            return None
        due = boundary_after(max(0, self._read_at - self._most_late), self._period)
        if self._end is not None:
            if self._is_due(self._end):
                return None
            due = min(due, self._end)
        return max(0.02, (due + self._most_late - self._clock()) / 1000)

    # -- reports --------------------------------------------------------------------------------------------------------

    def report(self, limit: Limit) -> None:
        """Report the position of each partition to the group."""
        participant, end = self._participant, self._end
        for track in participant.tracks.values():
            if track.is_finished:
                continue
            if track.is_complete or (end is not None and self._has_passed(track, end)):
                participant.report_finished(track)
            elif track.next is not None:
                participant.report_next(track, self._next_ts(track))
            elif limit.mode is Mode.GATED and self._is_due(limit.floor):
                participant.report_idle(track)
        participant.write_report()

    def _has_passed(self, track: Track, end: int) -> bool:
        """Return whether the partition has nothing left before the run's end; False if its log was not read."""
        if self.published >= end:
            return True
        if track.next is not None:
            return self._next_ts(track) >= end
        return track.end_seen is not None and self._is_due(end)

    def record_published(self, plan: Plan) -> None:
        """Record that a batch is published, and report where its boundaries were crossed."""
        for partition, place in plan.intent.positions().items():
            track = self._participant.tracks.get(partition)
            if track is not None:
                track.place = place
                self._learn(track, plan.upcoming.get(partition))
                track.end_seen = plan.as_of if track.next is None else None
        known = {period.end for period in self._unclosed}
        new = [period for period in plan.intent.crossed_periods() if period.end not in known]
        self._unclosed.extend(new)
        self.published = plan.intent.periods[-1][1]
        for partition, found in self._remembered.items():
            self._remembered[partition] = {ts: record for ts, record in found.items() if ts > self.published}
        self._participant.report_crossings(new)
        limit = self._participant.limit
        while self._unclosed and (limit.mode is not Mode.GATED or self._unclosed[0].end < limit.floor):
            self._unclosed.popleft()

    # -- what is next ---------------------------------------------------------------------------------------------------

    async def plan(self, number: int, limit: Limit) -> Plan | None:
        """Return the plan of the next batch; None while there is nothing that may be computed."""
        tracks = [track for track in self._participant.tracks.values() if not track.is_finished]
        times = [self._next_ts(track) for track in tracks if track.next is not None]
        if not times:
            return None
        wanted = self._wanted(len(tracks))
        boundaries = next_boundaries(self.published, min(times), self._period, limit.value, self._end, wanted)
        if not boundaries or (len(boundaries) < min(wanted, self._sizer.periods) and self._will_open_more(limit)):
            return None
        unsure = [track for track in tracks if track.bounds.end is None and not self._remembers(track, boundaries)]
        ends = await self._finder.ends(track.partition for track in unsure)
        located = await self._locate(tracks, boundaries, ends)
        boundaries = boundaries[: len(next(iter(located.values())).places)]
        ripe = self._ripe(boundaries, [located[p] for p in ends])
        if not ripe:
            return None
        intent = self._intent(number, limit, boundaries[:ripe], located)
        if intent is None:
            return None
        last = len(intent.periods) - 1
        return Plan(intent, {p: mine.following[last] for p, mine in located.items()}, limit)

    def _wanted(self, partitions: int) -> int:
        """Return how many boundaries to look up: more than the job may have, because empty periods cost it nothing."""
        periods = self._sizer.periods
        return 1 if periods == 1 else min(4 * periods, MOST_BOUNDARIES, max(1, MOST_PLACES // partitions))

    def _will_open_more(self, limit: Limit) -> bool:
        """Return whether to wait for a larger batch: the limit is about to move, and only this driver could hold it back."""
        return self._alone and limit.mode is Mode.GATED and limit.value != self._end and self._participant.has_arrived

    async def look_ahead(self, plan: Plan | None = None) -> None:
        """Look up the boundaries of the batch after this plan, or of the first one. A failure is ignored: planning meets it."""
        if not self._finder.looks_ahead:
            return
        published = self.published if plan is None else plan.intent.periods[-1][1]
        coming: dict[Partition, Found] = {}
        for partition, track in self._participant.tracks.items():
            found = track.next if plan is None else plan.upcoming.get(partition)
            if found is not None and not track.is_finished:
                coming[partition] = found
        if not coming:
            return
        least = min(found.ts - self._lateness.get(partition.topic, 0) for partition, found in coming.items())
        count = min(self._wanted(len(coming)), self._participant.member.settings.lookahead + 1)
        boundaries = next_boundaries(published, least, self._period, self._end or MAX_LIMIT, self._end, count)
        try:
            await self._across(coming, boundaries)
        except AiokccError as error:
            log.debug("could not look ahead: %r", error)

    # -- where boundaries lie -------------------------------------------------------------------------------------------

    def _remembers(self, track: Track, boundaries: Sequence[int]) -> bool:
        found = self._remembered.get(track.partition, {})
        late = self._lateness.get(track.partition.topic, 0)
        return all(boundary in found and boundary + late in found for boundary in boundaries)

    async def _across(
        self, known: Mapping[Partition, Found | None], boundaries: Sequence[int]
    ) -> tuple[dict[Partition, list[Found | None]], dict[Partition, list[Found | None]]]:
        """Return the first records at or past the boundaries, and those at or past boundaries plus the bound on lateness."""
        following = await self._find(known, boundaries)
        behind = following
        for late in sorted(set(self._lateness.values()) - {0}):
            mine = {p: found for p, found in known.items() if self._lateness.get(p.topic) == late}
            behind = {**behind, **await self._find(mine, [b + late for b in boundaries])}
        return following, behind

    async def _find(
        self, known: Mapping[Partition, Found | None], times: Sequence[int]
    ) -> dict[Partition, list[Found | None]]:
        """Return for each time, ascending, the first record at or past it. Only times that are not remembered are looked up."""
        remembered = {p: self._remembered.setdefault(p, {}) for p in known}
        new = {p: n for p, found in remembered.items() if (n := _first_missing(found, times)) is not None}
        answers: dict[Partition, list[Found | None]] = {
            p: [found.get(ts) for ts in times] for p, found in remembered.items()
        }
        if new:
            first = min(new.values())
            before = {p: answers[p][first - 1] if first else known[p] for p in new}
            for partition, found in (await self._finder.across(before, times[first:])).items():
                answers[partition][first:] = found
                is_bounded = self._participant.tracks[partition].bounds.end is not None
                remembered[partition].update(
                    (ts, record) for ts, record in zip(times[first:], found, strict=True) if is_bounded or record
                )
        return answers

    async def _locate(
        self, tracks: Sequence[Track], boundaries: Sequence[int], ends: Mapping[Partition, int]
    ) -> dict[Partition, _PartitionBoundaries]:
        following, behind = await self._across({track.partition: track.next for track in tracks}, boundaries)
        # Past the last record one boundary is enough: the next batch takes empty periods at the end of this one.
        count = min(len(boundaries), 1 + max(sum(map(bool, found)) for found in following.values()))
        result = {}
        for track in tracks:
            partition, place = track.partition, track.place
            # If neither is known, all boundaries were found, and the end does not matter.
            end = track.bounds.end if track.bounds.end is not None else ends.get(partition, place.low)
            places = []
            for low, high in zip(following[partition][:count], behind[partition][:count], strict=True):
                bottom = max(place.low, _within(low, track.bounds.end, end))
                place = Place(bottom, max(place.high, bottom, _within(high, track.bounds.end, end)))
                places.append(place)
            result[partition] = _PartitionBoundaries(places, behind[partition][:count], following[partition][:count])
        return result

    def _ripe(self, boundaries: Sequence[int], followed: Sequence[_PartitionBoundaries]) -> int:
        for n, boundary in enumerate(boundaries):
            if not self._is_due(boundary) and any(mine.found[n] is None for mine in followed):
                return n
        return len(boundaries)

    def _intent(
        self, number: int, limit: Limit, boundaries: Sequence[int], located: Mapping[Partition, _PartitionBoundaries]
    ) -> Intent | None:
        """Return the batch to record; None if it is too large for the store until the limit has passed published periods."""
        walked = [s for s in self._unclosed if limit.mode is Mode.GATED and s.end >= limit.floor]
        tracks = self._participant.tracks
        places: dict[Partition, tuple[Place, ...]] = {}
        for partition, track in tracks.items():
            before = (period.places.get(partition, track.place) for period in walked)
            mine = located.get(partition)  # a finished partition has none: it stays where it is
            after = [track.place] * len(boundaries) if mine is None else mine.places[: len(boundaries)]
            places[partition] = (*before, track.place, *after)
        starts = starts_of(boundaries, self.published, self._period)
        intent = Intent(
            number,
            tuple((period.start, period.end) for period in walked),
            tuple(zip(starts, boundaries, strict=True)),
            places,
        )
        intent = intent.shortened(self._sizer.count_fitting(intent.counts())).trimmed()
        while len(intent.encode()) > MAX_INTENT:
            if len(intent.periods) == 1:
                return None if intent.walked else intent
            intent = intent.shortened(len(intent.periods) // 2).trimmed()
        return intent


def _first_missing(found: Mapping[int, Found | None], times: Sequence[int]) -> int | None:
    return next((n for n, ts in enumerate(times) if ts not in found), None)


def _within(found: Found | None, bound: int | None, end: int) -> int:
    if found is None:
        return end
    return found.offset if bound is None else min(found.offset, bound)
