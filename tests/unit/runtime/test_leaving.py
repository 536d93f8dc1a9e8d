"""A member that leaves: before the end, out of a managed group, and where it loses its session on the way."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

import aiokcc
from aiokcc.core.partitions import Partition
from aiokcc.runtime.leaving import TAKE_OVER_SECONDS
from tests.unit.world import World
from tests.virtual import settle


async def test_a_member_that_leaves_with_a_finished_partition_and_loses_its_session_does_not_wait(world: World) -> None:
    """Its report has gone with the session, and the next owner of the partition reports the end again."""
    said = asyncio.Event()
    async with world.connect(member="stays", assignment="managed") as stays:
        holding = asyncio.ensure_future(_hold(stays))
        async with asyncio.timeout(100):
            async with world.connect(member="leaves", assignment="managed") as leaves:

                async def finish(partition: Partition) -> None:
                    async with leaves.gate(*partition) as gate:
                        gate.finish(1)
                    said.set()

                sharing = asyncio.ensure_future(leaves.share(finish))
                await said.wait()
                sharing.cancel()
                await asyncio.wait([sharing])
                world.server.expire(world.session(leaves))
            assert leaves.membership.session.stop_at < 0  # it did not join again either
        holding.cancel()
        await asyncio.wait([holding])


async def _hold(group: aiokcc.Group) -> None:
    async def hold(partition: Partition) -> None:
        async with group.gate(*partition) as gate:
            await gate.wait_until(10**12)

    await group.share(hold)


# Leaving before the end


async def leave_early(group: aiokcc.Group, *, topic: str = "orders") -> None:
    """Partition 0 has finished in the open period; partition 1 is released in the middle of it."""
    async with group.gate(topic, 0) as empty:
        empty.finish(0)
    async with group.gate(topic, 1) as gate:
        await gate.wait_until(0, 0)


@pytest.mark.parametrize("lookahead", [0, 3])
async def test_a_member_that_leaves_early_does_not_wait_for_a_cut_that_cannot_come(
    world: World, lookahead: int
) -> None:
    begun = world.time()
    async with asyncio.timeout(100), world.connect(lookahead=lookahead) as c:
        await leave_early(c)
    assert world.time() - begun < 0.1
    async with asyncio.timeout(100), world.connect(lookahead=lookahead) as c:  # the next start says it again
        await asyncio.gather(world.consume(c, 0, []), world.consume(c, 1, [0, 5000, 9000]))
    assert world.done("orders.1") == [0, 5000, 9000]
    assert c.ended


@pytest.mark.parametrize(
    ("finished", "said"), [([0], "that orders.0 has finished;"), ([0, 2], "that orders.0, orders.2 have finished;")]
)
async def test_a_member_that_leaves_names_the_partitions_whose_end_is_not_recorded(
    world: World, caplog: pytest.LogCaptureFixture, finished: list[int], said: str
) -> None:
    caplog.set_level("INFO", "aiokcc.runtime")
    async with asyncio.timeout(100), world.connect(topics={"orders": 3}) as group:
        for number in finished:
            async with group.gate("orders", number) as gate:
                gate.finish(0)
        async with group.gate("orders", 1) as gate:
            await gate.wait_until(0, 0)
    assert said in caplog.text


@pytest.mark.parametrize("leads", ["who leaves", "who stays"])
async def test_a_member_that_leaves_early_does_not_wait_for_others_that_cannot_go_on(world: World, leads: str) -> None:
    """Another member runs a partition; nobody takes the one that was released, so no cut can come."""
    async with asyncio.timeout(100):
        first, second = world.connect(member="a", topics={"orders": 3}), world.connect(member="b", topics={"orders": 3})
        stays, leaves = (second, first) if leads == "who leaves" else (first, second)
        async with stays if leads == "who stays" else leaves as one:
            async with leaves if leads == "who stays" else stays as two:
                staying, leaving = (one, two) if leads == "who stays" else (two, one)
                running = asyncio.create_task(world.consume(staying, 2, [0, 2000]))
                await settle()
                assert one.epoch is not None
                await leave_early(leaving)
                if leads == "who leaves":
                    await asyncio.wait_for(leaving.membership.settled(), 10)
                    await asyncio.gather(world.consume(staying, 1, [0]), running, _finish_again(leaving))
                    return
            await asyncio.gather(world.consume(staying, 0, []), world.consume(staying, 1, [0]), running)
            assert staying.ended


async def _finish_again(group: aiokcc.Group) -> None:
    """Checks that a partition that was declared finished stays so while the member is there."""
    while not group.ended:
        await group.membership.moved.wait()


async def test_a_member_that_hands_over_waits_until_the_next_owner_has_closed_the_period(world: World) -> None:
    """A standby claims what is released, so a cut can come, and what has finished stays finished."""
    async with world.connect(member="heir", claim_timeout=math.inf) as heir, asyncio.timeout(600):
        async with world.connect(member="leaves") as leaves:
            async with leaves.gate("orders", 0) as done:
                done.finish(7)
            async with leaves.gate("orders", 1) as gate:
                await gate.wait_until(0, 0)
                taking_over = asyncio.create_task(world.consume(heir, 1, [0, 500, 2000], takes=30))
                await settle()
            begun = world.time()
        assert world.time() - begun > 2 * TAKE_OVER_SECONDS
        await taking_over
        await settle()
        assert heir.ended
        assert world.cuts()[-1].finished()[Partition("orders", 0)][0].startswith("leaves-")


async def test_a_member_that_hands_over_to_one_that_dies_leaves(world: World) -> None:
    async with world.connect(member="heir", claim_timeout=math.inf) as heir, asyncio.timeout(600):
        async with world.connect(member="leaves") as leaves:
            async with leaves.gate("orders", 0) as done:
                done.finish(7)
            async with leaves.gate("orders", 1) as gate:
                await gate.wait_until(0, 0)
                taking_over = asyncio.create_task(world.consume(heir, 1, [0, 500, 2000], takes=1000))
                await settle()
            asyncio.get_running_loop().call_later(50, taking_over.cancel)
            begun = world.time()
        assert 50 <= world.time() - begun < 60
        assert world.owner(0) is None


async def test_a_member_that_leaves_early_does_not_wait_for_a_store_that_is_away(world: World) -> None:
    async with world.connect(member="other"):
        async with asyncio.timeout(100), world.connect() as c:
            async with c.gate("orders", 0) as empty:
                empty.finish(0)
            gate = await c.gate("orders", 1).__aenter__()
            await settle()
            world.server.suspend(world.session(c))
            closing = asyncio.create_task(gate.__aexit__(None, None, None))
            await settle()
            begun = world.time()
        closing.cancel()
        await asyncio.wait([closing])
        assert world.time() - begun <= 2 * TAKE_OVER_SECONDS


async def test_a_member_that_has_finished_waits_for_members_that_have_not_joined_yet(world: World) -> None:
    """Nothing was released: a member that is started later brings the cut."""
    async with asyncio.timeout(600):

        async def first() -> None:
            async with world.connect(member="first") as c:
                await world.consume(c, 0, [])

        early = asyncio.create_task(first())
        await asyncio.sleep(100)
        assert not early.done()
        async with world.connect(member="second") as c:
            await world.consume(c, 1, [0, 2000])
        await early
        assert c.ended


@pytest.mark.parametrize("alone", [True, False])
async def test_a_member_that_leaves_a_managed_group_early_leaves_finished_partitions_to_others(
    world: World, alone: bool
) -> None:
    """Partition 0 has finished, and the task of partition 1 is cancelled: both go to whoever stays."""
    finished = asyncio.Event()
    settings = {"assignment": "managed", "join_window": 0.1}
    async with asyncio.timeout(600):
        async with world.connect(member="leaves", **settings) as leaves:

            async def consume(partition: Partition) -> None:
                async with leaves.gate(*partition) as gate:
                    if partition.number == 0:
                        gate.finish(0)
                        finished.set()
                        return
                    await gate.wait_until(0, 0)
                    await asyncio.get_running_loop().create_future()

            sharing = asyncio.create_task(leaves.share(consume))
            await finished.wait()
            await settle()
            sharing.cancel()
            await asyncio.wait([sharing])
            if not alone:
                joining = asyncio.create_task(_stay(world, settings))
                await settle()
        if alone:
            joining = asyncio.create_task(_stay(world, settings))
        await joining
    assert world.done("orders.1") == [0, 5000]
    assert world.data("coordinator") == b"end"


async def _stay(world: World, settings: dict[str, Any]) -> None:
    async with world.connect(member="stays", **settings) as stays:

        async def run(partition: Partition) -> None:
            await world.consume(stays, partition.number, [] if partition.number == 0 else [0, 5000])

        await stays.share(run)
