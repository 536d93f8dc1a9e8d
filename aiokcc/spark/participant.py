"""The driver's place in the group: one member, with the gates of all its partitions, and where each of them stands.

Asynchronous consumers walk record by record and wait in each partition's gate. A Spark driver walks batch by batch, and what
it has to say it says for all partitions at once, when a batch is published: where each boundary was crossed, and which time
comes next. So nothing waits in a gate here; the driver tells the member's member's progress, and waits for the limit to move.

Everything told is true however late it is told: a crossing is where a published period ends, the next time is that of a record
that stands in the log, and *idle* is said only of an end that was read under the present limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import anyio

from aiokcc.core.limit import Limit, Mode
from aiokcc.core.partition_progress import PartitionState
from aiokcc.core.partitions import Partition
from aiokcc.core.report import Span
from aiokcc.core.run import CUT_SLOTS, Bounds
from aiokcc.errors import (
    NoNodeError,
    OutcomeUnknownError,
    PartitionOwnedError,
    SessionLostError,
    StoreUnreachableError,
)
from aiokcc.kafka.partition_tasks import unwrapped
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
    """One partition: what is published of it, and what comes next."""

    gate: Gate
    bounds: Bounds
    place: Place
    """Where what is published ends."""
    next: Found | None = None
    """The first record at or past the published time; None if none is known: the log ends there, or it was not read yet."""
    end_seen: Limit | None = None
    """The limit under which the log was last read, and nothing stood behind the place; None if it was not read, or has more."""

    @property
    def partition(self) -> Partition:
        """Which one."""
        return self.gate.partition

    @property
    def is_finished(self) -> bool:
        """Whether it will bring nothing more."""
        return self.gate.progress.state is PartitionState.FINISHED

    @property
    def is_complete(self) -> bool:
        """Whether all that the run replays of it is published."""
        return self.bounds.end is not None and self.place.low >= self.bounds.end


class Participant:
    """The gates of one driver, as one member of the group."""

    def __init__(self, group: Group, store_timeout: float) -> None:
        self.group = group
        self.member = group._member
        self._progress = self.member.progress
        # What a batch has brought is told at once: it comes in one go, and then nothing for long.
        self._progress.milestone_interval = 0
        self._store_timeout = store_timeout
        self.tracks: dict[Partition, Track] = {}
        self._subscription = None if self.member.group is None else self.member.group.subscription
        self._asked = frozenset[Partition]()
        """The partitions whose locks we have, or are about to take."""

    # -- in a managed group ---------------------------------------------------------------------------------------------

    def whole(self, agreed: frozenset[Partition]) -> frozenset[Partition]:
        """All partitions of the pipeline, of a managed group's agreed set."""
        assert self._subscription is not None
        return frozenset(filter(self._subscription.covers, agreed))

    @property
    def is_revoked(self) -> bool:
        """Whether one of our partitions has been taken away."""
        return self.member.assigned is not None and not self._asked <= self.member.assigned

    @property
    def is_done(self) -> bool:
        """Whether we run partitions, and all of them will bring nothing more."""
        return bool(self.tracks) and all(track.is_finished for track in self.tracks.values())

    @property
    def unopened(self) -> frozenset[Partition]:
        """Partitions that are to be run as well: they have joined the set, and in a managed group they are given to us."""
        if self._subscription is None:
            return self.group.partitions - self.tracks.keys()
        return (self.member.assigned or frozenset()) - self.tracks.keys()

    async def release(self) -> None:
        """Nothing runs any more: give the locks back, finished partitions too, in one transaction."""
        tracks, self.tracks, self._asked = self.tracks, {}, frozenset()
        async with unwrapped() as tasks:
            for partition in tracks:
                tasks.start_soon(self.member.release_partition, partition)

    async def wait_until_settled(self) -> None:
        """All of ours is done: return when we may leave. In a managed group that is the end of the run, as for all."""
        if self._subscription is None:
            await self.member.settled()
            return
        while self._progress.limit.mode is Mode.GATED:
            self.check()
            await self.member.moved.wait()

    # -- gates ----------------------------------------------------------------------------------------------------------

    async def open(self, partitions: Iterable[Partition]) -> None:
        """Take the locks of these partitions, side by side. They stand at the run's start until something else is known."""
        gates = {p: self.group.gate(p.topic, p.number) for p in sorted(partitions)}
        for gate in gates.values():
            gate.mark = object  # never twice the same: a job may take long, and does not stand still
            gate.skips_closed = True  # what is published is recorded elsewhere
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
        """Close all gates: finished ones keep their word, the others are given up.

        In a managed group all are: the next driver needs the finished ones too, or it could not start.
        """
        if self._subscription is not None:
            with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                await self.release()
                await self._deregister()
            return
        tracks, self.tracks = self.tracks, {}
        await _close(track.gate for track in tracks.values())

    async def _deregister(self) -> None:
        """If we leave the group: say so, unless that has gone with the locks. Else we might still be given something."""
        member_session = self.member.member_session
        share = None if member_session is None else member_session.assignment_follower
        if member_session is None or share is None:
            return
        try:
            for operation in share.deregistration():
                await member_session.session.commit(operation)
        except (NoNodeError, SessionLostError, OutcomeUnknownError):
            pass  # gone already, or with the session: it ends with the block at the latest
        share.deregistered = self.member.leaving

    def check(self) -> None:
        """Raise what stands in the way of going on: the group's failure, or a lock that is lost to somebody else."""
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
        """Whether everybody here has arrived: then the limit moves without our doing anything more."""
        return self._progress.complete

    # -- the session ----------------------------------------------------------------------------------------------------

    async def session(self) -> Session:
        """The present session; waits while there is none. StoreUnreachableError if that takes too long."""
        with anyio.move_on_after(self._store_timeout):
            while True:
                self.check()
                session = self.member.session
                if not isinstance(session, NoSession) and session.state is not SessionState.LOST:
                    return session  # one that is lost would refuse at once, and again, before the member has noticed
                await self.member.moved.wait()
        raise self._unreachable()

    def _unreachable(self) -> StoreUnreachableError:
        return StoreUnreachableError(
            f"there was no session with the store for {self._store_timeout:g} s. Nothing was skipped; start the replay again "
            f"when the store is back"
        )

    async def ready(self) -> None:
        """Return once a job may start: we hold all locks, in a session that can be relied on."""
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
        """Wait until the limit has moved or something else has happened, or for so long."""
        if seconds is None:
            await self.member.moved.wait()
            return
        try:
            async with asyncio.timeout(seconds):
                await self.member.moved.wait()
        except TimeoutError:
            pass

    # -- what is said ---------------------------------------------------------------------------------------------------

    def report_crossings(self, stretches: Sequence[CrossedPeriod]) -> None:
        """Say where the boundaries of published periods were crossed. The gate may be behind them, or ahead."""
        limit = self._progress.limit
        if limit.mode is not Mode.GATED:
            return
        stretches = [stretch for stretch in stretches if stretch.end >= limit.floor]
        # The store keeps so many cuts. Those before them nobody could read: there the limit need not stop for our sake.
        reached = stretches[-CUT_SLOTS - 1].end if len(stretches) > CUT_SLOTS else 0
        for partition, track in self.tracks.items():
            if not track.is_finished:
                steps = [(ts, Span.of(*place)) for ts, place in _steps(partition, stretches)]
                self._progress.walk(track.gate.progress, steps, reached)

    def report_next(self, track: Track, ts: int) -> None:
        """Say that a partition's next record is of this time; it may lie below the limit."""
        progress, where = track.gate.progress, Span.of(*track.place)
        if progress.state is not PartitionState.BLOCKED or (progress.ts, progress.offset) != (ts, where):
            self._progress.approach(progress, ts, where)

    def report_idle(self, track: Track) -> None:
        """Say that a partition's log holds nothing more, if that was looked up under the present limit."""
        if track.end_seen is not None:
            self._progress.idle(track.gate.progress, track.end_seen, Span.of(*track.place))

    def report_finished(self, track: Track) -> None:
        """Say that a partition brings nothing more before the run's end."""
        self._progress.finish(track.gate.progress, Span.of(*track.place))

    def write_report(self) -> None:
        """All has been said: if that makes a report, it is written."""
        self.member.report_if_due()


async def _close(gates: Iterable[Gate]) -> None:
    """Close gates side by side, also where we are being cancelled; a store that is away does not keep us."""
    with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
        async with anyio.create_task_group() as tasks:
            for gate in gates:
                tasks.start_soon(gate.__aexit__, None, None, None)


def _steps(partition: Partition, stretches: Sequence[CrossedPeriod]) -> list[tuple[int, Place]]:
    """For each crossing that differs from the one before: no record of the partition is left before that time, and where.

    The time is where the period of the next record starts. It is as good as the record's own for deciding which boundary
    comes next, and it is known without asking.
    """
    result: list[tuple[int, Place]] = []
    for n, stretch in enumerate(stretches):
        place = stretch.places.get(partition)
        if place is None:
            continue
        if n + 1 < len(stretches):
            after = stretches[n + 1]
            if after.places.get(partition) == place:
                continue  # nothing of it in the next period: the crossing there holds for this one too
            result.append((max(stretch.end, after.start), place))
        else:
            result.append((stretch.end, place))
    return result
