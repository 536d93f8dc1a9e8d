"""The proxy causes the faults that its methods name, and reports when it has done so."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import TYPE_CHECKING

import pytest

from tests.faults import Op, Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def frame(body: bytes) -> bytes:
    return struct.pack("!i", len(body)) + body


class Server:
    """Answers each request in ZooKeeper's frames, and lists the requests that have reached it."""

    def __init__(self) -> None:
        self.applied: list[tuple[int, int]] = []
        self.connection = ""
        self.ends: asyncio.Queue[str] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readexactly(4)
            if head == b"ruok":
                writer.write(b"imok")
                return
            await reader.readexactly(*struct.unpack("!i", head))
            writer.write(frame(b"welcome"))
            while True:
                (length,) = struct.unpack("!i", await reader.readexactly(4))
                body = await reader.readexactly(length)
                xid, op = struct.unpack_from("!ii", body)
                self.applied.append((xid, op))
                writer.write(frame(struct.pack("!iqi", xid, len(self.applied), 0) + body[8:]))
        except asyncio.IncompleteReadError as error:
            self.ends.put_nowait(f"closed after {len(error.partial)} bytes")
        except ConnectionResetError:
            self.ends.put_nowait("reset")
        finally:
            writer.close()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, proxy: Proxy) -> Client:
        host, port = proxy.connection.split(":")
        client = cls(*await asyncio.open_connection(host, int(port)))
        client.writer.write(frame(b"hello"))
        assert await client.receive() == b"welcome"
        return client

    def send(self, xid: int, op: Op, body: bytes = b"") -> None:
        self.writer.write(frame(struct.pack("!ii", xid, op) + body))

    async def receive(self) -> bytes:
        (length,) = struct.unpack("!i", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    async def call(self, xid: int, op: Op, body: bytes = b"") -> bytes:
        self.send(xid, op, body)
        reply = await self.receive()
        assert struct.unpack_from("!i", reply) == (xid,)
        return reply[16:]

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.connection = "127.0.0.1:{1}".format(*listener.sockets[0].getsockname())
    async with listener:
        yield server


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    async with Proxy(server.connection) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[Client]:
    client = await Client.connect(proxy)
    yield client
    await client.close()


async def test_a_connection_without_faults_passes_everything(proxy: Proxy, client: Client) -> None:
    await proxy.wait_connections(1)
    assert await client.call(1, Op.CREATE, b"x" * 300_000) == b"x" * 300_000
    assert [await client.call(xid, Op.GET_DATA, b"%d" % xid) for xid in (2, 3)] == [b"2", b"3"]
    assert (proxy.connections, proxy.accepted) == (1, 1)


async def test_four_letter_words_pass(proxy: Proxy) -> None:
    host, port = proxy.connection.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"ruok")
    assert await reader.read() == b"imok"
    writer.close()


async def test_the_end_of_either_side_is_passed_on(proxy: Proxy, server: Server, client: Client) -> None:
    await client.close()
    assert await server.ends.get() == "closed after 0 bytes"
    await proxy.wait_connections(0)


async def test_cut_resets_all(proxy: Proxy, server: Server, client: Client) -> None:
    other = await Client.connect(proxy)
    proxy.cut()
    assert proxy.connections == 0
    for one in (client, other):
        with pytest.raises(ConnectionResetError):
            await one.reader.read()
    assert [await server.ends.get(), await server.ends.get()] == ["reset", "reset"]
    await other.close()
    again = await Client.connect(proxy)  # a cut is over at once
    await proxy.wait_connections(1)
    assert proxy.accepted == 3
    await again.close()


async def test_cut_in_good_order(proxy: Proxy, server: Server, client: Client) -> None:
    proxy.cut(reset=False)
    assert await client.reader.read() == b""
    assert await server.ends.get() == "closed after 0 bytes"


async def test_refuse_and_accept(proxy: Proxy, client: Client) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await Client.connect(proxy)
    assert await client.call(1, Op.GET_DATA, b"standing") == b"standing"
    proxy.accept()
    await (await Client.connect(proxy)).close()


async def test_a_dead_server_behind_the_proxy_resets(proxy: Proxy) -> None:
    proxy._upstream = ("127.0.0.1", 1)
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await Client.connect(proxy)
    await proxy.wait_accepted(1)
    await proxy.wait_connections(0)


async def test_blackhole_up_holds_requests_until_healed(proxy: Proxy, server: Server, client: Client) -> None:
    proxy.blackhole("up")
    client.send(1, Op.CREATE, b"one")
    client.send(2, Op.CREATE, b"two")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.reader.read(1), 0.05)
    assert server.applied == []
    proxy.heal()
    assert [await client.receive(), await client.receive()][1].endswith(b"two")
    assert server.applied == [(1, Op.CREATE), (2, Op.CREATE)]


async def test_blackhole_down_applies_but_does_not_answer(proxy: Proxy, server: Server, client: Client) -> None:
    proxy.blackhole("down")
    passed = proxy.expect(Op.SET_DATA)
    client.send(1, Op.SET_DATA)
    assert (await passed).xid == 1
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.reader.read(1), 0.05)
    assert server.applied == [(1, Op.SET_DATA)]
    proxy.heal()
    await client.receive()


async def test_in_a_blackhole_not_even_an_end_is_seen(proxy: Proxy, server: Server, client: Client) -> None:
    proxy.blackhole()
    await client.close()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(server.ends.get(), 0.05)
    proxy.heal()
    assert await server.ends.get() == "closed after 0 bytes"


async def test_delay_keeps_the_order(proxy: Proxy, client: Client) -> None:
    proxy.delay(0.05)
    began = time.monotonic()  # the clock of uvloop counts whole milliseconds, and a delay may end one early
    client.send(1, Op.GET_DATA)
    client.send(2, Op.GET_DATA)
    replies = [await client.receive(), await client.receive()]
    assert time.monotonic() - began >= 0.098
    assert [struct.unpack_from("!i", reply)[0] for reply in replies] == [1, 2]
    proxy.delay(30, "down")
    passed = proxy.expect()
    client.send(3, Op.GET_DATA)
    await passed
    proxy.heal()  # does not wait for what was due
    await client.receive()


async def test_cut_in_a_request(proxy: Proxy, server: Server, client: Client) -> None:
    struck = proxy.cut_in_message("up", after=7, match=Op.CREATE, reset=False)
    assert await client.call(1, Op.GET_DATA, b"passes") == b"passes"
    client.send(2, Op.CREATE)
    await struck
    assert await server.ends.get() == "closed after 3 bytes"  # of the body; four were the length
    assert await client.reader.read() == b""
    assert server.applied == [(1, Op.GET_DATA)]


async def test_cut_in_a_reply(proxy: Proxy, server: Server, client: Client) -> None:
    struck = proxy.cut_in_message("down", after=6)
    client.send(1, Op.CREATE)
    await struck
    assert len(await client.reader.readexactly(6)) == 6
    with pytest.raises(ConnectionResetError):
        await client.reader.read()
    assert server.applied == [(1, Op.CREATE)]


async def test_a_dropped_reply_means_applied_and_unanswered(proxy: Proxy, server: Server, client: Client) -> None:
    dropped = proxy.drop_reply(Op.CREATE)
    assert dropped is proxy.dropped
    client.send(-2, Op.PING)
    client.send(1, Op.GET_DATA)
    client.send(2, Op.CREATE, b"/path")
    request = await proxy.dropped
    assert (request.xid, request.body) == (2, b"/path")
    assert request.op is Op.CREATE
    assert [struct.unpack_from("!i", await client.receive())[0] for _ in range(2)] == [-2, 1]
    with pytest.raises(ConnectionResetError):
        await client.reader.read()
    assert server.applied == [(-2, Op.PING), (1, Op.GET_DATA), (2, Op.CREATE)]
    again = await Client.connect(proxy)
    assert await again.call(3, Op.CREATE, b"answered") == b"answered"
    await again.close()


async def test_replies_dropped_several_times_in_a_row(proxy: Proxy, server: Server) -> None:
    dropped = proxy.drop_reply(times=2)
    for xid in (1, 2):
        assert not dropped.done()
        client = await Client.connect(proxy)
        client.send(-2, Op.PING)  # no call: it is answered
        client.send(xid, Op.SET_DATA)
        await client.receive()
        with pytest.raises(ConnectionResetError):
            await client.reader.read()
        await client.close()
    assert (await dropped).xid == 2
    assert [xid for xid, _ in server.applied if xid > 0] == [1, 2]


async def test_the_answer_to_connect_can_be_dropped(proxy: Proxy) -> None:
    dropped = proxy.drop_reply(Op.CONNECT)
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await Client.connect(proxy)
    assert (await dropped).body == b"hello"
