"""The driver as one member of the group: the gates of all its partitions, and the position of each of them.

Asynchronous consumers process record by record and wait in each partition's gate. A Spark driver processes batch by batch. When
a batch is published, it reports for all partitions at once: where each boundary was crossed, and the time of the next record.
So nothing waits in a gate here; the driver updates the member's progress and waits for the limit to move.

Every report stays true however late it is written: a crossing is the end of a published period, the next time is that of a
record in the log, and a partition is reported *idle* only if its log's end was read under the present limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import anyio

from aiokcc.core.limit import Limit, Mode
from aiokcc.core.marks import Span
from aiokcc.core.partition_progress import PartitionState
from aiokcc.core.partitions import Partition
from aiokcc.core.run import CUT_SLOTS, Bounds
from aiokcc.errors import (
    PartitionOwnedError,
    SessionLostError,
    StoreUnreachableError,
)
from aiokcc.exception_groups import unwrapped
from aiokcc.runtime.gate import Gate
from aiokcc.runtime.group import Group
from aiokcc.runtime.member import NoSession
from aiokcc.spark.finder import Found
from aiokcc.spark.plan import CrossedPeriod, Place
from aiokcc.stores.port import Session, SessionState, boottime

__all__ = ["Participant", "Track"]

log = logging.getLogger("aiokcc.spark")

_CLOSE_SECONDS = 5.0


@dataclass(slots=True)
class Track:
    """One partition: its gate, the place up to which it is published, and its next record."""

    gate: Gate
    bounds: Bounds
    place: Place
    """The end of what is published."""
    next: Found | None = None
    """The first record at or past the published time; None if the log ends there, or if it was not read yet."""
    end_seen: Limit | None = None
    """The limit under which the log was last read, if it had nothing behind the place; None if it has more or was not read."""

    @property
    def partition(self) -> Partition:
        """The partition."""
        return self.gate.partition

    @property
    def is_finished(self) -> bool:
        """True if the partition is reported as finished: it has no more records in this run."""
        return self.gate.progress.state is PartitionState.FINISHED

    @property
    def is_complete(self) -> bool:
        """True if everything that the run replays of the partition is published."""
        return self.bounds.end is not None and self.place.low >= self.bounds.end


class Participant:
    """The gates of one driver, which is one member of the group."""

    def __init__(self, group: Group, store_timeout: float) -> None:
        self.group = group
        self.member = group.membership
        self._progress = self.member.progress
        # Boundaries are reported without a delay: a batch crosses them all at once, and the next batch may take long.
        self._progress.milestone_interval = 0
        self._store_timeout = store_timeout
        self.tracks: dict[Partition, Track] = {}
        self._subscription = None if self.member.options.managed is None else self.member.options.managed.subscription
        self._asked = frozenset[Partition]()
        """The partitions whose locks this driver holds or is claiming."""

    # -- in a managed group ---------------------------------------------------------------------------------------------

    def whole(self, agreed: frozenset[Partition]) -> frozenset[Partition]:
        """Return all partitions of the pipeline that are in the agreed set. Only in a managed group."""
        assert self._subscription is not None
        return frozenset(filter(self._subscription.covers, agreed))

    @property
    def is_revoked(self) -> bool:
        """True if the leader has revoked one of our partitions."""
        return self.member.assigned is not None and not self._asked <= self.member.assigned

    @property
    def is_done(self) -> bool:
        """True if this driver has partitions and all of them are finished."""
        return bool(self.tracks) and all(track.is_finished for track in self.tracks.values())

    @property
    def unopened(self) -> frozenset[Partition]:
        """Partitions to open: they have joined the set, and in a managed group they are assigned to this driver."""
        if self._subscription is None:
            return self.group.partitions - self.tracks.keys()
        return (self.member.assigned or frozenset()) - self.tracks.keys()

    async def release(self) -> None:
        """Release all locks, those of finished partitions too, in one transaction. Call it when no job runs any more."""
        tracks, self.tracks, self._asked = self.tracks, {}, frozenset()
        async with unwrapped() as tasks:
            for partition in tracks:
                tasks.start_soon(self.member.release_partition, partition)

    async def wait_until_settled(self) -> None:
        """Return when a driver whose partitions are all finished may leave. In a managed group that is the end of the run."""
        if self._subscription is None:
            await self.member.settled()
            return
        while self._progress.limit.mode is Mode.GATED:
            self.check()
            await self.member.moved.wait()

    # -- gates ----------------------------------------------------------------------------------------------------------

    async def open(self, partitions: Iterable[Partition]) -> None:
        """Claim the locks of these partitions, all at once. Each partition is at the run's start until a batch is resumed.

        If one fails, or on cancelling, the locks that were claimed here are released.
        """
        gates = {p: self.group.gate(p.topic, p.number) for p in sorted(partitions)}
        for gate in gates.values():
            gate.mark = object  # each call gives another object: a job may take long and is no standstill
            gate.skips_closed = True  # the checkpoint records what is published
        self._asked |= gates.keys()
        opened: list[Gate] = []

        async def open_one(gate: Gate) -> None:
            opened.append(await gate.__aenter__())

        try:
            async with unwrapped() as opening:
                for gate in gates.values():
                    opening.start_soon(open_one, gate)
        except BaseException:
            await _close(opened)
            raise
        for partition, gate in gates.items():
            bounds = self.member.bounds[partition]
            self.tracks[partition] = Track(gate, bounds, Place(bounds.start, bounds.start))

    async def close(self) -> None:
        """Close all gates: finished partitions stay finished, the locks of the others are released.

        In a managed group all locks are released: the next driver cannot start without those of finished partitions.
        """
        if self._subscription is not None:
            with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                await self.release()
                await self.member.deregister()
            return
        tracks, self.tracks = self.tracks, {}
        await _close(track.gate for track in tracks.values())

    def leave_the_rest(self) -> None:
        """Note that this start has done its part, and that the next one claims the partitions again: no warning about them."""
        self.member.continues_later = True

    def check(self) -> None:
        """Raise the group's failure, or the error of a gate whose lock another member has taken."""
        if self.member.failure is not None:
            raise self.member.failure
        for track in self.tracks.values():
            if track.gate.failure is not None:
                raise track.gate.failure

    @property
    def limit(self) -> Limit:
        """The present limit, with all open boundaries."""
        return self._progress.limit

    @property
    def has_arrived(self) -> bool:
        """True if all partitions of this member have arrived at the limit: it then moves without any further report from us."""
        return self._progress.complete

    # -- the session ----------------------------------------------------------------------------------------------------

    async def session(self) -> Session:
        """Return the present session; wait while there is none. Raise StoreUnreachableError after ``store_timeout``."""
        with anyio.move_on_after(self._store_timeout):
            while True:
                self.check()
                session = self.member.session
                if not isinstance(session, NoSession) and session.state is not SessionState.LOST:
                    return session  # a lost session would refuse every call until the member has noticed
                await self.member.moved.wait()
        raise self._unreachable()

    def _unreachable(self) -> StoreUnreachableError:
        return StoreUnreachableError(
            f"there was no session with the store for {self._store_timeout:g} s. Nothing was skipped; start the replay again "
            f"when the store is back"
        )

    async def ready(self) -> None:
        """Return when a job may start: this driver owns all partitions, in a session that is confirmed.

        Raise PartitionOwnedError or StoreUnreachableError after ``store_timeout``.
        """
        with anyio.move_on_after(self._store_timeout):
            while True:
                self.check()
                session = self.member.session
                if all(track.gate.progress.owned or track.is_finished for track in self.tracks.values()):
                    if boottime() < session.stop_at:
                        return
                    try:
                        await self.member.confirm()
                        continue
                    except SessionLostError:
                        pass
                if self._progress.limit.mode is Mode.END:
                    return
                await self.member.moved.wait()
        missing = [p for p, track in self.tracks.items() if not (track.gate.progress.owned or track.is_finished)]
        if missing and not isinstance(self.member.session, NoSession):
            raise PartitionOwnedError(str(missing[0]), "another member", self._store_timeout)
        raise self._unreachable()

    async def moved(self, seconds: float | None) -> None:
        """Wait until the limit moves or another event of the group happens, at most for these seconds."""
        if seconds is None:
            await self.member.moved.wait()
            return
        try:
            async with asyncio.timeout(seconds):
                await self.member.moved.wait()
        except TimeoutError:
            pass

    # -- reports --------------------------------------------------------------------------------------------------------

    def report_crossings(self, periods: Sequence[CrossedPeriod]) -> None:
        """Report where the boundaries of published periods were crossed. The limit may be before or past them."""
        limit = self._progress.limit
        if limit.mode is not Mode.GATED:
            return
        periods = [period for period in periods if period.end >= limit.floor]
        # The store keeps CUT_SLOTS cuts. Nobody could read earlier ones, so the limit need not stop at those boundaries.
        reached = periods[-CUT_SLOTS - 1].end if len(periods) > CUT_SLOTS else 0
        for partition, track in self.tracks.items():
            if not track.is_finished:
                steps = [(ts, Span.of(*place)) for ts, place in _steps(partition, periods)]
                self._progress.walk(track.gate.progress, steps, reached)

    def report_next(self, track: Track, ts: int) -> None:
        """Report the time of a partition's next record; it may be below the limit."""
        progress, where = track.gate.progress, Span.of(*track.place)
        if progress.state is not PartitionState.BLOCKED or (progress.ts, progress.offset) != (ts, where):
            self._progress.approach(progress, ts, where)

    def report_idle(self, track: Track) -> None:
        """Report that a partition's log has no more records, if it was read under the present limit."""
        if track.end_seen is not None:
            self._progress.idle(track.gate.progress, track.end_seen, Span.of(*track.place))

    def report_finished(self, track: Track) -> None:
        """Report that a partition has no more records before the run's end."""
        self._progress.finish(track.gate.progress, Span.of(*track.place))

    def write_report(self) -> None:
        """Write the member's report, if the calls before have made one necessary."""
        self.member.report_if_due()


async def _close(gates: Iterable[Gate]) -> None:
    """Close gates all at once, also when cancelled; stop waiting after a few seconds if the store does not answer."""
    with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
        async with anyio.create_task_group() as tasks:
            for gate in gates:
                tasks.start_soon(gate.__aexit__, None, None, None)


def _steps(partition: Partition, periods: Sequence[CrossedPeriod]) -> list[tuple[int, Place]]:
    """Return the partition's crossings that differ from the one before, each as a time and a place.

    No record before the time is behind the place. The time is the start of the period that holds the next record. It serves as
    well as the record's own time to decide which boundary comes next, and it is known without a request.
    """
    result: list[tuple[int, Place]] = []
    for n, period in enumerate(periods):
        place = period.places.get(partition)
        if place is None:
            continue
        if n + 1 < len(periods):
            after = periods[n + 1]
            if after.places.get(partition) == place:
                continue  # no record in the next period: the crossing there holds for this one, too
            result.append((max(period.end, after.start), place))
        else:
            result.append((period.end, place))
    return result
