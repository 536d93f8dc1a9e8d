"""Opening and closing, credentials, TLS and sizes; errors, cancellation and internal errors are raised unchanged."""

from __future__ import annotations

import asyncio
import logging
import ssl
import subprocess
from pathlib import Path

import anyio
import pytest

from aiokcc.errors import NoAuthError, OutcomeUnknownError, SessionLostError, StoreUnreachableError, TooLargeError
from aiokcc.local._process import free_ports
from aiokcc.stores import ANY_VERSION, Check, Create, SessionState, Set, open_store
from aiokcc.stores.zookeeper import Acl
from aiokcc.stores.zookeeper.watch import WatchRegistry
from tests.faults import Op, Proxy
from tests.integration.stores.test_zookeeper_connection import LONG, proxied, through, within

pytestmark = pytest.mark.service
CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST

# Opening


async def test_the_error_names_every_server_and_its_failure(zookeeper: object) -> None:
    one, two = free_ports(2)
    with pytest.raises(StoreUnreachableError) as caught:
        async with open_store(f"zk://user:hunter2@127.0.0.1:{one},127.0.0.1:{two}/a").session(connect_timeout=0.3):
            pass
    message = str(caught.value)
    assert f"127.0.0.1:{one}: " in message
    assert f"127.0.0.1:{two}: " in message
    assert "refused" in message
    assert "0.3 s" in message
    assert "connect_timeout" in message
    assert "hunter2" not in message


async def test_opening_waits_at_most_connect_timeout_for_a_silent_server(zk_root: str) -> None:
    async with Proxy(zk_root.split("/")[2]) as proxy:
        proxy.blackhole()
        with pytest.raises(StoreUnreachableError, match="no answer|being tried"):
            async with open_store(through(proxy, zk_root)).session(timeout=2, connect_timeout=1.5):
                pass


async def test_without_connect_timeout_opening_waits_until_a_server_starts(zk_root: str) -> None:
    async with Proxy(zk_root.split("/")[2]) as proxy:
        proxy.refuse()

        async def use() -> int:
            async with open_store(through(proxy, zk_root)).session(connect_timeout=None) as session:
                return session.id

        using = asyncio.ensure_future(use())
        await asyncio.wait([using], timeout=0.2)
        proxy.accept()
        assert await within(using)


async def test_a_host_name_that_does_not_resolve_is_named(zookeeper: object) -> None:
    with pytest.raises(StoreUnreachableError, match="no-such-host.invalid:2181: "):
        async with open_store("zk://no-such-host.invalid/a").session(connect_timeout=1):
            pass


# Closing


async def test_closing_deletes_ephemeral_nodes_at_once(zk_root: str) -> None:
    store = open_store(zk_root)
    async with store.session(timeout=LONG) as other:
        await other.ensure("")
        async with store.session(timeout=LONG) as session:
            await session.create("mine", ephemeral=True)
        assert await other.find("mine") is None
        assert session.state is LOST
        with pytest.raises(SessionLostError, match="closed"):
            await session.get("")


async def test_closing_while_suspended_does_not_wait(zk_root: str) -> None:
    async with asyncio.timeout(10):  # a fraction of the session timeout, of a ping, or of an attempt to connect
        async with proxied(zk_root) as (proxy, session):
            proxy.refuse()
            proxy.cut()
            await session.until(SUSPENDED)
        async with proxied(zk_root) as (proxy, session):
            proxy.blackhole()
            pending = asyncio.ensure_future(session.get(""))
        with pytest.raises(SessionLostError):
            await pending


async def test_calls_and_waits_of_other_tasks_end_with_the_session(zk_root: str) -> None:
    async with proxied(zk_root) as (proxy, session):
        proxy.refuse()
        proxy.cut()
        await session.until(SUSPENDED)
        calls = [session.get(""), session.create("a"), session.watch().changes(), session.until(CONNECTED)]
        waiting = asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(0)
    outcomes = await within(waiting)
    assert [type(outcome) for outcome in outcomes[:3]] == [SessionLostError] * 3
    assert outcomes[3] is LOST


async def test_asyncio_run_returns_after_use(zk_root: str) -> None:
    async def use() -> str:
        async with proxied(zk_root) as (proxy, session):
            with session.watch() as watch:
                watch.add("a")
                wait = asyncio.ensure_future(watch.changes())
                proxy.cut()
                await asyncio.sleep(0)
                wait.cancel()
                return "done"

    assert await within(asyncio.to_thread(asyncio.run, use())) == "done"


# What the body raises


async def test_an_error_of_the_body_is_raised_unchanged(zk_root: str) -> None:
    for error in (
        ValueError("mine"),
        ExceptionGroup("mine", [ValueError()]),
        StopAsyncIteration(),
        KeyboardInterrupt(),
    ):
        with pytest.raises(type(error)) as caught:
            async with open_store(zk_root).session():
                raise error
        assert caught.value is error


async def test_cancelling_the_body_ends_the_session(zk_root: str) -> None:
    entered = asyncio.Event()

    async def use() -> None:
        async with open_store(zk_root).session() as session:
            await session.ensure("")
            await session.create("mine", ephemeral=True)
            entered.set()
            await asyncio.Event().wait()

    async with open_store(zk_root).session() as other:
        task = asyncio.ensure_future(use())
        await within(entered.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(task)
        assert await other.find("mine") is None
        with anyio.move_on_after(0.3) as scope:
            await use()
        assert scope.cancelled_caught
        assert await other.find("mine") is None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await use()


async def test_opening_can_be_cancelled(zk_root: str) -> None:
    async with Proxy(zk_root.split("/")[2]) as proxy:
        proxy.blackhole()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), open_store(through(proxy, zk_root)).session():
                pass


async def test_an_internal_error_is_raised(zk_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(WatchRegistry, "on_event", broken)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        async with open_store(zk_root).session() as session:
            await session.ensure("a")
            watch = session.watch()
            watch.add("a")
            await within(watch.changes())
            await within(session.set("a", b"x", ANY_VERSION))
            await within(session.until(LOST))
            await asyncio.Event().wait()


# Cancelled calls


async def test_cancelled_reads_leave_nothing_behind(zk_root: str) -> None:
    async with proxied(zk_root) as (proxy, session):
        await session.create("a", b"x")
        for round_ in range(50):
            calls = [asyncio.ensure_future(session.get("a")) for _ in range(10)]
            await asyncio.sleep(0)
            for call in calls[::2]:
                call.cancel()
            if round_ % 10 == 0:
                proxy.cut()
            assert [(await within(call)).data for call in calls[1::2]] == [b"x"] * 5


# Sizes


async def test_too_large_data_is_refused_before_it_is_sent(zk_root: str) -> None:
    async with proxied(zk_root) as (proxy, session):
        await session.create("a")
        half = b"x" * 530_000
        for call in (
            session.set("a", b"x" * 1_000_000, 0),
            session.create("b", b"x" * 1_000_000),
            session.commit(Set("a", half, 0), Create("b", half)),
            session.commit(*(Check("a", 0) for _ in range(60_000))),
        ):
            with pytest.raises(TooLargeError):
                await within(call)
        large = b"x" * 999_000
        assert await within(session.set("a", large, 0)) == 1
        assert (await within(session.get("a"))).data == large
        dropped = proxy.drop_reply(Op.SET_DATA)
        assert await within(session.set("a", large[::-1], 1)) == 2
        assert dropped.done()
        assert proxy.accepted == 2, "the server hung up on none of them"


async def test_a_node_may_have_many_children(zk_root: str) -> None:
    async with open_store(zk_root).session() as session:
        await session.ensure("")
        names = [f"{n:05d}-{'x' * 100}" for n in range(12_000)]
        for start in range(0, len(names), 1000):
            await session.commit(*(Create(name) for name in names[start : start + 1000]))
        assert await session.children("") == tuple(names)


# Credentials


async def test_credentials_are_sent_on_every_connection(zk_root: str) -> None:
    async with Proxy(zk_root.split("/")[2]) as proxy:
        store = open_store(through(proxy, zk_root).replace("zk://", "zk://user:secret@"), acl="creator")
        stranger = open_store(zk_root, auth=("user", "wrong"))
        async with store.session(timeout=LONG) as session, stranger.session() as other:
            await session.ensure("")
            await session.create("a", b"x")
            for _ in range(3):
                proxy.cut()
                await within(session.until(SUSPENDED))
                assert (await within(session.get("a"))).data == b"x"
            for call in (
                other.get("a"),
                other.find("a"),
                other.set("a", b"y", 0),
                other.children(""),
                other.create("b"),
                other.commit(Check("a", 0), Set("a", b"y", 0)),
            ):
                with pytest.raises(NoAuthError) as caught:
                    await within(call)
                assert "credentials" in str(caught.value)


async def test_a_write_in_doubt_that_may_not_be_read_is_unknown(zk_root: str) -> None:
    owner = open_store(zk_root, auth=("u", "p"), acl=[Acl.CREATOR, Acl("world", "anyone", Acl.WRITE)])
    async with owner.session() as session, proxied(zk_root) as (proxy, blind):
        await session.create("a")
        assert await within(blind.set("a", b"x", 0)) == 1
        dropped = proxy.drop_reply(Op.SET_DATA)
        with pytest.raises(OutcomeUnknownError):
            await within(blind.set("a", b"y", 1))
        assert dropped.done()


async def test_the_log_is_short_and_has_no_secret(zk_root: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with Proxy(zk_root.split("/")[2]) as proxy:
        store = open_store(through(proxy, zk_root), auth=("user", "hunter2"))
        async with store.session(timeout=1) as session:
            proxy.cut()
            await within(session.until(SUSPENDED))
            await within(session.until(CONNECTED))
            proxy.blackhole()
            await within(session.until(LOST))
    ours = [record for record in caplog.records if record.name == "aiokcc.stores"]
    said = [record.getMessage().split(" ")[2].rstrip(":") for record in ours]
    assert said == ["opened", "suspended", "resumed", "suspended", "lost"]
    assert [record.levelname for record in ours] == ["INFO"] * 4 + ["WARNING"]
    assert "hunter2" not in caplog.text


# TLS


async def test_a_session_over_tls(zk_root: str, tmp_path: Path) -> None:
    """The TLS server is a relay with a certificate of its own in front of the plain server."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(subprocess.run, ["openssl", *command.split(), *files], check=True, capture_output=True)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    relays: set[asyncio.StreamWriter] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*zk_root.split("/")[2].split(":"))
        relays.add(writer)
        await asyncio.gather(pipe(reader, up_writer), pipe(up_reader, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=serving)
    url = f"zk://127.0.0.1:{server.sockets[0].getsockname()[1]}/{zk_root.rsplit('/', 1)[1]}"
    trusting = ssl.create_default_context(cafile=str(certificate))
    try:
        async with open_store(url, ssl=trusting).session(timeout=LONG) as session:
            identity = session.id
            await session.ensure("a")
            relays.pop().transport.abort()
            await within(session.until(SUSPENDED))
            assert await within(session.set("a", b"x" * 900_000, 0)) == 1
            assert len((await within(session.get("a"))).data) == 900_000
            assert session.id == identity
        with pytest.raises(StoreUnreachableError, match="has a certificate that no trusted CA has signed"):
            async with open_store(url, ssl=ssl.create_default_context()).session(connect_timeout=1):
                pass
        with pytest.raises(StoreUnreachableError):
            async with open_store(url).session(timeout=1, connect_timeout=1):
                pass
    finally:
        server.close()
