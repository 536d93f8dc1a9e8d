"""The Kafka store's watch: the watched paths that have changed since they were last reported.

A watch is local: a change is marked when its record is applied, and its content is read from the session's own tree when it is
reported. So nothing is asked of the broker, and no creation is lost when the connection breaks. A listener is told while the
record is applied.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from anyio.lowlevel import checkpoint

from aiokcc.errors import SessionLostError
from aiokcc.stores.checks import check_path
from aiokcc.stores.kafka.machine import Applied, full_path
from aiokcc.stores.memory.broadcast import Broadcast
from aiokcc.stores.port import Change, Created, SessionState, Watch
from aiokcc.stores.tree import Key, split_path

if TYPE_CHECKING:
    from aiokcc.stores.kafka.session import KafkaSession

__all__ = ["KafkaWatch", "WatchTable"]


class WatchTable:
    """The watches of one session, by what they watch."""

    def __init__(self) -> None:
        self.by_key: dict[Key, dict[KafkaWatch, None]] = {}
        self.creations: dict[str, dict[KafkaWatch, None]] = {}
        self.all: dict[KafkaWatch, None] = {}

    def notify(self, applied: Applied) -> None:
        """Mark what a record has changed."""
        for key in applied.changed:
            for watch in self.by_key.get(key, ()):
                watch.mark(key)
        if self.creations:
            for path in applied.created:
                parent, name = split_path(path)
                for watch in self.creations.get(parent, ()):
                    watch.mark_created(parent, name)

    def listen_again(self) -> None:
        """Note that the watches for creations are in place again after a break, although none was missed."""
        for watch in self.all:
            watch.listen_again()

    def wake(self) -> None:
        """Let all watches look again whether they may report."""
        for watch in self.all:
            watch.wakeup.notify_all()

    def close(self) -> None:
        """Close all watches."""
        for watch in tuple(self.all):
            watch.close()


class KafkaWatch(Watch):
    """The watched paths of one caller, and those of them with an unreported change."""

    def __init__(self, session: KafkaSession, table: WatchTable) -> None:
        self._session, self._table = session, table
        self._closed = session.state is SessionState.LOST
        self._paths: dict[Key, str] = {}
        self._creations: dict[str, str] = {}
        self._unreported: dict[Key | Created, None] = {}
        self.wakeup = Broadcast()
        if not self._closed:
            table.all[self] = None

    def add(self, path: str) -> None:
        self._add(path, (full_path(check_path(path)), False))

    def add_children(self, path: str) -> None:
        self._add(path, (full_path(check_path(path)), True))

    def _add(self, path: str, key: Key) -> None:
        if not self._closed and key not in self._paths:
            self._paths[key] = path
            self._table.by_key.setdefault(key, {})[self] = None
            self._mark_later(key)

    def add_created(self, path: str) -> None:
        full = full_path(check_path(path))
        if not self._closed and full not in self._creations:
            self._creations[full] = path
            self._table.creations.setdefault(full, {})[self] = None
            self._mark_later(Created(path))

    def remove(self, path: str) -> None:
        full = full_path(check_path(path))
        for key in ((full, False), (full, True)):
            if self._paths.pop(key, None) is not None:
                self._unreported.pop(key, None)
                _discard(self._table.by_key, key, self)
        if self._creations.pop(full, None) is not None:
            for change in [key for key in self._unreported if isinstance(key, Created) and key.path == path]:
                del self._unreported[change]
            _discard(self._table.creations, full, self)

    def mark(self, key: Key | Created) -> None:
        """Note a change that is to be reported, unless the listener takes it."""
        if self._unreported or not self._is_taken(key):
            self._unreported[key] = None
            self.wakeup.notify_all()

    def _mark_later(self, key: Key | Created) -> None:
        """Note a change, and tell the listener in a turn of its own: its owner is busy adding paths."""
        self._unreported[key] = None
        self.wakeup.notify_all()
        if self.listener is not None:
            asyncio.get_running_loop().call_soon(self._offer)

    def _offer(self) -> None:
        """Offer the unreported changes to the listener. ``changes()`` reports the first that it does not take, and the rest."""
        while self._unreported:
            key = next(iter(self._unreported))
            del self._unreported[key]  # before the call: it may write, and this path may change again
            if not self._is_taken(key):
                self._unreported = {key: None} | self._unreported
                return

    def _is_taken(self, key: Key | Created) -> bool:
        listener = self.listener
        return listener is not None and self._session.state is SessionState.CONNECTED and listener(self._read(key))

    def mark_created(self, parent: str, name: str) -> None:
        """Note a creation that is to be reported."""
        self.mark(Created(self._creations[parent], name=name))

    def listen_again(self) -> None:
        """Note that the watches for creations are in place again."""
        for path in self._creations.values():
            self.mark(Created(path))

    async def changes(self) -> list[Change]:
        await checkpoint()
        while True:
            if self._closed:
                raise self._session.lost_error(SessionLostError("the watch was closed"))
            if self._unreported and self._session.state is SessionState.CONNECTED:
                return self._take()
            await self.wakeup.wait()

    def _take(self) -> list[Change]:
        taken = [self._read(key) for key in self._unreported]
        self._unreported.clear()
        return taken

    def _read(self, key: Key | Created) -> Change:
        if isinstance(key, Created):
            return key
        path, names = self._paths[key], key[1]
        return Change(path, self._session.peek_children(path) if names else self._session.peek(path))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for path in {*self._paths.values(), *self._creations.values()}:
                self.remove(path)
            self._table.all.pop(self, None)
            self.wakeup.notify_all()


def _discard(
    table: dict[Key, dict[KafkaWatch, None]] | dict[str, dict[KafkaWatch, None]], key: object, watch: KafkaWatch
) -> None:
    watches = table[key]  # type: ignore[index]
    del watches[watch]
    if not watches:
        del table[key]  # type: ignore[arg-type]
