"""The member: this process's side of the group, with its gates and their progress.

The member outlives its sessions. Each of them is one :class:`~aiokcc.runtime.member_session.MemberSession`. A new session keeps
only the highest limit seen and the progress of the partitions. Between two sessions every gate is shut.

:mod:`aiokcc.kafka` and :mod:`aiokcc.spark` are built on it. They get it as ``Group.membership`` and use its public attributes
and methods; a :class:`~aiokcc.runtime.listener.Listener` receives its events.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio

from aiokcc.core import paths
from aiokcc.core.limit import Limit, Mode
from aiokcc.core.member_progress import MemberProgress
from aiokcc.core.partition_progress import PartitionState
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import SECONDS_END
from aiokcc.core.report_builder import milestone_interval
from aiokcc.errors import (
    MissingNodeError,
    NoNodeError,
    OutcomeUnknownError,
    PartitionError,
    PartitionRevoked,
    SessionLostError,
)
from aiokcc.runtime.gate_signal import wake_together
from aiokcc.runtime.leaving import deregister, handed_over, recorded
from aiokcc.runtime.measurements import Measurements
from aiokcc.runtime.member_session import MemberSession
from aiokcc.runtime.options import make_member_name
from aiokcc.runtime.progress_log import log_facts
from aiokcc.runtime.release_log import ReleaseLog
from aiokcc.runtime.signal import Signal
from aiokcc.runtime.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from aiokcc.core.report import Cut
    from aiokcc.core.run import Bounds
    from aiokcc.runtime.gate import Gate
    from aiokcc.runtime.listener import Listener
    from aiokcc.runtime.options import GroupOptions
    from aiokcc.stores.port import Session, Store

__all__ = ["Member", "NoSession"]

log = logging.getLogger("aiokcc.runtime")


class NoSession:
    """Takes the place of a session while there is none: no record may start."""

    stop_at: Final = float("-inf")


class Member:
    """One process of the group. :meth:`run` drives it; the gates and the layers that are built on the group use it."""

    def __init__(
        self,
        store: Store,
        options: GroupOptions,
        partitions: frozenset[Partition],
        resolve: Callable[[], Awaitable[Mapping[Partition, Bounds]]] | None = None,
    ) -> None:
        self.store = store
        self.options = options
        self.settings = replace(options.settings, partitions=partitions)
        """The settings that all members share. Its partitions are ours until we have joined, and then the agreed set."""
        self.name = options.member or make_member_name()
        self.clock = options.clock
        self._resolve = resolve
        self.assigned: frozenset[Partition] | None = None
        """The partitions assigned to us; None while this session has not read them, and in a group that is not managed."""
        self.leaving = False
        """True once we leave the managed group: partitions that we release go to other members at once."""
        self._kept: set[Partition] = set()
        """Revoked partitions whose gates are closed and whose locks are held until their tasks have ended."""
        self.released_unfinished: set[Partition] = set()
        """Partitions that we have released before they finished and have not opened again."""
        self.continues_later = False
        """True once a scheduled run has done its part: that it releases unfinished partitions is then no reason to warn."""
        self.bounds: Mapping[Partition, Bounds] = {}
        """The offsets that the run replays, as the founder resolved them; empty if the caller brings the records."""
        self.founded = 0
        """The time when the run was founded, in milliseconds since the epoch on the store's clock. It identifies the run."""
        self.progress = MemberProgress(
            milestone_interval=milestone_interval(self.settings.period, self.settings.lookahead)
        )
        self.progress.chain_period = 0 if self.settings.max_apart is None else self.settings.period
        self.waits = Waits()
        """Measures how long this process waited for the limit, without lookahead."""
        self.gates: dict[Partition, Gate] = {}
        self.session: Session | NoSession = NoSession()
        self.member_session: MemberSession | None = None
        self.failure: Exception | None = None
        self.release_log = ReleaseLog(self)
        self.warned_of_seconds = False
        """True once we have warned of timestamps that look like seconds."""
        self.listeners: tuple[Listener, ...] = ()
        self.closed = 0
        """The number of boundaries that have closed since we joined, also if we saw several at once."""
        self.version: int | None = None
        """The version of the limit that we have seen last."""
        self.sessions_lost = 0
        self.rebalances = 0
        """The number of changes of our assignment, in a managed group."""
        self._waited: dict[Partition, float] = {}
        """The seconds that partitions have waited at gates that were closed since."""
        self.measurements = Measurements({"group": store.root.strip("/"), "member": self.name})
        self.moved = Signal()
        """Set when the limit, the agreed set, the assignment, the locks or the session have changed. One task waits for it."""

    @property
    def gate_wait(self) -> dict[Partition, float]:
        """The seconds that each of our partitions has waited at its gate, as far as the waits have ended."""
        return {**self._waited, **{p: self._waited.get(p, 0.0) + gate.waited for p, gate in self.gates.items()}}

    def _drop_gate(self, partition: Partition) -> None:
        gate = self.gates.pop(partition, None)
        if gate is not None:
            self._waited[partition] = self._waited.get(partition, 0.0) + gate.waited

    def add_listener(self, listener: Listener) -> None:
        """Notifies this listener from now on."""
        self.listeners = (*self.listeners, listener)

    def remove_listener(self, listener: Listener) -> None:
        """Notifies this listener no longer. Does nothing if it was removed already."""
        self.listeners = tuple(other for other in self.listeners if other is not listener)

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Joins, takes part, and joins again after a lost session, until the run ends, it fails, or it is cancelled."""
        first = True
        try:
            while first or (self.progress.limit.mode is not Mode.END and not self.leaving):
                timeout, connect_timeout = self.options.session_timeout, self.options.connect_timeout if first else None
                async with self.store.session(timeout=timeout, connect_timeout=connect_timeout) as session:
                    member_session = self._member_session(session)
                    try:
                        await member_session.join(first=first)
                        self.begin(member_session)
                        if first:
                            task_status.started()
                            first = False
                        await member_session.run()
                    except (SessionLostError, OutcomeUnknownError) as error:  # a new session is always safe
                        self.sessions_lost += 1
                        facts = log_facts(self)
                        log.warning("%s: %s; joining again", member_session.name, error, extra=facts)
                    finally:
                        self._end()
        except NoNodeError as error:
            missing = MissingNodeError(self.store.describe(error.path))
            self.fail(missing)
            if first:
                raise missing from error
        except Exception as error:  # a clock of the user's may raise anything
            self.fail(error)
            if first:
                raise

    def _member_session(self, session: Session) -> MemberSession:
        """Returns our side of a new session. A process that shares the session of its host overrides it."""
        return MemberSession(self, session)

    async def resolve(self) -> Mapping[Partition, Bounds]:
        """Returns the offsets to replay. Only the founder of the group calls it."""
        return {} if self._resolve is None else await self._resolve()

    def see_agreed_set(self, partitions: frozenset[Partition], bounds: Mapping[Partition, Bounds]) -> None:
        """Takes the agreed set and the offsets to replay, as they were read."""
        changed = self.settings.partitions != partitions
        self.settings = replace(self.settings, partitions=partitions)
        self.bounds = bounds
        if changed:
            self.moved.set()
            for listener in self.listeners:
                listener.set_changed()

    def begin(self, member_session: MemberSession) -> None:
        """Takes part in this session from now on."""
        self.member_session = member_session
        self.session = member_session.session
        for gate in self.gates.values():
            gate.session = self.session
        self.moved.set()  # locks may be free now

    def _end(self) -> None:
        if not isinstance(self.session, NoSession):
            self.measurements.session_over(self.session)
        self.member_session = None
        self.session = NoSession()
        self.assigned = None
        self.progress.lose()
        self._kept.clear()
        for gate in self.gates.values():
            gate.session = self.session
        if self.leaving:
            self.moved.set()  # there is no next session

    def leave(self) -> None:
        """Leaves the managed group: the next release deletes our registration as well."""
        self.leaving = self.options.managed is not None

    async def deregister(self) -> None:
        """Deletes our registration if we leave, unless it went with the locks: the leader assigns nothing to us any more."""
        await deregister(self)

    async def handed_over(self) -> None:
        """Waits, if we lead and have left, until our partitions are assigned to others: a new leader would need longer."""
        await handed_over(self)

    def see_assignment(self, assigned: frozenset[Partition]) -> None:
        """Takes the partitions assigned to us, as this session has read them."""
        if assigned != self.assigned:
            self.assigned = assigned
            self.rebalances += 1
            self.moved.set()
            for listener in self.listeners:
                listener.assignment_changed()
        if self.member_session is not None:
            self.member_session.ownership.claim_needed.set()

    def fail(self, error: Exception) -> None:
        """Makes every gate raise the error: the group cannot go on."""
        self.failure = error
        for gate in self.gates.values():
            gate.failure = error
            gate.signal.set()
        self.moved.set()

    # -- gates --------------------------------------------------------------------------------------------------------

    async def open(self, gate: Gate) -> None:
        """Claims the partition's lock. Returns once we hold it and have read the limit after that.

        Raises PartitionOwnedError if another member does not release it in time, PartitionRevoked if it is not assigned to us.
        Cancelling releases the lock.
        """
        partition = gate.partition
        if partition in self.gates or partition in self.progress.partitions:
            raise PartitionError(f"{partition} is open in this member already; each partition has one gate")
        if self.failure is not None:
            raise self.failure
        if self.assigned is not None and partition not in self.assigned:
            raise PartitionRevoked(f"{partition} is not assigned to {self.name} at present")
        self.gates[partition] = gate
        self._kept.discard(partition)
        self.released_unfinished.discard(partition)
        gate.progress = self.progress.add(partition)
        gate.progress.skips_closed = gate.skips_closed
        if not gate.skips_closed and (self.settings.start or 0) >= SECONDS_END:
            # In the first period every timestamp is open. One in seconds lies before the start and is looked at more closely.
            gate.progress.late_below = max(gate.progress.late_below, SECONDS_END)
        gate.session = self.session
        if self.member_session is not None:
            self.member_session.ownership.claim_needed.set()
        try:
            while not gate.progress.owned and self.progress.limit.mode is not Mode.END:
                if gate.failure is not None:
                    raise gate.failure
                await gate.signal.wait()
        except BaseException:
            if gate.progress.owned and self.member_session is not None:
                self.member_session.ownership.start_release(partition)
            self._forget_gate(gate)
            raise

    async def close(self, gate: Gate) -> None:
        """Releases the partition, unless it has finished: then its report must stay until a cut holds it."""
        if self.gates.get(gate.partition) is not gate:
            return
        if gate.progress.state is PartitionState.FINISHED and gate.failure is None:
            self._drop_gate(gate.partition)
            return
        if gate.failure is None and self.progress.limit.mode is Mode.GATED:
            self.released_unfinished.add(gate.partition)
            self.release_log.add(gate.partition)
        self._forget_gate(gate)
        gate.signal.set()  # another task may wait there; it gets an error
        if gate.keeps_lock:
            self._kept.add(gate.partition)
        elif self.member_session is not None:
            await self.member_session.ownership.release(gate.partition)

    def revoke(self, gate: Gate, *, keeps_lock: bool = False) -> None:
        """Starts no further record on this partition: its gate raises PartitionRevoked.

        ``keeps_lock``: closing the gate does not release the lock; the caller does, by :meth:`release_kept`.
        """
        gate.failure = gate.failure or PartitionRevoked(
            f"{gate.partition} was revoked: this member starts no further record on it"
        )
        gate.keeps_lock = keeps_lock
        self.forget(gate.partition)
        gate.signal.set()

    def release_kept(self, partition: Partition) -> None:
        """Starts to release the lock of a revoked partition whose gate was closed, if its gate has kept the lock."""
        if partition in self._kept:
            self._kept.discard(partition)
            if self.member_session is not None and self.member_session.ownership.holds(partition):
                self.member_session.ownership.start_release(partition)

    async def release_gate(self, gate: Gate) -> None:
        """Releases a revoked partition's lock, now that nothing runs on it."""
        if self.gates.get(gate.partition) is gate:
            self._forget_gate(gate)
            if self.member_session is not None:
                await self.member_session.ownership.release(gate.partition)

    async def release_partition(self, partition: Partition) -> None:
        """Releases a partition on which nothing runs any more, also one that has finished and whose gate is closed.

        Returns when it is released, also if the release has begun before.
        """
        ownership = None if self.member_session is None else self.member_session.ownership
        is_known = partition in self.progress.partitions
        if is_known:
            self._drop_gate(partition)
            self.forget(partition)
        if ownership is not None and (is_known or ownership.is_releasing(partition)):
            await ownership.release(partition)

    async def release_all(self) -> None:
        """Forgets and releases all partitions, finished ones too: their records were not processed after all."""
        partitions = list(self.progress.partitions)
        for partition in partitions:
            self._drop_gate(partition)
            self.progress.forget(partition)
        if self.member_session is not None:
            for partition in partitions:
                await self.member_session.ownership.release(partition)

    def _forget_gate(self, gate: Gate) -> None:
        self._drop_gate(gate.partition)
        self.forget(gate.partition)

    def forget(self, partition: Partition) -> None:
        """Forgets a partition. The report may be due without it."""
        self.progress.forget(partition)
        if self.member_session is not None:
            self.member_session.own_report.leave_to_task()  # a release that follows has it in its transaction
        self.report_if_due()
        self.moved.set()

    def report_if_due(self) -> None:
        """Reports now or soon, if it is time. Called whenever the progress has changed."""
        member_progress = self.progress
        withheld = member_progress.withheld_from is not None
        if member_progress.missing and not member_progress.overdue and not withheld:
            return  # the usual case, faster: a report needs all partitions
        if withheld and (member_progress.has_arrived or member_progress.limit.mode is Mode.OPEN):
            for listener in self.listeners:
                listener.all_arrived()
        if not self.settings.lookahead and member_progress.ready:
            self.waits.begin(time.perf_counter())
        if self.member_session is not None:
            self.member_session.own_report.update()

    def claimed(self, partitions: list[Partition], holder: str, cut: Cut | None) -> None:
        """Notes that the member session ``holder`` holds these locks and has read the limit and the last cut since."""
        self.progress.claim(partitions, holder, cut)
        for partition in partitions:
            gate = self.gates.get(partition)
            if gate is not None:
                gate.signal.set()
        self.moved.set()  # a task may wait for locks that were lost with a session
        self.report_if_due()

    async def confirm(self) -> None:
        """Reads from the store: an answer proves that the session is alive, and moves its deadline. Raises SessionLostError."""
        if isinstance(self.session, NoSession):
            raise SessionLostError("there is no session at present")
        node = await self.session.find(paths.COORDINATOR)
        if node is None:
            raise MissingNodeError(self.store.describe(paths.COORDINATOR))
        self.see(Limit.decode(self.store.describe(node.path), node.data), node.version)

    # -- the limit ----------------------------------------------------------------------------------------------------

    def see(self, limit: Limit, version: int) -> None:
        """Takes a limit that was read, at this version of its node, and wakes the tasks for which it changes something."""
        if not self.accepts(limit, version):
            return
        before = self.progress.limit
        closing: dict[Partition, int] = {}
        if self.listeners and self.progress.has_arrived:
            boundary = max((b for b in before.boundaries if b < limit.floor), default=before.floor)
            closing = self.progress.positions(boundary if limit.mode is Mode.GATED else before.floor)
        said = None if self.settings.lookahead else self.progress.report()
        if not self.progress.see(limit):
            if self.version is not None and limit == before:  # the same limit was written again
                self.version = max(self.version, version)
            return
        if self.version is not None:
            # Each version is one step, and we may see several at once. Neither the first step, to where anybody has a
            # record, nor a release closes a boundary.
            closed = max(0, version - self.version - (before.floor == 0) - (limit.mode is Mode.OPEN))
            self.closed += closed
            self.measurements.limit_moved(closed)
        self.version = version
        if not self.settings.lookahead:
            counts = said is not None and not said.idle and 0 < before.floor <= self.clock()
            self.waits.end(time.perf_counter(), counts=counts)  # uvloop's own clock counts whole milliseconds
        for listener in self.listeners:
            listener.limit_moved(closing)
        if self.member_session is not None:
            self.member_session.limit_moved()
        running, over = PartitionState.RUNNING, limit.mode is Mode.END
        wake_together(
            [gate.signal for gate in self.gates.values() if over or (gate.busy and gate.progress.state is running)]
        )
        self.moved.set()
        self.report_if_due()

    def accepts(self, limit: Limit, version: int) -> bool:
        """Returns whether the leader can have written this limit, at this version of its node; logs an error if not.

        A stale read is an older version. A newer one with a lower limit, or with fewer boundaries than the run has, was cut
        short by somebody else: we keep to what we know until the node is right again.
        """
        lower = self.version is not None and version > self.version and limit.precedes(self.progress.limit)
        settings = self.settings
        if not lower and limit.fits(settings.lookahead, settings.end, least=None if settings.max_apart is None else 0):
            return True
        if self.version is None or version > self.version:
            where, text = self.store.describe(paths.COORDINATOR), limit.encode().decode()
            number = f"{'' if settings.max_apart is None else 'at most '}{settings.lookahead + 1}"
            what = "lies below the one before" if lower else f"has not the {number} boundaries of this run"
            log.error("%s holds '%s', a limit that %s; it does not count", where, text, what)
        if self.version is not None:
            self.version = max(self.version, version)
        return False

    async def settled(self) -> None:
        """Waits until a cut holds our finished partitions, so that the group does not need this process any more.

        Returns early if no such cut can come, because a partition that we released has no next owner.
        """
        await recorded(self)
