"""Watches: what the server is asked about each path, and who wants to know.

ZooKeeper's own watch says once that something has changed, and not what. To make it level-triggered, every watched path
has one :class:`Watched` for the whole session, whoever watches it, and that goes round: read and register in one
request; tell everybody for whom the result is new; wait for the event; read again. Because reading and registering are
one step at the server, no change falls between them.

An event that arrives while a read is under way may belong to the watch that this very read has registered (the server
sends events and replies from different threads), so it always leads to one more read; several events lead to one.

A node that is not there can be watched only through ``exists``; one that has appeared in between is read again.
After a reconnect everything is read again: that registers anew, and shows what was missed.

Nothing here is a task: replies and events drive it, and the only thing that waits is the caller of ``changes()``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiokcc.errors import SessionLostError, StoreError
from aiokcc.stores.checks import check_path
from aiokcc.stores.port import Change, Children, Node, Watch
from aiokcc.stores.zookeeper import wire
from aiokcc.stores.zookeeper.call import Call

_UNREAD: Final = object()
_CHILDREN_WATCH: Final = 1
_ANY_WATCH: Final = 3


class Watched:
    """One path, its data or its names, as the server last showed it."""

    __slots__ = ("again", "fetching", "name", "names", "path", "value", "watches")

    def __init__(self, path: str, name: bytes, names: bool) -> None:
        self.path = path
        self.name = name
        self.names = names
        self.value: object = _UNREAD
        """Node, Children, None, the error with which reading was refused, or _UNREAD."""
        self.fetching = False
        self.again = False
        self.watches: dict[ZooKeeperWatch, None] = {}


class Fetch(Call):
    """Reads a path and registers the watch. It belongs to its connection: the next one begins with new ones."""

    __slots__ = ("_watched", "_watches")

    def __init__(self, watches: Watches, watched: Watched, request: bytes, decode: wire.Decoder | None) -> None:
        # No future: the answer is dealt with here, at once. Nobody waits for it in between.
        super().__init__(None, request, decode, watched.path)  # type: ignore[arg-type]
        self._watches = watches
        self._watched = watched

    @property
    def abandoned(self) -> bool:
        return False

    def answer(self, data: bytes, at: int, end: int) -> None:
        # Without a decoder it was an ``exists``, and the node is there after all.
        self._watches.fetched(self._watched, _UNREAD if self.decode is None else self.decode(data, at, end, self.path))

    def refuse(self, code: int) -> None:
        if code != wire.NO_NODE:
            self._watches.fetched(self._watched, wire.to_error(code, self.path))
        elif self.decode is None:
            self._watches.fetched(self._watched, None)
        else:
            self._watches.look_for(self._watched)

    def fail(self, error: Exception) -> None:
        pass

    def drop(self, sent: bool) -> bool:
        return False


class Forget(Call):
    """Takes back a watch from the server. Whatever it answers."""

    __slots__ = ()

    def __init__(self, request: bytes) -> None:
        super().__init__(None, request, None, "")  # type: ignore[arg-type]

    def answer(self, data: bytes, at: int, end: int) -> None:
        pass

    def fail(self, error: Exception) -> None:
        pass

    def drop(self, sent: bool) -> bool:
        return False


class Watches:
    """All that is watched in one session."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._send: Callable[[Call], None] | None = None
        self._data: dict[bytes, Watched] = {}
        self._names: dict[bytes, Watched] = {}
        self._all: dict[ZooKeeperWatch, None] = {}
        self.over: SessionLostError | None = None

    def __len__(self) -> int:
        return len(self._data) + len(self._names)

    # -- The connection comes and goes ----------------------------------------------------------------------------------

    def resume(self, send: Callable[[Call], None]) -> None:
        self._send = send
        for table in (self._data, self._names):
            for watched in table.values():
                self._fetch(watched)

    def suspend(self) -> None:
        self._send = None
        for table in (self._data, self._names):
            for watched in table.values():
                watched.fetching = watched.again = False

    def lose(self, error: SessionLostError) -> None:
        self.over = error
        self._send = None
        for watch in tuple(self._all):
            watch.close()

    # -- What the server says -------------------------------------------------------------------------------------------

    def event(self, kind: int, name: str) -> None:
        encoded = name.encode()
        key = wire.LENGTH.pack(len(encoded)) + encoded
        if kind != wire.CHILDREN_CHANGED and (watched := self._data.get(key)):
            self._fetch(watched)
        if kind != wire.DATA_CHANGED and (watched := self._names.get(key)):
            self._fetch(watched)

    def fetched(self, watched: Watched, value: object) -> None:
        watched.fetching = False
        if not watched.watches:
            return
        if value is not _UNREAD:
            watched.value = value
            for watch in watched.watches:
                watch.mark(watched)
        if watched.again or value is _UNREAD:
            watched.again = False
            self._fetch(watched)

    def look_for(self, watched: Watched) -> None:
        """The node is not there: wait for it to appear."""
        if watched.watches and self._send is not None:
            self._send(Fetch(self, watched, wire.exists_request(watched.name, True), None))
        else:
            watched.fetching = False

    def _fetch(self, watched: Watched) -> None:
        if watched.fetching:
            watched.again = True
        elif self._send is not None:
            watched.fetching = True
            if watched.names:
                self._send(Fetch(self, watched, wire.children_request(watched.name, True), wire.decode_children))
            else:
                self._send(Fetch(self, watched, wire.get_request(watched.name, True), wire.decode_node))

    # -- What the watchers say ------------------------------------------------------------------------------------------

    def enlist(self, watch: ZooKeeperWatch) -> None:
        self._all[watch] = None

    def discharge(self, watch: ZooKeeperWatch) -> None:
        self._all.pop(watch, None)

    def add(self, watch: ZooKeeperWatch, path: str, names: bool) -> Watched:
        name = wire.encode_path(self._root, path)
        table = self._names if names else self._data
        watched = table.get(name)
        if watched is None:
            watched = table[name] = Watched(path, name, names)
            self._fetch(watched)
        elif watched.value is not _UNREAD and not watched.fetching and self._send is not None:
            # Shown by the server since, and no event yet: this is what is there, as far as we can have seen.
            watch.mark(watched)
        watched.watches[watch] = None
        return watched

    def remove(self, watch: ZooKeeperWatch, watched: Watched) -> None:
        del watched.watches[watch]
        if watched.watches:
            return
        del (self._names if watched.names else self._data)[watched.name]
        if self._send is None:
            return
        # Taken back at the server too, or a long session that looks at many paths would leave a watch on each. One on
        # the data stays while the names are watched, which wait for a missing node through it.
        if watched.name not in self._data and watched.name not in self._names:
            self._send(Forget(wire.remove_watches_request(watched.name, _ANY_WATCH)))
        elif watched.names:
            self._send(Forget(wire.remove_watches_request(watched.name, _CHILDREN_WATCH)))


class ZooKeeperWatch(Watch):
    """The paths that one caller follows, and which of them are new to him."""

    def __init__(self, watches: Watches) -> None:
        self._watches = watches
        self._closed = watches.over is not None
        self._paths: dict[tuple[str, bool], Watched] = {}
        self._marked: dict[Watched, None] = {}
        self._reported: dict[Watched, object] = {}
        self._news = asyncio.Event()
        if not self._closed:
            watches.enlist(self)

    def add(self, path: str) -> None:
        self._add(path, False)

    def add_children(self, path: str) -> None:
        self._add(path, True)

    def _add(self, path: str, names: bool) -> None:
        check_path(path)
        if not self._closed and (path, names) not in self._paths:
            self._paths[path, names] = self._watches.add(self, path, names)

    def remove(self, path: str) -> None:
        check_path(path)
        for names in (False, True):
            if watched := self._paths.pop((path, names), None):
                self._marked.pop(watched, None)
                self._reported.pop(watched, None)
                self._watches.remove(self, watched)

    def mark(self, watched: Watched) -> None:
        self._marked[watched] = None
        self._news.set()

    async def changes(self) -> list[Change]:
        while True:
            if self._closed:
                raise self._over()
            if changes := self._take():
                return changes
            self._news.clear()
            await self._news.wait()

    def _take(self) -> list[Change]:
        changes: list[Change] = []
        for watched in tuple(self._marked):
            value = watched.value
            if isinstance(value, StoreError):
                if changes:
                    break  # what is there first; the error is raised by the next call
                del self._marked[watched]
                self._reported.pop(watched, None)
                raise value
            del self._marked[watched]
            if self._reported.get(watched, _UNREAD) == value:
                continue
            self._reported[watched] = value
            assert value is None or isinstance(value, Node | Children)
            changes.append(Change(watched.path, value))
        return changes

    def _over(self) -> SessionLostError:
        return SessionLostError(str(self._watches.over or "the watch was closed"))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for watched in self._paths.values():
                self._watches.remove(self, watched)
            self._paths.clear()
            self._marked.clear()
            self._reported.clear()
            self._watches.discharge(self)
            self._news.set()
