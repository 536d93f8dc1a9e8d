"""Sessions: their states, their end, and the order of calls."""

from __future__ import annotations

import asyncio
import math

import pytest

from aiokcc.errors import SessionLostError, UsageError
from aiokcc.stores import ANY_VERSION, Check, Create, Delete, Session, SessionState, Set, Store, boottime
from tests.conformance.seen import PATIENCE


async def test_a_session_is_connected_from_the_start(session: Session, other: Session) -> None:
    assert session.state is SessionState.CONNECTED
    assert session.id not in (0, other.id)
    assert session.timeout > 0
    assert session.stop_at > boottime()
    assert await session.until(SessionState.CONNECTED) is SessionState.CONNECTED
    assert await session.until(SessionState.SUSPENDED, SessionState.CONNECTED) is SessionState.CONNECTED


async def test_a_closed_session_is_lost_for_ever(store: Store) -> None:
    async with store.session() as session:
        await session.ensure("")
        await session.create("a")
        watch = session.watch()
    assert session.state is SessionState.LOST
    assert session.stop_at == -math.inf
    for states in ((SessionState.LOST,), (SessionState.CONNECTED,), ()):
        assert await session.until(*states) is SessionState.LOST
    for call in (
        session.find("a"),
        session.get("a"),
        session.children("a"),
        session.create("b"),
        session.create("b-", sequential=True),
        session.set("a", b"x", 0),
        session.delete("a", 0),
        session.commit(Check("a", 0), Create("b")),
        session.ensure("b"),
        session.sync(),
        watch.changes(),
    ):
        with pytest.raises(SessionLostError):
            await call
    async with store.session() as again:
        assert again.id != session.id
        assert await again.children("") == ("a",)
        assert (await again.get("a")).version == 0


async def test_waiting_for_a_state_ends_with_the_session(store: Store) -> None:
    async with store.session() as session:
        waiting = asyncio.create_task(session.until(SessionState.SUSPENDED))
        await session.find("")
        assert not waiting.done()
    async with asyncio.timeout(PATIENCE):
        assert await waiting is SessionState.LOST


async def test_waiting_for_a_state_can_be_cancelled(session: Session) -> None:
    waiting = asyncio.create_task(session.until(SessionState.SUSPENDED))
    await session.find("")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await session.until(SessionState.CONNECTED) is SessionState.CONNECTED


async def test_an_error_in_the_body_closes_the_session_and_is_raised(store: Store, session: Session) -> None:
    with pytest.raises(ZeroDivisionError):
        async with store.session() as failing:
            await failing.create("mine", ephemeral=True)
            raise ZeroDivisionError
    assert failing.state is SessionState.LOST
    with session.watch() as watch:
        watch.add("mine")
        async with asyncio.timeout(PATIENCE):
            async for change in watch:
                if change.now is None:
                    break


async def test_a_store_opens_many_sessions_one_after_another_and_at_once(store: Store) -> None:
    identities = set()
    for _ in range(3):
        async with store.session() as one, store.session() as two:
            identities |= {one.id, two.id}
    assert len(identities) == 6


@pytest.mark.parametrize("wrong", [{"timeout": 0}, {"timeout": -1.0}, {"connect_timeout": 0}, {"connect_timeout": -1}])
async def test_an_invalid_timeout_is_refused(store: Store, wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        async with store.session(**wrong):
            pass


# Order


async def test_operations_of_one_session_are_applied_in_the_order_of_their_calls(session: Session) -> None:
    await session.create("a")
    writes = [asyncio.create_task(session.set("a", b"%d" % number, ANY_VERSION)) for number in range(200)]
    read = asyncio.create_task(session.get("a"))
    assert await asyncio.gather(*writes) == list(range(1, 201))
    node = await read
    assert (node.data, node.version) == (b"199", 200)


async def test_reads_and_writes_keep_their_order_too(session: Session) -> None:
    tasks: list[asyncio.Task[object]] = []
    for number in range(20):
        tasks += [
            asyncio.create_task(session.create("a", b"%d" % number)),
            asyncio.create_task(session.get("a")),
            asyncio.create_task(session.commit(Set("a", b"x", 0), Check("a", 1))),
            asyncio.create_task(session.children("")),
            asyncio.create_task(session.delete("a", 1)),
            asyncio.create_task(session.find("a")),
        ]
    results = await asyncio.gather(*tasks)
    for number in range(20):
        created, node, committed, names, deleted, found = results[6 * number : 6 * number + 6]
        assert created == "a"
        assert getattr(node, "data", None) == b"%d" % number
        assert committed == [1, None]
        assert names == ("a",)
        assert deleted is None
        assert found is None


async def test_an_answered_write_is_visible_to_other_sessions_after_a_sync(session: Session, other: Session) -> None:
    await session.create("a")
    for number in range(30):
        version = await session.set("a", b"", number)
        await other.sync()
        assert (await other.get("a")).version == version


# Cancelled calls


async def test_a_cancelled_read_leaves_the_session_usable(session: Session) -> None:
    await session.create("a", b"x")
    for calls in range(10):
        tasks = [asyncio.create_task(session.get("a")) for _ in range(5)]
        for _ in range(calls % 3):
            await asyncio.sleep(0)
        tasks[calls % 5].cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        read = [outcome for outcome in outcomes if not isinstance(outcome, asyncio.CancelledError)]
        assert len(read) >= 4
        assert {getattr(node, "data", None) for node in read} == {b"x"}


async def test_a_cancelled_write_was_applied_once_or_not_at_all(session: Session) -> None:
    await session.create("a")
    for trips in range(6):
        version = (await session.get("a")).version
        writing = asyncio.create_task(session.set("a", b"%d" % trips, version))
        for _ in range(trips % 3):
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        # Whatever is sent later is applied later: so this tells what became of it.
        node = await session.get("a")
        assert node.version in (version, version + 1)
        assert (node.data == b"%d" % trips) == (node.version == version + 1)
        assert await session.set("a", b"next", node.version) == node.version + 1


async def test_a_cancelled_sequential_creation_leaves_one_node_or_none(session: Session) -> None:
    await session.create("d")
    for trips in range(4):
        creating = asyncio.create_task(session.create("d/c-", sequential=True, ephemeral=True))
        for _ in range(trips):
            await asyncio.sleep(0)
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
        names = await session.children("d")
        assert len(names) <= 1
        await session.commit(*(Delete(f"d/{name}", ANY_VERSION) for name in names))


async def test_opening_a_session_can_be_cancelled(store: Store) -> None:
    async def open_one() -> None:
        async with store.session() as session:
            await session.until(SessionState.LOST)

    for trips in range(6):
        opening = asyncio.create_task(open_one())
        for _ in range(trips):
            await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    async with store.session() as session:
        await session.ensure("")


async def test_calls_under_way_end_with_the_session(store: Store) -> None:
    async with store.session() as session:
        await session.ensure("")
        await session.create("a")
        calls = [asyncio.create_task(session.get("a")) for _ in range(20)]
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, SessionLostError) or getattr(outcome, "path", None) == "a"
