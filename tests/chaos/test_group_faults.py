"""A managed group of real processes under faults of single members and of the store. Each test ends with the full check."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aiokcc import local
from aiokcc.core import paths
from aiokcc.core.assignments import TopicState, decode_assignment, decode_state
from aiokcc.stores import Node, open_store
from tests.chaos.sharing import Process, Sharing, sharing

pytestmark = pytest.mark.timeout(180)


@asynccontextmanager
async def three(kafka: local.Kafka, zookeeper: local.ZooKeeper, directory: Path, **spec: Any) -> AsyncIterator[Sharing]:
    """Start three members that share nine partitions, until all run. At the end all leave, and the history is checked."""
    more = {"expect": 3, **spec}
    chance = random.Random(7)
    async with sharing(
        kafka, zookeeper, directory, members=3, partitions=9, periods=5000, chance=chance, **more
    ) as group:
        for process in group.processes:
            await process.start()
        await shared(group, "w0", "w1", "w2")
        assert await group.progress()
        yield group
        assert await group.progress(40), "the run was over too soon"
        await group.leave()
    group.check()


async def shared(group: Sharing, *members: str) -> dict[int, str]:
    """Wait until exactly these members are assigned partitions and hold all of them; return the assignment."""
    store = open_store(group.url)
    async with asyncio.timeout(60), store.session(timeout=10, connect_timeout=60) as session:
        with session.watch() as watch:
            watch.add(paths.assignment(group.topic))
            watch.add(paths.state(group.topic))
            seen: dict[str, bytes] = {}
            async for change in watch:
                if not isinstance(change.now, Node):
                    continue
                seen[change.path] = change.now.data
                if len(seen) == 2:
                    given = decode_assignment("", seen[paths.assignment(group.topic)])
                    state, _, _ = decode_state("", seen[paths.state(group.topic)])
                    if state is TopicState.STABLE and set(given.values()) == set(members):
                        return given
    raise AssertionError


def leader(group: Sharing) -> Process:
    name = group.observer.generation.leader.rpartition("-")[0]
    return next(process for process in group.processes if process.spec.name == name)


async def test_a_killed_members_partitions_go_to_others(
    kafka: local.Kafka, zookeeper: local.ZooKeeper, tmp_path: Path
) -> None:
    async with three(kafka, zookeeper, tmp_path) as group:
        follower = next(p for p in group.processes if p is not leader(group))
        await follower.kill()
        await shared(group, *(p.spec.name for p in group.processes if p is not follower))
        await group.progress()


async def test_the_leader_is_killed(kafka: local.Kafka, zookeeper: local.ZooKeeper, tmp_path: Path) -> None:
    async with three(kafka, zookeeper, tmp_path) as group:
        first = leader(group)
        await first.kill()
        await shared(group, *(p.spec.name for p in group.processes if p is not first))
        await group.progress()
        assert leader(group) is not first


async def test_a_member_restarted_within_its_session_keeps_its_partitions(
    kafka: local.Kafka, zookeeper: local.ZooKeeper, tmp_path: Path
) -> None:
    async with three(kafka, zookeeper, tmp_path, session_timeout=6.0) as group:
        before = await shared(group, "w0", "w1", "w2")
        generation = group.observer.generation.number
        victim = next(p for p in group.processes if p is not leader(group))
        await victim.kill()
        await victim.start()
        await group.progress(50)  # past what was open: its partitions are at work again
        assert await shared(group, "w0", "w1", "w2") == before
        assert group.observer.generation.number == generation, "something was assigned anew"


async def test_a_member_frozen_for_longer_than_its_session_starts_no_record_of_others(
    kafka: local.Kafka, zookeeper: local.ZooKeeper, tmp_path: Path
) -> None:
    """When it continues it starts no record of partitions that others run by then, though its handlers were running."""
    async with three(kafka, zookeeper, tmp_path, takes=0.002) as group:
        victim = group.processes[1]
        victim.stop()
        await shared(group, "w0", "w2")
        await group.progress()
        victim.go_on()
        await shared(group, "w0", "w1", "w2")
        await group.progress()


async def test_a_member_cut_off_from_zookeeper_but_not_from_kafka(
    kafka: local.Kafka, zookeeper: local.ZooKeeper, tmp_path: Path
) -> None:
    async with three(kafka, zookeeper, tmp_path) as group:
        victim = group.processes[2]
        victim.proxy.blackhole("both")
        await shared(group, "w0", "w1")
        await group.progress()
        victim.proxy.heal()
        await shared(group, "w0", "w1", "w2")
        await group.progress()


@pytest.mark.parametrize("storage", ["kafka", "store"])
async def test_a_member_whose_session_expired_commits_and_claims_nothing(
    kafka: local.Kafka, zookeeper: local.ZooKeeper, tmp_path: Path, storage: str
) -> None:
    """It is frozen again and again while it commits and handles records. The next owner is never set back."""
    spec = {"offset_storage": storage, "group_id": f"zombie-{tmp_path.name}" if storage == "kafka" else None}
    async with three(kafka, zookeeper, tmp_path, takes=0.001, **spec) as group:
        for _ in range(2):
            for victim in group.processes[:2]:
                others = [p.spec.name for p in group.processes if p is not victim]
                victim.stop()
                await shared(group, *others)
                await group.progress(1)
                victim.go_on()
                await shared(group, "w0", "w1", "w2")


async def test_all_members_are_killed_and_restarted(
    kafka: local.Kafka, zookeeper: local.ZooKeeper, tmp_path: Path
) -> None:
    async with three(kafka, zookeeper, tmp_path) as group:
        for process in group.processes:
            await process.kill()
        for process in group.processes:
            await process.start()
        await shared(group, "w0", "w1", "w2")
        await group.progress()


async def test_the_store_is_away_for_less_than_a_session(
    kafka: local.Kafka, private_zookeeper: local.ZooKeeper, tmp_path: Path
) -> None:
    async with three(kafka, private_zookeeper, tmp_path, session_timeout=20.0) as group:
        before, generation = await shared(group, "w0", "w1", "w2"), group.observer.generation.number
        await private_zookeeper.server.kill()
        await private_zookeeper.server.start()
        await group.progress()
        assert await shared(group, "w0", "w1", "w2") == before
        assert group.observer.generation.number == generation, "the status quo was not kept"


async def test_the_store_is_away_for_longer_than_a_session(
    kafka: local.Kafka, private_zookeeper: local.ZooKeeper, tmp_path: Path
) -> None:
    async with three(kafka, private_zookeeper, tmp_path, session_timeout=1.0) as group:
        await private_zookeeper.server.kill()
        await asyncio.sleep(2)  # longer than a session: time is the fault
        await private_zookeeper.server.start()
        await shared(group, "w0", "w1", "w2")
        await group.progress()
