"""A TCP proxy on loopback that causes network faults on demand, each by one method.

::

    async with Proxy(zookeeper.connection) as proxy:
        client = connect(f"zk://{proxy.connection}/root")
        dropped = proxy.drop_reply(Op.CREATE)       # arm: the next create is applied, its reply never arrives
        ...
        request = await dropped                     # an event to wait for: tests never sleep

=====================  ==============================================================================================
verb                   what the two ends see
=====================  ==============================================================================================
`cut`                  every connection is reset (or closed in good order)
`refuse`, `accept`     connections are refused; they are accepted again on the same port
`blackhole`            connections stay open, nothing passes; as with lost packets, it arrives after `heal`
`delay`                everything arrives later, in order
`cut_in_message`       the first bytes of the next message pass, then the connection is reset or closed
`drop_reply`           a request reaches the server and is answered; the answer is dropped, the connection reset
`heal`                 ends `blackhole`, `delay` and `refuse`
=====================  ==============================================================================================

The proxy knows ZooKeeper's framing: a length of four bytes, then xid and operation in a request, xid, zxid and error in a
reply. It passes whole messages. What is not framed, such as a four letter word, passes as it is. There is no flow control:
what a slow end does not read is kept in memory.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, cast

from aiokcc.local._process import free_ports

if TYPE_CHECKING:
    from types import TracebackType

Direction = Literal["up", "down"]
"""Up is from the client to the server."""

_LONGEST_FRAME = 64 * 1024 * 1024
_LENGTH = struct.Struct("!i")
_REQUEST = struct.Struct("!ii")
_REPLY = struct.Struct("!iqi")


class Op(enum.IntEnum):
    """ZooKeeper's operations. CONNECT stands for the first message of a connection, which carries no operation."""

    CLOSE = -11
    CONNECT = -10
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    CREATE_CONTAINER = 19
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SET_WATCHES2 = 105
    ADD_WATCH = 106


_OPS = {op.value: op for op in Op}


@dataclass(frozen=True, slots=True)
class Request:
    """A client's message. Pings, watches and auth have a negative xid."""

    xid: int
    op: Op | int
    """An `Op`, or the bare number of one that has no name here."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's message; xid -1 is a watch event. The answer to CONNECT is shown with xid 0."""

    xid: int
    zxid: int
    error: int
    body: bytes


Match = Callable[[Request], bool] | Op | None
"""A predicate, an operation, or None for any call: whatever has a positive xid."""


def _predicate(match: Match) -> Callable[[Request], bool]:
    if match is None:
        return lambda request: request.xid > 0
    if isinstance(match, Op):
        return lambda request: request.op == match
    return match


class Proxy:
    """One listening port on 127.0.0.1 in front of one server. The docstring of the module lists the verbs."""

    def __init__(self, upstream: str) -> None:
        host, port = upstream.rsplit(":", 1)
        self._upstream = host, int(port)
        (self._port,) = free_ports(1)  # not a port that the system might give to a client while `refuse` holds
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        self._links: set[_Link] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._waiters: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._expected: dict[asyncio.Future[Request], Callable[[Request], bool]] = {}
        self.accepted = 0
        """The number of connections that clients have opened so far, also to a server that is down."""
        self.dropped: asyncio.Future[Request] = self._loop.create_future()
        """Done when the `drop_reply` armed last has struck; its result is the request that was applied."""
        # What the links look at
        self.black: frozenset[Direction] = frozenset()
        self.lag: dict[Direction, float] = {"up": 0.0, "down": 0.0}
        self.cut_after: dict[Direction, tuple[int, bool, Callable[[Request], bool] | None, asyncio.Future[None]]] = {}
        self.drops: deque[tuple[Callable[[Request], bool], asyncio.Future[Request]]] = deque()

    async def __aenter__(self) -> Self:
        self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.refuse()
        for opening in self._opening:
            opening.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        links = set(self._links)
        self.cut()
        await asyncio.gather(*(link.closed() for link in links))
        for waiter in self._waiters:
            waiter.cancel()
        for expected in (*self._expected, self.dropped, *(struck for _, struck in self.drops)):
            expected.cancel()

    @property
    def connection(self) -> str:
        """The address for clients: ``127.0.0.1:PORT``."""
        return f"127.0.0.1:{self._port}"

    @property
    def connections(self) -> int:
        """The number of open connections, from end to end."""
        return sum(link.whole for link in self._links)

    # Faults

    def cut(self, *, reset: bool = True) -> None:
        """Reset every connection, or close it in good order if `reset` is False."""
        for link in set(self._links):
            link.end(reset=reset)

    def refuse(self) -> None:
        """Stop listening. Open connections stay."""
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def accept(self) -> None:
        """Listen again on the same port."""
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self._port), backlog=128)
            self._listener.setblocking(False)
            self._loop.add_reader(self._listener, self._on_acceptable, self._listener)

    def blackhole(self, direction: Direction | Literal["both"] = "both") -> None:
        """Let nothing pass in this direction until `heal`, neither data nor the opening or closing of connections."""
        self.black |= {"up", "down"} if direction == "both" else {direction}

    def delay(self, seconds: float, direction: Direction | Literal["both"] = "both") -> None:
        """Delay everything that is sent from now on by these seconds."""
        self.lag |= dict.fromkeys(("up", "down") if direction == "both" else (direction,), seconds)

    def heal(self) -> None:
        """End `blackhole`, `delay` and `refuse`; what was held back arrives now."""
        self.black = frozenset()
        self.delay(0)
        self.accept()
        for link in set(self._links):
            link.pump()

    def cut_in_message(
        self, direction: Direction, *, after: int = 6, match: Match = None, reset: bool = True
    ) -> asyncio.Future[None]:
        """Let the first `after` bytes of the next message in this direction pass, then end that connection.

        `match` selects requests; of replies, the next one is taken. Return an awaitable that is done when it has happened.
        """
        struck: asyncio.Future[None] = self._loop.create_future()
        self.cut_after[direction] = (after, reset, _predicate(match) if match is not None else None, struck)
        return struck

    def drop_reply(self, match: Match = None, *, times: int = 1) -> asyncio.Future[Request]:
        """Let the next matching request reach the server, wait for its reply, drop it and reset that connection.

        Do it `times` times in a row. Return an awaitable that gives the last of these requests when its reply is dropped; it
        is at `dropped` as well.
        """
        for _ in range(times):
            self.dropped = self._loop.create_future()
            self.drops.append((_predicate(match), self.dropped))
        return self.dropped

    # Events to wait for

    async def wait_connections(self, count: int) -> None:
        """Wait until at least `count` connections are open from end to end; 0 waits until none is."""
        await self._wait(lambda: self.connections >= count if count else not self._links)

    async def wait_accepted(self, total: int) -> None:
        """Wait until clients have connected so many times since the proxy was started."""
        await self._wait(lambda: self.accepted >= total)

    def expect(self, match: Match = None) -> asyncio.Future[Request]:
        """Return an awaitable for the next matching request that passes from now on."""
        passed: asyncio.Future[Request] = self._loop.create_future()
        self._expected[passed] = _predicate(match)
        return passed

    async def _wait(self, condition: Callable[[], bool]) -> None:
        if condition():
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters[waiter] = condition
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)

    # What the links call

    def changed(self) -> None:
        """Wake the waiters whose condition holds now."""
        for waiter, condition in self._waiters.items():
            if not waiter.done() and condition():
                waiter.set_result(None)

    def passing(self, request: Request) -> None:
        """Wake the waiters that expect such a request."""
        for passed in [passed for passed, matches in self._expected.items() if passed.done() or matches(request)]:
            del self._expected[passed]
            if not passed.done():
                passed.set_result(request)

    def forget(self, link: _Link) -> None:
        """Remove a link that has ended."""
        self._links.discard(link)
        self.changed()

    def _on_acceptable(self, listener: socket.socket) -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            self.accepted += 1
            link = _Link(self, self._loop)
            self._links.add(link)
            opening = self._loop.create_task(link.open(accepted, self._upstream))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
            self.changed()


class _Link:
    """A client's connection and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, loop: asyncio.AbstractEventLoop) -> None:
        self.proxy, self.loop = proxy, loop
        self.over = False
        self.client, self.server = _End(self, "up"), _End(self, "down")
        self.flows: dict[Direction, _Flow] = {"up": _Flow(self, "up"), "down": _Flow(self, "down")}
        self.awaited: dict[int, tuple[Request, asyncio.Future[Request]]] = {}
        """Replies to swallow, by xid."""

    @property
    def whole(self) -> bool:
        return self.client.transport is not None and self.server.transport is not None and not self.over

    async def open(self, accepted: socket.socket, upstream: tuple[str, int]) -> None:
        try:
            await self.loop.connect_accepted_socket(lambda: self.client, accepted)
            await self.loop.create_connection(lambda: self.server, *upstream)
        except OSError:
            self.end(reset=True)  # nobody there: what a client of a dead server behind a live address sees
        except asyncio.CancelledError:
            if self.client.transport is None:
                accepted.close()
            self.end(reset=True)
            raise
        self.proxy.changed()
        self.pump()

    def target(self, direction: Direction) -> _End:
        return self.server if direction == "up" else self.client

    def pump(self) -> None:
        for flow in self.flows.values():
            flow.pump()

    def end(self, *, reset: bool) -> None:
        self.over = True
        for end in (self.client, self.server):
            end.end(reset=reset)
        self.proxy.forget(self)

    async def closed(self) -> None:
        for end in (self.client, self.server):
            if end.transport is not None:
                await end.gone


class _End(asyncio.Protocol):
    """One of a link's two sockets. What it receives goes in `direction`."""

    def __init__(self, link: _Link, direction: Direction) -> None:
        self.link, self.direction = link, direction
        self.transport: asyncio.Transport | None = None
        self.gone: asyncio.Future[None] = link.loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.link.over:  # cut while it was being opened
            self.end(reset=True)

    def data_received(self, data: bytes) -> None:
        self.link.flows[self.direction].feed(data)

    def eof_received(self) -> bool:
        self.link.flows[self.direction].finish()
        return True  # keep our half open: what is held back for this end may still pass

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
        self.link.flows[self.direction].finish(broken=exc is not None)

    def end(self, *, reset: bool) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if reset:
            # Closed with unsent data discarded: the kernel sends RST instead of FIN.
            self.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            self.transport.abort()
        else:
            self.transport.close()


class _Flow:
    """One direction of a link: it takes bytes and passes whole messages on, subject to the present faults."""

    def __init__(self, link: _Link, direction: Direction) -> None:
        self.link, self.proxy, self.direction = link, link.proxy, direction
        self.partial = b""
        self.framed = True
        self.first = True
        self.queue: deque[tuple[float, bytes | bool]] = deque()  # when due, and a message, or the end: is it broken?
        self.timer: asyncio.TimerHandle | None = None

    def feed(self, data: bytes) -> None:
        self.partial += data
        while self.framed and len(self.partial) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self.partial)
            if not 0 <= length <= _LONGEST_FRAME:
                self.framed = False  # a four letter word, read as a length, is huge
                self.link.flows["down"].framed = False
            elif len(self.partial) >= _LENGTH.size + length:
                self._put(self.partial[: _LENGTH.size + length])
                self.partial = self.partial[_LENGTH.size + length :]
            else:
                break
        if not self.framed and self.partial:
            self._put(self.partial)
            self.partial = b""
        self.pump()

    def finish(self, *, broken: bool = False) -> None:
        if self.partial:
            self._put(self.partial)
            self.partial = b""
        self._put(broken)
        self.pump()

    def _put(self, item: bytes | bool) -> None:
        due = self.link.loop.time() + self.proxy.lag[self.direction]
        if self.queue:
            due = max(due, self.queue[-1][0])  # nothing overtakes, also when the delay becomes shorter
        self.queue.append((due, item))

    def pump(self) -> None:
        """Pass messages on as far as the present faults allow."""
        target = self.link.target(self.direction).transport
        while self.queue and not self.link.over and target is not None and self.direction not in self.proxy.black:
            due, item = self.queue[0]
            if due > self.link.loop.time() and self.proxy.lag[self.direction] > 0:
                if self.timer is None:
                    self.timer = self.link.loop.call_at(due, self._on_due)
                return
            self.queue.popleft()
            if isinstance(item, bool):
                self.link.end(reset=item)
            elif self._let_pass(item):
                target.write(item)

    def _on_due(self) -> None:
        self.timer = None
        self.pump()

    def _let_pass(self, message: bytes) -> bool:
        """Apply the faults to one message. Return False if it was dropped or its connection ended."""
        request = self._read_request(message) if self.direction == "up" and self.framed else None
        if self._cut(message, request):
            return False
        if request is not None:
            if self.proxy.drops and self.proxy.drops[0][0](request):
                _, struck = self.proxy.drops.popleft()
                self.link.awaited[request.xid] = request, struck
            self.proxy.passing(request)
        elif self.direction == "down" and self.framed:
            reply = self._read_reply(message)
            if reply is not None and reply.xid in self.link.awaited:
                request, struck = self.link.awaited.pop(reply.xid)
                self.link.end(reset=True)
                if not struck.done():
                    struck.set_result(request)
                return False
        return True

    def _cut(self, message: bytes, request: Request | None) -> bool:
        if self.direction not in self.proxy.cut_after:
            return False
        after, reset, matches, struck = self.proxy.cut_after[self.direction]
        if matches is not None and self.direction == "up" and (request is None or not matches(request)):
            return False
        del self.proxy.cut_after[self.direction]
        target = self.link.target(self.direction).transport
        assert target is not None
        target.write(message[:after])
        self.link.end(reset=reset)
        if not struck.done():
            struck.set_result(None)
        return True

    def _read_request(self, message: bytes) -> Request | None:
        body = message[_LENGTH.size :]
        if self.first:
            self.first = False
            return Request(0, Op.CONNECT, body)
        if len(body) < _REQUEST.size:
            return None
        xid, op = _REQUEST.unpack_from(body)
        return Request(xid, _OPS.get(op, op), body[_REQUEST.size :])

    def _read_reply(self, message: bytes) -> Reply | None:
        body = message[_LENGTH.size :]
        if self.first:
            self.first = False
            return Reply(0, 0, 0, body)
        if len(body) < _REPLY.size:
            return None
        xid, zxid, error = _REPLY.unpack_from(body)
        return Reply(xid, zxid, error, body[_REPLY.size :])
