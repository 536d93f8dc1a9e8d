"""A process that shares the session of its host: the member, and its side of one session.

Its gates, its progress and the layers above are those of every other member. Only what a member does in the store is different:
locks are opened and released through the process that serves the host, the report goes to it, and the limit comes from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from aiokcc.core import paths
from aiokcc.core.limit import Limit
from aiokcc.core.partitions import Partition
from aiokcc.core.run import Generation
from aiokcc.errors import SessionLostError
from aiokcc.runtime.host.channel import Message, decode_error
from aiokcc.runtime.host.session import HostedSession
from aiokcc.runtime.member import Member
from aiokcc.runtime.member_session import MemberSession
from aiokcc.runtime.own_report import OwnReport
from aiokcc.runtime.ownership import Ownership
from aiokcc.runtime.signal import Signal
from aiokcc.stores.port import Node, Session

if TYPE_CHECKING:
    from aiokcc.core.report import Report

__all__ = ["HostedMember"]


class HostedMember(Member):
    """A process that takes part through its host. Its store opens :class:`HostedSession`."""

    def _member_session(self, session: Session) -> MemberSession:
        assert isinstance(session, HostedSession)
        return HostedMemberSession(self, session)

    def forget(self, partition: Partition) -> None:
        """Forgets a partition; if its lock was asked for and has not come yet, it is not wanted any more."""
        super().forget(partition)
        if isinstance(self.member_session, HostedMemberSession):
            self.member_session.ownership.forgotten(partition)

    def lost(self, session: HostedSession) -> None:
        """Notes how a session was lost. If nobody said that it was, another process may have had our partitions under it."""
        if not session.dismissed:
            for progress in self.progress.partitions.values():
                if progress.holders:
                    progress.holders = {""}


class HostedMemberSession(MemberSession):
    """A process of a host in one session of the host."""

    ownership: HostedOwnership

    def __init__(self, member: HostedMember, session: HostedSession) -> None:
        super().__init__(member, session)
        self._hosted_member, self._hosted = member, session
        self.own_report = HostedReport(session, self.name, member.progress)
        self.ownership = HostedOwnership(member, session, self.generation, self.own_report, None)
        session.pushed = self._pushed

    def _pushed(self, message: Message) -> None:
        """Takes what the process that serves has to tell."""
        if "limit" in message:
            limit = Limit.decode(self.store.describe(paths.COORDINATOR), message["limit"].encode())
            self.member.see(limit, message["version"])
        elif "claimed" in message:
            self.ownership.answered([Partition(*p) for p in message["claimed"]], message["holders"])
        elif "generation" in message:
            number, leader, version = message["generation"]
            self.generation.see(Node(paths.GENERATION, Generation(number, leader, "").encode(), version))
        elif "refused" in message:
            self.ownership.refused(Partition(*message["refused"]), decode_error(message["error"]))
        elif "failed" in message:
            self.member.fail(decode_error(message["failed"]))

    async def _register(self, *, first: bool) -> None:
        """Compares our settings with those of the run. The host is registered, not we."""
        await self._agree(first=first)

    async def run(self) -> None:
        """Takes part until the session is lost (SessionLostError) or it is cancelled."""
        try:
            await super().run()
        except SessionLostError:
            if self.member.failure is not None:  # it is lost because the group cannot go on
                raise self.member.failure from None
            raise
        finally:
            self._hosted_member.lost(self._hosted)

    async def _follow(self) -> None:
        """Says that we are alive. The limit, the generation and the locks come by themselves."""
        await self._hosted.keep_alive()

    async def _campaign(self) -> None:
        """Leaves leading to the member of the host."""


class HostedReport(OwnReport):
    """Sends the report to the process that serves, which mirrors it."""

    _session: HostedSession

    async def _write(self, report: Report) -> None:
        self._session.send({"report": report.encode().decode()})
        self.written = report


class HostedOwnership(Ownership):
    """The locks of one process: the host holds them for it."""

    _session: HostedSession

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._asked: set[Partition] = set()
        """The partitions that we have asked for, and that we have or wait for."""
        self._answers: list[tuple[Partition, str]] = []
        self._answered = Signal()

    async def claim(self) -> None:
        """Asks for the partitions that are wanted, and takes those that the host has claimed for us, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._take_answers)
            while True:
                await self.claim_needed.wait()
                unavailable = self._asked | self._releasing.keys()
                wanted = [p for p in self._member.progress.partitions if p not in unavailable]
                if wanted:
                    self._asked.update(wanted)
                    gates = [self._member.gates.get(p) for p in wanted]
                    skips = [gate is not None and gate.skips_closed for gate in gates]
                    self._session.send({"open": wanted, "skips": skips})

    def answered(self, partitions: list[Partition], holders: list[str]) -> None:
        """Takes the locks that the host has claimed for us, and the names under which it holds them."""
        self._answers += zip(partitions, holders, strict=True)
        self._answered.set()

    async def _take_answers(self) -> None:
        while True:
            await self._answered.wait()
            answers, self._answers = self._answers, []
            for holder in dict.fromkeys(name for _, name in answers):
                taken = [p for p, name in answers if name == holder and p in self._asked]
                self._held.update(taken)
                self._name = holder
                await self._read_after_claim(taken)
                self._own_report.written = None  # what was mirrored may be of a process before us
                self._own_report.needed.set()

    def refused(self, partition: Partition, error: Exception) -> None:
        """Notes that the host does not get a lock for us."""
        if partition not in self._asked:
            return
        self._asked.discard(partition)
        self._held.discard(partition)
        gate = self._member.gates.get(partition)
        if gate is not None:
            gate.failure = error
            gate.signal.set()
        self._member.forget(partition)

    def forgotten(self, partition: Partition) -> None:
        """Releases a partition that was asked for and has not come yet: nobody waits for it any more."""
        if partition in self._asked and partition not in self._held:
            self.start_release(partition)

    async def _release(self, partitions: list[Partition], *, look: bool = False) -> None:
        """Has the host release these partitions; ``look`` is not needed here."""
        await self._session.call("release", *partitions)
        self._held.difference_update(partitions)
        self._asked.difference_update(partitions)
        self._own_report.written = None
        self._end_release(partitions)
