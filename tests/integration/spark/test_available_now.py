"""Scheduled runs: each start publishes what is closed by then and returns, and the next one goes on in the same table."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import aiokcc
from aiokcc import local
from aiokcc.spark import DeltaSink, ParquetSink, Sink
from aiokcc.spark.pipeline import BatchStep
from tests import kafka_topics
from tests.integration.kafka.test_topic_discovery import add_partitions
from tests.integration.spark.test_pipeline import count, replaying
from tests.kafka_topics import Row
from tests.replays import BASE, MINUTE, at, topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(180)

SINKS = pytest.mark.parametrize("kind", [ParquetSink, DeltaSink])


def rows_in(kind: Callable[..., Sink], place: Path) -> dict[int, int]:
    """Return the published counts by period, as pandas reads them."""
    import pandas as pd

    if kind is ParquetSink:
        files = aiokcc.spark.files(place)
    else:
        from deltalake import DeltaTable

        files = DeltaTable(str(place)).file_uris()
    frames = [pd.read_parquet(file) for file in files]
    rows = [(row["period"], row["count"]) for frame in frames for row in frame.to_dict("records")]
    found = {int(period.timestamp() * 1000): number for period, number in rows}
    assert len(found) == len(rows), "a period is in the table twice"
    return found


def spark_jobs(spark: SparkSession) -> int:
    """Return how many jobs the session has run."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())  # type: ignore[union-attr]


class Nightly:
    """The same program, started again and again; the test sets the clock."""

    def __init__(
        self, spark: SparkSession, kafka: local.Kafka, store: str, name: str, sink: Callable[[], Sink]
    ) -> None:
        self._arguments = (spark, kafka, name)
        self._settings: dict[str, Any] = {"store": store, "trigger": "available_now"}
        self.sink = sink

    async def start(self, minutes: float, after: Any = None, **changed: Any) -> aiokcc.spark.Summary:
        settings = {**self._settings, "clock": lambda: BASE + int(minutes * MINUTE), **changed}
        async with replaying(*self._arguments, **settings) as replay:
            replay.after_step = after
            return await replay.for_each_period(count, self.sink())  # type: ignore[no-any-return]


@SINKS
async def test_each_start_publishes_what_is_closed_by_then(
    spark: SparkSession,
    kafka: local.Kafka,
    zk_root: str,
    tmp_path: Path,
    kind: Callable[..., Sink],
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = await topic(kafka, [at(0), at(1), at(2.5)], [at(0.5)])
    nightly = Nightly(spark, kafka, zk_root, name, lambda: kind(tmp_path / "out"))
    assert (await nightly.start(2.7)).periods == 2
    assert rows_in(kind, tmp_path / "out") == {at(0): 2, at(1): 1}

    jobs, commits = spark_jobs(spark), len([*(tmp_path / "out").rglob("*.json")])
    for _ in range(2):
        nothing = await nightly.start(2.9)
        assert (nothing.periods, nothing.jobs) == (0, 0)
    assert spark_jobs(spark) == jobs, "a start with nothing to do has run a Spark job"
    if kind is ParquetSink:
        assert len([*(tmp_path / "out").rglob("*.json")]) == commits, "it has published something"

    await kafka_topics.write(kafka.bootstrap, name, [Row(1, at(3)), Row(0, at(4.5))])
    assert (await nightly.start(4.6)).records == 2
    assert rows_in(kind, tmp_path / "out") == {at(0): 2, at(1): 1, at(2): 1, at(3): 1}
    await nightly.start(6)
    assert rows_in(kind, tmp_path / "out") == {at(0): 2, at(1): 1, at(2): 1, at(3): 1, at(4): 1}
    assert [
        r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and "released" in r.getMessage()
    ] == []


@pytest.mark.parametrize("step", list(BatchStep))
@SINKS
async def test_a_start_that_dies_at_any_step_is_repeated(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path, kind: Callable[..., Sink], step: BatchStep
) -> None:
    name = await topic(kafka, [at(0), at(1), at(2)], [at(0.5)])
    nightly = Nightly(spark, kafka, zk_root, name, lambda: kind(tmp_path / "out"))
    await nightly.start(1)

    def die(reached: BatchStep, _batch: Any) -> None:
        if reached is step:
            raise RuntimeError("the driver dies")

    with pytest.raises(RuntimeError, match="the driver dies"):
        await nightly.start(3, after=die)
    await nightly.start(3)
    assert rows_in(kind, tmp_path / "out") == {at(0): 2, at(1): 1, at(2): 1}


async def test_in_a_group_a_start_waits_for_the_others_and_leaves_the_rest_for_the_next(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path
) -> None:
    orders, payments = await topic(kafka, [at(0), at(1), at(2)]), await topic(kafka, [at(0), at(1)])
    seen: list[int] = []
    same: dict[str, Any] = {"lookahead": 0, "clock": lambda: BASE + 10 * MINUTE}

    async def consume(ready: asyncio.Event) -> None:
        async with aiokcc.replay(
            orders,
            payments,
            partitions={payments: [0]},
            bootstrap_servers=kafka.bootstrap,
            store=zk_root,
            period="1m",
            end=None,
            **same,
        ) as replay:
            ready.set()
            await replay.run(lambda record: seen.append(record.timestamp))

    ready = asyncio.Event()
    consumer = asyncio.create_task(consume(ready))
    await ready.wait()
    try:
        async with replaying(
            spark, kafka, orders, payments, store=zk_root, partitions={orders: [0]}, trigger="available_now", **same
        ) as replay:
            summary = await replay.for_each_period(count, ParquetSink(tmp_path / "out"))
    finally:
        consumer.cancel()
        await asyncio.wait([consumer])
    assert summary.records == 3
    assert rows_in(ParquetSink, tmp_path / "out") == {at(n): 1 for n in range(3)}
    assert seen[:2] == [at(0), at(1)]


@SINKS
async def test_a_table_of_others_is_refused_every_time(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path, kind: Callable[..., Sink]
) -> None:
    name = await topic(kafka, [at(0), at(1)])
    nightly = Nightly(spark, kafka, zk_root, name, lambda: kind(tmp_path / "out"))
    await nightly.start(5)
    before = {path: path.stat().st_size for path in (tmp_path / "out").rglob("*.parquet")}
    for _ in range(2):
        with pytest.raises(aiokcc.UsageError, match=r"'p'.*'other'|'other'.*'p'"):
            await nightly.start(5, name="other", store=f"{zk_root}-other")
        with pytest.raises(aiokcc.PipelineMismatchError, match="under .* under .*"):
            await nightly.start(5, store=f"{zk_root}-second")
    assert {path: path.stat().st_size for path in (tmp_path / "out").rglob("*.parquet")} == before
    assert rows_in(kind, tmp_path / "out") == {at(0): 1, at(1): 1}


@SINKS
async def test_a_table_that_another_program_wrote_is_refused_every_time(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path, kind: Callable[..., Sink]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import write_deltalake

    name = await topic(kafka, [at(0), at(1)])
    rows = pa.table({"n": [1]})
    if kind is DeltaSink:
        write_deltalake(str(tmp_path / "out"), rows)
    else:
        (tmp_path / "out").mkdir()
        pq.write_table(rows, tmp_path / "out" / "mine.parquet")
    before = {path for path in (tmp_path / "out").rglob("*") if path.is_file()}
    nightly = Nightly(spark, kafka, zk_root, name, lambda: kind(tmp_path / "out"))
    for _ in range(2):
        with pytest.raises(
            aiokcc.UsageError, match=r"mine.parquet|results of another program, and this is the pipeline 'p'"
        ):
            await nightly.start(5)
    assert {path for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


async def test_a_partition_that_was_added_between_two_starts_is_read_by_the_next_one(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path
) -> None:
    """A start ends before the leader looks for new partitions at intervals, so each start looks first."""
    name = await topic(kafka, [at(0), at(2.5)])
    nightly = Nightly(spark, kafka, zk_root, name, lambda: ParquetSink(tmp_path / "out"))
    assert (await nightly.start(2)).records == 1
    await add_partitions(kafka.bootstrap, name, 2)
    await kafka_topics.write(kafka.bootstrap, name, [Row(1, at(2.2)), Row(1, at(3.3))])
    assert (await nightly.start(3.5)).records == 2
    assert rows_in(ParquetSink, tmp_path / "out") == {at(0): 1, at(2): 2}
    assert (await nightly.start(5)).records == 1
    assert rows_in(ParquetSink, tmp_path / "out") == {at(0): 1, at(2): 2, at(3): 1}


async def test_a_topic_that_was_created_again_between_two_starts_is_an_error_and_not_skipped(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path
) -> None:
    name = await topic(kafka, [at(0), at(1), at(1.5)])
    nightly = Nightly(spark, kafka, zk_root, name, lambda: ParquetSink(tmp_path / "out"))
    assert (await nightly.start(3)).records == 3
    async with kafka_topics.admin(kafka.bootstrap) as client:
        await client.delete_topics([name])
    await kafka_topics.create(kafka.bootstrap, name)
    await kafka_topics.write(kafka.bootstrap, name, [Row(0, at(3)), Row(0, at(4))])
    with pytest.raises(aiokcc.KafkaError, match=rf"{name}.0 ends at 2 now, and .* up to 3: the topic was deleted and"):
        await nightly.start(6)
    assert rows_in(ParquetSink, tmp_path / "out") == {at(0): 1, at(1): 2}
    await nightly.start(6, from_scratch=True)
    assert rows_in(ParquetSink, tmp_path / "out") == {at(3): 1, at(4): 1}
