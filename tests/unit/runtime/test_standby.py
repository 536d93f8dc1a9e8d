"""Hot standbys: several members want the same partitions; one runs them, the others wait and take over."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from contextlib import nullcontext

import pytest

import aiokcc
from tests.unit.world import PERIOD, World
from tests.virtual import settle

PERIODS = 100
LOG = list(range(0, PERIODS * PERIOD, PERIOD))


async def stand_by(world: World, group: aiokcc.Group, *numbers: int) -> None:
    """Run these partitions as soon as their locks are free."""
    await asyncio.gather(*(world.consume(group, number, LOG) for number in numbers))


@pytest.mark.parametrize("lookahead", [0, 4])
@pytest.mark.parametrize("leads", ["the owner", "the standby"])
async def test_a_standby_costs_nothing_while_it_waits(world: World, leads: str, lookahead: int) -> None:
    """The standby runs a partition of its own and waits for another: the group is as fast as without it."""
    settings = {"lookahead": lookahead, "claim_timeout": math.inf}
    first, second = ("owner", "standby") if leads == "the owner" else ("standby", "owner")
    async with world.connect(member=first, **settings) as one, world.connect(member=second, **settings) as two:
        await settle()
        assert one.epoch is not None
        owner, standby = (one, two) if first == "owner" else (two, one)
        begun = world.time()
        async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(world.consume(owner, 0, LOG))
            await settle()
            waiting = tasks.create_task(world.consume(standby, 0, LOG))
            tasks.create_task(world.consume(standby, 1, LOG))
            await running
            assert world.time() - begun < 0.5, "not one period a second"
            assert not waiting.done() or standby.ended
        assert owner.ended
    assert world.done("orders.0") == world.done("orders.1") == LOG


@pytest.mark.parametrize("lookahead", [0, 4])
@pytest.mark.parametrize("how", ["leaves", "dies"])
async def test_the_standby_takes_over_when_the_owner_is_gone(world: World, how: str, lookahead: int) -> None:
    settings = {"topics": {"orders": 2}, "lookahead": lookahead, "claim_timeout": math.inf}
    async with world.connect(member="standby", **settings) as standby, asyncio.timeout(600):
        running: list[asyncio.Task[aiokcc.Gate]] = []
        with pytest.raises(ExceptionGroup, match="unhandled") if how == "dies" else nullcontext():
            async with world.connect(member="owner", **settings) as owner, asyncio.TaskGroup() as tasks:
                running += [tasks.create_task(world.consume(owner, n, LOG, takes=0.01)) for n in (0, 1)]
                await settle()
                taking_over = asyncio.create_task(stand_by(world, standby, 0, 1))
                await asyncio.sleep(PERIODS * 0.005)
                assert 0 < len(world.done("orders.0")) < PERIODS
                if how == "dies":
                    world.server.expire(world.session(owner))
                    raise ZeroDivisionError
                for task in running:
                    task.cancel()
        await taking_over
    assert sorted(set(world.done("orders.0"))) == sorted(set(world.done("orders.1"))) == LOG
    assert len(world.handled) <= 2 * (PERIODS + 1 + lookahead), "no closed period comes again"


async def test_waiting_is_told_in_one_line(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiokcc.runtime")
    topics = {"orders": 30}
    async with (
        world.connect(member="owner", topics=topics) as owner,
        world.connect(member="standby", topics=topics, claim_timeout=math.inf) as standby,
    ):
        held = [asyncio.create_task(world.consume(owner, number, LOG)) for number in range(29)]
        await settle()
        caplog.clear()
        waiting = [asyncio.create_task(world.consume(standby, number, LOG)) for number in range(29)]
        await asyncio.sleep(60)
        for task in (*held, *waiting):
            task.cancel()
        await asyncio.wait([*held, *waiting])
        lines = [record.getMessage() for record in caplog.records if "held by" in record.getMessage()]
    assert len(lines) == 1
    assert re.fullmatch(
        r"standby-\w+ waits for orders\.0, orders\.1, .* and 9 more, held by owner-\w+; it runs them .*", lines[0]
    )


async def test_the_status_names_who_really_blocks(world: World) -> None:
    """The owner's partition is at work; the standby, which leads, waits for it and blocks nobody."""
    async with (
        world.connect(member="standby", claim_timeout=math.inf) as standby,
        world.connect(member="owner") as owner,
    ):
        async with owner.gate("orders", 0) as slow, owner.gate("orders", 1) as quick:
            opening = asyncio.create_task(world.consume(standby, 0, LOG))
            waiting = asyncio.create_task(quick.wait_until(PERIOD, 1))
            await slow.wait_until(0, 0)
            await asyncio.sleep(2)
            assert standby.epoch is not None
            status = await standby.status()
            assert [(b.partition, (b.member or "")[:6], b.state) for b in status.blocking] == [
                ("orders.0", "owner-", "running")
            ]
            for task in (opening, waiting):
                task.cancel()
            await asyncio.wait([opening, waiting])


async def test_a_standby_that_gives_up_after_a_while_says_who_holds_it(world: World) -> None:
    async with world.connect(member="owner") as owner, world.connect(member="standby", claim_timeout=7) as standby:
        async with owner.gate("orders", 0):
            with pytest.raises(aiokcc.PartitionOwnedError, match="was not released within 7 s"):
                async with standby.gate("orders", 0):
                    pass


@pytest.mark.parametrize("timeout", [0, -1, math.nan, True, "1"])
async def test_a_claim_timeout_is_seconds_or_infinity(world: World, timeout: object) -> None:
    with pytest.raises(aiokcc.UsageError, match=r"claim_timeout .* math\.inf"):
        world.connect(claim_timeout=timeout)
