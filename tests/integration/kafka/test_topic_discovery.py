"""New partitions and topics join a replay, and Kafka's consumer group assigns partitions, on a real broker."""

from __future__ import annotations

import asyncio
from typing import Any

import aiokcc
from aiokcc import local
from tests.kafka_topics import Row, create, create_fresh, fresh_name, write

MINUTE = 60_000
BASE = 1_767_225_600_000  # 2026-01-01T00:00Z


def row(partition: int, minute: float, value: bytes = b"") -> Row:
    return Row(partition, BASE + int(minute * MINUTE), value)


class Seen:
    """The records that the handlers of a group saw, and the events that a test waits for."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self._changed = asyncio.Event()

    async def handle(self, record: Any) -> None:
        self.records.append(record)
        self._changed.set()

    async def until(self, count: int) -> None:
        while len(self.records) < count:
            self._changed.clear()
            await self._changed.wait()


async def add_partitions(bootstrap: str, topic: str, total: int) -> None:
    """Give a topic so many partitions, and return when the broker knows them: the controller answers before that."""
    from aiokafka.admin import NewPartitions

    from tests.kafka_topics import admin

    async with admin(bootstrap) as client:
        await client.create_partitions({topic: NewPartitions(total)})
        known = 0
        while known < total:
            (described,) = await client.describe_topics([topic])
            known = sum(partition["error_code"] == 0 for partition in described["partitions"])


async def test_a_new_partition_joins_at_the_limit(kafka: local.Kafka, zk_root: str) -> None:
    topic = await create_fresh(kafka.bootstrap, partitions=1)
    await write(kafka.bootstrap, topic, [row(0, minute) for minute in range(5)])
    seen = Seen()
    async with aiokcc.replay(
        topic, bootstrap_servers=kafka.bootstrap, store=zk_root, period="1m", end=None, metadata_max_age_ms=200
    ) as replay:
        running = asyncio.ensure_future(replay.run(seen.handle))
        await seen.until(5)
        await add_partitions(kafka.bootstrap, topic, 2)
        await write(kafka.bootstrap, topic, [row(1, 2, b"late"), row(1, 6, b"new"), row(0, 6.5)])
        await seen.until(8)
        status = await replay.group.status()
        running.cancel()
        await asyncio.wait([running])
    assert sorted((r.partition, r.offset) for r in seen.records) == [*((0, n) for n in range(6)), (1, 0), (1, 1)]
    assert [p.partition for p in status.partitions] == [f"{topic}.0", f"{topic}.1"]
    assert replay.summary.late == 1, "what lay before the limit when the partition joined is late"


async def test_a_new_topic_that_matches_the_pattern_joins(kafka: local.Kafka, zk_root: str) -> None:
    stem = fresh_name("grow")
    await create(kafka.bootstrap, f"{stem}-a")
    await write(kafka.bootstrap, f"{stem}-a", [row(0, minute) for minute in range(3)])
    seen = Seen()
    async with aiokcc.replay(
        pattern=f"{stem}-.*",
        bootstrap_servers=kafka.bootstrap,
        store=zk_root,
        period="1m",
        end=None,
        metadata_max_age_ms=200,
    ) as replay:
        running = asyncio.ensure_future(replay.run(seen.handle))
        await seen.until(3)
        await create(kafka.bootstrap, f"{stem}-b")
        await write(kafka.bootstrap, f"{stem}-b", [row(0, 7)])
        await seen.until(4)
        running.cancel()
        await asyncio.wait([running])
    assert seen.records[-1].topic == f"{stem}-b"


async def group_member(name: str, topic: str, bootstrap: str, store: str, seen: Seen, **more: Any) -> Any:
    async with aiokcc.replay(
        topic,
        bootstrap_servers=bootstrap,
        store=store,
        period="1m",
        end="now",
        group_id=f"group-of-{topic}",
        member=name,
        session_timeout=5,
        heartbeat_interval_ms=300,
        **more,
    ) as replay:
        return await replay.run(seen.handle)


def in_step(seen: Seen) -> None:
    minutes = [(r.timestamp - BASE) // MINUTE for r in seen.records]
    assert minutes == sorted(minutes), "a record was handled before an earlier period was complete"


async def test_a_kafka_group_shares_the_partitions_and_moves_them_in_the_middle_of_a_period(
    kafka: local.Kafka, zk_root: str
) -> None:
    """The second member joins while the first is at work: nothing is lost, nothing passes the limit."""
    topic = await create_fresh(kafka.bootstrap, partitions=4)
    await write(kafka.bootstrap, topic, [row(n % 4, n / 50) for n in range(4000)])
    seen, helpers = Seen(), Seen()
    joined = asyncio.Event()

    async def slowly(record: Any) -> None:
        await seen.handle(record)
        if not helpers.records:
            await asyncio.sleep(0.002)  # the work takes its time, until there is help
        if len(seen.records) == 200:
            joined.set()

    class Both(Seen):
        async def handle(self, record: Any) -> None:
            await helpers.handle(record)
            await seen.handle(record)

    first = Seen()
    first.handle = slowly  # type: ignore[method-assign]
    one = asyncio.ensure_future(group_member("one", topic, kafka.bootstrap, zk_root, first))
    await joined.wait()
    two = asyncio.ensure_future(group_member("two", topic, kafka.bootstrap, zk_root, Both()))
    await asyncio.gather(one, two)
    assert len({(r.partition, r.offset) for r in seen.records}) == 4000
    assert helpers.records, "Kafka gave the second member nothing"
    in_step(seen)


async def test_a_kafka_group_member_that_fails_is_replaced(kafka: local.Kafka, zk_root: str) -> None:
    topic = await create_fresh(kafka.bootstrap, partitions=4)
    await write(kafka.bootstrap, topic, [row(n % 4, n / 50) for n in range(2000)])
    seen = Seen()

    async def fails(record: Any) -> None:
        await seen.handle(record)
        if len(seen.records) >= 500:
            raise RuntimeError("out of order")

    broken = Seen()
    broken.handle = fails  # type: ignore[method-assign]
    one = asyncio.ensure_future(group_member("one", topic, kafka.bootstrap, zk_root, broken))
    await asyncio.wait([one])
    error = one.exception()
    assert isinstance(error, aiokcc.HandlerError)
    await group_member("two", topic, kafka.bootstrap, zk_root, seen)
    assert len({(r.partition, r.offset) for r in seen.records}) == 2000
    repeated = len(seen.records) - 2000
    assert repeated <= 200, "more than the open period came again"
    assert (error.topic, error.partition) == (topic, seen.records[499].partition)


async def test_an_unowned_partition_blocks(kafka: local.Kafka, zk_root: str) -> None:
    topic = await create_fresh(kafka.bootstrap, partitions=2)
    await write(kafka.bootstrap, topic, [row(n % 2, n / 4) for n in range(40)])
    seen = Seen()
    where = {"bootstrap_servers": kafka.bootstrap, "store": zk_root}
    settings: dict[str, Any] = {**where, "start": "2026-01-01T00:00Z", "end": "now", "period": "1m"}
    async with aiokcc.replay(topic, partitions={topic: [0]}, **settings) as replay:
        running = asyncio.ensure_future(replay.run(seen.handle))
        await seen.until(2)
        status = await replay.group.status()
        assert (f"{topic}.1", None) in [(b.partition, b.member) for b in status.blocking]
        async with aiokcc.replay(topic, partitions={topic: [1]}, **settings) as other:
            await other.run(seen.handle)
            await running
    assert len(seen.records) == 40
    in_step(seen)
