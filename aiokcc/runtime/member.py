"""This process's side of the group: its gates, what they have said, and the session it says it in.

The member outlives its sessions. Each of them is one :class:`~aiokcc.runtime.member_session.MemberSession`. The next one keeps
only the highest limit seen and what the partitions themselves know. Between two sessions every gate is shut.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

import anyio

from aiokcc.core import paths
from aiokcc.core.limit import Limit, Mode
from aiokcc.core.member_progress import MemberProgress, milestone_interval
from aiokcc.core.partition_progress import PartitionState
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import SECONDS_END
from aiokcc.errors import (
    MissingNodeError,
    NoNodeError,
    OutcomeUnknownError,
    PartitionError,
    PartitionRevoked,
    SessionLostError,
)
from aiokcc.runtime.leaving import recorded
from aiokcc.runtime.member_session import MemberSession
from aiokcc.runtime.signal import Signal
from aiokcc.runtime.timer import Timeout, timers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from typing import Any

    from aiokcc.core.group_settings import GroupSettings
    from aiokcc.core.report import Cut
    from aiokcc.core.run import Bounds, Settings
    from aiokcc.runtime.gate import Gate
    from aiokcc.stores.port import Session, Store

__all__ = ["Member", "NoSession"]

log = logging.getLogger("aiokcc.member")


_HANDOVER_SECONDS: Final = 2.0
_GATHER_SECONDS: Final = 0.5


class NoSession:
    """Stands in a gate where there is no session: nothing that depends on one may start."""

    stop_at: Final = float("-inf")


class Member:
    """One process of the group. Driven by :meth:`run`; used by the gates."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        name: str,
        *,
        session_timeout: float,
        connect_timeout: float,
        claim_timeout: float | None,
        clock: Callable[[], int],
        resolve: Callable[[], Awaitable[Mapping[Partition, Bounds]]] | None = None,
        grows: bool = False,
        newer: Literal["partitions", "topics"] | None = None,
        group: GroupSettings | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.name = name
        self.session_timeout = session_timeout
        self.connect_timeout = connect_timeout
        self.claim_timeout = claim_timeout
        self.clock = clock
        self._resolve = resolve
        self.grows = grows
        """Whether the agreed set may be larger or smaller than the one we bring: it grows while the group runs."""
        self.newer = newer
        """What we bring and the agreed set lacks may be newer than the run: partitions of its topics, or topics as well."""
        self.group = group
        """What we bring to a managed group; None where everybody says for himself which partitions he runs."""
        self.assigned: frozenset[Partition] | None = None
        """What is given to us; None while this session has not read it. Only in a managed group."""
        self.on_assigned: Callable[[], None] | None = None
        """Called when that has changed."""
        self.leaving = False
        """Whether we take part in the managed group no longer: what we give back goes to others at once."""
        self.released_unfinished: set[Partition] = set()
        """Partitions that we have given up before they had finished, and have not opened again."""
        self.on_set: Callable[[], None] | None = None
        """Called when the agreed set has grown."""
        self.bounds: Mapping[Partition, Bounds] = {}
        """What of each log the run replays, as the founder resolved it; empty where the caller brings the records."""
        self.founded = 0
        """When the run was founded, in milliseconds since the epoch on the store's clock: it tells this run from others."""
        self.progress = MemberProgress(milestone_interval=milestone_interval(settings.period, settings.lookahead))
        self.gates: dict[Partition, Gate] = {}
        self.session: Session | NoSession = NoSession()
        self.member_session: MemberSession | None = None
        self.failure: Exception | None = None
        self._releases_to_log: list[Partition] = []
        self._release_log_timer: Timeout | None = None
        self.warned_of_seconds = False
        """Whether we have warned of timestamps that look like seconds."""
        self.on_complete: Callable[[], None] | None = None
        """Called when every partition has arrived, but what they brought is withheld."""
        self.on_close: Callable[[dict[Partition, int]], None] | None = None
        """Called when the limit has moved, with where the boundary lies in each of our partitions, if all had arrived."""
        self.on_claim: Callable[[Session, list[Partition]], Coroutine[Any, Any, None]] | None = None
        """Called with locks that we have just taken, while the limit is read: for what else is to be read before they begin."""
        self.closed = 0
        """How many boundaries have closed since we joined, whether we saw each of them or several at once."""
        self.version: int | None = None
        """Of the limit we have seen last."""
        self.moved = Signal()
        """Set whenever the limit has moved or we have joined again: for the one task that waits for the end."""

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Join, take part, and join again after a lost session, until cancelled or failed for good."""
        first = True
        try:
            while first or (self.progress.limit.mode is not Mode.END and not self.leaving):
                connect_timeout = self.connect_timeout if first else None
                async with self.store.session(timeout=self.session_timeout, connect_timeout=connect_timeout) as session:
                    member_session = MemberSession(self, session)
                    try:
                        await member_session.join(first=first)
                        self._begin(member_session)
                        if first:
                            task_status.started()
                            first = False
                        await member_session.run()
                    except (SessionLostError, OutcomeUnknownError) as error:  # a new session is always a safe way on
                        log.warning("%s: %s; joining again", member_session.name, error)
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

    async def resolve(self) -> Mapping[Partition, Bounds]:
        """Asked of the founder only: what of each log is to be replayed."""
        return {} if self._resolve is None else await self._resolve()

    def see_agreed_set(self, partitions: frozenset[Partition], bounds: Mapping[Partition, Bounds]) -> None:
        """The agreed set, and what of each log is replayed."""
        changed = self.settings.partitions != partitions
        self.settings = replace(self.settings, partitions=partitions)
        self.bounds = bounds
        if changed and self.on_set is not None:
            self.on_set()

    def _begin(self, member_session: MemberSession) -> None:
        self.member_session = member_session
        self.session = member_session.session
        for gate in self.gates.values():
            gate.session = self.session
        self.moved.set()  # in a new session what was not to be had may be had

    def _end(self) -> None:
        self.member_session = None
        self.session = NoSession()
        self.assigned = None
        self.progress.lose()
        for gate in self.gates.values():
            gate.session = self.session
        if self.leaving:
            self.moved.set()  # no other session follows

    def leave(self) -> None:
        """Take part in the managed group no longer: with what we give back next goes our registration."""
        self.leaving = self.group is not None

    async def handed_over(self) -> None:
        """We have left. If we lead, stay until what we had is given to others: a successor would first have to take office."""
        term = None if self.member_session is None else self.member_session.term
        if self.leaving and term is not None and term.assignment_leader is not None:
            with anyio.move_on_after(_HANDOVER_SECONDS):
                await term.assignment_leader.handed_over()

    def see_assignment(self, assigned: frozenset[Partition]) -> None:
        """What is given to us, as this session has read it."""
        if assigned != self.assigned:
            self.assigned = assigned
            self.moved.set()
            if self.on_assigned is not None:
                self.on_assigned()
        if self.member_session is not None:
            self.member_session.ownership.claim_needed.set()

    def fail(self, error: Exception) -> None:
        """Nothing more can be agreed on: every gate raises the error."""
        self.failure = error
        for gate in self.gates.values():
            gate.failure = error
            gate.signal.set()
        self.moved.set()

    # -- gates --------------------------------------------------------------------------------------------------------

    async def open(self, gate: Gate) -> None:
        """Take the partition's lock; return once we hold it and have read the limit after that."""
        partition = gate.partition
        if partition in self.gates or partition in self.progress.partitions:
            raise PartitionError(f"{partition} is open in this member already; each partition has one gate")
        if self.failure is not None:
            raise self.failure
        if self.assigned is not None and partition not in self.assigned:
            raise PartitionRevoked(f"{partition} is not assigned to {self.name} at present")
        self.gates[partition] = gate
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
        """Give the partition up, unless it has finished: then what it said must stand until a cut holds it."""
        if self.gates.get(gate.partition) is not gate:
            return
        if gate.progress.state is PartitionState.FINISHED and gate.failure is None:
            del self.gates[gate.partition]
            return
        if gate.failure is None and self.progress.limit.mode is Mode.GATED:
            self.released_unfinished.add(gate.partition)
            self._releases_to_log.append(gate.partition)
            if self._release_log_timer is None:
                self._release_log_timer = timers().call_later(_GATHER_SECONDS, self.log_releases)
        self._forget_gate(gate)
        gate.signal.set()  # another task may wait there, for nothing now
        if self.member_session is not None:
            await self.member_session.ownership.release(gate.partition)

    def log_releases(self) -> None:
        """Log which partitions were given up before they had finished: one line for all that were at about the same time."""
        released = sorted({p for p in self._releases_to_log if p not in self.gates})
        self.discard_release_log()
        if released:
            one = len(released) == 1
            log.log(
                logging.WARNING if self.group is None else logging.INFO,  # where the next owner is a matter of course
                "%s: %s released before %s had finished; the limit waits for %s",
                self.name,
                f"{released[0]} was" if one else f"{', '.join(map(str, released))} were",
                "it" if one else "they",
                "its next owner" if one else "their next owners",
            )

    def discard_release_log(self) -> None:
        """Say nothing of it: the run fails, and whoever reads the log looks for the reason."""
        self._releases_to_log.clear()
        if self._release_log_timer is not None:
            self._release_log_timer.cancel()
            self._release_log_timer = None

    def revoke(self, gate: Gate) -> None:
        """Start no further record on this partition: whoever waits in its gate, or comes to it, gets PartitionRevoked."""
        gate.failure = gate.failure or PartitionRevoked(f"{gate.partition} was given to another member")
        self.forget(gate.partition)
        gate.signal.set()

    async def release_gate(self, gate: Gate) -> None:
        """Give a revoked partition's lock back, now that nothing runs on it."""
        if self.gates.get(gate.partition) is gate:
            self._forget_gate(gate)
            if self.member_session is not None:
                await self.member_session.ownership.release(gate.partition)

    async def release_partition(self, partition: Partition) -> None:
        """Give back a partition of which nothing runs any more, also one that has finished and whose gate is closed."""
        if partition in self.progress.partitions:
            self.gates.pop(partition, None)
            self.forget(partition)
            if self.member_session is not None:
                await self.member_session.ownership.release(partition)

    async def release_all(self) -> None:
        """Take back what our partitions said, finished ones too: what they brought was not processed after all."""
        partitions = list(self.progress.partitions)
        for partition in partitions:
            self.gates.pop(partition, None)
            self.progress.forget(partition)
        if self.member_session is not None:
            for partition in partitions:
                await self.member_session.ownership.release(partition)

    def _forget_gate(self, gate: Gate) -> None:
        self.gates.pop(gate.partition, None)
        self.forget(gate.partition)

    def forget(self, partition: Partition) -> None:
        """The partition is no longer ours to report; it may have been the one that the report waited for."""
        self.progress.forget(partition)
        self.report_if_due()
        self.moved.set()

    def report_if_due(self) -> None:
        """A partition has arrived: if it was the last, or if the others are late, there is something to say, now or soon."""
        member_progress = self.progress
        if (
            self.on_complete is not None
            and member_progress.withheld
            and (member_progress.complete or member_progress.limit.mode is Mode.OPEN)
        ):
            self.on_complete()
        if self.member_session is not None:
            if self.member_session.late:
                member_progress.delay_over = True
                self.member_session.request_report()
            elif member_progress.due:
                self.member_session.request_report()
            elif member_progress.ready:
                self.member_session.delay_report()

    def claimed(self, partitions: list[Partition], holder: str, cut: Cut | None) -> None:
        """We hold these locks in the session of this name, and have read the limit and the last cut since."""
        self.progress.claim(partitions, holder, cut)
        for partition in partitions:
            gate = self.gates.get(partition)
            if gate is not None:
                gate.signal.set()
        self.moved.set()  # who waits for locks that were lost with a session does so there
        self.report_if_due()

    async def confirm(self) -> None:
        """Ask the store anything: an answer in this session proves that it is alive, and lifts the deadline."""
        if isinstance(self.session, NoSession):
            raise SessionLostError("there is no session at present")
        node = await self.session.find(paths.COORDINATOR)
        if node is None:
            raise MissingNodeError(self.store.describe(paths.COORDINATOR))
        self.see(Limit.decode(self.store.describe(node.path), node.data), node.version)

    # -- the limit ----------------------------------------------------------------------------------------------------

    def see(self, limit: Limit, version: int) -> None:
        """A limit was read, at this version of its node: wake exactly the tasks for which it changes something."""
        if not self.accepts(limit, version):
            return
        before = self.progress.limit
        closing: dict[Partition, int] = {}
        if self.on_close is not None and self.progress.has_arrived:
            closed = max((b for b in before.boundaries if b < limit.floor), default=before.floor)
            closing = self.progress.positions(closed if limit.mode is Mode.GATED else before.floor)
        if not self.progress.see(limit):
            if self.version is not None and limit == before:  # written again as it was: no step
                self.version = max(self.version, version)
            return
        if self.version is not None:
            # Each version is one step, and we may see several at once. Neither the first step, to where anybody has a
            # record, nor a release closes a boundary.
            self.closed += max(0, version - self.version - (before.floor == 0) - (limit.mode is Mode.OPEN))
        self.version = version
        if self.on_close is not None:
            self.on_close(closing)
        if self.member_session is not None:
            self.member_session.limit_moved()
        for gate in self.gates.values():
            if limit.mode is Mode.END or (gate.busy and gate.progress.state is PartitionState.RUNNING):
                gate.signal.set()
        self.moved.set()
        self.report_if_due()

    def accepts(self, limit: Limit, version: int) -> bool:
        """Returns whether the leader can have written this limit, at this version of its node; says so at ERROR if not.

        A stale read is an older version. A newer one with a lower limit, or with fewer boundaries than the run has, was cut
        short by somebody else: we keep to what we know until the node is right again.
        """
        lower = self.version is not None and version > self.version and limit.precedes(self.progress.limit)
        if not lower and limit.fits(self.settings.lookahead, self.settings.end):
            return True
        if self.version is None or version > self.version:
            where, text = self.store.describe(paths.COORDINATOR), limit.encode().decode()
            number = self.settings.lookahead + 1
            what = "lies below the one before" if lower else f"has not the {number} boundaries of this run"
            log.error("%s holds '%s', a limit that %s; it does not count", where, text, what)
        if self.version is not None:
            self.version = max(self.version, version)
        return False

    async def settled(self) -> None:
        """Wait until what our finished partitions said stands in a cut, so that nobody needs this process any more.

        If no such cut can come, because a partition that we gave up has no next owner, it is taken back when we leave.
        """
        await recorded(self)
