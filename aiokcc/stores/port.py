"""The port: the interface of a store, with only what the barrier needs.

A :class:`Store` says where to connect. A :class:`Session` is one session with it, from the first answer until it is closed
or lost. A session reconnects by itself while the server still knows it. A lost session stays lost; a new session is a new
object. So a write is always sent in the session in which it was decided: the object on which it is called.

Paths are relative to the store's root: ``"coordinator"``, ``"owners/orders/3"``; ``""`` is the root itself.

Every implementation guarantees the following (``tests/conformance`` checks it of each):

* Operations of one session are applied in the order in which they were called.
* A write either raises and was not applied, or returns and was applied exactly once, also when the connection broke
  before the answer. If neither can be proven, it raises :class:`~aiokcc.errors.OutcomeUnknownError`.
* A call made while the session is suspended waits for the connection, and raises SessionLostError if the session is lost.
* Cancelling a read leaves nothing behind. A cancelled write may still be applied.
* A :class:`Watch` may skip changes but never the last one: what it reports last is what the store holds.
* A session that has reported a change, or the creation of a node, reads no state from before it any more.
* Until ``stop_at``, on the clock :func:`boottime`, no other client can have seen this session end.
"""

from __future__ import annotations

import abc
import asyncio
import enum
import functools
import time
from collections.abc import AsyncIterator, Callable
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
    "Created",
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
"""A version that matches every version. Use it only for a node that no other client writes."""

STOP_FRACTION: Final = 2 / 3
"""The part of its timeout for which a session can be relied on, from the send time of the last answered request."""

boottime = functools.partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Return seconds on a clock that also runs while the machine is suspended (if the system has one)."""


class SessionState(enum.Enum):
    """The state of a session. ``LOST`` is final."""

    CONNECTED = "connected"
    """The session has a connection."""
    SUSPENDED = "suspended"
    """The connection is gone; the session may still exist at the server. The next state is CONNECTED or LOST."""
    LOST = "lost"
    """It expired, was closed, or had no answer for longer than its timeout. Every call raises SessionLostError."""


@dataclass(frozen=True, slots=True)
class Node:
    """The content of a node at the time it was read."""

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
    """The sorted names of a node's children at the time they were read."""

    path: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A watched path and its present content: a Node or Children; None if the node does not exist."""

    path: str
    now: Node | Children | None


@dataclass(frozen=True, slots=True)
class Created(Change):
    """A child was created below a path that is watched with :meth:`Watch.add_created`. Nothing was read: ``now`` is None."""

    now: None = None
    name: str | None = None
    """The child's name. None: the watch is in place, for the first time or again after a broken connection. Creations before
    that may never be reported, so whoever depends on them reads now."""


@dataclass(frozen=True, slots=True)
class Check:
    """Fail the transaction unless the node has this version."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Set:
    """Write a node's data if it has this version."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node. The store appends a ten-digit number to the name of a sequential node."""

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
    """A set of watched paths. It is level-triggered: it reports the newest content of a path, not each change.

    After a path is added, its present content is reported as the first change. ``changes()`` and ``async for`` can be
    cancelled at any time; the next call reports what the cancelled one would have reported.
    """

    listener: Callable[[Change], bool] | None = None
    """Called with a change where the store learns of it, if nothing before it is unreported. If it returns True, ``changes()``
    does not report the change. It neither waits nor raises, and adds and removes no paths. It saves the trip to the task that
    awaits ``changes()``; a store that learns of changes in that task does not call it."""

    @abc.abstractmethod
    def add(self, path: str) -> None:
        """Watch a node's existence and data from now on. Adding twice changes nothing."""

    @abc.abstractmethod
    def add_children(self, path: str) -> None:
        """Watch the names of a node's children from now on. Adding twice changes nothing."""

    @abc.abstractmethod
    def add_created(self, path: str) -> None:
        """Watch for children that are created below a node, which need not exist. Adding twice changes nothing.

        Unlike the others this watch reads nothing: a :class:`Created` has the name of the child, and that is all. It reports
        that the watch is in place, and from then on each creation, in order, until the connection breaks; after that again
        that it is in place. A name that was created again before it was reported may be reported once. Deletions, changes
        of the children and children of children are not reported.
        """

    @abc.abstractmethod
    def remove(self, path: str) -> None:
        """Stop watching a path (data, children and creations) and discard its unreported changes."""

    @abc.abstractmethod
    async def changes(self) -> list[Change]:
        """Wait until a watched path has changed; return all changes, in the order of arrival.

        Raises SessionLostError when the session is lost or the watch is closed, and NoAuthError when a path may not be read.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Stop watching all paths; a waiting ``changes()`` raises SessionLostError. Closing twice changes nothing."""

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
    """One session with the store. :meth:`Store.session` opens it; leaving that context closes it."""

    id: int
    """The id of the session, which is the ``Node.owner`` of its ephemeral nodes."""
    timeout: float
    """The negotiated timeout in seconds."""
    stop_at: float
    """A time on :func:`boottime`: the send time of the last answered request + STOP_FRACTION of the timeout. After it nothing
    that depends on the session may start, although the session may still be alive: the next answer sets a later time.
    ``-inf`` once the session is lost."""
    state: SessionState
    requests: int = 0
    """The number of requests that a server has answered; 0 where there is no server."""
    request_seconds: float = 0.0
    """The time from sending each of them to its answer, added up."""

    @abc.abstractmethod
    async def find(self, path: str) -> Node | None:
        """Return the node, or None if it does not exist."""

    @abc.abstractmethod
    async def get(self, path: str) -> Node:
        """Return the node. Raises NoNodeError if it does not exist."""

    @abc.abstractmethod
    async def children(self, path: str) -> tuple[str, ...]:
        """Return the sorted names of a node's children. Raises NoNodeError if the node does not exist."""

    @abc.abstractmethod
    async def sync(self) -> None:
        """Wait until this session reads nothing older than any write that was answered, to any session, before this call.

        Without it a read may miss the newest writes of others. The protocol needs it nowhere: who has written reads its own
        write and everything before it, and whoever is behind reads a limit that is too low.
        """

    @abc.abstractmethod
    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """Create a node and return its relative path. Raises NodeExistsError, or NoNodeError if the parent does not exist.

        The name of a sequential node has a unique id before its number (``c-<id>-0000000007`` for ``c-``). If the connection
        breaks before the answer, the node is found by this id and not created twice.
        """

    @abc.abstractmethod
    async def set(self, path: str, data: bytes, version: int) -> int:
        """Write the data if the node has this version; return the new version. Raises BadVersionError or NoNodeError."""

    @abc.abstractmethod
    async def delete(self, path: str, version: int) -> None:
        """Delete the node if it has this version. Raises BadVersionError, NoNodeError or NotEmptyError."""

    @abc.abstractmethod
    async def commit(self, *ops: Op) -> list[OpResult]:
        """Apply all operations or none, atomically. Raises the error of the first that failed; ``index`` is its position."""

    def send_commit(self, *ops: Op) -> asyncio.Future[list[OpResult]] | None:
        """As :meth:`commit`, without waiting: send now, and return the future of the answer.

        A callback may call it. Returns None, and does nothing, if it cannot be sent now: then a task calls :meth:`commit`.
        Raises what commit raises before it sends. Cancelling the future leaves the write as a cancelled commit does.
        """
        return None

    def send_set(self, path: str, data: bytes, version: int) -> asyncio.Future[int] | None:
        """As :meth:`set`, without waiting; see :meth:`send_commit`."""
        return None

    @abc.abstractmethod
    async def ensure(self, path: str) -> None:
        """Create a persistent, empty node and its parents, as far as they do not exist."""

    @abc.abstractmethod
    def watch(self) -> Watch:
        """Return a new, empty set of watched paths. It is closed when the session ends, if not before."""

    @abc.abstractmethod
    async def until(self, *states: SessionState) -> SessionState:
        """Wait until the session is in one of these states or LOST; return its state. Can be cancelled at any time."""


class Store(abc.ABC):
    """A server or an in-process tree, and the root below which a group keeps its state."""

    url: str
    root: str
    volatile = False
    """True if a run that has ended makes room for a new one as soon as its last member has left."""
    forgets_unfinished = False
    """True if a run that has not ended does so too."""

    @abc.abstractmethod
    def session(
        self, *, timeout: float = 10.0, connect_timeout: float | None = 10.0
    ) -> AbstractAsyncContextManager[Session]:
        """Open a session: ``async with store.session() as session``.

        ``timeout`` is the requested session timeout; ``Session.timeout`` is the granted one. Raises StoreUnreachableError if no
        server answers within ``connect_timeout`` seconds (None: try for ever). Leaving the context closes the session, which
        deletes its ephemeral nodes. Closing is quick and cannot hang, even if the store cannot be reached.
        """

    @abc.abstractmethod
    def at(self, root: str) -> Store:
        """Return the store of another root at the same place, with the same credentials."""

    @abc.abstractmethod
    def describe(self, path: str) -> str:
        """Return the full name of a node for messages: ``/replay/coordinator``."""
