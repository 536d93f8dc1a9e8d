"""A leader term: the leader takes over, watches the reports, and moves the limit, by what it knows (``leader_knowledge``).

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
from aiokcc.core.leader import Advance, Wait
from aiokcc.core.limit import Mode
from aiokcc.core.lookahead_choice import LookaheadChoice
from aiokcc.core.member_progress import ReportTime
from aiokcc.core.partitions import Partition, encode_partitions
from aiokcc.core.report import Report
from aiokcc.core.run import Generation, encode_member
from aiokcc.errors import (
    BadVersionError,
    MissingNodeError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
)
from aiokcc.runtime.assignment_leader import AssignmentLeader
from aiokcc.runtime.leader_knowledge import LeaderKnowledge
from aiokcc.runtime.sending import AdvanceInFlight, advance_ops, discard, send
from aiokcc.runtime.set_changes import SetChanges, describe_change
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

log = logging.getLogger("aiokcc.runtime")


class LeaderTerm(LeaderKnowledge):
    """One leader term: from the take-over to that of the next leader, or to the end of the session."""

    def __init__(
        self, member: Member, session: Session, generation: FollowedGeneration, own_report: OwnReport, joined_at: float
    ) -> None:
        super().__init__(member, session, generation, own_report)
        self._choice = LookaheadChoice()
        self.wake = Signal()
        self._acting = asyncio.Lock()
        """Held by the task that acts: it and :attr:`_flight` see to it that one write is in flight at a time."""
        self._flight: AdvanceInFlight | None = None
        """An advance that was sent at once. A task that acts waits for its answer first."""
        self._failure: Exception | None = None
        """An error outside of a task. The next task that acts raises it."""
        self._set_changes = SetChanges()
        managed = member.options.managed
        if managed is not None:
            self.assignment_leader = AssignmentLeader(self, member, session, managed, joined_at)

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

    async def run(self) -> None:
        """Moves the limit whenever it may move, until deposed, cancelled, or the session is lost (SessionLostError)."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._observe)
                    if self.assignment_leader is not None:
                        tasks.start_soon(self.assignment_leader.observe)
                    tasks.start_soon(self._decide)
                    tasks.start_soon(self._announcements.prune)
        finally:
            if self._flight is not None:
                discard(self._flight.answer)

    # -- what the leader sees -----------------------------------------------------------------------------------------

    async def _observe(self) -> None:
        with self._session.watch() as watch:
            watch.listener = self._heard
            watch.add(paths.PERIOD)
            watch.add_children(paths.PROGRESS)
            while True:
                for change in await watch.changes():
                    self._learn(change, watch)
                if self._acting.locked():
                    self.wake.set()
                    continue
                async with self._acting:  # here, and not in the other task: that is one turn of the event loop less
                    decision = await self._act()
                if decision.until is not None:
                    self.wake.set()  # the other task has the timer

    def _heard(self, change: Change) -> bool:
        """Takes a report where it arrives, and decides. Returns False if it is something else."""
        if change.path not in self._watched:
            return False
        self._learn_report(change)
        self.decide_soon()
        return True

    def _learn(self, change: Change, watch: Watch) -> None:
        own = paths.progress(self._name)
        if isinstance(change.now, Children):
            present = {paths.progress(name) for name in change.now.names} - {own}
            for path in present - self._watched:
                watch.add(path)
            for path in self._watched - present:
                watch.remove(path)
                self._learn_report(Change(path, None))
            if present - self._watched:
                self._check_announced()
            self._watched = present
        elif change.path == paths.PERIOD:
            self._learn_request(change.now)
        elif change.path == paths.PROGRESS:
            raise MissingNodeError(self._store.describe(paths.PROGRESS))
        elif change.path.startswith(f"{paths.PROGRESS}/"):
            self._learn_report(change)
        else:
            raise AssertionError(f"{change.path} is watched, and nothing is known to learn from it")

    # -- what the leader does -----------------------------------------------------------------------------------------

    async def _decide(self) -> None:
        while True:
            async with self._acting:
                decision = await self._act()
            await self._pause(decision)

    def decide_soon(self) -> None:
        """Decides by what the leader knows now, and sends what it decides: a report has come, or our own is due.

        Whoever brings the news calls it, and the answer is taken where it arrives. A task acts where there is more to do.
        """
        if not self._advance_at_once():
            self.wake.set()

    def _advance_at_once(self) -> bool:
        """Sends the advance that is due, if any. Returns False if a task has to act: for other work, or to wait for a time."""
        if self._flight is not None:
            return True  # what comes next is decided after the answer
        if self._acting.locked() or self._has_other_work:
            return False
        try:
            self._include_own_report()
            decision = self._leader.decide(self._member.clock())
            if isinstance(decision, Wait):
                return decision.until is None
            self._flight = flight = self._launch(decision, at_once=True)
        except Exception:  # noqa: BLE001 - a clock of the user's may raise anything; the task asks it again, and fails
            return False
        if flight is None or not isinstance(flight.answer, asyncio.Future):
            return False
        flight.answer.add_done_callback(self._answered)
        return True

    def _answered(self, answer: asyncio.Future[list[OpResult]]) -> None:
        """Takes the answer to an advance that was sent at once, unless a task waits for it or has to read again."""
        flight = self._flight
        if flight is None or flight.answer is not answer:
            return
        if answer.cancelled() or answer.exception() is not None:
            self.wake.set()
            return
        self._flight = None
        try:
            self._landed(flight)
        except Exception as error:  # noqa: BLE001 - of the user's clock; a task raises it
            self._failure = error
            self.wake.set()
        else:
            asyncio.get_running_loop().call_soon(self.decide_soon)  # the tasks at the gates go first

    @property
    def _has_other_work(self) -> bool:
        return bool(
            self._repairs_limit
            or self._announces_limit
            or self._set_changes
            or (self.assignment_leader is not None and self.assignment_leader.due)
        )

    async def _act(self) -> Wait:
        """Does everything that is to be done by what the leader knows. Returns when it has to wait, and for what."""
        leader = self._leader
        while True:
            if self._failure is not None:
                raise self._failure
            flight, self._flight = self._flight, None
            if flight is not None:
                await self._land(flight)
            if self._repairs_limit:
                await self._repair_limit()
            if self._announces_limit:
                await self._announce_limit()
            if self._set_changes:
                await self._change_set()
            if self.assignment_leader is not None and self.assignment_leader.due:
                await self.assignment_leader.step()
            self._include_own_report()
            decision = leader.decide(self._member.clock())
            if isinstance(decision, Wait):
                return decision
            self._flight = self._launch(decision)

    async def _repair_limit(self) -> None:
        leader = self._leader
        self._repairs_limit = False
        announcement = self._announcements.create(leader.version + 1, leader.limit, self.epoch)
        try:
            await self._session.commit(
                Set(paths.COORDINATOR, leader.limit.encode(), leader.version),
                Check(paths.GENERATION, self.generation_version),
                announcement,
            )
        except (NoNodeError, NodeExistsError, BadVersionError, OutcomeUnknownError) as error:
            await self.read_again(error)
            return
        leader.version += 1
        self._announcements.created(announcement, leader.version)
        self._announces_limit = False  # it was written with its announcement
        self._member.see(leader.limit, leader.version)
        log.error(
            "%s holds the limit %s again", self._store.describe(paths.COORDINATOR), leader.limit.encode().decode()
        )

    async def _announce_limit(self) -> None:
        """Announces the limit that the node holds, if it still holds it."""
        leader = self._leader
        self._announces_limit = False
        announcement = self._announcements.create(leader.version, leader.limit, self.epoch)
        try:
            await self._session.commit(
                Check(paths.COORDINATOR, leader.version),
                Check(paths.GENERATION, self.generation_version),
                announcement,
            )
        except (NoNodeError, NodeExistsError, BadVersionError, OutcomeUnknownError) as error:
            self._announces_limit = True
            await self.read_again(error)
        else:
            self._announcements.created(announcement, leader.version)

    def add(self, bounds: Mapping[Partition, Bounds]) -> None:
        """Adds partitions to the agreed set, at the present limit."""
        self._set_changes.add(bounds, frozenset())
        self.wake.set()

    def remove(self, partitions: frozenset[Partition]) -> None:
        """Removes partitions from the agreed set of a managed group: the limit no longer waits for them."""
        if self.assignment_leader is not None:
            self._set_changes.add({}, partitions)
            self.wake.set()

    async def _change_set(self) -> None:
        """Writes the set and the generation in one transaction: after it no report or advance of the old set counts."""
        added, removed = self._set_changes.take(self._run.settings.partitions)
        if not (added or removed) or self._leader.limit.mode is Mode.END:
            return
        run = self._run.with_partitions(added).without(removed)
        words = describe_change(added, removed)
        ops: list[Op] = [
            Set(paths.TOPIC_PARTITIONS, encode_partitions(run.settings.partitions), self._partitions_version),
            Set(paths.RUN, run.encode(), self._run_version),
        ]
        try:
            results = await self.bump(words, ops)
        except (BadVersionError, NoNodeError, OutcomeUnknownError) as error:
            await self.read_again(error)
            if isinstance(error, BadVersionError) and error.path == paths.TOPIC_PARTITIONS:
                self._set_changes.add(added, removed)
            return
        self._partitions_version, self._run_version = (version for version in results if isinstance(version, int))
        self._run = run
        self._leader.change_set(run.settings)
        log.info("%s at the present limit", words)
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

    def _include_own_report(self) -> None:
        """Lets our own report count if it is due. It is written with the advance that it leads to, if at all."""
        member_progress = self._member.progress
        if member_progress.report_time is ReportTime.SOON:
            self._own.delay()
        own = member_progress.report() if member_progress.due else None
        if own is None or own.generation != self.epoch:
            self._leader.reports.pop(self._name, None)
        else:
            self._leader.reports[self._name] = own

    def _own_report_to_write(self, decision: Advance) -> Report | None:
        """Returns our own report if it says something that is not in the cut, and is still true after this advance.

        In most periods it does not: all partitions are blocked in the next one. The status then goes by the cut.
        """
        own = self._leader.reports.get(self._name)
        if own is None or not own.supersedes(self._own.written):
            return None
        plain = decision.closes and not self._leader.settings.lookahead
        return None if plain and own.ends_before(decision.limit.floor) else own

    def _launch(self, decision: Advance, *, at_once: bool = False) -> AdvanceInFlight | None:
        """Sends an advance. ``at_once``: returns None if only a task can send it."""
        leader, version = self._leader, self._leader.version + len(decision.steps)
        # Where there is no other member, nothing is announced. A member that joins now creates its report node first.
        announcement = self._announcements.create(version, decision.limit, self.epoch) if self._watched else None
        others = {name: self._versions[name] for name in leader.reports if name != self._name}
        ops = advance_ops(decision, leader.version, self.generation_version, self._request_version, others)
        fold = self._own_report_to_write(decision)
        if fold is not None:
            ops.append(Set(paths.progress(self._name), fold.encode(), ANY_VERSION))
        if announcement is not None:
            ops.append(announcement)
        if decision.limit.mode is Mode.END:
            ops.append(Set(paths.RUN, self._run.end().encode(), self._run_version))
        began = asyncio.get_running_loop().time()
        answer = send(self._session, ops, at_once=at_once)
        return None if answer is None else AdvanceInFlight(decision, version, fold, announcement, began, answer)

    async def _land(self, flight: AdvanceInFlight) -> None:
        """Waits for the answer to an advance, and takes the limit if it was applied; reads again if not."""
        try:
            await flight.answer
        except (NoNodeError, NodeExistsError, BadVersionError, OutcomeUnknownError) as error:
            await self.read_again(error)
        else:
            self._landed(flight)

    def _landed(self, flight: AdvanceInFlight) -> None:
        leader, decision = self._leader, flight.decision
        if leader.settings.max_apart is not None and decision.closes:
            in_step, members = len(leader.limit.boundaries) == 1, len(leader.reports)
            now = asyncio.get_running_loop().time()
            self._choice.advanced(flight.began, now, len(decision.steps), members, in_step=in_step)
            leader.chosen = self._choice.lookahead
        if flight.fold is not None:
            self._own.written = flight.fold
        if flight.announcement is not None:
            self._announcements.created(flight.announcement, flight.version)
        if decision.request is not None:
            self._request_version += 1
        leader.advanced(decision)
        if self._watched:
            self._check_announced()
        self._member.see(decision.limit, leader.version)
