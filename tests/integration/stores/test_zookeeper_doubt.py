"""Writes whose answer was lost are applied exactly once, and the caller gets the true outcome.

Each kind of write has three faults: its reply is lost; it never reaches the server; its reply is lost while another client
writes the same node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiokcc.errors import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError, OutcomeUnknownError, StoreError
from aiokcc.stores import ANY_VERSION, Check, Create, Delete, Session, SessionState, Set, open_store
from tests.faults import Op, Proxy
from tests.integration.stores.test_zookeeper_connection import proxied, within

pytestmark = pytest.mark.service

Write = Callable[[Session], Awaitable[object]]
Fate = Callable[[Proxy, Op], "asyncio.Future[object]"]


def reply_lost(proxy: Proxy, op: Op) -> asyncio.Future[object]:
    return proxy.drop_reply(op)  # type: ignore[return-value]


def request_lost(proxy: Proxy, op: Op) -> asyncio.Future[object]:
    return proxy.cut_in_message("up", match=op)  # type: ignore[return-value]


def both_lost(proxy: Proxy, op: Op) -> asyncio.Future[object]:
    """Lose the request; then the reply when it is sent again; then the first read that resolves it."""
    proxy.cut_in_message("up", match=op)
    proxy.drop_reply(op)
    return proxy.drop_reply(Op.SYNC)  # type: ignore[return-value]


fates = pytest.mark.parametrize("fate", [reply_lost, request_lost, both_lost])


@fates
async def test_a_create_is_applied_once(zk_root: str, fate: Fate) -> None:
    async with proxied(zk_root) as (proxy, session):
        struck = fate(proxy, Op.CREATE)
        assert await within(session.create("a", b"x")) == "a"
        assert struck.done()
        node = await session.get("a")
        assert (node.data, node.version, node.owner) == (b"x", 0, 0)


@fates
async def test_a_create_of_an_ephemeral_node_is_applied_once(zk_root: str, fate: Fate) -> None:
    async with proxied(zk_root) as (proxy, session):
        struck = fate(proxy, Op.CREATE)
        assert await within(session.create("a", b"x", ephemeral=True)) == "a"
        assert struck.done()
        assert (await session.get("a")).owner == session.id


@fates
@pytest.mark.parametrize("ephemeral", [True, False])
async def test_a_create_of_a_sequential_node_is_applied_once(zk_root: str, fate: Fate, ephemeral: bool) -> None:
    async with proxied(zk_root) as (proxy, session):
        await session.create("d")
        struck = fate(proxy, Op.CREATE)
        name = await within(session.create("d/c-", b"x", ephemeral=ephemeral, sequential=True))
        assert struck.done()
        assert await session.children("d") == (name.removeprefix("d/"),)
        assert name.endswith("-0000000000")


@fates
@pytest.mark.parametrize("version", [1, ANY_VERSION])
async def test_a_set_is_applied_once(zk_root: str, fate: Fate, version: int) -> None:
    async with proxied(zk_root) as (proxy, session):
        await session.create("a")
        await session.set("a", b"before", 0)
        struck = fate(proxy, Op.SET_DATA)
        assert await within(session.set("a", b"x", version)) == 2
        assert struck.done()
        node = await session.get("a")
        assert (node.data, node.version) == (b"x", 2)


@fates
@pytest.mark.parametrize("version", [0, ANY_VERSION])
async def test_a_delete_is_applied_once(zk_root: str, fate: Fate, version: int) -> None:
    async with proxied(zk_root) as (proxy, session):
        await session.create("a")
        struck = fate(proxy, Op.DELETE)
        await within(session.delete("a", version))
        assert struck.done()
        assert await session.find("a") is None


@fates
async def test_an_ensure_is_applied_once(zk_root: str, fate: Fate) -> None:
    async with proxied(zk_root) as (proxy, session):
        proxy.cut_in_message("up", match=Op.CREATE) if fate is not reply_lost else proxy.drop_reply(Op.CREATE)
        await within(session.ensure("a/b/c"))
        assert await session.children("a/b") == ("c",)


@fates
@pytest.mark.parametrize("telling", range(6))
async def test_a_transaction_is_applied_once(zk_root: str, fate: Fate, telling: int) -> None:
    """Whichever operation is the evidence, all are applied once, and the results are the server's."""
    async with proxied(zk_root) as (proxy, session):
        for path in ("fence", "a", "gone"):
            await session.create(path)
        ops: list[tuple[Any, object]] = [
            (Set("a", b"x", 0), 1),
            (Create("new", b"n"), "new"),
            (Create("mine", ephemeral=True), "mine"),
            (Create("s-", sequential=True), "s-"),
            (Delete("gone", 0), None),
            (Set("a", b"y", ANY_VERSION), 1),
        ]
        struck = fate(proxy, Op.MULTI)
        check, result = await within(session.commit(Check("fence", 0), ops[telling][0]))
        assert struck.done()
        assert check is None
        assert str(result).startswith(str(ops[telling][1]))
        node, names = await session.get("a"), await session.children("")
        assert node.version == (telling in (0, 5))
        assert len(names) == 3 + (telling in (1, 2, 3)) - (telling == 4)
        if telling == 3:
            assert result in names


@fates
async def test_a_large_transaction_is_applied_once(zk_root: str, fate: Fate) -> None:
    async with proxied(zk_root) as (proxy, session):
        for path in ("fence", "a", "gone"):
            await session.create(path)
        struck = fate(proxy, Op.MULTI)
        results = await within(
            session.commit(
                Check("fence", 0),
                Create("new", b"1"),
                Set("new", b"2", 0),
                Create("s-", b"n", ephemeral=True, sequential=True),
                Delete("gone", 0),
                Set("a", b"y", ANY_VERSION),
            )
        )
        assert struck.done()
        assert results[:3] == [None, "new", 1]
        assert results[4:] == [None, 1]
        assert set(await session.children("")) == {"fence", "a", "new", results[3]}


REFUSED: dict[str, tuple[Op, Write, type[StoreError]]] = {
    "set": (Op.SET_DATA, lambda session: session.set("a", b"x", 7), BadVersionError),
    "set the same": (Op.SET_DATA, lambda session: session.set("a", b"", 1), BadVersionError),
    "create": (Op.CREATE, lambda session: session.create("a"), NodeExistsError),
    "create ephemeral": (Op.CREATE, lambda session: session.create("mine", ephemeral=True), NodeExistsError),
    "create below nothing": (Op.CREATE, lambda session: session.create("no/where"), NoNodeError),
    "sequential below nothing": (Op.CREATE, lambda session: session.create("no/c-", sequential=True), NoNodeError),
    "delete": (Op.DELETE, lambda session: session.delete("a", 7), BadVersionError),
    "delete the full": (Op.DELETE, lambda session: session.delete("full", 0), NotEmptyError),
    "transaction": (Op.MULTI, lambda session: session.commit(Check("a", 0), Set("full", b"", 7)), BadVersionError),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_refusal_whose_reply_was_lost_is_raised_as_a_refusal(zk_root: str, case: str) -> None:
    op, write, error = REFUSED[case]
    async with proxied(zk_root) as (proxy, session):
        await session.create("a")
        await session.create("full")
        await session.create("full/child")
        await session.create("mine", ephemeral=True)
        struck = proxy.drop_reply(op)
        with pytest.raises(error):
            await within(write(session))
        assert struck.done()


async def meanwhile(proxy: Proxy, op: Op, write: Awaitable[object], others: Callable[[], Awaitable[object]]) -> object:
    """Lose the reply, and let another client write before the session reconnects."""
    struck = proxy.drop_reply(op)
    call = asyncio.ensure_future(write)
    await within(struck)
    proxy.refuse()
    proxy.cut()
    await others()
    proxy.accept()
    return await within(call)


async def test_an_outcome_without_evidence_is_unknown(zk_root: str) -> None:
    async with proxied(zk_root) as (proxy, session), open_store(zk_root).session() as other:
        await session.create("a")

        async def written_over() -> None:
            await other.set("a", b"theirs", 1)

        with pytest.raises(OutcomeUnknownError, match="a: "):
            await meanwhile(proxy, Op.SET_DATA, session.set("a", b"ours", 0), written_over)

        async def deleted() -> None:
            await other.delete("a", ANY_VERSION)

        with pytest.raises(OutcomeUnknownError):
            await meanwhile(proxy, Op.SET_DATA, session.set("a", b"ours", 2), deleted)

        async def created() -> None:
            await other.create("b")

        await session.create("b")
        with pytest.raises(OutcomeUnknownError):
            await meanwhile(proxy, Op.DELETE, session.delete("b", 0), created)
        assert await session.find("b") is not None, "somebody else's, and not deleted"


async def test_a_write_of_another_client_is_not_attributed_to_ours(zk_root: str) -> None:
    async with proxied(zk_root) as (proxy, session), open_store(zk_root).session() as other:
        await session.create("a")
        await other.create("b", b"theirs", ephemeral=True)

        async def nothing() -> None:
            pass

        with pytest.raises(NodeExistsError):
            await meanwhile(proxy, Op.CREATE, session.create("b", b"theirs", ephemeral=True), nothing)
        await other.set("a", b"theirs", 0)
        with pytest.raises(BadVersionError):
            await meanwhile(proxy, Op.SET_DATA, session.set("a", b"ours", 0), nothing)


async def test_several_writes_of_one_node_in_a_transaction_are_applied_once(zk_root: str) -> None:
    async with proxied(zk_root) as (proxy, session), open_store(zk_root).session() as other:
        await session.create("a")
        await session.create("b")
        steps = [Set("a", b"%d" % n, n) for n in range(3)]
        struck = proxy.drop_reply(Op.MULTI)
        assert await within(session.commit(*steps, Set("b", b"x", ANY_VERSION))) == [1, 2, 3, 1]
        assert struck.done()

        # Sent and never arrived; meanwhile somebody else writes what our first step would have written.
        proxy.refuse()
        broken = proxy.cut_in_message("up", match=Op.MULTI)
        call = asyncio.ensure_future(session.commit(Set("a", b"3", 3), Set("a", b"4", 4)))
        await within(broken)
        await other.set("a", b"3", 3)
        proxy.accept()
        with pytest.raises(BadVersionError):
            await within(call)
        node = await session.get("a")
        assert (node.data, node.version) == (b"3", 4)


async def test_one_change_is_not_evidence_for_two_writes(zk_root: str) -> None:
    async with proxied(zk_root) as (proxy, session):
        await session.create("a")

        async def twice(op: Op, write: Write) -> list[object]:
            struck = proxy.drop_reply(op)
            outcomes = await within(asyncio.gather(write(session), write(session), return_exceptions=True))
            assert struck.done()
            return [outcome if not isinstance(outcome, Exception) else type(outcome) for outcome in outcomes]

        assert await twice(Op.CREATE, lambda s: s.create("e", ephemeral=True)) == ["e", NodeExistsError]
        assert await twice(Op.CREATE, lambda s: s.create("p", b"x")) == ["p", NodeExistsError]
        assert await twice(Op.SET_DATA, lambda s: s.set("a", b"x", 0)) == [1, BadVersionError]
        assert await twice(Op.MULTI, lambda s: s.commit(Set("a", b"y", 1))) == [[2], BadVersionError]
        assert (await session.get("a")).version == 2


async def test_writes_in_doubt_keep_their_order(zk_root: str) -> None:
    async with proxied(zk_root) as (proxy, session), open_store(zk_root).session() as other:
        await session.create("a", b"-")
        seen = []
        with other.watch() as watch:
            watch.add("a")
            struck = proxy.drop_reply(Op.SET_DATA)
            writes = asyncio.gather(*(session.set("a", b"%d" % n, ANY_VERSION) for n in range(5)))
            async for change in watch:
                seen.append(change.now.data)  # type: ignore[union-attr]
                if seen[-1] == b"4":
                    break
            await within(writes)
        assert struck.done()
        assert seen == sorted(seen), "nothing was written a second time behind a later write"
        node = await session.get("a")
        assert (node.data, node.version) == (b"4", 5)


@pytest.mark.parametrize("seed", range(3))
async def test_many_writes_through_many_breaks_are_each_applied_once(zk_root: str, seed: int) -> None:
    async with proxied(zk_root) as (proxy, session):
        await session.create("counter", b"0")
        await session.create("d")
        drops = proxy.drop_reply(lambda request: request.xid > 0 and (request.xid + seed) % 4 == 0, times=25)

        async def count() -> None:
            for n in range(40):
                assert await session.set("counter", b"%d" % (n + 1), n) == n + 1
                node = await session.get("counter")
                assert (node.version, node.data) == (n + 1, b"%d" % (n + 1))

        async def queue() -> list[str]:
            return [await session.create("d/c-", ephemeral=True, sequential=True) for _ in range(40)]

        async def transact() -> None:
            await session.create("t")
            for n in range(40):
                assert (await session.commit(Check("t", n), Set("t", b"%d" % n, n), Create(f"t-{n}")))[1] == n + 1

        _, names, _ = await within(asyncio.gather(count(), queue(), transact()))
        assert drops.done()
        assert {f"d/{name}" for name in await session.children("d")} == set(names)
        assert [int(name[-10:]) for name in names] == list(range(40))
        assert session.state is SessionState.CONNECTED


async def test_a_cancelled_write_leaves_the_backlog_in_order(zk_root: str) -> None:
    async with proxied(zk_root) as (proxy, session):
        await session.create("a")
        proxy.refuse()
        proxy.cut()
        await within(session.until(SessionState.SUSPENDED))
        calls = [asyncio.ensure_future(session.set("a", b"%d" % n, ANY_VERSION)) for n in range(5)]
        await asyncio.sleep(0)
        calls[1].cancel()
        calls[4].cancel()
        proxy.accept()
        await within(asyncio.wait(calls))
        node = await within(session.get("a"))
        assert (node.data, node.version) == (b"3", 3)
        for _ in range(20):
            call = asyncio.ensure_future(session.create("d-", ephemeral=True, sequential=True))
            await asyncio.sleep(0)
            call.cancel()
            assert await within(session.get("a")) == node


async def test_a_write_in_doubt_at_the_end_of_the_session_is_unknown_and_one_unsent_is_not(zk_root: str) -> None:
    async with proxied(zk_root, timeout=1) as (proxy, session):
        await session.create("a")
        proxy.blackhole()
        sent = asyncio.ensure_future(session.set("a", b"x", 0))
        await within(session.until(SessionState.SUSPENDED))
        unsent = asyncio.ensure_future(session.set("a", b"y", 1))
        outcomes = await within(asyncio.gather(sent, unsent, return_exceptions=True))
        assert [type(outcome).__name__ for outcome in outcomes] == ["OutcomeUnknownError", "SessionLostError"]
