"""The process that serves its host: one member with one session, for the partitions of all processes of the host.

The service lives as long as its session. Each client has a connection; what the store's session is to a member, the connection
is to a client. The member holds a gate for each partition that a client has opened, and mirrors what the clients report of
them, so the store sees one member with all these partitions. When the session is lost, or the service ends, all clients are
told, and their partitions are released only when none of them can start a record any more ([host lease] in
docs/explanation/protocol.md).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import anyio

from aiokcc.core import paths
from aiokcc.core.partitions import Partition, encode_partitions
from aiokcc.core.report import Report
from aiokcc.core.run import encode_member
from aiokcc.errors import (
    MissingNodeError,
    NoNodeError,
    OutcomeUnknownError,
    SessionLostError,
)
from aiokcc.exception_groups import main_error
from aiokcc.runtime.host.channel import Message, ProcessChannel, encode_error
from aiokcc.runtime.host.client import VERSION, Client
from aiokcc.runtime.host.place import Listening
from aiokcc.runtime.member import Member
from aiokcc.runtime.member_session import MemberSession
from aiokcc.runtime.metrics import observe_connection, observing
from aiokcc.runtime.signal import Signal
from aiokcc.stores.port import ANY_VERSION, Session, SessionState, boottime

if TYPE_CHECKING:
    from aiokcc.core.limit import Limit
    from aiokcc.core.report import Cut
    from aiokcc.core.run import Bounds
    from aiokcc.runtime.options import GroupOptions
    from aiokcc.stores.port import Store

__all__ = ["HostService"]

log = logging.getLogger("aiokcc.runtime")

_SESSION_ERRORS: Final = (SessionLostError, OutcomeUnknownError)
"""The errors after which a new session is always safe."""
_CHECKS: Final = 4
"""Silent clients are looked for this many times within the session's timeout. A client that is silent causes no event."""
_GATHER_SECONDS: Final = 0.2
"""The time in which changes of the processes are gathered for one registration."""


class HostMember(Member):
    """The member of a host. It has the partitions of all its processes and handles no record itself."""

    service: HostService

    def see(self, limit: Limit, version: int) -> None:
        """Takes a limit that was read, and hands it on first."""
        before = self.progress.limit
        super().see(limit, version)
        if self.progress.limit != before:
            self.service.limit_moved()

    def claimed(self, partitions: list[Partition], holder: str, cut: Cut | None) -> None:
        """Notes that we hold these locks, and tells the processes that opened them."""
        super().claimed(partitions, holder, cut)
        self.service.claimed(partitions)

    def fail(self, error: Exception) -> None:
        """Notes that the group cannot go on."""
        super().fail(error)
        self.service.failed(error)

    def report_if_due(self) -> None:
        """Reports if it is time, and hands a new generation on: it calls this as well."""
        super().report_if_due()
        self.service.generation_changed()


class HostService:
    """Serves the processes of a host as long as one session with the store lasts. :meth:`run` drives it.

    :param first: whether a run that has ended is an error, because the process that serves has never taken part in it
    """

    def __init__(
        self,
        store: Store,
        options: GroupOptions,
        partitions: frozenset[Partition],
        resolve: Callable[[], Awaitable[Mapping[Partition, Bounds]]] | None,
        *,
        first: bool = True,
    ) -> None:
        self.member = HostMember(store, replace(options, member=None), partitions, resolve)
        self.member.service = self
        # The processes wait for milestones themselves, also for those that follow from a chosen lookahead.
        self.member.progress.milestone_interval = self.member.progress.chain_period = 0
        self._first = first
        self.clients: set[Client] = set()
        self.holders: dict[Partition, Client] = {}
        """The process that has each partition, or waits for its lock."""
        self.held_before: dict[Partition, int] = {}
        """The number of the process that had each partition last; 0 if there were several."""
        self.freed = anyio.Event()
        """Set, and made anew, when a process has released partitions."""
        self.tasks: anyio.abc.TaskGroup
        self.session: Session
        self._member_session: MemberSession | None = None
        self.ending = False
        """True once nothing is taken from clients any more."""
        self._numbers = 0
        self._told_generation = ANY_VERSION
        self._emptied = anyio.Event()
        self._registration_needed = Signal()
        self._jobs: deque[tuple[Callable[..., Coroutine[Any, Any, None]], tuple[object, ...]]] = deque()
        self._jobs_added = Signal()
        self._stop = anyio.CancelScope()

    # -- life -----------------------------------------------------------------------------------------------------------

    async def run(self, listen: Callable[[], Awaitable[Listening]], *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Joins the group, calls ``listen``, and serves until the session is lost, the group fails, or it is cancelled.

        Raises what joining raises. Later errors are told to the clients.
        """
        member = self.member
        options, started = member.options, False
        listening: Listening | None = None
        timeout, connect_timeout = options.session_timeout, options.connect_timeout if self._first else None
        try:
            async with member.store.session(timeout=timeout, connect_timeout=connect_timeout) as session:
                self.session = session
                member_session = MemberSession(member, session)
                try:
                    await member_session.join(first=self._first)
                    member.begin(member_session)
                    self._member_session = member_session
                    async with anyio.create_task_group() as self.tasks:
                        self.tasks.start_soon(self._start_jobs)
                        self.tasks.start_soon(self._watch_clients)
                        self.tasks.start_soon(self._register, member_session)
                        listening = await listen()
                        log.info("%s serves the processes of this host", self.name, extra={"member": self.name})
                        started = True
                        task_status.started()
                        with self._stop, observing(observe_connection(member)):
                            await member_session.run()
                        self.tasks.cancel_scope.cancel()
                except Exception as group:
                    if not started:
                        raise
                    self._failed(main_error(group, lambda error: not isinstance(error, _SESSION_ERRORS)))
                finally:
                    if listening is not None:
                        listening.close()
                    with anyio.CancelScope(shield=True):
                        await self._dismiss_all()
        except ExceptionGroup as group:
            if started:
                raise
            raise main_error(group) from None

    def _failed(self, error: BaseException) -> None:
        """Tells the clients why the service ends, unless they may simply join again."""
        if isinstance(error, _SESSION_ERRORS):
            log.warning("%s: %s; its processes join again", self.name, error, extra={"member": self.name})
        elif isinstance(error, NoNodeError):
            self.member.fail(MissingNodeError(self.member.store.describe(error.path)))
        elif isinstance(error, Exception):
            self.member.fail(error)

    async def wait_until_left(self) -> None:
        """Waits until no client is left, or the service has ended."""
        while self.clients and not self.ending:
            self._emptied = anyio.Event()
            await self._emptied.wait()

    def end(self) -> None:
        """Ends the service: the clients are told, and then the session is closed."""
        self._stop.cancel()

    async def _dismiss_all(self) -> None:
        """Tells all clients that the session is over, and waits until none of them can start a record under it."""
        self.ending = True
        self._emptied.set()
        for client in list(self.clients):
            client.dismiss()
        while self.clients:
            last = max(client.lease for client in self.clients)
            if boottime() >= last or self.session.state is SessionState.LOST:
                break
            self._emptied = anyio.Event()
            with anyio.move_on_after(last - boottime()):
                await self._emptied.wait()
        for client in self.clients:
            client.channel.close()

    def spawn(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        """Has a task started. A message comes in a callback of the event loop, where a task group cannot start one."""
        self._jobs.append((function, arguments))
        self._jobs_added.set()

    async def _start_jobs(self) -> None:
        while True:
            await self._jobs_added.wait()
            while self._jobs:
                function, arguments = self._jobs.popleft()
                self.tasks.start_soon(function, *arguments)

    async def _watch_clients(self) -> None:
        """Releases the partitions of clients that were not heard for the session's timeout: none of them starts a record.

        Ends the service if it has had no client for as long: our own process has found another one.
        """
        needed_at = boottime()
        while True:
            await anyio.sleep(self.session.timeout / _CHECKS)
            if self.clients:
                needed_at = boottime()
            elif boottime() >= needed_at + self.session.timeout:
                self.end()
                return
            for client in list(self.clients):
                if boottime() >= client.heard_at + self.session.timeout:
                    facts = {"member": self.name, "host_process": client.name}
                    log.warning("%s: %s is silent; its partitions are released", self.name, client.name, extra=facts)
                    client.channel.close()
                    client.gone()

    async def _register(self, member_session: MemberSession) -> None:
        """Keeps the registration of the host up to date with its processes and their partitions."""
        path, facts = paths.member(self.name), member_session.facts()
        while True:
            await self._registration_needed.wait()
            await anyio.sleep(_GATHER_SECONDS)  # processes come, and go, in groups
            self._registration_needed.clear()
            processes = {
                client.name: {"pid": client.pid, "partitions": encode_partitions(frozenset(client.gates)).decode()}
                for client in sorted(self.clients, key=lambda client: client.number)
            }
            data = encode_member(**facts, subscription="", pattern=None, processes=processes)
            try:
                await self.session.set(path, data, ANY_VERSION)  # nobody else writes this node
            except (NoNodeError, OutcomeUnknownError):
                log.info("%s: the registration could not be written", self.name)

    # -- to the clients -------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The member session of the host."""
        assert self._member_session is not None
        return self._member_session.name

    def limit_moved(self) -> None:
        """Hands the limit on."""
        message = self._limit()
        for client in self.clients:
            client.tell(message)

    def _limit(self) -> Message:
        return {"limit": self.member.progress.limit.encode().decode(), "version": self.member.version}

    def generation_changed(self) -> None:
        """Hands a new generation on."""
        known = None if self._member_session is None else self._member_session.generation
        if known is None or known.version == self._told_generation:
            return
        self._told_generation = known.version
        for client in self.clients:
            client.tell(self._generation())

    def _generation(self) -> Message:
        assert self._member_session is not None
        known = self._member_session.generation
        return {"generation": [known.number, known.leader, known.version]}

    def claimed(self, partitions: list[Partition]) -> None:
        """Tells each client which locks the host has claimed for it."""
        for client in self.clients:
            mine = [p for p in partitions if self.holders.get(p) is client]
            if mine:
                client.tell({"claimed": mine, "holders": [self._holder(p, client) for p in mine]})
        self._registration_needed.set()

    def _holder(self, partition: Partition, client: Client) -> str:
        """Returns the name under which a client holds a lock: the host's own if no other client had the partition before."""
        before = self.held_before.get(partition, client.number)
        self.held_before[partition] = client.number if before == client.number else 0
        return self.name if before == client.number else f"{self.name}.{client.number}"

    def failed(self, error: Exception) -> None:
        """Tells all clients that the group cannot go on."""
        for client in self.clients:
            client.tell({"failed": encode_error(error)})

    # -- from the clients -----------------------------------------------------------------------------------------------

    def connect(self, channel: ProcessChannel) -> None:
        """Takes the connection of a new client."""
        self._numbers += 1
        if self._member_session is None or self.ending:
            channel.close()
            return
        Client(self, channel, self._numbers)

    def joined(self, client: Client) -> None:
        """Notes that a client has introduced itself. It is registered, also while it waits for partitions of others."""
        self.clients.add(client)
        self._registration_needed.set()

    def left(self, client: Client) -> None:
        """Notes that a client is gone."""
        self.clients.discard(client)
        self._registration_needed.set()
        self._emptied.set()

    def welcome(self) -> Message:
        """Returns what a new client is told."""
        return {
            "welcome": VERSION,
            "host": self.name,
            "session": self.session.id,
            "timeout": self.session.timeout,
            **self._limit(),
            **self._generation(),
        }

    def mirror(self, report: Report, client: Client) -> None:
        """Takes the report of a client."""
        self.member.progress.mirror(report, client.gates)
        self.member.report_if_due()
