"""The store for ``memory://`` URLs, and the memory servers of this process by name."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Final, Self

from aiokcc.core.masking import mask_url
from aiokcc.errors import UsageError
from aiokcc.stores.checks import DEFAULT_ROOT, check_path, check_root, check_timeouts
from aiokcc.stores.memory.server import MemoryServer
from aiokcc.stores.memory.session import MemorySession
from aiokcc.stores.port import Session, Store

__all__ = ["MemoryStore"]

_SCHEME: Final = "memory://"

# Weak references: a tree lives while a store or a session refers to it, so tests need not clean up.
_servers: weakref.WeakValueDictionary[str, MemoryServer] = weakref.WeakValueDictionary()


class MemoryStore(Store):
    """A root in the in-process tree of a name. ::

    store = MemoryStore("demo", "/replay")
    async with store.session() as session:
        await session.ensure("")
    """

    server: MemoryServer
    """The server of the tree, through which tests inject faults."""

    def __init__(self, name: str, root: str = DEFAULT_ROOT) -> None:
        if not isinstance(name, str) or not name or "/" in name:
            shown = mask_url(repr(name))
            raise UsageError(f"a memory store needs a name without slashes, as in 'memory://demo', not {shown}")
        if "@" in name:
            raise UsageError(
                f"{_SCHEME + mask_url(name)!r} has a user or a password, but a memory store has no users; "
                f"write 'memory://demo', or zk://user:password@host:2181/root for a ZooKeeper"
            )
        self.root = check_root(root)
        self.server = _servers.setdefault(name, MemoryServer(name))
        self.url = f"{_SCHEME}{name}{self.root}"

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return the store for ``memory://name`` or ``memory://name/root``. Raises UsageError for another URL."""
        if not url.startswith(_SCHEME):
            raise UsageError(f"{mask_url(url)!r} does not begin with {_SCHEME}")
        name, slash, root = url.removeprefix(_SCHEME).partition("/")
        store = cls(name, slash + root)
        store.volatile = True
        return store

    def at(self, root: str) -> Self:
        other = type(self)(self.server.name, root)
        other.volatile = self.volatile
        return other

    def __repr__(self) -> str:
        return f"<MemoryStore {self.url}>"

    def session(
        self, *, timeout: float = 10.0, connect_timeout: float | None = 10.0
    ) -> AbstractAsyncContextManager[Session]:
        check_timeouts(timeout, connect_timeout)
        return self._opened(timeout, connect_timeout)

    @contextlib.asynccontextmanager
    async def _opened(self, timeout: float, connect_timeout: float | None) -> AsyncIterator[Session]:
        session = await self.server._connect(
            lambda identity: MemorySession(self.server, self.root, timeout, identity), connect_timeout
        )
        try:
            yield session
        finally:
            session._close()

    def describe(self, path: str) -> str:
        return f"{self.root}/{path}" if check_path(path) else self.root
