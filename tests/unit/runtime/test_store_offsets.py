"""Commits to the store: behind the fence, never back, and right again after any fault."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import aiokcc
from aiokcc.core.committed_offset import CommittedOffset
from aiokcc.errors import CoordinationError, CorruptNodeError, SessionLostError
from aiokcc.runtime.member_session import MemberSession
from aiokcc.runtime.store_offsets import StoreOffsets, find_offsets, list_offsets, write_offsets
from aiokcc.stores.memory import Call
from aiokcc.stores.port import ANY_VERSION
from tests.unit.world import World
from tests.virtual import settle

ORDERS = World.partition(0)
OTHER = World.partition(1)


def us(group: aiokcc.Group) -> MemberSession:
    member_session = group.membership.member_session
    assert member_session is not None
    return member_session


def stored(world: World, number: int = 0) -> CommittedOffset:
    return CommittedOffset.decode("offsets", world.data(f"offsets/orders/{number}"))


@asynccontextmanager
async def owning(world: World, *numbers: int, **settings: object) -> AsyncIterator[tuple[aiokcc.Group, StoreOffsets]]:
    """A member that holds these partitions, and its offsets."""
    async with world.connect(**settings) as c:
        gates = [c.gate("orders", n) for n in numbers]
        for gate in gates:
            await gate.__aenter__()
        await settle()
        yield c, StoreOffsets(c.membership)
        for gate in gates:
            await gate.__aexit__(None, None, None)


async def bump(world: World) -> None:
    """A member takes over."""
    number = int(world.data("generation").split()[0]) + 1
    async with world.store.session() as session:
        await session.set("generation", f"{number} somebody took office".encode(), ANY_VERSION)
    await settle()


async def test_a_commit_stands_in_the_store_with_who_and_under_which_generation(world: World) -> None:
    async with owning(world, 0, 1) as (c, offsets):
        await offsets.commit(us(c), {ORDERS: 5, OTHER: 7})
        commit = stored(world)
        assert (commit.offset, commit.generation, commit.by) == (5, c.epoch, us(c).name)
        assert commit.run == world.node("run").created  # type: ignore[union-attr]
        assert stored(world, 1).offset == 7
        assert await offsets.committed([ORDERS, OTHER]) == {ORDERS: 5, OTHER: 7}


async def test_only_what_has_changed_is_written_in_one_round_trip(world: World) -> None:
    async with owning(world, 0, 1) as (c, offsets):
        await offsets.commit(us(c), {ORDERS: 5, OTHER: 7})
        world.record_calls()
        await offsets.commit(us(c), {ORDERS: 6, OTHER: 7})
        assert [(call.verb, call.paths) for call in world.calls] == [("commit", ("generation", "offsets/orders/0"))]
        world.calls.clear()
        await offsets.commit(us(c), {ORDERS: 6, OTHER: 7})
        assert world.calls == []


async def test_many_partitions_are_one_transaction_as_long_as_it_stays_below_the_limit(world: World) -> None:
    async with owning(world, *range(600), topics={"orders": 600}) as (c, offsets):
        await offsets.commit(us(c), {World.partition(n): 1 for n in range(600)})
        world.record_calls()
        await offsets.commit(us(c), {World.partition(n): 2 for n in range(600)})
        assert [call.verb for call in world.calls] == ["commit", "commit"]
        assert len(world.below("offsets/orders")) == 600


async def test_an_offset_never_goes_back_within_a_run(world: World) -> None:
    async with owning(world, 0) as (c, offsets):
        await offsets.commit(us(c), {ORDERS: 9})
        await offsets.commit(us(c), {ORDERS: 5})
        await StoreOffsets(c.membership).commit(us(c), {ORDERS: 5})  # one that has read nothing yet
        assert stored(world).offset == 9


async def test_offsets_of_another_run_or_an_operator_do_not_count_and_are_replaced(world: World) -> None:
    async with world.store.session() as session:
        await write_offsets(
            world.store, session, {ORDERS: CommittedOffset(900, by="operator"), OTHER: CommittedOffset(800, run=1)}
        )
    async with owning(world, 0, 1) as (c, offsets):
        assert await offsets.committed([ORDERS, OTHER]) == {}
        await offsets.commit(us(c), {ORDERS: 3, OTHER: 4})
        assert await offsets.committed([ORDERS, OTHER]) == {ORDERS: 3, OTHER: 4}


async def test_a_node_that_cannot_be_read_does_not_count_and_is_replaced(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with owning(world, 0) as (c, offsets), world.store.session() as session:
        await session.ensure("offsets/orders")
        await session.create("offsets/orders/0", b"rubbish")
        assert await offsets.committed([ORDERS]) == {}
        assert "holds 'rubbish'" in caplog.text
        await offsets.commit(us(c), {ORDERS: 3})
        assert stored(world).offset == 3


# The fence


async def test_a_commit_that_missed_a_generation_is_refused_and_decided_again(world: World) -> None:
    async with owning(world, 0) as (c, offsets):
        await offsets.commit(us(c), {ORDERS: 5})
        with world.server.hold_request(lambda call: call.touches("offsets/orders/0")) as held:
            committing = asyncio.create_task(offsets.commit(us(c), {ORDERS: 6}))
            await held.reached()
            world.record_calls()
            await bump(world)
        await committing
        assert stored(world).offset == 6
        assert stored(world).generation == int(world.data("generation").split()[0])
        seen = [call.paths for call in world.calls if "owners/orders/0" in call.paths]
        assert seen, "it has looked whether the lock is still its own"


async def test_a_commit_is_refused_once_the_generation_has_moved_and_the_lock_is_anothers(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with owning(world, 0, member="a") as (c, offsets):
        await offsets.commit(us(c), {ORDERS: 5})
        with world.server.hold_request(lambda call: call.touches("offsets/orders/0")) as held:
            committing = asyncio.create_task(offsets.commit(us(c), {ORDERS: 6}))
            await held.reached()
            async with world.store.session() as thief:
                await thief.delete("owners/orders/0", ANY_VERSION)
                await thief.create("owners/orders/0", b"b", ephemeral=True)
                await bump(world)
                held.release()
                await committing
        assert stored(world).offset == 5
        assert "the offsets of orders.0 are not committed: we no longer hold them" in caplog.text


async def test_a_zombies_commit_is_refused(world: World) -> None:
    """It is stopped with a commit decided but not sent; its session ends, another takes the partition, processes, commits."""
    async with owning(world, 0, member="a") as (a, stale):
        await stale.commit(us(a), {ORDERS: 1})
        zombie = us(a)
        with world.server.hold_request(lambda call: call.touches("offsets/orders/0")) as held:
            committing = asyncio.create_task(stale.commit(zombie, {ORDERS: 2}))
            await held.reached()
            world.server.freeze(zombie.session)
            world.server.expire(zombie.session)
            async with owning(world, 0, member="b") as (b, offsets):
                assert await offsets.committed([ORDERS]) == {ORDERS: 1}
                await offsets.commit(us(b), {ORDERS: 3})
                held.release()
                world.server.thaw(zombie.session)
                with pytest.raises(SessionLostError):
                    await committing
                assert stored(world).offset == 3
                assert stored(world).by == us(b).name
                with pytest.raises(SessionLostError):  # nor may it decide again in the session that is over
                    await StoreOffsets(a.membership).commit(zombie, {ORDERS: 9})
                assert stored(world).offset == 3


async def test_a_partition_that_is_not_ours_is_not_committed(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async with owning(world, 0, member="a") as (a, offsets), owning(world, 1, member="b"):
        await offsets.commit(us(a), {ORDERS: 5, OTHER: 5})
        assert stored(world).offset == 5
        assert world.node("offsets/orders/1") is None
        assert "orders.1" in caplog.text


async def test_a_session_lost_while_they_are_read_leaves_the_last_cut(world: World) -> None:
    async with owning(world, 0) as (c, offsets):
        await offsets.commit(us(c), {ORDERS: 5})
        with world.server.hold_request(lambda call: call.paths == ("offsets/orders/0",)) as held:
            reading = asyncio.create_task(offsets.committed([ORDERS]))
            await held.reached()
            world.server.expire(world.session(c))
            held.release()
            assert await reading == {}
        await settle()
        assert await offsets.committed([ORDERS]) == {ORDERS: 5}


# Lost answers and stale versions


@pytest.mark.parametrize("first", [True, False])
async def test_a_commit_whose_answer_is_lost_is_read_again_and_made_once(world: World, first: bool) -> None:
    async with owning(world, 0) as (c, offsets):
        if not first:
            await offsets.commit(us(c), {ORDERS: 5})
        with world.server.hold_reply(lambda call: call.touches("offsets/orders/0")) as held:
            committing = asyncio.create_task(offsets.commit(us(c), {ORDERS: 6}))
            await held.reached()
            held.lose()
            await committing
        node = world.node("offsets/orders/0")
        assert node is not None
        assert (stored(world).offset, node.version) == (6, 0 if first else 1)
        await offsets.commit(us(c), {ORDERS: 7})
        assert stored(world).offset == 7


async def test_a_commit_that_never_arrived_is_made_again(world: World) -> None:
    async with owning(world, 0) as (c, offsets):
        with world.server.hold_request(lambda call: call.touches("offsets/orders/0")) as held:
            committing = asyncio.create_task(offsets.commit(us(c), {ORDERS: 6}))
            await held.reached()
            held.lose()
            await committing
        assert stored(world).offset == 6


async def test_a_cancelled_commit_leaves_the_next_one_right(world: World) -> None:
    async with owning(world, 0) as (c, offsets):
        await offsets.commit(us(c), {ORDERS: 5})
        with world.server.hold_reply(lambda call: call.touches("offsets/orders/0")) as held:
            committing = asyncio.create_task(offsets.commit(us(c), {ORDERS: 6}))
            await held.reached()
            committing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await committing
        await offsets.commit(us(c), {ORDERS: 7})
        assert stored(world).offset == 7


async def test_somebody_else_has_written_since_we_read(world: World) -> None:
    """An operator by force, or the owner between two sessions of ours: what stands there decides, not what we remember."""
    async with owning(world, 0) as (c, offsets), world.store.session() as session:
        await offsets.commit(us(c), {ORDERS: 5})
        await write_offsets(world.store, session, {ORDERS: CommittedOffset(100, by="operator")})
        await offsets.commit(us(c), {ORDERS: 6})
        assert stored(world).offset == 6
        ahead = CommittedOffset(8, c.membership.founded, 99, by="owner-between")
        await session.set("offsets/orders/0", ahead.encode(), ANY_VERSION)
        await offsets.commit(us(c), {ORDERS: 7})
        assert stored(world) == ahead


async def test_a_node_that_was_deleted_is_made_again(world: World) -> None:
    async with owning(world, 0) as (c, offsets), world.store.session() as session:
        await offsets.commit(us(c), {ORDERS: 5})
        for path in ("offsets/orders/0", "offsets/orders", "offsets"):
            await session.delete(path, ANY_VERSION)
        await offsets.commit(us(c), {ORDERS: 6})
        assert stored(world).offset == 6


async def test_a_commit_that_others_overtake_for_ever_gives_up(world: World) -> None:
    async with owning(world, 0) as (c, offsets), world.store.session() as session:
        await offsets.commit(us(c), {ORDERS: 5})

        async def meddle(call: Call) -> None:
            if call.verb == "commit" and call.touches("offsets/orders/0"):
                await session.set("offsets/orders/0", b"1", ANY_VERSION)

        with world.server.intercept(before=meddle), pytest.raises(CoordinationError, match="at every attempt"):
            await offsets.commit(us(c), {ORDERS: 6})


# Operators


async def test_an_operator_writes_and_reads_them(world: World) -> None:
    async with world.store.session() as session:
        assert await list_offsets(world.store, session) == {}
        commits = {ORDERS: CommittedOffset(5, at=1, by="me@here"), OTHER: CommittedOffset(0, at=2, by="me@here")}
        await write_offsets(world.store, session, commits)
        assert await list_offsets(world.store, session) == commits
        await write_offsets(world.store, session, {ORDERS: CommittedOffset(2, at=3, by="me@here")})
        assert (await find_offsets(world.store, session, [ORDERS, World.partition(7)]))[ORDERS].offset == 2


@pytest.mark.parametrize("reply", [True, False])
async def test_an_operators_write_whose_answer_is_lost(world: World, reply: bool) -> None:
    async with world.store.session() as session:
        hold = world.server.hold_reply if reply else world.server.hold_request
        with hold(lambda call: call.touches("offsets/orders/0")) as held:
            writing = asyncio.create_task(write_offsets(world.store, session, {ORDERS: CommittedOffset(5)}))
            await held.reached()
            held.lose()
            await writing
        assert stored(world) == CommittedOffset(5)
        assert world.node("offsets/orders/0").version == 0  # type: ignore[union-attr]


async def test_an_operators_write_is_refused_when_somebody_takes_over_meanwhile(world: World) -> None:
    async with world.connect(), world.store.session() as session:
        await settle()
        with world.server.hold_request(lambda call: call.touches("offsets/orders/0")) as held:
            writing = asyncio.create_task(write_offsets(world.store, session, {ORDERS: CommittedOffset(5)}))
            await held.reached()
            await bump(world)
            held.release()
            with pytest.raises(CoordinationError, match="has started in this group meanwhile"):
                await writing
        assert world.node("offsets/orders/0") is None


@pytest.mark.parametrize(("name", "data"), [("0", b"x"), ("first", b"5")])
async def test_an_operator_is_told_of_a_node_that_cannot_be_read(world: World, name: str, data: bytes) -> None:
    async with world.store.session() as session:
        await session.ensure("offsets/orders")
        await session.create(f"offsets/orders/{name}", data)
        with pytest.raises(CorruptNodeError, match=f"offsets/orders/{name}"):
            await list_offsets(world.store, session)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
