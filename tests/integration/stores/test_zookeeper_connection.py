"""The ZooKeeper session and its connections: under network faults the session lives as long as at the server.

Each fault here once caused a lost session, a hang or a busy loop. Tests wait for events; deadlines only turn a hang into a
failure, and the session timeouts are such that the event under test can have no other cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import struct
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Self, TypeVar

import pytest

from aiokcc import local
from aiokcc.errors import OutcomeUnknownError, SessionLostError, StoreUnreachableError
from aiokcc.stores import ANY_VERSION, STOP_FRACTION, Session, SessionState, boottime, open_store
from aiokcc.stores.zookeeper.session import ZooKeeperSession
from tests.faults import Direction, Op, Proxy

pytestmark = pytest.mark.service
CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST
T = TypeVar("T")
LONG = 60.0
"""A session timeout of which no part passes during a test: no ping, no deadline has a hand in what is seen."""


async def within(event: Awaitable[T]) -> T:
    async with asyncio.timeout(30):
        return await event


def through(proxy: Proxy, url: str) -> str:
    """Return the URL through the proxy."""
    return f"zk://{proxy.connection}/{url.rsplit('/', 1)[1]}"


@asynccontextmanager
async def proxied(url: str, timeout: float = LONG) -> AsyncIterator[tuple[Proxy, Session]]:
    """Give a session through a proxy, with the root created."""
    async with Proxy(url.split("/")[2]) as proxy, open_store(through(proxy, url)).session(timeout=timeout) as session:
        await session.ensure("")
        yield proxy, session


# A connection breaks


@pytest.mark.parametrize("reset", [True, False])
async def test_a_break_is_noticed_and_the_session_resumed(zk_root: str, reset: bool) -> None:
    async with proxied(zk_root) as (proxy, session):
        identity = session.id
        await session.create("mine", ephemeral=True)
        proxy.cut(reset=reset)
        await within(session.until(SUSPENDED))
        assert await within(session.until(CONNECTED)) is CONNECTED
        assert (await within(session.get("mine"))).owner == session.id == identity


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("after", [0, 3, 6, 17, 30])
@pytest.mark.parametrize("reset", [True, False])
async def test_the_session_survives_a_break_in_the_middle_of_a_message(
    zk_root: str, direction: Direction, after: int, reset: bool
) -> None:
    async with proxied(zk_root) as (proxy, session):
        await session.create("a", b"x" * 1000)
        struck = proxy.cut_in_message(direction, after=after, reset=reset)
        assert (await within(session.get("a"))).data == b"x" * 1000
        assert struck.done()
        assert proxy.accepted == 2


async def test_calls_made_while_suspended_wait_and_are_applied_in_order(zk_root: str) -> None:
    async with proxied(zk_root) as (proxy, session):
        await session.create("a")
        proxy.refuse()
        proxy.cut()
        await within(session.until(SUSPENDED))
        calls = [asyncio.ensure_future(session.set("a", b"%d" % n, n)) for n in range(20)]
        read = asyncio.ensure_future(session.get("a"))
        await asyncio.sleep(0)
        proxy.accept()
        assert await within(asyncio.gather(*calls)) == list(range(1, 21))
        assert (await read).data == b"19"


async def test_a_refused_connection_is_tried_again_until_it_works(zk_root: str) -> None:
    async with proxied(zk_root) as (proxy, session):
        identity = session.id
        proxy.refuse()
        proxy.cut()
        await within(session.until(SUSPENDED))
        pending = asyncio.ensure_future(session.children(""))
        await asyncio.wait([pending], timeout=0.3)  # several attempts long; the longer the harder
        assert session.state is SUSPENDED
        proxy.accept()
        assert await within(pending) == ()
        assert session.id == identity


async def test_an_answer_during_the_handshake_may_be_lost(zk_root: str) -> None:
    async with proxied(zk_root) as (proxy, session):
        identity = session.id
        await session.create("mine", ephemeral=True)
        dropped = proxy.drop_reply(Op.CONNECT, times=3)
        proxy.cut()
        assert (await within(session.get("mine"))).owner == identity == session.id
        assert dropped.done()
        assert proxy.accepted == 5


async def test_the_first_handshake_may_be_lost(zk_root: str) -> None:
    async with Proxy(zk_root.split("/")[2]) as proxy:
        dropped = proxy.drop_reply(Op.CONNECT, times=2)
        async with open_store(through(proxy, zk_root)).session() as session:
            assert dropped.done()
            await session.ensure("a")


# Silence


@pytest.mark.parametrize("direction", ["up", "down", "both"])
async def test_a_silent_connection_is_noticed_by_ping_and_replaced_in_time(zk_root: str, direction: Direction) -> None:
    async with proxied(zk_root, timeout=3) as (proxy, session):
        identity = session.id
        await session.create("mine", ephemeral=True)
        proxy.blackhole(direction)
        await within(session.until(SUSPENDED))
        proxy.heal()
        assert await within(session.until(CONNECTED)) is CONNECTED
        assert (await within(session.get("mine"))).owner == session.id == identity


async def test_an_idle_session_stays(zk_root: str) -> None:
    async with proxied(zk_root, timeout=1) as (proxy, session):
        identity = session.id
        await session.create("mine", ephemeral=True)
        for _ in range(9):
            await within(proxy.expect(Op.PING))
        assert proxy.accepted == 1
        assert boottime() < session.stop_at <= boottime() + STOP_FRACTION * session.timeout
        assert (await session.get("mine")).owner == identity


@pytest.mark.parametrize("direction", ["up", "down", "both"])
async def test_silence_for_longer_than_the_timeout_loses_the_session(zk_root: str, direction: Direction) -> None:
    async with proxied(zk_root, timeout=1) as (proxy, session):
        await session.create("mine", ephemeral=True)
        watch = session.watch()
        watch.add("a")
        assert await within(watch.changes())
        proxy.blackhole(direction)
        calls = [session.get("mine"), session.until(LOST), watch.changes(), session.set("mine", b"", ANY_VERSION)]
        get, until, changes, written = await within(asyncio.gather(*calls, return_exceptions=True))
        assert until is session.state is LOST
        assert isinstance(get, SessionLostError)
        assert isinstance(changes, SessionLostError)
        assert isinstance(written, OutcomeUnknownError), "it was sent, and nobody knows"
        assert session.stop_at == -math.inf
        for call in (
            session.get("a"),
            session.find("a"),
            session.children(""),
            session.ensure("a"),
            session.create("a"),
        ):
            with pytest.raises(SessionLostError):
                await call
        with pytest.raises(SessionLostError):
            await watch.changes()
        with pytest.raises(SessionLostError):
            await session.watch().changes()
        proxy.heal()
        with pytest.raises(SessionLostError):
            await session.get("a")


async def test_stop_at_passes_before_the_session_is_lost(zk_root: str) -> None:
    async with proxied(zk_root, timeout=1) as (proxy, session):
        await within(session.get(""))
        proxy.blackhole()
        await within(session.until(SUSPENDED))
        # Two thirds: one for the ping that was due, one for its answer. What is left is for another server.
        stop = session.stop_at
        assert await within(session.until(LOST)) is LOST
        assert boottime() >= stop + (1 - STOP_FRACTION) * session.timeout


async def test_a_session_that_expired_at_the_server_is_lost_at_the_reconnect(
    private_zookeeper: local.ZooKeeper,
) -> None:
    async with Proxy(private_zookeeper.connection) as proxy:
        store = open_store(f"zk://{proxy.connection}/a")
        async with store.session(timeout=LONG) as session, store.session(timeout=LONG) as thief:
            assert isinstance(session, ZooKeeperSession)
            # Somebody closes our session behind our back, as its expiry would.
            password, identity = session._password, session.id
            reader, writer = await asyncio.open_connection(*proxy.connection.split(":"))
            writer.write(frame(struct.pack("!iqiqi16s?", 0, 0, 30_000, identity, 16, password, False)))
            await within(reader.readexactly(4))
            writer.write(frame(struct.pack("!ii", 1, -11)))
            await within(reader.read())
            writer.close()
            assert await within(session.until(LOST)) is LOST
            with pytest.raises(SessionLostError, match="expired"):
                await session.get("")
            assert thief.state is CONNECTED


# The server


async def test_the_session_survives_a_restart_of_the_server(private_zookeeper: local.ZooKeeper) -> None:
    async with open_store(private_zookeeper.url("a")).session(timeout=30) as session:
        identity = session.id
        await session.ensure("")
        await session.create("mine", b"x", ephemeral=True)
        await private_zookeeper.server.kill()
        await within(session.until(SUSPENDED))
        write = asyncio.ensure_future(session.set("mine", b"y", 0))
        await private_zookeeper.server.start()
        assert await within(write) == 1
        node = await within(session.get("mine"))
        assert (node.owner, node.data) == (identity, b"y")


async def test_the_session_survives_a_frozen_server(private_zookeeper: local.ZooKeeper) -> None:
    async with open_store(private_zookeeper.url("a")).session(timeout=6) as session:
        identity = session.id
        await session.ensure("")
        await session.create("mine", ephemeral=True)
        private_zookeeper.server.freeze()
        write = asyncio.ensure_future(session.set("mine", b"y", 0))
        await within(session.until(SUSPENDED))
        private_zookeeper.server.thaw()
        assert await within(write) == 1
        assert (await within(session.get("mine"))).owner == session.id == identity


async def test_another_server_takes_over(zk_root: str) -> None:
    server = zk_root.split("/")[2]
    async with Proxy(server) as one, Proxy(server) as two:
        store = open_store(f"zk://{one.connection},{two.connection}/{zk_root.rsplit('/', 1)[1]}")
        async with store.session(timeout=LONG) as session:
            identity = session.id
            await session.ensure("")
            for _ in range(3):
                here, there = (one, two) if one.connections else (two, one)
                here.refuse()
                here.cut()
                await within(there.wait_connections(1))
                assert await within(session.children("")) == ()
                here.accept()
            assert session.id == identity


async def test_an_ensemble_loses_servers_one_after_the_other() -> None:
    async with local.zookeeper(servers=3) as ensemble:
        store = open_store(ensemble.url("a"))
        async with store.session(timeout=30, connect_timeout=30) as session, store.session(timeout=30) as other:
            identity, version = session.id, 0
            await session.ensure("")
            await session.create("mine", ephemeral=True)
            for server in (await ensemble.leader(), *ensemble.servers[:2]):
                await server.kill()
                for _ in range(5):
                    version += 1
                    assert await within(session.set("mine", b"%d" % version, version - 1)) == version
                await server.start()
            assert (await within(other.get("mine"))).owner == session.id == identity


# Ourselves

FROZEN = """
import asyncio, sys
from aiokcc.errors import SessionLostError
from aiokcc.stores import SessionState, boottime, open_store

async def main():
    async with open_store(sys.argv[1]).session(timeout=1) as session:
        await session.ensure("")
        await session.create("frozen", ephemeral=True)
        relied_on = 0
        print("ready", flush=True)
        while session.state is not SessionState.LOST:
            before = boottime()
            if before < session.stop_at:
                relied_on = before
            await asyncio.sleep(0.001)
        try:
            await session.set("witness", b"from the dead", 0)
        except SessionLostError:
            print(session.stop_at, relied_on, flush=True)

asyncio.run(main())
"""


async def test_a_process_frozen_for_longer_than_its_session_finds_it_lost(zk_root: str) -> None:
    async with open_store(zk_root).session(timeout=LONG) as session:
        await session.ensure("witness")
        python = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FROZEN, zk_root, stdout=asyncio.subprocess.PIPE
        )
        assert python.stdout is not None
        try:
            assert await within(python.stdout.readline()) == b"ready\n"
            with session.watch() as watch:
                watch.add("frozen")
                assert (await within(watch.changes()))[0].now is not None
                python.send_signal(signal.SIGSTOP)
                assert (await within(watch.changes()))[0].now is None
                gone = boottime()
            python.send_signal(signal.SIGCONT)
            stop_at, relied_on = map(float, (await within(python.stdout.readline())).split())
            assert stop_at == -math.inf
            assert relied_on < gone, "not a moment after others could see it gone"
            await within(python.wait())
        finally:
            if python.returncode is None:
                python.kill()
                await python.wait()
        assert (await session.get("witness")).version == 0


# Servers that are none


def frame(content: bytes) -> bytes:
    return struct.pack("!i", len(content)) + content


class Fake:
    """A server that opens sessions and then sends given bytes."""

    def __init__(self, *, greeting: bytes | None = None) -> None:
        self.greeting = greeting
        self.replies: list[bytes | None] = []
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"zk://{host}:{port}/a"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            _, _, timeout, session_id = struct.unpack_from("!iqiq", await self._read(reader))
            if self.greeting is not None:
                writer.write(self.greeting)
                return
            writer.write(frame(struct.pack("!iiqi16s?", 0, timeout, session_id or 7, 16, bytes(16), False)))
            while True:
                xid, opcode = struct.unpack_from("!ii", await self._read(reader))
                reply = self.replies.pop(0) if self.replies and xid > 0 and opcode > 0 else None
                writer.write(reply if reply is not None else frame(struct.pack("!iqi", xid, 1, -101 if xid > 0 else 0)))

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        (length,) = struct.unpack("!i", await reader.readexactly(4))
        return await reader.readexactly(length)


GARBAGE = {
    "a length below zero": struct.pack("!i", -5),
    "a length beyond all reason": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a reply without a header": frame(b"abc"),
    "an answer to what was not asked": frame(struct.pack("!iqi", 99, 1, 0)),
    "an xid that nobody uses": frame(struct.pack("!iqi", -77, 1, 0)),
    "a record that is too short": frame(struct.pack("!iqi", 1, 1, 0) + b"ab"),
    "a field longer than its record": frame(struct.pack("!iqii", 1, 1, 0, 5000) + bytes(80)),
    "an event without a path": frame(struct.pack("!iqii", -1, -1, 0, 3)),
    "a name that is not text": frame(struct.pack("!iqiiii", -1, -1, 0, 3, 3, 2) + b"\xff\xfe"),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_a_malformed_reply_ends_the_connection_and_not_the_call(garbage: bytes) -> None:
    async with Fake() as fake, open_store(fake.url).session(timeout=LONG) as session:
        fake.replies = [garbage]
        assert await within(session.find("a")) is None
        assert fake.connections == 2
        assert session.id == 7


async def test_a_request_that_breaks_every_connection_fails() -> None:
    async with Fake() as fake, open_store(fake.url).session(timeout=1) as session:
        fake.replies = [frame(b"abc")] * 100
        with pytest.raises(Exception, match="connections in a row"):
            await within(session.find("a"))
        fake.replies = []
        assert await within(session.find("a")) is None


async def test_an_answer_for_another_session_loses_ours() -> None:
    async with Fake() as fake, open_store(fake.url).session(timeout=LONG) as session:
        fake.greeting = frame(struct.pack("!iiqi16s?", 0, 10_000, 8, 16, bytes(16), False))
        fake.replies = [frame(b"abc")]
        with pytest.raises(SessionLostError):
            await within(session.find("a"))
        assert session.state is LOST


async def test_a_session_unknown_to_the_server_is_lost() -> None:
    async with Fake() as fake, open_store(fake.url).session(timeout=LONG) as session:
        fake.greeting = frame(struct.pack("!iiqi16s?", 0, 0, 0, 16, bytes(16), False))
        fake.replies = [frame(b"abc")]
        with pytest.raises(SessionLostError):
            await within(session.find("a"))


@pytest.mark.parametrize("greeting", [b"", frame(b"abc"), b"\xff" * 8, frame(struct.pack("!iiqi", 0, 0, 0, 0))])
async def test_servers_that_close_at_the_handshake_are_tried_with_backoff(greeting: bytes) -> None:
    async with Fake(greeting=greeting) as fake:
        with pytest.raises(StoreUnreachableError):
            async with open_store(fake.url).session(timeout=10, connect_timeout=1):
                pass
        assert 2 <= fake.connections <= 12


# The newest transaction ever seen


async def test_every_handshake_has_the_last_seen_zxid_also_for_a_new_session(zk_root: str) -> None:
    async with Proxy(zk_root.split("/")[2]) as proxy:
        store = open_store(through(proxy, zk_root))

        def zxid(request: object) -> int:
            seen: int = struct.unpack_from("!iq", request.body)[1]  # type: ignore[attr-defined]
            return seen

        async with store.session(timeout=LONG) as session:
            await session.ensure("")
            handshake = proxy.expect(Op.CONNECT)
            proxy.cut()
            first = zxid(await within(handshake))
            assert first > 0
            await within(session.create("a"))
            handshake = proxy.expect(Op.CONNECT)
            proxy.cut()
            second = zxid(await within(handshake))
            assert second > first
        handshake = proxy.expect(Op.CONNECT)
        async with store.session(timeout=LONG):
            assert zxid(await within(handshake)) >= second
