"""The store of a process that shares its host: its sessions come from the process that serves, which may be this one.

:class:`HostStore` connects to the process that serves the host, and serves itself if there is none.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio

from aiokcc.errors import StoreUnreachableError
from aiokcc.runtime.host.channel import Message, ProcessChannel
from aiokcc.runtime.host.client import VERSION
from aiokcc.runtime.host.place import MeetingPlace
from aiokcc.runtime.host.service import HostService
from aiokcc.runtime.host.session import HostedSession
from aiokcc.stores.port import Session, Store, boottime

if TYPE_CHECKING:
    from aiokcc.core.partitions import Partition
    from aiokcc.core.run import Bounds
    from aiokcc.runtime.options import GroupOptions

__all__ = ["HostStore"]

log = logging.getLogger("aiokcc.runtime")

_ANSWER_FRACTION: Final = 1 / 3
"""The part of the session's timeout within which a process that serves answers a new client."""
LEAVE_SECONDS: Final = 2.0
"""The time that the clients of a process that leaves have to leave too, before they are told to find another one."""


class HostStore(Store):
    """A store whose sessions are those of the host."""

    def __init__(
        self,
        store: Store,
        place: MeetingPlace,
        options: GroupOptions,
        partitions: frozenset[Partition],
        resolve: Callable[[], Awaitable[Mapping[Partition, Bounds]]] | None,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        self.url, self.root = store.url, store.root
        self.volatile, self.forgets_unfinished = store.volatile, store.forgets_unfinished
        self.name = options.member or f"process-{os.getpid()}"
        self._store = store
        self._place = place
        self._options = options
        self._partitions = partitions
        self._resolve = resolve
        self._tasks = tasks
        self._service: HostService | None = None
        """The service that this process runs, or ran last."""

    async def leave(self) -> None:
        """Waits a moment for our clients to leave too, if we serve: processes that stop together commit what they have done."""
        if self._service is not None:
            with anyio.move_on_after(LEAVE_SECONDS):
                await self._service.wait_until_left()

    def at(self, root: str) -> Store:
        """Returns the store of another root, which no process of this host shares."""
        return self._store.at(root)

    def describe(self, path: str) -> str:
        """Returns the full name of a node for messages."""
        return self._store.describe(path)

    def session(
        self, *, timeout: float = 10.0, connect_timeout: float | None = 10.0
    ) -> AbstractAsyncContextManager[Session]:
        """Opens the session of the host. A process without a ``connect_timeout`` has taken part before, and tries for ever."""
        return self._opened(timeout, connect_timeout)

    @asynccontextmanager
    async def _opened(self, timeout: float, connect_timeout: float | None) -> AsyncIterator[Session]:
        session = await self._find_or_serve(timeout, connect_timeout)
        try:
            yield session
        finally:
            session.lose()

    async def _find_or_serve(self, timeout: float, connect_timeout: float | None) -> HostedSession:
        """Connects to the process that serves. If there is none, or it does not answer, this process serves."""
        asked_at = boottime()
        while True:
            session = await self._greet(timeout)
            if session is not None:
                return session
            # A process that is stopped in the moment of its reservation must not keep the others from serving.
            if self._place.reserve() or boottime() >= asked_at + timeout:
                try:
                    session = await self._greet(timeout * _ANSWER_FRACTION)
                    if session is not None:
                        return session
                    await self._serve(first=connect_timeout is not None)
                finally:
                    self._place.end_reservation()
            elif connect_timeout is not None and boottime() >= asked_at + connect_timeout + timeout:
                raise StoreUnreachableError("the process that is about to serve this host does not get ready")
            else:
                with anyio.move_on_after(max(0.0, asked_at + timeout - boottime())):
                    await self._place.wait_reserved()

    async def _greet(self, timeout: float) -> HostedSession | None:
        channel = await self._place.connect()
        return None if channel is None else await greet(channel, self.name, timeout * _ANSWER_FRACTION)

    async def _serve(self, *, first: bool) -> None:
        """Starts to serve. Raises what joining the group raises."""
        service = HostService(self._store, self._options, self._partitions, self._resolve, first=first)
        await self._tasks.start(self._run_service, service)
        self._service = service

    async def _run_service(self, service: HostService, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        await service.run(lambda: self._place.listen(service.connect), task_status=task_status)


async def greet(channel: ProcessChannel, name: str, seconds: float) -> HostedSession | None:
    """Introduces this process to the one that serves. Returns the session; None if there is no answer in time."""
    answer: asyncio.Future[HostedSession | None] = asyncio.get_running_loop().create_future()

    def received(message: Message) -> None:
        # Made here, so that it gets the messages that follow.
        if not answer.done():
            answer.set_result(HostedSession(channel, message) if message.get("welcome") == VERSION else None)

    def closed() -> None:
        if not answer.done():
            answer.set_result(None)

    channel.received, channel.closed = received, closed
    channel.send({"hello": name, "pid": os.getpid(), "version": VERSION})
    session: HostedSession | None = None
    try:
        with anyio.move_on_after(seconds):
            session = await asyncio.shield(answer)
    finally:
        if session is None:
            if answer.done() and not answer.cancelled() and (late := answer.result()) is not None:
                late.lose()
            channel.close()
    return session
