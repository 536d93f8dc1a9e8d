"""One ZooKeeper session: it sends requests, replaces broken connections, and ends when it is lost or closed.

**The time of loss.** The server counts the timeout from the time at which it last received something from us. That is not
before we sent it, and an answer proves that it was received. So until *send time of the last answered request + timeout* the
server cannot have ended the session, however late the answer came and however its clock is set: both sides measure durations
only. After that it may have ended it, so we set LOST without asking. The session may live a little longer at the server, which
rounds up and allows for delays. That is harmless: we only stop too early.

One gap remains: a follower answers us by itself and informs the leader up to half a tick later. If it dies in between, the
leader counts from an earlier request. A timeout is at least two ticks, so the last third of it, which ``stop_at`` leaves out,
is longer than that. The last third is also the time that remains to a handler that checked ``stop_at`` just before.

We measure on ``boottime``: after a machine was suspended, its session is lost at once.

**Connections.** One task connects, serves the connection until it breaks, and connects again, until the session is lost or
closed. See ``connector`` and ``keepalive``.

**Requests.** While a connection is open and nothing is in doubt, requests go directly to it (``_direct``). Otherwise they wait
in the ``backlog``, and so do the unanswered requests of a connection that broke.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint

from aiokcc.core import paths
from aiokcc.errors import (
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SessionLostError,
    StoreError,
    StoreUnreachableError,
    TooLargeError,
)
from aiokcc.stores.checks import MAX_REQUEST, check_op, check_size
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
from aiokcc.stores.state_waiters import StateWaiters
from aiokcc.stores.zookeeper import wire
from aiokcc.stores.zookeeper.acl import Acl
from aiokcc.stores.zookeeper.backlog import Backlog
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
from aiokcc.stores.zookeeper.watch import WatchRegistry, ZooKeeperWatch

log = logging.getLogger("aiokcc.stores")

_SMALL: Final = MAX_REQUEST // 3
"""A request of so many bytes at most need not be checked: the size counts a character of a name as three bytes at most."""
CLOSE_TIMEOUT: Final = 1.0
"""Closing waits this many seconds for the server's confirmation."""


class ZooKeeperSession(Session):
    """One session, over any number of connections. ``ZooKeeperStore.session`` makes it, runs it and closes it."""

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
        self._knows_acl = False
        self._password = b""
        self.confirmed_at = -math.inf
        self._connection: Connection | None = None
        self._direct: Connection | None = None
        self._backlog = Backlog(root, ensemble.last_seen)
        self._watches = WatchRegistry(root)
        self._state_waiters = StateWaiters()
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
        node: Node = await self._request(wire.get_request(wire.encode_path(self._root, path)), wire.decode_node, path)
        return node

    async def children(self, path: str) -> tuple[str, ...]:
        request = wire.children_request(wire.encode_path(self._root, path))
        names: tuple[str, ...] = await self._request(request, wire.decode_names, path)
        return names

    async def sync(self) -> None:
        await self._request(wire.sync_request(wire.encode_path(self._root, "")), wire.decode_nothing, "")

    def _request(self, payload: bytes, decode: wire.Decoder, path: str) -> asyncio.Future[Any]:
        """Send a request that may be sent twice, or queue it, and return the future of its answer."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._submit(PendingRequest(future, payload, decode, path))
        return future

    # -- Writes ---------------------------------------------------------------------------------------------------------

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        name = await self._write(Create(path, data, ephemeral, sequential), wire.decode_created)
        assert isinstance(name, str)
        # The server answers with the full name; a name that was found after a break is already relative.
        return wire.relative_path(self._root, name) if name.startswith("/") else name

    async def set(self, path: str, data: bytes, version: int) -> int:
        written = await self._write(Set(path, data, version), wire.decode_version)
        assert isinstance(written, int)
        return written

    def send_set(self, path: str, data: bytes, version: int) -> asyncio.Future[int] | None:
        if self._direct is None:
            return None
        op = Set(path, data, version)
        check_op(op)
        check_size(self._root, op)
        return self._send_write(op, wire.decode_version)

    async def delete(self, path: str, version: int) -> None:
        await self._write(Delete(path, version), wire.decode_nothing)

    async def commit(self, *ops: Op) -> list[OpResult]:
        if not ops:
            await checkpoint()
            return []
        if not self._knows_acl and any(isinstance(op, Create) for op in ops):
            await self._inherit_acl()
        return await self._send_transaction(ops)

    def send_commit(self, *ops: Op) -> asyncio.Future[list[OpResult]] | None:
        if self._direct is None or not ops or not self._knows_acl:
            return None
        return self._send_transaction(ops)

    def _send_transaction(self, ops: tuple[Op, ...]) -> asyncio.Future[list[OpResult]]:
        for op in ops:
            check_op(op)
        sent = [_with_unique_id(op) for op in ops]
        payload = wire.multi_request(self._root, sent, self._acl)
        if len(payload) > _SMALL:
            check_size(self._root, *ops)
            self._check_frame_size(ops, payload)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._submit(PendingTransaction(future, payload, sent, ops, self._root))
        return future

    async def ensure(self, path: str) -> None:
        name = wire.encode_path(self._root, path)
        with suppress(NoNodeError):
            await self._request(wire.exists_request(name), wire.decode_nothing, path)
            return
        if not self._knows_acl:
            await self._inherit_acl()
        full = name[4:].decode()
        # Begin with the node itself: we may have no permission to create the parents that exist.
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

    async def _inherit_acl(self) -> None:
        """Take over the access list of the group under this root, if there is one, so that all of its nodes have the same.

        A session that may not read the list, or sees it without its digests because they belong to others, keeps its own.
        """
        request = wire.acl_request(wire.encode_path(self._root, paths.RUN))
        with suppress(NoNodeError, NoAuthError):
            rules: tuple[Acl, ...] = await self._request(request, wire.decode_acl, paths.RUN)
            if not any(rule.scheme == "digest" and rule.id.endswith(":x") for rule in rules):
                self._acl = wire.encode_acl(rules)
        self._knows_acl = True

    async def _create_missing(self, full: str, path: str) -> None:
        """Create a persistent, empty node unless it exists. It can be sent twice, so it is a read here and never in doubt."""
        name = full.encode()
        payload = wire.create_request(wire.LENGTH.pack(len(name)) + name, b"", self._acl, 0)
        with suppress(NodeExistsError):
            await self._request(payload, wire.decode_created, path)

    async def _write(self, op: Set | Create | Delete, decode: wire.Decoder) -> object:
        check_op(op)
        check_size(self._root, op)
        if not self._knows_acl and isinstance(op, Create):
            await self._inherit_acl()
        return await self._send_write(op, decode)

    def _send_write(self, op: Set | Create | Delete, decode: wire.Decoder) -> asyncio.Future[Any]:
        sent = _with_unique_id(op)
        payload = self._check_frame_size((op,), wire.op_request(self._root, sent, self._acl))
        future: asyncio.Future[Any] = self._loop.create_future()
        self._submit(PendingWrite(future, payload, decode, op.path, (sent,)))
        return future

    def _check_frame_size(self, ops: tuple[Op, ...], payload: bytes) -> bytes:
        """Return the payload. Raises TooLargeError if its frame is too large, as with very many small operations."""
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

    # -- Watches and states ---------------------------------------------------------------------------------------------

    def watch(self) -> ZooKeeperWatch:
        return ZooKeeperWatch(self._watches)

    async def until(self, *states: SessionState) -> SessionState:
        if self.state in states or self.state is SessionState.LOST:
            await checkpoint()
            return self.state
        return await self._state_waiters.wait(states)

    def _set_state(self, state: SessionState) -> None:
        self.state = state
        self._state_waiters.notify(state)

    # -- Called by the connection ---------------------------------------------------------------------------------------

    def on_answer(self, sent_at: float) -> None:
        if sent_at > self.confirmed_at and self.state is not SessionState.LOST:
            self.confirmed_at = sent_at
            self.stop_at = sent_at + STOP_FRACTION * self.timeout

    def on_requests_answered(self, number: int, seconds: float) -> None:
        self.requests += number
        self.request_seconds += seconds

    def on_watch_event(self, kind: int, name: str, zxid: int) -> None:
        self._watches.on_event(kind, name, zxid)

    def on_expired(self) -> None:
        self._lose("it has expired at the server")

    def on_dropped(self, connection: Connection) -> None:
        self._connection = self._direct = None
        self._backlog.put_back(connection)
        self._watches.suspend()
        if connection.answered and not connection.malformed:
            self._connector.reset_backoff(boottime() - connection.opened_at)
        if self.state is SessionState.CONNECTED:
            log.info("session %#x suspended: %s", self.id, connection.reason)
            self._set_state(SessionState.SUSPENDED)

    # -- Connecting -----------------------------------------------------------------------------------------------------

    async def wait_connected(self, connect_timeout: float | None) -> None:
        """Wait for the first connection. Raises StoreUnreachableError after ``connect_timeout`` seconds."""
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
        """Keep the session connected until it is lost or closed. It can be cancelled; :meth:`close` aborts the connection."""
        with self._scope:
            while self.state is not SessionState.LOST:
                connection = await self._connect()
                if connection is not None:
                    await self._serve(connection)

    async def _connect(self) -> Connection | None:
        """Return the next connection; None if the session is lost."""
        left = self.confirmed_at + self.timeout - boottime() if self.id else math.inf
        with anyio.move_on_after(left):
            accepted = await self._connector.connect(self.timeout, self.id, self._password)
            connection, handshake = accepted.connection, accepted.handshake
            if self.id and handshake.session_id != self.id:
                connection.abort("the server does not know the session")
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
        """Send the backlog, then let requests go directly to the connection, unless it breaks before."""
        await self._backlog.send(connection, self.id, self.timeout)
        if not connection.closed.is_set():
            self._go_direct(connection)

    def _go_direct(self, connection: Connection) -> None:
        if self._closing:
            return
        self._direct = connection
        self._backlog.forget_evidence()
        self._watches.resume(connection.send)

    # -- Ending ---------------------------------------------------------------------------------------------------------

    def _lose(self, reason: str) -> None:
        if self.state is not SessionState.LOST:
            log.warning("session %#x lost: %s", self.id, reason)
            self._end(reason)

    def _end(self, reason: str) -> None:
        """Set LOST, refuse further requests, and fail those that wait."""
        if self.state is SessionState.LOST:
            return
        self._lost_reason = f"session {self.id:#x} is over: {reason}"
        self.stop_at = -math.inf
        self._direct = None
        self._set_state(SessionState.LOST)
        self._watches.lose(SessionLostError(self._lost_reason))
        if self._connection is not None:
            self._connection.abort(self._lost_reason)
        self._backlog.fail(self._lost_reason)

    async def close(self) -> None:
        """Close the session, at the server too if there is a connection. Takes at most CLOSE_TIMEOUT seconds."""
        try:
            connection = self._connection
            if connection is not None and self.state is SessionState.CONNECTED:
                self._closing, self._direct = True, None  # send nothing after the close request
                closing = OneConnectionRequest(self._loop.create_future(), wire.CLOSE_REQUEST, None, "")
                connection.send(closing)
                with anyio.move_on_after(CLOSE_TIMEOUT, shield=True), suppress(ConnectionDroppedError, StoreError):
                    await closing.future
        finally:
            self._end("it was closed")
            self._scope.cancel()


def _with_unique_id(op: Op) -> Op:
    """Return the operation as it is sent: the name of a sequential node gets a unique id, by which ``resolve`` finds it."""
    return replace(op, path=f"{op.path}{uuid.uuid4().hex}-") if type(op) is Create and op.sequential else op
