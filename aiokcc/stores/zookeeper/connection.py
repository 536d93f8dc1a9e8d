"""One TCP connection to one server: it sends and receives frames and keeps the queue of unanswered requests.

The server answers the requests of a connection in the order in which it received them, so the next reply belongs to the oldest
request in the queue. A reply with another xid means that the stream is broken. Watch events and answers to pings have xids of
their own and can come in between.

What is sent while answers and events are handled is written in one piece after the last of them. Otherwise the first frame is
written at once, and more frames of the same turn of the event loop are written together. The system call costs more than the
rest of a request, so a hundred concurrent requests are several times as fast as a hundred in sequence.
``outbox`` has the frames that were not yet written: when the connection breaks, their requests were certainly not sent.

A connection ends once: :meth:`abort` and ``connection_lost`` both call :meth:`_end`, which gives the queue back to the
session at once, in order.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from typing import Any, Final, Protocol

from aiokcc.credentials import explain_tls_error
from aiokcc.stores.port import boottime
from aiokcc.stores.zookeeper import wire
from aiokcc.stores.zookeeper.pending import ConnectionDroppedError, PendingRequest

_MAX_XID: Final = 2**31 - 1
_MALFORMED: Final = (wire.MalformedReplyError, struct.error, UnicodeDecodeError)


class LastSeenZxid:
    """The newest transaction that any session of a store has seen.

    It is part of every handshake. A server that has not reached it refuses the connection, so that no read returns an older
    state than an earlier read, neither after a reconnect nor in a new session.
    """

    __slots__ = ("zxid",)

    def __init__(self) -> None:
        self.zxid = 0


class ConnectionListener(Protocol):
    """The notifications that a session gets from its connection."""

    def on_answer(self, sent_at: float) -> None:
        """A request sent at this time was answered."""

    def on_requests_answered(self, number: int, seconds: float) -> None:
        """So many requests were answered; ``seconds`` is the time from sending each of them, added up."""

    def on_watch_event(self, kind: int, name: str, zxid: int) -> None:
        """A watch has fired, by this transaction; servers before 3.9 say -1 instead."""

    def on_expired(self) -> None:
        """The server has ended the session."""

    def on_dropped(self, connection: Connection) -> None:
        """The connection has ended; take over its queue."""


class Connection(asyncio.Protocol):
    """One TCP connection, which ends once. ``listener`` is None until the handshake is done."""

    def __init__(self, last_seen: LastSeenZxid) -> None:
        self._loop = asyncio.get_running_loop()
        self._last_seen = last_seen
        self._transport: Any = None  # an asyncio.Transport; Any avoids a cast, since Protocol declares BaseTransport
        self._buffer = bytearray()
        self._need = 0
        self._flush_scheduled = False
        self._reading = False
        """True while answers and events are handled: what is sent meanwhile is written after them."""
        self._xid = 0
        self._ping_sent: float | None = None
        self._received_at = 0.0
        self._handshake: asyncio.Future[wire.Handshake] = self._loop.create_future()
        self._handshaken = False
        self._auth: asyncio.Future[None] | None = None
        self.listener: ConnectionListener | None = None
        self.pending: deque[PendingRequest] = deque()
        self.outbox: list[bytes] = []
        self.opened_at = self.last_sent = 0.0
        self.answered = False
        """True if the server has answered more than the handshake, so it does not close every connection at once."""
        self.malformed = False
        """True if it ended because of a malformed reply; the next connection may fail in the same way."""
        self.refused_by_tls = False
        """True if the server ended the connection with a TLS alert, such as for our certificate."""
        self.closed = asyncio.Event()
        self.reason = ""
        """The reason why the connection ended."""
        self.internal_error: Exception | None = None
        """An error in our own code that ended the connection; the session raises it."""

    # -- Opening --------------------------------------------------------------------------------------------------------

    async def handshake(self, frame: bytes) -> wire.Handshake:
        """Send the handshake and return its answer. Raises ConnectionDroppedError if the connection ends first."""
        self.opened_at = self.last_sent = boottime()
        self._transport.write(frame)
        return await self._handshake

    async def authenticate(self, frame: bytes) -> None:
        """Send credentials and wait for the answer. Raises ConnectionDroppedError if they are refused."""
        self._auth = self._loop.create_future()
        self._transport.write(frame)
        await self._auth

    # -- Sending --------------------------------------------------------------------------------------------------------

    def send(self, request: PendingRequest) -> None:
        self._xid = xid = self._xid + 1 if self._xid < _MAX_XID else 1
        request.xid = xid
        request.sent_at = self.last_sent = boottime()
        request.after_zxid = self._last_seen.zxid
        request.in_doubt = False
        request.up_to_zxid = 0
        self.pending.append(request)
        frame = wire.frame(xid, request.payload)
        if len(self.pending) == 1 and not self._reading:
            self._transport.write(frame)
        else:
            self.outbox.append(frame)
            if not (self._reading or self._flush_scheduled):
                self._flush_scheduled = True
                self._loop.call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        if self.outbox and not self.closed.is_set():
            self._transport.write(self.outbox[0] if len(self.outbox) == 1 else b"".join(self.outbox))
            self.outbox.clear()

    def ping(self) -> None:
        """Send a ping, unless one is unanswered."""
        if self._ping_sent is None:
            self._ping_sent = self.last_sent = boottime()
            self._transport.write(wire.PING_FRAME)

    def oldest_unanswered(self) -> float | None:
        """Return when the oldest unanswered request was sent; None if all are answered.

        While a reply arrives in parts, return the time of the last part if that is later: the server is alive.
        """
        oldest = self.pending[0].sent_at if self.pending else self._ping_sent
        if oldest is None:
            return None
        if self._ping_sent is not None:
            oldest = min(oldest, self._ping_sent)
        return max(oldest, self._received_at) if self._buffer else oldest

    # -- Receiving ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self.closed.is_set():
            return
        buffer = self._buffer
        if buffer:
            self._received_at = boottime()
            buffer += data
            if len(buffer) < self._need:
                return
            data = bytes(buffer)
            buffer.clear()
        self._reading = True
        try:
            rest = self._read(data)
        except _MALFORMED as error:
            self.malformed = True
            self.abort(f"the server sent a malformed reply: {error}")
        except Exception as error:  # noqa: BLE001 - the session raises it; here it would only be logged
            self.internal_error = error
            self.abort(f"internal error: {error!r}")
        else:
            if rest < len(data) and not self.closed.is_set():
                self._received_at = boottime()
                buffer += memoryview(data)[rest:]
        finally:
            self._reading = False
            self._flush()

    def _read(self, data: bytes) -> int:
        """Handle all complete frames; return where the rest begins. Set ``_need`` to the bytes that the next frame needs."""
        at = 0
        size = len(data)
        newest_answered = -1.0
        answers, sent_in_all = 0, 0.0
        pending = self.pending
        last_seen = self._last_seen
        self._need = 4
        while size - at >= 4:
            length: int = wire.LENGTH.unpack_from(data, at)[0]
            if not 0 <= length <= wire.REPLY_LIMIT:
                raise wire.MalformedReplyError(f"a length of {length} bytes")
            start, end = at + 4, at + 4 + length
            if end > size:
                self._need = length + 4
                break
            at = end
            if not self._handshaken:
                # By a flag of its own: who waited may be cancelled, and an answer to the handshake read as a reply to a request
                # would give a transaction id from far in the future. No server would accept this client again.
                self._handshaken = True
                handshake = wire.decode_handshake(data, start, end)
                if not self._handshake.done():
                    self._handshake.set_result(handshake)
                continue
            if length < 16:
                raise wire.MalformedReplyError(f"a reply of {length} bytes")
            xid, zxid, code = wire.REPLY.unpack_from(data, start)
            if zxid > last_seen.zxid:  # noqa: PLR1730 - twice as fast as max()
                last_seen.zxid = zxid
            if xid > 0:
                if not pending or pending[0].xid != xid:
                    raise wire.MalformedReplyError(f"an answer to request {xid}, which was not asked")
                request = pending[0]
                if not code:
                    request.on_reply(data, start + 16, end)
                elif code == wire.SESSION_EXPIRED:
                    self._expired()
                    return at
                elif code == wire.SESSION_MOVED:
                    # The server believes that the session uses another connection, and has refused the request.
                    self.abort("the session has moved to another connection")
                    return at
                else:
                    request.on_error(code)
                # Remove it only now: if its reply was malformed, the request is still unanswered. Handling a reply changes the
                # queue only at its other end.
                if pending and pending[0] is request:
                    pending.popleft()
                newest_answered = request.sent_at
                answers += 1
                sent_in_all += newest_answered
                self.answered = True
            elif xid == wire.EVENT_XID:
                if self.listener is not None:
                    self.listener.on_watch_event(*wire.decode_event(data, start + 16, end), zxid)
            elif xid == wire.PING_XID:
                if self._ping_sent is not None:
                    newest_answered = max(newest_answered, self._ping_sent)
                    self._ping_sent = None
                    self.answered = True
            elif xid == wire.AUTH_XID:
                self._authenticated(code)
            else:
                raise wire.MalformedReplyError(f"an answer to request {xid}, which was not asked")
        if newest_answered >= 0 and self.listener is not None:
            self.listener.on_answer(newest_answered)
            if answers:
                self.listener.on_requests_answered(answers, answers * boottime() - sent_in_all)
        return at

    def _authenticated(self, code: int) -> None:
        if self._auth is not None and not self._auth.done():
            if code:
                self._auth.set_exception(ConnectionDroppedError("the server refused the credentials"))
            else:
                self._auth.set_result(None)

    def _expired(self) -> None:
        if self.listener is not None:
            self.listener.on_expired()

    # -- Ending ---------------------------------------------------------------------------------------------------------

    def connection_lost(self, error: Exception | None) -> None:
        if isinstance(error, ssl.SSLError):
            self.refused_by_tls = True
            self._end(explain_tls_error(error))
        else:
            self._end(f"{error}" if error is not None else "closed by the server")

    def abort(self, reason: str) -> None:
        """End the connection without waiting for anything."""
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self.closed.is_set():
            return
        self.closed.set()
        self.reason = reason
        for waiter in (self._handshake, self._auth):
            if waiter is not None and not waiter.done():
                waiter.set_exception(ConnectionDroppedError(reason))
                waiter.exception()  # mark it as retrieved: its waiter may have been cancelled
        if self.listener is not None:
            self.listener.on_dropped(self)
