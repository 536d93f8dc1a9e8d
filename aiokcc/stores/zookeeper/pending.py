"""A request on its way: what is sent, who waits for the answer, and what becomes of it when the connection breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from aiokcc.errors import StoreError
from aiokcc.stores.port import Op, boottime
from aiokcc.stores.zookeeper import wire

MAX_BROKEN_CONNECTIONS: Final = 10
"""Connections that may break under one request, if they do so over longer than a session timeout: a request at which the
server hangs up each time, for whatever reason, must not be repeated for ever."""


class ConnectionDroppedError(Exception):
    """The connection broke before the answer. Never leaves this package."""


class PendingRequest:
    """A read: sent again on the next connection, for as long as somebody waits for it.

    ``sent_at``, ``zxid`` and ``doubt`` belong to the last time it was sent: when, what the store had shown us by then, and
    whether the connection broke before the answer, so that nobody knows whether the server has got it. ``until`` is set
    when it can no longer arrive: see ``resolve``.
    """

    __slots__ = (
        "after_zxid",
        "attempts",
        "decode",
        "first_broken_at",
        "future",
        "in_doubt",
        "path",
        "payload",
        "sent_at",
        "up_to_zxid",
        "xid",
    )

    ops: Sequence[Op] = ()

    def __init__(self, future: asyncio.Future[object], payload: bytes, decode: wire.Decoder | None, path: str) -> None:
        self.future = future
        self.payload = payload
        self.decode = decode
        self.path = path
        self.in_doubt = False
        self.attempts = 0
        self.first_broken_at = 0.0
        self.sent_at = 0.0
        self.xid = 0
        self.after_zxid = 0
        self.up_to_zxid = 0

    @property
    def done(self) -> bool:
        """Nobody waits any more."""
        return self.future.done()

    def on_reply(self, data: bytes, at: int, end: int) -> None:
        """The server answered. Raises if the answer cannot be read; the call then is as if not answered."""
        future = self.future
        if self.decode is not None:
            value = self.decode(data, at, end, self.path)
            if not future.done():
                future.set_result(value)
        elif not future.done():
            future.set_result(None)

    def on_error(self, code: int) -> None:
        """The server answered with an error."""
        self.fail(wire.to_error(code, self.path))

    def succeed(self, value: object) -> None:
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def on_drop(self, sent: bool) -> bool:
        """The connection broke. True if the call is to be taken to the next one."""
        if sent:
            self.attempts += 1
            self.first_broken_at = self.first_broken_at or boottime()
        return not self.done

    def attempts_exhausted(self, timeout: float) -> bool:
        """Whether it has been tried often enough, and for longer than a session timeout."""
        return self.attempts >= MAX_BROKEN_CONNECTIONS and boottime() >= self.first_broken_at + timeout

    def give_up(self) -> None:
        self.fail(
            StoreError(
                f"{self.path or 'the root'}: {self.attempts} connections in a row broke before this request was answered; it "
                f"was not applied. The log of the ZooKeeper server shows why it closes the connection"
            )
        )


class PendingWrite(PendingRequest):
    """A write: if it was sent and not answered, it is in doubt until ``resolve`` has looked at what it should have done.

    ``ops`` are what is sent: the names of sequential nodes carry their marks. ``path`` is what the caller wrote.
    """

    __slots__ = ("ops",)

    def __init__(
        self,
        future: asyncio.Future[object],
        payload: bytes,
        decode: wire.Decoder | None,
        path: str,
        ops: Sequence[Op],
    ) -> None:
        super().__init__(future, payload, decode, path)
        self.ops = ops

    def on_drop(self, sent: bool) -> bool:
        # An abandoned write was perhaps applied and perhaps not, which is what cancelling a write means.
        self.in_doubt |= sent
        return super().on_drop(sent)


class PendingTransaction(PendingWrite):
    """A transaction."""

    __slots__ = ("asked", "root")

    def __init__(
        self, future: asyncio.Future[object], payload: bytes, ops: Sequence[Op], asked: Sequence[Op], root: str
    ) -> None:
        super().__init__(future, payload, None, asked[0].path, ops)
        self.asked = asked
        self.root = root

    def on_reply(self, data: bytes, at: int, end: int) -> None:
        outcome = wire.decode_multi(data, at, end, self.asked, self.root)
        if isinstance(outcome, StoreError):
            self.fail(outcome)
        else:
            self.succeed(outcome)


class OneConnectionRequest(PendingRequest):
    """A request that means something on this connection only; its sender learns of the break and asks anew."""

    __slots__ = ()

    def on_drop(self, sent: bool) -> bool:
        self.fail(ConnectionDroppedError())
        return False
