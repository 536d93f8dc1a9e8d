"""One member in one session: it joins, claims the locks of its partitions, follows the limit, and reports.

A new session has new node names, so it never meets nodes of a former one ([unique name] in docs/explanation/protocol.md).
Each write goes through the session in which it was decided. A session that is lost refuses writes.

There are four tasks: *follow* learns the limit and the generation, *claim* claims locks, *report* writes the report whenever it
differs from the content of the node, *campaign* stands for election and leads. While we lead, the leader term takes care of our
own report, and *follow* does not watch the limit, which we write ourselves.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from aiokcc.core import paths
from aiokcc.core.announcement import Announcement
from aiokcc.core.limit import END, Limit, Request
from aiokcc.core.partitions import Partition, decode_partitions, encode_partitions
from aiokcc.core.run import CUT_SLOTS, Generation, Run, Settings, encode_member
from aiokcc.errors import (
    CorruptNodeError,
    MissingNodeError,
    NodeExistsError,
    OutcomeUnknownError,
    RunEnded,
    SessionLostError,
)
from aiokcc.exception_groups import main_error
from aiokcc.runtime.agreement import find_run, has_changed
from aiokcc.runtime.assignment_follower import AssignmentFollower
from aiokcc.runtime.election import campaign
from aiokcc.runtime.followed_generation import FollowedGeneration
from aiokcc.runtime.leader_term import LeaderTerm
from aiokcc.runtime.new_run import joining, remove_left_run
from aiokcc.runtime.own_report import OwnReport
from aiokcc.runtime.ownership import Ownership
from aiokcc.runtime.progress_log import ProgressLog, log_facts
from aiokcc.runtime.standstill import Standstill
from aiokcc.stores.port import Change, Create, Created, Node, Session, SessionState

if TYPE_CHECKING:
    from aiokcc.runtime.member import Member

__all__ = ["MemberSession"]

log = logging.getLogger("aiokcc.runtime")


class MemberSession:
    """One member in one session."""

    def __init__(self, member: Member, session: Session) -> None:
        self.member = member
        self.session = session
        self.store = member.store
        self.name = f"{member.name}-{session.id:x}"  # paths.is_session_of knows this form
        self.generation = FollowedGeneration(member.store, self._generation_changed)
        self.own_report = OwnReport(session, self.name, member.progress)
        self.term: LeaderTerm | None = None
        self.assignment_follower: AssignmentFollower | None = None
        """Follows our assignment in a managed group; None in other groups."""
        if member.options.managed is not None:
            self.assignment_follower = AssignmentFollower(
                member, session, self.name, self.facts(), member.options.managed.subscription
            )
        self.ownership = Ownership(member, session, self.generation, self.own_report, self.assignment_follower)
        self._joined_at = 0.0
        """The time when we joined, by the event loop's clock."""
        self._failure: Exception | None = None
        """An error outside of a task. The task that follows the limit raises it."""
        self._standstill = Standstill(self)
        self._progress_log = ProgressLog(member)

    # -- joining ------------------------------------------------------------------------------------------------------

    async def join(self, *, first: bool) -> None:
        """Reads the group's agreement or founds the group, compares it with our settings, and registers.

        Raises GroupMismatchError if the group runs, or ran, with other settings; RunEnded if it ran with ours and has ended
        before we ever took part.
        """
        async with joining(self.store):
            await self._register(first=first)
        session = self.session
        if self.assignment_follower is not None:
            await self.assignment_follower.await_predecessor()
        self._joined_at = asyncio.get_running_loop().time()
        self.generation.see(await session.get(paths.GENERATION))
        await self._read_limit()

    async def _read_limit(self) -> None:
        node = await self.session.find(paths.COORDINATOR)
        if node is None:
            raise MissingNodeError(self.store.describe(paths.COORDINATOR))
        self.member.see(Limit.decode(self.store.describe(node.path), node.data), node.version)

    async def _register(self, *, first: bool) -> None:
        settings, session = await self._agree(first=first), self.session
        if self.assignment_follower is not None:
            registration = self.assignment_follower.registration()
        else:
            subscription = encode_partitions(settings.partitions).decode()
            registration = encode_member(**self.facts(), subscription=subscription, pattern=None)
        await session.commit(
            Create(paths.progress(self.name), b"", ephemeral=True),
            Create(paths.member(self.name), registration, ephemeral=True),
        )

    async def _agree(self, *, first: bool) -> Settings:
        """Reads the run or founds it, compares it with our settings, and returns the settings with which we take part."""
        settings, session = self.member.settings, self.session
        if first and self.store.forgets_unfinished:
            await remove_left_run(self.store, session)
        run = await self._agreement()
        while run.ended and first and self.store.volatile and await remove_left_run(self.store, session):
            run = await self._agreement()
        theirs = run.settings.partitions
        managed = self.member.options.managed is not None
        if self.member.options.grows and (managed or theirs < settings.partitions or settings.partitions < theirs):
            # The leader adds the missing partitions and removes those that no longer exist.
            settings = replace(settings, partitions=theirs)
        elif theirs < settings.partitions and self._are_newer(settings.partitions - theirs, theirs):
            settings = replace(settings, partitions=theirs)
        run.require(settings, self.store.describe(""))
        if run.ended:
            if first:
                raise RunEnded(
                    f"the run under {self.store.describe('')} has ended; to run again, choose another root or delete it"
                )
            self.member.see(END, (await session.get(paths.COORDINATOR)).version)
        self.member.see_agreed_set(theirs, run.bounds)
        return settings

    def facts(self) -> dict[str, Any]:
        """Returns what the registration says of this process."""
        return {
            "id": self.name,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "timestamp": self.member.clock(),
        }

    def _are_newer(self, more: frozenset[Partition], theirs: frozenset[Partition]) -> bool:
        """Returns whether the partitions ``more`` may be newer than the run. The run keeps its set to the end."""
        known = {p.topic for p in theirs}
        newer = self.member.options.newer
        return newer == "topics" or (newer == "partitions" and all(p.topic in known for p in more))

    async def _agreement(self) -> Run:
        session, settings = self.session, self.member.settings
        while True:
            found = await find_run(self.store, session)
            if found is not None:
                run, node = found
                self.member.founded = node.created
                return run
            directories = ["", paths.LIMITS, paths.PROGRESS, paths.LEADER, paths.IDS, paths.OWNERS, paths.CUTS]
            if self.member.options.managed is not None:
                directories += [paths.ASSIGNMENTS, paths.STATE, paths.ISOLATED]
            for directory in directories:
                await session.ensure(directory)
            limit = Limit.first(settings.start, settings.period, settings.first_lookahead, settings.end)
            bounds = await self.member.resolve()
            try:
                await session.commit(
                    Create(paths.GENERATION, Generation(0, self.name, "founded").encode()),
                    Create(paths.RUN, Run(settings, bounds=bounds).encode()),
                    Create(paths.COORDINATOR, limit.encode()),
                    Create(paths.PERIOD, Request.every(settings.period).encode()),
                    Create(paths.TOPIC_PARTITIONS, encode_partitions(settings.partitions)),
                    *(Create(paths.cut(n, CUT_SLOTS)) for n in range(CUT_SLOTS)),
                )
            except NodeExistsError as error:
                if (
                    await session.find(paths.RUN) is None
                ):  # there is no other founder: these are remains of something else
                    raise MissingNodeError(self.store.describe(paths.RUN)) from error
            except OutcomeUnknownError:
                pass
            else:
                where = self.store.describe("")
                log.info("%s founded the group under %s", self.name, where, extra=log_facts(self.member))

    # -- taking part --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Takes part until the session is lost (SessionLostError) or it is cancelled."""
        self.ownership.claim_needed.set()
        self.limit_moved()  # it is new to us: start the timers of the first period
        failure: BaseException | None = None
        try:
            async with anyio.create_task_group() as tasks:
                self.tasks = tasks
                for task in (
                    self._follow,
                    self.ownership.claim,
                    self._report,
                    self._campaign,
                    self._await_session_loss,
                    self._standstill.run,
                ):
                    tasks.start_soon(task)
                if self.assignment_follower is not None:
                    tasks.start_soon(self.assignment_follower.follow)
        except ExceptionGroup as group:  # an error that says more than the end of the session has priority
            failure = main_error(group, lambda error: not isinstance(error, (SessionLostError, OutcomeUnknownError)))
        finally:
            self.own_report.end()
            self._standstill.end()
            self.ownership.end()
        if failure is not None:
            raise failure

    async def _await_session_loss(self) -> None:
        await self.session.until(SessionState.LOST)
        raise SessionLostError("the session is over")

    async def _follow(self) -> None:
        with self.session.watch() as watch:
            self._watch = watch
            watch.listener = self._heard
            watch.add(paths.GENERATION)
            watch.add(paths.TOPIC_PARTITIONS)
            if self.term is None:
                watch.add_created(paths.LIMITS)
            while True:
                for change in await watch.changes():
                    if self._failure is not None:
                        raise self._failure
                    node = change.now
                    if isinstance(change, Created):
                        if not self._see_announcement(change.name):
                            await self._read_limit()
                    elif change.path == paths.TOPIC_PARTITIONS:
                        await self._see_set(node)
                        self.member.moved.set()  # also if it is the same: a task may have read another one
                    elif not isinstance(node, Node):
                        raise MissingNodeError(self.store.describe(change.path))
                    else:
                        self.generation.see(node)

    def _heard(self, change: Change) -> bool:
        """Takes the limit of an announcement where it arrives. Returns False if the task has to do something."""
        try:
            return isinstance(change, Created) and self._see_announcement(change.name)
        except Exception as error:  # noqa: BLE001 - of the user's clock; outside of a task nobody would see it
            self._failure = error
            return False

    def _see_announcement(self, name: str | None) -> bool:
        """Takes the limit of an announcement. Returns False if the limit has to be read.

        That is the case if the watch is in place, for the first time or again, because announcements may have been missed;
        and if the name was not written by the leader that we know.
        """
        announcement = None if name is None else Announcement.parse(name, self.generation.leader)
        version = self.member.version
        if announcement is None or announcement.limit is None or version is None:
            return False
        if announcement.version > version:  # otherwise a read was faster
            self.member.see(announcement.limit, announcement.version)
        return True

    async def _see_set(self, node: object) -> None:
        """Takes the agreed set that was read. A damaged one changes nothing: the leader keeps the set that it has read."""
        if not isinstance(node, Node):
            log.error(
                "%s was deleted; the next leader will not know the set",
                self.store.describe(paths.TOPIC_PARTITIONS),
                extra=log_facts(self.member),
            )
            return
        try:
            partitions = decode_partitions(self.store.describe(node.path), node.data)
        except CorruptNodeError as error:
            log.error("%s; the next leader will not know the set", error, extra=log_facts(self.member))
            return
        agreed = self.member.settings.partitions
        if agreed != partitions:
            run = await self.session.get(paths.RUN)
            try:
                bounds = Run.decode(self.store.describe(run.path), run.data, partitions).bounds
            except CorruptNodeError as error:
                if not await has_changed(self.session, node):  # else the watch reports the change
                    log.error("%s; the set stays as it is until it can be read", error, extra=log_facts(self.member))
                return
        if agreed < partitions or (self.assignment_follower is not None and agreed != partitions):
            self.member.see_agreed_set(partitions, bounds)
            if self.assignment_follower is not None:
                self.assignment_follower.topics_changed()

    def _generation_changed(self) -> None:
        """Gives our reports the new generation from now on. Ends our term if another member wrote it."""
        self.member.progress.generation = self.generation.number
        if self.term is not None and self.generation.leader != self.name:
            self.term.depose()
        self.member.report_if_due()

    def limit_moved(self) -> None:
        """Restarts the timers for a slow period and for a standstill, and logs the progress if that is due."""
        now = asyncio.get_running_loop().time()
        self.own_report.limit_moved(now)
        self._progress_log.moved(now)
        self._standstill.moved(now)

    async def _report(self) -> None:
        """Writes the report, and releases locks, whenever there is something to write."""
        while True:
            await self.own_report.wait()
            if self.ownership.has_releases:
                await self.ownership.release_batch()
                self.own_report.needed.set()
            else:
                await self.own_report.write_if_changed()

    # -- leading ------------------------------------------------------------------------------------------------------

    async def _campaign(self) -> None:
        """Stands for election as long as the session lasts, and leads when elected."""
        while True:
            async with campaign(self.session, self.name, self.member.clock) as candidate:
                term = LeaderTerm(self.member, self.session, self.generation, self.own_report, self._joined_at)
                if not await term.take_over(candidate):
                    continue
                log.info("%s leads under generation %d", self.name, term.epoch, extra=log_facts(self.member))
                self.term, self.own_report.wake_leader = term, term.decide_soon
                if self.generation.leader != self.name:  # another member took over while we read
                    term.depose()
                self._watch.remove(paths.LIMITS)
                for listener in self.member.listeners:
                    listener.elected()
                try:
                    await term.run()
                finally:
                    self.term = self.own_report.wake_leader = None
                    self._watch.add_created(paths.LIMITS)
                    self.own_report.needed.set()
                log.info("%s no longer leads", self.name, extra=log_facts(self.member))
