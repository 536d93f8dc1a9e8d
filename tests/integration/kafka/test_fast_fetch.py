"""The fast path gives the same records as aiokafka, on a real broker, whether aiokafka or we take them from a fetch."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import aiokafka.consumer.fetcher
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.errors import CorruptRecordException

from aiokcc import KafkaError, local
from aiokcc.kafka import fast_fetch
from aiokcc.kafka.fast_fetch import _PlainRecords, prepare_fetcher
from tests import kafka_topics
from tests.kafka_topics import Row
from tests.replays import alive, at, replaying, topic


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


async def take(
    kafka: local.Kafka, name: str, *, ahead: bool = True, size: int = 7, offset: int = 0, **settings: Any
) -> tuple[list[Any], int]:
    """Return the same as `read`, with records that are taken out of the fetches; aiokafka only fetches."""
    partition, found = TopicPartition(name, 0), []
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, enable_auto_commit=False, **settings)
    async with asyncio.timeout(20), contextlib.AsyncExitStack() as stack:
        await consumer.start()
        stack.push_async_callback(consumer.stop)
        take_fetched = prepare_fetcher(consumer, fetch_ahead=ahead).take
        consumer.assign([partition])
        consumer.seek(partition, offset)
        end = (await consumer.end_offsets([partition]))[partition]
        while (records := take_fetched(partition, size)) is not None or await consumer.position(partition) < end:
            if records is None:  # nothing was fetched yet
                await consumer._fetcher._create_fetch_waiter()
            else:
                assert len(records) <= size
                found += records
        return found, await consumer.position(partition)


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
    """Return a list to which each fetch that is unpacked the short way adds its partition."""
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
    for size in (1, 2, 7, 41, 1000):
        assert await take(kafka, name, ahead=size % 2 == 1, offset=offset, size=size) == theirs
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
    if isolation_level == "read_uncommitted":  # what a transaction has aborted is left to aiokafka
        for ahead in (True, False):
            assert await take(kafka, name, ahead=ahead, isolation_level=isolation_level) == theirs


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
    monkeypatch.setattr(fast_fetch, "_RECORDS_PARAMETERS", ("self", "something", "else"))
    taken = short_ways(monkeypatch)
    (record,), _ = await read(kafka, name, prepared=True)
    assert record.value == b"7"
    assert not taken


async def test_a_fetch_that_is_built_otherwise_is_left_as_it_is(
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

    for module in (fast_fetch, aiokafka.consumer.fetcher):
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
        """The batches of a fetch, all with a wrong checksum."""

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


async def test_records_fetched_for_another_position_are_not_taken(kafka: local.Kafka) -> None:
    name = await kafka_topics.create_fresh(kafka.bootstrap)
    await kafka_topics.write(kafka.bootstrap, name, [Row(0, at(n), b"7") for n in range(20)])
    partition = TopicPartition(name, 0)
    async with asyncio.timeout(20), consuming(kafka, name, prepared=False) as consumer:
        take_fetched = prepare_fetcher(consumer, fetch_ahead=True).take
        consumer.seek(partition, 0)
        await consumer._fetcher._create_fetch_waiter()
        consumer.seek(partition, 11)
        assert take_fetched(partition, 3) is None
        await consumer._fetcher._create_fetch_waiter()
        assert [r.offset for r in take_fetched(partition, 3) or ()] == [11, 12, 13]
        consumer.assign([partition])
        consumer.seek(partition, 0)
        assert take_fetched(partition, 3) is None, "what was left went with the assignment"
        await consumer._fetcher._create_fetch_waiter()
        assert [r.offset for r in take_fetched(partition, 3) or ()] == [0, 1, 2]


@pytest.mark.parametrize("unknown", ["", "_RESULT_PARAMETERS", "_RESULT_ATTRIBUTES", "_METHODS"])
async def test_a_replay_takes_fetched_records_or_asks_aiokafka(
    kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch, unknown: str
) -> None:
    name = await topic(kafka, [at(n / 100) for n in range(2000)])
    others = {
        "_RESULT_PARAMETERS": ("other",),
        "_RESULT_ATTRIBUTES": {"_other"},
        "_METHODS": ((PartitionRecords, ("_other",)),),
    }
    if unknown:
        monkeypatch.setattr(fast_fetch, unknown, others[unknown])
    taken: list[int] = []
    take = _PlainRecords.take

    def noted(self: _PlainRecords, most: int) -> list[Any]:
        taken.append(most)
        return take(self, most)

    monkeypatch.setattr(_PlainRecords, "take", noted)
    seen: list[int] = []
    async with replaying(kafka, name) as replay:
        await replay.run(lambda record: seen.append(record.offset))
    assert seen == list(range(2000))
    assert any(most > 1 for most in taken) is (not unknown)


@pytest.mark.parametrize("settings", [{}, {"end": at(15)}, {"lookahead": 3}], ids=["to now", "to a time", "lookahead"])
async def test_fast_fetch_or_not_a_replay_reads_the_same(
    kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    name = await topic(kafka, [at(n / 100) for n in range(2000)], [at(n) for n in range(20)])
    await kafka_topics.write_transaction(kafka.bootstrap, name, [Row(1, at(19), b"aborted")] * 3, abort=True)
    await kafka_topics.write(kafka.bootstrap, name, [Row(1, at(19), b"last", b"key")])
    plain: list[object] = []
    take = _PlainRecords.take

    def noted(self: _PlainRecords, most: int) -> list[Any]:
        plain.append(self)
        return take(self, most)

    monkeypatch.setattr(_PlainRecords, "take", noted)
    seen: dict[bool, list[Any]] = {}
    for fast in (True, False):
        plain.clear()
        async with replaying(kafka, name, fast_fetch=fast, **settings) as replay:
            records = [record async for record in replay]
        seen[fast] = sorted(records, key=lambda record: (record.partition, record.offset))
        assert bool(plain) is fast, "with False nothing of aiokafka is changed"
    assert seen[True] == seen[False]
    assert len(seen[True]) == (1500 + 15 if "end" in settings else 2000 + 21)


async def test_a_replay_names_what_it_could_not_take(kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    name = await topic(kafka, [at(n / 100) for n in range(2000)])
    take = _PlainRecords.take

    def damaged(self: _PlainRecords, most: int) -> list[Any]:
        if most > 1:
            raise CorruptRecordException(f"a batch of {name}.0 does not match its checksum")
        return take(self, most)

    monkeypatch.setattr(_PlainRecords, "take", damaged)
    async with replaying(kafka, name) as replay:
        with pytest.raises(KafkaError, match=f"could not fetch from Kafka: .*a batch of {name}.0"):
            await replay.run(lambda _: None)


@pytest.mark.parametrize("settings", [{}, {"end": None}, {"lookahead": 7}], ids=str)
async def test_used_records_are_freed_at_once(kafka: local.Kafka, settings: dict[str, Any]) -> None:
    """Without waiting for the garbage collector: what is held is what the buffer may hold."""
    name = await kafka_topics.create_fresh(kafka.bootstrap)
    for n in range(60):  # as many batches, and fetches
        await kafka_topics.write(kafka.bootstrap, name, [Row(0, at(n), b"x" * 1000)] * 50)
    most, seen = 0, 0
    done = asyncio.Event()

    async def handle(record: Any) -> None:
        nonlocal most, seen
        seen += 1
        if seen % 99 == 0:
            most = max(most, len([f for f in alive(PartitionRecords) if f._tp.topic == name]))
        if seen == 3000:
            done.set()

    gc.collect()
    gc.disable()
    try:
        async with (
            asyncio.timeout(30),
            replaying(kafka, name, buffer_records=5, buffer_bytes=100_000, **settings) as replay,
        ):
            running = asyncio.ensure_future(replay.run(handle))
            await done.wait()
            replay.stop()
            await running
    finally:
        gc.enable()
    assert 0 < most <= 4
