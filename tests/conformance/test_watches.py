"""Watches: they may skip states, but they always report the last one."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from aiokcc.errors import SessionLostError
from aiokcc.stores import ANY_VERSION, Change, Children, Create, Delete, Node, Session, Set, Store, Watch
from tests.conformance.seen import PATIENCE, Seen


async def test_the_first_change_is_the_present_state(session: Session) -> None:
    await session.create("a", b"x")
    await session.create("a/b")
    for path, now in (("a", await session.get("a")), ("nowhere", None)):
        with session.watch() as watch:
            watch.add(path)
            assert await Seen(watch).more() == [Change(path, now)]
    for path, names in (("a", Children("a", ("b",))), ("a/b", Children("a/b", ())), ("nowhere", None)):
        with session.watch() as watch:
            watch.add_children(path)
            assert await Seen(watch).more() == [Change(path, names)]


async def test_a_node_is_followed_through_its_life(session: Session, other: Session) -> None:
    seen = Seen(session.watch())
    seen.watch.add("a")
    assert await seen.more() == [Change("a", None)]
    await other.create("a", b"1")
    assert await seen.more() == [Change("a", await other.get("a"))]
    await other.set("a", b"2", 0)
    await seen.until(lambda: seen.data("a") == b"2")
    await other.delete("a", 1)
    await seen.until(lambda: seen.last["a"] is None)
    await other.create("a", b"3", ephemeral=True)
    await seen.until(lambda: seen.data("a") == b"3")
    assert seen.last["a"] == await other.get("a")


async def test_children_are_followed_through_the_life_of_their_parent(session: Session, other: Session) -> None:
    seen = Seen(session.watch())
    seen.watch.add_children("d")
    assert await seen.more() == [Change("d", None)]
    await other.create("d")
    await seen.until(lambda: seen.names("d") == ())
    await other.create("d/b")
    await seen.until(lambda: seen.names("d") == ("b",))
    await other.create("d/a", ephemeral=True)
    await seen.until(lambda: seen.names("d") == ("a", "b"))
    await other.commit(Delete("d/a", 0), Delete("d/b", 0), Delete("d", 0))
    await seen.until(lambda: seen.last["d"] is None)
    await other.commit(Create("d"), Create("d/c"))
    await seen.until(lambda: seen.names("d") == ("c",))


async def test_a_session_sees_its_own_writes(session: Session) -> None:
    seen = Seen(session.watch())
    seen.watch.add("a")
    seen.watch.add_children("")
    await session.create("a", b"x")
    await seen.until(lambda: seen.data("a") == b"x" and seen.names("") == ("a",))


async def test_children_watches_do_not_report_data_and_grandchildren(session: Session, other: Session) -> None:
    await session.ensure("d/a")
    seen = Seen(session.watch())
    seen.watch.add_children("d")
    seen.watch.add("end")
    await seen.until(lambda: len(seen.last) == 2)
    told = len(seen.log)
    await other.set("d", b"x", 0)
    await other.set("d/a", b"x", 0)
    await other.create("d/a/below")
    await other.create("end")
    await seen.until(lambda: seen.last["end"] is not None)
    assert {change.path for change in seen.log[told:]} == {"end"}


async def test_node_watches_do_not_report_children(session: Session, other: Session) -> None:
    await session.create("d")
    seen = Seen(session.watch())
    seen.watch.add("d")
    seen.watch.add("end")
    await seen.until(lambda: len(seen.last) == 2)
    told = len(seen.log)
    await other.create("d/a")
    await other.create("end")
    await seen.until(lambda: seen.last["end"] is not None)
    assert {change.path for change in seen.log[told:]} == {"end"}


async def test_a_path_may_be_watched_for_data_and_children_at_once(session: Session, other: Session) -> None:
    await session.create("d", b"0")
    watch = session.watch()
    watch.add("d")
    watch.add_children("d")
    both = list(await Seen(watch).more())
    while len(both) < 2:
        both += await Seen(watch).more()
    assert sorted(type(change.now).__name__ for change in both) == ["Children", "Node"]
    seen = Seen(watch)
    await other.set("d", b"1", 0)
    await seen.until(lambda: seen.data("d") == b"1")
    await other.create("d/a")
    await seen.until(lambda: seen.names("d") == ("a",))


async def test_the_root_can_be_watched(store: Store, other: Session) -> None:
    async with store.session() as session:
        seen = Seen(session.watch())
        seen.watch.add("")
        await seen.until(lambda: seen.data("") == b"")
        await other.set("", b"x", 0)
        await seen.until(lambda: seen.data("") == b"x")


async def test_adding_twice_changes_nothing(session: Session, other: Session) -> None:
    await session.create("a")
    seen = Seen(session.watch())
    seen.watch.add("a")
    seen.watch.add_children("a")
    await seen.until(lambda: len(seen.log) == 2)
    seen.watch.add("a")
    seen.watch.add_children("a")
    seen.watch.add("end")
    await other.create("end")
    await seen.until(lambda: seen.data("end") is not None)
    assert {change.path for change in seen.log[2:]} == {"end"}


async def test_a_removed_path_is_not_reported_any_more(session: Session, other: Session) -> None:
    await session.create("a")
    seen = Seen(session.watch())
    seen.watch.add("a")
    seen.watch.add_children("a")
    seen.watch.add("end")
    await seen.until(lambda: len(seen.log) == 3)
    seen.watch.remove("a")
    seen.watch.remove("never-added")
    await other.set("a", b"x", 0)
    await other.create("a/b")
    await other.create("end")
    await seen.until(lambda: seen.data("end") is not None)
    assert {change.path for change in seen.log[3:]} == {"end"}


async def test_removing_drops_what_was_not_reported_yet(session: Session, other: Session) -> None:
    await session.create("a")
    seen = Seen(session.watch())
    seen.watch.add("a")
    seen.watch.remove("a")
    seen.watch.add("end")
    await other.set("a", b"x", 0)
    await other.create("end")
    await seen.until(lambda: seen.data("end") is not None)
    assert {change.path for change in seen.log} == {"end"}


async def test_a_path_added_again_reports_its_state_again(session: Session, other: Session) -> None:
    await session.create("a", b"1")
    seen = Seen(session.watch())
    seen.watch.add("a")
    await seen.more()
    seen.watch.remove("a")
    await other.set("a", b"2", 0)
    seen.watch.add("a")
    await seen.until(lambda: seen.data("a") == b"2")
    await other.set("a", b"3", 1)
    await seen.until(lambda: seen.data("a") == b"3")


async def test_many_changes_may_be_reported_as_one_but_the_last_always_is(session: Session, other: Session) -> None:
    await session.create("a")
    seen = Seen(session.watch())
    seen.watch.add("a")
    seen.watch.add_children("")
    for number in range(100):
        await other.set("a", b"%d" % number, number)
        await other.create(f"n{number:03d}")
    names = "a", *(f"n{number:03d}" for number in range(100))
    await seen.until(lambda: seen.data("a") == b"99" and seen.names("") == names)
    assert len(seen.log) <= 2 * 101


async def test_versions_are_reported_in_order(session: Session, other: Session) -> None:
    await session.create("a")
    seen = Seen(session.watch())
    seen.watch.add("a")
    writing = asyncio.create_task(write_many(other, "a", 50))
    await seen.until(lambda: seen.data("a") == b"49")
    await writing
    versions = [change.now.version for change in seen.log if isinstance(change.now, Node)]
    assert versions == sorted(versions)


async def write_many(session: Session, path: str, count: int) -> None:
    for number in range(count):
        await session.set(path, b"%d" % number, ANY_VERSION)


async def test_nothing_is_lost_between_registering_and_writing_by_several(store: Store, session: Session) -> None:
    async with store.session() as one, store.session() as two, store.session() as three:
        writers = (one, two, three)
        for round_ in range(10):
            path = f"p{round_}"
            await session.create(path)

            async def write(who: Session, path: str = path) -> None:
                for _ in range(5):
                    await who.set(path, b"", ANY_VERSION)
                    await who.create(f"{path}/c-", sequential=True)

            writing = [asyncio.create_task(write(who)) for who in writers]
            seen = Seen(session.watch())
            for _ in range(round_):  # register at another moment of the writing each time
                await session.find(path)
            seen.watch.add(path)
            below = Seen(session.watch())
            below.watch.add_children(path)
            await asyncio.gather(*writing)
            await seen.until(lambda seen=seen, path=path: getattr(seen.last.get(path), "version", 0) == 15)  # type: ignore[misc]
            await below.until(lambda below=below, path=path: len(below.names(path) or ()) == 15)  # type: ignore[misc]
            seen.watch.close()
            below.watch.close()


async def test_many_watches_on_one_path_all_see_the_last_change(session: Session, other: Session) -> None:
    await session.create("a")
    followers = [Seen(session.watch()) for _ in range(30)]
    for follower in followers:
        follower.watch.add("a")
    for number in range(10):
        await other.set("a", b"%d" % number, number)
    for follower in followers:
        await follower.until(lambda follower=follower: follower.data("a") == b"9")  # type: ignore[misc]
    followers[0].watch.close()
    followers[1].watch.remove("a")
    await other.set("a", b"end", 10)
    for follower in followers[2:]:
        await follower.until(lambda follower=follower: follower.data("a") == b"end")  # type: ignore[misc]


async def test_one_watch_on_many_paths(session: Session, other: Session) -> None:
    paths = [f"n{number:03d}" for number in range(200)]
    seen = Seen(session.watch())
    for path in paths:
        seen.watch.add(path)
    await seen.until(lambda: len(seen.last) == 200)
    await other.commit(*(Create(path, path.encode()) for path in paths))
    await seen.until(lambda: all(seen.data(path) == path.encode() for path in paths))
    await other.commit(*(Set(path, b"x", 0) for path in paths[50:100]))
    await seen.until(lambda: all(seen.data(path) == b"x" for path in paths[50:100]))


async def test_paths_may_be_added_and_removed_while_a_task_waits(session: Session, other: Session) -> None:
    seen = Seen(session.watch())
    waiting = asyncio.create_task(seen.more())
    await session.find("a")
    assert not waiting.done()
    seen.watch.add("a")
    assert await waiting == [Change("a", None)]
    waiting = asyncio.create_task(seen.more())
    await session.find("a")
    seen.watch.remove("a")
    seen.watch.add("b")
    assert await waiting == [Change("b", None)]
    await other.create("b", b"x")
    await seen.until(lambda: seen.data("b") == b"x")


async def test_the_deletion_of_a_closed_sessions_nodes_is_seen(store: Store, session: Session) -> None:
    seen = Seen(session.watch())
    async with store.session() as leaving:
        await leaving.create("lock", b"held", ephemeral=True)
        await leaving.create("c-", ephemeral=True, sequential=True)
        seen.watch.add("lock")
        seen.watch.add_children("")
        await seen.until(lambda: seen.data("lock") == b"held" and len(seen.names("") or ()) == 2)
    await seen.until(lambda: seen.last["lock"] is None and seen.names("") == ())


async def test_a_cancelled_wait_loses_nothing(session: Session, other: Session) -> None:
    await session.create("a")
    seen = Seen(session.watch())
    seen.watch.add("a")
    for number in range(40):
        waiting = asyncio.create_task(seen.more())
        for _ in range(number % 5):  # cancel at another moment each time: before, while and after the change arrives
            await session.find("a")
        await other.set("a", b"%d" % number, number)
        for _ in range(number % 3):
            await session.find("a")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        if number % 4 == 3:
            await seen.until(lambda last=b"%d" % number: seen.data("a") == last)  # type: ignore[misc]


async def test_changes_can_be_iterated_over(session: Session, other: Session) -> None:
    await session.create("a", b"0")
    await other.sync()
    with session.watch() as watch:
        watch.add("a")
        numbers = itertools.count(1)
        async with asyncio.timeout(PATIENCE):
            async for change in watch:
                if change.now == await other.get("a"):
                    if (number := next(numbers)) > 5:
                        break
                    await other.set("a", b"%d" % number, ANY_VERSION)


async def test_closing_a_watch_ends_its_waiting_task(session: Session, other: Session) -> None:
    await session.create("a")
    seen, still = Seen(session.watch()), Seen(session.watch())
    for watch in (seen.watch, still.watch):
        watch.add("a")
    await seen.more()
    waiting = asyncio.create_task(seen.more())
    await session.find("a")
    seen.watch.close()
    with pytest.raises(SessionLostError):
        await waiting
    seen.watch.close()
    with pytest.raises(SessionLostError):
        await seen.more()
    await other.set("a", b"x", 0)
    await still.until(lambda: still.data("a") == b"x")


async def test_closing_the_session_ends_its_watches(store: Store, session: Session) -> None:
    async def follow(watch: Watch) -> None:
        while True:
            await watch.changes()

    async with store.session() as leaving:
        watch = leaving.watch()
        watch.add("a")
        following = asyncio.create_task(follow(watch))
        await leaving.find("a")
    with pytest.raises(SessionLostError):
        await following
    with pytest.raises(SessionLostError):
        await watch.changes()
    with leaving.watch() as late:
        late.add("a")
        with pytest.raises(SessionLostError):
            await late.changes()
