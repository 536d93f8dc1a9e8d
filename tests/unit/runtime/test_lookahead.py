"""Lookahead at run time: one round of reports closes several periods, and nobody is kept waiting for it."""

from __future__ import annotations

import asyncio
import itertools

import anyio
import pytest

import aiokcc
from aiokcc.core.report import Cut
from aiokcc.runtime.own_report import LINGER
from tests.unit.world import PERIOD, World

PERIODS = 64
LOGS = {f"orders.{n}": list(range(n * 100, PERIODS * PERIOD, 250)) for n in range(3)}


def advances(world: World) -> int:
    """Returns the number of transactions that have moved the limit."""
    return sum(any(path.endswith("coordinator") for path in call.paths) for call in world.writes())


async def run(world: World, lookahead: int, *, takes: float = 0.001) -> None:
    """Three members with a partition each read logs with records in each of 64 periods."""

    async def member(number: int) -> None:
        async with world.connect(topics={"orders": 3}, member=f"m{number}", lookahead=lookahead) as c:
            await world.process(c, number, LOGS, takes=lambda: takes)

    async with asyncio.timeout(3600):
        await asyncio.gather(*map(member, range(3)))
    world.history.check(LOGS)
    assert world.data("coordinator") == b"end"


@pytest.mark.parametrize(("lookahead", "at_once"), [(0, 1), (1, 1), (3, 2), (7, 4), (15, 8), (100, 8)])
async def test_several_periods_close_in_one_round(world: World, lookahead: int, at_once: int) -> None:
    world.record_calls()
    await run(world, lookahead)
    rounds = PERIODS // at_once
    assert rounds <= advances(world) <= rounds + 8, "some at the beginning and at the end are shorter"
    reports = [c for c in world.writes() if any("progress/m" in path for path in c.paths)]
    assert len(reports) <= 3 * (rounds + 8)
    numbers = [cut.number for cut in world.cuts()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "each limit is a version and numbers its cut"


async def test_every_period_has_its_cut_however_many_close_at_once(world: World) -> None:
    await run(world, 15)
    written = [Cut.decode("cut", event.data.encode()) for event in world.history.events if event.event == "cut"]
    cuts = [cut for cut in written if cut is not None and cut.limit < PERIODS * PERIOD]
    assert [cut.limit for cut in cuts] == list(range(PERIOD, PERIODS * PERIOD, PERIOD))
    for before, cut in itertools.pairwise(cuts):
        assert cut.previous == before.limit
        for name, log in LOGS.items():
            mark = cut.find(world.partition(int(name[-1])))
            assert mark is not None
            assert mark.offset == sum(ts < cut.limit for ts in log)


@pytest.mark.parametrize("takes", [0.2, 60])
async def test_the_report_does_not_wait_long_for_a_slow_handler(world: World, takes: float) -> None:
    """The next boundaries take long; the limit still moves soon after the first one was crossed."""
    seen: list[float] = []

    async def watch() -> None:
        before = world.limit
        while True:
            await asyncio.sleep(0.01)
            if world.limit != before:
                before = world.limit
                seen.append(world.time())

    async with world.connect(topics={"orders": 2}, lookahead=15) as c:
        watching = asyncio.create_task(watch())
        began = world.time()
        slow = asyncio.create_task(world.consume(c, 0, [0, PERIOD, 2 * PERIOD, 3 * PERIOD], takes=takes))
        await world.consume(c, 1, range(0, 4 * PERIOD, 100))
        await slow
        watching.cancel()
    assert len(seen) >= 3
    for number, moved in enumerate(seen[:3], 1):
        assert takes * number <= moved - began <= takes * number + 2 * LINGER + 0.02


async def test_the_leader_waits_for_its_own_milestone_and_not_for_long(world: World) -> None:
    async with world.connect(topics={"orders": 2}, member="leads", lookahead=7) as first:
        async with world.connect(topics={"orders": 2}, member="follows", lookahead=7) as second:
            assert world.leader().startswith("leads")
            world.record_calls()
            slow = asyncio.create_task(world.consume(first, 0, range(0, 8 * PERIOD, PERIOD), takes=LINGER / 100))
            await world.consume(second, 1, range(0, 8 * PERIOD, PERIOD))
            await slow
    assert advances(world) <= 6


@pytest.mark.parametrize("lookahead", [0, 1, 7])
async def test_a_record_of_a_period_that_has_closed_is_late(world: World, lookahead: int) -> None:
    async with world.connect(lookahead=lookahead) as c:
        other = asyncio.create_task(world.consume(c, 1, range(0, 60 * PERIOD, PERIOD), finish=False))
        async with c.gate("orders", 0) as gate:
            for offset in range(5):
                await gate.wait_until(offset * PERIOD, offset)
            await asyncio.sleep(1)
            assert world.cuts()[-1].limit == 4 * PERIOD
            await gate.wait_until(4 * PERIOD - 1, 5)
            assert gate.late == 1
            other.cancel()
            await asyncio.wait([other])


async def test_a_partition_that_wakes_up_after_the_report_was_due_does_not_hold_the_leader_back(world: World) -> None:
    """Idle, so not waited for; then busy for a minute, past the floor and before the milestone."""
    moved: list[float] = []
    async with world.connect(topics={"orders": 3}, member="leads", lookahead=7) as first:
        async with world.connect(topics={"orders": 3}, member="follows", lookahead=7) as second:
            assert world.leader().startswith("leads")
            began, before = world.time(), world.limit

            async def watch() -> None:
                while world.limit == before:  # noqa: ASYNC110 - time is virtual
                    await asyncio.sleep(0.01)
                moved.append(world.time() - began)

            async def wakes() -> None:
                async with first.gate("orders", 0) as gate:
                    await gate.wait_until(PERIOD + 1, 0)
                    with anyio.move_on_after(0.5):
                        await gate.idle(offset=1)
                    await gate.wait_until(PERIOD + 2, 1)
                    await asyncio.sleep(60)

            async def other(group: aiokcc.Group, number: int, takes: float) -> None:
                async with group.gate("orders", number) as gate:
                    await gate.wait_until(1, 0)
                    await asyncio.sleep(takes)
                    await gate.wait_until(50 * PERIOD, 1)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                tasks.start_soon(wakes)
                tasks.start_soon(other, first, 1, 0.2)
                tasks.start_soon(other, second, 2, 1)
                await asyncio.sleep(30)
                tasks.cancel_scope.cancel()
    assert moved
    assert moved[0] < 1 + 2 * LINGER + 0.1


async def test_a_lock_that_another_has_taken_does_not_spoil_the_report(world: World) -> None:
    """X loses its session, y takes one of its partitions; what x has crossed there before is not x's to tell."""
    settings = {"topics": {"orders": 3}, "lookahead": 7, "claim_timeout": 1000}
    async with (
        world.connect(member="z", **settings) as z,
        world.connect(member="x", **settings) as x,
        world.connect(member="y", **settings) as y,
        anyio.create_task_group() as tasks,
    ):

        async def run(group: aiokcc.Group, number: int, takes: float) -> None:
            async with group.gate("orders", number) as gate:
                for offset, ts in enumerate((1, 50 * PERIOD)):
                    if offset >= (gate.resume_offset or 0):
                        await gate.wait_until(ts, offset)
                        await asyncio.sleep(takes)

        for group, number, takes in ((x, 0, 0), (x, 1, 0), (z, 2, 30)):
            tasks.start_soon(run, group, number, takes)
        await asyncio.sleep(3)
        tasks.start_soon(run, y, 1, 0)
        await asyncio.sleep(3)
        await world.expire(x)
        await asyncio.sleep(60)
        assert world.limit.floor == 51 * PERIOD
        tasks.cancel_scope.cancel()


async def test_a_loop_that_asks_first_crosses_each_boundary_where_it_stands(world: World) -> None:
    """``is_open`` first and ``wait_until`` where it says no: the same cuts as with ``wait_until`` for each record."""

    async def member(number: int) -> None:
        log = LOGS[f"orders.{number}"]
        async with (
            world.connect(topics={"orders": 3}, member=f"m{number}", lookahead=5) as c,
            c.gate("orders", number) as gate,
        ):
            for offset, ts in enumerate(log):
                if not gate.is_open(ts, offset):
                    await gate.wait_until(ts, offset)
            gate.finish()

    seen: list[Cut] = []
    async with asyncio.timeout(3600):
        tasks = asyncio.gather(*map(member, range(3)))
        while not tasks.done():
            await asyncio.sleep(0.001)
            seen += world.cuts()
        await tasks
    crossed = {cut.limit: cut for cut in seen}
    assert len(crossed) > 10
    for limit, cut in crossed.items():
        for name, log in LOGS.items():
            mark = cut.find(world.partition(int(name[-1])))
            assert mark is not None
            assert mark.offset == sum(ts < limit for ts in log), f"{name} in the cut of {limit}"
