"""Managed groups on a store in memory: members share the partitions, and hand them over."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

import aiokcc
from aiokcc.core.assignments import TopicState, decode_state
from aiokcc.core.partitions import Partition
from aiokcc.core.rebalance import Await, Decision, Reassign, RebalanceMachine
from aiokcc.errors import OutcomeUnknownError, StoreError
from aiokcc.stores import Node
from aiokcc.stores.memory import Call
from tests.unit.runtime.test_faults import Nth
from tests.unit.world import World
from tests.virtual import settle

HOUR = 3600.0
LOGS = {f"orders.{n}": [n * 7 + i * 300 for i in range(40)] for n in range(6)}


@asynccontextmanager
async def member(
    world: World, name: str, logs: Mapping[str, Sequence[int]] = LOGS, takes: float = 0.1, **settings: Any
) -> AsyncIterator[aiokcc.Group]:
    """A member that runs what it is given, over these logs. Leaving the block leaves the group."""
    usual: dict[str, Any] = {"topics": {"orders": len(logs)}, "assignment": "managed", "member": name}
    async with world.connect(**{**usual, **settings}) as group:

        async def consume(partition: Partition) -> None:
            await process(world, group, partition, logs, takes)

        sharing = asyncio.ensure_future(group.share(consume))
        try:
            yield group
            if group.ended:
                await sharing
        finally:
            sharing.cancel()
            await asyncio.wait([sharing])
        if not sharing.cancelled() and sharing.exception() is not None:
            raise sharing.exception()  # type: ignore[misc]


async def process(
    world: World, group: aiokcc.Group, partition: Partition, logs: Mapping[str, Sequence[int]], takes: float
) -> None:
    """Run a partition over its log. No record starts unless the lock in the store is this session's: one owner."""
    who, stamps = group.member, logs[str(partition)]
    async with group.gate(*partition) as gate:
        for offset in range(gate.resume_offset or 0, len(stamps)):
            await gate.wait_until(stamps[offset], offset)
            owner = world.owner(partition.number, partition.topic)
            member_session = group.membership.member_session
            assert member_session is not None
            assert owner == member_session.name, f"{who} starts {partition}@{offset}, which {owner} owns"
            world.history.start(who, str(partition), stamps[offset], offset)
            try:
                await asyncio.sleep(takes)
            except BaseException:
                world.history.gone(who, str(partition), stamps[offset], offset)
                raise
            world.history.done(who, str(partition), stamps[offset], offset)
        gate.finish(len(stamps))


def owners(world: World, count: int = 6) -> dict[str, list[int]]:
    """Returns the partitions whose locks each member holds."""
    result: dict[str, list[int]] = {}
    for number in range(count):
        owner = world.owner(number)
        if owner is not None:
            result.setdefault(owner.rpartition("-")[0], []).append(number)
    return result


def state(world: World, topic: str = "orders") -> TopicState:
    return decode_state("state", world.data(f"state/{topic}"))[0]


async def until_ended(world: World, seconds: float = 3600) -> None:
    async with asyncio.timeout(seconds), world.store.session() as session:
        with session.watch() as watch:
            watch.add("coordinator")
            async for change in watch:
                if isinstance(change.now, Node) and change.now.data == b"end":
                    return


async def stop(world: World, group: aiokcc.Group) -> None:
    """Stop a member's process for longer than its session lasts."""
    session = world.session(group)
    world.server.freeze(session)
    await asyncio.sleep(session.timeout)
    world.server.expire(session)


async def test_members_share_a_run(world: World) -> None:
    async with member(world, "a"), member(world, "b"), member(world, "c"):
        await asyncio.sleep(1.1)
        assert owners(world) == {"a": [0, 3], "b": [1, 4], "c": [2, 5]}
        assert state(world) is TopicState.STABLE
        assert world.data("assignments/orders") == b"a:0,3;b:1,4;c:2,5;"
        await until_ended(world)
    world.history.check(LOGS)


async def test_nothing_is_assigned_while_joins_are_gathered(world: World) -> None:
    async with member(world, "a", join_window=5), member(world, "b", join_window=5):
        await asyncio.sleep(4.9)
        assert owners(world) == {}
        assert state(world) is TopicState.INITIAL
        await asyncio.sleep(0.2)
        assert owners(world) == {"a": [0, 2, 4], "b": [1, 3, 5]}


async def test_the_window_closes_early_when_everybody_expected_is_there(world: World) -> None:
    async with member(world, "a", expect=2):
        await asyncio.sleep(10)
        assert owners(world) == {}
        async with member(world, "b", expect=2):
            await settle()
            assert owners(world) == {"a": [0, 2, 4], "b": [1, 3, 5]}


async def test_an_arrival_during_the_window_leads_to_a_decision_only_if_it_closes_the_window(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window waits as a delayed operation under the key of the registrations; nothing else asks the machine meanwhile."""
    decisions: list[Decision] = []
    decide = RebalanceMachine.decide

    def decide_and_note(self: RebalanceMachine, now: float) -> Decision:
        decisions.append(decide(self, now))
        return decisions[-1]

    monkeypatch.setattr(RebalanceMachine, "decide", decide_and_note)
    async with member(world, "a", expect=3), asyncio.timeout(20):
        await settle()
        assert isinstance(decisions[-1], Await)
        decisions.clear()
        async with member(world, "b", expect=3):
            await settle()
            assert decisions == []
            assert owners(world) == {}
            async with member(world, "c", expect=3):
                await settle()
                assert isinstance(decisions[0], Reassign)
                assert owners(world) == {"a": [0, 3], "b": [1, 4], "c": [2, 5]}


async def test_those_who_did_not_come_are_not_waited_for_longer_than_the_window(world: World) -> None:
    async with member(world, "a", expect=3, join_window=7), member(world, "b", expect=3, join_window=7):
        await asyncio.sleep(6.9)
        assert owners(world) == {}
        await asyncio.sleep(0.2)
        assert owners(world) == {"a": [0, 2, 4], "b": [1, 3, 5]}


async def test_a_member_that_joins_later_gets_a_share_and_the_others_keep_theirs(world: World) -> None:
    async with member(world, "a"), member(world, "b"):
        await asyncio.sleep(1.1)
        before = owners(world)
        async with member(world, "c"):
            await asyncio.sleep(1.3)  # the window, and a handler's time
            after = owners(world)
            assert {name: len(numbers) for name, numbers in after.items()} == {"a": 2, "b": 2, "c": 2}
            assert set(after["a"]) < set(before["a"])
            assert set(after["b"]) < set(before["b"])
            await until_ended(world)
    world.history.check(LOGS)


async def test_closing_before_starting(world: World) -> None:
    """While a handler is at work on a partition that moves, it is unassigned; then it is assigned to the new member."""
    async with member(world, "a", takes=30):
        await asyncio.sleep(1.1)
        assert owners(world) == {"a": [0, 1, 2, 3, 4, 5]}
        async with member(world, "b", takes=30):
            await asyncio.sleep(1.1)
            assert state(world) is TopicState.CLOSING
            assert decode_state("", world.data("state/orders"))[2] == {0: "a", 2: "a", 4: "a"}
            assert world.data("assignments/orders") == b"a:1,3,5;"
            assert owners(world) == {"a": [0, 1, 2, 3, 4, 5]}
            await asyncio.sleep(30)
            assert owners(world) == {"a": [1, 3, 5], "b": [0, 2, 4]}
            assert state(world) is TopicState.STABLE
    world.history.check(LOGS, complete=False)


async def test_the_partitions_of_a_member_that_dies_move_at_once(world: World) -> None:
    async with member(world, "a"), member(world, "b"), member(world, "c") as dead:
        await asyncio.sleep(1.1)
        assert owners(world)["c"] == [2, 5]
        await stop(world, dead)
        await settle()
        assert owners(world) in ({"a": [0, 2, 3], "b": [1, 4, 5]}, {"a": [0, 3, 5], "b": [1, 2, 4]})
        await until_ended(world)
    world.history.check(LOGS, one_owner=False)


async def test_the_partitions_of_a_member_that_leaves_move_at_once(world: World) -> None:
    async with member(world, "a"), member(world, "b"):
        async with member(world, "c"):
            await asyncio.sleep(1.1)
            assert owners(world)["c"] == [2, 5]
        await asyncio.sleep(0.2)  # a handler's time
        assert {name: len(numbers) for name, numbers in owners(world).items()} == {"a": 3, "b": 3}
        await until_ended(world)
    world.history.check(LOGS)


async def test_the_only_one_with_work_dies_and_the_other_takes_over_without_a_window(world: World) -> None:
    logs = {"orders.0": LOGS["orders.0"]}
    async with member(world, "b", logs, takes=10) as leader:
        await asyncio.sleep(1.1)
        async with member(world, "a", logs):
            await asyncio.sleep(3)
            assert owners(world, 1) == {"b": [0]}
            assert world.leader().startswith("b-")
            await stop(world, leader)
            await settle()
            assert owners(world, 1) == {"a": [0]}
            await until_ended(world)


async def test_a_session_lost_by_a_member_that_comes_back_moves_nothing(world: World) -> None:
    """The new session is registered before the old one has ended, so what was assigned to the member stays assigned to it."""
    async with member(world, "a"), member(world, "b") as b:
        await asyncio.sleep(1.1)
        before, generation = owners(world), world.data("generation")
        world.server.freeze(world.session(b))
        leave = asyncio.Event()
        joined = asyncio.Event()
        twin = asyncio.create_task(stay(member(world, "b"), joined, leave))
        await asyncio.sleep(9)
        assert not joined.is_set(), "the first one may be alive"
        world.server.expire(world.session(b))
        await joined.wait()
        await settle()
        assert owners(world) == before
        assert world.data("generation") == generation
        await until_ended(world)
        leave.set()
        await twin
    world.history.check(LOGS, one_owner=False)


async def stay(context: Any, joined: asyncio.Event, leave: asyncio.Event) -> None:
    async with context:
        joined.set()
        await leave.wait()


async def test_the_same_id_twice_is_an_error_for_the_second(world: World) -> None:
    async with member(world, "a"), member(world, "b") as b:
        await asyncio.sleep(1.1)
        before, generation = owners(world), world.data("generation")
        begun = world.time()
        with pytest.raises(
            aiokcc.MemberExistsError, match=r"the member id 'b' is in use .* by b-[0-9a-f]+, which is alive"
        ):
            async with member(world, "b"):
                pass
        assert world.time() - begun < 0.01, "who is alive answers at once"
        await asyncio.sleep(1.5)
        assert owners(world) == before
        assert world.data("generation") == generation
        assert b"asked" not in world.data(f"ids/{b.membership.member_session.name}")  # type: ignore[union-attr]


async def test_isolated_counts_as_closed(world: World) -> None:
    async with member(world, "a"), member(world, "b") as b:
        await asyncio.sleep(1.1)
        async with world.store.session() as operator:
            await operator.create("isolated/b")
            await asyncio.sleep(0.2)
            assert owners(world) == {"a": [0, 1, 2, 3, 4, 5]}
            assert b.assigned == frozenset()
            await operator.delete("isolated/b", 0)
            await asyncio.sleep(1.2)
            assert {name: len(numbers) for name, numbers in owners(world).items()} == {"a": 3, "b": 3}
            await until_ended(world)
    world.history.check(LOGS)


async def test_nothing_is_assigned_when_all_are_isolated(world: World) -> None:
    async with member(world, "a"), world.store.session() as operator:
        await asyncio.sleep(1.1)
        await operator.create("isolated/a")
        await asyncio.sleep(1)
        assert owners(world) == {}
        assert state(world) is TopicState.CLOSING or state(world) is TopicState.INITIAL
        await operator.delete("isolated/a", 0)
        await until_ended(world)
    world.history.check(LOGS)


async def test_partitions_stay_while_the_store_is_away(world: World) -> None:
    async with member(world, "a"), member(world, "b"):
        await asyncio.sleep(1.1)
        before, generation = owners(world), world.data("generation")
        world.server.suspend()
        await asyncio.sleep(5)
        world.server.resume()
        await asyncio.sleep(1)
        assert owners(world) == before
        assert world.data("generation") == generation
        await until_ended(world)
    world.history.check(LOGS)


async def test_a_new_leader_goes_on_in_the_middle_of_closing(world: World) -> None:
    async with member(world, "b", takes=20) as leader, member(world, "a", takes=20):
        await asyncio.sleep(1.1)
        async with member(world, "c"):
            await asyncio.sleep(1.1)
            assert state(world) is TopicState.CLOSING
            await stop(world, leader)
            await asyncio.sleep(40)
            assert sum(len(numbers) for numbers in owners(world).values()) == 6
            assert state(world) is TopicState.STABLE
            assert not world.leader().startswith("b-")
            await until_ended(world)
    world.history.check(LOGS, one_owner=False)


async def test_a_group_that_was_stopped_comes_back_with_the_same_shares(world: World) -> None:
    async with member(world, "a"), member(world, "b"), member(world, "c"):
        await asyncio.sleep(1.5)
        before = owners(world)
        generation = world.data("generation")
    # leaving one by one moves things; so put the assignment back as a crash of all would have left it
    node = world.node("assignments/orders")
    assert node is not None
    async with world.store.session() as s:
        await s.set(
            "assignments/orders",
            b"".join(f"{m}:{','.join(map(str, ns))};".encode() for m, ns in before.items()),
            node.version,
        )
    async with member(world, "c"), member(world, "b"):
        await asyncio.sleep(0.5)
        assert owners(world) == {"b": [1, 4], "c": [2, 5]}, "a may be coming back, too"
        async with member(world, "a"):
            await settle()
            assert owners(world) == before
            assert world.data("generation") != generation
            await until_ended(world)
    world.history.check(LOGS)


# Something goes wrong at every single call in turn


async def play(world: World) -> None:
    """A run in which a member joins, another leaves and comes back, and one is isolated for a while."""
    logs = {f"orders.{n}": [n * 31 + i * 400 for i in range(12)] for n in range(4)}

    async def stays(name: str, after: float, seconds: float | None) -> None:
        await asyncio.sleep(after)
        async with world.connect(topics={"orders": 4}, assignment="managed", member=name, join_window=0.3) as c:

            async def consume(partition: Partition) -> None:
                await process(world, c, partition, logs, 0.2)

            async with asyncio.timeout(seconds):
                await c.share(consume)

    async def comes_and_goes() -> None:
        with contextlib.suppress(TimeoutError):
            await stays("b", 0.1, 1.5)
        with contextlib.suppress(aiokcc.RunEnded):  # too late
            await stays("b", 0.5, None)

    async def operator() -> None:
        await asyncio.sleep(1.2)
        async with world.store.session() as session:
            with contextlib.suppress(StoreError):
                await session.ensure("isolated/c")
            await asyncio.sleep(1)
            with contextlib.suppress(StoreError):
                await session.delete("isolated/c", -1)

    async with asyncio.timeout(HOUR):
        await asyncio.gather(stays("a", 0, None), comes_and_goes(), stays("c", 0.8, None), operator())
    assert world.data("coordinator") == b"end"
    world.history.check(
        logs, one_owner=False
    )  # a record that had started when the session ended may end beside its successor


def lose(world: World, call: Call) -> None:
    raise OutcomeUnknownError("the answer was lost")


def expire(world: World, call: Call) -> None:
    world.server.expire(call.session)


def suspend(world: World, call: Call) -> None:
    world.server.suspend(call.session)
    loop = asyncio.get_running_loop()
    loop.call_later(3, world.server.resume, call.session)
    loop.call_later(20, world.server.expire_overdue)  # a client that left while it was cut off


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("when", "which", "fault"),
    [
        ("before", "writes", lose),
        ("after", "writes", lose),
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
            await play(world)
        except BaseException as error:
            error.add_note(f"with {fault.__name__} {when} call {number}: {hook.hit}")
            raise
        world.check()
        if hook.hit is None:
            assert number > 30
            return


# What it costs


async def idle_group(world: World, stack: contextlib.AsyncExitStack, names: list[str], partitions: int) -> None:
    """Members that hold what they are given, and wait at a limit that never moves."""
    logs = {f"orders.{n}": [10**12] for n in range(partitions)}
    for name in names:
        await stack.enter_async_context(member(world, name, logs, expect=len(names), clock=lambda: 0))


@pytest.mark.parametrize("partitions", [40, 400])
async def test_a_rebalance_costs_as_many_operations_as_there_are_members_and_moves(
    world: World, partitions: int
) -> None:
    names = [f"m{n:02}" for n in range(10)]
    async with contextlib.AsyncExitStack() as stack:
        await idle_group(world, stack, names, partitions)
        async with member(world, "z", {f"orders.{n}": [10**12] for n in range(partitions)}, clock=lambda: 0):
            await asyncio.sleep(60)
            moved = len(owners(world, partitions)["z"])
            assert moved == partitions // 11
            world.record_calls()
        await asyncio.sleep(60)
        assert sum(map(len, owners(world, partitions).values())) == partitions
        assert len(world.calls) <= 12 * (len(names) + 1) + 2 * moved


async def test_a_clean_leave_is_a_few_round_trips(world: World) -> None:
    """Every call takes a second; the others hold what was left after less than ten."""
    async with contextlib.AsyncExitStack() as stack:
        await idle_group(world, stack, ["a", "b"], 6)
        async with contextlib.AsyncExitStack() as leaves:
            logs = {f"orders.{n}": [10**12] for n in range(6)}
            await leaves.enter_async_context(member(world, "c", logs, clock=lambda: 0, expect=3))
            await asyncio.sleep(60)
            assert len(owners(world)["c"]) == 2
            slow = world.server.intercept(before=lambda call: asyncio.sleep(1))
            begun = world.time()
        held = asyncio.Event()
        world.server.intercept(after=lambda call: held.set() if len(owners(world)) == 2 else None)
        async with asyncio.timeout(60):
            while sum(map(len, owners(world).values())) < 6:
                held.clear()
                await held.wait()
        assert world.time() - begun < 10
        slow.close()


async def test_a_task_group_around_a_gate_that_is_revoked_is_no_failure(world: World) -> None:
    """A member joins: what moves to it is revoked inside a task group of the first one, which wraps the error."""
    settings: dict[str, Any] = {"topics": {"orders": 2}, "assignment": "managed", "join_window": 0.3}
    runs: list[str] = []

    async def member(name: str, begun: asyncio.Event) -> None:
        async with world.connect(member=name, **settings) as group:

            async def read(gate: aiokcc.Gate, number: int) -> None:
                for n in range(40):
                    await gate.wait_until(n * 500, n)
                    await asyncio.sleep(0.1)
                    begun.set()
                runs.append(f"{name} {number}")
                gate.finish(40)

            async def consume(partition: Partition) -> None:
                async with group.gate(*partition) as gate, asyncio.TaskGroup() as tasks:
                    tasks.create_task(read(gate, partition.number))

            await group.share(consume)

    one, two = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(member("one", one))
        await one.wait()
        tasks.create_task(member("two", two))
    assert two.is_set(), "it was given a partition"
    assert sorted(run.split()[1] for run in runs) == ["0", "1"]
