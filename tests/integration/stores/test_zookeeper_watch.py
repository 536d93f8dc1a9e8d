"""Watches against a real server: nothing is lost between registering and changing, across breaks, or among many watchers;
and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import random

import pytest

from aiokcc import local
from aiokcc.errors import NoAuthError, SessionLostError, StoreError
from aiokcc.stores import ANY_VERSION, Change, Children, Created, Node, Session, SessionState, Watch, open_store
from aiokcc.stores.zookeeper import Acl, wire
from aiokcc.stores.zookeeper.session import ZooKeeperSession
from tests.faults import Op
from tests.integration.stores.test_zookeeper_connection import proxied, within

pytestmark = pytest.mark.service


async def follow(watch: Watch, path: str, last: bytes | None) -> list[bytes | None]:
    """Return the reports of a path up to this one."""
    seen: list[bytes | None] = []
    async with asyncio.timeout(30):
        async for change in watch:
            if change.path == path:
                seen.append(change.now.data if isinstance(change.now, Node) else None)
                if seen[-1] == last:
                    return seen
    raise AssertionError


async def names(watch: Watch, path: str, last: tuple[str, ...] | None) -> None:
    async with asyncio.timeout(30):
        async for change in watch:
            if change.path == path and not isinstance(change.now, Node):
                now = change.now.names if isinstance(change.now, Children) else None
                if now == last:
                    return


async def test_a_node_is_reported_when_created_deleted_and_created_again(zk_root: str) -> None:
    store = open_store(zk_root)
    async with store.session() as session, store.session() as other:
        await session.ensure("")
        with session.watch() as watch:
            watch.add("a")
            assert await within(watch.changes()) == [Change("a", None)]
            for n in range(5):
                await other.create("a", b"%d" % n)
                assert await follow(watch, "a", b"%d" % n) == [b"%d" % n]
                await other.set("a", b"more", 0)
                assert await follow(watch, "a", b"more") == [b"more"]
                await other.delete("a", 1)
                assert await follow(watch, "a", None) == [None]


async def test_children_are_reported_when_their_parent_is_created_and_deleted(zk_root: str) -> None:
    store = open_store(zk_root)
    async with store.session() as session, store.session() as other:
        await session.ensure("")
        with session.watch() as watch:
            watch.add_children("d")
            assert await within(watch.changes()) == [Change("d", None)]
            for _ in range(3):
                await other.create("d")
                await names(watch, "d", ())
                await other.create("d/a")
                await names(watch, "d", ("a",))
                await other.delete("d/a", ANY_VERSION)
                await other.delete("d", ANY_VERSION)
                await names(watch, "d", None)


@pytest.mark.parametrize("seed", range(4))
async def test_no_change_is_lost_while_its_watch_is_registered(zk_root: str, seed: int) -> None:
    """Paths are added at the moment at which they change, many times. The last state is always reported."""
    dice = random.Random(seed)
    store = open_store(zk_root)
    async with store.session() as session, store.session() as other:
        await session.ensure("")
        with session.watch() as watch:

            async def one(n: int) -> None:
                path = f"n{n}"
                steps = [other.create(path), other.set(path, b"1", ANY_VERSION), other.set(path, b"last", ANY_VERSION)]
                writes = asyncio.ensure_future(run(steps))
                for _ in range(dice.randrange(30)):
                    await asyncio.sleep(0)
                watch.add(path)
                await writes

            async def run(steps: list) -> None:  # type: ignore[type-arg]
                for step in steps:
                    await step

            last: dict[str, bytes | None] = {}

            async def collect() -> None:
                async for change in watch:
                    last[change.path] = change.now.data if isinstance(change.now, Node) else None
                    if list(last.values()).count(b"last") == 75:
                        return

            async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
                tasks.create_task(collect())
                for n in range(75):
                    tasks.create_task(one(n))


async def test_changes_made_while_suspended_are_reported_after_the_reconnect(zk_root: str) -> None:
    async with proxied(zk_root) as (proxy, session), open_store(zk_root).session() as other:
        for path in ("kept", "changed", "deleted", "again", "d"):
            await session.create(path)
        with session.watch() as watch:
            for path in ("kept", "changed", "deleted", "again", "created"):
                watch.add(path)
            watch.add_children("d")
            seen: set[str] = set()
            while len(seen) < 6:
                seen |= {change.path for change in await within(watch.changes())}
            again = await session.get("again")
            proxy.refuse()
            proxy.cut()
            await within(session.until(SessionState.SUSPENDED))
            await other.set("changed", b"x", 0)
            await other.delete("deleted", 0)
            await other.create("created", b"y")
            await other.create("d/child")
            await other.delete("again", 0)
            await other.create("again", b"")
            watch.add("late")
            proxy.accept()
            found: dict[str, Node | Children | None] = {}
            while len(found) < 6:
                found |= {change.path: change.now for change in await within(watch.changes())}
            assert "kept" not in found, "what did not change is not reported"
            assert found["deleted"] is found["late"] is None
            assert found["d"] == Children("d", ("child",))
            assert isinstance(found["again"], Node)
            assert found["again"].created >= again.created
            # and the watches stand again
            for path in ("kept", "changed", "created"):
                await other.set(path, b"now", ANY_VERSION)
                assert await follow(watch, path, b"now")
            for path in ("deleted", "late"):
                await other.create(path, b"back")
                assert await follow(watch, path, b"back")


@pytest.mark.parametrize("op", [Op.GET_DATA, Op.EXISTS, Op.GET_CHILDREN])
async def test_a_watch_whose_registration_breaks_is_registered_again(zk_root: str, op: Op) -> None:
    async with proxied(zk_root) as (proxy, session), open_store(zk_root).session() as other:
        await session.create("a", b"x")
        struck = proxy.drop_reply(op)
        with session.watch() as watch:
            watch.add("a")
            watch.add("b")
            watch.add_children("a")
            await within(struck)
            await other.set("a", b"last", 0)
            assert (await follow(watch, "a", b"last"))[-1] == b"last"
            await other.create("b", b"last")
            assert (await follow(watch, "b", b"last"))[-1] == b"last"
            await other.create("a/c")
            await names(watch, "a", ("c",))


async def test_many_watches_on_one_path_make_one_watch_at_the_server(private_zookeeper: local.ZooKeeper) -> None:
    store = open_store(private_zookeeper.url("a"))
    async with store.session() as session, store.session() as other:
        await session.ensure("x")
        watches = [session.watch() for _ in range(50)]
        for watch in watches:
            watch.add("x")
        for n in range(3):
            await other.set("x", b"%d" % n, n)
            for watch in watches:
                await follow(watch, "x", b"%d" % n)
        late = session.watch()
        late.add("x")
        assert await follow(late, "x", b"2") == [b"2"]
        assert (await private_zookeeper.metrics())["zk_watch_count"] == 1
        # One leaves, the others still hear
        watches[0].close()
        await other.set("x", b"end", 3)
        assert await follow(watches[1], "x", b"end") == [b"end"]


def leftovers(session: Session) -> int:
    assert isinstance(session, ZooKeeperSession)
    return len(session._watches) + len(session._watches._all) + len(session._backlog)


async def test_ten_thousand_paths_come_and_go_and_leave_nothing(private_zookeeper: local.ZooKeeper) -> None:
    async with open_store(private_zookeeper.url("a")).session(timeout=60) as session:
        await session.ensure("")
        await session.create("there")
        with session.watch() as watch:
            for n in range(10_000):
                path = f"n{n}" if n % 3 else "there"
                watch.add(path)
                if n % 2:
                    watch.add_children(path)
                if n % 5:
                    await asyncio.sleep(0)
                watch.remove(path)
            assert leftovers(session) == 1
        for n in range(200):
            with session.watch() as short:
                short.add("there")
                short.add_children(f"n{n}")
                if n % 2:
                    await within(short.changes())
        assert leftovers(session) == 0
        await session.get("there")  # behind all that was sent
        assert (await private_zookeeper.metrics())["zk_watch_count"] == 0
        gc.collect()
        kinds = {"Watched", "Fetch", "Forget", "ZooKeeperWatch"}
        left = [kind for kind in (type(thing).__name__ for thing in gc.get_objects()) if kind in kinds]
        assert left.count("Watched") + left.count("Fetch") + left.count("Forget") == 0
        assert left.count("ZooKeeperWatch") <= 2, "those that this test still names"


async def test_ten_thousand_cancelled_waits_leave_nothing_and_lose_nothing(zk_root: str) -> None:
    store = open_store(zk_root)
    async with store.session() as session, store.session() as other:
        await session.ensure("a")
        with session.watch() as watch:
            watch.add("a")
            await within(watch.changes())
            for _ in range(10_000):
                wait = asyncio.ensure_future(watch.changes())
                await asyncio.sleep(0)
                wait.cancel()
            await asyncio.sleep(0)
            await other.set("a", b"x", 0)
            assert await follow(watch, "a", b"x") == [b"x"]


async def test_a_node_that_changes_all_the_time_is_reported(zk_root: str) -> None:
    """It changes faster than it can be read. The watch still reports changes, and the last one."""
    store = open_store(zk_root)
    async with store.session() as session, store.session() as other:
        await session.ensure("a")
        with session.watch() as watch:
            watch.add("a")
            writing = asyncio.gather(*(other.set("a", b"%d" % n, ANY_VERSION) for n in range(500)))
            seen = await follow(watch, "a", b"499")
            await within(writing)
        numbers = [int(data) for data in seen if data]
        assert numbers == sorted(set(numbers))


async def test_an_unreadable_path_reports_its_error_and_others_continue(zk_root: str) -> None:
    owner = open_store(zk_root, auth=("user", "secret"), acl=[Acl.CREATOR])
    public = open_store(zk_root, auth=("user", "secret"), acl="open")
    async with owner.session() as session, public.session() as opening, open_store(zk_root).session() as stranger:
        await opening.ensure("")
        await session.create("private")
        await opening.create("public")
        with stranger.watch() as watch:
            watch.add("private")
            watch.add("public")
            outcomes: list[object] = []
            while len(outcomes) < 2:
                try:
                    outcomes += await within(watch.changes())
                except NoAuthError as error:
                    outcomes.append(error.path)
            assert outcomes[0] == "private"
            await opening.set("public", b"x", 0)
            assert await follow(watch, "public", b"x")


async def test_closing_a_watch_ends_its_waiter_and_closing_the_session_all_waiters(zk_root: str) -> None:
    async with open_store(zk_root).session() as session:
        await session.ensure("")
        watch, other = session.watch(), session.watch()
        wait, longer = asyncio.ensure_future(watch.changes()), asyncio.ensure_future(other.changes())
        await asyncio.sleep(0)
        watch.close()
        watch.close()
        with pytest.raises(SessionLostError, match="closed"):
            await within(wait)
        watch.add("a")  # changes nothing
    with pytest.raises(SessionLostError):
        await within(longer)
    assert leftovers(session) == 0


async def test_a_server_that_does_not_say_the_transaction_of_an_event_is_read(
    zk_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers before 3.9. Without the read, a later connection to a server that lags could show a state from before."""
    said = ZooKeeperSession.on_watch_event
    monkeypatch.setattr(ZooKeeperSession, "on_watch_event", lambda self, kind, name, _zxid: said(self, kind, name, -1))
    async with proxied(zk_root) as (proxy, session), open_store(zk_root).session() as other:
        await session.create("d")
        with session.watch() as watch:
            watch.add_created("d")
            assert await within(watch.changes()) == [Created("d")]
            for name in ("a", "b"):
                read = proxy.expect(Op.EXISTS)
                await other.create(f"d/{name}")
                await other.delete(f"d/{name}", 0)
                assert await within(watch.changes()) == [Created("d", name=name)]
                assert f"/d/{name}".encode() in (await within(read)).body


async def test_creations_cost_no_request(zk_root: str) -> None:
    async with proxied(zk_root) as (proxy, session), open_store(zk_root).session() as other:
        await session.create("d")
        with session.watch() as watch:
            watch.add_created("d")
            await within(watch.changes())
            asked = proxy.expect()
            for number in range(20):
                await other.create(f"d/{number}")
                assert await within(watch.changes()) == [Created("d", name=str(number))]
            assert not asked.done()
            await session.get("d")
            assert (await within(asked)).op == Op.GET_DATA


async def test_a_server_without_persistent_watches_is_refused_with_the_reason(
    zk_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers before 3.6 answer an operation that they do not know with Unimplemented."""
    monkeypatch.setattr(wire, "_ADD_WATCH", 99)
    async with open_store(zk_root).session() as session:
        with session.watch() as watch:
            watch.add_created("d")
            with pytest.raises(StoreError, match="needs 3.6 or later"):
                await within(watch.changes())
