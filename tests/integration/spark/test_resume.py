"""Pipelines that are started again, that fail, that are stopped: published periods stay, and no record is skipped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.admin import RecordsToDelete
from aiokafka.structs import TopicPartition

import aiokcc
from aiokcc import local
from aiokcc.core.limit import Limit
from aiokcc.runtime.options import wall_clock
from aiokcc.spark import Batch, DeltaSink, ParquetSink, Periods, Sink, Summary
from aiokcc.spark.pipeline import BatchStep
from tests import kafka_topics
from tests.kafka_topics import Row
from tests.pipelines import MemorySink, millis
from tests.replays import at, topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(params=["now", "past", "future"])
def end(request: pytest.FixtureRequest) -> str | int:
    """The end of the run: a word, or a time in the past, or one that comes while the test runs.

    Each is found in another way: as offsets that are recorded when the group is founded, or by the clock and the logs.
    """
    ends: dict[str, str | int] = {"now": "now", "past": at(100), "future": wall_clock() + 3000}
    return ends[request.param]


def replaying(spark: SparkSession, kafka: local.Kafka, *topics: str, store: str, **settings: Any) -> Any:
    chosen = {
        "bootstrap_servers": kafka.bootstrap,
        "period": "1m",
        "end": "now",
        "name": "p",
        "progress": False,
        "max_periods": 1,
        "session_timeout": 4.0,
    }
    return aiokcc.spark.replay(spark, *topics, store=store, **{**chosen, **settings})


def count(frame: DataFrame, periods: Periods) -> DataFrame:
    return frame.groupBy("period").count()


def counts(sink: MemorySink) -> dict[int, int]:
    return {millis(row["period"]): row["count"] for row in sink.rows}


class Stop(Exception):  # noqa: N818 - no error
    """An error of the test's own function."""


def stop_after(number: int, which: BatchStep = BatchStep.CHECKPOINTED) -> Callable[[BatchStep, Batch], None]:
    def after(step: BatchStep, batch: Batch) -> None:
        if step is which and batch.number == number:
            raise Stop

    return after


async def limit_of(url: str) -> Limit:
    async with aiokcc.open_store(url).session(timeout=10) as session:
        return Limit.decode("coordinator", (await session.get("coordinator")).data)


async def test_a_restarted_pipeline_continues_after_its_last_published_period(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, end: str | int
) -> None:
    name = await topic(kafka, [at(n) for n in range(4)])
    sink = MemorySink()
    with pytest.raises(Stop):
        async with replaying(spark, kafka, name, store=zk_root, end=end) as replay:
            replay.after_step = stop_after(1)
            await replay.for_each_period(count, sink)
    with pytest.raises(aiokcc.PipelineMismatchError, match="sink was"):
        async with replaying(spark, kafka, name, store=zk_root, end=end) as replay:
            await replay.for_each_period(count)
    async with replaying(spark, kafka, name, store=zk_root, end=end) as replay:
        summary = await replay.for_each_period(count, sink)
    assert (summary.jobs, [attempt for _, attempt in sink.began]) == (2, [1, 2])
    assert counts(sink) == {at(n): 1 for n in range(4)}
    # It is complete, and started again it says so; another one is told that the run is over.
    async with replaying(spark, kafka, name, store=zk_root, end=end) as replay:
        again: Summary = await replay.for_each_period(count, sink)
    assert (again.jobs, again.periods, again.event_time) == (0, 0, at(4))
    with pytest.raises(aiokcc.RunEnded):
        async with replaying(spark, kafka, name, store=zk_root, end=end, name="other") as replay:
            await replay.for_each_period(count, MemorySink())
    # From scratch all of it is computed again.
    async with replaying(spark, kafka, name, store=zk_root, end=end, from_scratch=True) as replay:
        summary = await replay.for_each_period(count, sink)
    assert summary.jobs == 4
    assert counts(sink) == {at(n): 1 for n in range(4)}


async def test_a_failing_job_is_tried_again_and_then_raises_an_error_that_names_it(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, end: str | int
) -> None:
    name = await topic(kafka, [at(n) for n in range(3)])
    sink = MemorySink()
    calls: list[int] = []

    def fails(frame: DataFrame, periods: Periods) -> DataFrame:
        if periods.start == at(1):
            calls.append(periods.number)
            return frame.selectExpr("period", "raise_error('no good') as x")
        return frame.groupBy("period").count()

    with pytest.raises(aiokcc.SparkJobError, match="failed 3 times.*no good.*limit has not passed") as caught:
        async with replaying(spark, kafka, name, store=zk_root, end=end) as replay:
            await replay.for_each_period(fails, sink)
    assert (caught.value.pipeline, caught.value.start, caught.value.end) == ("p", at(1), at(2))
    assert calls == [1, 1, 1]
    assert counts(sink) == {at(0): 1}
    assert (await limit_of(zk_root)).floor <= at(2)
    async with replaying(spark, kafka, name, store=zk_root, end=end) as replay:
        await replay.for_each_period(count, sink)
    assert counts(sink) == {at(n): 1 for n in range(3)}


async def test_deleted_records_are_an_error_and_not_skipped(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, end: str | int
) -> None:
    name = await topic(kafka, [at(n) for n in range(4)])
    sink = MemorySink()
    with pytest.raises(Stop):
        async with replaying(spark, kafka, name, store=zk_root, end=end) as replay:
            replay.after_step = stop_after(0, BatchStep.INTENDED)
            await replay.for_each_period(count, sink)
    async with kafka_topics.admin(kafka.bootstrap) as client:
        await client.delete_records({TopicPartition(name, 0): RecordsToDelete(3)})
    with pytest.raises(aiokcc.KafkaError, match=f"{name}.0 begins at 3 now: the records from 0 on.*'p', were deleted"):
        async with replaying(spark, kafka, name, store=zk_root, end=end) as replay:
            await replay.for_each_period(count, sink)
    assert not sink.batches


async def test_cancelling_stops_the_running_job(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, end: str | int
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    name = await topic(kafka, [at(0), at(1)])
    sink = MemorySink()
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def endless(frame: DataFrame, periods: Periods) -> DataFrame:
        if periods.start == at(1):
            rows = frame.sparkSession.range(10**13, numPartitions=1).agg(F.sum(F.hash("id")).alias("x"))
            loop.call_soon_threadsafe(started.set)
            return frame.select("period").crossJoin(rows)
        return frame.groupBy("period").count()

    async with replaying(spark, kafka, name, store=zk_root, end=end) as replay:
        task = asyncio.create_task(replay.for_each_period(endless, sink))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert list(sink.batches) == [0]
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
    async with replaying(spark, kafka, name, store=zk_root, end=end) as replay:
        await replay.for_each_period(count, sink)
    assert counts(sink) == {at(0): 1, at(1): 1}


async def test_two_drivers_of_one_pipeline_do_not_run_at_once(
    spark: SparkSession, kafka: local.Kafka, zk_root: str
) -> None:
    name = await topic(kafka, [at(0), at(1)])
    sink = MemorySink()
    go_on = threading.Event()
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def waits(frame: DataFrame, periods: Periods) -> DataFrame:
        loop.call_soon_threadsafe(started.set)
        go_on.wait()
        return frame.groupBy("period").count()

    async with replaying(spark, kafka, name, store=zk_root) as first, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(first.for_each_period(waits, sink))
        await started.wait()
        with pytest.raises(aiokcc.PartitionOwnedError, match=f"{name}.0 is held by"):
            async with replaying(spark, kafka, name, store=zk_root, claim_timeout=0.2) as second:
                await second.for_each_period(count, MemorySink())
        go_on.set()
        await running
    assert counts(sink) == {at(0): 1, at(1): 1}


async def test_a_record_too_far_in_the_future_is_named_in_the_error(
    spark: SparkSession, kafka: local.Kafka, zk_root: str
) -> None:
    name = await kafka_topics.create_fresh(kafka.bootstrap, message_timestamp_after_max_ms=2**62)
    await kafka_topics.write(kafka.bootstrap, name, [Row(0, at(0)), Row(0, 2**41), Row(0, at(1))])
    sink = MemorySink()
    with pytest.raises(aiokcc.PoisonTimestampError, match=f"{name}.0 at offset 1.*ahead of the clock"):
        async with replaying(spark, kafka, name, store=zk_root) as replay:
            await replay.for_each_period(count, sink)


async def test_a_broker_that_is_gone_is_an_error(spark: SparkSession, private_kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(private_kafka, [at(0), at(1)])
    sink = MemorySink()
    with pytest.raises((aiokcc.KafkaError, aiokcc.SparkJobError)):
        async with replaying(
            spark,
            private_kafka,
            name,
            store=zk_root,
            connect_timeout=3,
            retries=0,
            request_timeout_ms=2000,
            kafka_options={"kafka.request.timeout.ms": 2000, "kafka.default.api.timeout.ms": 3000},
        ) as replay:
            tasks: set[asyncio.Task[None]] = set()

            def after(step: BatchStep, batch: Batch) -> None:
                if step is BatchStep.REPORTED:
                    tasks.add(asyncio.create_task(private_kafka.kill()))

            replay.after_step = after
            await replay.for_each_period(count, sink)
    assert counts(sink) == {at(0): 1}


async def test_a_store_that_is_gone_is_an_error_and_no_period_is_skipped(
    spark: SparkSession, kafka: local.Kafka, private_zookeeper: local.ZooKeeper, end: str | int
) -> None:
    name = await topic(kafka, [at(n) for n in range(3)])
    sink = MemorySink()
    url = private_zookeeper.url("gone")
    settings: dict[str, Any] = {"store": url, "end": end, "session_timeout": 1.0, "store_timeout": 2.0}
    killing: list[asyncio.Task[None]] = []

    def after(step: BatchStep, batch: Batch) -> None:
        if step is BatchStep.STAGED and batch.number == 1 and not killing:
            killing.append(asyncio.create_task(private_zookeeper.server.kill()))

    with pytest.raises(aiokcc.StoreUnreachableError, match="Nothing was skipped"):
        async with replaying(spark, kafka, name, **settings) as replay:
            replay.after_step = after
            await replay.for_each_period(count, sink)
    await asyncio.gather(*killing)
    assert counts(sink).items() <= {at(0): 1, at(1): 1}.items()
    await private_zookeeper.server.start()
    async with replaying(spark, kafka, name, claim_timeout=30, **settings) as replay:
        await replay.for_each_period(count, sink)
    assert counts(sink) == {at(n): 1 for n in range(3)}


async def test_an_end_in_the_future_is_reached_when_its_time_comes(
    spark: SparkSession, kafka: local.Kafka, zk_root: str
) -> None:
    now = wall_clock()
    name = await topic(kafka, [now - 5000, now], [now - 4500], [])
    sink = MemorySink()
    async with replaying(spark, kafka, name, store=zk_root, end=now + 1500, period="1s", max_periods=50) as replay:
        summary = await replay.for_each_period(count, sink)
    assert wall_clock() >= now + 1500
    assert sum(counts(sink).values()) == summary.records == 3
    # Nothing was published before its time was over: each period holds all that there was of it.
    assert counts(sink)[now // 1000 * 1000] == 1


async def test_an_exception_of_the_function_loses_no_record_wherever_the_end_is(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, end: str | int
) -> None:
    """Many periods, several partitions that end at different times, and several periods in a job."""
    name = await topic(
        kafka, [at(n / 4) for n in range(120)], [at(n) for n in range(10)], [], [at(20 + n) for n in range(10)]
    )
    sink = MemorySink()

    def fails(frame: DataFrame, periods: Periods) -> DataFrame:
        if periods.end > at(5):
            raise Stop
        return frame.groupBy("period").count()

    for _ in range(2):
        with pytest.raises(aiokcc.SparkJobError):
            async with replaying(spark, kafka, name, store=zk_root, end=end, max_periods=4, retries=0) as replay:
                await replay.for_each_period(fails, sink)
    assert len(counts(sink)) < 30
    async with replaying(spark, kafka, name, store=zk_root, end=end, max_periods=4) as replay:
        await replay.for_each_period(count, sink)
    assert counts(sink) == {at(n): 4 + (n < 10) + (n >= 20) for n in range(30)}


async def delete(kafka: local.Kafka, name: str, **until: int) -> None:
    """Delete the records of partitions up to these offsets."""
    async with kafka_topics.admin(kafka.bootstrap) as client:
        await client.delete_records(
            {TopicPartition(name, int(number[1:])): RecordsToDelete(offset) for number, offset in until.items()}
        )


async def test_records_deleted_before_the_first_batch_are_an_error(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, end: str | int
) -> None:
    """The group has recorded where its range starts. A driver that starts later finds that some records are deleted."""
    name = await topic(kafka, [at(n) for n in range(6)], [at(n) for n in range(6)])
    sink = MemorySink()
    for stop, gone, begins in [((0, BatchStep.PLANNED), 2, 0), ((2, BatchStep.REPORTED), 5, 3)]:
        with pytest.raises(Stop):
            async with replaying(spark, kafka, name, store=f"{zk_root}/{begins}", end=end) as replay:
                replay.after_step = stop_after(*stop)
                await replay.for_each_period(count, sink)
        await delete(kafka, name, p1=gone)
        published = dict(sink.batches)
        with pytest.raises(
            aiokcc.KafkaError, match=f"{name}.1 begins at {gone} now: the records from {begins} on.*deleted"
        ):
            async with replaying(spark, kafka, name, store=f"{zk_root}/{begins}", end=end) as replay:
                await replay.for_each_period(count, sink)
        assert sink.batches == published
        sink.batches.clear()


async def test_a_start_whose_records_may_have_been_deleted_is_refused(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, end: str | int, caplog: pytest.LogCaptureFixture
) -> None:
    name = await topic(kafka, [at(n) for n in range(6)], [at(n) for n in range(6)], [])
    await delete(kafka, name, p1=3)
    message = f"{name}.1 begins at offset 3, with a record of .*, and what stood before was deleted"
    with pytest.raises(aiokcc.KafkaError, match=message):
        async with replaying(spark, kafka, name, store=f"{zk_root}/a", end=end, start=at(0)) as replay:
            await replay.for_each_period(count, MemorySink())
    # Moved by hand, to the first record that is left, or to whatever there is: it is what was asked for.
    for start, first in [(at(3), 3), ("earliest", 0)]:
        sink = MemorySink()
        async with replaying(spark, kafka, name, store=f"{zk_root}/{start}", end=end, start=start) as replay:
            await replay.for_each_period(count, sink)
        assert counts(sink) == {at(n): 1 + (n >= 3) for n in range(first, 6)}
    # Accepted by name, it is said all the same.
    caplog.clear()
    sink = MemorySink()
    async with replaying(spark, kafka, name, store=f"{zk_root}/a", end=end, start=at(0), accept_deleted=True) as replay:
        await replay.for_each_period(count, sink)
    assert counts(sink) == {at(n): 1 + (n >= 3) for n in range(6)}
    assert f"{name}.1 begins at offset 3" in caplog.text
    assert f"{name}.3" not in caplog.text


@pytest.mark.parametrize("kind", [DeltaSink, ParquetSink])
async def test_a_pipeline_under_another_root_refuses_results_of_the_old_one(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path, kind: Callable[[Path], Sink]
) -> None:
    """It is refused however often it is tried again, as schedulers do."""
    name = await topic(kafka, [at(n) for n in range(4)])

    async def run(root: str, **settings: Any) -> Summary:
        async with replaying(spark, kafka, name, store=f"{zk_root}/{root}", **settings) as replay:
            summary: Summary = await replay.for_each_period(count, kind(tmp_path / "out"))
            return summary

    assert (await run("one")).records == 4
    before = sorted((tmp_path / "out").rglob("*.parquet"))
    for _ in range(3):
        with pytest.raises(aiokcc.PipelineMismatchError, match="'p' under .*/one .* under .*/two"):
            await run("two")
    assert sorted((tmp_path / "out").rglob("*.parquet")) == before
    assert (await run("one")).records == 0  # complete, and it still says so
    assert (await run("two", from_scratch=True)).records == 4


async def test_a_pipeline_without_records_is_complete_when_started_again(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, end: str | int
) -> None:
    """One partition has no record, and the records of the other one are all past the end of the run."""
    name = await topic(kafka, [at(200)], []) if end == at(100) else await topic(kafka, [], [])
    for _ in range(3):
        async with replaying(spark, kafka, name, store=zk_root, end=end) as replay:
            summary: Summary = await replay.for_each_period(count, MemorySink())
        assert (summary.jobs, summary.records) == (0, 0)


@pytest.mark.parametrize("sink", [DeltaSink, ParquetSink])
async def test_deleted_results_are_an_error(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path, sink: Callable[[Path], Sink]
) -> None:
    """They were deleted between two starts, or after the run was complete. The driver must not continue without them."""
    name = await topic(kafka, [at(n) for n in range(4)])
    with pytest.raises(Stop):
        async with replaying(spark, kafka, name, store=zk_root) as replay:
            replay.after_step = stop_after(1)
            await replay.for_each_period(count, sink(tmp_path / "out"))
    (tmp_path / "out").rename(tmp_path / "away")
    with pytest.raises(aiokcc.PipelineMismatchError, match="batch 1"):
        async with replaying(spark, kafka, name, store=zk_root) as replay:
            await replay.for_each_period(count, sink(tmp_path / "out"))
    (tmp_path / "away").rename(tmp_path / "out")
    async with replaying(spark, kafka, name, store=zk_root) as replay:
        assert (await replay.for_each_period(count, sink(tmp_path / "out"))).jobs == 2
    (tmp_path / "out").rename(tmp_path / "away")
    with pytest.raises(aiokcc.PipelineMismatchError, match="batch 3"):
        async with replaying(spark, kafka, name, store=zk_root) as replay:
            await replay.for_each_period(count, sink(tmp_path / "out"))


async def recorded(url: str) -> dict[str, bytes]:
    """Return what the group has agreed on, and what the pipeline has recorded."""
    found = {}
    async with aiokcc.open_store(url).session(timeout=10) as session:
        names = [f"pipelines/p/{name}" for name in await session.children("pipelines/p")]
        for path in ("coordinator", "generation", "period", "run", "topic-partitions", *names):
            node = await session.find(path)
            found[path] = b"" if node is None else node.data
    return found


def other_type(frame: DataFrame, periods: Periods) -> DataFrame:
    return frame.groupBy("period").count().selectExpr("period", "cast(count as string) as count")


async def test_a_start_from_scratch_that_is_refused_throws_nothing_away(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path
) -> None:
    """Neither rows, nor what the store has recorded, nor what the group has agreed on."""
    from deltalake import DeltaTable

    name, place = await topic(kafka, [at(n) for n in range(4)]), tmp_path / "out"

    async def run(function: Any, sink: Sink, **settings: Any) -> Summary:
        chosen = {"store": zk_root, "trigger": "available_now", **settings}
        async with replaying(spark, kafka, name, **chosen) as replay:
            return await replay.for_each_period(function, sink)  # type: ignore[no-any-return]

    def rows() -> list[tuple[int, int]]:
        found = DeltaTable(str(place)).to_pyarrow_table().to_pylist()
        return sorted((millis(row["period"]), row["count"]) for row in found)

    await run(count, DeltaSink(place), clock=lambda: at(2))
    before, table = await recorded(zk_root), rows()
    assert table == [(at(0), 1), (at(1), 1)]

    class Kept(MemorySink):
        """A sink that cannot be emptied."""

        reset = Sink.reset

    def fails_without_rows(frame: DataFrame, periods: Periods) -> DataFrame:
        assert frame.first() is not None, "no rows"
        return other_type(frame, periods)

    with pytest.raises(aiokcc.UsageError, match=r"'count' is string, and was long.*schema=\"replace\""):
        await run(other_type, DeltaSink(place), from_scratch=True)
    with pytest.raises(aiokcc.UsageError, match="cannot be emptied by the pipeline"):
        await run(count, Kept(), from_scratch=True)
    with pytest.raises(aiokcc.PipelineMismatchError, match="'p'.*'q'|'q'.*'p'"):
        await run(count, DeltaSink(place), from_scratch=True, name="q")
    DeltaTable(str(place)).optimize.compact()
    with pytest.raises(aiokcc.UsageError, match="which this pipeline has not written .*compaction"):
        await run(count, DeltaSink(place), from_scratch=True)
    assert (await recorded(zk_root), rows()) == (before, table)
    # It goes on as if nobody had tried.
    assert (await run(count, DeltaSink(place), clock=lambda: at(3))).records == 1
    assert rows() == [*table, (at(2), 1)]
    # Where the function needs rows, its columns are compared by the first job.
    other = tmp_path / "other"
    await run(count, DeltaSink(other), name="r", store=f"{zk_root}-r")
    with pytest.raises(aiokcc.UsageError, match="'count' is string"):
        await run(fails_without_rows, DeltaSink(other), name="r", store=f"{zk_root}-r", from_scratch=True)
    await run(other_type, DeltaSink(other, schema="replace"), name="r", store=f"{zk_root}-r", from_scratch=True)
    assert set(DeltaTable(str(other)).to_pyarrow_table()["count"].to_pylist()) == {"1"}
