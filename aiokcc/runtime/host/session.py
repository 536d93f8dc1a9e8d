"""The session of the host, as one of its processes uses it: each call goes to the process that serves the host.

The process that serves tells with every message until when its clients may rely on it (``stop_at``, on the clock that all
processes of a host share). When the connection ends, or nothing was heard for the session's timeout, the session
is lost for this client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import anyio

from aiokcc.errors import SessionLostError
from aiokcc.runtime.host.channel import Message, ProcessChannel, decode_error
from aiokcc.stores.port import (
    Change,
    Check,
    Children,
    Create,
    Created,
    Delete,
    Node,
    Op,
    OpResult,
    Session,
    SessionState,
    Set,
    Watch,
    boottime,
)
from aiokcc.stores.state_waiters import StateWaiters

__all__ = ["HostedSession", "decode_change", "decode_node", "decode_op", "encode_change", "encode_node", "encode_op"]

PINGS: Final = 6
"""The number of pings within a session's timeout."""


class HostedSession(Session):
    """The host's session, in a process that does not hold it itself. Made from the welcome of the process that serves."""

    def __init__(self, channel: ProcessChannel, welcome: Message) -> None:
        self.id = welcome["session"]
        self.timeout = welcome["timeout"]
        self.host = welcome["host"]
        """The member session of the host, by which reports and cuts name it."""
        self.stop_at = welcome.get(
            "stop", float("-inf")
        )  # without one: the store does not answer the host at the moment
        self.state = SessionState.CONNECTED
        self.dismissed = False
        """True if the process that serves said that the session is over; False if the connection ended without that message."""
        self.pushed: Callable[[Message], None] = lambda _: None
        """Called with each message that is no answer."""
        self.heard_at = boottime()
        self._channel = channel
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._watches: dict[int, HostedWatch] = {}
        self._waiters = StateWaiters()
        channel.received, channel.closed = self._received, self.lose

    # -- messages -------------------------------------------------------------------------------------------------------

    def _received(self, message: Message) -> None:
        if self.state is SessionState.LOST:
            return
        self.heard_at = boottime()
        self.stop_at = max(self.stop_at, message.get("stop", self.stop_at))
        if "answer" in message:
            future = self._calls.pop(message["answer"], None)
            if future is not None and not future.done():
                if "error" in message:
                    future.set_exception(decode_error(message["error"]))
                else:
                    future.set_result(message.get("value"))
        elif "watch" in message:
            watch = self._watches.get(message["watch"])
            if watch is not None:
                watch.arrived(message)
        elif "over" in message:
            self.dismissed = True
            self.lose()
        else:
            self.pushed(message)

    def send(self, message: Message) -> None:
        """Sends a message that has no answer."""
        self._channel.send(message)

    async def call(self, verb: str, *arguments: Any) -> Any:
        """Sends a call and returns its answer. Raises SessionLostError when the session is lost before it comes."""
        if self.state is SessionState.LOST:
            raise SessionLostError("the session of the host is over")
        self._number += 1
        number = self._number
        future = self._calls[number] = asyncio.get_running_loop().create_future()
        self._channel.send({"call": number, "verb": verb, "with": arguments})
        try:
            return await future
        finally:
            self._calls.pop(number, None)

    def lose(self) -> None:
        """Ends the session for this process: no record starts under it any more."""
        if self.state is SessionState.LOST:
            return
        self.state, self.stop_at = SessionState.LOST, float("-inf")
        for future in self._calls.values():
            if not future.done():
                future.set_exception(SessionLostError("the session of the host is over"))
        for watch in self._watches.values():
            watch.end()
        self._waiters.notify(self.state)
        self._channel.close()

    async def keep_alive(self) -> None:
        """Says that this process is alive, until the session is lost; it is lost if nothing was heard for its timeout."""
        while self.state is not SessionState.LOST:
            if boottime() >= self.heard_at + self.timeout:
                await anyio.lowlevel.checkpoint()  # if this process was stopped, answers may wait in the socket
                await anyio.lowlevel.checkpoint()
                if boottime() >= self.heard_at + self.timeout:
                    self.lose()
                    return
            self.send({"ping": True})
            with anyio.move_on_after(self.timeout / PINGS):
                await self.until(SessionState.LOST)

    # -- the port -------------------------------------------------------------------------------------------------------

    async def find(self, path: str) -> Node | None:
        """Reads a node through the process that serves."""
        return decode_node(await self.call("find", path))

    async def get(self, path: str) -> Node:
        """Reads a node through the process that serves."""
        node = decode_node(await self.call("get", path))
        assert node is not None
        return node

    async def children(self, path: str) -> tuple[str, ...]:
        """Reads the names of a node's children through the process that serves."""
        return tuple(await self.call("children", path))

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """Creates a node through the process that serves. An ephemeral one belongs to the host."""
        return str(await self.call("create", path, data.decode("latin-1"), ephemeral, sequential))

    async def set(self, path: str, data: bytes, version: int) -> int:
        """Writes a node through the process that serves."""
        return int(await self.call("set", path, data.decode("latin-1"), version))

    async def delete(self, path: str, version: int) -> None:
        """Deletes a node through the process that serves."""
        await self.call("delete", path, version)

    async def commit(self, *ops: Op) -> list[OpResult]:
        """Applies a transaction through the process that serves."""
        return list(await self.call("commit", *map(encode_op, ops)))

    async def ensure(self, path: str) -> None:
        """Creates a node and its parents through the process that serves."""
        await self.call("ensure", path)

    async def sync(self) -> None:
        """Makes later reads through the process that serves see every write that was acknowledged before."""
        await self.call("sync")

    def watch(self) -> Watch:
        """Returns a watch that the process that serves holds for us."""
        self._number += 1
        watch = self._watches[self._number] = HostedWatch(self, self._number)
        if self.state is SessionState.LOST:
            watch.end()
        return watch

    def forget_watch(self, number: int) -> None:
        """Forgets a watch that was closed."""
        self._watches.pop(number, None)

    async def until(self, *states: SessionState) -> SessionState:
        """Waits for a state. The session is connected until it is lost."""
        if self.state in states or self.state is SessionState.LOST:
            return self.state
        return await self._waiters.wait(states)


class HostedWatch(Watch):
    """A set of watched paths, which the process that serves watches."""

    def __init__(self, session: HostedSession, number: int) -> None:
        self._session = session
        self._number = number
        self._changes: deque[Change] = deque()
        self._ended = False
        self._woken = asyncio.Event()
        self._removed: dict[str, int] = {}
        """The paths that were removed, and how often: changes that were sent before do not count."""

    def _ask(self, verb: str, path: str = "") -> None:
        self._session.send({"watch": self._number, "do": verb, "path": path})

    def add(self, path: str) -> None:
        """Watches a node."""
        self._ask("add", path)

    def add_children(self, path: str) -> None:
        """Watches the names of a node's children."""
        self._ask("add_children", path)

    def add_created(self, path: str) -> None:
        """Watches for new children."""
        self._ask("add_created", path)

    def remove(self, path: str) -> None:
        """Stops watching a path."""
        self._removed[path] = self._removed.get(path, 0) + 1
        self._changes = deque(change for change in self._changes if change.path != path)
        self._ask("remove", path)

    def arrived(self, message: Message) -> None:
        """Takes changes that the process that serves has seen, or its word that a path was removed."""
        if "removed" in message:
            path = message["removed"]
            self._removed[path] -= 1
            if not self._removed[path]:
                del self._removed[path]
            return
        self._changes += [c for c in map(decode_change, message["changes"]) if c.path not in self._removed]
        self._woken.set()

    def end(self) -> None:
        """Ends the watch with its session."""
        self._ended = True
        self._woken.set()

    async def changes(self) -> list[Change]:
        """Waits for changes and returns all of them."""
        while not self._changes:
            if self._ended:
                raise SessionLostError("the session of the host is over, or the watch is closed")
            self._woken.clear()
            await self._woken.wait()
        found = list(self._changes)
        self._changes.clear()
        return found

    def close(self) -> None:
        """Stops watching."""
        if not self._ended:
            self._ask("close")
        self._changes.clear()
        self.end()
        self._session.forget_watch(self._number)


# -- as data ---------------------------------------------------------------------------------------------------------------


def encode_node(node: Node | None) -> list[Any] | None:
    """Returns a node as data."""
    if node is None:
        return None
    return [node.path, node.data.decode("latin-1"), node.version, node.owner, node.created, node.modified]


def decode_node(data: list[Any] | None) -> Node | None:
    """Returns the node that was encoded."""
    return None if data is None else Node(data[0], data[1].encode("latin-1"), *data[2:])


def encode_change(change: Change) -> Message:
    """Returns a change as data."""
    if isinstance(change, Created):
        return {"path": change.path, "created": change.name}
    if isinstance(change.now, Children):
        return {"path": change.path, "children": change.now.names}
    return {"path": change.path, "node": encode_node(change.now)}


def decode_change(data: Message) -> Change:
    """Returns the change that was encoded."""
    path = data["path"]
    if "created" in data:
        return Created(path, name=data["created"])
    if "children" in data:
        return Change(path, Children(path, tuple(data["children"])))
    return Change(path, decode_node(data["node"]))


def encode_op(op: Op) -> list[Any]:
    """Returns an operation as data."""
    match op:
        case Check():
            return ["check", op.path, op.version]
        case Set():
            return ["set", op.path, op.data.decode("latin-1"), op.version]
        case Create():
            return ["create", op.path, op.data.decode("latin-1"), op.ephemeral, op.sequential]
        case Delete():
            return ["delete", op.path, op.version]


def decode_op(data: list[Any]) -> Op:
    """Returns the operation that was encoded."""
    verb, path, *rest = data
    if verb == "check":
        return Check(path, *rest)
    if verb == "set":
        return Set(path, rest[0].encode("latin-1"), rest[1])
    if verb == "create":
        return Create(path, rest[0].encode("latin-1"), ephemeral=rest[1], sequential=rest[2])
    return Delete(path, *rest)
