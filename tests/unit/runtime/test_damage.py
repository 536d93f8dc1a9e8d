"""Nodes deleted or overwritten under a running group, and permissions: a clear error, or a stall that the status explains.

The limit never moves because of any of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

import aiokcc
from aiokcc.errors import CorruptNodeError, MissingNodeError, NoAuthError, SessionLostError
from aiokcc.stores import ANY_VERSION, Session
from aiokcc.stores.memory import Call
from tests.unit.world import PERIOD, World
from tests.virtual import settle

GARBAGE = [b"", b"\x00\xff\xfe", b"-5", b"9" * 30, b"{}", b"x" * 900_000]


@dataclass
class Pair:
    """Two members with one partition each: the leader's gate and the follower's, both inside the first period."""

    leader: aiokcc.Group
    follower: aiokcc.Group
    led: aiokcc.Gate
    followed: aiokcc.Gate
    hand: Session
    """The session of an operator, who edits nodes by hand."""


@contextlib.asynccontextmanager
async def pair(world: World) -> AsyncIterator[Pair]:
    async with (
        world.store.session() as hand,
        world.connect(member="a") as a,
        a.gate("orders", 0) as led,
    ):
        await settle()
        async with world.connect(member="b") as b, b.gate("orders", 1) as followed:
            await settle()
            assert a.epoch is not None
            yield Pair(a, b, led, followed, hand)


async def go_on(p: Pair, limit: int = 2 * PERIOD) -> None:
    """Everybody arrives, and the limit moves."""
    async with asyncio.timeout(60):
        await asyncio.gather(p.led.wait_until(limit - PERIOD), p.followed.wait_until(limit - PERIOD))
    assert p.leader.limit == p.follower.limit == limit


def finish(p: Pair) -> None:
    p.led.finish()
    p.followed.finish()


@pytest.mark.parametrize("path", ["coordinator", "generation"])
async def test_without_a_node_that_all_depend_on_every_member_gets_an_error(world: World, path: str) -> None:
    with pytest.raises(MissingNodeError, match=f"/group/{path} was deleted"):
        async with pair(world) as p:
            await p.hand.delete(path, ANY_VERSION)
            await go_on(p)
    assert not world.below("ids")


@pytest.mark.parametrize("path", ["coordinator", "generation"])
@pytest.mark.parametrize("data", GARBAGE)
async def test_an_unreadable_node_that_all_depend_on_is_an_error_that_shows_it(
    world: World, path: str, data: bytes
) -> None:
    if path == "generation" and data == b"9" * 30:
        data = b"9" * 30 + b" a b"
    with pytest.raises(CorruptNodeError, match=f"/group/{path} holds ") as raised:
        async with pair(world) as p:
            await p.hand.set(path, data, ANY_VERSION)
            await go_on(p)
    assert len(str(raised.value)) < 500
    assert world.data(path) == data  # nobody wrote over it


@pytest.mark.parametrize("data", [None, *GARBAGE])
async def test_a_request_that_cannot_be_read_stops_the_limit_until_it_can(world: World, data: bytes | None) -> None:
    async with pair(world) as p:
        if data is None:
            await p.hand.delete("period", ANY_VERSION)
        else:
            await p.hand.set("period", data, ANY_VERSION)
        waiting = asyncio.create_task(go_on(p))
        await asyncio.sleep(30)
        assert world.limit.value == PERIOD
        status = await p.follower.status()
        assert status.state == "unreadable"
        assert any("/group/period" in problem for problem in status.problems)
        await p.follower.set_period(PERIOD)  # the operator repairs it
        await waiting
        finish(p)


@pytest.mark.parametrize("data", [None, *GARBAGE])
async def test_a_damaged_report_of_a_follower_counts_as_none(world: World, data: bytes | None) -> None:
    async with pair(world) as p:
        waiting = asyncio.create_task(p.followed.wait_until(PERIOD))
        await settle()
        (name,) = [name for name in world.below("progress") if name.startswith("b-")]
        path = f"progress/{name}"
        await (p.hand.delete(path, ANY_VERSION) if data is None else p.hand.set(path, data, ANY_VERSION))
        other = asyncio.create_task(p.led.wait_until(PERIOD))
        await asyncio.sleep(30)
        assert world.limit.value == PERIOD
        status = await p.leader.status()
        assert [(b.partition, b.state) for b in status.blocking if b.member == name] == [("orders.1", "unreported")]
        assert bool(status.problems) == bool(data)
        await world.expire(p.follower)  # as good as a restart
        await asyncio.wait_for(asyncio.gather(waiting, other), 60)
        finish(p)


@pytest.mark.parametrize("role", ["leader", "follower"])
async def test_our_own_report_deleted_is_written_again(world: World, role: str) -> None:
    async with pair(world) as p:
        (name,) = [n for n in world.below("progress") if n.startswith("a-" if role == "leader" else "b-")]
        await p.hand.delete(f"progress/{name}", ANY_VERSION)
        await go_on(p)
        await go_on(p, 3 * PERIOD)
        await asyncio.sleep(1.1)  # the leader writes its report only if the limit stands
        assert name in world.below("progress")
        finish(p)


@pytest.mark.parametrize("role", ["leader", "follower"])
async def test_a_gate_closes_also_when_our_report_was_deleted(world: World, role: str) -> None:
    async with pair(world) as p:
        (name,) = [n for n in world.below("progress") if n.startswith("a-" if role == "leader" else "b-")]
        await p.hand.delete(f"progress/{name}", ANY_VERSION)
        gate, number = (p.led, 0) if role == "leader" else (p.followed, 1)
        await asyncio.wait_for(gate.__aexit__(None, None, None), 60)
        assert world.owner(number) is None


@pytest.mark.parametrize("place", ["leader", "follower"])
async def test_a_candidate_deleted_stands_again(world: World, place: str) -> None:
    async with pair(world) as p:
        mine = "a-" if place == "leader" else "b-"
        (path,) = [f"leader/{n}" for n in world.below("leader") if mine.encode() in world.data(f"leader/{n}")]
        await p.hand.delete(path, ANY_VERSION)
        await settle()
        assert len(world.below("leader")) == 2
        assert world.leader().startswith("b-" if place == "leader" else "a-")
        await go_on(p)
        finish(p)


async def test_our_lock_deleted_and_taken_by_another_stalls_and_the_status_tells(world: World) -> None:
    async with pair(world) as p:
        await p.hand.delete("owners/orders/1", ANY_VERSION)
        async with p.leader.gate("orders", 1) as second:
            moving = []
            for gate in (p.followed, p.led, second):
                moving.append(asyncio.create_task(gate.wait_until(PERIOD)))
                await settle()
            await asyncio.sleep(5)
            assert world.limit.value == PERIOD
            status = await p.leader.status()
            assert [(b.partition, b.state) for b in status.blocking] == [("orders.1", "disputed")]
            for task in moving:
                task.cancel()
            await asyncio.gather(*moving, return_exceptions=True)


async def test_a_slot_of_the_cuts_deleted_is_an_error(world: World) -> None:
    with pytest.raises(MissingNodeError, match=r"/group/cuts/1 was deleted"):
        async with pair(world) as p:
            await p.hand.delete("cuts/1", ANY_VERSION)
            await go_on(p)
    assert world.limit.value == PERIOD


async def test_the_status_survives_a_missing_or_damaged_cut(world: World) -> None:
    async with pair(world) as p:
        await go_on(p)
        await p.hand.set("cuts/1", b"?", ANY_VERSION)
        assert any("/group/cuts/1 holds" in problem for problem in (await p.leader.status()).problems)
        await p.hand.delete("cuts/1", ANY_VERSION)
        assert any("/group/cuts/1" in problem for problem in (await p.leader.status()).problems)
        await go_on(p, 3 * PERIOD)  # the next cut stands in the next slot
        finish(p)


async def test_a_damaged_cut_stops_a_member_that_would_go_on_from_it(world: World) -> None:
    async with pair(world) as p:
        await go_on(p)
        await p.hand.set("cuts/1", b"?", ANY_VERSION)
        await p.followed.__aexit__(None, None, None)
        with pytest.raises(CorruptNodeError, match="/group/cuts/1 holds"):
            async with world.connect(member="c") as c, c.gate("orders", 1):
                pass


@pytest.mark.parametrize("data", [None, b"", b"{}", b"\xff" * 1000])
async def test_a_damaged_run_is_an_error_when_it_is_needed(world: World, data: bytes | None) -> None:
    error = MissingNodeError if data is None else CorruptNodeError
    with pytest.raises(error, match="/group/run"):
        async with pair(world) as p:
            await (p.hand.delete("run", ANY_VERSION) if data is None else p.hand.set("run", data, ANY_VERSION))
            await go_on(p)  # nobody needs it to go on
            if data is not None:
                with pytest.raises(CorruptNodeError, match="/group/run"):
                    async with world.connect(member="c"):
                        pass
            finish(p)
            await asyncio.sleep(60)
    assert world.data("coordinator") == str(2 * PERIOD).encode()


@pytest.mark.parametrize("data", [None, b"", b"orders", b"orders:0,0;", b"\xff" * 1000])
async def test_a_damaged_set_is_an_error_for_a_member_that_joins_or_takes_over(
    world: World, data: bytes | None
) -> None:
    error = MissingNodeError if data is None else CorruptNodeError
    path = "topic-partitions"
    with pytest.raises(error, match=f"/group/{path}"):
        async with pair(world) as p:
            await (p.hand.delete(path, ANY_VERSION) if data is None else p.hand.set(path, data, ANY_VERSION))
            await go_on(p)
            with pytest.raises(error, match=f"/group/{path}"):
                async with world.connect(member="c"):
                    pass
            world.server.expire(world.session(p.leader))
            await asyncio.sleep(60)
    assert world.limit.value == 2 * PERIOD


@pytest.mark.parametrize("path", ["progress", "leader", "ids", "owners"])
async def test_a_missing_directory_is_an_error_and_not_a_hang(world: World, path: str) -> None:
    async with world.connect(topics={"orders": 1}) as c, c.gate("orders", 0) as gate:
        await gate.wait_until(PERIOD)
    async with world.store.session() as hand:
        await hand.delete("owners/orders", ANY_VERSION)
        await hand.delete(path, ANY_VERSION)
        with pytest.raises(MissingNodeError, match=f"/group/{path}"):
            async with world.connect(topics={"orders": 1}) as c, c.gate("orders", 0) as gate:
                await gate.wait_until(3 * PERIOD)
                if path == "owners":  # it is made again: nothing in it was worth anything
                    raise MissingNodeError("/group/owners")


async def test_a_damaged_generation_at_joining(world: World) -> None:
    async with world.connect():
        pass
    async with world.store.session() as hand:
        await hand.delete("generation", ANY_VERSION)
        with pytest.raises(MissingNodeError, match="/group/generation"):
            async with world.connect():
                pass


# Permissions


@pytest.mark.parametrize("number", range(0, 25, 2))
async def test_no_permission_surfaces(world: World, number: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    left = iter(range(number, -1, -1))

    def refuse(call: Call) -> None:
        if next(left, 0) == 0:
            raise NoAuthError(call.paths[0])

    world.server.intercept(before=refuse)
    with pytest.raises(NoAuthError, match="no permission; give the store the credentials"):
        async with world.connect() as c:
            async with c.gate("orders", 0) as a, c.gate("orders", 1) as b:
                for ts in range(0, 100 * PERIOD, PERIOD):
                    await asyncio.gather(a.wait_until(ts), b.wait_until(ts))


async def test_an_error_of_the_group_comes_out_bare_also_through_a_users_task_group(world: World) -> None:
    with pytest.raises(MissingNodeError):
        async with (
            world.store.session() as hand,
            world.connect(topics={"orders": 3}) as c,
            asyncio.TaskGroup() as tasks,
        ):
            for number in range(3):
                tasks.create_task(world.consume(c, number, [0, PERIOD * (number + 1)], finish=False))
            await settle()
            await hand.delete("generation", ANY_VERSION)
            await asyncio.sleep(60)


async def test_an_error_of_the_users_clock_comes_out_bare(world: World) -> None:
    ticks = iter([0] * 4)
    with pytest.raises(ZeroDivisionError):
        async with world.connect(clock=lambda: next(ticks, None) or 1 // next(ticks, 0)) as c:
            await asyncio.gather(*(world.consume(c, n, range(0, 50 * PERIOD, PERIOD)) for n in (0, 1)))


async def test_the_status_of_a_lost_session_is_a_plain_error(world: World) -> None:
    async with world.connect() as c:
        with world.server.hold_request(lambda call: call.verb == "find" and call.paths == ("run",)) as held:
            asking = asyncio.create_task(c.status())
            await held.reached()
            world.server.expire(world.session(c))
            with pytest.raises(SessionLostError):
                await asking
