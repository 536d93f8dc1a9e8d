"""Faults of the store and of sessions: the group goes on, nothing passes the limit, and nothing is lost."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import uuid
from collections.abc import Callable

import pytest

import aiokcc
from aiokcc.errors import OutcomeUnknownError, PartitionOwnedError
from aiokcc.stores.memory import Call
from tests.unit.world import FAR, PERIOD, World
from tests.virtual import settle

LOGS = {
    "orders.0": [10, 400, 1200, 2500, 2600],
    "orders.1": [0, 3100],
    "orders.2": [999, 1000, 1001, 3999],
    "orders.3": [],
}
HOUR = 3600.0


async def play(world: World, *, lookahead: int = 0) -> None:
    """A whole run of two members with two partitions each, and its history checked."""

    async def member(name: str, numbers: tuple[int, ...]) -> None:
        async with world.connect(topics={"orders": 4}, member=name, lookahead=lookahead) as c:
            await asyncio.gather(*(world.process(c, number, LOGS) for number in numbers))

    async with asyncio.timeout(HOUR):
        await asyncio.gather(member("a", (0, 1)), member("b", (2, 3)))
    assert world.data("coordinator") == b"end"
    world.history.check(LOGS)


# Something goes wrong at every single call in turn


def lose_before(world: World, call: Call) -> None:
    raise OutcomeUnknownError("lost before it arrived")


def expire(world: World, call: Call) -> None:
    world.server.expire(call.session)


def suspend(world: World, call: Call) -> None:
    world.server.suspend(call.session)
    asyncio.get_running_loop().call_later(3, world.server.resume, call.session)


class Nth:
    """A hook that plays a fault on one call, the nth of its kind."""

    def __init__(self, world: World, kind: str, number: int, fault: Callable[[World, Call], None]) -> None:
        self._world, self._kind, self._left, self._fault = world, kind, number, fault
        self.hit: Call | None = None

    def __call__(self, call: Call) -> None:
        kind = "writes" if call.writes else "watches" if call.verb == "watch" else "reads"
        if self._kind in {kind, "all"}:
            self._left -= 1
            if self._left < 0 and self.hit is None:
                self.hit = call
                self._fault(self._world, call)


@pytest.mark.parametrize("lookahead", [0, 3])
@pytest.mark.parametrize(
    ("when", "which", "fault"),
    [
        ("before", "writes", lose_before),
        ("after", "writes", lose_before),
        ("before", "writes", expire),
        ("after", "writes", expire),
        ("before", "reads", expire),
        ("after", "watches", expire),
        ("after", "all", suspend),
    ],
)
async def test_a_fault_at_any_call_is_survived(
    when: str,
    which: str,
    fault: Callable[[World, Call], None],
    lookahead: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    for number in itertools.count():
        world = World(f"faults-{uuid.uuid4().hex}")
        monkeypatch.setattr("aiokcc.runtime.gate.boottime", world.time)
        hook = Nth(world, which, number, fault)
        world.server.intercept(**{when: hook})
        try:
            await play(world, lookahead=lookahead)
        except BaseException as error:
            error.add_note(f"with {fault.__name__} {when} call {number}: {hook.hit}")
            raise
        world.check()
        if hook.hit is None:
            assert number > 5
            return


# Sessions end


@pytest.mark.parametrize("who", ["leader", "follower"])
async def test_a_session_lost_in_the_middle_of_a_period(world: World, who: str) -> None:
    async with world.connect(member="a") as a, world.connect(member="b") as b:
        await settle()
        leader, follower = (a, b) if a.epoch is not None else (b, a)
        async with leader.gate("orders", 0) as first, follower.gate("orders", 1) as second:
            lost, gate = (leader, first) if who == "leader" else (follower, second)
            waiting = [asyncio.create_task(g.wait_until(PERIOD, 1)) for g in (first,)]
            await settle()
            before = world.data("generation")
            server_session = world.session(lost)
            world.server.expire(server_session)
            assert not gate.is_open(0)  # before anything else can happen
            blocked = asyncio.create_task(gate.wait_until(0, 0)) if gate is second else None
            await settle()
            if blocked is not None:
                await blocked  # claimed again: what lies below the limit goes on
            assert {world.owner(0), world.owner(1)} == {
                name for name in world.below("ids") if name.startswith(("a-", "b-"))
            }
            assert (world.data("generation") != before) == (who == "leader")
            waiting.append(asyncio.create_task(second.wait_until(PERIOD, 1)))
            await asyncio.gather(*waiting)
            assert a.limit == b.limit == 2 * PERIOD
            first.finish()
            second.finish()
        await settle()
        assert a.ended
        assert b.ended


async def test_a_zombie_leader_changes_nothing(world: World) -> None:
    async with world.connect(member="a") as zombie, zombie.gate("orders", 0) as mine:
        await settle()
        assert zombie.epoch == 1
        async with world.connect(member="b") as heir:
            session = world.session(zombie)
            world.server.freeze(session, stop_at=world.time())  # as after a long stop: its deadline is over
            waiting = asyncio.create_task(mine.wait_until(PERIOD, 5))
            await settle()
            world.server.expire(session)
            await settle()
            assert (zombie.epoch, heir.epoch) == (1, 2)  # it still believes
            assert not mine.is_open(0)
            async with heir.gate("orders", 0) as taken, heir.gate("orders", 1) as other:
                await asyncio.gather(taken.wait_until(PERIOD, 1), other.wait_until(PERIOD, 1))
                assert heir.limit == 2 * PERIOD
                assert not waiting.done()
                world.server.thaw(session)
                await settle()
                assert zombie.epoch is None
                assert zombie.limit == 2 * PERIOD
                assert world.leader().startswith("b-")
                taken.finish(1)
                other.finish(1)
            await settle()
            assert heir.ended
        await asyncio.wait([waiting])
        assert isinstance(waiting.exception(), aiokcc.RunEnded)


async def test_an_advance_in_flight_when_another_takes_over_is_refused(world: World) -> None:
    async with world.connect(member="a") as a, a.gate("orders", 0) as one, a.gate("orders", 1) as two:
        await settle()
        async with world.connect(member="b") as b:
            await settle()
            with world.server.hold_request(lambda call: call.touches("coordinator")) as held:
                waiting = [asyncio.create_task(gate.wait_until(PERIOD)) for gate in (one, two)]
                advance = await held.reached()
                assert advance.session is world.session(a)
                world.server.freeze(world.session(a))  # what it has sent is on its way all the same
                (candidate,) = [name for name in world.below("leader") if b'"epoch": 1' in world.data(f"leader/{name}")]
                await world.session(b).delete(f"leader/{candidate}", -1)  # somebody has it out with the leader
                await settle()
                assert b.epoch == 2
            await settle()
            assert world.limit.value == PERIOD  # it has arrived, and was refused
            world.server.thaw(world.session(a))
            await asyncio.gather(*waiting)  # the new leader moves it
            assert a.epoch is None
            assert world.limit.value == 2 * PERIOD
            await settle()
            assert len(world.below("leader")) == 2  # deposed, it stands again, behind the other
            one.finish()
            two.finish()


# The store is away


async def test_while_the_store_is_away_open_records_pass_until_the_deadline(world: World) -> None:
    async with world.connect(topics={"orders": 1}, session_timeout=9) as c, c.gate("orders", 0) as gate:
        await gate.wait_until(0)
        world.server.suspend()
        deadline = world.time() + 6
        assert gate.is_open(PERIOD - 1)
        await asyncio.sleep(5.9)
        await gate.wait_until(1)
        past = asyncio.create_task(gate.wait_until(PERIOD))
        await asyncio.sleep(0.05)
        past.cancel()
        await asyncio.gather(past, return_exceptions=True)
        await gate.wait_until(2)
        await asyncio.sleep(0.1)
        assert world.time() > deadline
        assert not gate.is_open(3)
        stopped = asyncio.create_task(gate.wait_until(3))
        await asyncio.sleep(2)
        assert not stopped.done()
        world.server.resume()
        await stopped
        await gate.wait_until(PERIOD)
        assert c.limit == 2 * PERIOD


async def test_nothing_passes_the_limit_while_the_store_is_away_and_it_resumes_by_itself(world: World) -> None:
    async with world.connect(member="a") as a, world.connect(member="b") as b:
        async with a.gate("orders", 0) as one, b.gate("orders", 1) as two:
            world.server.suspend()
            waiting = [asyncio.create_task(gate.wait_until(5 * PERIOD)) for gate in (one, two)]
            await asyncio.sleep(8)
            assert not any(task.done() for task in waiting)
            world.server.resume()
            await asyncio.gather(*waiting)
            one.finish()
            two.finish()


async def test_a_store_away_for_longer_than_the_session(world: World) -> None:
    async with world.connect(member="a") as a, world.connect(member="b") as b:
        async with a.gate("orders", 0) as one, b.gate("orders", 1) as two:
            waiting = asyncio.create_task(one.wait_until(PERIOD, 1))
            await settle()
            world.server.suspend()
            await asyncio.sleep(10)
            assert len(world.server.expire_overdue()) == 2
            await asyncio.sleep(600)
            world.server.resume()
            await asyncio.gather(waiting, two.wait_until(PERIOD, 1))
            one.finish()
            two.finish()


async def test_connecting_to_a_store_that_is_away_gives_up_and_says_so(world: World) -> None:
    world.server.suspend()
    begun = world.time()
    with pytest.raises(aiokcc.StoreUnreachableError, match="within 4 s"):
        async with world.connect(connect_timeout=4):
            pass
    assert world.time() - begun == pytest.approx(4)


@pytest.mark.parametrize("state", ["claiming", "waiting", "leading", "finished"])
async def test_leaving_by_an_error_does_not_wait_for_a_store_that_is_away(world: World, state: str) -> None:
    begun = world.time()
    with pytest.raises(ZeroDivisionError):
        async with world.connect(topics={"orders": 1}) as c:
            if state == "claiming":
                world.server.suspend()
                opening = asyncio.create_task(c.gate("orders", 0).__aenter__())
                await settle()
                opening.cancel()
            elif state != "leading":
                gate = await c.gate("orders", 0).__aenter__()
                if state == "waiting":
                    waiting = asyncio.create_task(gate.wait_until(PERIOD))
                    world.server.suspend()
                    await settle()
                    waiting.cancel()
                else:
                    world.server.suspend()
                    gate.finish()
                    await gate.__aexit__(None, None, None)
            else:
                await settle()
                world.server.suspend()
            await settle()
            _raise()
    assert world.time() - begun < 0.1


def _raise() -> None:
    raise ZeroDivisionError


# Watches late and out of order


@pytest.mark.parametrize("seed", range(8))
async def test_late_and_reordered_watches(world: World, seed: int) -> None:
    chance = random.Random(seed)

    async def later(call: Call) -> None:
        if call.verb == "watch":
            await asyncio.sleep(chance.choice([0, 0.001, 0.5, 3]))

    world.server.intercept(before=later, after=later)
    await play(world, lookahead=seed % 4)


@pytest.mark.parametrize("seed", range(8))
async def test_slow_and_uneven_answers(world: World, seed: int) -> None:
    chance = random.Random(seed)
    world.server.intercept(
        before=lambda call: asyncio.sleep(chance.random()), after=lambda call: asyncio.sleep(chance.random())
    )
    await play(world, lookahead=seed % 4)


# Locks


async def test_a_partition_held_by_another_member_is_an_error_after_a_while(world: World) -> None:
    async with world.connect(member="a") as a, world.connect(member="b", claim_timeout=7) as b, a.gate("orders", 0):
        begun = world.time()
        with pytest.raises(
            PartitionOwnedError, match=rf"orders\.0 is held by {world.owner(0)} .* within 7 s"
        ) as raised:
            async with b.gate("orders", 0):
                pass
        assert world.time() - begun == pytest.approx(7, abs=0.01)
        assert (raised.value.partition, raised.value.owner) == ("orders.0", world.owner(0))


async def test_by_default_a_claim_waits_for_two_sessions(world: World) -> None:
    async with world.connect(member="a") as a, world.connect(member="b", session_timeout=5) as b, a.gate("orders", 0):
        begun = world.time()
        with pytest.raises(PartitionOwnedError):
            async with b.gate("orders", 0):
                pass
        assert world.time() - begun == pytest.approx(10, abs=0.01)


async def test_a_partition_is_handed_over_when_it_is_released(world: World) -> None:
    async with world.connect(member="a") as a, world.connect(member="b") as b:
        async with a.gate("orders", 0) as gate:
            await gate.wait_until(0, 0)
            opening = asyncio.create_task(b.gate("orders", 0).__aenter__())
            await asyncio.sleep(5)
            assert not opening.done()
        taken = await opening
        assert world.owner(0) == next(name for name in world.below("ids") if name.startswith("b-"))
        taken.finish()
        async with b.gate("orders", 1) as other:
            other.finish()


async def test_a_claim_that_fails_does_not_hold_the_other_partitions_up(world: World) -> None:
    """The member's report waits for all its partitions; when one is dropped the report is due."""
    async with world.connect(member="a") as a, world.connect(member="b", claim_timeout=5) as b:
        async with a.gate("orders", 0) as held, b.gate("orders", 1) as gate:
            waiting = [asyncio.create_task(held.wait_until(PERIOD)), asyncio.create_task(gate.wait_until(PERIOD))]
            with pytest.raises(PartitionOwnedError):
                async with b.gate("orders", 0):
                    pass
            await asyncio.wait_for(asyncio.gather(*waiting), 60)
            held.finish()
            gate.finish()


async def test_a_claim_that_is_cancelled_does_not_hold_the_other_partitions_up(world: World) -> None:
    async with world.connect(member="a") as a, world.connect(member="b") as b:
        async with a.gate("orders", 0) as held, b.gate("orders", 1) as gate:
            opening = asyncio.create_task(b.gate("orders", 0).__aenter__())
            await settle()
            waiting = [asyncio.create_task(held.wait_until(PERIOD)), asyncio.create_task(gate.wait_until(PERIOD))]
            await settle()
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            await asyncio.wait_for(asyncio.gather(*waiting), 60)
            held.finish()
            gate.finish()


async def test_a_lock_taken_by_another_while_we_were_away_is_an_error_at_the_gate(world: World) -> None:
    async with world.connect(member="a", claim_timeout=5) as a, world.connect(member="b") as b:
        async with a.gate("orders", 0) as gate, b.gate("orders", 1) as other:
            with world.server.hold_request(
                lambda call: call.session is not world.session(b) and "owners/orders/0" in call.paths
            ) as held:
                opening = asyncio.create_task(b.gate("orders", 0).__aenter__())
                await settle()
                world.server.expire(world.session(a))
                await held.reached()
                taken = await opening
            with pytest.raises(PartitionOwnedError, match=r"orders\.0 is held by b-"):
                await gate.wait_until(0)
            with pytest.raises(PartitionOwnedError):
                gate.finish()
            await asyncio.gather(taken.wait_until(PERIOD), other.wait_until(PERIOD))
            taken.finish()
            other.finish()


# Finished partitions and lost sessions


async def test_the_report_of_a_finished_partition_survives_a_lost_session(world: World) -> None:
    async with world.connect(member="b") as b, b.gate("orders", 1) as gate:
        async with world.connect(member="a") as a:
            async with a.gate("orders", 0) as short:
                short.finish(7)
            leaving = asyncio.create_task(a.membership.settled())
            await settle()
            await world.expire(a)
            await settle()
            assert not leaving.done()
            await gate.wait_until(PERIOD, 1)
            await asyncio.wait_for(leaving, 60)
        mark = world.cuts()[-1].find(world.partition(0))
        assert mark == aiokcc.core.marks.Mark(7, finished=True)
        await gate.wait_until(2 * PERIOD, 2)  # and nobody waits for it
        gate.finish()


async def test_leaving_is_not_held_up_by_a_session_lost_after_the_cut(world: World) -> None:
    """The limit had moved before the session was lost, so it does not move again to wake who waits."""
    async with world.connect(member="b") as b, b.gate("orders", 1) as gate:
        async with world.connect(member="a") as a:
            async with a.gate("orders", 0) as short:
                short.finish()
            leaving = asyncio.create_task(a.membership.settled())
            await settle()
            with world.server.hold_request(
                lambda call: call.verb == "get" and call.session is world.session(a)
            ) as held:
                await gate.wait_until(PERIOD)
                await held.reached()
                await world.expire(a)
            await asyncio.wait_for(leaving, 60)
        gate.finish()


@pytest.mark.parametrize("how", ["released", "lost"])
async def test_an_advance_does_not_rest_on_the_report_of_a_former_owner(world: World, how: str) -> None:
    """Otherwise the next owner, who has read the last cut, brings records again that the new cut holds.

    "released" leaves the node of the report with another version; "lost" leaves no node. So "lost" alone does not show that the
    version is checked.
    """
    async with world.connect(member="a") as a, a.gate("orders", 0) as led, world.connect(member="b") as b:
        await settle()
        assert a.epoch is not None
        gate = await b.gate("orders", 1).__aenter__()
        waiting = asyncio.create_task(gate.wait_until(PERIOD, 5))
        await settle()  # reported
        with world.server.hold_request(lambda call: call.verb == "watch" and call.session is world.session(a)) as held:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            if how == "lost":
                world.server.expire(world.session(b))
            await gate.__aexit__(None, None, None)
            async with world.connect(member="c") as c, c.gate("orders", 1) as taken:
                assert taken.resume_offset is None  # no cut yet: from the start
                moving = asyncio.create_task(led.wait_until(PERIOD, 3))
                await asyncio.sleep(5)
                # An advance now would rest on the report of b, and its cut would have everything up to offset 5. But c has
                # read the cut before it, and starts at 0: records of a closed period would come again.
                assert world.limit.value == PERIOD, "the leader took the word of who is gone"
                held.release()
                await taken.wait_until(0, 0)
                await asyncio.gather(moving, taken.wait_until(PERIOD, 5))
                taken.finish(5)
                led.finish(3)


async def test_an_error_of_the_clock_where_the_limit_arrives_ends_the_member_and_is_not_swallowed(world: World) -> None:
    """The limit is taken outside of any task; an error there left the gates closed for ever, and only the loop's log had it."""
    broken = False

    def clock() -> int:
        if broken:
            raise ArithmeticError("the clock is broken")
        return FAR

    async with world.connect(member="a") as a, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(world.consume(a, 0, [0, 1500, 2500, 3500]))
        with pytest.raises(ArithmeticError, match="the clock is broken"):
            async with asyncio.timeout(HOUR), world.connect(member="b", clock=clock) as b:
                async with b.gate("orders", 1) as gate:
                    await gate.wait_until(0)
                    await gate.wait_until(1500)
                    broken = True
                    await gate.wait_until(2500)
        first.cancel()
