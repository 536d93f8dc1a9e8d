"""A leader term: the leader reads everything after its take-over, watches the reports, and moves the limit.

Every write is one transaction. It sets the limit at the version that was read, and checks the generation (no other leader has
taken over since), the operator's request (after ``hold`` was acknowledged no advance can succeed) and the reports (no member
has released a partition since, so its next owner goes on from this cut and not from the one before). One write is in flight at
a time. If it is refused or its outcome is unknown, the leader reads again and decides again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import anyio

from aiokcc.core import paths
from aiokcc.core.leader import Advance, Leader, Wait, blockers
from aiokcc.core.limit import Limit, Mode, Request, RequestKind
from aiokcc.core.member_progress import ReportTime
from aiokcc.core.partitions import Partition, decode_partitions, encode_partitions, listing
from aiokcc.core.report import Cut, Report
from aiokcc.core.run import CUT_SLOTS, Generation, Run, encode_member
from aiokcc.errors import (
    BadVersionError,
    CorruptNodeError,
    MissingNodeError,
    NodeError,
    NoNodeError,
    OutcomeUnknownError,
)
from aiokcc.runtime.assignment_leader import AssignmentLeader
from aiokcc.runtime.cuts import last_cut, limit_and_cut
from aiokcc.runtime.signal import Signal
from aiokcc.runtime.timer import timers
from aiokcc.stores.port import ANY_VERSION, Change, Check, Children, Node, Op, OpResult, Set, Watch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiokcc.core.run import Bounds
    from aiokcc.runtime.followed_generation import FollowedGeneration
    from aiokcc.runtime.member import Member
    from aiokcc.runtime.own_report import OwnReport
    from aiokcc.stores.port import Session

__all__ = ["LeaderTerm"]

log = logging.getLogger("aiokcc.leader")


class LeaderTerm:
    """One leader term: from the take-over to that of the next leader, or to the end of the session."""

    def __init__(
        self, member: Member, session: Session, generation: FollowedGeneration, own_report: OwnReport, joined_at: float
    ) -> None:
        self._member = member
        self._session = session
        self._store = member.store
        self._generation = generation
        self._own = own_report
        self._name = own_report.name
        self.epoch = 0
        self.wake = Signal()
        self.generation_version = ANY_VERSION
        self._request_version = ANY_VERSION
        self._run_version = ANY_VERSION
        self._partitions_version = ANY_VERSION
        self._additions: dict[Partition, Bounds] = {}
        self._run: Run
        self._leader: Leader
        self._removals: set[Partition] = set()
        managed = member.options.managed
        self.assignment_leader = (
            None if managed is None else AssignmentLeader(self, member, session, managed, joined_at)
        )
        """Assigns the partitions of a managed group."""
        self._watched: set[str] = set()
        self._versions: dict[str, int] = {}
        """The versions of the reports by member."""
        self._scope = anyio.CancelScope()
        self._repairs_limit = False
        """True if the node holds a limit that no leader wrote: then the known one is written again."""

    async def take_over(self, candidate: str) -> bool:
        """Takes over: bumps the generation, and only then reads ([take-over bump] in docs/explanation/protocol.md).

        Returns False if our candidate node is gone, or if another member took over meanwhile.
        """
        # The generation that we follow. If there is a later one, the write is refused, and we read it.
        number, version = self._generation.number, self._generation.version
        while True:
            self.epoch = number + 1
            mine = Generation(self.epoch, self._name, "took office")
            facts = encode_member(id=self._name, timestamp=self._member.clock(), epoch=self.epoch)
            try:
                results = await self._session.commit(
                    Set(paths.GENERATION, mine.encode(), version), Set(candidate, facts, ANY_VERSION)
                )
            except NoNodeError as error:
                if error.index == 1:
                    return False
                raise MissingNodeError(self._store.describe(paths.GENERATION)) from error
            except (BadVersionError, OutcomeUnknownError):
                node = await self._get(paths.GENERATION)
                number, version = Generation.decode(self._store.describe(node.path), node.data).number, node.version
                continue
            assert isinstance(results[0], int)
            self.generation_version = results[0]
            self._generation.see(Node(paths.GENERATION, mine.encode(), results[0]))
            try:
                await self._read_everything()
            except BadVersionError:  # another member took over while we read
                return False
            return True

    async def _read_everything(self) -> None:
        """Reads all nodes side by side. All reads are sent after the take-over."""
        listed, run, limit, *_ = await asyncio.gather(
            self._get(paths.TOPIC_PARTITIONS),
            self._get(paths.RUN),
            limit_and_cut(self._store, self._session, self._member.version),
            *(() if self.assignment_leader is None else (self.assignment_leader.read(),)),
        )
        partitions = decode_partitions(self._store.describe(listed.path), listed.data)
        self._partitions_version = listed.version
        self._learn_run(run, partitions)
        self._leader = Leader(self._run.settings, self.epoch, Limit((0,)), ANY_VERSION, None)
        self._learn_limit(*limit)
        if self.assignment_leader is not None:
            await self.assignment_leader.take_over(partitions)

    def _learn_run(self, node: Node, partitions: frozenset[Partition]) -> None:
        self._run = Run.decode(self._store.describe(node.path), node.data, partitions)
        self._run_version = node.version

    def _learn_limit(self, node: Node, cut: Cut | None) -> None:
        """Takes the limit that was read, and the cut that led to it."""
        leader = self._leader
        limit = Limit.decode(self._store.describe(node.path), node.data)
        if node.version != leader.version:
            if not self._member.accepts(limit, node.version):
                limit, self._repairs_limit = self._member.progress.limit, True
            if cut is not None and limit.floor <= cut.limit and limit.mode is Mode.GATED:  # and we know no other limit
                raise CorruptNodeError(self._store.describe(node.path), node.data, "a limit behind the last cut")
            leader.limit, leader.version = limit, node.version
            leader.closed = cut.limit if cut is not None else leader.settings.start or 0
            leader.finished = {} if cut is None else cut.finished()
            if self.assignment_leader is not None:  # partitions may have left the set since
                agreed = leader.settings.partitions
                leader.finished = {p: mark for p, mark in leader.finished.items() if p in agreed}
        self._member.see(limit, node.version)

    def depose(self) -> None:
        """Ends the term at once: another member has taken over."""
        self._scope.cancel()

    async def run(self) -> None:
        """Moves the limit whenever it may move, until deposed, cancelled, or the session is lost (SessionLostError)."""
        with self._scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._observe)
                if self.assignment_leader is not None:
                    tasks.start_soon(self.assignment_leader.observe)
                tasks.start_soon(self._decide)

    # -- what the leader sees -----------------------------------------------------------------------------------------

    async def _observe(self) -> None:
        with self._session.watch() as watch:
            watch.add(paths.PERIOD)
            watch.add_children(paths.PROGRESS)
            while True:
                for change in await watch.changes():
                    self._learn(change, watch)
                self.wake.set()

    def _learn(self, change: Change, watch: Watch) -> None:
        own = paths.progress(self._name)
        if isinstance(change.now, Children):
            present = {paths.progress(name) for name in change.now.names} - {own}
            for path in present - self._watched:
                watch.add(path)
            for path in self._watched - present:
                watch.remove(path)
                self._learn_report(Change(path, None))
            self._watched = present
        elif change.path == paths.PERIOD:
            self._learn_request(change.now)
        elif change.path == paths.PROGRESS:
            raise MissingNodeError(self._store.describe(paths.PROGRESS))
        else:
            self._learn_report(change)

    def _learn_request(self, node: Node | None) -> None:
        self._leader.request = None
        if node is None:
            log.error("%s was deleted; the limit stays where it is", self._store.describe(paths.PERIOD))
            return
        self._request_version = node.version
        try:
            self._leader.request = Request.decode(self._store.describe(node.path), node.data)
        except CorruptNodeError as error:
            log.error("%s; the limit stays where it is", error)

    def _learn_report(self, change: Change) -> None:
        name = change.path.removeprefix(f"{paths.PROGRESS}/")
        report: Report | None = None
        if isinstance(change.now, Node):
            try:
                before = self._leader.reports.get(name)
                report = Report.decode(self._store.describe(change.path), change.now.data, before)
            except CorruptNodeError as error:
                log.error("%s; its partitions count as not reported", error)
        if report is None:
            gone, _ = self._leader.reports.pop(name, None), self._versions.pop(name, None)
            left = gone.unfinished() if gone else None
            if left and change.now is None:
                log.warning("%s is gone; the limit waits for the next owner of %s", name, listing(map(str, left)))
        else:
            assert isinstance(change.now, Node)
            self._leader.reports[name] = report
            self._versions[name] = change.now.version

    # -- what the leader does -----------------------------------------------------------------------------------------

    async def _decide(self) -> None:
        leader = self._leader
        while True:
            if self._repairs_limit:
                await self._repair_limit()
            if self._additions or self._removals:
                await self._change_set()
            if self.assignment_leader is not None and self.assignment_leader.due:
                await self.assignment_leader.step()
            own = self._own_report()
            decision = leader.decide(self._member.clock())
            if isinstance(decision, Advance):
                await self._advance(decision, own)
            else:
                await self._pause(decision)

    async def _repair_limit(self) -> None:
        leader = self._leader
        self._repairs_limit = False
        try:
            await self._session.commit(
                Set(paths.COORDINATOR, leader.limit.encode(), leader.version),
                Check(paths.GENERATION, self.generation_version),
            )
        except (NoNodeError, BadVersionError, OutcomeUnknownError) as error:
            await self.read_again(error)
            return
        leader.version += 1
        log.error(
            "%s holds the limit %s again", self._store.describe(paths.COORDINATOR), leader.limit.encode().decode()
        )

    def add(self, bounds: Mapping[Partition, Bounds]) -> None:
        """Adds partitions to the agreed set, at the present limit."""
        self._additions.update(bounds)
        self.wake.set()

    def remove(self, partitions: frozenset[Partition]) -> None:
        """Removes partitions from the agreed set of a managed group: the limit no longer waits for them."""
        if self.assignment_leader is not None:
            self._removals |= partitions
            self.wake.set()

    def is_blocked(self) -> bool:
        """Returns whether the limit waits for a partition, as far as the reports tell, and not for an operator or the clock."""
        leader = self._leader
        if leader.request is None or leader.request.kind is RequestKind.HOLD:
            return False
        partitions = leader.settings.partitions
        return bool(blockers(leader.limit, self.epoch, partitions, leader.reports, leader.finished, {}))

    @property
    def mode(self) -> Mode:
        """The mode of the limit."""
        return self._leader.limit.mode

    async def _change_set(self) -> None:
        """Writes the set and the generation in one transaction: after it no report or advance of the old set counts."""
        agreed = self._run.settings.partitions
        added = {p: b for p, b in self._additions.items() if p not in agreed}
        removed = agreed & self._removals - added.keys()
        self._additions.clear()
        self._removals.clear()
        if not (added or removed) or removed >= agreed or self._leader.limit.mode is Mode.END:
            return
        run = self._run.with_partitions(added).without(removed)
        words = [
            f"{verb} {listing(map(str, sorted(ps)))}" for verb, ps in (("added", added), ("removed", removed)) if ps
        ]
        ops: list[Op] = [
            Set(paths.TOPIC_PARTITIONS, encode_partitions(run.settings.partitions), self._partitions_version),
            Set(paths.RUN, run.encode(), self._run_version),
        ]
        try:
            results = await self.bump(", ".join(words), ops)
        except (BadVersionError, NoNodeError, OutcomeUnknownError) as error:
            await self.read_again(error)
            if isinstance(error, BadVersionError) and error.path == paths.TOPIC_PARTITIONS:
                self._additions.update(added)
                self._removals |= removed
            return
        self._partitions_version, self._run_version = (version for version in results if isinstance(version, int))
        self._run = run
        self._leader.change_set(run.settings)
        log.info("%s at the present limit", ", ".join(words))
        if self.assignment_leader is not None:
            self.assignment_leader.machine.partitions = run.settings.partitions
            self.assignment_leader.wake()

    async def bump(self, reason: str, ops: list[Op]) -> list[OpResult]:
        """Writes these together with the next generation and returns their results. Earlier reports no longer count."""
        generation = Generation(self.epoch + 1, self._name, reason)
        results = await self._session.commit(Set(paths.GENERATION, generation.encode(), self.generation_version), *ops)
        assert isinstance(results[0], int)
        self.generation_version = results[0]
        self.epoch += 1
        self._leader.generation = self.epoch
        self._generation.see(Node(paths.GENERATION, generation.encode(), self.generation_version))
        return results[1:]

    async def _pause(self, decision: Wait) -> None:
        log.debug("waiting: %s", decision.reason)
        if decision.until is None:
            await self.wake.wait()
            return
        timer = timers().call_later((decision.until - self._member.clock()) / 1000, self.wake.set)
        try:
            await self.wake.wait()
        finally:
            timer.cancel()

    def _own_report(self) -> Report | None:
        """Returns our own report if it is due. It is written with the advance that it leads to, not before."""
        member_progress = self._member.progress
        if member_progress.report_time is ReportTime.SOON:
            self._own.delay()
        own = member_progress.report() if member_progress.due else None
        if own is None or own.generation != self.epoch:
            self._leader.reports.pop(self._name, None)
            return None
        self._leader.reports[self._name] = own
        return own

    async def _advance(self, decision: Advance, own: Report | None) -> None:
        leader = self._leader
        fold = own if own is not None and own.supersedes(self._own.written) else None
        numbered = list(
            enumerate(decision.steps, leader.version)
        )  # each limit is a version of the node, and numbers its cut
        ops: list[Op] = [
            *(Set(paths.COORDINATOR, step.limit.encode(), version) for version, step in numbered),
            Check(paths.GENERATION, self.generation_version),
            Check(paths.PERIOD, self._request_version)
            if decision.request is None
            else Set(paths.PERIOD, decision.request.encode(), self._request_version),
        ]
        if decision.closes:
            others = (name for name in leader.reports if name != self._name)
            ops += [Check(paths.progress(name), self._versions[name]) for name in others]
            ops += [
                Set(paths.cut(version + 1, CUT_SLOTS), step.cut.encode(), ANY_VERSION)
                for version, step in numbered
                if step.cut is not None
            ]
        if fold is not None:
            ops.append(Set(paths.progress(self._name), fold.encode(), ANY_VERSION))
        if decision.limit.mode is Mode.END:
            ops.append(Set(paths.RUN, self._run.end().encode(), self._run_version))
        try:
            await self._session.commit(*ops)
        except (NoNodeError, BadVersionError, OutcomeUnknownError) as error:
            await self.read_again(error)
            return
        if fold is not None:
            self._own.written = fold
        if decision.request is not None:
            self._request_version += 1
        leader.advanced(decision)
        self._member.see(decision.limit, leader.version)

    async def read_again(self, error: NoNodeError | BadVersionError | OutcomeUnknownError) -> None:
        """Reads the state again after a write was refused or its outcome is unknown. Ends the term if it is over."""
        if isinstance(error, OutcomeUnknownError):
            self._own.written = None
        node = await self._get(paths.GENERATION)
        if node.version != self.generation_version:
            self.depose()
            await anyio.lowlevel.checkpoint()
        node = await self._get(paths.COORDINATOR)
        known = node.version == self._leader.version
        self._learn_limit(node, None if known else await last_cut(self._store, self._session, node.version))
        self._learn_request(await self._session.find(paths.PERIOD))
        if (
            isinstance(error, BadVersionError) and error.path == paths.TOPIC_PARTITIONS
        ):  # written by hand: our set stays
            self._partitions_version = (await self._get(paths.TOPIC_PARTITIONS)).version
        elif isinstance(error, NodeError) and error.path == paths.RUN:
            self._learn_run(await self._get(paths.RUN), self._run.settings.partitions)
        elif isinstance(error, NodeError) and error.path in self._watched:
            self._learn_report(Change(error.path, await self._session.find(error.path)))
        elif isinstance(error, NoNodeError):
            if error.path == paths.progress(self._name):
                await self._own.restore()
            elif error.path != paths.PERIOD and not error.path.startswith(f"{paths.PROGRESS}/"):
                raise MissingNodeError(self._store.describe(error.path)) from error

    async def _get(self, path: str) -> Node:
        node = await self._session.find(path)
        if node is None:
            raise MissingNodeError(self._store.describe(path))
        return node
