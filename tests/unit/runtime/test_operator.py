"""The requests of an operator while a group runs, and the policies for a run that has caught up with the clock."""

from __future__ import annotations

import asyncio

import pytest

import aiokcc
from aiokcc.errors import UsageError
from aiokcc.stores import ANY_VERSION
from tests.unit.world import PERIOD, World
from tests.virtual import settle


async def arrive(ts: int, *gates: aiokcc.Gate) -> None:
    async with asyncio.timeout(600):
        await asyncio.gather(*(gate.wait_until(ts) for gate in gates))


async def test_a_new_period_takes_effect_at_the_next_boundary(world: World) -> None:
    async with world.connect() as c, c.gate("orders", 0) as a, c.gate("orders", 1) as b:
        await arrive(PERIOD, a, b)
        await c.set_period("5s")
        await settle()
        assert c.limit == 2 * PERIOD  # what is open stays as it is
        await arrive(2 * PERIOD, a, b)
        assert c.limit == 5 * PERIOD  # the next multiple of the new one
        await c.set_period(500)
        await arrive(5 * PERIOD, a, b)
        assert c.limit == 5 * PERIOD + 500
        assert (await c.status()).period == 500
        a.finish()
        b.finish()


async def test_hold_stops_the_limit_and_a_period_lets_it_go_on(world: World) -> None:
    async with world.connect(member="a") as c, world.connect(member="b") as d:
        async with c.gate("orders", 0) as a, d.gate("orders", 1) as b:
            await d.hold()
            waiting = asyncio.create_task(arrive(PERIOD, a, b))
            await asyncio.sleep(300)
            assert not waiting.done()
            assert c.limit == PERIOD
            assert a.is_open(PERIOD - 1)
            status = await c.status()
            assert (status.state, status.period, status.blocking) == ("held", None, ())
            await d.hold()  # again changes nothing
            await c.set_period(PERIOD)
            await waiting
            a.finish()
            b.finish()


async def test_after_hold_was_acknowledged_no_advance_lands(world: World) -> None:
    async with world.connect() as c, c.gate("orders", 0) as a, c.gate("orders", 1) as b:
        async with world.store.session() as operator:
            with world.server.hold_request(lambda call: call.touches("coordinator")) as held:
                waiting = asyncio.create_task(arrive(PERIOD, a, b))
                await held.reached()  # the advance is on its way
                await operator.set("period", b"hold", ANY_VERSION)
            await asyncio.sleep(60)
            assert not waiting.done()
            assert world.limit.value == PERIOD
            await c.set_period(PERIOD)
            await waiting
        a.finish()
        b.finish()


async def test_release_opens_for_all_and_is_final(world: World) -> None:
    async with world.connect(member="a") as c, world.connect(member="b") as d:
        async with c.gate("orders", 0) as a, d.gate("orders", 1) as b:
            waiting = [asyncio.create_task(a.wait_until(50 * PERIOD)), asyncio.create_task(b.wait_until(10**15))]
            await settle()
            await c.release()
            await asyncio.wait_for(asyncio.gather(*waiting), 60)
            assert c.released
            assert d.released
            await c.release()
            for again in (c.hold(), c.set_period(5)):
                with pytest.raises(UsageError, match="was released, which is final"):
                    await again
        await world.expire(d)
        async with d.gate("orders", 1) as late:  # and it stays open for who comes later
            await late.wait_until(10**16)


async def test_there_is_nothing_to_control_once_the_run_has_ended(world: World) -> None:
    async with world.connect() as c:
        await asyncio.gather(*(world.consume(c, n, [0]) for n in (0, 1)))
        await settle()
        for ask in (c.hold(), c.release(), c.set_period(5)):
            with pytest.raises(UsageError, match="has ended"):
                await ask


@pytest.mark.parametrize("period", [0, -1, "x", 1.5, None, True])
async def test_an_invalid_period_changes_nothing(world: World, period: object) -> None:
    async with world.connect() as c:
        with pytest.raises(UsageError, match="period"):
            await c.set_period(period)  # type: ignore[arg-type]
        assert world.data("period") == str(PERIOD).encode()


async def test_a_request_whose_answer_is_lost_is_made_once(world: World) -> None:
    async with world.connect() as c:
        with world.server.hold_reply(lambda call: call.touches("period")) as held:
            asking = asyncio.create_task(c.hold())
            await held.reached()
            held.lose()
            await asking
        assert world.data("period") == b"hold"
        assert world.node("period").version == 1  # type: ignore[union-attr]


# Caught up with the clock


class Clock:
    """A wall clock that goes with virtual time."""

    def __init__(self, world: World, now: int) -> None:
        self._world, self._offset = world, now - int(world.time() * 1000)

    def __call__(self) -> int:
        return self._offset + int(self._world.time() * 1000)


async def test_following_the_clock(world: World) -> None:
    clock = Clock(world, 100 * PERIOD)
    settings = {"clock": clock, "ahead": 2 * PERIOD, "topics": {"orders": 1}}
    async with world.connect(**settings) as c, c.gate("orders", 0) as gate:
        await gate.wait_until(100 * PERIOD)
        begun = world.time()
        await gate.wait_until(200 * PERIOD)  # an absurd timestamp: it waits until the clock comes near
        assert 96 <= world.time() - begun <= 100
        assert c.limit <= clock() + 3 * PERIOD


async def test_releasing_when_caught_up(world: World) -> None:
    settings = {"clock": lambda: 100 * PERIOD, "caught_up": "release"}
    async with world.connect(**settings) as c, c.gate("orders", 0) as a, c.gate("orders", 1) as b:
        await arrive(99 * PERIOD, a, b)
        assert not c.released
        await arrive(100 * PERIOD, a, b)
        assert c.released
        assert world.data("period") == b"off"


async def test_a_longer_period_when_caught_up(world: World) -> None:
    settings = {"clock": lambda: 100 * PERIOD, "caught_up": "1m"}
    async with world.connect(**settings) as c, c.gate("orders", 0) as a, c.gate("orders", 1) as b:
        await arrive(99 * PERIOD, a, b)
        assert c.limit == 100 * PERIOD
        await arrive(100 * PERIOD, a, b)
        assert c.limit == 120 * PERIOD
        assert world.data("period") == b"60000"
        a.finish()
        b.finish()
