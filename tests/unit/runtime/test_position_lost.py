"""A gate that lost its lock and has it back after another member has closed periods: its task is told, once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import aiokcc
from aiokcc import PositionLostError
from aiokcc.core.partitions import Partition
from aiokcc.stores.memory import Call
from tests.unit.world import World
from tests.virtual import settle

LOG = [0, 100, 200, *range(1000, 8000, 500)]


@asynccontextmanager
async def frozen(world: World, *, lookahead: int = 0, offsets: bool = True) -> AsyncIterator[aiokcc.Gate]:
    """The gate of a member that is frozen past its session while another runs its partition over several periods."""
    settings = {"topics": {"orders": 1}, "lookahead": lookahead, "claim_timeout": math.inf}
    async with world.connect(member="first", **settings) as first, first.gate("orders", 0) as gate:
        await gate.wait_until(LOG[0], 0 if offsets else None)
        session = world.session(first)
        world.server.freeze(session, stop_at=world.time())
        world.server.expire(session)
        yield gate


async def overtake(world: World, upto: int = 4000, *, lookahead: int = 0, offsets: bool = True) -> int:
    """Another member runs the partition up to this time, and leaves; where the last cut lies then."""
    settings = {"topics": {"orders": 1}, "lookahead": lookahead}
    async with world.connect(member="second", **settings) as second, second.gate("orders", 0) as gate:
        for offset, ts in enumerate(LOG):
            if ts > upto:
                break
            await gate.wait_until(ts, offset if offsets else None)
    last = world.cuts()[-1].find(Partition("orders", 0))
    assert last is not None
    return last.offset or 0


async def thaw(world: World, gate: aiokcc.Gate) -> None:
    world.server.thaw(gate.session)  # type: ignore[arg-type]
    await settle()


@pytest.mark.parametrize("lookahead", [0, 3])
async def test_a_task_that_comes_to_the_gate_is_told_once_and_goes_on_there(world: World, lookahead: int) -> None:
    async with frozen(world, lookahead=lookahead) as gate:
        cut = await overtake(world, lookahead=lookahead)
        await thaw(world, gate)
        assert gate.progress.owned
        assert not gate.is_open(LOG[1])
        assert not gate.is_open(gate.limit - 1), "neither what is late nor what is open"
        with pytest.raises(PositionLostError, match=f"orders.0 was run by another member.*offset {cut}") as told:
            await gate.wait_until(LOG[1], 1)
        assert (told.value.partition, told.value.offset, gate.resume_offset) == ("orders.0", cut, cut)
        for offset in range(cut, len(LOG)):
            await gate.wait_until(LOG[offset], offset)
        assert gate.late == 0
        gate.finish(len(LOG))


async def test_a_task_that_waits_in_the_gate_is_told(world: World) -> None:
    async with frozen(world) as gate:
        waiting = asyncio.create_task(gate.wait_until(LOG[1], 1))
        cut = await overtake(world)
        await thaw(world, gate)
        await asyncio.wait([waiting])
        error = waiting.exception()
        assert isinstance(error, PositionLostError)
        assert error.offset == cut
        await gate.wait_until(LOG[cut], cut)


@pytest.mark.parametrize("call", ["idle", "finish"])
async def test_neither_idle_nor_finished_is_said_of_a_place_behind_the_cut(world: World, call: str) -> None:
    async with frozen(world) as gate:
        cut = await overtake(world)
        await thaw(world, gate)
        with pytest.raises(PositionLostError):
            if call == "idle":
                await gate.idle(offset=1)
            else:
                gate.finish(1)
        await gate.wait_until(LOG[cut], cut)
        gate.finish(len(LOG))


async def test_a_task_that_stands_at_the_cut_is_not_disturbed(world: World) -> None:
    async with frozen(world) as gate:
        cut = await overtake(world)
        await thaw(world, gate)
        await gate.wait_until(LOG[cut], cut)
        gate.finish(len(LOG))


@pytest.mark.parametrize("theirs", [True, False])
async def test_without_offsets_the_position_is_not_known_and_it_is_told(world: World, theirs: bool) -> None:
    async with frozen(world, offsets=False) as gate:
        cut = await overtake(world, offsets=theirs)
        await thaw(world, gate)
        with pytest.raises(PositionLostError) as told:
            await gate.wait_until(4000)
        assert told.value.offset == (cut if theirs else None)
        await gate.wait_until(4000)


async def test_a_task_that_was_overtaken_within_the_open_period_goes_on(world: World) -> None:
    """Another member had the partition and closed nothing: nothing of it is closed, and what it did comes again."""
    async with frozen(world) as gate:
        settings = {"topics": {"orders": 1}}
        async with world.connect(member="second", **settings) as second, second.gate("orders", 0) as other:
            await other.wait_until(LOG[2], 2)
        await thaw(world, gate)
        await gate.wait_until(LOG[1], 1)


async def test_a_session_lost_and_nobody_else_there_tells_nothing(world: World) -> None:
    async with world.connect(topics={"orders": 1}) as c, c.gate("orders", 0) as gate:
        for offset, ts in enumerate(LOG):
            if offset % 3 == 2:
                await world.expire(c)
            await gate.wait_until(ts)
        gate.finish()
    assert c.ended


async def test_share_begins_the_task_again_at_the_cut(world: World) -> None:
    """The assignment looks the same before and after; the task starts again, and no record of a closed period comes again."""
    started: list[tuple[str, int]] = []
    reached = {place: asyncio.Event() for place in (("first", 0), ("second", LOG.index(4000)), ("first", len(LOG) - 1))}
    settings = {"topics": {"orders": 1, "other": 1}, "assignment": "managed", "join_window": 0.1}
    thawed = False

    async def registered(call: Call) -> None:
        if thawed and call.verb == "commit" and any(path.startswith("ids/first") for path in call.paths):
            await asyncio.sleep(5)  # when it reads the assignment, the partition has been assigned to it again

    async def run(c: aiokcc.Group, name: str, upto: int = 10**9) -> None:
        async def consume(partition: Partition) -> None:
            async with c.gate(*partition) as gate:
                if partition.topic == "other":
                    await gate.wait_until(10**9)
                for offset in range(gate.resume_offset or 0, len(LOG)):
                    if LOG[offset] > upto:
                        await asyncio.get_running_loop().create_future()
                    await gate.wait_until(LOG[offset], offset)
                    started.append((name, offset))
                    if (name, offset) in reached:
                        reached[name, offset].set()
                    await asyncio.sleep(0.01 if name == "second" else 1)
                gate.finish(len(LOG))

        await c.share(consume)

    async with asyncio.timeout(600), world.connect(member="leads", subscription=["other"], **settings) as leads:
        leading = asyncio.create_task(run(leads, "leads"))
        async with world.connect(member="first", subscription=["orders"], **settings) as first:
            sharing = asyncio.create_task(run(first, "first"))
            await reached["first", 0].wait()
            session = world.session(first)
            world.server.freeze(session, stop_at=world.time())
            world.server.expire(session)
            async with world.connect(member="second", subscription=["orders"], **settings) as second:
                other = asyncio.create_task(run(second, "second", 4000))
                await reached["second", LOG.index(4000)].wait()
                await settle()
                other.cancel()
                await asyncio.wait([other])
            mark = world.cuts()[-1].find(Partition("orders", 0))
            assert mark is not None
            assert mark.offset is not None
            before, thawed = len(started), True
            world.server.intercept(after=registered)
            world.server.thaw(session)
            await reached["first", len(LOG) - 1].wait()
            assert started[before:] == [("first", offset) for offset in range(mark.offset, len(LOG))]
            for task in (sharing, leading):
                task.cancel()
            await asyncio.wait([sharing, leading])


@pytest.mark.parametrize("how", ["finish", "idle"])
async def test_the_position_follows_the_record_that_passed_last(world: World, how: str) -> None:
    """Neither an end nor idleness without an offset makes the cut forget where the partition stands."""
    settings = {"topics": {"orders": 1, "payments": 1}}
    async with (
        world.connect(member="other", **settings) as other,
        other.gate("payments", 0) as payments,
        world.connect(member="first", **settings) as first,
    ):
        async with first.gate("orders", 0) as gate:
            for offset, ts in enumerate((0, 10, 20)):
                await gate.wait_until(ts, offset)
            other_waits = asyncio.create_task(payments.wait_until(1500, 0))
            if how == "finish":
                gate.finish()
            else:
                await gate.idle()
            await other_waits
        mark = world.cuts()[-1].find(Partition("orders", 0))
        assert mark is not None
        assert mark.offset == 3
        if how == "idle":
            async with first.gate("orders", 0) as again:
                assert again.resume_offset == 3
                again.finish()
        payments.finish()
    assert world.data("coordinator") == b"end"


async def test_a_finish_without_an_offset_after_being_told_keeps_the_cut(world: World) -> None:
    async with frozen(world) as gate:
        cut = await overtake(world)
        await thaw(world, gate)
        with pytest.raises(PositionLostError):
            gate.finish()
        gate.finish()
    last = world.cuts()[-1].find(Partition("orders", 0))
    assert last is not None
    assert (last.offset, last.finished) == (cut, True)
