"""The gate of one partition, as a user's task sees it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import aiokcc
from aiokcc.errors import PartitionError, RunEnded, UsageError
from aiokcc.runtime.gate_signal import GateSignal
from tests.unit.world import PERIOD, World
from tests.virtual import DeadlockError, settle

# The way of a record


async def test_an_open_gate_lets_pass_at_once(world: World) -> None:
    async with world.connect() as c, c.gate("orders", 0) as gate:
        for ts in (0, 1, PERIOD - 1):
            assert gate.is_open(ts)
            passing = gate.wait_until(ts)
            with pytest.raises(StopIteration):  # without a single trip through the loop
                passing.send(None)
        assert gate.limit == c.limit == PERIOD
        assert gate.late == 0


async def test_a_record_at_the_limit_waits_for_the_others(world: World) -> None:
    async with world.connect() as c, c.gate("orders", 0) as gate, c.gate("orders", 1) as other:
        assert not gate.is_open(PERIOD)
        waiting = asyncio.create_task(gate.wait_until(PERIOD))
        await settle()
        assert not waiting.done()
        assert gate.limit == PERIOD
        behind = asyncio.create_task(other.wait_until(PERIOD + 1))
        await waiting
        await behind
        assert gate.limit == 2 * PERIOD


async def test_only_tasks_whose_record_is_open_are_woken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.connect() as c, c.gate("orders", 0) as near, c.gate("orders", 1) as far:
        woken: list[str] = []
        for name, gate in (("near", near), ("far", far)):
            monkeypatch.setattr(gate, "signal", _Recorder(name, woken))
        first = asyncio.create_task(near.wait_until(PERIOD))
        second = asyncio.create_task(far.wait_until(10 * PERIOD))
        await first
        await settle()
        assert woken == ["near"]
        assert not second.done()
        near.finish()
        await second
        assert woken == ["near", "far"]


class _Recorder(GateSignal):
    def __init__(self, name: str, woken: list[str]) -> None:
        super().__init__()
        self._name, self._woken = name, woken

    def result(self) -> None:
        self._woken.append(self._name)
        super().result()


async def test_a_record_of_a_closed_period_passes_and_is_counted_as_late(world: World) -> None:
    async with world.connect(topics={"orders": 1}) as c, c.gate("orders", 0) as gate:
        await gate.wait_until(3 * PERIOD)
        assert gate.late == 0
        await gate.wait_until(2 * PERIOD)  # this one's period was jumped over, but is below the limit
        await gate.wait_until(PERIOD - 1)
        assert gate.late == 1
        await gate.wait_until(3 * PERIOD + 1)
        assert gate.late == 1


# Idle


async def test_an_idle_partition_does_not_hold_the_others_up(world: World) -> None:
    async with world.connect() as c, c.gate("orders", 0) as gate, c.gate("orders", 1) as quiet:
        idling = asyncio.create_task(quiet.idle())
        await gate.wait_until(PERIOD)
        assert await idling == 2 * PERIOD


async def test_idle_returns_at_once_when_the_look_at_the_log_is_older_than_the_limit(world: World) -> None:
    async with world.connect(lookahead=1) as c, c.gate("orders", 0) as gate, c.gate("orders", 1) as quiet:
        await quiet.wait_until(PERIOD)  # past the floor: it has nothing left before it
        await gate.wait_until(PERIOD)
        await settle()
        assert quiet.limit == 3 * PERIOD  # moved while the quiet one was not looking
        assert await quiet.idle() == 3 * PERIOD
        idling = asyncio.create_task(quiet.idle())  # after a fresh look
        await settle()
        assert not idling.done()
        await gate.wait_until(2 * PERIOD)
        assert await idling == 4 * PERIOD


async def test_all_idle_stays_where_it_is_and_a_record_goes_on(world: World) -> None:
    async with world.connect() as c, c.gate("orders", 0) as a, c.gate("orders", 1) as b:
        idling = [asyncio.create_task(gate.idle()) for gate in (a, b)]
        await asyncio.sleep(3600)
        assert c.limit == PERIOD
        assert not any(task.done() for task in idling)
        idling[0].cancel()
        await asyncio.gather(idling[0], return_exceptions=True)
        await a.wait_until(PERIOD - 1)
        await a.wait_until(PERIOD)
        assert await idling[1] == 2 * PERIOD


async def test_cancelled_idle_is_running_again(world: World) -> None:
    async with world.connect() as c, c.gate("orders", 0) as gate, c.gate("orders", 1) as quiet:
        idling = asyncio.create_task(quiet.idle())
        await settle()
        idling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await idling
        waiting = asyncio.create_task(gate.wait_until(PERIOD))
        await asyncio.sleep(60)
        assert not waiting.done()
        quiet.finish()
        await waiting


async def test_idle_waits_on_when_released_instead_of_spinning(world: World) -> None:
    async with world.connect() as c, c.gate("orders", 0) as gate:
        idling = asyncio.create_task(gate.idle())
        await settle()
        await c.release()
        limit = await idling
        assert limit == gate.limit > 10**18
        again = asyncio.create_task(gate.idle())
        await asyncio.sleep(60)
        assert not again.done()
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
        await gate.wait_until(10**17)


# The end of a partition


async def test_a_finished_partition_is_not_waited_for(world: World) -> None:
    async with world.connect() as c, c.gate("orders", 0) as gate:
        async with c.gate("orders", 1) as short:
            await short.wait_until(5)
            short.finish()
        for ts in range(0, 5 * PERIOD, 300):
            await gate.wait_until(ts)
        gate.finish()


async def test_a_finished_partition_brings_nothing_more(world: World) -> None:
    async with world.connect() as c, c.gate("orders", 0) as gate:
        gate.finish()
        gate.finish()  # twice says nothing new
        assert not gate.is_open(0)
        for late_word in (gate.wait_until(0), gate.idle()):
            with pytest.raises(UsageError, match=r"orders\.0 was declared finished"):
                await late_word
        async with c.gate("orders", 1) as other:
            other.finish()


async def test_the_run_ends_when_all_have_finished_and_the_blocks_end_by_themselves(world: World) -> None:
    async with world.connect(end=5 * PERIOD) as c:
        after = []

        async def consume(number: int) -> None:
            async with c.gate("orders", number) as gate:
                for ts in range(0, 10 * PERIOD, 500):
                    await gate.wait_until(ts)
                    world.handled.append((f"orders.{number}", ts))
            after.append(number)

        await asyncio.gather(consume(0), consume(1))
        assert sorted(after) == [0, 1]
        assert c.ended
        assert world.done("orders.0") == world.done("orders.1") == list(range(0, 5 * PERIOD, 500))
        async with c.gate("orders", 0) as gate:
            assert gate.limit == 0
            with pytest.raises(RunEnded, match="has ended"):
                await gate.wait_until(0)


async def test_leaving_without_finish_blocks_the_group_and_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.connect() as c, c.gate("orders", 0) as gate:
        async with c.gate("orders", 1) as left:
            await left.wait_until(0)
        await asyncio.sleep(1)
        assert "orders.1 was released before it had finished" in caplog.text
        assert world.owner(1) is None
        waiting = asyncio.create_task(gate.wait_until(PERIOD))
        await asyncio.sleep(600)
        assert not waiting.done()
        async with c.gate("orders", 1) as next_owner:
            next_owner.finish()
            await waiting
            gate.finish()


async def test_an_error_in_the_block_comes_out_as_it_is(world: World) -> None:
    with pytest.raises(ZeroDivisionError):
        async with world.connect() as c, c.gate("orders", 0):
            raise ZeroDivisionError
    assert world.owner(0) is None


# Wrong use


async def test_a_gate_serves_one_task_at_a_time(world: World) -> None:
    async with world.connect() as c, c.gate("orders", 0) as gate:
        waiting = asyncio.create_task(gate.wait_until(PERIOD))
        await settle()
        for second in (gate.wait_until(PERIOD), gate.idle()):
            with pytest.raises(UsageError, match=r"orders\.0 is waiting in another task"):
                await second
        with pytest.raises(UsageError, match="finish it in the task that reads it"):
            gate.finish()
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        gate.finish()
        async with c.gate("orders", 1) as other:
            other.finish()


async def test_a_gate_works_only_inside_its_block(world: World) -> None:
    async with world.connect() as c:
        gate = c.gate("orders", 0)
        assert not gate.is_open(0)
        for use in (gate.wait_until(0), gate.idle()):
            with pytest.raises(UsageError, match="use it inside its 'async with'"):
                await use
        with pytest.raises(UsageError, match="use it inside its 'async with'"):
            gate.finish()
        async with gate:
            await gate.wait_until(0)
        assert not gate.is_open(0)
        with pytest.raises(UsageError, match="use it inside its 'async with'"):
            await gate.wait_until(0)
        with pytest.raises(UsageError, match="use it inside its 'async with'"):
            gate.finish()


async def test_a_gate_closed_under_a_waiting_task_does_not_leave_it_waiting(world: World) -> None:
    async with world.connect() as c:
        async with c.gate("orders", 0) as gate:
            waiting = asyncio.create_task(gate.wait_until(PERIOD))
            await settle()
        with pytest.raises(UsageError, match="not open"):
            await waiting


async def test_a_partition_has_one_gate(world: World) -> None:
    async with world.connect() as c, c.gate("orders", 0):
        with pytest.raises(PartitionError, match=r"orders\.0 is open in this member already"):
            async with c.gate("orders", 0):
                pass


@pytest.mark.parametrize(
    ("topic", "number", "what"),
    [
        ("orders", 2, "orders has the partitions 0 to 1"),
        ("orders", -1, "orders has the partitions 0 to 1"),
        ("orders", True, "not in the agreed set"),
        ("orders", 1.0, "not in the agreed set"),
        ("orders", "1", "not in the agreed set"),
        ("orders", None, "not in the agreed set"),
        ("orders", [1], "not in the agreed set"),
        ("payments", 0, "the topics are orders"),
        (["orders"], 0, "the topics are orders"),
    ],
)
async def test_a_partition_outside_the_set_is_refused(world: World, topic: Any, number: Any, what: str) -> None:
    async with world.connect() as c:
        with pytest.raises(PartitionError, match=what):
            c.gate(topic, number)


@pytest.mark.parametrize(
    ("ts", "what"),
    [
        (-1, "negative"),
        (1.0, "float"),
        (float("nan"), "float"),
        (True, "bool"),
        (None, "without a timestamp"),
        ("5", "str"),
        (2**63, "beyond 64 bits"),
        (2**63 - 1, "beyond 64 bits"),
        pytest.param(10**5000, "beyond 64 bits", id="enormous"),
    ],
)
async def test_an_invalid_timestamp_is_refused_and_nothing_is_lost(world: World, ts: Any, what: str) -> None:
    async with world.connect(topics={"orders": 1}) as c, c.gate("orders", 0) as gate:
        with pytest.raises(UsageError, match=what):
            await gate.wait_until(ts)
        with pytest.raises(UsageError, match=what):
            gate.is_open(ts)
        await gate.wait_until(0, 0)
        await gate.wait_until(PERIOD, 1)
        assert world.cuts()[-1].find(world.partition(0)) == aiokcc.core.marks.Mark(1)


@pytest.mark.parametrize("offset", [-1, 1.5, True, "3", 2**63])
async def test_an_invalid_offset_is_refused(world: World, offset: Any) -> None:
    async with world.connect(topics={"orders": 1}) as c, c.gate("orders", 0) as gate:
        for use in (gate.wait_until(PERIOD, offset), gate.idle(offset=offset)):
            with pytest.raises(UsageError, match="offset"):
                await use
        with pytest.raises(UsageError, match="offset"):
            gate.finish(offset)
        await gate.wait_until(PERIOD)


async def test_the_greatest_timestamp_works(world: World) -> None:
    async with world.connect(topics={"orders": 1}, clock=lambda: 2**63) as c, c.gate("orders", 0) as gate:
        await gate.wait_until(2**63 - 2)
        assert gate.limit == 2**63 - 1


# Cancellation


@pytest.mark.parametrize("trips", range(12))
async def test_a_wait_may_be_cancelled_at_any_point(world: World, trips: int) -> None:
    async with world.connect() as c, c.gate("orders", 0) as a, c.gate("orders", 1) as b:
        first, second = asyncio.create_task(a.wait_until(PERIOD, 1)), asyncio.create_task(b.wait_until(PERIOD, 1))
        for _ in range(trips):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await a.wait_until(PERIOD, 1)
        await second
        assert c.limit == 2 * PERIOD
        await asyncio.gather(a.wait_until(2 * PERIOD, 2), b.wait_until(2 * PERIOD, 2))


@pytest.mark.parametrize("trips", range(30))
async def test_opening_may_be_cancelled_at_any_point(world: World, trips: int) -> None:
    async with world.connect(member="a") as first, world.connect(member="b") as second:
        opening = asyncio.create_task(first.gate("orders", 0).__aenter__())
        for _ in range(trips):
            await asyncio.sleep(0)
        opening.cancel()
        result = (await asyncio.gather(opening, return_exceptions=True))[0]
        if isinstance(result, aiokcc.Gate):
            await result.__aexit__(None, None, None)
        await settle()
        assert world.owner(0) is None
        await asyncio.gather(
            world.consume(first, 1, [0, PERIOD, 2 * PERIOD]), world.consume(second, 0, [0, PERIOD, 2 * PERIOD])
        )


@pytest.mark.parametrize("trips", range(1, 8))
async def test_closing_may_be_cancelled_and_the_partition_opened_again(world: World, trips: int) -> None:
    async with world.connect() as c:
        gate = await c.gate("orders", 0).__aenter__()
        closing = asyncio.create_task(gate.__aexit__(None, None, None))
        for _ in range(trips):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        async with c.gate("orders", 0) as again:
            await settle()
            assert world.owner(0) is not None, "the gate is open, so the lock is ours"
            again.finish()
            async with c.gate("orders", 1) as other:
                other.finish()


async def test_closing_while_the_lock_is_on_its_way_back_keeps_the_lock_of_who_opens_again(world: World) -> None:
    async with world.connect() as c:
        gate = await c.gate("orders", 0).__aenter__()
        with world.server.hold_request(lambda call: call.verb == "find" and call.paths == ("owners/orders/0",)) as held:
            closing = asyncio.create_task(gate.__aexit__(None, None, None))
            await held.reached()
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            opening = asyncio.create_task(c.gate("orders", 0).__aenter__())
            await settle()
        again = await opening
        await settle()
        assert world.owner(0) is not None
        await again.wait_until(0)
        again.finish()
        async with c.gate("orders", 1) as other:
            other.finish()


# Many


async def test_hundreds_of_gates_in_one_process(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with world.connect(topics={"orders": 1200}) as c:
        stamps = range(0, 5 * PERIOD, 700)
        await asyncio.gather(*(world.consume(c, n, stamps) for n in range(1200)))
    assert len(world.handled) == 1200 * len(stamps)
    assert not caplog.records


async def test_a_deadlock_is_told_and_not_waited_for() -> None:
    """The loop that these tests run on: a hang fails at once."""
    loop = asyncio.get_running_loop()
    with pytest.raises(DeadlockError, match="every task waits"):
        loop.jump(None)  # type: ignore[attr-defined]


async def test_a_record_that_is_open_has_passed_as_after_waiting(world: World) -> None:
    """The position of an idle or finished partition is the one after it, and a late record is counted once."""
    async with world.connect(topics={"orders": 1}) as c, c.gate("orders", 0) as gate:
        await gate.wait_until(PERIOD, 1)
        assert gate.is_open(PERIOD + 1, 2)
        assert not gate.is_open(PERIOD - 1, 3), "it is late: that is noted by waiting"
        assert gate.late == 0
        await asyncio.wait_for(gate.wait_until(PERIOD - 1, 3), 1)
        assert gate.late == 1
        assert gate.is_open(PERIOD + 2, 4)
        gate.finish()
        await settle()
        (mark,) = (mark for marks in world.cuts()[-1].marks.values() for mark in marks.values())
        assert (mark.offset, mark.finished) == (5, True)
