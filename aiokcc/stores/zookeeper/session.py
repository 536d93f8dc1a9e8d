"""One ZooKeeper session: calls go in, connections come and go, and at some point it is over.

**When may others think that we are gone?** The server counts the timeout from the moment it last got something from us,
which is not before the moment we sent it; and an answer proves that it got it. So until *send time of the last answered
request + timeout* the server cannot have ended the session, however late the answer came and however wrong its clock is
set: both sides measure durations only. From then on it may have; that is when we say LOST, without asking anybody. The
session may live a little longer at the server (it rounds up, and expects us to be late). That is harmless: we merely
stop too early.

One hole remains: a follower answers us by itself and tells the leader about it up to half a tick later. If it dies in
between, the leader counts from an earlier request. A timeout is at least two ticks, so the last third of it, which
``stop_at`` leaves out, is longer than that. It also pays for the handler that looked at ``stop_at`` just before.

We measure on ``boottime``: a machine that was suspended finds its session over at once.

**Connections.** One task dials, serves the connection until it breaks, and dials again, until the session is lost
or closed. While serving it watches over the silence: nothing sent for a third of the timeout, a ping; no answer
for a third, the connection is dead, and another server gets the last third to take us over.

**Calls.** While a connection is open and nothing is in doubt, calls go straight to it (``_direct``). Otherwise they line
up in ``_backlog``. A break puts what was not answered in front of that line; the next connection takes the line up in
order, reads as they are, writes after ``resolve`` has found out what became of them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from aiokcc.errors import (
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    SessionLostError,
    StoreError,
    StoreUnreachableError,
    TooLargeError,
)
from aiokcc.stores.checks import check_op, check_size
from aiokcc.stores.port import (
    STOP_FRACTION,
    Create,
    Delete,
    Node,
    Op,
    OpResult,
    Session,
    SessionState,
    Set,
    boottime,
)
from aiokcc.stores.zookeeper import wire
from aiokcc.stores.zookeeper.connection import Connection
from aiokcc.stores.zookeeper.connector import Connector, Ensemble
from aiokcc.stores.zookeeper.keepalive import keep_alive
from aiokcc.stores.zookeeper.pending import (
    ConnectionDroppedError,
    OneConnectionRequest,
    PendingRequest,
    PendingTransaction,
    PendingWrite,
)
from aiokcc.stores.zookeeper.resolve import OutcomeResolver
from aiokcc.stores.zookeeper.watch import WatchRegistry, ZooKeeperWatch

log = logging.getLogger("aiokcc.stores.zookeeper")

CLOSE_TIMEOUT: Final = 1.0
"""Seconds that closing waits for the server to confirm."""


class ZooKeeperSession(Session):
    """See the module. Made by ``ZooKeeperStore.session``, which also runs :meth:`run` and :meth:`close`."""

    def __init__(self, ensemble: Ensemble, root: str, acl: bytes, timeout: float) -> None:
        self.id = 0
        self.timeout = timeout
        self.stop_at = -math.inf
        self.state = SessionState.SUSPENDED
        self._loop = asyncio.get_running_loop()
        self._ensemble = ensemble
        self._root = root
        self._acl = acl
        self._connector = Connector(ensemble)
        self._password = b""
        self.confirmed_at = -math.inf
        self._connection: Connection | None = None
        self._direct: Connection | None = None
        self._backlog: deque[PendingRequest] = deque()
        self._attributed: set[tuple[str, int]] = set()
        self._watches = WatchRegistry(root)
        self._state_waiters: dict[asyncio.Future[SessionState], tuple[SessionState, ...]] = {}
        self._lost_reason = ""
        self._closing = False
        self._scope = anyio.CancelScope()

    def __repr__(self) -> str:
        return f"<ZooKeeperSession {self.id:#x} {self.state.value}>"

    # -- Reads ----------------------------------------------------------------------------------------------------------

    async def find(self, path: str) -> Node | None:
        try:
            return await self.get(path)
        except NoNodeError:
            return None

    async def get(self, path: str) -> Node:
        future = self._loop.create_future()
        self._submit(
            PendingRequest(future, wire.get_request(wire.encode_path(self._root, path)), wire.decode_node, path)
        )
        node: Node = await future
        return node

    async def children(self, path: str) -> tuple[str, ...]:
        future = self._loop.create_future()
        self._submit(
            PendingRequest(future, wire.children_request(wire.encode_path(self._root, path)), wire.decode_names, path)
        )
        names: tuple[str, ...] = await future
        return names

    # -- Writes ---------------------------------------------------------------------------------------------------------

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        name = await self._write(Create(path, data, ephemeral, sequential), wire.decode_created)
        assert isinstance(name, str)
        # The server says the full name; a name found again after a break is already relative.
        return wire.relative_path(self._root, name) if name.startswith("/") else name

    async def set(self, path: str, data: bytes, version: int) -> int:
        written = await self._write(Set(path, data, version), wire.decode_version)
        assert isinstance(written, int)
        return written

    async def delete(self, path: str, version: int) -> None:
        await self._write(Delete(path, version), wire.decode_nothing)

    async def commit(self, *ops: Op) -> list[OpResult]:
        for op in ops:
            check_op(op)
        check_size(self._root, *ops)
        if not ops:
            await checkpoint()
            return []
        sent = [_with_unique_id(op) for op in ops]
        payload = self._check_frame_size(ops, wire.multi_request(self._root, sent, self._acl))
        future = self._loop.create_future()
        self._submit(PendingTransaction(future, payload, sent, ops, self._root))
        results: list[OpResult] = await future
        return results

    async def ensure(self, path: str) -> None:
        name = wire.encode_path(self._root, path)
        future = self._loop.create_future()
        self._submit(PendingRequest(future, wire.exists_request(name), wire.decode_nothing, path))
        with suppress(NoNodeError):
            await future
            return
        full = name[4:].decode()
        # From below, because a parent that is there may be one in which we could not create it.
        end = len(full)
        missing: list[int] = []
        while end > 0:
            try:
                await self._create_missing(full[:end], path)
            except NoNodeError:
                missing.append(end)
                end = full.rfind("/", 0, end)
            else:
                break
        for end in reversed(missing):
            await self._create_missing(full[:end], path)

    async def _create_missing(self, full: str, path: str) -> None:
        """Create a persistent, empty node unless it is there. Sent twice it does no harm: it is never in doubt."""
        future = self._loop.create_future()
        name = full.encode()
        payload = wire.create_request(wire.LENGTH.pack(len(name)) + name, b"", self._acl, 0)
        self._submit(PendingRequest(future, payload, wire.decode_created, path))
        with suppress(NodeExistsError):
            await future

    async def _write(self, op: Set | Create | Delete, decode: wire.Decoder) -> object:
        check_op(op)
        check_size(self._root, op)
        sent = _with_unique_id(op)
        payload = self._check_frame_size((op,), wire.op_request(self._root, sent, self._acl))
        future = self._loop.create_future()
        self._submit(PendingWrite(future, payload, decode, op.path, (sent,)))
        return await future

    def _check_frame_size(self, ops: tuple[Op, ...], payload: bytes) -> bytes:
        """The request if the server takes one of this size; with many small operations the frames around them count."""
        if len(payload) > wire.FRAME_LIMIT:
            raise TooLargeError(ops[-1].path, len(ops) - 1 if len(ops) > 1 else None)
        return payload

    def _submit(self, request: PendingRequest) -> None:
        if self._direct is not None:
            self._direct.send(request)
        elif self.state is SessionState.LOST:
            raise SessionLostError(self._lost_reason)
        else:
            self._backlog.append(request)

    # -- WatchRegistry and states ---------------------------------------------------------------------------------------------

    def watch(self) -> ZooKeeperWatch:
        return ZooKeeperWatch(self._watches)

    async def until(self, *states: SessionState) -> SessionState:
        if self.state in states or self.state is SessionState.LOST:
            await checkpoint()
            return self.state
        future: asyncio.Future[SessionState] = self._loop.create_future()
        self._state_waiters[future] = states
        try:
            return await future
        finally:
            del self._state_waiters[future]

    def _set_state(self, state: SessionState) -> None:
        self.state = state
        for future, states in self._state_waiters.items():
            if (state in states or state is SessionState.LOST) and not future.done():
                future.set_result(state)

    # -- What the connection says ---------------------------------------------------------------------------------------

    def on_answer(self, sent_at: float) -> None:
        if sent_at > self.confirmed_at and self.state is not SessionState.LOST:
            self.confirmed_at = sent_at
            self.stop_at = sent_at + STOP_FRACTION * self.timeout

    def on_watch_event(self, kind: int, name: str) -> None:
        self._watches.on_event(kind, name)

    def on_expired(self) -> None:
        self._lose("it has expired at the server")

    def on_dropped(self, connection: Connection) -> None:
        self._connection = self._direct = None
        sent = len(connection.pending) - len(connection.outbox)
        kept = [request for index, request in enumerate(connection.pending) if request.on_drop(index < sent)]
        connection.pending.clear()
        self._backlog.extendleft(reversed(kept))
        self._watches.suspend()
        if connection.answered and not connection.malformed:
            self._connector.reset_backoff(boottime() - connection.opened_at)
        if self.state is SessionState.CONNECTED:
            log.info("session %#x suspended: %s", self.id, connection.reason)
            self._set_state(SessionState.SUSPENDED)

    # -- The task -------------------------------------------------------------------------------------------------------

    async def wait_connected(self, connect_timeout: float | None) -> None:
        """Wait for the first connection."""
        with anyio.move_on_after(connect_timeout):
            await self.until(SessionState.CONNECTED)
            return
        tried = "; ".join(
            f"{server}: {self._connector.errors.get(server, 'not tried yet')}" for server in self._ensemble.servers
        )
        raise StoreUnreachableError(
            f"no ZooKeeper server opened a session within {connect_timeout:g} s ({tried}); check that the servers run and that "
            f"the URL names their client ports, or give connect_timeout=None to wait for ever"
        )

    async def run(self) -> None:
        """Keep the session connected until it is lost or :meth:`close` ends this."""
        with self._scope:
            while self.state is not SessionState.LOST:
                connection = await self._connect()
                if connection is not None:
                    await self._serve(connection)

    async def _connect(self) -> Connection | None:
        """The next connection; None if there is none because the session is over."""
        left = self.confirmed_at + self.timeout - boottime() if self.id else math.inf
        with anyio.move_on_after(left):
            accepted = await self._connector.dial(self.timeout, self.id, self._password)
            connection, handshake = accepted.connection, accepted.handshake
            if self.id and handshake.session_id != self.id:
                connection.abort("not our session")
                self._lose("it has expired at the server")
                return None
            resumed = self.id != 0
            self.id, self.timeout, self._password = handshake.session_id, handshake.timeout, handshake.password
            self.on_answer(accepted.sent_at)
            log.info(
                "session %#x %s %s, timeout %g s",
                self.id,
                "resumed at" if resumed else "opened at",
                accepted.server,
                self.timeout,
            )
            return connection
        self._lose(f"no server has answered for {self.timeout:g} s")
        return None

    async def _serve(self, connection: Connection) -> None:
        if connection.closed.is_set():
            return
        self._connection = connection
        connection.listener = self
        self._set_state(SessionState.CONNECTED)
        if not self._backlog:
            self._go_direct(connection)
            await keep_alive(connection, self)
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send_backlog, connection)
                await keep_alive(connection, self)
                tasks.cancel_scope.cancel()

    async def _send_backlog(self, connection: Connection) -> None:
        """Take up the line of calls that waits for a connection, in order."""
        backlog = self._backlog
        resolver = OutcomeResolver(connection, self._root, self.id, self._attributed)
        with suppress(ConnectionDroppedError):
            if any(request.in_doubt for request in backlog):
                await resolver.sync()
                for request in backlog:
                    request.up_to_zxid = request.up_to_zxid or self._ensemble.last_seen.zxid
            while backlog and not connection.closed.is_set():
                request = backlog[0]
                resolved = request.done
                if request.in_doubt and not resolved:
                    resolved = await resolver.resolve(request, tuple(islice(backlog, 1, None)))
                    if connection.closed.is_set():
                        return  # whatever was found: the line has changed, and the next connection finds it again
                backlog.popleft()
                if resolved:
                    continue
                if request.attempts_exhausted(self.timeout):
                    request.give_up()
                else:
                    connection.send(request)
            if not connection.closed.is_set():
                self._go_direct(connection)

    def _go_direct(self, connection: Connection) -> None:
        if self._closing:
            return
        self._direct = connection
        self._attributed.clear()  # nothing is in doubt
        self._watches.resume(connection.send)

    # -- The end --------------------------------------------------------------------------------------------------------

    def _lose(self, reason: str) -> None:
        if self.state is not SessionState.LOST:
            log.warning("session %#x lost: %s", self.id, reason)
            self._end(reason)

    def _end(self, reason: str) -> None:
        """Over: no call is taken any more, and those that wait are told."""
        if self.state is SessionState.LOST:
            return
        self._lost_reason = f"session {self.id:#x} is over: {reason}"
        self.stop_at = -math.inf
        self._direct = None
        self._set_state(SessionState.LOST)
        self._watches.lose(SessionLostError(self._lost_reason))
        self._fail_all()

    def _fail_all(self) -> None:
        if self._connection is not None:
            self._connection.abort(self._lost_reason)
        for request in self._backlog:
            if request.in_doubt:
                request.fail(
                    OutcomeUnknownError(f"{request.path or 'the root'}: {self._lost_reason}; it was not answered")
                )
            else:
                request.fail(SessionLostError(self._lost_reason))
        self._backlog.clear()

    async def close(self) -> None:
        """Close the session, if the server can be told; quick in any case."""
        try:
            connection = self._connection
            if connection is not None and self.state is SessionState.CONNECTED:
                self._closing, self._direct = True, None  # what is called from now on is not sent behind the closing
                closing = OneConnectionRequest(self._loop.create_future(), wire.CLOSE_REQUEST, None, "")
                connection.send(closing)
                with anyio.move_on_after(CLOSE_TIMEOUT, shield=True), suppress(ConnectionDroppedError, StoreError):
                    await closing.future
        finally:
            self._end("it was closed")
            self._scope.cancel()


def _with_unique_id(op: Op) -> Op:
    """The operation as it is sent: a sequential node gets its mark, by which it is found again."""
    return replace(op, path=f"{op.path}{uuid.uuid4().hex}-") if isinstance(op, Create) and op.sequential else op
