"""The port: what the barrier needs from a store, and nothing else.

A :class:`Store` is where to connect. A :class:`Session` is one session with it, from the first answer until it is
closed or lost. A session reconnects by itself while the server still knows it; once it is lost it never comes back,
and a new session is a new object. So every write names, by the object it is called on, the session in which it was
decided, and cannot be sent in any other.

Paths are relative to the store's root: ``"coordinator"``, ``"owners/orders/3"``; ``""`` is the root itself.

What every implementation guarantees (``tests/conformance`` checks both):

* Operations of one session are applied in the order in which they were called.
* A write either raises and was not applied, or returns and was applied exactly once, also when the connection broke
  before the answer. In the one case where that cannot be told, :class:`~aiokcc.errors.OutcomeUnknownError`.
* A call made while suspended waits for the connection; it ends when the session is lost.
* Cancelling a read leaves nothing behind. A cancelled write may still be applied.
* A :class:`Watch` never loses the last change: whatever it skips, it ends on what the store holds.
* ``stop_at``: until then, on :func:`boottime`, nobody else can have seen this session end.
"""

from __future__ import annotations

import abc
import enum
import functools
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeAlias

__all__ = [
    "ANY_VERSION",
    "STOP_FRACTION",
    "Change",
    "Check",
    "Children",
    "Create",
    "Delete",
    "Node",
    "Op",
    "OpResult",
    "Session",
    "SessionState",
    "Set",
    "Store",
    "Watch",
    "boottime",
]

ANY_VERSION: Final = -1
"""Write whatever the node's version is: only right for a node that nobody else writes."""

STOP_FRACTION: Final = 2 / 3
"""A session may be relied on for this part of its timeout after the send time of the last answered request."""

boottime = functools.partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Seconds on a clock that also counts while the machine is suspended (where the system has one)."""


class SessionState(enum.Enum):
    """Where a session stands. ``LOST`` is final."""

    CONNECTED = "connected"
    """Answers arrive."""
    SUSPENDED = "suspended"
    """The connection is gone; the session may still be alive at the server. Ends in CONNECTED or LOST."""
    LOST = "lost"
    """Expired at the server, closed, or silent for longer than the timeout. Every call raises SessionLostError."""


@dataclass(frozen=True, slots=True)
class Node:
    """What a node held when it was read."""

    path: str
    data: bytes
    version: int
    owner: int = 0
    """The session id of an ephemeral node's owner; 0 for a persistent node."""
    created: int = 0
    """Milliseconds since the epoch, on the store's clock."""
    modified: int = 0
    """Milliseconds since the epoch, on the store's clock."""


@dataclass(frozen=True, slots=True)
class Children:
    """The names below a node when it was read, sorted."""

    path: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A watched path and what is there now: a Node or Children; None if the node does not exist."""

    path: str
    now: Node | Children | None


@dataclass(frozen=True, slots=True)
class Check:
    """Fail the transaction unless the node has this version."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Set:
    """Write the node's data if it has this version."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node. Sequential nodes get a ten-digit number at the end of their name."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node without children if it has this version."""

    path: str
    version: int


Op: TypeAlias = Check | Set | Create | Delete
OpResult: TypeAlias = "int | str | None"
"""The new version for Set, the (relative) path created for Create, None for Check and Delete."""


class Watch(abc.ABC):
    """A set of watched paths and the changes to them, level-triggered and coalesced: per path only the newest matters.

    Adding a path reports its present state as the first change. ``changes()`` and ``async for`` may be cancelled at
    any time; nothing is lost, the change is reported by the next call.
    """

    @abc.abstractmethod
    def add(self, path: str) -> None:
        """Watch a node's existence and data from now on. Adding twice changes nothing."""

    @abc.abstractmethod
    def add_children(self, path: str) -> None:
        """Watch the names below a node from now on. Adding twice changes nothing."""

    @abc.abstractmethod
    def remove(self, path: str) -> None:
        """Stop watching a path (data and children), and drop what was not yet reported of it."""

    @abc.abstractmethod
    async def changes(self) -> list[Change]:
        """Wait until something watched has changed; all that has, in the order of arrival.

        Raises SessionLostError when the session is lost, and NoAuthError when a path may not be read.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Forget all paths; a waiting ``changes()`` raises SessionLostError. Closing twice changes nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aiter__(self) -> AsyncIterator[Change]:
        while True:
            for change in await self.changes():
                yield change


class Session(abc.ABC):
    """One session with the store. Made by :meth:`Store.session`, ended by leaving that context."""

    id: int
    """The session's identity, as it stands in ``Node.owner`` of its ephemeral nodes."""
    timeout: float
    """The negotiated timeout in seconds."""
    stop_at: float
    """On :func:`boottime`: send time of the last answered request + STOP_FRACTION of the timeout. Past it nothing that
    depends on the session may start, although the session may still turn out to be alive: an answer moves it on.
    ``-inf`` once the session is lost."""
    state: SessionState

    @abc.abstractmethod
    async def find(self, path: str) -> Node | None:
        """The node, or None if it does not exist."""

    @abc.abstractmethod
    async def get(self, path: str) -> Node:
        """The node; NoNodeError if it does not exist."""

    @abc.abstractmethod
    async def children(self, path: str) -> tuple[str, ...]:
        """The names below a node, sorted; NoNodeError if it does not exist."""

    @abc.abstractmethod
    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """Create a node; its (relative) path. NodeExistsError, or NoNodeError if the parent does not exist.

        A sequential node's name carries a unique mark before its number (``c-<mark>-0000000007`` for ``c-``), so that a
        node whose creation was not answered is found again instead of being created twice.
        """

    @abc.abstractmethod
    async def set(self, path: str, data: bytes, version: int) -> int:
        """Write the data if the node has this version; the new version. BadVersionError, NoNodeError."""

    @abc.abstractmethod
    async def delete(self, path: str, version: int) -> None:
        """Delete the node if it has this version. BadVersionError, NoNodeError, NotEmptyError."""

    @abc.abstractmethod
    async def commit(self, *ops: Op) -> list[OpResult]:
        """All operations or none, in one step. Raises the error of the first that failed, its position in ``index``."""

    @abc.abstractmethod
    async def ensure(self, path: str) -> None:
        """Create a persistent, empty node and all its parents, where they do not exist."""

    @abc.abstractmethod
    def watch(self) -> Watch:
        """A new, empty set of watched paths; closed with the session at the latest."""

    @abc.abstractmethod
    async def until(self, *states: SessionState) -> SessionState:
        """Wait until the session is in one of these states; the one it is in. LOST always ends the wait."""


class Store(abc.ABC):
    """Where a group keeps its agreement: a server or an in-process tree, and a root in it."""

    url: str
    root: str

    @abc.abstractmethod
    def session(
        self, *, timeout: float = 10.0, connect_timeout: float | None = 10.0
    ) -> AbstractAsyncContextManager[Session]:
        """Open a session: ``async with store.session() as session``.

        ``timeout`` is what we ask for; ``Session.timeout`` is what the store granted. StoreUnreachableError if no server
        has answered within ``connect_timeout`` seconds (None: try for ever). Leaving the context closes the session,
        which deletes its ephemeral nodes; that is quick, also when the store is away, and cannot hang.
        """

    @abc.abstractmethod
    def describe(self, path: str) -> str:
        """The full name of a node for people: ``/replay/coordinator``."""
