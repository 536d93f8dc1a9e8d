"""Each condition of each write, on the code itself: a write that is on its way when its condition ends is refused.

Each test holds one transaction between the member that sends it and the store. Meanwhile somebody else writes one of the nodes
on which the transaction is conditional; the content stays the same, so only the version tells. Then the transaction is let go.
The store must refuse it because of this very node, and the group must go on. Without the condition the store would apply the
transaction, and the test fails. docs/explanation/protocol.md names these tests in "Every write and its condition".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

import aiokcc
from aiokcc.core.committed_offset import CommittedOffset
from aiokcc.core.limit import Limit
from aiokcc.core.partitions import Partition
from aiokcc.core.run import Bounds
from aiokcc.errors import BadVersionError
from aiokcc.runtime.new_run import remove_left_run
from aiokcc.runtime.operator import isolate, rejoin
from aiokcc.runtime.roots import delete_root
from aiokcc.runtime.store_offsets import write_offsets
from aiokcc.stores import Session
from aiokcc.stores.memory import Call
from aiokcc.stores.port import ANY_VERSION, Check, Create, Delete, Set
from tests.unit.runtime.test_assignment_leader import member, owners
from tests.unit.world import PERIOD, World
from tests.virtual import settle


def holds(world: World, name: str, **settings: Any) -> AbstractAsyncContextManager[aiokcc.Group]:
    """A member of a managed group whose records lie past the clock, so that it only holds its locks."""
    topics = settings.setdefault("topics", {"orders": 2})
    logs = {f"{topic}.{n}": [10**12] for topic, count in topics.items() for n in range(count)}
    return member(world, name, logs, clock=lambda: 0, **settings)


def writes(kind: type, path: str, *, by: Callable[[Call], bool] = lambda _: True) -> Callable[[Call], bool]:
    """Return what matches a write that has an operation of this kind on this path."""
    return lambda call: call.writes and any(type(op) is kind and op.path == path for op in call.ops) and by(call)


@asynccontextmanager
async def hand(world: World) -> AsyncIterator[Session]:
    """Give the session of somebody who is no member."""
    async with world.store.session() as session:
        yield session


async def touch(world: World, by: Session, path: str) -> None:
    """Write a node again with the content that it has, so that only its version changes."""
    await by.set(path, world.data(path), ANY_VERSION)


@asynccontextmanager
async def refused(world: World, match: Callable[[Call], bool], path: str) -> AsyncIterator[None]:
    """Hold the first write that matches, which the body causes; touch the node; check that the write is refused for it."""
    async with AsyncExitStack() as stack:
        by = await stack.enter_async_context(hand(world))
        held = stack.enter_context(world.server.hold_request(match))
        yield
        write = await asyncio.wait_for(held.reached(), 60)
        world.refused.clear()
        await touch(world, by, path)
        held.release()
        await settle()
        assert world.was_refused(write, path), "the write was applied, though its condition had ended"


# The limit


@asynccontextmanager
async def two(
    world: World, **settings: Any
) -> AsyncIterator[tuple[aiokcc.Group, aiokcc.Gate, aiokcc.Group, aiokcc.Gate]]:
    """A leader and a follower with one partition each, which finish when the block ends."""
    async with world.connect(member="a", **settings) as a, a.gate("orders", 0) as one:
        await settle()
        async with world.connect(member="b", **settings) as b, b.gate("orders", 1) as other:
            await settle()
            assert a.epoch == 1
            yield a, one, b, other
            await settle()
            one.finish(1000)
            other.finish(1000)


async def arrive(one: aiokcc.Gate, other: aiokcc.Gate, ts: int = PERIOD, offset: int = 1) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(one.wait_until(ts, offset))
        tasks.create_task(other.wait_until(ts, offset))


@pytest.mark.parametrize("lookahead", [0, 3])
@pytest.mark.parametrize("node", ["coordinator", "generation", "period", "report"])
async def test_an_advance(world: World, node: str, lookahead: int) -> None:
    async with two(world, lookahead=lookahead) as (_, one, b, other):
        assert b.membership.member_session is not None
        path = f"progress/{b.membership.member_session.name}" if node == "report" else node
        before, cuts, announced = world.limit, len(world.cuts()), world.below("limits")
        applied: list[Limit] = []

        def note(call: Call) -> None:
            if writes(Set, "coordinator")(call):
                applied.append(world.limit)

        async with refused(world, writes(Set, "coordinator"), path):
            moving = asyncio.create_task(arrive(one, other, before.value, 1))
            world.server.intercept(after=note)
        await moving  # the next decision rests on what there is now
        assert applied[0] == before, "nothing of it was applied"
        assert len(world.cuts()) > cuts
        assert len(world.below("limits")) > len(announced)


async def test_an_advance_announces_nothing_if_it_is_refused(world: World) -> None:
    """A name tells members the limit; so there must be none of a limit that was not written."""
    async with two(world) as (_, one, b, other):
        before = world.below("limits")
        with world.server.hold_request(writes(Set, "coordinator")) as held:
            moving = asyncio.create_task(arrive(one, other))
            await held.reached()
            async with hand(world) as operator:
                await operator.set("period", b"hold", ANY_VERSION)
            held.release()
            await asyncio.sleep(30)
            assert (world.below("limits"), b.limit) == (before, PERIOD)
        await b.set_period(PERIOD)
        await moving


@pytest.mark.parametrize("caught_up", ["release", "5s"])
async def test_an_advance_that_changes_the_request(world: World, caught_up: str) -> None:
    """The limit has reached the clock: the leader replaces the request that it has read, by a release or a longer period."""
    async with two(world, clock=lambda: 2 * PERIOD, caught_up=caught_up) as (_, one, _, other):
        await arrive(one, other)
        async with refused(world, writes(Set, "period"), "period"):
            moving = asyncio.create_task(arrive(one, other, 2 * PERIOD, 2))
        await moving


@pytest.mark.parametrize("node", ["coordinator", "generation", "period"])
async def test_a_release_of_the_gate(world: World, node: str) -> None:
    async with two(world) as (a, one, b, other):
        opens = writes(
            Set, "coordinator", by=lambda call: any(isinstance(op, Set) and op.data == b"open" for op in call.ops)
        )
        async with refused(world, opens, node):
            await b.release()
        await arrive(one, other, 50 * PERIOD, 50)
        assert a.released


async def test_an_advance_has_the_leaders_own_report(world: World) -> None:
    """Its idle partition is in no cut, so the report says it."""
    async with two(world) as (a, one, _, other):
        assert a.membership.member_session is not None
        resting = asyncio.create_task(one.idle(offset=0))
        await asyncio.wait_for(other.wait_until(PERIOD, 1), 60)
        await resting
        assert b"idle" in world.data(f"progress/{a.membership.member_session.name}")


async def test_an_advance_that_ends_the_run(world: World) -> None:
    async with world.connect(topics={"orders": 1}) as group, group.gate("orders", 0) as gate:
        async with refused(world, writes(Set, "run"), "run"):
            gate.finish(0)
        await settle()
        assert group.ended


@pytest.mark.parametrize("node", ["coordinator", "generation"])
async def test_a_limit_that_was_not_announced(world: World, node: str) -> None:
    """The leader was alone until now. The limit that it announces must be the one that the node holds."""
    async with world.connect(member="a") as a, a.gate("orders", 0) as one:
        await settle()
        async with a.gate("orders", 1) as mine:
            await arrive(one, mine)
        async with AsyncExitStack() as stack:
            async with refused(world, writes(Check, "coordinator"), node):
                b = await stack.enter_async_context(world.connect(member="b"))
            other = await stack.enter_async_context(b.gate("orders", 1))
            await arrive(one, other, 2 * PERIOD, 2)
            assert b.limit == a.limit == 3 * PERIOD
            one.finish(3)
            other.finish(3)


@pytest.mark.parametrize("node", ["coordinator", "generation"])
async def test_a_limit_that_is_written_again(world: World, node: str) -> None:
    """Somebody who is no leader has written a lower limit. The leader writes the right one, over what it has read."""
    async with two(world) as (a, one, b, other):
        await arrive(one, other)
        async with hand(world) as somebody:
            await somebody.set("coordinator", Limit((PERIOD // 2,)).encode(), ANY_VERSION)
            repairs = writes(Set, "coordinator", by=lambda call: "period" not in call.paths)
            async with refused(world, repairs, node):
                moving = asyncio.create_task(arrive(one, other, 2 * PERIOD, 2))
        await moving
        assert a.limit == b.limit == 3 * PERIOD
        now = world.node("coordinator")
        assert now is not None
        announced = {int(name.partition(":")[0]) for name in world.below("limits")}
        assert {now.version - 1, now.version} <= announced, "the one that was written again, and the one after it"


# The group, and the generation


async def test_two_founders(world: World) -> None:
    """Both have found no group. The second one to write finds the nodes of the first, and joins it."""

    async def take_part(name: str, number: int) -> int:
        async with world.connect(member=name) as group:
            await world.consume(group, number, [0])
            return group.membership.founded

    async with asyncio.TaskGroup() as tasks:
        with world.server.hold_request(writes(Create, "run")) as held:
            one = tasks.create_task(take_part("a", 0))
            write = await held.reached()
            other = tasks.create_task(take_part("b", 1))
            await settle()
        await settle()
        assert world.was_refused(write, "generation")
    assert one.result() == other.result()
    assert world.data("coordinator") == b"end"


@pytest.mark.parametrize("node", ["generation", "candidate"])
async def test_a_take_over(world: World, node: str) -> None:
    async with AsyncExitStack() as stack:
        by = await stack.enter_async_context(hand(world))
        with world.server.hold_request(writes(Set, "generation")) as held:
            group = await stack.enter_async_context(world.connect())
            write = await held.reached()
            (candidate,) = (f"leader/{name}" for name in world.below("leader"))
            if node == "generation":
                await touch(world, by, node)
            else:
                await by.delete(candidate, ANY_VERSION)
            before = world.data("generation")
        await settle()
        assert world.was_refused(write, node if node == "generation" else candidate)
        assert before.endswith(b"founded")
        assert group.epoch == 1, "it reads again, or stands again"


async def test_a_change_of_the_set_raises_the_generation(world: World) -> None:
    """So reports and advances of the set before no longer count."""
    async with world.connect(topics={"orders": 1}, grows=True) as group, group.gate("orders", 0) as one:
        await settle()
        group.add({Partition("orders", 1): Bounds(0)})
        await settle()
        assert (group.epoch, world.data("generation")[:2]) == (2, b"2 ")
        async with group.gate("orders", 1) as other:
            one.finish(0)
            other.finish(0)


@pytest.mark.parametrize("node", ["generation", "topic-partitions", "run"])
async def test_a_change_of_the_set(world: World, node: str) -> None:
    bounds = {Partition("orders", 2): Bounds(0)}
    async with world.connect(grows=True) as group, group.gate("orders", 0) as one, group.gate("orders", 1) as other:
        await settle()
        before = world.data("topic-partitions")
        async with refused(world, writes(Set, "topic-partitions"), node):
            group.add(bounds)
        group.add(bounds)  # as the discovery of topics does, time and again
        await settle()
        assert world.data("topic-partitions") != before
        assert Partition("orders", 2) in group.partitions
        async with group.gate("orders", 2) as third:
            for gate in (one, other, third):
                gate.finish(0)


# Assignments


@pytest.mark.parametrize("node", ["generation", "assignments/orders", "state/orders"])
async def test_an_assignment(world: World, node: str) -> None:
    async with AsyncExitStack() as stack:
        async with refused(world, writes(Set, "assignments/orders"), node):
            await stack.enter_async_context(holds(world, "a"))
        await asyncio.sleep(60)
        assert owners(world) == {"a": [0, 1]}


async def test_an_assignment_raises_the_generation(world: World) -> None:
    async with holds(world, "a") as group:
        await asyncio.sleep(60)
        assert (group.epoch, world.data("generation")[:2]) == (2, b"2 ")


async def test_an_assignment_of_a_partition_that_somebody_holds(world: World) -> None:
    async with AsyncExitStack() as stack:
        by = await stack.enter_async_context(hand(world))
        with world.server.hold_request(writes(Set, "assignments/orders")) as held:
            await stack.enter_async_context(holds(world, "a"))
            write = await held.reached()
            await by.create("owners/orders/1", b"somebody", ephemeral=True)
        await asyncio.sleep(60)
        assert world.was_refused(write, "owners/orders/1")
        assert b"1" not in world.data("assignments/orders"), "not assigned while it has an owner"
        await by.delete("owners/orders/1", ANY_VERSION)
        await asyncio.sleep(60)
        assert owners(world) == {"a": [0, 1]}


@pytest.mark.parametrize("node", ["assignments/orders", "state/orders"])
async def test_the_assignment_of_a_topic_that_has_left_the_set(world: World, node: str) -> None:
    async with holds(world, "a", topics={"orders": 1, "more": 1}, grows=True) as group:
        await asyncio.sleep(60)
        async with refused(world, writes(Delete, "assignments/orders"), node):
            group.remove(frozenset({Partition("orders", 0)}))
        await asyncio.sleep(60)
        assert world.below("assignments") == ["more"]


async def test_the_first_nodes_of_a_topic(world: World) -> None:
    async with AsyncExitStack() as stack:
        async with refused(world, writes(Create, "assignments/orders"), "generation"):
            await stack.enter_async_context(holds(world, "a"))
        await asyncio.sleep(60)
        assert owners(world) == {"a": [0, 1]}


async def test_an_assignment_without_its_state(world: World) -> None:
    """The state was deleted. Who takes over begins this topic again, unless somebody has written its assignment meanwhile."""
    async with holds(world, "a") as group:
        await asyncio.sleep(60)
        async with hand(world) as somebody:
            await somebody.delete("state/orders", ANY_VERSION)
        async with refused(world, writes(Delete, "assignments/orders"), "assignments/orders"):
            world.server.expire(world.session(group))
        await asyncio.sleep(60)
        assert owners(world) == {"a": [0, 1]}


async def test_an_assignment_that_is_written_again(world: World) -> None:
    """Somebody has left a partition out, by hand, and writes again while the leader puts it back."""
    async with holds(world, "a"):
        await asyncio.sleep(60)
        before = world.data("assignments/orders")
        repairs = writes(Set, "assignments/orders", by=lambda call: "generation" in call.paths)
        async with hand(world) as somebody, refused(world, repairs, "assignments/orders"):
            await somebody.set("assignments/orders", b"a:0;", ANY_VERSION)
        await asyncio.sleep(60)
        assert world.data("assignments/orders") == before


@pytest.mark.parametrize("node", ["generation", "state/orders"])
async def test_a_topic_that_is_stable(world: World, node: str) -> None:
    settles = writes(Set, "state/orders", by=lambda call: "assignments/orders" not in call.paths)
    async with AsyncExitStack() as stack:
        async with refused(world, settles, node):
            await stack.enter_async_context(holds(world, "a"))
        await asyncio.sleep(60)
        assert world.data("state/orders").startswith(b"Stable")


# Locks


async def test_a_claim(world: World) -> None:
    async with world.connect(topics={"orders": 1}) as group:
        await settle()
        async with refused(world, writes(Create, "owners/orders/0"), "generation"):
            opening = asyncio.create_task(group.gate("orders", 0).__aenter__())
        gate = await opening
        gate.finish(0)


async def test_a_claim_is_followed_by_reading_the_last_cut(world: World) -> None:
    """While the claim is on its way, the owner closes a period and releases the partition. The next one starts behind it."""
    async with world.connect(member="a") as a, world.connect(member="b") as b, a.gate("orders", 1) as other:
        with world.server.hold_request(
            writes(Create, "owners/orders/0", by=lambda c: c.session is world.session(b))
        ) as held:
            async with a.gate("orders", 0) as one:
                opening = asyncio.create_task(b.gate("orders", 0).__aenter__())
                await held.reached()
                await arrive(one, other)
        gate = await opening
        assert gate.resume_offset == 1
        gate.finish(2)
        other.finish(2)


@pytest.mark.parametrize("node", ["generation", "assignments/orders"])
async def test_a_claim_in_a_managed_group(world: World, node: str) -> None:
    def claims(call: Call) -> bool:
        return any(isinstance(op, Create) and op.path == "owners/orders/0" and op.ephemeral for op in call.ops)

    async with AsyncExitStack() as stack:
        async with refused(world, claims, node):
            await stack.enter_async_context(holds(world, "a"))
        await asyncio.sleep(60)
        assert owners(world) == {"a": [0, 1]}


async def test_a_release(world: World) -> None:
    async with world.connect(topics={"orders": 1}) as group:
        gate = await group.gate("orders", 0).__aenter__()
        async with refused(world, writes(Delete, "owners/orders/0"), "generation"):
            closing = asyncio.create_task(gate.__aexit__(None, None, None))
        await closing
        assert world.owner(0) is None


async def test_a_release_of_a_lock_that_another_member_holds(world: World) -> None:
    """Ours was deleted by hand, and another member has claimed it. We release the partition, and leave that lock alone."""
    async with world.connect(topics={"orders": 1}) as group, hand(world) as somebody:
        gate = await group.gate("orders", 0).__aenter__()
        await somebody.delete("owners/orders/0", ANY_VERSION)
        await somebody.create("owners/orders/0", b"somebody", ephemeral=True)
        await asyncio.wait_for(gate.__aexit__(None, None, None), 60)
        assert world.owner(0) == "somebody"


@pytest.mark.parametrize("node", ["generation", "assignments/orders"])
async def test_a_release_in_a_managed_group(world: World, node: str) -> None:
    """A partition that is still assigned to the member may be released without reading the lock first."""
    async with holds(world, "a"), AsyncExitStack() as leaver:
        await leaver.enter_async_context(holds(world, "b"))
        await asyncio.sleep(60)
        (number,) = owners(world)["b"]
        async with refused(world, writes(Delete, f"owners/orders/{number}"), node):
            leaving = asyncio.create_task(leaver.aclose())
        await leaving
        await asyncio.sleep(60)
        assert owners(world) == {"a": [0, 1]}


# Operators, and members with the same id


async def test_a_request(world: World) -> None:
    async with world.connect(topics={"orders": 1}) as group:
        await settle()
        async with refused(world, writes(Set, "period"), "period"):
            asking = asyncio.create_task(group.hold())
        await asking
        assert world.data("period") == b"hold"


async def test_a_rejoin(world: World) -> None:
    async with holds(world, "a"), hand(world) as operator:
        assert await isolate(world.store, operator, "a", by="test", now=0)
        async with refused(world, writes(Delete, "isolated/a"), "isolated/a"):
            rejoining = asyncio.create_task(rejoin(world.store, operator, "a"))
        with pytest.raises(BadVersionError):
            await rejoining
        assert await rejoin(world.store, operator, "a")


async def test_a_question_to_a_member_with_the_same_id(world: World) -> None:
    async with holds(world, "a") as first:
        await asyncio.sleep(60)
        assert first.membership.member_session is not None
        path = f"ids/{first.membership.member_session.name}"
        async with refused(world, writes(Set, path, by=lambda call: call.session is not world.session(first)), path):
            second = asyncio.create_task(world.connect(assignment="managed", member="a").__aenter__())
        with pytest.raises(aiokcc.MemberExistsError):
            await second


async def test_offsets_that_an_operator_writes(world: World) -> None:
    commits = {Partition("orders", 0): CommittedOffset(5)}
    async with hand(world) as operator:
        await write_offsets(world.store, operator, commits)
        path = "offsets/orders/0"
        async with refused(world, writes(Set, path, by=lambda call: call.session is operator), path):
            writing = asyncio.create_task(
                write_offsets(world.store, operator, {Partition("orders", 0): CommittedOffset(7)})
            )
        await writing
        assert b"7" in world.data(path)


# The end of a run


async def ended(world: World) -> None:
    async with world.connect(topics={"orders": 1}) as group:
        await world.consume(group, 0, [0])
    await settle()


async def test_a_deletion_of_a_run(world: World) -> None:
    await ended(world)
    async with hand(world) as operator:
        async with refused(world, writes(Delete, "run"), "run"):
            deleting = asyncio.create_task(delete_root(world.store, operator))
        with pytest.raises(aiokcc.UsageError, match="nothing was deleted, try again"):
            await deleting
        assert world.node("coordinator") is not None
        assert await delete_root(world.store, operator)


async def test_a_deletion_of_what_a_run_has_left(world: World) -> None:
    """Somebody has founded a new run meanwhile: what is left may be that run's."""
    await ended(world)
    async with hand(world) as operator, hand(world) as founder:
        await operator.ensure("offsets/orders")
        with world.server.hold_request(writes(Create, "run")) as held:
            deleting = asyncio.create_task(delete_root(world.store, operator))
            write = await held.reached()
            await founder.create("run", b"new")
        with pytest.raises(aiokcc.CoordinationError, match="somebody has begun a new one"):
            await deleting
        assert world.was_refused(write, "run")
        assert world.node("offsets/orders") is not None


async def test_a_removal_of_a_run_that_all_have_left(world: World) -> None:
    await ended(world)
    async with hand(world) as joining:
        async with refused(world, writes(Delete, "run"), "run"):
            removing = asyncio.create_task(remove_left_run(world.store, joining))
        assert await removing
        assert world.node("coordinator") is not None, "another process was faster: it reads again"
