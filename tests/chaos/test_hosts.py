"""Faults of processes that share the session of their host. Each test ends with the check of the whole recorded history."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aiokcc import local
from tests.chaos.group import DEADLINE, Group, Worker

pytestmark = pytest.mark.timeout(120)


def host_on(zookeeper: local.ZooKeeper, url: str, tmp_path: Path, **settings: object) -> Group:
    usual = {"members": 3, "partitions": 2, "proxies": False, "share_host": True, "session_timeout": 2.0}
    return Group(url, zookeeper.connection, tmp_path, **{**usual, **settings})  # type: ignore[arg-type]


async def serving(group: Group) -> Worker:
    """Return the worker that serves the others, by the name of the only member that the store has."""
    async with asyncio.timeout(DEADLINE):
        while len(members := await group.observer.members()) != 1:
            await group.progress(1)
    return next(w for w in group.workers if w.process is not None and f"-{w.process.pid}-" in members[0])


async def served(group: Group, worker: Worker) -> None:
    """Wait until the process that serves has taken this worker as a client, by the registration of the host."""
    async with asyncio.timeout(DEADLINE):
        while worker.spec.name not in await group.observer.processes():
            await group.progress(1)


def starts(worker: Worker) -> list[tuple[int, int, int]]:
    """Return when a worker has started which records: partition, offset, time."""
    lines = [line.split(" ") for line in Path(worker.spec.history).read_text().splitlines()]
    return [(int(p), int(offset), int(when)) for what, when, p, offset in lines if what == "start"]


def check_turns(workers: list[Worker]) -> None:
    """Check that each partition has one owner at a time: the records of two workers do not alternate within its log.

    A record that was in a handler when its process was stopped may come again, but no later one may have been started before.
    """
    for partition in {p for worker in workers for p, _, _ in starts(worker)}:
        runs = sorted((when, worker.spec.name) for worker in workers for p, _, when in starts(worker) if p == partition)
        turns = [name for n, (_, name) in enumerate(runs) if n == 0 or runs[n - 1][1] != name]
        assert len(turns) <= len(set(turns)) + 1, f"partition {partition} went to and fro: {turns}"


async def test_the_store_sees_one_member(zookeeper: local.ZooKeeper, zk_root: str, tmp_path: Path) -> None:
    async with host_on(zookeeper, zk_root, tmp_path) as group:
        await group.progress()
        await serving(group)
        await group.progress(20)
        assert len(await group.observer.members()) == 1


async def test_another_process_serves_when_the_first_is_killed(
    zookeeper: local.ZooKeeper, zk_root: str, tmp_path: Path
) -> None:
    async with host_on(zookeeper, zk_root, tmp_path) as group:
        await group.progress()
        first = await serving(group)
        await first.kill()
        await first.start()  # static assignment: its partitions are unowned until it is back
        await group.progress(20)
        assert await serving(group) is not first


async def test_another_process_serves_when_the_first_is_stopped_in_good_order(
    zookeeper: local.ZooKeeper, zk_root: str, tmp_path: Path
) -> None:
    async with host_on(zookeeper, zk_root, tmp_path) as group:
        await group.progress()
        first = await serving(group)
        assert await first.end() == 0
        await first.start()
        await group.progress(20)
        assert await serving(group) is not first


async def test_a_process_that_serves_is_frozen_for_longer_than_the_session(
    zookeeper: local.ZooKeeper, zk_root: str, tmp_path: Path
) -> None:
    """A standby takes its partitions meanwhile. Thawed, it is a client of the process that serves by then."""
    async with host_on(zookeeper, zk_root, tmp_path) as group:
        await group.progress()
        first = await serving(group)
        standby = await group.add("standby", first.spec.partitions)
        await group.progress()
        first.freeze()
        await group.progress(20)
        assert starts(standby)
        first.thaw()
        await first.said("joining again")
        await group.progress(20)
        assert await serving(group) is not first
        await standby.end()  # and gives the partitions back
        await group.progress(20)
        check_turns(group.workers)


async def test_a_client_is_killed(zookeeper: local.ZooKeeper, zk_root: str, tmp_path: Path) -> None:
    """Its partitions are free at once: the kernel tells the process that serves that it is dead."""
    async with host_on(zookeeper, zk_root, tmp_path, session_timeout=40.0) as group:
        await group.progress()
        first = await serving(group)
        client = next(worker for worker in group.workers if worker is not first)
        standby = await group.add("standby", client.spec.partitions)
        await served(group, standby)  # its interpreter starts for seconds on a busy machine
        async with asyncio.timeout(20):  # half the session
            await client.kill()
            await group.progress(20)
        assert starts(standby)
        check_turns(group.workers)
        await client.start()
        await standby.end()  # the client goes on when it is there
        await group.progress(20)


async def test_a_client_is_frozen_for_longer_than_the_session(
    zookeeper: local.ZooKeeper, zk_root: str, tmp_path: Path
) -> None:
    async with host_on(zookeeper, zk_root, tmp_path) as group:
        await group.progress()
        first = await serving(group)
        client = next(worker for worker in group.workers if worker is not first)
        standby = await group.add("standby", client.spec.partitions)
        await group.progress()
        client.freeze()
        await group.progress(20)
        assert starts(standby)
        frozen_at = max(when for _, _, when in starts(standby))
        client.thaw()
        await client.said("joining again")
        await group.progress(20)
        assert max(when for _, _, when in starts(client)) < frozen_at, "a thawed client has started a record"
        assert await serving(group) is first
        check_turns(group.workers)
