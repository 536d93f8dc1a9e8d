"""Faults of real processes, servers and connections. Each test ends with the check of the whole recorded history."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aiokcc import local
from tests.chaos.group import Group
from tests.faults import Op, Proxy

pytestmark = pytest.mark.timeout(120)


def group_on(zookeeper: local.ZooKeeper, url: str, tmp_path: Path, **settings: object) -> Group:
    return Group(url, zookeeper.connection, tmp_path, **{"members": 3, "partitions": 2, **settings})  # type: ignore[arg-type]


async def test_a_killed_leader_is_replaced(zookeeper: local.ZooKeeper, zk_root: str, tmp_path: Path) -> None:
    async with group_on(zookeeper, zk_root, tmp_path) as group:
        await group.progress()
        leader = await group.leader()
        await leader.kill()
        await group.observer.new_leader(than=leader.spec.name)
        await leader.start()  # static assignment: its partitions are unowned until it is back
        await group.progress()
        assert await group.leader() is not leader


async def test_a_leader_frozen_for_longer_than_its_session_changes_nothing(
    zookeeper: local.ZooKeeper, zk_root: str, tmp_path: Path
) -> None:
    """The leader runs no partition, so the others do not wait for it, and the limit moves."""
    async with group_on(zookeeper, zk_root, tmp_path, leader_without_partitions=True) as group:
        await group.progress()
        leader = group.workers[0]
        assert await group.leader() is leader
        leader.freeze()
        await group.observer.new_leader(than=leader.spec.name)
        await group.progress()
        generation = group.observer.generation
        leader.thaw()
        await leader.said("joining again")
        await group.progress()
        assert group.observer.generation == generation, "the old leader's return changed who leads"


async def test_a_member_frozen_for_longer_than_its_session_continues_where_it_was(
    zookeeper: local.ZooKeeper, zk_root: str, tmp_path: Path
) -> None:
    async with group_on(zookeeper, zk_root, tmp_path, leader_without_partitions=True) as group:
        await group.progress()
        member = group.workers[1]
        member.freeze()
        await group.observer.lost(member.spec.name)
        member.thaw()
        await member.said("joining again")
        await group.progress()


async def test_a_server_killed_and_restarted_within_the_session(
    private_zookeeper: local.ZooKeeper, tmp_path: Path
) -> None:
    zk = private_zookeeper
    async with group_on(zk, zk.url("killed"), tmp_path, session_timeout=20.0) as group:
        await group.progress()
        before = await group.observer.members()
        await zk.server.kill()
        await zk.server.start()
        await group.progress()
        assert await group.observer.members() == before, "somebody lost a session although the server was back in time"


async def test_a_server_away_for_longer_than_the_session(private_zookeeper: local.ZooKeeper, tmp_path: Path) -> None:
    zk = private_zookeeper
    async with group_on(zk, zk.url("away"), tmp_path, session_timeout=1.0) as group:
        await group.progress()
        before = await group.observer.members()
        await zk.server.kill()
        for worker in group.workers:
            await worker.said("joining again")
        await zk.server.start()
        await group.progress()
        assert not set(await group.observer.members()) & set(before), "a session outlived its own deadline"


@pytest.mark.parametrize("direction", ["up", "down", "both"])
async def test_a_connection_that_silently_drops_everything(
    zookeeper: local.ZooKeeper, zk_root: str, tmp_path: Path, direction: str
) -> None:
    async with group_on(zookeeper, zk_root, tmp_path, session_timeout=1.5) as group:
        await group.progress()
        leader = await group.leader()
        assert leader.proxy is not None
        leader.proxy.blackhole(direction)  # type: ignore[arg-type]
        await group.observer.new_leader(than=leader.spec.name)
        leader.proxy.heal()
        await group.progress()


FAULTS: dict[str, Callable[[Proxy], object]] = {
    "reset": lambda proxy: proxy.cut(),
    "closed": lambda proxy: proxy.cut(reset=False),
    "cut in mid-message going up": lambda proxy: proxy.cut_in_message("up"),
    "cut in mid-message coming down": lambda proxy: proxy.cut_in_message("down"),
    "lost reply to a read": lambda proxy: proxy.drop_reply(Op.GET_DATA),
    "200 ms delay": lambda proxy: proxy.delay(0.2),
}


@pytest.mark.parametrize("fault", list(FAULTS))
async def test_network_faults_for_each_member_in_turn(
    zookeeper: local.ZooKeeper, zk_root: str, tmp_path: Path, fault: str
) -> None:
    async with group_on(zookeeper, zk_root, tmp_path, session_timeout=10.0) as group:
        await group.progress()
        before = await group.observer.members()
        for worker in group.workers:
            assert worker.proxy is not None
            FAULTS[fault](worker.proxy)
            await group.progress(3)
            worker.proxy.heal()
        assert await group.observer.members() == before, "a passing fault cost somebody the session"


@pytest.mark.parametrize("operation", [Op.SET_DATA, Op.MULTI], ids=["a report", "an advance"])
async def test_a_write_whose_reply_is_lost_counts_once(
    zookeeper: local.ZooKeeper, zk_root: str, tmp_path: Path, operation: Op
) -> None:
    """Followers write reports, the leader writes advances. The reply is lost several times, and the write counts once."""
    async with group_on(zookeeper, zk_root, tmp_path, session_timeout=10.0) as group:
        await group.progress()
        before = await group.observer.members()
        leader = await group.leader()
        victim = leader if operation is Op.MULTI else next(w for w in group.workers if w is not leader)
        assert victim.proxy is not None
        for _ in range(10):
            request = await victim.proxy.drop_reply(operation)
            assert request.op == operation
        await group.progress()
        assert await group.observer.members() == before


@pytest.mark.parametrize(
    "operation", [Op.MULTI, Op.CREATE, Op.CREATE2, Op.GET_CHILDREN2, Op.EXISTS], ids=lambda op: op.name
)
async def test_joining_with_lost_replies(
    zookeeper: local.ZooKeeper, zk_root: str, tmp_path: Path, operation: Op
) -> None:
    """Founding, registering, claiming and joining the election, each with the first reply lost."""
    async with group_on(zookeeper, zk_root, tmp_path, session_timeout=10.0, lose_first=operation) as group:
        await group.progress()


async def test_the_leaders_server_is_killed_in_an_ensemble(tmp_path: Path) -> None:
    async with local.zookeeper(servers=3) as ensemble:
        url = ensemble.url("ensemble")
        async with Group(url, "", tmp_path, members=3, partitions=2, session_timeout=10.0, proxies=False) as group:
            await group.progress()
            before = await group.observer.members()
            server = await ensemble.leader()
            await server.kill()
            await group.progress()
            await server.start()
            await group.progress()
            assert await group.observer.members() == before, "somebody lost a session although two servers were up"
