"""One member in one session: it joins, takes the locks of its partitions, follows the limit, and reports.

A new session is a new incarnation with new node names, so that it never meets what it left behind. All of its writes go through
the session in which they were decided, which refuses them once it is lost.

Four tasks: *follow* reads the limit and the generation, *claim* takes locks, *report* writes what the ledger says whenever it
differs from what the node holds, *campaign* stands for election and leads. While we lead, the leader's own report travels
in the transaction that moves the limit, and *follow* does not need to be told what we wrote ourselves.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import anyio

from aiokcc.core import paths
from aiokcc.core.limit import END, Limit, Request
from aiokcc.core.partitions import Partition, decode_partitions, encode_partitions
from aiokcc.core.progress import Report
from aiokcc.core.run import CUT_SLOTS, Generation, Run, encode_member
from aiokcc.errors import (
    BadVersionError,
    CorruptNodeError,
    MissingNodeError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    PartitionOwnedError,
    RunEnded,
    SessionLostError,
)
from aiokcc.runtime.cuts import limit_and_cut
from aiokcc.runtime.election import campaign
from aiokcc.runtime.office import Office
from aiokcc.runtime.share import Share
from aiokcc.runtime.signal import Signal
from aiokcc.runtime.timer import Timeout, timers
from aiokcc.stores.port import ANY_VERSION, Check, Create, Delete, Node, Session, SessionState, Set

if TYPE_CHECKING:
    from aiokcc.runtime.member import Member

__all__ = ["Incarnation"]

log = logging.getLogger("aiokcc.member")

LATE: Final = 1.0
"""Seconds after which a member whose partitions are still at work says which, for whoever looks at the status."""
LINGER: Final = 0.05
"""Seconds in which, under lookahead, more boundaries may be crossed before those that were are reported."""
_BATCH: Final = 500
"""Locks taken or given back in one transaction: far below the store's 1 MB."""


class Incarnation:
    """One member in one session."""

    def __init__(self, member: Member, session: Session) -> None:
        self.member = member
        self.session = session
        self.store = member.store
        self.name = f"{member.name}-{session.id:x}"
        self.generation = Generation(0, "-", "-")
        self.generation_version = ANY_VERSION
        self.written: Report | None = None
        """What our node holds."""
        self.office: Office | None = None
        self.want = Signal()
        self._say = Signal()
        self.share: Share | None = None
        """What is given to us, in a managed group."""
        self._held: set[Partition] = set()
        """The locks we hold, as far as we have been answered."""
        self._leaving: dict[Partition, asyncio.Future[None]] = {}
        """The locks on their way back. Until they are given back nobody can take them, not even we."""
        self.joined_at = 0.0
        """By the event loop's clock."""
        self.late = False
        self._late_timer: Timeout | None = None
        self._moved_at = 0.0
        self._linger_timer: Timeout | None = None
        self._lingers_at: Limit | None = None

    # -- joining ------------------------------------------------------------------------------------------------------

    async def join(self, *, first: bool) -> None:
        """Find the group's agreement or make it, compare it with what we bring, and register.

        GroupMismatchError if the group runs with other settings; RunEnded if it has ended before we ever took part.
        """
        settings, session = self.member.settings, self.session
        run = await self._agreement()
        if run.ended:
            if first:
                raise RunEnded(
                    f"the run under {self.store.describe('')} has ended; to run again, choose another root or delete it"
                )
            self.member.see(END, (await session.get(paths.COORDINATOR)).version)
        theirs = run.settings.partitions
        managed = self.member.group is not None
        if self.member.grows and (managed or theirs < settings.partitions or settings.partitions < theirs):
            # The leader adds what is missing, and takes out what is gone.
            settings = replace(settings, partitions=theirs)
        elif theirs < settings.partitions and self._are_newer(settings.partitions - theirs, theirs):
            settings = replace(settings, partitions=theirs)
        run.require(settings, self.store.describe(""))
        self.member.enlarge(theirs, run.bounds)
        facts: dict[str, Any] = {
            "id": self.name,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "timestamp": self.member.clock(),
            "subscription": encode_partitions(settings.partitions).decode(),
            "pattern": None,
        }
        if self.member.group is not None:
            facts["subscription"], facts["pattern"] = self.member.group.subscription.to_json()
            self.share = Share(self, facts)
        await session.commit(
            Create(paths.progress(self.name), b"", ephemeral=True),
            Create(
                paths.member(self.name),
                encode_member(**facts) if self.share is None else self.share.registration(),
                ephemeral=True,
            ),
        )
        if self.share is not None:
            await self.share.await_predecessor()
        self.joined_at = asyncio.get_running_loop().time()
        self.see_generation(await session.get(paths.GENERATION))
        node = await session.get(paths.COORDINATOR)
        self.member.see(Limit.decode(self.store.describe(node.path), node.data), node.version)

    def _are_newer(self, more: frozenset[Partition], theirs: frozenset[Partition]) -> bool:
        """Whether what the agreed set lacks may have come to be since the run was founded: it keeps its set to the end."""
        known = {p.topic for p in theirs}
        newer = self.member.newer
        return newer == "topics" or (newer == "partitions" and all(p.topic in known for p in more))

    async def _agreement(self) -> Run:
        session, settings = self.session, self.member.settings
        while True:
            node = await session.find(paths.RUN)
            if node is not None:
                path = self.store.describe(paths.TOPIC_PARTITIONS)
                listed = await session.find(paths.TOPIC_PARTITIONS)
                if listed is None:
                    raise MissingNodeError(path)
                self.member.founded = node.created
                return Run.decode(self.store.describe(paths.RUN), node.data, decode_partitions(path, listed.data))
            directories = ["", paths.PROGRESS, paths.LEADER, paths.IDS, paths.OWNERS, paths.CUTS]
            if self.member.group is not None:
                directories += [paths.ASSIGNMENTS, paths.STATE, paths.ISOLATED]
            for directory in directories:
                await session.ensure(directory)
            limit = Limit.first(settings.start, settings.period, settings.lookahead, settings.end)
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
                if await session.find(paths.RUN) is None:  # not another founder, but the remains of something else
                    raise MissingNodeError(self.store.describe(paths.RUN)) from error
            except OutcomeUnknownError:
                pass
            else:
                log.info("%s founded the group under %s", self.name, self.store.describe(""))

    # -- taking part --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take part until the session is lost (SessionLostError), the run is over (returns), or we are cancelled."""
        self.want.set()
        self.limit_moved()  # to us it has: who is slow in the first period is told as well
        errors: list[Exception] = []
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                for task in (self._follow, self._claim, self._report, self._campaign, self._mourn):
                    tasks.start_soon(task)
                if self.share is not None:
                    tasks.start_soon(self.share.follow)
        except ExceptionGroup as group:
            errors = list(_leaves(group))
        finally:
            for timer in (self._late_timer, self._linger_timer):
                if timer is not None:
                    timer.cancel()
            for done in self._leaving.values():
                if not done.done():
                    done.set_result(None)
        if errors:
            over = (SessionLostError, OutcomeUnknownError)
            raise next((error for error in errors if not isinstance(error, over)), errors[0])

    async def _mourn(self) -> None:
        await self.session.until(SessionState.LOST)
        raise SessionLostError("the session is over")

    async def _follow(self) -> None:
        with self.session.watch() as watch:
            self._watch = watch
            watch.add(paths.GENERATION)
            watch.add(paths.TOPIC_PARTITIONS)
            if self.office is None:
                watch.add(paths.COORDINATOR)
            while True:
                for change in await watch.changes():
                    node = change.now
                    if change.path == paths.TOPIC_PARTITIONS:
                        await self._see_set(node)
                        self.member.moved.set()  # even if it is as we knew it: who has read another one meanwhile looks again
                    elif not isinstance(node, Node):
                        raise MissingNodeError(self.store.describe(change.path))
                    elif change.path == paths.GENERATION:
                        self.see_generation(node)
                    else:
                        self.member.see(Limit.decode(self.store.describe(node.path), node.data), node.version)

    async def _see_set(self, node: object) -> None:
        """The agreed set may have grown. One that cannot be read changes nothing: the leader goes by what it has read."""
        if not isinstance(node, Node):
            log.error(
                "%s was deleted; the next leader will not know the set", self.store.describe(paths.TOPIC_PARTITIONS)
            )
            return
        try:
            partitions = decode_partitions(self.store.describe(node.path), node.data)
        except CorruptNodeError as error:
            log.error("%s; the next leader will not know the set", error)
            return
        agreed = self.member.settings.partitions
        if agreed < partitions or (self.share is not None and agreed != partitions):
            run = await self.session.get(paths.RUN)
            bounds = Run.decode(self.store.describe(run.path), run.data, partitions).bounds
            self.member.enlarge(partitions, bounds)
            if self.share is not None:
                self.share.topics_changed()

    def see_generation(self, node: Node) -> None:
        """The generation was read, or written by us: from now on our reports carry it."""
        if node.version <= self.generation_version:
            return
        self.generation = Generation.decode(self.store.describe(node.path), node.data)
        self.generation_version = node.version
        self.member.ledger.generation = self.generation.number
        if self.office is not None and self.generation.leader != self.name:
            self.office.depose()
        self.member.arrived()

    def poke(self) -> None:
        """The ledger has something to say, or may have."""
        if self.office is not None:
            self.office.wake.set()
        if self.office is None or self.late:
            self._say.set()

    def limit_moved(self) -> None:
        """From now on counts the time after which a member says who is slow."""
        self.late = False
        loop = asyncio.get_running_loop()
        self._moved_at = loop.time()
        if self._late_timer is None:
            self._late_timer = timers().call_later(LATE, self._be_late)

    def _be_late(self) -> None:
        """One timer for all periods: it finds out how old the present limit is, instead of being set anew for each."""
        loop = asyncio.get_running_loop()
        left = self._moved_at + LATE - loop.time()
        if left > 0:
            self._late_timer = timers().call_later(left, self._be_late)
            return
        self._late_timer = None
        self.late = True
        self._say.set()

    def linger(self) -> None:
        """There is something to say, and soon there may be more of it. Say it before long, whatever comes."""
        if self._linger_timer is None:
            self._lingers_at = self.member.ledger.limit
            self._linger_timer = timers().call_later(LINGER, self._no_longer)

    def _no_longer(self) -> None:
        """One timer for all periods, here too."""
        self._linger_timer = None
        ledger = self.member.ledger
        if ledger.limit == self._lingers_at:
            ledger.hurries = True
        self.member.arrived()

    async def _report(self) -> None:
        """Write the report whenever it differs from what the node holds; while leading, only when it is late."""
        while True:
            await self._say.wait()
            if self._leaving:
                await self._give_up(list(self._leaving)[:_BATCH])
                self._say.set()
            elif self.office is None or self.late:
                report = self.member.ledger.report(even_running=self.late)
                if report is not None and report.supersedes(self.written):
                    await self._write(report)

    async def _write(self, report: Report) -> None:
        path = paths.progress(self.name)
        try:
            await self.session.set(path, report.encode(), ANY_VERSION)  # nobody else writes this node
        except NoNodeError:
            await self.restore()
            self._say.set()
        else:
            self.written = report

    async def restore(self) -> None:
        """Somebody may have deleted our node: make it again, empty."""
        try:
            await self.session.create(paths.progress(self.name), b"", ephemeral=True)
        except NodeExistsError:
            return
        self.written = None

    # -- locks --------------------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        asked: set[Partition] = set()
        while True:
            await self.want.wait()
            ledger = self.member.ledger
            unavailable = asked | self._leaving.keys()
            wanted = [p for p, lane in ledger.lanes.items() if not lane.owned and p not in unavailable]
            if self.share is not None:
                # All that we were given, or nothing: while one of them is still held by our predecessor the others wait.
                assigned = self.member.assigned or frozenset()
                wanted = [p for p in wanted if p in assigned] if not asked & assigned else []
            batches = [wanted[n : n + _BATCH] for n in range(0, len(wanted), _BATCH)]
            # Taken down now: a claim rests on the assignment by which it is wanted, whatever is read while it is on its way.
            conditions = [[] if self.share is None else self.share.conditions(batch) for batch in batches]
            for batch, resting_on in zip(batches, conditions, strict=True):
                taken, refused = await self._take(batch, resting_on)
                for partition in refused:
                    asked.add(partition)
                    self._tasks.start_soon(self._await_release, partition, asked)
                if taken:
                    await self._read_after_claim(taken)

    async def _take(self, wanted: list[Partition], conditions: list[Check]) -> tuple[list[Partition], list[Partition]]:
        """Take all of these locks in one transaction, without those that somebody else holds; both lists.

        In a managed group the transaction rests on the assignment too, and one lock that somebody else holds keeps us from all.
        """
        refused: list[Partition] = []
        ours: list[Partition] = []
        share = self.share
        for topic in {p.topic for p in wanted} if share is None else ():
            await self.session.ensure(f"{paths.OWNERS}/{topic}")
        while wanted:
            locks = [Create(paths.owner(p), self.name.encode(), ephemeral=True) for p in wanted]
            try:
                await self.session.commit(Check(paths.GENERATION, self.generation_version), *conditions, *locks)
            except BadVersionError as error:
                if error.path != paths.GENERATION:
                    wanted = []  # there is another assignment; when we have read it we shall know what to want
                    break
                self.see_generation(await self.session.get(paths.GENERATION))
            except NoNodeError as error:
                if not error.path.startswith(f"{paths.ASSIGNMENTS}/"):
                    raise
                wanted = []  # the topic has left the set since; we shall be told
                break
            except NodeExistsError as error:
                place = (error.index or 1) - 1 - len(conditions)
                if share is not None:
                    held, wanted = wanted, []
                    mine = await self._which_are_ours(held)
                    ours += [p for p in held if p in mine]
                    if held[place] not in mine:
                        refused.append(held[place])
                    elif len(mine) < len(held):
                        wanted = [p for p in held if p not in mine]
                    continue
                partition = wanted.pop(place)
                node = await self.session.find(paths.owner(partition))
                # ours already: an answer that never came, or given up and opened again before it was given back
                (ours if node is not None and node.owner == self.session.id else refused).append(partition)
            except OutcomeUnknownError:
                continue
            else:
                break
        self._held.update(ours, wanted)
        self._tell_what_runs()
        return ours + wanted, refused

    async def _which_are_ours(self, partitions: list[Partition]) -> set[Partition]:
        """Those whose locks this session holds, asked for side by side."""
        nodes = await asyncio.gather(*(self.session.find(paths.owner(p)) for p in partitions))
        return {
            p for p, node in zip(partitions, nodes, strict=True) if node is not None and node.owner == self.session.id
        }

    def _tell_what_runs(self) -> None:
        if self.share is not None:
            self.share.runs(frozenset(self._held))

    async def _read_after_claim(self, taken: list[Partition]) -> None:
        async with anyio.create_task_group() as tasks:
            if self.member.on_claim is not None:
                tasks.start_soon(self.member.on_claim, self.session, taken)
            node, cut = await limit_and_cut(self.store, self.session, self.member.version)
        self.member.see(Limit.decode(self.store.describe(node.path), node.data), node.version)
        if cut is not None:
            self.member.ledger.closed(cut.limit)
            for partition in taken:
                gate, mark = self.member.gates.get(partition), cut.find(partition)
                if gate is not None and mark is not None:
                    gate.resume_offset = mark.offset
        held = [p for p in taken if p in self._held and p not in self._leaving]
        self.member.claimed(held)
        for partition in held:
            if partition not in self.member.ledger.lanes:  # given up while we asked for it
                self.give_back(partition)

    async def _await_release(self, partition: Partition, asked: set[Partition]) -> None:
        """Wait until the other owner is gone, then try again; give up after a while, and say whose it is."""
        timeout = self.member.claim_timeout
        if timeout is None:
            timeout = 2 * self.session.timeout
        owner = "?"
        with anyio.move_on_after(timeout) as scope, self.session.watch() as watch:
            watch.add(paths.owner(partition))
            async for change in watch:
                if not isinstance(change.now, Node):
                    break
                owner = change.now.data.decode(errors="replace")
        asked.discard(partition)
        gate = self.member.gates.get(partition)
        if scope.cancelled_caught:
            if gate is not None:
                gate.failure = PartitionOwnedError(str(partition), owner, timeout)
                gate.signal.set()
            self.member.abandon(partition)
        self.want.set()

    def holds(self, partition: Partition) -> bool:
        """Whether we hold this lock in this session, as far as we have been answered."""
        return partition in self._held

    async def release(self, partition: Partition) -> None:
        """Give a partition's lock back, with others that are given back at the same time."""
        await asyncio.shield(self.give_back(partition))

    def give_back(self, partition: Partition) -> asyncio.Future[None]:
        """Have the lock given back, without waiting for it."""
        done = self._leaving.setdefault(partition, asyncio.get_running_loop().create_future())
        self._say.set()
        return done

    async def _give_up(self, partitions: list[Partition], *, look: bool = False) -> None:
        """The report without these partitions and the deletion of their locks, in one transaction.

        Only our own locks are deleted. What we have taken and is still assigned to us nobody else can have taken since, so
        there it is enough to check the assignment; otherwise, or if that is refused, we look.
        """
        report = self.member.ledger.report(even_running=True)
        content = b"" if report is None else report.encode()
        share = None if look or not self._held.issuperset(partitions) else self.share
        resting_on = None if share is None else share.proof(partitions)
        ours = await self._which_are_ours(partitions) if resting_on is None else partitions
        try:
            await self.session.commit(
                Check(paths.GENERATION, self.generation_version),
                *(resting_on or ()),
                Set(paths.progress(self.name), content, ANY_VERSION),
                *(Delete(paths.owner(p), ANY_VERSION) for p in partitions if p in ours),
                *(() if self.share is None else self.share.farewell()),
            )
        except BadVersionError as error:
            if error.path == paths.GENERATION:
                self.see_generation(await self.session.get(paths.GENERATION))
            else:
                await self._give_up(partitions, look=True)
            return
        except NoNodeError as error:  # our node, or a lock
            if resting_on is not None and error.path.startswith((f"{paths.OWNERS}/", f"{paths.ASSIGNMENTS}/")):
                await self._give_up(partitions, look=True)
                return
            if self.share is not None and error.path == paths.member(self.name):
                self.share.gone = True
            await self.restore()
            return
        except OutcomeUnknownError:
            self.written = None
            return
        self.written = report
        self._held.difference_update(partitions)
        self._tell_what_runs()
        if self.share is not None and self.member.leaving:
            self.share.gone = True
        self.want.set()  # for who has opened one of them again meanwhile
        for partition in partitions:
            done = self._leaving.pop(partition)
            if not done.done():
                done.set_result(None)

    # -- office -------------------------------------------------------------------------------------------------------

    async def _campaign(self) -> None:
        """Stand for election for as long as the session lasts; lead when it is our turn."""
        while True:
            async with campaign(self.session, self.name, self.member.clock) as candidate:
                office = Office(self)
                if not await office.take(candidate):
                    continue
                log.info("%s leads under generation %d", self.name, office.epoch)
                self.office = office
                if self.generation.leader != self.name:  # somebody has taken over while we read
                    office.depose()
                self._watch.remove(paths.COORDINATOR)
                try:
                    await office.serve()
                finally:
                    self.office = None
                    self._watch.add(paths.COORDINATOR)
                    self._say.set()
                log.info("%s no longer leads", self.name)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[Exception]:
    result: list[Exception] = []
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            result += _leaves(error)
        elif isinstance(error, Exception):
            result.append(error)
    return result
