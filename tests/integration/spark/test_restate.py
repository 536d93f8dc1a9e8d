"""Restating on real Spark, Kafka and ZooKeeper: results against DuckDB over the written records, killed after each step."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

import aiokcc
from aiokcc import local
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import format_time
from aiokcc.errors import UsageError
from aiokcc.runtime.pipelines import read_pipeline
from aiokcc.spark import DeltaSink, ParquetSink, Sink
from aiokcc.spark.batch import Batch, LateRecords, Slice
from aiokcc.spark.history import delta_history, parquet_history
from aiokcc.spark.late_records import collect_late, read_included
from aiokcc.spark.published import LatePeriod
from aiokcc.spark.restate import prepare_restate
from aiokcc.spark.restatement import RestateStep, neighbours
from tests import kafka_topics
from tests.integration.spark.test_available_now import SINKS
from tests.integration.spark.test_pipeline import replaying
from tests.kafka_topics import Row
from tests.replays import BASE, MINUTE, at, topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(180)


def counted(frame: DataFrame, _periods: Any) -> DataFrame:
    """Count the records of each period."""
    return frame.groupBy("period").count()


def summed(frame: DataFrame, _periods: Any) -> DataFrame:
    """Sum the offsets of each period, under the same column: the correction of a function that counted."""
    return frame.groupBy("period").agg({"offset": "sum"}).withColumnRenamed("sum(offset)", "count")


def rows_in(kind: Callable[..., Sink], place: Path, **at: Any) -> dict[int, int]:
    """Return the rows by period in minutes, as DuckDB reads them."""
    import duckdb

    files = aiokcc.spark.files(place, **at)
    if not files:
        return {}
    rows = duckdb.sql(f"select epoch_ms(period), count from read_parquet({files!r})").fetchall()
    assert len({period for period, _ in rows}) == len(rows), "a period is in the table twice"
    return {(period - BASE) // MINUTE: count for period, count in rows}


def expected(records: list[list[int]], value: str, minutes: range, *, by_time: bool = False) -> dict[int, int]:
    """Return what DuckDB computes from the written records: a partition's list of times each."""
    import duckdb

    database = duckdb.connect()
    database.execute("create table records (number integer, place integer, ts bigint)")
    database.executemany(
        "insert into records values (?, ?, ?)",
        [(n, o, ts) for n, log in enumerate(records) for o, ts in enumerate(log)],
    )
    # Without a bound on lateness, a record is in the period that the greatest time up to it is in.
    ts = "ts" if by_time else "max(ts) over (partition by number order by place)"
    query = f"with labelled as (select *, ({ts} - {BASE}) // {MINUTE} as minute from records) "
    query += f"select minute, {value} from labelled group by minute"
    return {minute: int(number) for minute, number in database.execute(query).fetchall() if minute in minutes}


class Pipeline:
    """A pipeline with one sink, started as a scheduler does."""

    def __init__(self, spark: SparkSession, kafka: local.Kafka, store: str, name: str, place: Path, kind: Any) -> None:
        self.spark, self.kafka, self.store, self.name, self.place, self.kind = spark, kafka, store, name, place, kind
        self.settings: dict[str, Any] = {}

    async def start(self, minutes: float, function: Any = counted, **settings: Any) -> None:
        chosen = {
            "trigger": "available_now",
            "clock": lambda: BASE + int(minutes * MINUTE),
            **self.settings,
            **settings,
        }
        async with replaying(self.spark, self.kafka, self.name, store=self.store, **chosen) as replay:
            await replay.for_each_period(function, self.kind(self.place))

    async def restate(self, start: float | None = None, end: float | None = None, **settings: Any) -> Any:
        after = settings.pop("after", lambda _step: None)
        function = settings.pop("function", summed)
        bounds: dict[str, Any] = {} if start is None or end is None else {"start": at(start), "end": at(end)}
        restatement = prepare_restate(
            self.spark,
            function,
            store=self.store,
            name="p",
            bootstrap_servers=self.kafka.bootstrap,
            **bounds,
            **settings,
        )
        restatement.after_step = after
        return await restatement.run()

    def rows(self, **at: Any) -> dict[int, int]:
        return rows_in(self.kind, self.place, **at)


def some_times(seed: int, minutes: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [sorted(at(chance.uniform(0, minutes)) for _ in range(30)) for _ in range(2)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "out"


@SINKS
async def test_a_restatement_replaces_exactly_its_periods_whatever_step_it_dies_at(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, place: Path, kind: Any
) -> None:
    times = some_times(1, 8)
    name = await topic(kafka, *([ts for ts in log if ts < at(3)] for log in times))
    pipeline = Pipeline(spark, kafka, zk_root, name, place, kind)
    await pipeline.start(3)
    rows = [Row(number, ts) for number, log in enumerate(times) for ts in log if ts >= at(3)]
    await kafka_topics.write(kafka.bootstrap, name, rows)
    await pipeline.start(8)
    old = expected(times, "count(*)", range(8))
    assert pipeline.rows() == old
    # Minutes 2 to 4: the batch of the first start has minutes 0 to 2, so both batches lie half in the range.
    new = {**old, **expected(times, "sum(place)", range(2, 5))}
    for step in RestateStep:

        def die(reached: RestateStep, step: RestateStep = step) -> None:
            if reached is step:
                raise RuntimeError("killed")

        with pytest.raises(RuntimeError, match="killed"):
            await pipeline.restate(2, 5, after=die)
        assert pipeline.rows() == (new if step is RestateStep.PUBLISHED else old)
    descriptions: list[str] = []

    def described(frame: DataFrame, periods: Any) -> DataFrame:
        descriptions.append(frame.sparkSession.sparkContext.getLocalProperty("spark.job.description"))
        return counted(frame, periods)

    assert (await pipeline.restate(2, 5, function=described, version="3")).periods == 3
    assert descriptions[0].startswith(f"p restating {format_time(at(2))} to {format_time(at(5))}, attempt ")

    assert pipeline.rows() == old
    history = parquet_history(str(place)) if kind is ParquetSink else delta_history(str(place), "p")
    assert [(entry["batch"], entry.get("restatement"), entry["version"]) for entry in history] == [
        (0, None, None),
        (1, None, None),
        (1, 0, None),
        (1, 1, "3"),
    ]
    first, _, summed_, again = (entry["fingerprint"] for entry in history)
    assert (first == again, first == summed_, summed_ is None) == (True, False, False)
    moment = datetime.now(UTC)
    assert pipeline.rows(as_of=0) == {n: old[n] for n in range(3) if n in old}
    await kafka_topics.write(kafka.bootstrap, name, [Row(0, at(8.5))])
    await pipeline.restate(0, 8, max_periods=1)
    await pipeline.start(9)
    assert pipeline.rows() == {**expected(times, "sum(place)", range(8)), 8: 1}
    assert pipeline.rows(as_of=1) == old, "as of the second batch, before anything was restated"
    assert pipeline.rows(as_of=moment) == old
    assert aiokcc.spark.read(spark, place, as_of=moment).count() == len(old)
    if kind is DeltaSink:  # somebody compacts the table: one file with all periods
        from deltalake import DeltaTable

        DeltaTable(str(place)).optimize.compact()
        assert len(aiokcc.spark.files(place)) == 1
        await pipeline.restate(3, 5, function=counted)
        new = {**expected(times, "sum(place)", range(8)), 8: 1}
        assert pipeline.rows() == {**new, **{n: old[n] for n in (3, 4)}}


@SINKS
async def test_a_restatement_is_fenced_out_by_a_driver_and_by_another_one(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, place: Path, kind: Any
) -> None:
    times = some_times(2, 4)
    pipeline = Pipeline(spark, kafka, zk_root, await topic(kafka, *times), place, kind)
    await pipeline.start(4)
    old = pipeline.rows()
    reached, go_on = asyncio.Event(), asyncio.Event()

    class Stopped(kind):  # type: ignore[misc]
        """A sink whose restatement stands still right before it replaces anything."""

        def replace(self, batch: Any, staged: Any, after: int) -> None:
            loop.call_soon_threadsafe(reached.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
            super().replace(batch, staged, after)

    loop = asyncio.get_running_loop()
    frozen = asyncio.create_task(pipeline.restate(1, 3, sink=Stopped(place)))
    await reached.wait()
    # Another restatement waits for it, and names it; a driver waits, too.
    with pytest.raises(aiokcc.PipelineBusyError, match="is being restated by .*, process"):
        await pipeline.restate(0, 4, claim_timeout=0.2)
    # As if it had lost its session: the node is gone, and a driver takes over.
    async with aiokcc.open_store(zk_root).session() as session:
        await session.delete("pipelines/p/restating", -1)
    await pipeline.start(4)
    go_on.set()
    with pytest.raises(aiokcc.FencedError):
        await frozen
    assert pipeline.rows() == old
    await pipeline.restate(1, 3)
    assert pipeline.rows() == {**old, **expected(times, "sum(place)", range(1, 3))}


async def test_a_driver_that_starts_at_the_same_moment_is_not_fenced_out(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked for a restatement before this one began, and takes its attempt after the restatement has looked for it."""
    pipeline = Pipeline(spark, kafka, zk_root, await topic(kafka, [at(0), at(1), at(2)]), place, ParquetSink)
    await pipeline.start(2)
    computing, go_on, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()

    async def nobody_restates(_session: Any, _name: str) -> None:
        pass

    def slow(frame: DataFrame, periods: Any) -> DataFrame:
        loop.call_soon_threadsafe(computing.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
        return counted(frame, periods)

    monkeypatch.setattr("aiokcc.spark.driver.wait_until_restated", nobody_restates)
    restatement = prepare_restate(
        spark,
        summed,
        store=zk_root,
        name="p",
        bootstrap_servers=kafka.bootstrap,
        start=at(0),
        end=at(2),
        claim_timeout=0.3,
    )
    check_records, drivers = restatement._check_records, []

    async def look_and_wait(*arguments: Any) -> None:
        await check_records(*arguments)
        drivers.append(asyncio.create_task(pipeline.start(3, function=slow)))
        await computing.wait()

    monkeypatch.setattr(restatement, "_check_records", look_and_wait)
    with pytest.raises(aiokcc.PipelineBusyError, match="is driven by"):
        await restatement.run()
    with pytest.raises(aiokcc.PipelineBusyError, match="is driven by"):
        await pipeline.restate(0, 2, claim_timeout=0.3)  # it looks before it does anything
    async with aiokcc.open_store(zk_root).session() as session:
        status = await read_pipeline(aiokcc.open_store(zk_root), session, "p")
    assert status is not None
    assert status.is_driven
    waiting = asyncio.create_task(pipeline.restate(0, 2, claim_timeout=60))
    go_on.set()
    await drivers[0]
    await waiting  # the driver was not fenced out, and has ended
    assert pipeline.rows() == {0: 0, 1: 1, 2: 1}


async def test_what_cannot_be_restated_is_refused_with_what_would_be_right(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, place: Path
) -> None:
    times = some_times(3, 4)
    name = await topic(kafka, *times)
    pipeline = Pipeline(spark, kafka, zk_root, name, place, ParquetSink)
    with pytest.raises(aiokcc.UsageError, match="there is no pipeline 'p' under"):
        await pipeline.restate(0, 1)
    await pipeline.start(4)
    old = pipeline.rows()
    with pytest.raises(aiokcc.UsageError, match=r"lies inside the period .*give start='.*' or start='"):
        await pipeline.restate(0.5, 2)
    with pytest.raises(aiokcc.UsageError, match="is not published as a whole; published is"):
        await pipeline.restate(0, 9)
    with pytest.raises(aiokcc.UsageError, match="Give start= and end=, or late=True"):
        await pipeline.restate()
    with pytest.raises(aiokcc.PipelineMismatchError, match="sink was .*, and is|sink was"):
        await pipeline.restate(0, 1, sink=ParquetSink(place.parent / "other"))
    assert not (place.parent / "other").exists()
    with pytest.raises(aiokcc.UsageError, match="mixes periods"):
        await pipeline.restate(0, 4, function=lambda frame, _: frame.groupBy("period").count().limit(1))
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(name, 1): RecordsToDelete(before_offset=3)})
    finally:
        await admin.close()
    with pytest.raises(aiokcc.KafkaError, match=rf"{name}.1 offsets 0 to 2 \(its log begins at 3\)"):
        await pipeline.restate(0, 4)
    assert pipeline.rows() == old


@pytest.mark.parametrize("kind", [ParquetSink, pytest.param(DeltaSink, marks=pytest.mark.long)])
async def test_late_records_wait_and_get_into_their_own_periods_with_one_call(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, place: Path, kind: Any
) -> None:
    first = [[at(0), at(1), at(1.5), at(4.2)], [at(0.5), at(4.1)]]
    name = await topic(kafka, *first)
    pipeline = Pipeline(spark, kafka, zk_root, name, place, kind)
    pipeline.settings = {"late": "restate"}
    await pipeline.start(5)
    assert pipeline.rows() == {0: 2, 1: 2, 4: 2}
    # Two of minutes that are published, one of a minute in which nothing was, and one that is on time.
    more = [Row(0, at(1.2)), Row(1, at(0.1)), Row(1, at(3.3)), Row(0, at(5.5)), Row(1, at(1.9)), Row(1, at(5.6))]
    await kafka_topics.write(kafka.bootstrap, name, more)
    await pipeline.start(6)
    assert pipeline.rows() == {0: 2, 1: 2, 4: 2, 5: 2}, "late records are left out"
    waiting = await asyncio.to_thread(aiokcc.spark.late, store=zk_root, name="p")
    assert [((one.start - BASE) // MINUTE, one.records) for one in waiting] == [(0, 1), (1, 2), (3, 1)]
    written = [[*first[0], at(1.2), at(5.5)], [*first[1], at(0.1), at(3.3), at(1.9), at(5.6)]]
    await pipeline.restate(1, 2, function=counted)
    assert pipeline.rows() == {0: 2, 1: 4, 4: 2, 5: 2}
    summary = await pipeline.restate(late=True, function=counted)
    assert summary.periods == 2
    assert pipeline.rows() == expected(written, "count(*)", range(6), by_time=True)
    assert await asyncio.to_thread(aiokcc.spark.late, store=zk_root, name="p") == []
    assert (await pipeline.restate(late=True, function=counted)).jobs == 0, "nothing waits any more"
    # Restated again, with one period in each job, every record is where it was.
    await pipeline.restate(0, 6, function=summed, max_periods=1)
    assert pipeline.rows() == expected(written, "sum(place)", range(6), by_time=True)


async def test_under_a_bound_on_lateness_neighbouring_ranges_overlap_and_the_result_is_the_same(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, place: Path
) -> None:
    chance = random.Random(4)
    times = [[at(max(0, n / 5 - chance.uniform(0, 1.5))) for n in range(30)] for _ in range(2)]
    pipeline = Pipeline(spark, kafka, zk_root, await topic(kafka, *times), place, ParquetSink)
    pipeline.settings = {"lateness": "1m"}
    await pipeline.start(3)
    await pipeline.start(9)
    old = pipeline.rows()
    assert sum(old.values()) == 60
    await pipeline.restate(2, 4, function=counted)
    assert pipeline.rows() == old
    for minute in sorted(old)[:2]:
        await pipeline.restate(minute, minute + 1, function=counted)
    assert pipeline.rows() == old


async def test_another_timestamp_is_refused_and_the_recorded_one_is_used(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, place: Path
) -> None:
    times = some_times(5, 2)
    pipeline = Pipeline(spark, kafka, zk_root, await topic(kafka, *times), place, ParquetSink)
    pipeline.settings = {"timestamp": "timestamp + interval 1 minute"}
    await pipeline.start(3)
    old = pipeline.rows()
    assert set(old) == {1, 2}
    with pytest.raises(aiokcc.UsageError, match="a restatement keeps event time"):
        await pipeline.restate(1, 3, timestamp="timestamp + interval 2 minutes")
    await pipeline.restate(1, 3, function=counted)
    assert pipeline.rows() == old


def test_late_records_are_listed_up_to_where_their_period_ends(spark: SparkSession) -> None:
    """A period may end inside a cell of the grid, at a limit of the group: what is on time in the rest of it is not late."""
    from pyspark.sql import functions as F  # noqa: N812

    partition, third = Partition("t", 0), MINUTE // 3
    first = Slice(BASE, BASE + third, {partition: (0, 10)})
    rest = Slice(BASE + third, BASE + MINUTE, {partition: (10, 20)})
    seconds = {10: 5, 11: 30, 12: 6, 13: 40}  # offsets 10 and 12 are late for the first period
    rows = [("t", 0, offset, BASE + second * 1000) for offset, second in seconds.items()]
    frame = spark.createDataFrame(rows, "topic string, partition int, offset bigint, ts bigint")
    found = collect_late(frame, Batch("p", 1, (rest,)), F.col("ts"), MINUTE)
    assert found == (LateRecords(BASE, BASE + third, partition, 10, 13, 2),)
    again = Batch("p", 0, (first, rest), replaces=(BASE, BASE + MINUTE), included=found)
    assert {row.offset for row in read_included(frame, again, F.col("ts")).collect()} == {10, 12}


def test_late_periods_that_overlap_are_restated_as_one() -> None:
    cells = [(0, 20), (0, 60), (60, 120), (180, 240)]
    assert neighbours([LatePeriod(start, end, 1, ()) for start, end in cells]) == [(0, 120), (180, 240)]


async def test_late_records_that_could_never_be_restated_are_refused(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, place: Path
) -> None:
    name = await topic(kafka, [at(0.5)])
    async with replaying(spark, kafka, name, store=zk_root, late="restate", end=at(1)) as replay:
        with pytest.raises(UsageError, match=r'late="restate" and state= do not go together'):
            await replay.for_each_period(
                lambda frame, _periods, state: (frame, state), ParquetSink(place), state="n int"
            )
    assert not place.exists()
