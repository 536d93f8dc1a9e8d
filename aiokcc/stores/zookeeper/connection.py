"""One TCP connection to one server: frames in, frames out, and the queue of calls between them.

The server answers the requests of a connection in the order in which it got them, so that the oldest call in the queue
is the one that the next reply belongs to; a reply with another xid means that the stream is broken. Events and answers
to pings come in between, with xids of their own.

Frames that are sent in the same turn of the event loop after the first one go to the socket in one write. The system
call costs more than everything else about a request, so that a hundred calls at once are several times as fast as a
hundred in a row. ``outbox`` is what was not yet handed over: at a break these calls are known not to have been sent.

A connection ends once: :meth:`abort` and ``connection_lost`` both lead to :meth:`_end`, which hands the queue back to
the session at once, in order.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import Any, Final, Protocol

from aiokcc.stores.port import boottime
from aiokcc.stores.zookeeper import wire
from aiokcc.stores.zookeeper.pending import ConnectionDroppedError, PendingRequest

_MAX_XID: Final = 2**31 - 1
_MALFORMED: Final = (wire.MalformedReplyError, struct.error, UnicodeDecodeError)


class LastSeenZxid:
    """The newest transaction that any session of a store was shown.

    Sent with every handshake: a server that is behind it refuses, so that nobody ever reads backwards in time, neither
    after a reconnect nor in a new session.
    """

    __slots__ = ("zxid",)

    def __init__(self) -> None:
        self.zxid = 0


class ConnectionListener(Protocol):
    """What a connection tells its session."""

    def on_answer(self, sent_at: float) -> None:
        """A request sent at this time was answered."""

    def on_watch_event(self, kind: int, name: str) -> None:
        """A watch has fired."""

    def on_expired(self) -> None:
        """The server does not know the session any more."""

    def on_dropped(self, connection: Connection) -> None:
        """The connection has ended; its queue is to be taken over."""


class Connection(asyncio.Protocol):
    """See the module. ``owner`` is None until the handshake is done."""

    def __init__(self, last_seen: LastSeenZxid) -> None:
        self._loop = asyncio.get_running_loop()
        self._last_seen = last_seen
        self._transport: Any = None  # asyncio.Transport; Any spares the cast, since Protocol declares BaseTransport
        self._buffer = bytearray()
        self._need = 0
        self._flush_scheduled = False
        self._xid = 0
        self._ping_sent: float | None = None
        self._received_at = 0.0
        self._handshake: asyncio.Future[wire.Handshake] = self._loop.create_future()
        self._auth: asyncio.Future[None] | None = None
        self.listener: ConnectionListener | None = None
        self.pending: deque[PendingRequest] = deque()
        self.outbox: list[bytes] = []
        self.opened_at = self.last_sent = 0.0
        self.answered = False
        """Something besides the handshake was answered: the server is not one that hangs up on everybody."""
        self.malformed = False
        """It ended because a reply could not be read; the next one may be no better."""
        self.closed = asyncio.Event()
        self.reason = ""
        """What ended the connection."""
        self.internal_error: Exception | None = None
        """A bug of ours that ended the connection: the session raises it."""

    # -- Opening --------------------------------------------------------------------------------------------------------

    async def handshake(self, frame: bytes) -> wire.Handshake:
        """Send the handshake and wait for its answer; ConnectionDroppedError if the connection ends first."""
        self.opened_at = self.last_sent = boottime()
        self._transport.write(frame)
        return await self._handshake

    async def authenticate(self, frame: bytes) -> None:
        """Send credentials and wait for the answer; ConnectionDroppedError if they are refused."""
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
        if len(self.pending) == 1:
            self._transport.write(frame)
        else:
            self.outbox.append(frame)
            if not self._flush_scheduled:
                self._flush_scheduled = True
                self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self.outbox and not self.closed.is_set():
            self._transport.write(b"".join(self.outbox))
            self.outbox.clear()

    def ping(self) -> None:
        """Ask for a sign of life, unless one is under way."""
        if self._ping_sent is None:
            self._ping_sent = self.last_sent = boottime()
            self._transport.write(wire.PING_FRAME)

    def oldest_unanswered(self) -> float | None:
        """When the oldest unanswered request was sent; None if everything is answered.

        A reply of which a part has come counts as a sign of life: a large one on a slow line is not a dead server.
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
        try:
            rest = self._read(data)
        except _MALFORMED as error:
            self.malformed = True
            self.abort(f"its reply makes no sense: {error}")
        except Exception as error:  # noqa: BLE001 - the session raises it; here nobody could
            self.internal_error = error
            self.abort(f"internal error: {error!r}")
        else:
            if rest < len(data) and not self.closed.is_set():
                self._received_at = boottime()
                buffer += memoryview(data)[rest:]

    def _read(self, data: bytes) -> int:
        """Take all whole frames; where the rest begins. ``_need`` is how much there must be to go on."""
        at = 0
        size = len(data)
        newest_answered = -1.0
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
            if not self._handshake.done():
                self._handshake.set_result(wire.decode_handshake(data, start, end))
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
                    # Another connection of ours has taken the session over, or so the server thinks. It refused.
                    self.abort("the session has moved to another connection")
                    return at
                else:
                    request.on_error(code)
                # Only now: a call whose answer could not be read is still waiting for one. Nothing that an answer sets
                # off sends or ends anything but at the other end of the queue.
                if pending and pending[0] is request:
                    pending.popleft()
                newest_answered = request.sent_at
                self.answered = True
            elif xid == wire.EVENT_XID:
                if self.listener is not None:
                    self.listener.on_watch_event(*wire.decode_event(data, start + 16, end))
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
                waiter.exception()  # nobody may be waiting any more, and that is no mistake
        if self.listener is not None:
            self.listener.on_dropped(self)
