"""Topics for tests: created with the settings a test needs, and filled quickly with records of any timestamp."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import for_code

CODECS = (None, "gzip", "snappy", "lz4", "zstd")
_BATCH_BYTES = 512 * 1024


class Row(NamedTuple):
    """A record to write: its partition, its time (milliseconds since the epoch) and its content."""

    partition: int
    timestamp: int
    value: bytes | None = b""
    key: bytes | None = None


def fresh_name(stem: str = "topic") -> str:
    """Return a name that no other test uses on the same broker."""
    return f"{stem}-{uuid.uuid4().hex[:8]}"


@contextlib.asynccontextmanager
async def admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """Give an admin client."""
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def create(
    bootstrap: str, *names: str, partitions: int = 1, replicas: int = 1, configs: dict[str, Any] | None = None
) -> None:
    """Create topics, all alike. `configs` are Kafka's topic settings, such as ``{"cleanup.policy": "compact"}``."""
    texts = {key: str(value) for key, value in (configs or {}).items()}
    async with admin(bootstrap) as client:
        topics = [NewTopic(name, partitions, replicas, topic_configs=texts) for name in names]
        response = await client.create_topics(topics)
    for name, code, *rest in response.topic_errors:
        if code:
            raise for_code(code)(f"{name}: {rest[0] if rest else ''}")


async def create_fresh(
    bootstrap: str, stem: str = "topic", *, partitions: int = 1, replicas: int = 1, **configs: Any
) -> str:
    """Create one topic with a fresh name and return that; settings with ``_`` for each dot."""
    name = fresh_name(stem)
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    await create(bootstrap, name, partitions=partitions, replicas=replicas, configs=settings)
    return name


async def read(
    bootstrap: str, topic: str, *, partitions: int = 1, isolation: str = "read_uncommitted"
) -> list[tuple[int, int, bytes | None]]:
    """Return the partition, timestamp and value of all records up to the end of the log."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, fetch_max_wait_ms=50, isolation_level=isolation
    )
    await consumer.start()
    try:
        mine = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(mine)
        for partition in mine:
            consumer.seek(partition, 0)
        ends = await consumer.end_offsets(mine)
        got = []
        async with asyncio.timeout(60):
            while any([await consumer.position(partition) < end for partition, end in ends.items()]):
                for records in (await consumer.getmany(*mine, timeout_ms=100)).values():
                    got += [(record.partition, record.timestamp, record.value) for record in records]
        return sorted(got, key=lambda row: row[0])
    finally:
        await consumer.stop()


async def write(bootstrap: str, topic: str, rows: Iterable[Row], *, codec: str | None = None) -> None:
    """Write rows, in their order within each partition; all in-sync replicas have them when this returns."""
    async with _producer(bootstrap, codec) as producer:
        await _send(producer, topic, rows)


async def write_transaction(
    bootstrap: str, topic: str, rows: Iterable[Row], *, abort: bool = False, codec: str | None = None
) -> None:
    """Write rows in one transaction, which is committed or aborted; its marker is in the log when this returns."""
    async with _transaction(bootstrap, codec) as producer:
        await _send(producer, topic, rows)
        await (producer.abort_transaction() if abort else producer.commit_transaction())


@contextlib.asynccontextmanager
async def open_transaction(
    bootstrap: str, topic: str, rows: Iterable[Row], *, abort: bool = False
) -> AsyncIterator[None]:
    """Write rows in a transaction that stays open in the body. It is committed or aborted after it, with its marker."""
    async with _transaction(bootstrap, None) as producer:
        await _send(producer, topic, rows)
        yield
        await (producer.abort_transaction() if abort else producer.commit_transaction())


@contextlib.asynccontextmanager
async def _transaction(bootstrap: str, codec: str | None) -> AsyncIterator[AIOKafkaProducer]:
    """Give a producer in a transaction, which the body ends.

    The coordinator answers a commit as soon as it has decided it, and writes the marker to the log after that: an end of the
    log that is read in between lies before the transaction. Only a producer that begins again under the same name has to
    wait until the marker is written.
    """
    name = fresh_name("writer")
    async with _producer(bootstrap, codec, transactional_id=name) as producer:
        await producer.begin_transaction()
        yield producer
    async with _producer(bootstrap, None, transactional_id=name):
        pass


@contextlib.asynccontextmanager
async def _producer(bootstrap: str, codec: str | None, **settings: Any) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, compression_type=codec, max_batch_size=_BATCH_BYTES, acks="all", **settings
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def _send(producer: AIOKafkaProducer, topic: str, rows: Iterable[Row]) -> None:
    """Send whole batches, which is many times faster than record by record."""
    by_partition: dict[int, list[Row]] = {}
    for row in rows:
        by_partition.setdefault(row.partition, []).append(row)
    for partition, mine in by_partition.items():
        batch = producer.create_batch()
        for row in itertools.chain(mine, [None]):  # type: ignore[assignment]
            if row is not None:
                added = batch.append(key=row.key, value=row.value, timestamp=row.timestamp)
                if added is not None:
                    continue
            # Full, or the last: away with it before the next, so that the order holds.
            await (await producer.send_batch(batch, topic, partition=partition))
            batch = producer.create_batch()
            if row is not None:
                assert batch.append(key=row.key, value=row.value, timestamp=row.timestamp) is not None, (
                    "a record too big"
                )
