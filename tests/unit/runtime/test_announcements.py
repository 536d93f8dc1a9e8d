"""The leader announces each limit by the name of a node; members read nothing, and are never past the limit in the store."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from aiokcc.core import paths
from aiokcc.core.announcement import Announcement
from aiokcc.core.limit import Limit
from aiokcc.core.run import CUT_SLOTS
from aiokcc.stores import ANY_VERSION
from tests.unit.runtime.test_damage import Pair, finish, go_on, pair
from tests.unit.world import PERIOD, World
from tests.virtual import settle


def reads(world: World, path: str) -> int:
    """Return how often the node was read, by a call or for a watch."""
    return sum(path in call.paths for call in world.calls if not call.writes)


def stated(world: World) -> list[str]:
    """Return the announcements without their checksums."""
    return [name.rpartition(":")[0] for name in world.below("limits")]


async def test_a_period_is_announced_and_nobody_reads_it(world: World) -> None:
    async with pair(world) as p:
        await go_on(p)
        world.record_calls()
        for period in range(3, 9):
            await go_on(p, period * PERIOD)
        await go_on(p, 100 * PERIOD)  # a gap, in one step
        assert reads(world, "coordinator") == 0
        version = world.node("coordinator").version  # type: ignore[union-attr]
        assert f"{version}:{100 * PERIOD}" in stated(world)
        finish(p)


async def test_a_member_that_is_alone_announces_nothing_until_another_one_joins(world: World) -> None:
    async with world.connect(member="a") as a, a.gate("orders", 0) as led, a.gate("orders", 1) as second:
        for period in range(1, 5):
            await asyncio.gather(led.wait_until(period * PERIOD), second.wait_until(period * PERIOD))
        assert world.below("limits") == []
        async with world.connect(member="b") as b:
            await settle()
            assert stated(world) == [f"4:{5 * PERIOD}"]
            assert b.limit == a.limit
            await asyncio.gather(led.wait_until(5 * PERIOD), second.wait_until(5 * PERIOD))
            await settle()
            assert b.limit == 6 * PERIOD
        led.finish()
        second.finish()


async def test_a_member_that_joins_while_an_advance_is_in_flight_is_told(world: World) -> None:
    """The advance is not announced, because the leader was alone. The member has read the limit before it."""
    async with world.connect(member="a") as a, a.gate("orders", 0) as led, a.gate("orders", 1) as second:
        await settle()
        with world.server.hold_request(lambda call: call.touches("coordinator") and call.writes) as held:
            both = asyncio.gather(led.wait_until(PERIOD), second.wait_until(PERIOD))
            await held.reached()
            async with world.connect(member="b") as b:
                await settle()
                assert b.limit == PERIOD
                held.release()
                await both
                await settle()
                assert b.limit == a.limit == 2 * PERIOD
        led.finish()
        second.finish()


async def test_old_announcements_are_deleted(world: World) -> None:
    async with pair(world) as p:
        for period in range(2, 300):
            await go_on(p, period * PERIOD)
        await settle()
        assert 10 < len(world.below("limits")) < 100
        finish(p)


@pytest.mark.parametrize(
    "name", ["99", "99:9000000", "99:open", "99:end", "0:9000000", "nonsense", "1:x", ":1", "-1:5000"]
)
async def test_a_name_that_no_leader_has_written_changes_nothing(world: World, name: str) -> None:
    async with pair(world) as p:
        await go_on(p)
        await p.hand.create(f"limits/{name}")
        await settle()
        assert p.follower.limit == p.leader.limit == world.limit.value
        await go_on(p, 3 * PERIOD)
        finish(p)


@pytest.mark.parametrize("text", ["9000000", "1000", "open", "end", "2000,1000", "3000", "3000:0123abcd", ""])
@pytest.mark.parametrize("further", [1, 2, 8])
async def test_not_even_the_name_of_the_next_advance(world: World, text: str, further: int) -> None:
    """Somebody has looked at the names, and creates the one that comes next. Nobody goes past the store, and nobody waits."""
    async with pair(world) as p:
        await go_on(p)
        version = world.node("coordinator").version  # type: ignore[union-attr]
        await p.hand.create(f"limits/{version + further}:{text}")
        await settle()
        for period in range(3, 13):
            assert p.follower.limit == p.leader.limit == world.limit.value
            await go_on(p, period * PERIOD)
        finish(p)


async def test_the_name_of_a_former_leader_is_not_taken(world: World) -> None:
    """It was made for a write that never came: a name that is copied, or that a damaged client creates later."""
    async with pair(world) as p:
        await go_on(p)
        former = world.leader()
        await world.expire(p.leader)
        await go_on(p, 3 * PERIOD)
        assert world.leader() != former
        version = world.node("coordinator").version  # type: ignore[union-attr]
        await p.hand.create(paths.limit(Announcement(version + 1, Limit((9 * PERIOD,))).name(former)))
        await settle()
        assert p.follower.limit == p.leader.limit == world.limit.value == 3 * PERIOD
        await go_on(p, 4 * PERIOD)
        finish(p)


async def test_a_node_that_is_in_the_way_is_deleted(world: World) -> None:
    async with pair(world) as p:
        await go_on(p)
        version = world.node("coordinator").version  # type: ignore[union-attr]
        world.server.suspend(
            world.session(p.follower)
        )  # it is not told of the node, which has the very name of the next one
        name = Announcement(version + 1, Limit((3 * PERIOD,))).name(world.leader())
        await p.hand.create(paths.limit(name))
        world.server.resume(world.session(p.follower))
        await go_on(p, 3 * PERIOD)
        finish(p)


async def test_announcements_deleted_by_hand_are_not_missed(world: World) -> None:
    async with pair(world) as p:
        await go_on(p)
        for name in world.below("limits"):
            await p.hand.delete(f"limits/{name}", ANY_VERSION)
        await p.hand.delete("limits", ANY_VERSION)
        for period in range(3, 90):
            await go_on(p, period * PERIOD)
        finish(p)


@pytest.mark.parametrize("successor", [False, True])
async def test_a_later_limit_written_by_hand_reaches_everybody(world: World, successor: bool) -> None:
    """Nobody is told of it. The leader finds it at its next advance, or its successor when it takes over."""
    async with pair(world) as p:
        await go_on(p)
        await p.hand.set("coordinator", Limit((5 * PERIOD,)).encode(), ANY_VERSION)
        await settle()
        assert p.follower.limit <= world.limit.value
        if successor:
            await world.expire(p.leader)
        await asyncio.wait_for(asyncio.gather(p.led.wait_until(4 * PERIOD), p.followed.wait_until(4 * PERIOD)), 60)
        assert p.leader.limit == p.follower.limit == 5 * PERIOD
        finish(p)


async def test_a_member_whose_connection_broke_reads(world: World) -> None:
    async with pair(world) as p:
        await go_on(p)
        for period in range(3, 3 + 2 * CUT_SLOTS):
            session = world.session(p.follower)
            waiting = asyncio.gather(
                p.led.wait_until((period - 1) * PERIOD), p.followed.wait_until((period - 1) * PERIOD)
            )
            for _ in range(period):  # at another moment each time
                await asyncio.sleep(0)
            world.server.suspend(session)
            await settle()
            assert p.follower.limit <= world.limit.value
            world.server.resume(session)
            await asyncio.wait_for(waiting, 60)
            assert p.follower.limit == world.limit.value == period * PERIOD
        finish(p)


@pytest.mark.parametrize("lookahead", [3, 100])
async def test_with_lookahead_the_name_has_all_boundaries_or_the_members_read(world: World, lookahead: int) -> None:
    settings = {"lookahead": lookahead, "start": 100_000 * PERIOD}
    first = 100_000 * PERIOD
    async with contextlib.AsyncExitStack() as stack:
        hand = await stack.enter_async_context(world.store.session())
        a = await stack.enter_async_context(world.connect(member="a", **settings))
        led = await stack.enter_async_context(a.gate("orders", 0))
        await settle()
        b = await stack.enter_async_context(world.connect(member="b", **settings))
        followed = await stack.enter_async_context(b.gate("orders", 1))
        await settle()
        p = Pair(a, b, led, followed, hand)
        for period in range(1, 200):
            ts = first + period * PERIOD
            await asyncio.wait_for(asyncio.gather(led.wait_until(ts, period), followed.wait_until(ts, period)), 60)
            assert b.limit <= world.limit.value
        await asyncio.sleep(2)
        assert a.limit == b.limit == world.limit.value
        names = world.below("limits")
        assert names
        assert all((":" in name) == (lookahead == 3) for name in names)
        finish(p)
