"""The client's half of the memory store: a session.

An operation is applied when it is called, and its result is returned after one turn of the event loop, so that loops over a
memory store stay fair and can be cancelled. If faults are injected, or an earlier call of the session is still waiting, a call
goes through more steps: it joins the session's queue, waits for the connection, runs the ``before`` hooks, waits until it is
the first in the queue, is applied, runs the ``after`` hooks, and waits for the connection to return its result.

If the session ends meanwhile, a call that was not yet sent raises SessionLostError. A write that was sent cannot know whether
it was applied and raises OutcomeUnknownError.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from aiokcc.errors import AiokccError, NodeError, NoNodeError, OutcomeUnknownError, SessionLostError, UsageError
from aiokcc.stores.checks import check_op, check_path, check_size
from aiokcc.stores.memory.broadcast import Broadcast
from aiokcc.stores.memory.server import Call, MemoryServer
from aiokcc.stores.memory.watch import MemoryWatch
from aiokcc.stores.port import (
    STOP_FRACTION,
    Children,
    Create,
    Delete,
    Node,
    Op,
    OpResult,
    Session,
    SessionState,
    Set,
)
from aiokcc.stores.state_waiters import StateWaiters
from aiokcc.stores.tree import TreeError, TreeOp, tree_op

__all__ = ["MemorySession"]

T = TypeVar("T")


class MemorySession(Session):
    """One session with a :class:`MemoryServer`.

    While it is connected its ``stop_at`` is infinite: it cannot end unnoticed, so no clock is needed.
    """

    def __init__(self, server: MemoryServer, root: str, timeout: float, identity: int) -> None:
        self.id, self.timeout = identity, timeout
        self.state, self.stop_at = SessionState.CONNECTED, math.inf
        self._server, self._root = server, root
        self._loop = asyncio.get_running_loop()
        # The server knows whether the session is alive, the client whether it has closed it. The others are injected faults.
        self._alive, self._closed, self._disconnected, self._frozen = True, False, False, False
        self._reason = ""
        self._silent_since: float | None = None
        self._queue: deque[object] = deque()
        self._scopes: set[asyncio.Timeout] = set()
        self._changed = Broadcast()
        self._state_waiters = StateWaiters()
        self._watches: dict[MemoryWatch, None] = {}
        self._update_state()

    def __repr__(self) -> str:
        return f"<MemorySession {self.id} of memory://{self._server.name} {self.state.value}>"

    # Operations

    async def find(self, path: str) -> Node | None:
        full = self._full(path)
        return await self._call("find", (path,), (), lambda: self._read(path, full))

    async def get(self, path: str) -> Node:
        full = self._full(path)

        def apply() -> Node:
            if (node := self._read(path, full)) is None:
                raise NoNodeError(path)
            return node

        return await self._call("get", (path,), (), apply)

    async def children(self, path: str) -> tuple[str, ...]:
        full = self._full(path)

        def apply() -> tuple[str, ...]:
            if (found := self._read_children(path, full)) is None:
                raise NoNodeError(path)
            return found.names

        return await self._call("children", (path,), (), apply)

    async def sync(self) -> None:
        await self._call("sync", ("",), (), lambda: None)

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        (created,) = await self._submit("create", Create(path, data, ephemeral=ephemeral, sequential=sequential))
        assert isinstance(created, str)
        return created

    async def set(self, path: str, data: bytes, version: int) -> int:
        (written,) = await self._submit("set", Set(path, data, version))
        assert isinstance(written, int)
        return written

    async def delete(self, path: str, version: int) -> None:
        await self._submit("delete", Delete(path, version))

    async def commit(self, *ops: Op) -> list[OpResult]:
        return await self._submit("commit", *ops)

    def send_set(self, path: str, data: bytes, version: int) -> asyncio.Future[int] | None:
        return self._send("set", (Set(path, data, version),), lambda results: results[0])

    def send_commit(self, *ops: Op) -> asyncio.Future[list[OpResult]] | None:
        return self._send("commit", ops, lambda results: results)

    async def ensure(self, path: str) -> None:
        full = self._full(path)
        steps = [full[:end] for end in range(1, len(full)) if full[end] == "/"] + [full]

        def apply() -> None:
            nodes = self._server._tree.nodes
            try:
                self._server._write([TreeOp("create", step) for step in steps if step not in nodes])
            except TreeError as error:
                raise error.kind(path) from None

        await self._call("ensure", (path,), (), apply)

    def watch(self) -> MemoryWatch:
        watch = MemoryWatch(self)
        if self.state is not SessionState.LOST:
            self._watches[watch] = None
        return watch

    async def until(self, *states: SessionState) -> SessionState:
        self._check_loop()
        if self.state in states or self.state is SessionState.LOST:
            await asyncio.sleep(0)
            return self.state
        return await self._state_waiters.wait(states)

    # The way of a call

    async def _call(self, verb: str, paths: tuple[str, ...], ops: tuple[Op, ...], apply: Callable[[], T]) -> T:
        self._check_usable()
        if self._queue or self._server._hooks or not self._can_receive:
            return await self._call_through_hooks(Call(self, verb, paths, ops), apply, self._enter_queue())
        try:
            return apply()
        finally:
            await asyncio.sleep(0)

    def _send(
        self, verb: str, ops: tuple[Op, ...], answer: Callable[[list[OpResult]], Any]
    ) -> asyncio.Future[Any] | None:
        """Send a write without waiting; its answer comes in a later turn of the loop. Hooks are run by a task."""
        self._check_loop()
        if not ops or not self._can_receive:
            return None
        apply = self._writer(verb, ops)
        if not (self._queue or self._server._hooks):
            future: asyncio.Future[Any] = self._loop.create_future()
            try:
                self._loop.call_soon(_settle, future, answer(apply()), None)
            except NodeError as error:
                self._loop.call_soon(_settle, future, None, error)
            return future
        call, ticket = Call(self, verb, tuple(op.path for op in ops), ops), self._enter_queue()

        async def through() -> object:
            return answer(await self._call_through_hooks(call, apply, ticket))

        task = self._loop.create_task(through())
        task.add_done_callback(lambda _: self._leave_queue(ticket))  # it may be cancelled before it has begun
        return task

    async def _call_through_hooks(self, call: Call, apply: Callable[[], T], ticket: object) -> T:
        sent = False
        scope: asyncio.Timeout | None = None
        try:
            async with asyncio.timeout(None) as scope:
                self._scopes.add(scope)
                try:
                    await self._wait_until(lambda: self._can_receive)
                    sent = True
                    await self._server._run_hooks(call, after=False)
                    await self._wait_until(lambda: self._queue[0] is ticket and self._can_send and self._alive)
                    try:
                        answer: T | AiokccError = apply()
                    except NodeError as error:  # a reply like any other: the hooks run on it too
                        answer = error
                    self._leave_queue(ticket)
                    await self._server._run_hooks(call, after=True)
                    await self._wait_until(lambda: self._can_receive)
                finally:
                    self._scopes.discard(scope)
                    self._leave_queue(ticket)
        except TimeoutError:
            if scope is None or not scope.expired():
                raise  # a hook raised it
            if sent and call.writes:
                raise OutcomeUnknownError(
                    f"session {self.id} ended ({self._reason}) before the answer to {call.verb} {', '.join(call.paths)}"
                ) from None
            raise self._lost_error() from None
        if isinstance(answer, AiokccError):
            raise answer
        return answer

    async def _wait_until(self, true: Callable[[], bool]) -> None:
        while not true():
            await self._changed.wait()

    def _enter_queue(self) -> object:
        ticket = object()
        self._queue.append(ticket)
        return ticket

    def _leave_queue(self, ticket: object) -> None:
        if ticket in self._queue:
            self._queue.remove(ticket)
            self._changed.notify_all()

    @property
    def _can_send(self) -> bool:
        """True if requests of this session reach the server."""
        return not (self._disconnected or self._server._down)

    @property
    def _can_receive(self) -> bool:
        """True if replies and changes reach this session."""
        return self._can_send and not self._frozen and self.state is SessionState.CONNECTED

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError(
                f"session {self.id} of memory://{self._server.name} was opened in another event loop; open one in this loop"
            )

    def _check_usable(self) -> None:
        self._check_loop()
        if self.state is SessionState.LOST:
            raise self._lost_error()

    def _lost_error(self) -> SessionLostError:
        return SessionLostError(f"session {self.id} of memory://{self._server.name} is over: {self._reason}")

    # The effect of a call

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if check_path(path) else self._root

    def _read(self, path: str, full: str) -> Node | None:
        return self._server._node(full, path) if full in self._server._tree.nodes else None

    def _read_children(self, path: str, full: str) -> Children | None:
        found = self._server._tree.nodes.get(full)
        return None if found is None else Children(path, tuple(sorted(found.children)))

    async def _submit(self, verb: str, *ops: Op) -> list[OpResult]:
        apply = self._writer(verb, ops)  # first: it refuses what is no operation
        return await self._call(verb, tuple(op.path for op in ops), ops, apply)

    def _writer(self, verb: str, ops: tuple[Op, ...]) -> Callable[[], list[OpResult]]:
        """Check a write, and return the function that applies it."""
        for op in ops:
            check_op(op)
        check_size(self._root, *ops)
        steps = [self._tree_op(op) for op in ops]
        prefix = len(self._root) + 1

        def apply() -> list[OpResult]:
            try:
                results = self._server._write(steps)
            except TreeError as error:
                index = error.index
                raise error.kind(ops[index].path, index if verb == "commit" else None) from None
            return [result[prefix:] if isinstance(result, str) else result for result in results]

        return apply

    def _tree_op(self, op: Op) -> TreeOp:
        path = self._full(op.path)
        if isinstance(op, Create) and op.sequential:
            path = f"{path}{uuid.uuid4().hex}-"
        return tree_op(op, path, self.id)

    # The state

    def _close(self) -> None:
        """Close the session. Without a connection the server does not notice, and keeps the session until it expires."""
        self._reason = self._reason or "it was closed"
        can_send = self._can_send and not self._frozen
        self._closed = True
        self._lose()
        if can_send:
            self._server._end(self, self._reason)

    def _update_state(self, stop_at: float | None = None) -> None:
        """Set ``state`` and ``stop_at`` according to the injected faults, unless the client is frozen."""
        if self._closed or self.state is SessionState.LOST:
            return
        if self._frozen or not self._can_send:
            if self._silent_since is None:
                self._silent_since = self._server.clock()
                self.stop_at = self._silent_since + STOP_FRACTION * self.timeout
            if stop_at is not None:
                self.stop_at = stop_at
        if self._frozen:
            return
        if not self._alive:
            self._lose()
        elif not self._can_send:
            self._set_state(SessionState.SUSPENDED)
        else:
            self._silent_since, self.stop_at = None, math.inf
            self._set_state(SessionState.CONNECTED)

    def _lose(self) -> None:
        if self.state is SessionState.LOST:
            return
        self.stop_at = -math.inf
        self._set_state(SessionState.LOST)
        for watch in tuple(self._watches):
            watch.close()
        if not self._loop.is_closed():
            for scope in self._scopes:
                scope.reschedule(self._loop.time())

    def _set_state(self, state: SessionState) -> None:
        if self.state is SessionState.SUSPENDED and state is SessionState.CONNECTED:
            for watch in self._watches:
                watch._listen_again()
        self.state = state
        self._state_waiters.notify(state)
        self._changed.notify_all()
        for watch in self._watches:
            watch._wakeup.notify_all()


def _settle(future: asyncio.Future[Any], answer: object, error: NodeError | None) -> None:
    if future.done():
        return  # it was cancelled
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)
