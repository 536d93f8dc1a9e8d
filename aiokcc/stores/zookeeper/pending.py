"""Requests that wait for an answer, and what happens to them when the connection breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from aiokcc.errors import StoreError
from aiokcc.stores.port import Op, boottime
from aiokcc.stores.zookeeper import wire

MAX_BROKEN_CONNECTIONS: Final = 10
"""A request fails after so many broken connections, if they took longer than a session timeout: a request on which the server
always closes the connection must not be repeated for ever."""


class ConnectionDroppedError(Exception):
    """The connection broke before the answer. This package catches it."""


class PendingRequest:
    """A read. After a break it is sent again on the next connection, unless its caller was cancelled.

    These attributes describe the last time it was sent: ``sent_at`` is the time; ``after_zxid`` is the newest transaction seen
    by then; ``in_doubt`` is True if the connection broke before the answer, so that the server may or may not have applied it;
    ``up_to_zxid`` is the newest transaction seen when it could no longer be applied (see ``resolve``).
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
        """True if the caller has its result or was cancelled."""
        return self.future.done()

    def on_reply(self, data: bytes, at: int, end: int) -> None:
        """Set the result from the server's reply. Raises if the reply is malformed; the request then stays unanswered."""
        future = self.future
        if self.decode is not None:
            value = self.decode(data, at, end, self.path)
            if not future.done():
                future.set_result(value)
        elif not future.done():
            future.set_result(None)

    def on_error(self, code: int) -> None:
        """Fail with the error of the server's reply."""
        self.fail(wire.to_error(code, self.path))

    def succeed(self, value: object) -> None:
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def on_drop(self, sent: bool) -> bool:
        """Note that the connection broke; return whether to send the request again on the next connection."""
        if sent:
            self.attempts += 1
            self.first_broken_at = self.first_broken_at or boottime()
        return not self.done

    def attempts_exhausted(self, timeout: float) -> bool:
        """Return whether too many connections broke under this request, over longer than a session timeout."""
        return self.attempts >= MAX_BROKEN_CONNECTIONS and boottime() >= self.first_broken_at + timeout

    def give_up(self) -> None:
        self.fail(
            StoreError(
                f"{self.path or 'the root'}: {self.attempts} connections in a row broke before this request was answered; it "
                f"was not applied. The log of the ZooKeeper server shows why it closes the connection"
            )
        )


class PendingWrite(PendingRequest):
    """A write. If it was sent and not answered, it is in doubt until ``resolve`` has found its outcome in the store.

    ``ops`` are the operations as sent, with the unique ids in the names of sequential nodes. ``path`` is the caller's path.
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
        # A write whose caller was cancelled is not resolved: it may or may not have been applied, as the port says.
        self.in_doubt |= sent
        return super().on_drop(sent)


class PendingTransaction(PendingWrite):
    """A transaction. ``asked`` are the operations as the caller gave them."""

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
    """A request that is valid on one connection only: it raises ConnectionDroppedError if that breaks."""

    __slots__ = ()

    def on_drop(self, sent: bool) -> bool:
        self.fail(ConnectionDroppedError())
        return False
