"""A limit that stands still is told in the log: which partition, on which member, why; and that it moves again."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aiokcc.runtime.status_reader import read_status
from tests.unit.world import PERIOD, World
from tests.virtual import settle


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def about_the_limit(said: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(r.levelname, r.getMessage()) for r in said.records if ": the limit " in r.getMessage()]


async def test_two_gates_awaited_in_one_loop(world: World, said: pytest.LogCaptureFixture) -> None:
    async with world.connect(member="m") as c, c.gate("orders", 0) as a, c.gate("orders", 1) as b:
        waiting = asyncio.create_task(a.wait_until(5 * PERIOD))
        await asyncio.sleep(29)
        assert about_the_limit(said) == []
        await asyncio.sleep(2)
        ((level, text),) = about_the_limit(said)
        assert level == "WARNING"
        assert "the limit has stood for 30 s. It waits for orders.1 on m-" in text
        assert "give each gate a task of its own" in text
        await asyncio.sleep(30)  # once more after a minute, then after two, and so on
        assert "the limit has stood for 60 s" in about_the_limit(said)[1][1]
        await asyncio.sleep(500)
        assert len(about_the_limit(said)) == 5
        b.finish()
        await waiting
        level, text = about_the_limit(said)[-1]
        assert level == "INFO"
        assert "the limit moves again, after it stood for 561 s" in text
        a.finish()


async def test_a_partition_that_nobody_runs(world: World, said: pytest.LogCaptureFixture) -> None:
    async with world.connect(member="m") as c, c.gate("orders", 0) as gate:
        waiting = asyncio.create_task(gate.wait_until(5 * PERIOD))
        await asyncio.sleep(31)
        ((level, text),) = about_the_limit(said)
        assert level == "WARNING"
        assert text.endswith("It waits for orders.1: no member runs it; start the process that opens its gate")
        waiting.cancel()


async def test_it_is_logged_also_where_anyio_knows_the_loop_in_tasks_only(
    world: World, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is where the package sniffio is installed, which trio and other packages bring."""
    known = "anyio._core._eventloop.current_async_library"
    monkeypatch.setattr(known, lambda: "asyncio" if asyncio.current_task() else None)
    async with world.connect(member="m") as c, c.gate("orders", 0) as gate:
        waiting = asyncio.create_task(gate.wait_until(5 * PERIOD))
        await asyncio.sleep(31)
        assert len(about_the_limit(said)) == 1
        waiting.cancel()


async def test_each_member_tells_of_its_own(world: World, said: pytest.LogCaptureFixture) -> None:
    async with world.connect(member="a") as a, world.connect(member="b") as b:
        async with a.gate("orders", 0) as one, b.gate("orders", 1):
            waiting = asyncio.create_task(one.wait_until(5 * PERIOD))
            await asyncio.sleep(31)
            told = about_the_limit(said)
            assert [level for level, _ in told] in (["INFO", "WARNING"], ["WARNING", "INFO"])
            (leader,) = [text for level, text in told if level == "INFO"]
            (own,) = [text for level, text in told if level == "WARNING"]
            assert leader.startswith("a-")
            assert "orders.1: b-" in leader
            assert "is still at work on records before the limit" in leader
            assert own.startswith("b-")
            assert "orders.1 on b-" in own
            assert "give each gate" not in own  # nobody waits there
            waiting.cancel()


async def test_a_partition_whose_records_pass_does_not_stand_still(
    world: World, said: pytest.LogCaptureFixture
) -> None:
    async with world.connect(topics={"orders": 1}) as c, c.gate("orders", 0) as gate:
        for ts in range(100):
            await gate.wait_until(ts)
            await asyncio.sleep(1)  # the work
        gate.finish()
    assert about_the_limit(said) == []


async def test_a_hold_is_no_standstill(world: World, said: pytest.LogCaptureFixture) -> None:
    async with world.connect(member="m") as c, c.gate("orders", 0) as a, c.gate("orders", 1) as b:
        await c.hold()
        waiting = [asyncio.create_task(gate.wait_until(5 * PERIOD)) for gate in (a, b)]
        await asyncio.sleep(600)
        assert about_the_limit(said) == []
        for task in waiting:
            task.cancel()


async def test_a_partition_that_has_caught_up_does_not_stand_still(
    world: World, said: pytest.LogCaptureFixture
) -> None:
    async with world.connect(member="m") as c, c.gate("orders", 0) as a, c.gate("orders", 1) as b:
        idle = [asyncio.create_task(gate.idle()) for gate in (a, b)]
        await asyncio.sleep(600)
        assert about_the_limit(said) == []
        for task in idle:
            task.cancel()


async def test_waiting_for_the_clock_is_no_standstill(world: World, said: pytest.LogCaptureFixture) -> None:
    async with (
        world.connect(member="m", clock=lambda: 0, ahead=0) as c,
        c.gate("orders", 0) as a,
        c.gate("orders", 1) as b,
    ):
        waiting = [asyncio.create_task(gate.wait_until(5 * PERIOD)) for gate in (a, b)]
        await asyncio.sleep(600)
        assert about_the_limit(said) == []
        for task in waiting:
            task.cancel()


async def test_the_status_shows_the_standstill_too(world: World) -> None:
    async with world.connect(member="m") as c, c.gate("orders", 0) as gate, world.store.session() as session:
        waiting = asyncio.create_task(gate.wait_until(5 * PERIOD))
        await asyncio.sleep(29)
        assert (await read_status(world.store, session, now=world.server.wall_clock)).standstill is None
        await asyncio.sleep(2)
        status = await read_status(world.store, session, now=world.server.wall_clock)
        assert status.standstill == (
            "the limit has stood for 31 s: orders.1: no member runs it; start the process that opens its gate"
        )
        assert status.as_dict()["standstill"] == status.standstill
        await c.hold()
        status = await read_status(world.store, session, now=world.server.wall_clock)
        assert status.standstill is None
        waiting.cancel()
        await settle()


async def test_records_that_share_a_timestamp_are_no_standstill_of_their_task(
    world: World, said: pytest.LogCaptureFixture
) -> None:
    async with world.connect(member="m", topics={"orders": 1}) as c, c.gate("orders", 0) as gate:
        for offset in range(40):
            await gate.wait_until(500, offset)
            await asyncio.sleep(1)
        gate.finish()
    assert [text for level, text in about_the_limit(said) if level == "WARNING"] == []


async def test_a_task_that_asks_before_it_waits_is_no_standstill(world: World, said: pytest.LogCaptureFixture) -> None:
    async with world.connect(topics={"orders": 1}, member="m") as c, c.gate("orders", 0) as gate:
        for _ in range(100):  # a period that takes 500 seconds
            assert gate.is_open(5)
            await asyncio.sleep(5)
        gate.finish()
    assert about_the_limit(said) == []
