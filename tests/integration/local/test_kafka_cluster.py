"""The local Kafka cluster: its brokers fail one by one, and what was acknowledged stays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from aiokcc import local
from aiokcc.errors import LocalServiceError, UsageError
from tests import kafka_topics
from tests.kafka_topics import Row, read
from tests.processes import ended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# All tests run on one event loop, so that they can share the cluster. Four Java processes take seconds to start.
pytestmark = [pytest.mark.service, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[local.KafkaCluster]:
    async with local.kafka(brokers=3) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(shared: local.KafkaCluster) -> local.KafkaCluster:
    """Return the shared cluster, with all its processes running, whatever the test before did to them."""
    services = [shared.controller, *shared.brokers]
    for service in services:
        if service.frozen:
            service.thaw()
    await asyncio.gather(*(service.start() for service in services))
    return shared


async def write(cluster: local.KafkaCluster, topic: str, text: bytes) -> None:
    await kafka_topics.write(cluster.bootstrap, topic, [Row(0, 1, text)])


async def test_leaders_die_and_come_back(cluster: local.KafkaCluster) -> None:
    topic = await kafka_topics.create_fresh(cluster.bootstrap, replicas=3)
    assert [broker.id for broker in cluster.brokers] == [1, 2, 3]
    assert cluster.bootstrap == ",".join(f"127.0.0.1:{broker.port}" for broker in cluster.brokers)
    assert set((await cluster.wait_in_sync(topic)).in_sync) == set(cluster.brokers)
    await write(cluster, topic, b"three")

    first = await cluster.leader(topic)
    pid, port = first.pid, first.port
    await first.kill()
    assert pid
    assert ended(pid, 0)
    assert not first.serving
    second = await cluster.leader(topic)
    assert second is not first
    left = await cluster.wait_in_sync(topic, count=2)
    assert left.leader is second
    assert set(left.in_sync) == set(cluster.brokers) - {first}
    assert set(left.all) == set(cluster.brokers)
    await write(cluster, topic, b"two")

    # One replica of three is left. Two are needed for a write, and only the one that is left may lead.
    await second.kill()
    third = await cluster.leader(topic)
    assert third not in {first, second}
    await cluster.wait_in_sync(topic, count=1)
    writing = asyncio.create_task(write(cluster, topic, b"waits"))
    done, _ = await asyncio.wait([writing], timeout=1)  # time is what is tested: nothing comes meanwhile
    assert not done
    await first.start()
    assert first.port == port
    await cluster.wait_in_sync(topic, count=2)
    await writing
    await second.start()
    assert (await cluster.wait_in_sync(topic)).leader is third, "nobody took the partition back"
    assert [value for *_, value in await read(cluster.bootstrap, topic)] == [b"three", b"two", b"waits"]


async def test_all_brokers_die_and_come_back(cluster: local.KafkaCluster) -> None:
    topic = await kafka_topics.create_fresh(cluster.bootstrap, replicas=3)
    await write(cluster, topic, b"kept")
    await asyncio.gather(*(broker.kill() for broker in cluster.brokers))
    with pytest.raises(LocalServiceError, match=r"still has no leader that serves after 0\.2 s: no broker serves"):
        await cluster.leader(topic, deadline=0.2)
    assert cluster.controller.serving
    await asyncio.gather(*(broker.start() for broker in cluster.brokers))
    await cluster.wait_in_sync(topic)
    assert [value for *_, value in await read(cluster.bootstrap, topic)] == [b"kept"]


async def test_a_frozen_leader_loses_its_partition_and_thawed_follows(cluster: local.KafkaCluster) -> None:
    topic = await kafka_topics.create_fresh(cluster.bootstrap, replicas=3)
    leader = await cluster.leader(topic)
    leader.freeze()
    assert leader.frozen
    assert leader.serving
    left = await cluster.wait_in_sync(topic, count=2)
    assert leader not in {left.leader, *left.in_sync}
    leader.thaw()
    assert not leader.frozen
    assert (await cluster.wait_in_sync(topic)).leader is left.leader


async def test_without_the_controller_nobody_else_leads(cluster: local.KafkaCluster) -> None:
    topic = await kafka_topics.create_fresh(cluster.bootstrap, replicas=3)
    leader = await cluster.leader(topic)
    await cluster.controller.kill()
    await leader.kill()
    with pytest.raises(LocalServiceError, match=rf"after 4 s: leader {leader.id}, in sync \[1, 2, 3\]"):
        await cluster.leader(topic, deadline=4)  # longer than the controller waits for a broker
    await cluster.controller.start()
    assert (await cluster.leader(topic)) is not leader


async def test_groups_and_transactions_have_a_coordinator_that_can_be_found(cluster: local.KafkaCluster) -> None:
    topic = await kafka_topics.create_fresh(cluster.bootstrap, replicas=3)
    await kafka_topics.write_transaction(cluster.bootstrap, topic, [Row(0, 1, b"a")])
    coordinator = await cluster.leader("__transaction_state")
    await coordinator.kill()
    assert (await cluster.leader("__transaction_state")) is not coordinator
    await kafka_topics.write_transaction(cluster.bootstrap, topic, [Row(0, 1, b"b")])
    values = [value for *_, value in await read(cluster.bootstrap, topic, isolation="read_committed")]
    assert values == [b"a", b"b"]
    with pytest.raises(LocalServiceError, match=r"partition 7 of \S+ still has .*: there is no such partition"):
        await cluster.replicas(topic, 7, deadline=0.2)


async def test_data_stay_in_a_directory_that_the_user_chose_and_a_broker_may_be_added(tmp_path: Path) -> None:
    async with local.kafka(brokers=1, data_dir=tmp_path) as cluster:
        pids = [broker.pid for broker in (cluster.controller, *cluster.brokers)]
        topic = await kafka_topics.create_fresh(cluster.bootstrap)
        await write(cluster, topic, b"kept")
    assert all(ended(pid, 0) for pid in pids if pid)
    async with local.kafka(brokers=2, data_dir=tmp_path, settings={"num.partitions": 3}) as cluster:
        assert [value for *_, value in await read(cluster.bootstrap, topic)] == [b"kept"]
        other = await kafka_topics.create_fresh(cluster.bootstrap, replicas=2)
        assert len((await cluster.wait_in_sync(other)).in_sync) == 2
        assert all("num.partitions = 3" in broker.log.read_text() for broker in cluster.brokers)
    with pytest.raises(UsageError, match=r"has the data of 2 brokers: it cannot be used for a cluster of 1"):
        async with local.kafka(brokers=1, data_dir=tmp_path):
            pass
    with pytest.raises(UsageError, match=r"has the data of a cluster: it cannot be used for a single broker"):
        async with local.kafka(data_dir=tmp_path):
            pass


async def test_the_data_of_a_single_broker_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(UsageError, match=r"has the data of a single broker: it cannot be used for a cluster of 3"):
        async with local.kafka(brokers=3, data_dir=tmp_path):
            pass


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"brokers": 0}, "brokers must be between 1 and 99, not 0"),
        ({"brokers": 100}, "brokers must be between 1 and 99, not 100"),
        ({"brokers": 3, "port": 65_534}, "port must be between 1 and 65533, not 65534"),
    ],
)
async def test_nonsense_is_refused(bad: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        async with local.kafka(**bad):  # type: ignore[call-overload]
            pass
