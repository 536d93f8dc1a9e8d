"""The knowledge of a leader: what it reads after its take-over, and what it learns from then on.

Everything that the leader decides by is here, with the versions on which its writes are conditional. What it does with it is in
:mod:`aiokcc.runtime.leader_term`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import anyio

from aiokcc.core import paths
from aiokcc.core.leader import Leader, blockers
from aiokcc.core.limit import Limit, Mode, Request, RequestKind
from aiokcc.core.partitions import Partition, decode_partitions, listing
from aiokcc.core.report import Cut, Report
from aiokcc.core.run import Run
from aiokcc.errors import (
    BadVersionError,
    CorruptNodeError,
    MissingNodeError,
    NodeError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
)
from aiokcc.runtime.announcements import Announcements
from aiokcc.runtime.assignment_leader import AssignmentLeader
from aiokcc.runtime.cuts import last_cut, limit_and_cut
from aiokcc.stores.port import ANY_VERSION, Change, Node

if TYPE_CHECKING:
    from aiokcc.runtime.followed_generation import FollowedGeneration
    from aiokcc.runtime.member import Member
    from aiokcc.runtime.own_report import OwnReport
    from aiokcc.stores.port import Session

__all__ = ["LeaderKnowledge"]

log = logging.getLogger("aiokcc.runtime")


class LeaderKnowledge:
    """The facts of one leader term, as they were read."""

    def __init__(self, member: Member, session: Session, generation: FollowedGeneration, own_report: OwnReport) -> None:
        self._member = member
        self._session = session
        self._store = member.store
        self._generation = generation
        self._own = own_report
        self._name = own_report.name
        self.epoch = 0
        self.generation_version = ANY_VERSION
        self._request_version = ANY_VERSION
        self._run_version = ANY_VERSION
        self._partitions_version = ANY_VERSION
        self._run: Run
        self._leader: Leader
        self.assignment_leader: AssignmentLeader | None = None
        """Assigns the partitions of a managed group."""
        self._watched: set[str] = set()
        self._versions: dict[str, int] = {}
        """The versions of the reports by member."""
        self._scope = anyio.CancelScope()
        self._announcements = Announcements(session, own_report.name)
        self._repairs_limit = False
        """True if the node holds a limit that no leader wrote: then the known one is written again."""
        self._announces_limit = False
        """True if the limit was not announced, and there may be members to tell it."""

    async def _read_everything(self) -> None:
        """Reads all nodes side by side. All reads are sent after the take-over."""
        listed, run, limit, *_ = await asyncio.gather(
            self._get(paths.TOPIC_PARTITIONS),
            self._get(paths.RUN),
            limit_and_cut(self._store, self._session, self._member.version),
            self._announcements.read(),
            *(() if self.assignment_leader is None else (self.assignment_leader.read(),)),
        )
        partitions = decode_partitions(self._store.describe(listed.path), listed.data)
        self._partitions_version = listed.version
        self._learn_run(run, partitions)
        self._leader = Leader(self._run.settings, self.epoch, Limit((0,)), ANY_VERSION, None)
        self._learn_limit(*limit)
        self._check_announced()
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

    def _check_announced(self) -> None:
        """Has the limit announced if it was not: the leader was alone, or somebody else than a leader wrote the node."""
        self._announces_limit = not self._announcements.has(self._leader.version)

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

    def depose(self) -> None:
        """Ends the term at once: another member has taken over."""
        self._scope.cancel()

    # -- what it learns ---------------------------------------------------------------------------------------------

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
                facts = {"generation": self.epoch, "partitions": [str(p) for p in left]}
                log.warning(
                    "%s is gone; the limit waits for the next owner of %s", name, listing(map(str, left)), extra=facts
                )
        else:
            assert isinstance(change.now, Node)
            self._leader.reports[name] = report
            self._versions[name] = change.now.version

    async def read_again(self, error: NodeError | OutcomeUnknownError) -> None:
        """Reads the state again after a write was refused or its outcome is unknown. Ends the term if it is over."""
        if isinstance(error, OutcomeUnknownError):
            self._own.written = None
        node = await self._get(paths.GENERATION)
        if node.version != self.generation_version:
            self.depose()
            await anyio.lowlevel.checkpoint()
        node = await self._get(paths.COORDINATOR)
        if node.version == self._leader.version:
            self._learn_limit(node, None)
        else:
            await self._announcements.read()
            self._learn_limit(node, await last_cut(self._store, self._session, node.version))
            self._check_announced()
        self._learn_request(await self._session.find(paths.PERIOD))
        if (
            isinstance(error, BadVersionError) and error.path == paths.TOPIC_PARTITIONS
        ):  # written by hand: our set stays
            self._partitions_version = (await self._get(paths.TOPIC_PARTITIONS)).version
        elif isinstance(error, NodeError) and error.path == paths.RUN:
            self._learn_run(await self._get(paths.RUN), self._run.settings.partitions)
        elif isinstance(error, NodeError) and error.path in self._watched:
            self._learn_report(Change(error.path, await self._session.find(error.path)))
        elif isinstance(error, NodeExistsError):  # created by hand
            await self._announcements.remove(error.path)
        elif isinstance(error, NoNodeError):
            if error.path.startswith(f"{paths.LIMITS}/"):
                await self._announcements.read()
            elif error.path == paths.progress(self._name):
                await self._own.restore()
            elif error.path != paths.PERIOD and not error.path.startswith(f"{paths.PROGRESS}/"):
                raise MissingNodeError(self._store.describe(error.path)) from error

    async def _get(self, path: str) -> Node:
        node = await self._session.find(path)
        if node is None:
            raise MissingNodeError(self._store.describe(path))
        return node
