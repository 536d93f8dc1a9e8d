"""Watches for creations: names in order without a read, nothing from before, and a word whenever something may be missing."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.conn import CloseReason

from aiokcc.errors import SessionLostError
from aiokcc.stores import ANY_VERSION, Change, Create, Created, Delete, Session, SessionState, Set, Store
from aiokcc.stores.kafka.session import KafkaSession
from aiokcc.stores.memory.store import MemoryStore
from aiokcc.stores.zookeeper.session import ZooKeeperSession
from tests.conformance.conftest import LAG
from tests.conformance.seen import PATIENCE, Seen

IN_PLACE = Created("d")


def created(*names: str) -> list[Created]:
    return [Created("d", name=name) for name in names]


async def collect(seen: Seen, last: str) -> list[Change]:
    """All that is reported until the creation of this name."""
    start = len(seen.log)
    await seen.until(lambda: Created("d", name=last) in seen.log[start:])
    return seen.log[start:]


async def listening(session: Session) -> Seen:
    """A watch for creations below ``d``, in place."""
    seen = Seen(session.watch())
    seen.watch.add_created("d")
    assert await seen.more() == [IN_PLACE]
    return seen


async def break_connection(store: Store, session: Session) -> None:
    """The connection breaks, and comes back in the same session."""
    if isinstance(store, MemoryStore):
        store.server.suspend(session)
        store.server.resume(session)
    elif isinstance(session, KafkaSession):
        suspended = asyncio.create_task(session.until(SessionState.SUSPENDED))
        while not suspended.done():  # it notices only if it is reading at this moment
            for connection in session._client._client._conns.values():
                connection.close(reason=CloseReason.CONNECTION_BROKEN)
            await asyncio.wait((suspended,), timeout=2 * LAG)
        await session.until(SessionState.CONNECTED)
    else:
        assert isinstance(session, ZooKeeperSession)
        assert session._connection is not None
        session._connection.abort("broken by the test")
        assert session.state is SessionState.SUSPENDED
        await session.until(SessionState.CONNECTED)


async def test_each_creation_is_reported_in_order(session: Session, other: Session) -> None:
    await session.create("d")
    await session.create("d/before")
    seen = await listening(session)
    names = [f"n{number}" for number in range(30)]
    for name in names:
        await other.create(f"d/{name}", b"content")
    assert await collect(seen, "n29") == created(*names)


async def test_nothing_but_creations_of_children_is_reported(session: Session, other: Session) -> None:
    await session.create("d")
    await session.create("d/a")
    seen = await listening(session)
    await other.set("d", b"x", 0)
    await other.set("d/a", b"x", 0)
    await other.create("d/b")
    await other.create("d/b/grandchild")
    await other.create("beside")
    await other.delete("d/a", 1)
    await other.create("d/last", ephemeral=True)
    assert await collect(seen, "last") == created("b", "last")


async def test_a_transaction_is_reported_once_it_is_applied_and_only_then(session: Session, other: Session) -> None:
    await session.create("d")
    await session.create("limit", b"1")
    seen = await listening(session)
    with pytest.raises(Exception, match="limit"):
        await other.commit(Create("d/refused"), Set("limit", b"2", 5))
    await other.commit(Set("limit", b"2", 0), Create("d/2"), Create("d/3"), Delete("d/2", 0))
    assert await collect(seen, "3") == created("2", "3")
    assert (await session.get("limit")).data == b"2", "whoever was told reads nothing older"


async def test_the_node_need_not_exist(session: Session, other: Session) -> None:
    seen = await listening(session)
    await other.create("d")
    await other.create("d/a")
    assert await collect(seen, "a") == created("a")
    await other.commit(Delete("d/a", 0), Delete("d", 0), Create("d"), Create("d/b"))
    assert await collect(seen, "b") == created("b")


async def test_what_a_session_creates_itself_is_reported(session: Session) -> None:
    await session.create("d")
    seen = await listening(session)
    await session.create("d/own")
    assert await collect(seen, "own") == created("own")


async def test_after_a_break_it_says_that_something_may_be_missing(
    store: Store, session: Session, other: Session
) -> None:
    await session.create("d")
    seen = await listening(session)
    for round_ in range(5):
        await break_connection(store, session)
        assert await seen.more() == [IN_PLACE]
        await other.create(f"d/{round_}")
        assert await collect(seen, f"{round_}") == created(f"{round_}"), "once, although it was added again"


async def test_no_creation_is_lost_without_a_word(store: Store, session: Session, other: Session) -> None:
    """Names are created while the connection breaks: whoever reads at each word, and counts the names, knows them all."""
    await session.create("d")
    seen = await listening(session)
    known: set[str] = set()

    async def follow() -> None:
        while len(known) < 60:
            for change in await seen.more():
                assert isinstance(change, Created)
                known.update(await session.children("d") if change.name is None else (change.name,))

    async def write() -> None:
        for number in range(60):
            await other.create(f"d/{number}")
            if number % 7 == 3:
                await break_connection(store, session)

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        tasks.create_task(write())
    assert known == {str(number) for number in range(60)}


async def test_adding_twice_and_two_watches(session: Session, other: Session) -> None:
    await session.create("d")
    first = await listening(session)
    first.watch.add_created("d")
    second = await listening(session)
    await other.create("d/a")
    assert await collect(first, "a") == created("a")
    assert await collect(second, "a") == created("a")
    first.watch.close()
    await other.create("d/b")
    assert await collect(second, "b") == created("b")


async def test_a_removed_path_is_not_reported_and_can_be_added_again(session: Session, other: Session) -> None:
    await session.create("d")
    seen = await listening(session)
    seen.watch.add("end")
    await seen.until(lambda: "end" in seen.last)
    await other.create("d/unreported")
    await session.find("d")
    seen.watch.remove("d")
    await other.create("d/a")
    await other.create("end")
    await seen.until(lambda: seen.data("end") is not None)
    assert not [change for change in seen.log[2:] if change.path == "d"]
    seen.watch.add_created("d")
    await seen.until(lambda: seen.log[-1] == IN_PLACE)
    await other.create("d/b")
    assert await collect(seen, "b") == created("b")


async def test_beside_the_other_watches_of_the_same_node(session: Session, other: Session) -> None:
    """Each of the three kinds goes on when another one of the same node is removed."""
    await session.create("d")
    seen, data, names = await listening(session), Seen(session.watch()), Seen(session.watch())
    data.watch.add("d")
    names.watch.add_children("d")
    await data.more()
    await names.more()
    await other.create("d/a")
    assert await collect(seen, "a") == created("a")
    await names.until(lambda: names.names("d") == ("a",))
    data.watch.close()
    await other.create("d/b")
    assert await collect(seen, "b") == created("b")
    await names.until(lambda: names.names("d") == ("a", "b"))
    names.watch.close()
    await other.create("d/c")
    assert await collect(seen, "c") == created("c")
    last = Seen(session.watch())
    last.watch.add_children("d")
    await last.more()
    seen.watch.close()
    await other.delete("d/c", ANY_VERSION)
    await last.until(lambda: last.names("d") == ("a", "b"))


async def test_a_cancelled_wait_loses_nothing(session: Session, other: Session) -> None:
    await session.create("d")
    seen = await listening(session)
    for number in range(20):
        waiting = asyncio.create_task(seen.more())
        for _ in range(number % 4):
            await session.find("d")
        await other.create(f"d/{number}")
        for _ in range(number % 3):
            await session.find("d")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await seen.until(lambda: Created("d", name="19") in seen.log)
    assert seen.log[1:] == created(*map(str, range(20)))


async def test_a_lost_session_ends_it(store: Store, session: Session) -> None:
    async with store.session() as leaving:
        seen = await listening(leaving)
        waiting = asyncio.create_task(seen.watch.changes())
        await leaving.find("d")
    with pytest.raises(SessionLostError):
        await waiting
