"""Content that was damaged and can still be read: cut short, nested too deeply, or absurd.

It is refused or repaired, told at ERROR, and the group goes on when the content is right again.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from aiokcc.core.limit import Limit, Request
from aiokcc.core.periods import MAX_PERIOD
from aiokcc.errors import CorruptNodeError, UsageError
from aiokcc.stores import ANY_VERSION
from tests.unit.runtime.test_assignment_leader import LOGS, member, owners, until_ended
from tests.unit.runtime.test_damage import Pair, finish, go_on, pair
from tests.unit.world import PERIOD, World
from tests.virtual import settle

DEEP = b"[" * 100_000 + b"]" * 100_000


def errors(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR)


# The limit


async def go_far(p: Pair, ts: int) -> None:
    await asyncio.wait_for(asyncio.gather(p.led.wait_until(ts, 1), p.followed.wait_until(ts, 1)), 60)


@pytest.mark.parametrize("put_back", [False, True])
@pytest.mark.parametrize("lookahead", [0, 1, 2])
async def test_a_limit_cut_short_is_not_taken_for_a_lower_one(
    world: World, lookahead: int, put_back: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Every prefix of what the node holds, whether it can be read or not, as long as it is read as a limit."""
    settings = {"lookahead": lookahead, "start": 100_000 * PERIOD}
    start = 100_000 * PERIOD
    async with world.store.session() as hand, world.connect(member="a", **settings) as a, a.gate("orders", 0) as led:
        await settle()
        async with world.connect(member="b", **settings) as b, b.gate("orders", 1) as followed:
            p = Pair(a, b, led, followed, hand)
            await settle()
            stride = (lookahead + 1) * PERIOD  # so far that the limit has to move
            await go_far(p, start + stride)
            length = 0
            for step in range(2, 40):
                await asyncio.sleep(1)  # what may be reported has been
                right, before = world.data("coordinator"), a.limit
                length = 1 + length % (len(right) - 1)
                try:
                    Limit.decode("", right[:length])
                except CorruptNodeError:
                    continue  # that ends the group, with an error that shows it
                await hand.set("coordinator", right[:length], ANY_VERSION)
                await asyncio.sleep(1)
                assert a.limit == b.limit == before
                if put_back:
                    await hand.set("coordinator", right, ANY_VERSION)
                await go_far(p, start + step * stride)
                assert a.limit == b.limit > before
            assert put_back or "/group/coordinator" in errors(caplog)  # put back, nobody has seen it
            finish(p)


async def test_a_member_that_joins_while_the_limit_is_cut_short_waits_until_it_is_right(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.connect(member="a", lookahead=2), world.store.session() as hand:
        right = world.data("coordinator")
        await hand.set("coordinator", right.split()[0], ANY_VERSION)
        async with world.connect(member="b", lookahead=2) as b, b.gate("orders", 0) as gate:
            await asyncio.wait_for(gate.wait_until(0, 0), 60)  # the leader has written it again
            assert "/group/coordinator" in errors(caplog)
            assert world.data("coordinator") == right


async def test_a_member_does_not_lead_by_a_limit_behind_the_last_cut(world: World) -> None:
    async with world.connect(topics={"orders": 1}) as c, c.gate("orders", 0) as gate:
        await gate.wait_until(5 * PERIOD, 1)
    async with world.store.session() as hand:
        right = world.data("coordinator")
        await hand.set("coordinator", right[:1], ANY_VERSION)
        with pytest.raises(
            CorruptNodeError, match="/group/coordinator holds '6'; expected a limit behind the last cut"
        ):
            async with world.connect(topics={"orders": 1}):
                await asyncio.sleep(60)
        await hand.set("coordinator", right, ANY_VERSION)
        async with world.connect(topics={"orders": 1}) as c, c.gate("orders", 0) as gate:
            await asyncio.wait_for(gate.wait_until(8 * PERIOD, 1), 60)


# The agreed set


@pytest.mark.parametrize("data", [b"orders:0;", b"orders:1;", b"orders:0", b"other:0,1;"])
async def test_a_set_cut_short_changes_nothing_for_members_that_run(
    world: World, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(world) as p:
        right = world.data("topic-partitions")
        await p.hand.set("topic-partitions", data, ANY_VERSION)
        await go_on(p)
        assert "/group/topic-partitions holds" in errors(caplog)
        with pytest.raises(CorruptNodeError, match="/group/topic-partitions holds"):
            async with world.connect(member="c"):
                pass
        assert any("/group/topic-partitions" in problem for problem in (await p.leader.status()).problems)
        await p.hand.set("topic-partitions", right, ANY_VERSION)
        async with world.connect(member="c"):
            await go_on(p, 3 * PERIOD)
        finish(p)


async def test_a_leader_that_takes_over_does_not_go_by_a_set_cut_short(world: World) -> None:
    """It would wait for fewer partitions than there are, and close periods that others still work on."""
    with pytest.raises(CorruptNodeError, match="/group/topic-partitions holds"):
        async with pair(world) as p:
            await p.hand.set("topic-partitions", b"orders:1;", ANY_VERSION)
            world.server.expire(world.session(p.leader))
            await asyncio.sleep(60)
    assert world.limit.value == PERIOD


async def test_a_managed_group_goes_on_with_a_set_cut_short(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async with member(world, "a"), member(world, "b"), world.store.session() as hand:
        await asyncio.sleep(1.1)
        before = owners(world)
        await hand.set("topic-partitions", b"orders:0,1;", ANY_VERSION)
        await settle()
        assert owners(world) == before
        await until_ended(world)
    assert "/group/topic-partitions holds" in errors(caplog)
    world.history.check(LOGS)


# Assignments and registrations


@pytest.mark.parametrize("data", [b"", b"a:0;", b"a:0,2;", b"a:0,2,4;b:1;", b"rubbish"])
async def test_an_assignment_cut_short_is_written_again(
    world: World, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with member(world, "a"), member(world, "b"), world.store.session() as hand:
        await asyncio.sleep(1.1)
        right = world.data("assignments/orders")
        await hand.set("assignments/orders", data, ANY_VERSION)
        await until_ended(world)
        assert sorted(world.data("assignments/orders").split(b";")) == sorted(right.split(b";"))
    assert "/group/assignments/orders" in errors(caplog)
    world.history.check(LOGS)


@pytest.mark.parametrize("data", [DEEP, b"", b"{}", b"\xff"])
async def test_a_damaged_registration_is_written_again(
    world: World, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with member(world, "a"), member(world, "b"), world.store.session() as hand:
        await asyncio.sleep(1.1)
        for name in world.below("ids"):
            await hand.set(f"ids/{name}", data, ANY_VERSION)
        await settle()
        for name in world.below("ids"):
            assert b'"host"' in world.data(f"ids/{name}")
            assert f"/group/ids/{name}" in errors(caplog)
        async with member(world, "c"):
            await until_ended(world)
    world.history.check(LOGS)


async def test_a_member_waits_for_the_end_of_a_damaged_registration_of_its_id(world: World) -> None:
    async with world.store.session() as hand:
        async with member(world, "a"):
            await asyncio.sleep(1.1)
        await hand.create("ids/a-ffff", DEEP, ephemeral=True)

        async def join() -> None:
            async with member(world, "a"):
                await until_ended(world)

        joining = asyncio.create_task(join())
        await asyncio.sleep(5)
        await hand.delete("ids/a-ffff", ANY_VERSION)
        await asyncio.wait_for(joining, 3600)


@pytest.mark.parametrize("path", ["ids", "leader"])
async def test_the_status_survives_deeply_nested_content(world: World, path: str) -> None:
    async with pair(world) as p:
        for name in world.below(path):
            await p.hand.set(f"{path}/{name}", DEEP, ANY_VERSION)
        assert (await p.leader.status()).state == "running"
        await go_on(p)
        finish(p)


# The period


@pytest.mark.parametrize("period", ["100000d", MAX_PERIOD + 1])
async def test_an_absurd_period_is_refused(world: World, period: str | int) -> None:
    async with pair(world) as p:
        with pytest.raises(UsageError, match="366d"):
            await p.follower.set_period(period)
        with pytest.raises(UsageError, match="366d"):
            world.connect(period=period)
        await go_on(p)
        finish(p)


async def test_an_absurd_period_written_by_hand_stops_the_limit_until_it_is_right(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(world) as p:
        await p.hand.set("period", Request.every(100_000 * 86_400_000).encode(), ANY_VERSION)
        waiting = asyncio.create_task(go_on(p))
        await asyncio.sleep(5)
        assert world.limit.value == PERIOD
        assert "/group/period" in errors(caplog)
        await p.hand.set("period", str(PERIOD).encode(), ANY_VERSION)
        await waiting
        finish(p)


def test_the_command_line_refuses_an_absurd_period(capsys: pytest.CaptureFixture[str]) -> None:
    from aiokcc.cli.app import main

    assert main(["period", "100000d", "zk://127.0.0.1:1/x"]) == 2
    assert "366d" in capsys.readouterr().err
