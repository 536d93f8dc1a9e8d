"""Records made the short way are the records that aiokafka makes, on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiokafka.consumer.fetcher
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.errors import CorruptRecordException

from aiokcc import local
from aiokcc.kafka import fetcher
from aiokcc.kafka.fetcher import _PlainRecords, prepare_fetcher
from tests import kafka_topics
from tests.kafka_topics import Row
from tests.replays import at


@contextlib.asynccontextmanager
async def consuming(
    kafka: local.Kafka, name: str, *, prepared: bool, offset: int = 0, **settings: Any
) -> AsyncIterator[Any]:
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, enable_auto_commit=False, **settings)
    await consumer.start()
    try:
        if prepared:
            prepare_fetcher(consumer)
        consumer.assign([TopicPartition(name, 0)])
        consumer.seek(TopicPartition(name, 0), offset)
        yield consumer
    finally:
        await consumer.stop()


async def read(
    kafka: local.Kafka, name: str, *, prepared: bool, size: int = 7, **settings: Any
) -> tuple[list[Any], int]:
    """Everything up to the end of the log, in short lists, and the position after it."""
    partition, found = TopicPartition(name, 0), []
    async with asyncio.timeout(20), consuming(kafka, name, prepared=prepared, **settings) as consumer:
        end = (await consumer.end_offsets([partition]))[partition]
        while await consumer.position(partition) < end:
            for records in (await consumer.getmany(timeout_ms=1000, max_records=size)).values():
                found += records
        return found, await consumer.position(partition)


def short_ways(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Filled with a word for every fetch that is unpacked the short way."""
    taken: list[object] = []
    unpack = _PlainRecords._unpack_records

    def noted(self: _PlainRecords) -> Any:
        taken.append(self._tp)
        return unpack(self)

    monkeypatch.setattr(_PlainRecords, "_unpack_records", noted)
    return taken


@pytest.mark.parametrize("codec", kafka_topics.CODECS)
@pytest.mark.parametrize("offset", [0, 13])
async def test_the_same_records(
    kafka: local.Kafka, codec: str | None, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await kafka_topics.create_fresh(kafka.bootstrap)
    rows = [Row(0, at(n), b"x" * n if n % 3 else None, b"key" if n % 2 else None) for n in range(40)]
    await kafka_topics.write(kafka.bootstrap, name, rows, codec=codec)
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap)
    await producer.start()
    await producer.send_and_wait(name, b"v", timestamp_ms=at(50), headers=[("a", b"1"), ("b", b"2")])
    await producer.stop()
    theirs = await read(kafka, name, prepared=False, offset=offset)
    taken = short_ways(monkeypatch)
    ours = await read(kafka, name, prepared=True, offset=offset)
    assert ours == theirs
    assert [r.offset for r in ours[0]] == list(range(offset, 41))
    assert taken, "the short way was taken"


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
async def test_the_same_of_transactions(kafka: local.Kafka, isolation_level: str) -> None:
    name = await kafka_topics.create_fresh(kafka.bootstrap)
    for n, abort in enumerate((False, True, False)):
        rows = [Row(0, at(n), f"{n}".encode()) for _ in range(5)]
        await kafka_topics.write_transaction(kafka.bootstrap, name, rows, abort=abort)
        await kafka_topics.write(kafka.bootstrap, name, [Row(0, at(n), b"-")])
    theirs = await read(kafka, name, prepared=False, isolation_level=isolation_level)
    assert len(theirs[0]) == (13 if isolation_level == "read_committed" else 18)
    assert await read(kafka, name, prepared=True, isolation_level=isolation_level) == theirs


async def test_deserializers_are_left_to_aiokafka(kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    name = await kafka_topics.create_fresh(kafka.bootstrap)
    await kafka_topics.write(kafka.bootstrap, name, [Row(0, at(0), b"7")])
    taken = short_ways(monkeypatch)
    (record,), _ = await read(kafka, name, prepared=True, value_deserializer=int)
    assert record.value == 7
    assert not taken


async def test_a_fetcher_of_another_shape_is_left_as_it_is(kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    name = await kafka_topics.create_fresh(kafka.bootstrap)
    await kafka_topics.write(kafka.bootstrap, name, [Row(0, at(0), b"7")])
    monkeypatch.setattr(fetcher, "_MADE_FROM", ("self", "something", "else"))
    taken = short_ways(monkeypatch)
    (record,), _ = await read(kafka, name, prepared=True)
    assert record.value == b"7"
    assert not taken


async def test_what_a_fetch_brings_is_left_as_it_is_where_it_is_built_otherwise(
    kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await kafka_topics.create_fresh(kafka.bootstrap)
    await kafka_topics.write(kafka.bootstrap, name, [Row(0, at(0), b"7")])

    class Renamed(PartitionRecords):  # type: ignore[misc]
        """Made from the same, with another name for what it holds."""

        def __init__(
            self,
            tp: Any,
            records: Any,
            aborted_transactions: Any,
            fetch_offset: Any,
            key_deserializer: Any,
            value_deserializer: Any,
            check_crcs: Any,
            isolation_level: Any,
        ) -> None:
            rest = (fetch_offset, key_deserializer, value_deserializer, check_crcs, isolation_level)
            super().__init__(tp, records, aborted_transactions, *rest)
            self._unpacked = self.__dict__.pop("_records_iterator")

        def __next__(self) -> Any:
            return next(self._unpacked)

    for module in (fetcher, aiokafka.consumer.fetcher):
        monkeypatch.setattr(module, "PartitionRecords", Renamed)
    (record,), _ = await read(kafka, name, prepared=True)
    assert record.value == b"7"


async def test_a_batch_that_does_not_match_its_checksum_is_an_error(
    kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await kafka_topics.create_fresh(kafka.bootstrap)
    await kafka_topics.write(kafka.bootstrap, name, [Row(0, at(0), b"7")])
    unpack = _PlainRecords._unpack_records

    class Damaged:
        """The batches of a fetch, none of which is what was written."""

        def __init__(self, batches: Any) -> None:
            self._batches = batches
            self.has_next = batches.has_next

        def next_batch(self) -> Any:
            self._batches.next_batch()
            return self

        def validate_crc(self) -> bool:
            return False

    def damaged(self: _PlainRecords) -> Any:
        self._records = Damaged(self._records)
        return unpack(self)

    monkeypatch.setattr(_PlainRecords, "_unpack_records", damaged)
    async with asyncio.timeout(20), consuming(kafka, name, prepared=True) as consumer:
        with pytest.raises(CorruptRecordException, match=f"a batch of {name}.0 does not match its checksum"):
            await consumer.getmany(timeout_ms=5000)
