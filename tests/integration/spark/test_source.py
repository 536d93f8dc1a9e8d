"""Frames on a real Spark and a real Kafka: exact ranges, right periods, boundaries by a scan; no record skipped or doubled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin.records_to_delete import RecordsToDelete

import aiokcc.spark
from aiokcc import local
from aiokcc.core.partitions import Partition
from aiokcc.errors import PoisonTimestampError, UsageError
from aiokcc.spark import source
from aiokcc.spark.batch import Batch, Slice
from aiokcc.spark.finder import Found
from aiokcc.spark.period_column import PERIOD, label
from aiokcc.spark.scan import ScanGroup, ScanIndex, Scanner, summarize
from tests import kafka_topics
from tests.kafka_topics import Row
from tests.property.test_spark_frames import grouped, period_of, periods_of_a_stream
from tests.replays import BASE, MINUTE, append, at, topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(180)

Range = tuple[int, int]


def batch_of(*ranges: Mapping[Partition, Range], behind: Mapping[Partition, int] | None = None) -> Batch:
    """Return a batch of neighbouring minutes."""
    slices = [Slice(at(n), at(n + 1), dict(mine)) for n, mine in enumerate(ranges)]
    return Batch("test", 0, tuple(slices), behind or {})


async def labels_of(spark: SparkSession, kafka: local.Kafka, batch: Batch, **settings: Any) -> list[tuple[Any, ...]]:
    """Return topic, partition, offset and minute of every row, sorted."""

    def run() -> list[tuple[Any, ...]]:
        frame = source.read(spark, batch, bootstrap_servers=kafka.bootstrap, **settings)
        return minutes_of(frame)

    return await asyncio.to_thread(run)


def minutes_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    from pyspark.sql import functions as F  # noqa: N812

    rows = frame.select("topic", "partition", "offset", F.unix_millis(PERIOD).alias("period")).collect()
    return sorted((r["topic"], r["partition"], r["offset"], (r["period"] - BASE) / MINUTE) for r in rows)


# -- reading -----------------------------------------------------------------------------------------------------------


async def test_several_topics_with_different_partition_counts(spark: SparkSession, kafka: local.Kafka) -> None:
    orders = await topic(kafka, [at(0)] * 5, [at(0)] * 4, [], stem="orders")
    payments = await topic(kafka, [at(0)] * 6, stem="payments")
    o0, o1, p0 = Partition(orders, 0), Partition(orders, 1), Partition(payments, 0)
    batch = batch_of({o0: (1, 3), p0: (0, 1)}, {o1: (0, 4)}, {o0: (3, 4), p0: (1, 5)})
    expected = [(orders, 0, 1, 0), (orders, 0, 2, 0), (orders, 0, 3, 2)]
    expected += [(orders, 1, offset, 1) for offset in range(4)]
    expected += [(payments, 0, 0, 0)] + [(payments, 0, offset, 2) for offset in range(1, 5)]
    assert await labels_of(spark, kafka, batch) == sorted(expected)


async def test_the_columns_are_those_of_the_source_and_period(spark: SparkSession, kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0), at(1)])
    batch = batch_of({Partition(name, 0): (0, 1)}, {Partition(name, 0): (1, 2)})

    def shapes() -> list[list[tuple[str, str]]]:
        plain = source.read(spark, batch, bootstrap_servers=kafka.bootstrap)
        full = source.read(
            spark,
            batch,
            bootstrap_servers=kafka.bootstrap,
            options={"includeHeaders": "true"},
            lateness={name: 5},
            start=at(0),
            timestamp="timestamp",
        )
        assert full.count() == 2
        return [plain.dtypes, full.dtypes]

    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    plain, full = await asyncio.to_thread(shapes)
    assert [name for name, _ in plain] == [*columns, "period"]
    assert dict(plain)["period"] == "timestamp"
    assert [name for name, _ in full] == [*columns, "headers", "period"]


async def test_the_session_keeps_its_own_setting_of_readers(spark: SparkSession, kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0)])
    before = spark.conf.get("spark.sql.sources.useV1SourceList")
    assert before is not None
    assert "kafka" in before
    await labels_of(spark, kafka, batch_of({Partition(name, 0): (0, 1)}))
    assert spark.conf.get("spark.sql.sources.useV1SourceList") == before


async def test_few_records_from_many_partitions_make_few_tasks(spark: SparkSession, kafka: local.Kafka) -> None:
    name = await topic(kafka, *([at(0), at(0, 1)] for _ in range(5)))
    ranges = {Partition(name, number): (0, 2) for number in range(5)}

    def tasks(**options: str) -> int:
        frame = source.load(spark, ranges, bootstrap_servers=kafka.bootstrap, options=options)
        assert frame.count() == 10
        return int(frame.rdd.getNumPartitions())

    assert await asyncio.to_thread(tasks) == 2
    assert await asyncio.to_thread(tasks, minPartitions="10") == 10


async def test_gaps_of_compaction_do_not_change_the_period_of_a_record(spark: SparkSession, kafka: local.Kafka) -> None:
    name = await kafka_topics.create_fresh(
        kafka.bootstrap,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0.001",
        segment_ms=100,
        max_compaction_lag_ms=100,
    )
    # The keys of each minute are overwritten by the next one's, but for one; a record of a later time closes the segment.
    keys = [b"key%d" % (n % 10) if n % 10 else b"of minute %d" % (n // 10) for n in range(40)]
    rows = [Row(0, at(n // 10, n), b"x", key) for n, key in enumerate(keys)]
    await kafka_topics.write(kafka.bootstrap, name, rows)
    await kafka_topics.write(kafka.bootstrap, name, [Row(0, at(9), b"y", b"other")])
    batch = batch_of(*({Partition(name, 0): (10 * n, 10 * n + 10)} for n in range(4)))
    async with asyncio.timeout(120):
        while True:  # the cleaner tells nobody when it has been there
            left = await labels_of(spark, kafka, batch)
            if len(left) < 40:
                break
    kept = [0, 10, 20, *range(30, 40)]
    assert left == [(name, 0, offset, offset // 10) for offset in kept]


async def test_markers_and_aborted_records_are_left_out(spark: SparkSession, kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0), at(0, 1)])
    await kafka_topics.write_transaction(kafka.bootstrap, name, [Row(0, at(0, 2)), Row(0, at(1))])  # 2, 3, marker 4
    await kafka_topics.write_transaction(kafka.bootstrap, name, [Row(0, at(1, 1))] * 3, abort=True)  # 5 to 7, marker 8
    await append(kafka, name, 0, [at(1, 2), at(2)])  # 9, 10
    one = Partition(name, 0)
    batch = batch_of({one: (0, 3)}, {one: (3, 10)}, {one: (10, 11)})
    expected = [(name, 0, offset, minute) for offset, minute in [(0, 0), (1, 0), (2, 0), (3, 1), (9, 1), (10, 2)]]
    assert await labels_of(spark, kafka, batch) == expected
    dirty = await labels_of(spark, kafka, batch, options={"kafka.isolation.level": "read_uncommitted"})
    assert [row[2] for row in dirty] == [0, 1, 2, 3, 5, 6, 7, 9, 10]


async def test_a_range_of_nothing_but_markers_is_empty(spark: SparkSession, kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0)])
    await kafka_topics.write_transaction(kafka.bootstrap, name, [Row(0, at(1))], abort=True)
    assert await labels_of(spark, kafka, batch_of({Partition(name, 0): (1, 3)})) == []


async def test_deleted_records_fail_the_job(spark: SparkSession, kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0)] * 10)
    async with kafka_topics.admin(kafka.bootstrap) as client:
        await client.delete_records({TopicPartition(name, 0): RecordsToDelete(before_offset=5)})
    with pytest.raises(Exception, match="(?i)offset"):
        await labels_of(spark, kafka, batch_of({Partition(name, 0): (2, 8)}))
    kept = await labels_of(spark, kafka, batch_of({Partition(name, 0): (5, 8)}))
    assert [row[2] for row in kept] == [5, 6, 7]


async def test_a_range_past_the_end_fails_the_job(spark: SparkSession, kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0)] * 3)
    with pytest.raises(Exception, match="(?i)offset|timeout"):
        await labels_of(
            spark,
            kafka,
            batch_of({Partition(name, 0): (0, 9)}),
            options={"kafkaConsumer.pollTimeoutMs": "2000"},
        )


async def test_records_before_the_run_are_left_out(spark: SparkSession, kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0), at(0, -1), at(0, 1)])
    batch = batch_of({Partition(name, 0): (0, 3)})
    assert [row[2] for row in await labels_of(spark, kafka, batch, start=at(0))] == [0, 2]
    assert [row[2] for row in await labels_of(spark, kafka, batch)] == [0, 1, 2]


async def test_a_record_without_a_time_is_named(spark: SparkSession, kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0)], [at(0), -1, at(1)])
    batch = batch_of({Partition(name, 0): (0, 1), Partition(name, 1): (0, 3)})
    with pytest.raises(Exception, match="poison timestamp") as failed:
        await labels_of(spark, kafka, batch)
    error = source.poison_in(failed.value)
    assert error is not None
    assert (error.topic, error.partition, error.offset) == (name, 1, 1)
    assert f"{name}.1 at offset 1: the timestamp -1 is none" in str(error)
    assert source.poison_in(ValueError("something else")) is None


async def test_the_logged_offsets_reproduce_the_frame(spark: SparkSession, kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0)] * 4, [at(0)] * 3)
    batch = batch_of({Partition(name, 0): (1, 2)}, {Partition(name, 0): (2, 4), Partition(name, 1): (0, 2)})
    assert source.offsets_text(batch) == (
        f'startingOffsets={{"{name}":{{"0":1,"1":0}}}} endingOffsets={{"{name}":{{"0":4,"1":2}}}}'
    )


def test_nothing_to_read_and_negative_offsets_are_refused(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="nothing to read"):
        source.load(spark, {Partition("t", 0): (3, 3)}, bootstrap_servers="127.0.0.1:1")
    with pytest.raises(ValueError, match="negative offsets"):
        source.load(spark, {Partition("t", 0): (-2, 3)}, bootstrap_servers="127.0.0.1:1")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "earliest"}, "decided by the replay"),
        ({"subscribePattern": "x.*"}, "decided by the replay"),
        ({"failOnDataLoss": "false"}, "skips nothing"),
        ({"kafka.isolation.level": "read_uncommitted"}, "argument of its own"),
        ({"includeHeader": "true"}, "includeHeaders?"),
        ({"security.protocol": "SSL"}, "begin with 'kafka.'"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("?", r"\?")):
        source.check_options(options)


def test_valid_options_are_accepted() -> None:
    options = {"includeHeaders": True, "minPartitions": 4, "kafka.security.protocol": "SSL", "failOnDataLoss": "true"}
    assert source.check_options(options)["includeHeaders"] == "true"
    assert source.check_options(options)["minPartitions"] == "4"


# -- labels and scans, against plain Python ----------------------------------------------------------------------------


def random_logs(seed: int) -> dict[Partition, list[tuple[int, int]]]:
    """Return logs with gaps and out of order, in partitions of two topics; one partition has a single record."""
    chance = random.Random(seed)
    logs = {}
    for number, (name, size) in enumerate([("a", 60), ("a", 1), ("b", 80), ("b", 30)]):
        offset, log = chance.randrange(5), []
        for n in range(size):
            log.append((offset, max(0, min(95, 95 * n // size + chance.randrange(-25, 25)))))
            offset += chance.choice([1, 1, 1, 2, 5])
        logs[Partition(name, number)] = log
    return logs


def local_frame(spark: SparkSession, logs: Mapping[Partition, list[tuple[int, int]]]) -> DataFrame:
    rows = [(topic, number, offset, ts) for (topic, number), log in logs.items() for offset, ts in log]
    return spark.createDataFrame(rows, "topic string, partition int, offset bigint, ts bigint")


@pytest.mark.parametrize("lateness", [{}, {"a": 7, "b": 0}, {"a": 3, "b": 40}])
@pytest.mark.parametrize("seed", [1, 2])
def test_spark_finds_and_labels_as_plain_python_does(spark: SparkSession, lateness: dict[str, int], seed: int) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    logs = random_logs(seed)
    frame = local_frame(spark, logs)
    index, model = ScanIndex(10, lateness, [33]), ScanIndex(10, lateness, [33])
    index.add(summarize(frame, F.col("ts"), index))
    for partition, log in logs.items():
        model.add(grouped(log, model, partition))
    ends = {p: log[-1][0] + 1 for p, log in logs.items()}
    places = [{p: (log[0][0], log[0][0]) for p, log in logs.items()}]
    for boundary in range(10, 101, 10):
        here = {}
        for p in logs:
            late = lateness.get(p.topic, 0)
            low, high = index.first(p, boundary), index.first(p, boundary + late)
            assert (low, high, index.first(p, 33)) == (
                model.first(p, boundary),
                model.first(p, boundary + late),
                model.first(p, 33),
            )
            here[p] = (low.offset if low else ends[p], high.offset if high else ends[p])
        places.append(here)
    slices = [
        Slice(
            10 * n,
            10 * n + 10,
            {p: (places[n][p][0], places[n + 1][p][1]) for p in logs if places[n][p][0] < places[n + 1][p][1]},
        )
        for n in range(10)
    ]
    expected = {
        (p, offset): start
        for p, log in logs.items()
        for offset, start in periods_of_a_stream(log, lateness.get(p.topic, 0)).items()
    }
    for sizes in ([10], [1, 6, 3]):
        seen: dict[tuple[Partition, int], int] = {}
        n = 0
        for size in sizes:
            batch = Batch("p", 0, tuple(slices[n : n + size]), {p: places[n][p][1] for p in logs})
            held = {
                p: [(o, ts) for o, ts in log if p in batch.ranges and batch.ranges[p][0] <= o < batch.ranges[p][1]]
                for p, log in logs.items()
            }
            labelled = label(local_frame(spark, held), batch, F.col("ts") if any(lateness.values()) else None)
            assert labelled.columns == ["topic", "partition", "offset", "ts", "period"]
            for row in labelled.withColumn("start", F.unix_millis("period")).collect():
                where = (Partition(row["topic"], row["partition"]), row["offset"])
                assert where not in seen, "in two batches"
                seen[where] = row["start"]
                assert row["start"] == period_of(batch, *where, row["ts"] if any(lateness.values()) else None)
            n += size
        assert seen == expected


def test_records_of_many_periods_in_many_partitions_get_their_periods(spark: SparkSession) -> None:
    """There are about six hundred periods, most with one record; a few partitions have no record of most periods."""
    from pyspark.sql import functions as F  # noqa: N812

    logs = {Partition("t", p): [(offset, 0) for offset in range(600 // (p + 1))] for p in range(12)}
    slices = tuple(
        Slice(n, n + 1, {p: (n // (p.number + 1), n // (p.number + 1) + 1) for p in logs if n % (p.number + 1) == 0})
        for n in range(600)
    )
    batch = Batch("p", 0, slices)
    held = {p: log[: batch.ranges[p][1]] for p, log in logs.items()}
    rows = label(local_frame(spark, held), batch).withColumn("start", F.unix_millis("period")).collect()
    assert len(rows) == sum(map(len, held.values()))
    assert all(row["start"] == row["offset"] * (row["partition"] + 1) for row in rows)


@pytest.mark.parametrize(
    ("bad", "words"),
    [(None, "the timestamp null is none"), (-5, "the timestamp -5 is none"), (10**15, "further ahead of the clock")],
)
def test_a_scan_names_the_first_record_without_a_usable_time(spark: SparkSession, bad: int | None, words: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    rows = [("a", 1, 5, 3), ("a", 1, 9, bad), ("a", 1, 7, bad), ("b", 0, 1, bad), ("a", 0, 2, 4)]
    frame = spark.createDataFrame(rows, "topic string, partition int, offset bigint, ts bigint")
    with pytest.raises(PoisonTimestampError, match=words) as failed:
        summarize(frame, F.col("ts"), ScanIndex(10), ceiling=10**14)
    assert (failed.value.topic, failed.value.partition, failed.value.offset) == ("a", 1, 7)


async def test_a_scan_reads_event_time_from_the_value(spark: SparkSession, kafka: local.Kafka) -> None:
    name = await kafka_topics.create_fresh(kafka.bootstrap, partitions=2)
    times = [at(0), at(2), at(1), at(2, 5), at(4)]
    rows = [Row(0, at(50 + n), b'{"at": %d}' % ts) for n, ts in enumerate(times)]
    await kafka_topics.write(kafka.bootstrap, name, rows)
    index = ScanIndex(MINUTE, {name: 90_000})
    expression = "get_json_object(cast(value as string), '$.at')"
    scanner = Scanner(spark, f"cast({expression} as bigint)", kafka.bootstrap, {}, lambda: at(1000))
    one = Partition(name, 0)
    index.add(await asyncio.to_thread(scanner, index, {one: (0, 5), Partition(name, 1): (0, 0)}))
    assert index.first(one, at(1)) == Found(1, at(2))
    assert index.first(one, at(3)) == Found(4, at(4))
    assert index.first(one, at(0, 90_000)) == Found(1, at(2))
    assert index.first(one, at(2, 90_000)) == Found(4, at(4))
    assert index.first(one, at(5)) is None
    assert await asyncio.to_thread(scanner, index, {one: (5, 5)}) == []
    wrong = Scanner(spark, expression, kafka.bootstrap, {}, lambda: at(1000))
    with pytest.raises(UsageError, match="of type string"):
        await asyncio.to_thread(wrong, index, {one: (0, 5)})
    lost = Scanner(spark, "no_such_column", kafka.bootstrap, {}, lambda: at(1000))
    with pytest.raises(UsageError, match="over the columns key, value, topic"):
        await asyncio.to_thread(lost, index, {one: (0, 5)})


def test_a_time_that_was_not_scanned_for_is_refused() -> None:
    index = ScanIndex(10, {"a": 3})
    index.add([ScanGroup(Partition("a", 0), 0, -10, 0, Found(1, 2))])
    assert index.first(Partition("a", 0), 0) == Found(1, 2)
    with pytest.raises(ValueError, match="scanned for"):
        index.first(Partition("a", 0), 5)


@pytest.mark.parametrize("late", [0, 15])
async def test_a_pipeline_takes_event_time_from_the_value(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, late: int
) -> None:
    """One unit of the model is a tenth of a minute. Kafka's own timestamps are all the same."""
    unit = MINUTE // 10
    chance = random.Random(3)
    logs = [[(n, max(0, min(95, 2 * n + chance.randrange(-25, 25)))) for n in range(45)] for _ in range(2)]
    name = await kafka_topics.create_fresh(kafka.bootstrap, partitions=2)
    rows = [Row(p, at(700), b"%d" % (BASE + unit * ts)) for p, log in enumerate(logs) for _, ts in log]
    await kafka_topics.write(kafka.bootstrap, name, rows)
    expected = {
        (p, offset): start // 10
        for p, log in enumerate(logs)
        for offset, start in periods_of_a_stream(log, late).items()
    }
    for most in (1, 50):
        seen: list[tuple[Any, ...]] = []

        def take(frame: DataFrame, batch: Batch, seen: list[tuple[Any, ...]] = seen) -> None:
            seen.extend(minutes_of(frame))

        async with aiokcc.spark.replay(
            spark,
            name,
            bootstrap_servers=kafka.bootstrap,
            store=f"{zk_root}-{most}",
            name="by-value",
            start=BASE,
            end="now",
            period="1m",
            timestamp="cast(cast(value as string) as bigint)",
            lateness=late * unit,
            max_periods=most,
            progress=False,
        ) as replay:
            await replay.for_each_period(lambda frame, periods: frame, take)
        assert len(seen) == 90, "each once"
        assert {(partition, offset): minute for _, partition, offset, minute in seen} == expected
