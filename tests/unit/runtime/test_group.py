"""Joining a group, what its members agree on, what a period costs, and how a run ends."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import aiokcc
from aiokcc.core.partitions import Partition
from aiokcc.errors import GroupMismatchError, RunEnded, UsageError
from aiokcc.runtime.listener import Listener
from tests.unit.world import PERIOD, World
from tests.virtual import settle

RIGHT: dict[str, Any] = {"topics": {"orders": 2}, "period": "1m"}

# Bad settings


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"period": 0}, "period 0 is too short"),
        ({"period": -5}, "period -5 is too short"),
        ({"period": "soon"}, "period 'soon' cannot be read"),
        ({"period": 1.5}, "period 1.5 cannot be read"),
        ({"period": True}, "period True cannot be read"),
        ({"period": timedelta(microseconds=1)}, "not a whole number of milliseconds"),
        ({"start": "yesterday"}, "start 'yesterday' cannot be read"),
        ({"start": "2026-01-01T00:00"}, "has no time zone"),
        ({"start": -1}, "negative"),
        ({"start": 2000, "end": 2000}, "does not lie after start"),
        ({"start": "2026-02-01T00:00Z", "end": datetime(2026, 1, 1, tzinfo=UTC)}, "does not lie after start"),
        ({"lookahead": -1}, "lookahead -1"),
        ({"lookahead": True}, "lookahead True"),
        ({"caught_up": "whatever"}, "caught_up 'whatever'"),
        ({"ahead": -1}, "ahead -1"),
        ({"topics": {}}, "topics is"),
        ({"topics": {"orders": 0}}, "below 1"),
        ({"topics": {"a/b": 1}}, "not a name Kafka allows"),
        ({"topics": {"orders": [0, -1]}}, "expected a whole number"),
        ({"topics": ["orders"]}, "topics is"),
        ({"member": "a b"}, "member 'a b'"),
        ({"member": ""}, "member ''"),
        ({"session_timeout": 0}, "session_timeout 0"),
        ({"session_timeout": float("nan")}, "session_timeout nan"),
        ({"connect_timeout": "10"}, "connect_timeout '10'"),
        ({"claim_timeout": -1}, "claim_timeout -1"),
        ({"hosts": "x"}, "takes no options"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_connected(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        aiokcc.connect("memory://unused", **{**RIGHT, **wrong})


@pytest.mark.parametrize("url", ["etcd://x", "", "localhost:2181", "zk://", None, 5])
def test_an_unknown_store_is_refused(url: Any) -> None:
    with pytest.raises(UsageError, match="zk://host:port"):
        aiokcc.connect(url, **RIGHT)


async def test_options_of_a_store_go_with_its_url(world: World) -> None:
    with pytest.raises(UsageError, match="auth: options go with a store's URL"):
        world.connect(auth="x")


# What the members agree on


@pytest.mark.parametrize(
    ("mine", "both"),
    [
        ({"topics": {"orders": 3}}, "partitions is orders:0,1; there and orders:0,1,2; here"),
        ({"topics": {"payments": 2}}, "partitions is orders:0,1; there and payments:0,1; here"),
        ({"period": 60_000}, "period is 1s there and 1m here"),
        ({"start": 1000}, "start is 1970-01-01T00:00:00Z there and 1970-01-01T00:00:01Z here"),
        ({"start": None}, "start is 1970-01-01T00:00:00Z there and None here"),
        ({"end": 90_000}, "end is None there and 1970-01-01T00:01:30Z here"),
        ({"lookahead": 2}, "lookahead is 0 there and 2 here"),
        ({"caught_up": "release"}, "caught_up is follow there and release here"),
    ],
)
async def test_other_settings_than_the_groups_are_an_error_that_names_both(
    world: World, mine: dict[str, Any], both: str
) -> None:
    async with world.connect():
        with pytest.raises(GroupMismatchError, match=both) as raised:
            async with world.connect(**mine):
                pass
        assert "/group" in str(raised.value)
        async with world.connect(period=timedelta(seconds=1), start="1970-01-01T00:00Z"):  # the same, said otherwise
            pass


async def test_all_differences_are_named_at_once(world: World) -> None:
    async with world.connect():
        with pytest.raises(GroupMismatchError, match=r"period is .*; lookahead is "):
            async with world.connect(period=5, lookahead=1):
                pass


async def test_members_may_be_many_in_one_process(world: World) -> None:
    async def member(number: int) -> None:
        async with world.connect(topics={"orders": 16}, member=f"m{number}") as c:
            await asyncio.gather(
                *(world.consume(c, n, range(n, 5 * PERIOD, 300)) for n in (2 * number, 2 * number + 1))
            )

    await asyncio.gather(*map(member, range(8)))
    assert world.data("coordinator") == b"end"
    for n in range(16):
        assert world.done(f"orders.{n}") == list(range(n, 5 * PERIOD, 300))
    limits = [ts // PERIOD for _, ts in world.handled]
    assert limits == sorted(limits)  # nobody was a period ahead of anybody


async def test_a_member_that_joins_late_starts_at_the_groups_limit(world: World) -> None:
    async with world.connect(member="a") as a, a.gate("orders", 0) as gate:
        async with a.gate("orders", 1) as other:
            await asyncio.gather(gate.wait_until(100 * PERIOD, 70), other.wait_until(100 * PERIOD, 50))
        async with world.connect(member="b") as b, b.gate("orders", 1) as late:
            assert b.limit == late.limit == 101 * PERIOD
            assert late.resume_offset == 50
            assert not late.is_open(5)  # to be noted by waiting, which does not take long
            await late.wait_until(5)
            assert late.late == 1  # its period has closed
            await late.wait_until(100 * PERIOD, 50)
            assert late.late == 1
            late.finish()
            gate.finish()


async def test_without_a_start_the_run_begins_at_the_earliest_record(world: World) -> None:
    async with world.connect(start=None) as c, c.gate("orders", 0) as a, c.gate("orders", 1) as b:
        assert c.limit == 0
        first = asyncio.create_task(a.wait_until(777_000_500))
        await settle()
        assert not first.done()
        second = asyncio.create_task(b.wait_until(555_000_500))
        await second
        assert c.limit == 555_001_000
        assert not first.done()
        b.finish()
        await first


async def test_a_second_run_on_an_ended_root_is_refused(world: World) -> None:
    async with world.connect() as c:
        await asyncio.gather(*(world.consume(c, n, [0]) for n in (0, 1)))
    with pytest.raises(RunEnded, match=r"under /group has ended; to run again, choose another root"):
        async with world.connect():
            pass
    assert world.data("coordinator") == b"end"


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"period": "2m"}, "period is 1s there and 2m here"),
        ({"topics": {"payments": 2}}, "partitions is orders:0,1; there and payments:0,1; here"),
        ({"start": 5 * PERIOD}, "start is 1970-01-01T00:00:00Z there and 1970-01-01T00:00:05Z here"),
    ],
)
async def test_another_run_on_an_ended_root_is_not_taken_for_the_one_that_ended(
    world: World, other: dict[str, Any], difference: str
) -> None:
    async with world.connect() as c:
        await asyncio.gather(*(world.consume(c, n, [0]) for n in (0, 1)))
    with pytest.raises(GroupMismatchError, match="has ended, and ran with other settings") as caught:
        async with world.connect(**other):
            pass
    assert difference in str(caught.value)


async def test_the_store_may_be_given_by_its_url(world: World) -> None:
    async with aiokcc.connect(world.store.url, **RIGHT) as c, c.gate("orders", 0) as gate:
        assert c.member
        assert not gate.is_open(0)  # no start was given


# What a period costs


async def test_one_member_alone_writes_once_per_period_and_reads_nothing(world: World) -> None:
    async with world.connect(topics={"orders": 64}) as c:
        gates = [await c.gate("orders", n).__aenter__() for n in range(64)]
        await asyncio.gather(*(gate.wait_until(PERIOD) for gate in gates))
        await settle()
        world.record_calls()
        for period in range(2, 12):
            await asyncio.gather(*(gate.wait_until(period * PERIOD + n) for n, gate in enumerate(gates)))
        assert [call.verb for call in world.calls] == ["commit"] * 10
        for gate in gates:
            gate.finish()


@pytest.mark.parametrize("members", [2, 5])
async def test_each_member_writes_once_per_period(world: World, members: int) -> None:
    topics = {"orders": 3 * members}
    async with AsyncExitStack() as stack:
        coordinators = []
        for n in range(members):
            coordinators.append(await stack.enter_async_context(world.connect(topics=topics, member=f"m{n}")))
            await settle()  # so that the first one leads
        gates = [await c.gate("orders", 3 * n + k).__aenter__() for n, c in enumerate(coordinators) for k in range(3)]
        await asyncio.gather(*(gate.wait_until(PERIOD) for gate in gates))
        await settle()
        world.record_calls()
        for period in range(2, 12):
            await asyncio.gather(*(gate.wait_until(period * PERIOD) for gate in gates))
        await settle()
        assert len(world.writes()) == 10 * members
        assert not [call for call in world.calls if not call.writes and call.verb != "watch"]
        assert not [call for call in world.calls if call.verb == "watch" and "coordinator" in call.paths], (
            "nobody reads it"
        )
        told = [call for call in world.calls if call.verb == "watch" and "limits" in call.paths]
        assert {call.session for call in told} == {world.session(c) for c in coordinators[1:]}  # not the leader
        for gate in gates:
            gate.finish()


async def test_a_day_without_records_is_one_step(world: World) -> None:
    async with world.connect() as c, c.gate("orders", 0) as a, c.gate("orders", 1) as b:
        await asyncio.gather(a.wait_until(PERIOD), b.wait_until(PERIOD))
        version = world.node("coordinator").version  # type: ignore[union-attr]
        await asyncio.gather(a.wait_until(86_401 * PERIOD), b.wait_until(86_401 * PERIOD + 1))
        assert world.node("coordinator").version == version + 1  # type: ignore[union-attr]
        assert c.limit == 86_402 * PERIOD
        a.finish()
        b.finish()


# Lookahead

LOGS = {"orders.0": [0, 1500, 2500, 3500, 9100], "orders.1": [10, 20, 4000, 4001, 5200, 8000], "orders.2": [7999]}


@pytest.mark.parametrize("lookahead", range(4))
async def test_lookahead_bounds_the_spread_and_the_cuts_stay_the_same(world: World, lookahead: int) -> None:
    pace = {0: 0.0, 1: 0.5, 2: 2.0}

    async with world.connect(topics={"orders": 3}, lookahead=lookahead) as c:
        await asyncio.gather(*(world.process(c, n, LOGS, takes=lambda n=n: pace[n]) for n in range(3)))
    world.history.check(LOGS)
    ends = {
        cut.limit: {str(p): m.offset for marks in cut.marks.values() for p, m in marks.items()} for cut in world.cuts()
    }
    for limit, offsets in ends.items():
        assert offsets == {name: sum(ts < limit for ts in log) for name, log in LOGS.items()}
    done: dict[str, int] = dict.fromkeys(LOGS, 0)
    for event in world.history.events:
        if event.event == "done":
            done[event.partition] = event.offset + 1
        if event.event == "start":
            behind = min(LOGS[name][n] for name, n in done.items() if n < len(LOGS[name]))
            assert event.ts // PERIOD - behind // PERIOD <= lookahead


# The end


async def test_a_bounded_run_ends_in_every_member(world: World) -> None:
    ended = []

    async def member(number: int) -> None:
        async with world.connect(topics={"orders": 3}, end=3 * PERIOD + 500, member=f"m{number}") as c:
            async with c.gate("orders", number) as gate:
                for ts in range(0, 10 * PERIOD, 250):
                    await gate.wait_until(ts)
                    world.handled.append((f"orders.{number}", ts))
            ended.append(c.ended)

    await asyncio.wait_for(asyncio.gather(*map(member, range(3))), 60)
    assert ended == [True] * 3
    for n in range(3):
        assert world.done(f"orders.{n}") == list(range(0, 3 * PERIOD + 500, 250))
    assert b'"ended"' in world.data("run")


async def test_a_member_that_has_finished_leaves_once_it_is_recorded(world: World) -> None:
    async with world.connect(member="long") as c, c.gate("orders", 1) as gate:

        async def short() -> None:
            async with world.connect(member="short") as other:
                await world.consume(other, 0, [0, 10])

        leaving = asyncio.create_task(short())
        await asyncio.sleep(600)
        assert not leaving.done()  # the limit has not moved since
        await gate.wait_until(PERIOD, 1)
        await asyncio.wait_for(leaving, 1)
        for n in range(2, 40):  # more than the ring of cuts holds
            await gate.wait_until(n * PERIOD, n)
        assert world.cuts()[-1].find(world.partition(0)) == aiokcc.core.marks.Mark(2, finished=True)
        gate.finish()
    assert world.data("coordinator") == b"end"


async def test_a_leader_that_leaves_hands_over(world: World) -> None:
    async with world.connect(member="a") as a:
        await settle()
        async with world.connect(member="b") as b, b.gate("orders", 1) as gate:
            async with a.gate("orders", 0) as short:
                short.finish()
            await gate.wait_until(PERIOD)
            assert (a.epoch, b.epoch) == (1, None)
            await a.membership.settled()
            world.server.expire(world.session(a))
            await settle()
            assert b.epoch == 2
            await gate.wait_until(2 * PERIOD)
            gate.finish()
        await settle()


# Leaving


async def test_a_group_that_was_left_says_so(world: World) -> None:
    async with world.connect() as c:
        gate = c.gate("orders", 0)
    with pytest.raises(UsageError, match="has left the group"):
        async with asyncio.timeout(60), gate:
            pass
    for ask in (c.status, c.hold, c.release):
        with pytest.raises(UsageError, match="has left the group"):
            await ask()


async def test_the_programs_exit_is_not_wrapped(world: World) -> None:
    with pytest.raises(SystemExit) as raised:
        async with world.connect() as c, c.gate("orders", 0):
            sys.exit(3)
    assert raised.value.code == 3


@pytest.mark.parametrize("trips", range(0, 40, 3))
async def test_a_member_may_be_cancelled_at_any_point(world: World, trips: int) -> None:
    async def member() -> None:
        async with world.connect() as c:
            await asyncio.gather(*(world.consume(c, n, range(0, 20 * PERIOD, 400)) for n in (0, 1)))

    running = asyncio.create_task(member())
    for _ in range(trips):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not world.server.sessions
    async with asyncio.timeout(60):
        await member()
    assert {ts for name, ts in world.handled if name == "orders.0"} == set(range(0, 20 * PERIOD, 400))


async def test_no_task_is_left_behind(world: World) -> None:
    before = asyncio.all_tasks()
    async with world.connect() as c:
        await asyncio.gather(*(world.consume(c, n, [0, 5000]) for n in (0, 1)))
    assert asyncio.all_tasks() == before


# What has closed


async def test_who_sees_several_limits_at_once_counts_every_period(world: World) -> None:
    """A follower that is blocked far ahead is cut off for a while; what it said stands, and the others go on."""
    async with AsyncExitStack() as stack:
        leader = await stack.enter_async_context(world.connect(member="leader"))
        follower = await stack.enter_async_context(world.connect(member="follower"))
        seen: list[int] = []

        class Counts(Listener):
            def limit_moved(self, positions: dict[Partition, int]) -> None:
                seen.append(follower.membership.closed)

        follower.membership.add_listener(Counts())
        far = asyncio.create_task(world.consume(follower, 1, [5 * PERIOD]))
        await settle()
        world.server.suspend(world.session(follower))
        near = asyncio.create_task(world.consume(leader, 0, [n * PERIOD for n in range(5)]))
        await settle()
        assert world.limit.floor == 6 * PERIOD
        assert seen == []
        world.server.resume(world.session(follower))
        await asyncio.gather(near, far)
        await settle()
        assert leader.ended
        assert follower.ended
    assert leader.membership.closed == follower.membership.closed == 6
    assert seen == [5, 6], "five at once, then the last"


async def test_neither_the_first_step_nor_a_release_closes_a_period(world: World) -> None:
    async with world.connect(topics={"orders": 1}, start=None) as group:
        async with group.gate("orders", 0) as gate:
            await gate.wait_until(7 * PERIOD, 0)
            assert group.membership.closed == 0, "the limit came from nowhere"
            await gate.wait_until(8 * PERIOD, 1)
            assert group.membership.closed == 1
            await group.release()
            await gate.wait_until(20 * PERIOD, 2)
        assert group.membership.closed == 1
