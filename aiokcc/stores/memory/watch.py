"""The memory store's watch: the watched paths that have changed since they were last reported.

The server marks a path when it changes; its content is read when it is reported. So the content reported last is what the
tree holds, whatever was skipped. A cancelled call loses nothing: its paths stay marked.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiokcc.errors import SessionLostError
from aiokcc.stores.memory.broadcast import Broadcast
from aiokcc.stores.memory.server import Call
from aiokcc.stores.memory.tree import Key
from aiokcc.stores.port import Change, SessionState, Watch

if TYPE_CHECKING:
    from aiokcc.stores.memory.session import MemorySession

__all__ = ["MemoryWatch"]


class MemoryWatch(Watch):
    """The watched paths of one session, and those of them with an unreported change."""

    def __init__(self, session: MemorySession) -> None:
        self._session, self._closed = session, session.state is SessionState.LOST
        self._paths: dict[Key, str] = {}
        self._unreported: dict[Key, None] = {}
        self._wakeup = Broadcast()
        self._scopes: set[asyncio.Timeout] = set()

    def add(self, path: str) -> None:
        self._add(path, names=False)

    def add_children(self, path: str) -> None:
        self._add(path, names=True)

    def _add(self, path: str, *, names: bool) -> None:
        key = self._session._full(path), names
        if not self._closed and key not in self._paths:
            self._paths[key] = path
            self._session._server._watches.setdefault(key, {})[self] = None
            self._mark_changed(key)

    def remove(self, path: str) -> None:
        full = self._session._full(path)
        self._forget((full, False))
        self._forget((full, True))

    def _forget(self, key: Key) -> None:
        if self._paths.pop(key, None) is not None:
            self._unreported.pop(key, None)
            watches = self._session._server._watches
            del watches[key][self]
            if not watches[key]:
                del watches[key]

    def _mark_changed(self, key: Key) -> None:
        self._unreported[key] = None
        self._wakeup.notify_all()

    async def changes(self) -> list[Change]:
        session = self._session
        session._check_loop()
        waited = False
        while True:
            if self._closed:
                raise self._closed_error()
            if self._unreported and session._can_receive:
                if session._server._hooks:
                    if changes := await self._report_through_hooks():
                        return changes
                elif waited:
                    return list(self._take().values())
                else:
                    await asyncio.sleep(0)
                    waited = True
            else:
                await self._wakeup.wait()
                waited = True

    async def _report_through_hooks(self) -> list[Change]:
        """Return the changes by way of the hooks: a slow ``before`` delays the read, a slow ``after`` delays its result."""
        session = self._session
        taken: dict[Key, Change] = {}
        scope: asyncio.Timeout | None = None
        call = Call(session, "watch", tuple(dict.fromkeys(self._paths[key] for key in self._unreported)))
        try:
            async with asyncio.timeout(None) as scope:
                self._scopes.add(scope)
                try:
                    await session._server._run_hooks(call, after=False)
                    await session._wait_until(lambda: session._can_receive)
                    taken = self._take()
                    await session._server._run_hooks(call, after=True)
                    await session._wait_until(lambda: session._can_receive)
                finally:
                    self._scopes.discard(scope)
        except BaseException as error:
            # They were not reported: mark them again, before later changes.
            self._unreported = dict.fromkeys(key for key in taken if key in self._paths) | self._unreported
            if isinstance(error, TimeoutError) and scope is not None and scope.expired():
                raise self._closed_error() from None
            raise
        return [change for key, change in taken.items() if key in self._paths]

    def _take(self) -> dict[Key, Change]:
        session, taken = self._session, {}
        for key in self._unreported:
            full, names = key
            path = self._paths[key]
            taken[key] = Change(path, session._read_children(path, full) if names else session._read(path, full))
        self._unreported.clear()
        return taken

    def _closed_error(self) -> SessionLostError:
        if self._session.state is SessionState.LOST:
            return self._session._lost_error()
        return SessionLostError("the watch was closed")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for key in tuple(self._paths):
                self._forget(key)
            self._session._watches.pop(self, None)
            self._wakeup.notify_all()
            if not self._session._loop.is_closed():
                for scope in self._scopes:
                    scope.reschedule(self._session._loop.time())
