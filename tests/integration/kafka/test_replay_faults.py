"""Bad input and faults, on a real broker and a real ZooKeeper: what cannot go on says so, what can goes on by itself."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import aiokafka.codec
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import RecordsToDelete

import aiokcc
from aiokcc import local
from aiokcc.local._process import free_ports
from tests import kafka_topics
from tests.faults import Proxy
from tests.kafka_topics import Row
from tests.replays import all_places, append, at, in_step, places, replaying, topic


class Slow(list[Any]):
    """Sees records, and stands still at one of them until it is told to go on."""

    def __init__(self, stop_at: int) -> None:
        super().__init__()
        self._stop_at = stop_at
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def handle(self, record: Any) -> None:
        self.append(record)
        if len(self) == self._stop_at:
            self.reached.set()
            await self.go_on.wait()


# -- bad input ------------------------------------------------------------------------------------------------------------


async def test_a_broker_that_is_not_there(free_port_number: int) -> None:
    began = time.monotonic()
    with pytest.raises(aiokcc.KafkaError, match=rf"could not connect to Kafka at 127.0.0.1:{free_port_number}"):
        async with aiokcc.replay(
            "orders",
            bootstrap_servers=f"127.0.0.1:{free_port_number}",
            store="memory://nobody",
            period="1m",
            connect_timeout=2,
        ):
            pass
    assert time.monotonic() - began < 5


@pytest.fixture
def free_port_number() -> int:
    return free_ports(1)[0]


async def test_a_broker_that_does_not_answer(kafka: local.Kafka) -> None:
    async with Proxy(kafka.bootstrap) as proxy:
        proxy.blackhole("both")
        with pytest.raises(aiokcc.KafkaError, match="could not connect to Kafka at .*no answer within 1 s|could not"):
            async with asyncio.timeout(15):
                async with aiokcc.replay(
                    "orders", bootstrap_servers=proxy.connection, store="memory://no", period="1m", connect_timeout=1
                ):
                    pass


async def test_wrong_security_settings(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0)])
    wrong = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "u",
        "sasl_plain_password": "secret",
    }
    with pytest.raises(aiokcc.KafkaError, match="could not connect to Kafka") as caught:
        async with asyncio.timeout(15), replaying(kafka, name, connect_timeout=2, **wrong):
            pass
    assert "secret" not in str(caught.value)


async def test_ssl_without_a_context_is_the_callers_fault(kafka: local.Kafka) -> None:
    with pytest.raises(aiokcc.UsageError, match="ssl_context"):
        async with replaying(kafka, "orders", security_protocol="SSL"):
            pass


async def test_a_missing_codec(kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    name = await kafka_topics.create_fresh(kafka.bootstrap)
    await kafka_topics.write(kafka.bootstrap, name, [Row(0, at(0), b"x" * 100)] * 20, codec="snappy")
    monkeypatch.setattr(aiokafka.codec, "has_snappy", lambda: False)
    with pytest.raises(aiokcc.KafkaError, match="snappy"):
        async with asyncio.timeout(15), replaying(kafka, name) as replay:
            await replay.run(lambda _: None)


@pytest.mark.parametrize("which", ["value_deserializer", "key_deserializer"])
async def test_a_deserializer_that_raises_names_the_record(kafka: local.Kafka, which: str) -> None:
    name = await kafka_topics.create_fresh(kafka.bootstrap, partitions=2)
    rows = [
        Row(0, at(0), b"1", b"1"),
        Row(1, at(0), b"1", b"1"),
        Row(1, at(0), b"one", b"one"),
        Row(1, at(0), b"2", b"2"),
    ]
    await kafka_topics.write(kafka.bootstrap, name, rows)
    with pytest.raises(aiokcc.RecordError, match=rf"{name}.1 at offset 1: a deserializer raised ValueError") as caught:
        async with asyncio.timeout(15), replaying(kafka, name, **{which: int}) as replay:
            await replay.run(lambda _: None)
    assert isinstance(caught.value.__cause__, ValueError)


async def test_settings_are_passed_through(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0)])
    seen: list[Any] = []
    async with replaying(kafka, name, value_deserializer=bytes.decode, client_id="me", fetch_max_wait_ms=10) as replay:
        await replay.run(seen.append)
    assert [r.value for r in seen] == ["0:0"]


# -- the log changes under us -----------------------------------------------------------------------------------------------


async def test_records_deleted_under_us_are_an_error_that_names_the_place(kafka: local.Kafka) -> None:
    name = await kafka_topics.create_fresh(kafka.bootstrap)
    for first in range(0, 500, 50):  # small batches: a batch is fetched whole
        await kafka_topics.write(kafka.bootstrap, name, [Row(0, at(first + n), b"x" * 1000) for n in range(50)])
    slow = Slow(3)
    tight = {"buffer_records": 5, "max_partition_fetch_bytes": 5000}
    async with asyncio.timeout(30), replaying(kafka, name, **tight) as replay:
        running = asyncio.ensure_future(replay.run(slow.handle))
        await slow.reached.wait()
        async with kafka_topics.admin(kafka.bootstrap) as admin:
            await admin.delete_records({TopicPartition(name, 0): RecordsToDelete(before_offset=400)})
        slow.go_on.set()
        with pytest.raises(aiokcc.KafkaError, match=rf"records were deleted under the replay: {name}.0 at offset \d+"):
            await running
    assert [r.offset for r in slow] == list(range(len(slow))), "nothing was skipped"


async def test_a_topic_deleted_under_us_is_an_error(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0)])
    other = await topic(kafka, [at(0)])
    async with asyncio.timeout(40), replaying(kafka, name, other, end=None, connect_timeout=3) as replay:
        seen = Slow(2)
        running = asyncio.ensure_future(replay.run(seen.handle))
        await seen.reached.wait()
        seen.go_on.set()
        async with kafka_topics.admin(kafka.bootstrap) as admin:
            await admin.delete_topics([other])
        with pytest.raises(aiokcc.KafkaError, match=f"a topic was deleted under the replay: .*{other}"):
            await running


# -- services that go away --------------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
async def test_a_broker_killed_frozen_and_back_in_the_middle_of_a_period(
    private_kafka: local.Kafka, zk_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Both faults on one broker, for a broker takes its time to start. What follows is read as if nothing had been."""
    kafka = private_kafka
    value = b"x" * 2000
    name = await kafka_topics.create_fresh(kafka.bootstrap, partitions=2)
    rows = [Row(p, at(m, n), value) for p in range(2) for m in range(10) for n in range(100)]
    await kafka_topics.write(kafka.bootstrap, name, rows)
    caplog.set_level(logging.CRITICAL, "aiokafka")
    slow, later = Slow(250), Slow(1200)

    async def handle(record: Any) -> None:
        await slow.handle(record)
        await later.handle(record)

    tight = {"buffer_records": 50, "max_partition_fetch_bytes": 20_000, "connect_timeout": 3.0}
    async with asyncio.timeout(100), replaying(kafka, name, store=zk_root, **tight) as replay:
        running = asyncio.ensure_future(replay.run(handle))
        await slow.reached.wait()
        await kafka.kill()
        slow.go_on.set()
        limit = replay.group.limit
        await kafka.start()
        await later.reached.wait()
        assert replay.group.limit > limit, "it went on by itself"
        kafka.freeze()
        later.go_on.set()
        await asyncio.sleep(4)  # a frozen broker is one that does not answer for a while
        assert not running.done()
        kafka.thaw()
        summary = await running
    assert sorted(places(slow)) == all_places(name, 1000, 1000)
    assert in_step(r.timestamp for r in slow)
    assert summary.records == 2000
    ours = [r for r in caplog.records if r.name.startswith("aiokcc")]
    assert len(ours) < 60, "an outage is not a flood of warnings"


@pytest.mark.timeout(90)
async def test_the_store_unreachable(kafka: local.Kafka, private_zookeeper: local.ZooKeeper) -> None:
    """Below the known limit work goes on until the deadline; nothing passes it; then it resumes by itself."""
    zk = private_zookeeper
    name = await topic(kafka, [at(0, n) for n in range(2000)] + [at(m) for m in range(1, 6)], [at(m) for m in range(6)])
    slow = Slow(500)
    passed: list[tuple[float, int]] = []

    async def handle(record: Any) -> None:
        await slow.handle(record)
        passed.append((time.monotonic(), record.timestamp))

    async with asyncio.timeout(60), replaying(kafka, name, store=zk.url("away"), session_timeout=6) as replay:
        running = asyncio.ensure_future(replay.run(handle))
        await slow.reached.wait()
        await zk.server.kill()
        down = time.monotonic()
        slow.go_on.set()
        await asyncio.sleep(5)  # past the deadline of the session, two thirds of six seconds
        up = time.monotonic()
        await zk.server.start()
        await running
    while_down = [ts for when, ts in passed if down < when < up]
    assert len(while_down) > 500, "what was open went on"
    assert max(while_down) < at(1), "nothing passed the limit"
    assert max(when for when, _ in passed if when < up) < down + 4.5, "nothing started after the deadline"
    assert sorted(set(places(slow))) == all_places(name, 2005, 6)
    assert in_step(ts for _, ts in passed)


async def test_cancelling_while_kafka_and_the_store_are_away_is_quick(
    kafka: local.Kafka, zookeeper: local.ZooKeeper
) -> None:
    name = await topic(kafka, [at(0), at(1)], [at(0)])
    async with Proxy(zookeeper.connection) as to_zk, Proxy(kafka.bootstrap) as to_kafka:
        slow = Slow(2)

        async def follow() -> None:
            url = f"zk://{to_zk.connection}/{name}"
            async with replaying(kafka, name, store=url, end=None, bootstrap_servers=to_kafka.connection) as replay:
                await replay.run(slow.handle)

        task = asyncio.ensure_future(follow())
        async with asyncio.timeout(30):
            await slow.reached.wait()
            to_zk.blackhole("both")
            to_kafka.blackhole("both")
            began = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert time.monotonic() - began < 15


async def test_a_member_that_waits_longer_than_kafka_lets_a_consumer_be_silent_keeps_its_partitions(
    kafka: local.Kafka, zk_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that is not polled for five minutes is taken out of Kafka's group by aiokafka; here after half a second."""
    monkeypatch.setitem(AIOKafkaConsumer.__init__.__kwdefaults__, "max_poll_interval_ms", 500)
    name = await topic(kafka, [at(m) for m in range(4)])
    slow = Slow(2)
    settings = {"store": zk_root, "group_id": name, "heartbeat_interval_ms": 200}
    async with asyncio.timeout(30), replaying(kafka, name, **settings) as replay:
        running = asyncio.ensure_future(replay.run(slow.handle))
        await slow.reached.wait()
        await asyncio.sleep(2)  # time is the event: silence for longer than that
        slow.go_on.set()
        await running
    assert places(slow) == all_places(name, 4)


async def test_a_partition_that_another_holds_is_named(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(0)], [at(0)])
    slow = Slow(1)
    async with asyncio.timeout(30), replaying(kafka, name, store=zk_root, member="first") as first:
        running = asyncio.ensure_future(first.run(slow.handle))
        await slow.reached.wait()
        with pytest.raises(aiokcc.PartitionOwnedError, match="held by first-.* within 0.3 s"):
            async with replaying(kafka, name, store=zk_root, claim_timeout=0.3) as second:
                await second.run(lambda _: None)
        slow.go_on.set()
        await running


async def test_appending_while_following_from_three_members(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, *([at(0)] for _ in range(3)))
    seen: list[Any] = []
    everything = asyncio.Event()

    def handle(record: Any) -> None:
        seen.append(record)
        if len(seen) == 33:
            everything.set()

    async def work(number: int) -> None:
        async with replaying(kafka, name, store=zk_root, partitions={name: [number]}, end=None) as replay:
            await replay.run(handle)

    tasks = [asyncio.ensure_future(work(number)) for number in range(3)]
    async with asyncio.timeout(40):
        for minute in range(1, 11):
            for number in range(3):
                await append(kafka, name, number, [at(minute)])
        await everything.wait()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert sorted(places(seen)) == all_places(name, 11, 11, 11)
