"""Drivers of a pipeline in a managed group take turns. On a store in memory, with drivers that have no Spark to drive."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import aiokcc
from aiokcc.core import paths
from aiokcc.core.partitions import Partition, encode_partitions
from aiokcc.core.run import Bounds
from aiokcc.core.subscriptions import EVERYTHING, Subscription
from aiokcc.errors import GroupMismatchError, PartitionError, PartitionRevoked, PipelineMismatchError
from aiokcc.runtime.operator import isolate, rejoin
from aiokcc.spark import standby
from aiokcc.spark.participant import Participant
from aiokcc.spark.standby import check_other_pipelines, claim_all, drive_in_turn
from tests.unit.world import World
from tests.virtual import settle

TOPICS = {"orders": 2, "payments": 1}
ALL = frozenset({Partition("orders", 0), Partition("orders", 1), Partition("payments", 0)})
ORDERS = Subscription.check("orders", pipeline="p")


@pytest.fixture(autouse=True)
def _virtual_deadlines(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiokcc.spark.participant.boottime", world.time)


async def bounds() -> dict[Partition, Bounds]:
    return {p: Bounds(0, 10) for p in ALL}


def joining(world: World, name: str, subscription: object, **settings: Any) -> Any:
    usual: dict[str, Any] = {"topics": TOPICS, "assignment": "managed", "offsets": bounds, "grows": True}
    return world.connect(member=name, subscription=subscription, **{**usual, **settings})


@asynccontextmanager
async def driver(
    world: World, name: str, told: list[str], subscription: Subscription = ORDERS
) -> AsyncIterator[Participant]:
    """One that works without an end whenever it is its turn, and whose job takes a while to stop."""
    async with joining(world, name, subscription) as group:
        participant = Participant(group, 60.0)

        async def drive(mine: frozenset[Partition]) -> None:
            await claim_all(participant, mine)
            told.append(f"{name} drives {', '.join(map(str, sorted(participant.tracks)))}")
            try:
                await asyncio.Event().wait()
            finally:
                with anyio.CancelScope(shield=True):
                    await asyncio.sleep(0.5)
                told.append(f"{name} has stopped")

        turns = asyncio.ensure_future(drive_in_turn(participant, drive))
        try:
            yield participant
        finally:
            turns.cancel()
            await asyncio.wait([turns])
            participant.member.leave()
            await participant.close()


@asynccontextmanager
async def consumer(world: World, name: str, subscription: object = EVERYTHING) -> AsyncIterator[aiokcc.Group]:
    async with joining(world, name, subscription) as group:

        async def hold(partition: Partition) -> None:
            async with group.gate(*partition) as gate:
                await gate.idle()

        sharing = asyncio.ensure_future(group.share(hold))
        try:
            yield group
        finally:
            sharing.cancel()
            await asyncio.wait([sharing])


def owned(world: World) -> dict[str, str]:
    """Returns the owner of each lock."""
    found = {str(p): world.owner(p.number, p.topic) for p in sorted(ALL)}
    return {partition: owner.rpartition("-")[0] for partition, owner in found.items() if owner is not None}


def orders_of(name: str, payments: str = "async") -> dict[str, str]:
    return {"orders.0": name, "orders.1": name, "payments.0": payments}


async def test_one_drives_and_the_next_starts_only_when_it_has_stopped(world: World) -> None:
    told: list[str] = []
    async with (
        consumer(world, "async"),
        driver(world, "a", told),
        driver(world, "b", told) as b,
        world.store.session() as operator,
    ):
        await asyncio.sleep(2)
        assert owned(world) == orders_of("a")
        assert told == ["a drives orders.0, orders.1"]
        assert b.member.assigned == frozenset()
        await isolate(world.store, operator, "a", by="me", now=5)
        await asyncio.sleep(2)
        assert told[1:] == ["a has stopped", "b drives orders.0, orders.1"]
        assert owned(world) == orders_of("b")
        await rejoin(world.store, operator, "a")  # it stands by: nothing moves
        await asyncio.sleep(2)
        assert len(told) == 3
        await isolate(world.store, operator, "b", by="me", now=5)
        await asyncio.sleep(2)
        assert told[3:] == ["b has stopped", "a drives orders.0, orders.1"]


async def test_without_a_driver_others_may_run_its_partitions_until_one_comes(world: World) -> None:
    told: list[str] = []
    async with consumer(world, "async"):
        await asyncio.sleep(2)
        assert owned(world) == orders_of("async")
        async with driver(world, "a", told):
            await asyncio.sleep(3)
            assert owned(world) == orders_of("a")
        await asyncio.sleep(3)
        assert owned(world) == orders_of("async")
    assert told == ["a drives orders.0, orders.1", "a has stopped"]


async def test_where_no_other_member_wants_them_they_are_unassigned(world: World) -> None:
    async with consumer(world, "async", ["payments"]):
        async with driver(world, "a", []):
            await asyncio.sleep(2)
            assert owned(world) == orders_of("a")
        await asyncio.sleep(30)
        assert owned(world) == {"payments.0": "async"}


@pytest.mark.parametrize("standing_by", [False, True])
async def test_after_a_lost_session_one_drives(world: World, standing_by: bool) -> None:
    told: list[str] = []
    async with (
        consumer(world, "async", ["payments"]),
        driver(world, "a", told) as a,
        anyio.create_task_group() as tasks,
    ):
        await asyncio.sleep(2)
        over = asyncio.Event()

        async def another() -> None:
            async with driver(world, "b", told):
                await over.wait()

        if standing_by:
            tasks.start_soon(another)
            await asyncio.sleep(2)
        for _ in range(3):
            await world.expire(a.group)
            await asyncio.sleep(5)
            holder = owned(world)["orders.0"]
            assert owned(world) == orders_of(holder)
            # Whoever lost its session stops when it has heard of it; until then its attempt is what keeps it from writing.
            running = Counter(line.partition(" ")[0] for line in told if "drives" in line)
            running.subtract(line.partition(" ")[0] for line in told if "stopped" in line)
            assert +running == {holder: 1}, told
        over.set()


async def test_a_partition_that_joins_is_taken_as_well(world: World) -> None:
    told: list[str] = []
    new = Partition("orders", 2)
    async with consumer(world, "async") as leader, driver(world, "a", told) as a:
        await asyncio.sleep(2)
        assert leader.add({new: Bounds(0, 10)})
        await asyncio.sleep(2)
        assert a.unopened == {new}
        await a.open(a.unopened)
        assert not a.unopened
        assert owned(world) == orders_of("a")
        assert world.owner(2) == world.owner(1)
        assert len(told) == 1  # it went on meanwhile


async def test_a_driver_that_has_not_heard_of_all_partitions_does_not_start(world: World) -> None:
    async with joining(world, "a", ORDERS) as group:
        participant = Participant(group, 60.0)
        member = participant.member
        await asyncio.sleep(2)
        known, mine = member.bounds, frozenset({Partition("orders", 1)})
        member.see_agreed_set(mine, known)  # as it was once
        taking = asyncio.ensure_future(claim_all(participant, mine))
        await settle()
        assert not taking.done()
        member.see_agreed_set(ALL, known)
        with pytest.raises(PartitionRevoked, match=r"orders\.0 belongs to the pipeline as well"):
            await taking
        await participant.release()
        assert owned(world) == {}
        await claim_all(participant, ALL - {Partition("payments", 0)})
        await participant.close()


async def test_a_set_that_has_changed_and_changed_back_does_not_delay_the_driver(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has read the larger set, and hears of nothing but the one that it knows."""
    there = ALL | {Partition("orders", 2)}

    async def agreed(store: Any, session: Any) -> frozenset[Partition]:
        return there

    monkeypatch.setattr(standby, "_agreed", agreed)
    async with joining(world, "a", ORDERS) as group, world.store.session() as session:
        participant = Participant(group, 60.0)
        await asyncio.sleep(2)
        taking = asyncio.ensure_future(claim_all(participant, ALL - {Partition("payments", 0)}))
        await asyncio.sleep(2)
        assert not taking.done()
        there = ALL
        await session.set(paths.TOPIC_PARTITIONS, encode_partitions(ALL), -1)  # again, and nothing of what was between
        await asyncio.wait_for(taking, 10)
        assert owned(world) == {"orders.0": "a", "orders.1": "a"}
        await participant.close()


async def test_finished_partitions_are_released_too_when_a_driver_leaves(world: World) -> None:
    """Or whoever stands by would wait for it until this process leaves the group."""
    told: list[str] = []
    async with joining(world, "a", ORDERS) as group, driver(world, "b", told):
        participant = Participant(group, 60.0)
        await asyncio.sleep(2)
        await claim_all(participant, ALL - {Partition("payments", 0)})
        track = participant.tracks[Partition("orders", 0)]
        participant.report_finished(track)
        participant.write_report()
        await asyncio.sleep(2)
        assert told == []
        group.membership.leave()
        await participant.close()
        await asyncio.sleep(2)
        assert told == ["b drives orders.0, orders.1"]


async def test_a_driver_that_leaves_without_having_held_anything_is_assigned_nothing(world: World) -> None:
    """One that was refused, or stood by: where its block stays open for a while, nothing may be meant for it."""
    told: list[str] = []
    async with joining(world, "a", ORDERS) as refused:
        participant = Participant(refused, 60.0)
        await asyncio.sleep(2)
        participant.member.leave()
        await participant.close()
        await asyncio.sleep(2)
        assert world.below("ids") == []
        async with driver(world, "b", told):
            await asyncio.sleep(2)
            assert told == ["b drives orders.0, orders.1"]


async def test_a_topic_that_leaves_before_its_locks_are_claimed_is_no_fault(world: World) -> None:
    async with joining(world, "a", Subscription.check(pipeline="p")) as group:
        participant = Participant(group, 60.0)
        member = participant.member
        await asyncio.sleep(2)
        assert member.assigned == ALL
        member.see_agreed_set(ALL - {Partition("payments", 0)}, member.bounds)
        with pytest.raises(PartitionRevoked, match=r"payments\.0 has left the group's set"):
            await claim_all(participant, ALL)
        assert owned(world) == {}


@pytest.mark.parametrize(
    ("mine", "topics", "error", "words"),
    [
        (Subscription.check({"orders": [1]}, pipeline="q"), TOPICS, PartitionError, r"orders\.1 belongs to .* 'p', which a-"),
        (Subscription.check(pipeline="p"), TOPICS, PipelineMismatchError, "with orders, all for the pipeline p, and this"),
        (Subscription.check(pipeline="q"), ["orders"], GroupMismatchError, "replays payments as well; name all topics"),
        (Subscription.check("payments", pipeline="q"), TOPICS, None, ""),
        (ORDERS, TOPICS, None, ""),
    ],
    ids=["another", "the-same", "topics", "beside", "standby"],
)  # fmt: skip
async def test_a_driver_that_conflicts_with_others_is_refused(
    world: World, mine: Subscription, topics: Any, error: type[Exception] | None, words: str
) -> None:
    async with driver(world, "a", []) as a:
        await asyncio.sleep(2)
        async with joining(world, "b", mine) as second, world.store.session() as session:

            async def fits(participant: aiokcc.Group, wants: Subscription) -> None:
                member_session = participant.membership.member_session
                assert member_session is not None
                await check_other_pipelines(world.store, session, member_session.name, wants, topics.__contains__)

            if error is None:
                await fits(second, mine)
            else:
                with pytest.raises(error, match=words):
                    await fits(second, mine)
            if topics == TOPICS:
                await fits(a.group, ORDERS)  # who was there before is not concerned


async def test_the_leader_logs_which_pipeline_is_assigned_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "aiokcc.runtime")
    told: list[str] = []
    async with driver(world, "a", told), driver(world, "b", told, Subscription.check(pipeline="everything")):
        await asyncio.sleep(10)
        assert told == ["b drives orders.0, orders.1, payments.0"]  # by name, for both came at once
    assert [record.message for record in caplog.records if "both want" in record.message] == [
        "the pipelines everything and p both want orders.0: p is assigned nothing while everything is there"
    ]
