"""The operator's view of a managed group, and the verbs that change it: status, isolate, rejoin."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import pytest

import aiokcc
from aiokcc.cli.verbs.isolate import VERB
from aiokcc.core.partitions import Partition
from aiokcc.errors import CorruptNodeError, UsageError
from aiokcc.runtime.operator import isolate, rejoin
from aiokcc.runtime.status_reader import read_status
from tests.unit.runtime.test_assignment_leader import member, owners
from tests.unit.world import World
from tests.virtual import settle


async def test_isolate_and_rejoin(world: World) -> None:
    async with member(world, "a"), member(world, "b"), world.store.session() as operator:
        await asyncio.sleep(1.1)
        assert await isolate(world.store, operator, "b", by="me", now=5)
        assert not await isolate(world.store, operator, "b", by="me", now=6)
        assert world.data("isolated/b") == b'{"version": 1, "timestamp": 5, "by": "me"}'
        await asyncio.sleep(0.2)
        assert owners(world) == {"a": [0, 1, 2, 3, 4, 5]}
        assert await rejoin(world.store, operator, "b")
        assert not await rejoin(world.store, operator, "b")
        await asyncio.sleep(1.2)
        assert sorted(map(len, owners(world).values())) == [3, 3]


async def test_an_isolated_member_stays_so_when_it_is_restarted(world: World) -> None:
    async with member(world, "a"), world.store.session() as operator:
        async with member(world, "b"):
            await asyncio.sleep(1.1)
            await isolate(world.store, operator, "b", by="me", now=5)
        async with member(world, "b"):
            await asyncio.sleep(2)
            assert owners(world) == {"a": [0, 1, 2, 3, 4, 5]}


async def test_an_unknown_member_is_refused(world: World) -> None:
    async with member(world, "a"), member(world, "b"), world.store.session() as operator:
        await settle()
        with pytest.raises(UsageError, match=r"the group under /group has no member 'c'; it has a, b"):
            await isolate(world.store, operator, "c", by="me", now=5)
        with pytest.raises(UsageError, match=r"has no member 'c'; isolated nobody is"):
            await rejoin(world.store, operator, "c")
        assert world.below("isolated") == []


async def test_a_group_that_is_not_managed_has_nobody_to_isolate(world: World) -> None:
    async with world.connect(member="a") as a, world.store.session() as operator:
        with pytest.raises(UsageError, match="is not managed: each member says which partitions it runs"):
            await isolate(world.store, operator, "a", by="me", now=5)
        with pytest.raises(UsageError, match='this group is not managed; connect with assignment="managed"'):
            await a.share(lambda _: asyncio.sleep(0))
        assert (await a.status()).group is None


async def test_there_is_no_group(world: World) -> None:
    async with world.store.session() as operator:
        with pytest.raises(UsageError, match="there is no group under /group"):
            await isolate(world.store, operator, "a", by="me", now=5)


async def test_a_member_that_claims_on_its_own_cannot_join_a_managed_group(world: World) -> None:
    async with member(world, "a"):
        with pytest.raises(aiokcc.GroupMismatchError, match="source is assignment=managed there and  here"):
            async with world.connect(topics={"orders": 6}):
                pass


async def test_status_shows_the_assignment_and_what_a_rebalance_waits_for(world: World) -> None:
    async with member(world, "a", takes=20) as a:
        await settle()
        status = await a.status()
        assert status.group is not None
        assert status.group.waits_for == "orders.0 and 5 more: not assigned yet, and 1 member can take partitions"
        assert [(t.topic, t.state) for t in status.group.topics] == [("orders", "Initial")]
        await asyncio.sleep(1.1)
        async with member(world, "b", subscription={"orders": 2}), world.store.session() as operator:
            await asyncio.sleep(1.1)
            status = await read_status(world.store, operator)
            assert status.group is not None
            (topic,) = status.group.topics
            assert topic.state == "Closing"
            assert topic.to_close == {"orders.4": "a", "orders.5": "a"}
            assert status.group.waits_for == "a has to close orders.4 and 1 more"
            workers = {worker.name: worker for worker in status.group.workers}
            assert workers["b"].subscription == "orders (at most 2)"
            assert workers["a"].assigned == ("orders.0", "orders.1", "orders.2", "orders.3")
            assert len(workers["a"].running) == 6
            await isolate(world.store, operator, "b", by="me", now=5)
            await asyncio.sleep(40)
            status = await read_status(world.store, operator)
            assert status.group is not None
            assert status.group.waits_for is None
            assert [(w.name, w.isolated, len(w.running)) for w in status.group.workers] == [
                ("a", False, 6),
                ("b", True, 0),
            ]


async def test_a_state_that_cannot_be_read_is_an_error_for_a_leader_that_takes_over(world: World) -> None:
    async with member(world, "a"):
        await asyncio.sleep(1.1)
    async with world.store.session() as operator:
        node = await operator.get("state/orders")
        await operator.set("state/orders", b"Sleeping", node.version)
        with pytest.raises(
            CorruptNodeError, match=r"/group/state/orders holds 'Sleeping'; expected three lines: Initial"
        ):
            async with member(world, "b"):
                await asyncio.sleep(1)
        status = await read_status(world.store, operator)
        assert any("/group/state/orders holds 'Sleeping'" in problem for problem in status.problems)


async def test_an_assignment_that_cannot_be_read_changes_nothing_for_members_that_run(world: World) -> None:
    async with member(world, "a", takes=5), member(world, "b", takes=5), world.store.session() as operator:
        await asyncio.sleep(1.1)
        before = owners(world)
        node = await operator.get("assignments/orders")
        await operator.set("assignments/orders", b"rubbish", node.version)
        await asyncio.sleep(3)
        assert owners(world) == before


async def test_a_registration_deleted_by_hand_is_made_again(world: World) -> None:
    async with member(world, "a"), member(world, "b") as b, world.store.session() as operator:
        await asyncio.sleep(1.1)
        before = owners(world)
        member_session = b.membership.member_session
        assert member_session is not None
        await operator.delete(f"ids/{member_session.name}", -1)
        await asyncio.sleep(3)
        assert f"{member_session.name}" in world.below("ids")
        assert sorted(n for numbers in owners(world).values() for n in numbers) == [0, 1, 2, 3, 4, 5]
        assert before.keys() == owners(world).keys()


@pytest.mark.parametrize("ends", ["by itself", "cancelled"])
async def test_the_lock_of_a_revoked_partition_is_held_until_its_task_has_ended(world: World, ends: str) -> None:
    """A task commits after it has left the block of its gate. Until it has, no other member may run the partition."""
    seen: list[tuple[str, str | None]] = []
    revoked, may_end = asyncio.Event(), asyncio.Event()

    async def run(group: aiokcc.Group) -> None:
        async def consume(partition: Partition) -> None:
            try:
                async with group.gate(*partition) as gate:
                    await gate.wait_until(10**12, 0)
            finally:
                revoked.set()
                await may_end.wait()  # it commits
                seen.append((group.member, world.owner(partition.number)))

        await group.share(consume)

    settings: dict[str, Any] = {"topics": {"orders": 1}, "assignment": "managed", "clock": lambda: 0}
    async with world.connect(member="a", **settings) as a, world.store.session() as operator:
        running = asyncio.create_task(run(a))
        await asyncio.sleep(60)
        holder = world.owner(0)
        assert holder is not None
        async with world.connect(member="b", **settings) as b:
            other = asyncio.create_task(run(b))
            await asyncio.sleep(60)
            await isolate(world.store, operator, "a", by="test", now=0)
            await asyncio.wait_for(revoked.wait(), 60)
            await asyncio.sleep(60)
            assert world.owner(0) == holder, "its task has not ended"
            if ends == "cancelled":
                running.cancel()
                await settle()
            may_end.set()
            await settle()
            assert seen == ([("a", holder)] if ends == "by itself" else [])
            await asyncio.sleep(60)
            assert (world.owner(0) or "").startswith("b-")
            for task in (running, other):
                task.cancel()
            await asyncio.wait([running, other])


async def test_isolating_the_last_member_says_that_nobody_takes_its_partitions(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("aiokcc.cli.verbs.isolate.open_existing", lambda options: world.store)
    async with member(world, "a"), member(world, "b"):
        await asyncio.sleep(1.1)
        for name in ("b", "a"):
            assert await VERB.run(argparse.Namespace(member=name, timeout=5, given_url=None)) == 0
            await asyncio.sleep(0.5)
        first, last = (text for text in capsys.readouterr().out.split("Isolated: ") if text)
        assert "go to the other members" in first
        assert "No other member can take them: they stay unassigned, and the limit waits" in last
        assert owners(world) == {}
        assert world.data("generation").endswith(b"released, nobody to start")
        assert world.data("state/orders").startswith(b"Initial")
