"""The status: which partition blocks, on which member, and who is slow."""

from __future__ import annotations

import asyncio
import json

import pytest

from aiokcc.core.leader import BlockerState
from aiokcc.core.report import Report
from aiokcc.errors import UsageError
from aiokcc.runtime.own_report import LATE
from aiokcc.runtime.status import GroupState, PartitionCondition
from aiokcc.runtime.status_reader import read_status
from aiokcc.stores import ANY_VERSION
from tests.unit.world import PERIOD, World
from tests.virtual import settle


async def test_the_status_of_a_running_group(world: World) -> None:
    async with world.connect(member="a", end=60 * PERIOD) as a, a.gate("orders", 0) as one:
        await settle()
        async with world.connect(member="b", end=60 * PERIOD) as b, b.gate("orders", 1) as two:
            await asyncio.gather(one.wait_until(PERIOD, 11), two.wait_until(PERIOD + 1, 22))
            waiting = asyncio.create_task(one.wait_until(2 * PERIOD, 12))
            await asyncio.sleep(30)
            status = await read_status(world.store, world.session(b), now=world.server.wall_clock)
            assert (status.state, status.limit, status.floor, status.closed) == (
                "running",
                2 * PERIOD,
                2 * PERIOD,
                PERIOD,
            )
            assert (status.period, status.start, status.end, status.lookahead) == (PERIOD, 0, 60 * PERIOD, 0)
            assert status.waiting_seconds == pytest.approx(30, abs=0.1)
            assert status.periods_closed == 1
            assert (status.generation, status.epoch) == (1, 1)
            assert status.leader is not None
            assert status.leader.startswith("a-")
            assert [(m.name[:2], m.partitions, m.leads) for m in status.members] == [("a-", 1, True), ("b-", 1, False)]
            (blocking,) = status.blocking
            assert (blocking.partition, blocking.state, (blocking.member or "")[:2]) == ("orders.1", "running", "b-")
            assert status.problems == ()
            plain = json.loads(json.dumps(status.as_dict()))
            assert plain["limit"] == 2 * PERIOD
            assert status.state is GroupState.RUNNING
            assert [p.state for p in status.partitions] == [PartitionCondition.WAITING, PartitionCondition.RUNNING]
            assert blocking.state is BlockerState.RUNNING
            assert (plain["state"], plain["partitions"][0]["state"]) == ("running", "waiting")
            two.finish()
            await waiting
            one.finish()


async def test_the_leaders_own_partitions_while_its_report_is_not_written(world: World) -> None:
    """In a plain period the advance does not have the leader's report. The cut says as much."""
    async with world.connect(member="a") as a, a.gate("orders", 0) as one, a.gate("orders", 1) as two:
        await settle()
        for period in range(1, 5):
            await asyncio.gather(
                one.wait_until(period * PERIOD, 10 + period), two.wait_until(period * PERIOD + 5, period)
            )
        (name,) = [name for name in world.below("progress") if name.startswith("a-")]
        assert world.data(f"progress/{name}") == b"", "it was never written"
        status = await a.status()
        assert [(p.partition, p.state, p.offset) for p in status.partitions] == [
            ("orders.0", "running", 14),
            ("orders.1", "running", 4),
        ]
        assert [(b.partition, b.state) for b in status.blocking] == [("orders.0", "running"), ("orders.1", "running")]
        one.finish(20)
        two.finish(20)


async def test_a_partition_of_the_leader_that_is_far_ahead_does_not_block(world: World) -> None:
    async with world.connect(member="a") as a, a.gate("orders", 0) as far, a.gate("orders", 1) as near:
        ahead = asyncio.create_task(far.wait_until(100 * PERIOD, 7))
        for period in range(1, 5):
            await near.wait_until(period * PERIOD, period)
            status = await a.status()
            assert [(p.partition, p.state, p.offset) for p in status.partitions] == [
                ("orders.0", "waiting", 7),
                ("orders.1", "running", period),
            ]
            assert [b.partition for b in status.blocking] == ["orders.1"]
        near.finish(5)
        await ahead
        await asyncio.sleep(0)
        status = await a.status()
        assert [(p.partition, p.state, p.offset) for p in status.partitions] == [
            ("orders.0", "running", 7),
            ("orders.1", "finished", 5),
        ]
        far.finish(8)


async def test_a_partition_that_has_crossed_the_floor_in_an_earlier_report_does_not_block(world: World) -> None:
    async with world.connect(member="a", lookahead=7) as a, a.gate("orders", 0) as slow:
        await settle()
        async with world.connect(member="b", lookahead=7) as b, b.gate("orders", 1) as fast:
            for n in range(8):
                await fast.wait_until(n * PERIOD, n)
            blocked = asyncio.create_task(fast.wait_until(8 * PERIOD, 8))
            await slow.wait_until(0, 0)
            await slow.wait_until(PERIOD, 1)
            await slow.wait_until(2 * PERIOD, 2)
            await asyncio.sleep(5)
            status = await a.status()
            assert (status.floor, status.periods_closed) == (3 * PERIOD, 2)
            report = Report.decode("b", world.data(f"progress/{next(m.name for m in status.members if not m.leads)}"))
            assert report is not None
            assert report.limit < 3 * PERIOD, "it was not written again"
            assert [(x.partition, x.state) for x in status.blocking] == [("orders.0", "running")]
            assert [(p.partition, p.state, p.offset) for p in status.partitions][1] == ("orders.1", "waiting", 3)
            slow.finish(3)
            await blocked
            fast.finish(9)


async def test_slow_partitions_are_shown_after_a_while_also_in_the_first_period(world: World) -> None:
    async with world.connect(topics={"orders": 3}, member="a") as a, a.gate("orders", 0) as led:
        await settle()
        async with world.connect(topics={"orders": 3}, member="b") as b:
            async with b.gate("orders", 1) as quick, b.gate("orders", 2) as slow:
                waiting = [asyncio.create_task(gate.wait_until(PERIOD)) for gate in (led, quick)]
                await asyncio.sleep(LATE / 2)
                states = {p.partition: p.state for p in (await a.status()).partitions}
                assert states["orders.1"] == states["orders.2"] == "unreported"
                await asyncio.sleep(LATE)
                status = await a.status()
                assert [(x.partition, x.state) for x in status.blocking] == [("orders.2", "running")]
                assert {p.partition: p.state for p in status.partitions} == {
                    "orders.0": "waiting",
                    "orders.1": "waiting",
                    "orders.2": "running",
                }
                slow.finish()
                await asyncio.gather(*waiting)
                quick.finish()
                led.finish()


async def test_a_leader_that_is_late_keeps_its_own_status_up_to_date(world: World) -> None:
    async with world.connect(topics={"orders": 3}) as c, c.gate("orders", 0) as one, c.gate("orders", 1) as two:
        async with c.gate("orders", 2) as three:
            await asyncio.sleep(2 * LATE)
            assert {p.state for p in (await c.status()).partitions} == {"running"}
            waiting = [asyncio.create_task(one.wait_until(PERIOD))]
            await settle()
            assert [b.partition for b in (await c.status()).blocking] == ["orders.1", "orders.2"]
            waiting.append(asyncio.create_task(two.wait_until(PERIOD)))
            await settle()
            assert [b.partition for b in (await c.status()).blocking] == ["orders.2"]
            three.finish()
            await asyncio.gather(*waiting)
            one.finish()
            two.finish()


async def test_an_unowned_partition_names_who_ran_it_last(world: World) -> None:
    async with world.connect(member="a") as a, a.gate("orders", 0) as gate:
        async with world.connect(member="b") as b:
            async with b.gate("orders", 1) as lost:
                await asyncio.gather(gate.wait_until(PERIOD), lost.wait_until(PERIOD))
                name = world.owner(1)
        status = await a.status()
        (blocking,) = [b for b in status.blocking if b.partition == "orders.1"]
        assert (blocking.member, blocking.state, blocking.last_member) == (None, "unowned", name)
        assert {p.partition: p.state for p in status.partitions}["orders.1"] == "unowned"


async def test_before_any_member_has_joined(world: World) -> None:
    async with world.store.session() as session:
        with pytest.raises(UsageError, match="there is no group under /group"):
            await read_status(world.store, session)
    async with world.connect() as c:
        await settle()
        assert [(b.partition, b.state, b.last_member) for b in (await c.status()).blocking] == [
            ("orders.0", "unowned", None),
            ("orders.1", "unowned", None),
        ]


@pytest.mark.parametrize("path", ["coordinator", "period", "generation", "topic-partitions", "run", "cuts/1"])
@pytest.mark.parametrize("data", [None, b"?", b"\xff" * 2000])
async def test_nodes_that_cannot_be_read_are_listed_and_the_rest_is_shown(
    world: World, path: str, data: bytes | None
) -> None:
    async with world.connect(topics={"orders": 1}) as c, c.gate("orders", 0) as gate:
        await gate.wait_until(PERIOD)
    async with world.store.session() as hand:
        await (hand.delete(path, ANY_VERSION) if data is None else hand.set(path, data, ANY_VERSION))
        status = await read_status(world.store, hand)
        assert [problem for problem in status.problems if f"/group/{path}" in problem], status.problems
        assert all(len(problem) < 1000 for problem in status.problems)
        assert status.state == ("unreadable" if path in {"coordinator", "period"} else "running")
        assert json.dumps(status.as_dict())


async def test_released_and_ended(world: World) -> None:
    async with world.connect() as c, c.gate("orders", 0) as gate:
        await c.release()
        await gate.wait_until(10**15)
        assert c.released
        status = await c.status()
        assert (status.state, status.limit, status.blocking) == ("released", None, ())
    async with world.store.session() as hand:
        await hand.set("coordinator", b"end", ANY_VERSION)
        assert (await read_status(world.store, hand)).state == "ended"


async def test_the_period_before_a_hold_is_told_only_if_it_is_known(world: World) -> None:
    async with world.connect() as c:
        assert (await c.status()).held_period is None
        await c.hold()
        held = await c.status()
        assert (held.state, held.period, held.held_period) == ("held", None, PERIOD)
        await c.set_period(2 * PERIOD)
        await c.hold()
        held = await c.status()
        assert (held.state, held.period, held.held_period) == ("held", None, None)
