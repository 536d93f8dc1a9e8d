"""The memory store's watch: the watched paths that have changed since they were last reported.

The server marks a path when it changes; its content is read when it is reported. So the content reported last is what the
tree holds, whatever was skipped. A cancelled call loses nothing: its paths stay marked. Of creations the server tells the name;
nothing is read. Those that happen while the session has no connection are lost, as they are on a real server.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiokcc.errors import SessionLostError
from aiokcc.stores.memory.broadcast import Broadcast
from aiokcc.stores.memory.server import Call
from aiokcc.stores.port import Change, Created, SessionState, Watch
from aiokcc.stores.tree import Key

if TYPE_CHECKING:
    from aiokcc.stores.memory.session import MemorySession

__all__ = ["MemoryWatch"]


class MemoryWatch(Watch):
    """The watched paths of one session, and those of them with an unreported change."""

    def __init__(self, session: MemorySession) -> None:
        self._session, self._closed = session, session.state is SessionState.LOST
        self._paths: dict[Key, str] = {}
        self._creations: dict[str, str] = {}
        self._unreported: dict[Key | Created, None] = {}
        self._wakeup = Broadcast()
        self._scopes: set[asyncio.Timeout] = set()

    def add(self, path: str) -> None:
        self._add(path, names=False)

    def add_children(self, path: str) -> None:
        self._add(path, names=True)

    def add_created(self, path: str) -> None:
        full = self._session._full(path)
        if not self._closed and full not in self._creations:
            self._creations[full] = path
            self._session._server._creation_watches.setdefault(full, {})[self] = None
            self._mark_changed(Created(path))

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
        if self._creations.pop(full, None) is not None:
            for change in [key for key in self._unreported if isinstance(key, Created) and key.path == path]:
                del self._unreported[change]
            watches = self._session._server._creation_watches
            del watches[full][self]
            if not watches[full]:
                del watches[full]

    def _forget(self, key: Key) -> None:
        if self._paths.pop(key, None) is not None:
            self._unreported.pop(key, None)
            watches = self._session._server._watches
            del watches[key][self]
            if not watches[key]:
                del watches[key]

    def _mark_created(self, full: str, name: str) -> None:
        # Without a connection the event is lost. A frozen client finds it when it goes on.
        self._mark_changed(Created(self._creations[full], name=name if self._session._can_send else None))

    def _listen_again(self) -> None:
        """Note that the watches for creations are in place again, after a time without a connection."""
        for path in self._creations.values():
            self._mark_changed(Created(path))

    def _mark_changed(self, key: Key | Created) -> None:
        if self.listener is not None and not self._unreported and not self._session._loop.is_closed():
            self._session._loop.call_soon(self._offer)  # not at once: we are inside of somebody's write
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
                    if changes := self._not_heard(await self._report_through_hooks()):
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
        taken: dict[Key | Created, Change] = {}
        scope: asyncio.Timeout | None = None
        call = Call(session, "watch", tuple(dict.fromkeys(self._path(key) for key in self._unreported)))
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
            self._unreported = dict.fromkeys(key for key in taken if self._is_watched(key)) | self._unreported
            if isinstance(error, TimeoutError) and scope is not None and scope.expired():
                raise self._closed_error() from None
            raise
        return [change for key, change in taken.items() if self._is_watched(key)]

    def _offer(self) -> None:
        """Offer the unreported changes to the listener. What it does not take, and what hooks delay, ``changes()`` reports."""
        listener, session = self.listener, self._session
        while self._unreported and listener is not None and session._can_receive and not session._server._hooks:
            key = next(iter(self._unreported))
            del self._unreported[key]  # before the call: it may write, and this path may change again
            if not listener(self._read(key)):
                self._unreported = {key: None} | self._unreported
                return

    def _not_heard(self, changes: list[Change]) -> list[Change]:
        """Offer the changes to the listener, in order. Return the first that it does not take, and all after it."""
        if self.listener is not None:
            for number, change in enumerate(changes):
                if not self.listener(change):
                    return changes[number:]
            return []
        return changes

    def _path(self, key: Key | Created) -> str:
        return key.path if isinstance(key, Created) else self._paths[key]

    def _is_watched(self, key: Key | Created) -> bool:
        return key.path in self._creations.values() if isinstance(key, Created) else key in self._paths

    def _take(self) -> dict[Key | Created, Change]:
        taken = {key: self._read(key) for key in self._unreported}
        self._unreported.clear()
        return taken

    def _read(self, key: Key | Created) -> Change:
        if isinstance(key, Created):
            return key
        session, (full, names), path = self._session, key, self._paths[key]
        return Change(path, session._read_children(path, full) if names else session._read(path, full))

    def _closed_error(self) -> SessionLostError:
        if self._session.state is SessionState.LOST:
            return self._session._lost_error()
        return SessionLostError("the watch was closed")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for path in {*self._paths.values(), *self._creations.values()}:
                self.remove(path)
            self._session._watches.pop(self, None)
            self._wakeup.notify_all()
            if not self._session._loop.is_closed():
                for scope in self._scopes:
                    scope.reschedule(self._session._loop.time())
