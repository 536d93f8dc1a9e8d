"""The pipeline on real Spark, Kafka and ZooKeeper: its results equal those of plain Python from the same records."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import aiokcc
from aiokcc import local
from aiokcc.runtime.options import wall_clock
from aiokcc.spark import ParquetSink, Periods, Progress, Summary, files
from tests import kafka_topics, pipelines, replays
from tests.integration.kafka.test_topic_discovery import add_partitions
from tests.kafka_topics import Row
from tests.pipelines import MemorySink, check_tiling, millis, some_records, totals, totals_in_python, totals_of
from tests.replays import MINUTE, at, topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(180)


def replaying(spark: SparkSession, kafka: local.Kafka, *topics: str, store: str, **settings: Any) -> Any:
    """Open a replay of one-minute periods up to the present ends of the logs."""
    chosen = {"bootstrap_servers": kafka.bootstrap, "period": "1m", "end": "now", "name": "p", "progress": False}
    return aiokcc.spark.replay(spark, *topics, store=store, **{**chosen, **settings})


async def compacted(kafka: local.Kafka, name: str) -> list[int]:
    """Return the remaining offsets after compaction. Kafka does not announce it, so the log is read until it has gaps."""
    async with asyncio.timeout(60):
        while True:
            left: list[int] = []
            async with aiokcc.replay(
                name, bootstrap_servers=kafka.bootstrap, store=replays.memory(), period="1d", end="now"
            ) as replay:
                await replay.run(lambda record, left=left: left.append(record.offset))  # type: ignore[misc]
            if left != list(range(left[-1] + 1)):
                return left


def count(frame: DataFrame, periods: Periods) -> DataFrame:
    return frame.groupBy("period").count()


def counts(rows: list[Any]) -> dict[int, int]:
    return {millis(row["period"]): row["count"] for row in rows}


async def test_aggregate_equals_plain_python_for_one_and_for_many_periods_per_job(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path
) -> None:
    chance = random.Random(5)
    log = await pipelines.write(
        kafka, "orders", [some_records(chance, 60, minutes=8, disorder=MINUTE) for _ in range(3)]
    )
    written: dict[int, dict[str, str]] = {}
    jobs: dict[int, int] = {}
    for most in (1, 50):
        place = tmp_path / str(most)

        def run(most: int = most, place: Path = place) -> Summary:
            with replaying(spark, kafka, log.name, store=f"{zk_root}-{most}", max_periods=most) as replay:
                return replay.for_each_period(totals, sink=ParquetSink(place))  # type: ignore[no-any-return]

        summary = await asyncio.to_thread(run)
        jobs[most] = summary.jobs
        rows = aiokcc.spark.read(spark, place).collect()
        assert totals_of(rows) == totals_in_python([log])
        assert summary.records == 180
        written[most] = {
            Path(name).name.split("-")[0]: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in files(place)
        }
    assert sorted(written[1].values()) == sorted(written[50].values()), (
        "the bytes depend on the number of periods per job"
    )
    assert jobs == {1: 8, 50: 1}


async def test_join_of_topics_with_different_numbers_of_partitions(
    spark: SparkSession, kafka: local.Kafka, zk_root: str
) -> None:
    chance = random.Random(6)
    orders = await pipelines.write(
        kafka, "orders", [some_records(chance, 60, minutes=9, first=60 * n) for n in range(3)]
    )
    payments = await pipelines.write(kafka, "payments", [some_records(chance, 180, minutes=9)])
    sink = MemorySink()
    async with replaying(spark, kafka, orders.name, payments.name, store=zk_root) as replay:
        await replay.for_each_period(pipelines.joined(orders.name, payments.name), sink)
    rows = [(millis(r["period"]), r["id"], r["ordered"], r["paid"]) for r in sink.rows]
    assert len(rows) == len(set(rows))
    assert set(rows) == pipelines.joined_in_python(orders, payments)
    check_tiling([batch for batch, _ in sink.batches.values()], [orders, payments])


async def test_late_records_within_the_bound_belong_to_their_own_period(
    spark: SparkSession, kafka: local.Kafka, zk_root: str
) -> None:
    chance = random.Random(7)
    log = await pipelines.write(
        kafka, "orders", [some_records(chance, 200, minutes=12, disorder=2 * MINUTE) for _ in range(2)]
    )
    assert totals_in_python([log], 2 * MINUTE) != totals_in_python([log])
    for most in (1, 50):
        sink = MemorySink()
        store = f"{zk_root}-{most}"
        async with replaying(spark, kafka, log.name, store=store, lateness="2m", max_periods=most) as replay:
            await replay.for_each_period(totals, sink)
        assert totals_of(sink.rows) == totals_in_python([log], 2 * MINUTE)
        assert max(sink.full) <= most


async def test_gaps_and_empty_topics_cost_no_job(spark: SparkSession, kafka: local.Kafka, zk_root: str) -> None:
    empty = await topic(kafka, [], [])
    name = await topic(kafka, [at(0), at(1), at(100_000)], [at(0.5)], [])
    sink = MemorySink()
    seen: list[Progress] = []
    async with replaying(spark, kafka, name, empty, store=zk_root, max_periods=1, progress=seen.append) as replay:
        summary = await replay.for_each_period(count, sink)
    assert counts(sink.rows) == {at(0): 2, at(1): 1, at(100_000): 1}
    assert (summary.jobs, summary.periods, summary.records) == (3, 3, 4)
    assert [progress.done for progress in seen] == [0.5, 0.75, 1.0]
    assert [progress.event_time for progress in seen] == [at(1), at(2), at(100_001)]


async def test_a_run_of_an_empty_topic_ends_at_once(spark: SparkSession, kafka: local.Kafka, zk_root: str) -> None:
    empty = await topic(kafka, [], [])
    sink = MemorySink()
    async with replaying(spark, kafka, empty, store=zk_root) as replay:
        summary = await replay.for_each_period(count, sink)
    assert (summary.jobs, summary.periods, sink.batches) == (0, 0, {})


async def test_start_and_end_may_lie_between_boundaries(spark: SparkSession, kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(0), at(0.6), at(0.2), at(1), at(2.4), at(2.5), at(3)])
    sink = MemorySink()
    async with replaying(spark, kafka, name, store=zk_root, start=at(0.5), end=at(2.5)) as replay:
        await replay.for_each_period(count, sink)
    starts = {millis(row["period"]): row["count"] for row in sink.rows}
    # What lies before the start is left out wherever it stands, and the end is exclusive.
    assert starts == {at(0.5): 1, at(1): 1, at(2): 1}


async def test_a_result_without_a_period_column_is_computed_one_period_at_a_time(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = await topic(kafka, [at(n / 2) for n in range(10)])
    sink = MemorySink()

    def whole(frame: DataFrame, periods: Periods) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        return frame.agg(F.count("*").alias("count"))

    async with replaying(spark, kafka, name, store=zk_root) as replay:
        await replay.for_each_period(whole, sink)
    assert counts(sink.rows) == {at(n): 2 for n in range(5)}
    assert "has no column 'period'" in caplog.text


async def test_a_function_that_mixes_periods_is_refused(spark: SparkSession, kafka: local.Kafka, zk_root: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    name = await topic(kafka, [at(n / 2) for n in range(10)])

    def mixed(frame: DataFrame, periods: Periods) -> DataFrame:
        return frame.groupBy("topic").agg(F.count("*").alias("count"), F.min("period").alias("period"))

    sink = MemorySink()
    with pytest.raises(aiokcc.UsageError, match=r"mixes periods: groupBy\(topic\) .*Keep the column 'period'"):
        async with replaying(spark, kafka, name, store=zk_root) as replay:
            await replay.for_each_period(mixed, sink)
    assert not sink.batches
    # One period at a time, the same function is right.
    async with replaying(spark, kafka, name, store=zk_root, max_periods=1) as replay:
        await replay.for_each_period(mixed, sink)
    assert counts(sink.rows) == {at(n): 2 for n in range(5)}


def in_pandas(frame: DataFrame, periods: Periods) -> DataFrame:
    """Count rows in Python, where the plan does not show what is counted together."""

    def count_all(batches: Any) -> Any:
        import pandas as pd

        rows = pd.concat(list(batches) or [pd.DataFrame({"period": []})])
        yield pd.DataFrame({"period": rows["period"].head(1), "count": [len(rows)] if len(rows) else []})

    return frame.select("period").coalesce(1).mapInPandas(count_all, "period timestamp, count long")


def with_a_job(frame: DataFrame, periods: Periods) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return frame.select("period").distinct().withColumn("count", F.lit(frame.count()))


def with_a_job_in_a_thread(frame: DataFrame, periods: Periods) -> DataFrame:
    """Count in a thread of the function, as one does to run several jobs at once."""
    from pyspark.sql import functions as F  # noqa: N812

    with ThreadPoolExecutor(1) as pool:
        count = pool.submit(frame.count).result()
    return frame.select("period").distinct().withColumn("count", F.lit(count))


def with_the_argument(frame: DataFrame, periods: Periods) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return frame.groupBy("period").agg((F.count("*") + F.lit(0 * periods.start)).alias("count"))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (in_pandas, "mapInPandas"),
        (with_a_job, "jobs of its own"),
        (with_a_job_in_a_thread, "jobs of its own"),
        (with_the_argument, "its second argument"),
    ],
)
async def test_what_the_plan_does_not_show_runs_one_period_per_job(
    spark: SparkSession,
    kafka: local.Kafka,
    zk_root: str,
    caplog: pytest.LogCaptureFixture,
    function: Any,
    reason: str,
) -> None:
    name = await topic(kafka, [at(n / 2) for n in range(8)])
    sink = MemorySink()
    async with replaying(spark, kafka, name, store=zk_root) as replay:
        summary = await replay.for_each_period(function, sink)
    assert counts(sink.rows) == {at(n): 2 for n in range(4)}
    assert summary.jobs == 4
    assert reason in caplog.text


async def test_a_function_that_the_user_vouches_for_gets_several_periods(
    spark: SparkSession, kafka: local.Kafka, zk_root: str
) -> None:
    name = await topic(kafka, [at(n / 2) for n in range(8)])
    sink = MemorySink()
    async with replaying(spark, kafka, name, store=zk_root, keeps_periods=True) as replay:
        summary = await replay.for_each_period(with_the_argument, sink)
    assert (counts(sink.rows), summary.jobs) == ({at(n): 2 for n in range(4)}, 1)


async def test_compacted_logs_are_computed_right(spark: SparkSession, kafka: local.Kafka, zk_root: str) -> None:
    name = await kafka_topics.create_fresh(
        kafka.bootstrap,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0.001",
        segment_bytes=1_048_576,
        segment_ms=100,
        max_compaction_lag_ms=100,
    )
    rows = [Row(0, at(n / 4), str(n).encode(), str(n % 3).encode()) for n in range(40)]
    await kafka_topics.write(kafka.bootstrap, name, rows)
    await asyncio.sleep(0.2)  # the segment must be old enough to be closed by the next record
    await kafka_topics.write(kafka.bootstrap, name, [Row(0, at(20), b"y", key=b"other")])
    left = await compacted(kafka, name)
    sink = MemorySink()
    async with replaying(spark, kafka, name, store=zk_root) as replay:
        await replay.for_each_period(lambda frame, _: frame.select("period", "offset"), sink)
    assert {row["offset"]: millis(row["period"]) for row in sink.rows} == {n: at(n // 4) for n in left if n < 40} | {
        40: at(20)
    }


async def test_records_of_aborted_transactions_are_not_in_the_result(
    spark: SparkSession, kafka: local.Kafka, zk_root: str
) -> None:
    name = await kafka_topics.create_fresh(kafka.bootstrap)
    await kafka_topics.write_transaction(kafka.bootstrap, name, [Row(0, at(0)), Row(0, at(1))])
    await kafka_topics.write_transaction(kafka.bootstrap, name, [Row(0, at(1)), Row(0, at(2))], abort=True)
    await kafka_topics.write_transaction(kafka.bootstrap, name, [Row(0, at(3))])
    sink = MemorySink()
    async with replaying(spark, kafka, name, store=zk_root) as replay:
        await replay.for_each_period(count, sink)
    assert counts(sink.rows) == {at(0): 1, at(1): 1, at(3): 1}


async def test_jobs_are_logged_so_that_they_can_be_repeated(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiokcc.spark")
    name = await topic(kafka, [at(0), at(1)], [at(0)])
    async with replaying(spark, kafka, name, store=zk_root) as replay:
        await replay.for_each_period(count, MemorySink())
    lines = [record.getMessage() for record in caplog.records if "startingOffsets" in record.getMessage()]
    assert len(lines) == 1
    assert f'startingOffsets={{"{name}":{{"0":0,"1":0}}}} endingOffsets={{"{name}":{{"0":2,"1":1}}}}' in lines[0]


async def test_a_function_without_a_sink_gets_each_frame(spark: SparkSession, kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(0), at(0.5), at(3)])
    seen: list[int] = []
    async with replaying(spark, kafka, name, store=zk_root, max_periods=1) as replay:
        await replay.for_each_period(lambda frame, batch: seen.append(frame.count()))
    assert seen == [2, 1]


async def test_max_bytes_bounds_a_job(spark: SparkSession, kafka: local.Kafka, zk_root: str) -> None:
    name = await kafka_topics.create_fresh(kafka.bootstrap)
    rows = [Row(0, at(n), random.Random(n).randbytes(20_000)) for n in range(8)]
    await kafka_topics.write(kafka.bootstrap, name, rows)
    sink = MemorySink()
    async with replaying(spark, kafka, name, store=zk_root, max_bytes=60_000) as replay:
        await replay.for_each_period(count, sink)
    assert counts(sink.rows) == {at(n): 1 for n in range(8)}
    assert sink.full == [2, 2, 2, 2]


async def test_new_partitions_join_a_replay_without_an_end(
    spark: SparkSession, kafka: local.Kafka, zk_root: str
) -> None:
    name = await topic(kafka, [at(0), at(1), at(2)])
    sink = MemorySink()
    changed = asyncio.Event()

    async def until(records: int) -> None:
        while sum(row["count"] for row in sink.rows) < records:
            changed.clear()
            await changed.wait()

    settings: dict[str, Any] = {"end": None, "period": "1s", "metadata_max_age_ms": 200}
    async with (
        replaying(spark, kafka, name, store=zk_root, progress=lambda _: changed.set(), **settings) as replay,
        asyncio.TaskGroup() as tasks,
    ):
        running = tasks.create_task(replay.for_each_period(count, sink))
        await until(3)
        await add_partitions(kafka.bootstrap, name, 2)
        # One record from before what is published by now, and one of now.
        await kafka_topics.write(kafka.bootstrap, name, [Row(1, at(0)), Row(1, wall_clock())])
        await until(5)
        running.cancel()
    assert sum(row["count"] for row in sink.rows) == 5
    check_tiling([batch for batch, _ in sink.batches.values()], [pipelines.Log(name, [[(0, {})] * 3, [(0, {})] * 2])])
