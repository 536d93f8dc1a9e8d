"""Watches: reads and re-reads the watched paths, and reports changes to the watches on them.

ZooKeeper's own watch fires once and does not say what has changed. To make it level-triggered, every watched path has one
:class:`WatchedPath` for the whole session, shared by all watches on it, and this cycle: read the path and register the server's
watch in one request; report the result to each watch for which it is new; wait for the event; read again. The server reads and
registers in one step, so no change can fall between them.

An event that arrives during a read may belong to the watch that this read has registered (the server sends events and replies
from different threads). So it always causes one more read; several events cause one.

A node that does not exist can only be watched with ``exists``. If it was created before the ``exists``, it is read again. After
a reconnect all paths are read again, which registers the watches and shows what was missed.

Creations (``add_created``) need no read: a *persistent recursive* watch stays in place after it has fired, and its events
have the name of the node that was created. It is added again on every connection. The event says which
transaction fired it, so that no later connection shows us an older state. A server before 3.9 does not say it; then the new
node is read before it is reported, since the reply to a read says it. Servers before 3.6 have no such watch.

There is no task here: replies and events drive everything, and only the caller of ``changes()`` waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiokcc.errors import SessionLostError, StoreError
from aiokcc.stores.checks import check_path
from aiokcc.stores.port import Change, Children, Created, Node, Watch
from aiokcc.stores.zookeeper import wire
from aiokcc.stores.zookeeper.pending import PendingRequest

_UNREAD: Final = object()
_CHILDREN_WATCH: Final = 1
_ANY_WATCH: Final = 3


class WatchedPath:
    """One path and its content (data or children) in the server's last reply."""

    __slots__ = ("children", "fetching", "name", "path", "refetch", "value", "watches")

    def __init__(self, path: str, name: bytes, children: bool) -> None:
        self.path = path
        self.name = name
        self.children = children
        self.value: object = _UNREAD
        """A Node, Children, None if it does not exist, the error of a refused read, or _UNREAD."""
        self.fetching = False
        self.refetch = False
        self.watches: dict[ZooKeeperWatch, None] = {}


class WatchRequest(PendingRequest):
    """Reads a path and registers the server's watch. It is not sent again: the next connection begins with new ones."""

    __slots__ = ("_watched", "_watches")

    def __init__(
        self, watches: WatchRegistry, watched: WatchedPath, payload: bytes, decode: wire.Decoder | None
    ) -> None:
        # It has no future: nothing waits for the reply, which is handled here at once.
        super().__init__(None, payload, decode, watched.path)  # type: ignore[arg-type]
        self._watches = watches
        self._watched = watched

    @property
    def done(self) -> bool:
        return False

    def on_reply(self, data: bytes, at: int, end: int) -> None:
        # Without a decoder it was an ``exists``, and the node has been created meanwhile.
        self._watches.on_fetched(
            self._watched, _UNREAD if self.decode is None else self.decode(data, at, end, self.path)
        )

    def on_error(self, code: int) -> None:
        if code != wire.NO_NODE:
            self._watches.on_fetched(self._watched, wire.to_error(code, self.path))
        elif self.decode is None:
            self._watches.on_fetched(self._watched, None)
        else:
            self._watches.watch_missing(self._watched)

    def fail(self, error: Exception) -> None:
        pass

    def on_drop(self, sent: bool) -> bool:
        return False


class WatchedCreations:
    """One path below which creations are watched."""

    __slots__ = ("error", "in_place", "name", "path", "watches")

    def __init__(self, path: str, name: bytes) -> None:
        self.path = path
        self.name = name
        self.in_place = False
        """True if the server has the watch, on the present connection."""
        self.error: StoreError | None = None
        """The error of a refused watch."""
        self.watches: dict[ZooKeeperWatch, None] = {}

    def report(self, name: str | None) -> None:
        change = Created(self.path, name=name)
        for watch in self.watches:
            watch.mark_created(change)


class CreationsRequest(PendingRequest):
    """Adds the server's watch for creations; or, given a ``child``, reads it before it is reported. It is not sent again."""

    __slots__ = ("_child", "_watched")

    def __init__(self, watched: WatchedCreations, payload: bytes, child: str | None = None) -> None:
        super().__init__(None, payload, None, watched.path)  # type: ignore[arg-type]
        self._watched = watched
        self._child = child

    @property
    def done(self) -> bool:
        return False

    def on_reply(self, data: bytes, at: int, end: int) -> None:
        if self._child is None:
            self._watched.in_place, self._watched.error = True, None
        self._watched.report(self._child)

    def on_error(self, code: int) -> None:
        if self._child is not None:  # it is gone already; the answer has brought us the transaction all the same
            self._watched.report(self._child)
            return
        if code == wire.UNIMPLEMENTED:
            error = StoreError(
                "the ZooKeeper server is too old: aiokcc needs 3.6 or later, which has persistent watches"
            )
        else:
            error = wire.to_error(code, self.path)
        self._watched.error = error
        self._watched.report(None)

    def fail(self, error: Exception) -> None:
        pass

    def on_drop(self, sent: bool) -> bool:
        return False


class RemoveWatchRequest(PendingRequest):
    """Removes a watch from the server. The reply is ignored."""

    __slots__ = ()

    def __init__(self, payload: bytes) -> None:
        super().__init__(None, payload, None, "")  # type: ignore[arg-type]

    def on_reply(self, data: bytes, at: int, end: int) -> None:
        pass

    def fail(self, error: Exception) -> None:
        pass

    def on_drop(self, sent: bool) -> bool:
        return False


class WatchRegistry:
    """All watched paths of one session."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._send: Callable[[PendingRequest], None] | None = None
        self._data: dict[bytes, WatchedPath] = {}
        self._children: dict[bytes, WatchedPath] = {}
        self._created: dict[bytes, WatchedCreations] = {}
        self._all: dict[ZooKeeperWatch, None] = {}
        self.lost_error: SessionLostError | None = None

    def __len__(self) -> int:
        return len(self._data) + len(self._children) + len(self._created)

    # -- Called by the session ------------------------------------------------------------------------------------------

    def resume(self, send: Callable[[PendingRequest], None]) -> None:
        self._send = send
        for creations in self._created.values():
            send(CreationsRequest(creations, wire.add_watch_request(creations.name)))
        for table in (self._data, self._children):
            for watched in table.values():
                self._fetch(watched)

    def suspend(self) -> None:
        self._send = None
        for table in (self._data, self._children):
            for watched in table.values():
                watched.fetching = watched.refetch = False
        for creations in self._created.values():
            creations.in_place = False

    def lose(self, error: SessionLostError) -> None:
        self.lost_error = error
        self._send = None
        for watch in tuple(self._all):
            watch.close()

    # -- Replies and events ---------------------------------------------------------------------------------------------

    def on_event(self, kind: int, name: str, zxid: int) -> None:
        if kind == wire.NODE_CREATED and self._created:
            parent, _, child = name.rpartition("/")
            if creations := self._created.get(wire.string(parent)):
                self._on_created(creations, child, zxid)
        key = wire.string(name)
        if kind != wire.CHILDREN_CHANGED and (watched := self._data.get(key)):
            self._fetch(watched)
        if kind != wire.DATA_CHANGED and (watched := self._children.get(key)):
            self._fetch(watched)

    def _on_created(self, creations: WatchedCreations, child: str, zxid: int) -> None:
        if zxid > 0:
            creations.report(child)
        elif self._send is not None:
            name = wire.encode_path(self._root, f"{creations.path}/{child}" if creations.path else child)
            self._send(CreationsRequest(creations, wire.exists_request(name), child))

    def on_fetched(self, watched: WatchedPath, value: object) -> None:
        watched.fetching = False
        if not watched.watches:
            return
        if value is not _UNREAD:
            watched.value = value
            for watch in watched.watches:
                watch.mark_changed(watched)
        if watched.refetch or value is _UNREAD:
            watched.refetch = False
            self._fetch(watched)

    def watch_missing(self, watched: WatchedPath) -> None:
        """Watch for the creation of a node that does not exist."""
        if watched.watches and self._send is not None:
            self._send(WatchRequest(self, watched, wire.exists_request(watched.name, True), None))
        else:
            watched.fetching = False

    def _fetch(self, watched: WatchedPath) -> None:
        if watched.fetching:
            watched.refetch = True
        elif self._send is not None:
            watched.fetching = True
            if watched.children:
                self._send(WatchRequest(self, watched, wire.children_request(watched.name, True), wire.decode_children))
            else:
                self._send(WatchRequest(self, watched, wire.get_request(watched.name, True), wire.decode_node))

    # -- Called by the watches ------------------------------------------------------------------------------------------

    def register(self, watch: ZooKeeperWatch) -> None:
        self._all[watch] = None

    def unregister(self, watch: ZooKeeperWatch) -> None:
        self._all.pop(watch, None)

    def add(self, watch: ZooKeeperWatch, path: str, children: bool) -> WatchedPath:
        name = wire.encode_path(self._root, path)
        table = self._children if children else self._data
        watched = table.get(name)
        if watched is None:
            watched = table[name] = WatchedPath(path, name, children)
            self._fetch(watched)
        elif watched.value is not _UNREAD and not watched.fetching and self._send is not None:
            # It was read on this connection and no event has come: the value is current.
            watch.mark_unreported(watched)
        watched.watches[watch] = None
        return watched

    def add_created(self, watch: ZooKeeperWatch, path: str) -> WatchedCreations:
        name = wire.encode_path(self._root, path)
        creations = self._created.get(name)
        if creations is None:
            creations = self._created[name] = WatchedCreations(path, name)
            if self._send is not None:
                self._send(CreationsRequest(creations, wire.add_watch_request(name)))
        elif creations.in_place or creations.error is not None:
            watch.mark_unreported(Created(path))
        creations.watches[watch] = None
        return creations

    def remove_created(self, watch: ZooKeeperWatch, creations: WatchedCreations) -> None:
        del creations.watches[watch]
        if creations.watches:
            return
        del self._created[creations.name]
        if self._send is not None and creations.name not in self._data and creations.name not in self._children:
            self._send(RemoveWatchRequest(wire.remove_watches_request(creations.name, _ANY_WATCH)))

    def remove(self, watch: ZooKeeperWatch, watched: WatchedPath) -> None:
        del watched.watches[watch]
        if watched.watches:
            return
        del (self._children if watched.children else self._data)[watched.name]
        if self._send is None or watched.name in self._created:  # removing this one would remove the other as well
            return
        # Remove it at the server too, or a long session that watches many paths would leave a watch on each. While the
        # children are watched the data watch stays: it shows the creation of a missing node.
        if watched.name not in self._data and watched.name not in self._children:
            self._send(RemoveWatchRequest(wire.remove_watches_request(watched.name, _ANY_WATCH)))
        elif watched.children:
            self._send(RemoveWatchRequest(wire.remove_watches_request(watched.name, _CHILDREN_WATCH)))


class ZooKeeperWatch(Watch):
    """The paths that one caller watches, and those of them with an unreported change."""

    def __init__(self, watches: WatchRegistry) -> None:
        self._watches = watches
        self._closed = watches.lost_error is not None
        self._paths: dict[tuple[str, bool], WatchedPath] = {}
        self._creations: dict[str, WatchedCreations] = {}
        self._unreported: dict[WatchedPath | Created, None] = {}
        self._reported: dict[WatchedPath, object] = {}
        self._wakeup = asyncio.Event()
        if not self._closed:
            watches.register(self)

    def add(self, path: str) -> None:
        self._add(path, False)

    def add_children(self, path: str) -> None:
        self._add(path, True)

    def add_created(self, path: str) -> None:
        check_path(path)
        if not self._closed and path not in self._creations:
            self._creations[path] = self._watches.add_created(self, path)

    def _add(self, path: str, children: bool) -> None:
        check_path(path)
        if not self._closed and (path, children) not in self._paths:
            self._paths[path, children] = self._watches.add(self, path, children)

    def remove(self, path: str) -> None:
        check_path(path)
        for children in (False, True):
            if watched := self._paths.pop((path, children), None):
                self._unreported.pop(watched, None)
                self._reported.pop(watched, None)
                self._watches.remove(self, watched)
        if creations := self._creations.pop(path, None):
            for change in [key for key in self._unreported if isinstance(key, Created) and key.path == path]:
                del self._unreported[change]
            self._watches.remove_created(self, creations)

    def mark_created(self, change: Created) -> None:
        listener, error = self.listener, self._creations[change.path].error
        if listener is None or error is not None or self._unreported or not listener(change):
            self.mark_unreported(change)

    def mark_changed(self, watched: WatchedPath) -> None:
        listener, value = self.listener, watched.value
        if listener is not None and not self._unreported and isinstance(value, Node):
            if self._reported.get(watched, _UNREAD) == value:
                return
            if listener(Change(watched.path, value)):
                self._reported[watched] = value
                return
        self.mark_unreported(watched)

    def mark_unreported(self, change: WatchedPath | Created) -> None:
        self._unreported[change] = None
        self._wakeup.set()

    async def changes(self) -> list[Change]:
        while True:
            if self._closed:
                raise self._closed_error()
            if changes := self._take():
                return changes
            self._wakeup.clear()
            await self._wakeup.wait()

    def _take(self) -> list[Change]:
        changes: list[Change] = []
        for watched in tuple(self._unreported):
            if isinstance(watched, Created):
                value: object = self._creations[watched.path].error
            else:
                value = watched.value
            if isinstance(value, StoreError):
                if changes:
                    break  # return these changes first; the next call raises the error
                del self._unreported[watched]
                if isinstance(watched, WatchedPath):
                    self._reported.pop(watched, None)
                raise value
            del self._unreported[watched]
            if isinstance(watched, Created):
                changes.append(watched)
                continue
            if self._reported.get(watched, _UNREAD) == value:
                continue
            self._reported[watched] = value
            assert value is None or isinstance(value, Node | Children)
            changes.append(Change(watched.path, value))
        return changes

    def _closed_error(self) -> SessionLostError:
        return SessionLostError(str(self._watches.lost_error or "the watch was closed"))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for watched in self._paths.values():
                self._watches.remove(self, watched)
            for creations in self._creations.values():
                self._watches.remove_created(self, creations)
            self._paths.clear()
            self._creations.clear()
            self._unreported.clear()
            self._reported.clear()
            self._watches.unregister(self)
            self._wakeup.set()
