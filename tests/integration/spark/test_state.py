"""State from period to period on real Spark, Kafka and ZooKeeper: results equal those of plain Python from the same records."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import aiokcc
from aiokcc import local
from aiokcc.spark import DeltaSink, FunctionSink, KafkaSink, ParquetSink, Periods, Sink
from aiokcc.spark.pipeline import BatchStep
from tests import pipelines
from tests.balances import COLUMNS, balances, balances_at, balances_in_python, rows_of, state_of
from tests.integration.spark.test_pipeline import replaying
from tests.pipelines import some_records
from tests.replays import MINUTE, at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(180)

SINKS = pytest.mark.parametrize("kind", [ParquetSink, DeltaSink])


def published(spark: SparkSession, kind: Callable[..., Sink], place: Path) -> list[tuple[int, int, int, int]]:
    if kind is ParquetSink:
        return rows_of(aiokcc.spark.read(spark, place).collect())
    from deltalake import DeltaTable

    files = DeltaTable(str(place)).file_uris()
    return rows_of(spark.read.parquet(*files).collect())


async def some_log(kafka: local.Kafka, seed: int, minutes: int = 6) -> pipelines.Log:
    chance = random.Random(seed)
    records = [some_records(chance, 30, minutes=minutes, disorder=MINUTE // 2) for _ in range(2)]
    return await pipelines.write(kafka, "balances", records)


@pytest.mark.parametrize("kind", [ParquetSink, pytest.param(DeltaSink, marks=pytest.mark.long)])
async def test_running_totals_equal_plain_python_however_many_periods_are_chained(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path, kind: Callable[..., Sink]
) -> None:
    log = await some_log(kafka, 31, minutes=5)
    expected = balances_in_python(log)
    jobs = {}
    for chain in (1, 4, 50):
        place = tmp_path / str(chain)

        def run(chain: int = chain, place: Path = place) -> aiokcc.spark.Summary:
            with replaying(spark, kafka, log.name, store=f"{zk_root}-{chain}") as replay:
                return replay.for_each_period(balances, kind(place), state=COLUMNS, chain=chain)  # type: ignore[no-any-return]

        jobs[chain] = (await asyncio.to_thread(run)).jobs
        assert published(spark, kind, place) == expected
        assert state_of(aiokcc.spark.read_state(spark, place).collect()) == balances_at(log)
    assert jobs == {1: 5, 4: 2, 50: 1}
    assert state_of(aiokcc.spark.read_state(spark, tmp_path / "1", at(3)).collect()) == balances_at(log, at(3))
    assert state_of(aiokcc.spark.read_state(spark, tmp_path / "4", at(4.5)).collect()) == balances_at(log, at(4))


@SINKS
async def test_a_state_that_begins_with_rows_and_is_resumed_after_each_step(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path, kind: Callable[..., Sink]
) -> None:
    log = await some_log(kafka, 32, minutes=12)
    before = {2: (1000, 7), 99: (5, 1)}
    initial = spark.createDataFrame([(c, total, n, None) for c, (total, n) in before.items()], COLUMNS)
    place = tmp_path / "out"

    class StoppedError(Exception):
        pass

    async def start(stop: tuple[BatchStep, int] | None, chain: int) -> None:
        def after(step: BatchStep, batch: Any) -> None:
            if (step, batch.number) == stop:
                raise StoppedError

        # What is given as the state counts only until something is published, which is in the second start.
        given: Any = initial if stop is not None and stop[1] <= 1 else COLUMNS
        async with replaying(spark, kafka, log.name, store=zk_root) as replay:
            replay.after_step = after
            await replay.for_each_period(balances, kind(place), state=given, chain=chain, keep_states=2)

    for number, step in enumerate(BatchStep):
        with pytest.raises(StoppedError):
            await start((step, number), 2 if number % 2 else 1)
    await start(None, 1)
    assert published(spark, kind, place) == balances_in_python(log, before)
    assert state_of(aiokcc.spark.read_state(spark, place).collect()) == balances_at(log, before=before)
    files = [*place.rglob("state-*.parquet")]
    assert len(files) == 2, "states that are not kept any more are still there"
    with pytest.raises(aiokcc.UsageError, match="is kept; those after the periods that end at .* are"):
        aiokcc.spark.read_state(spark, place, at(1))


async def test_periods_without_records_leave_the_state_as_it_is(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path
) -> None:
    records = [(at(0.1), {"id": 1, "customer": 1, "amount": 5}), (at(5000.2), {"id": 2, "customer": 2, "amount": 7})]
    log = await pipelines.write(kafka, "gap", [records])
    seen: list[int] = []

    def watched(frame: DataFrame, periods: Periods, state: DataFrame) -> Any:
        plan = state._jdf.queryExecution().analyzed().toString()
        seen.append(len(plan.splitlines()))
        return balances(frame, periods, state)

    async with replaying(spark, kafka, log.name, store=zk_root, start=at(0), end=at(5002)) as replay:
        await replay.for_each_period(watched, ParquetSink(tmp_path / "out"), state=COLUMNS)
    assert published(spark, ParquetSink, tmp_path / "out") == balances_in_python(log)
    assert seen == [2, 1], "the plan of the state grows"  # the first call gives it a name, to take the fingerprint


@pytest.mark.long
async def test_two_pipelines_with_other_batches_write_the_same_bytes(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path
) -> None:
    log = await some_log(kafka, 33, minutes=4)
    written = {}
    for chain in (1, 3):
        place = tmp_path / str(chain)
        async with replaying(spark, kafka, log.name, store=f"{zk_root}-{chain}") as replay:
            await replay.for_each_period(balances, ParquetSink(place), state=COLUMNS, chain=chain)
        periods = aiokcc.spark.manifest(place)
        written[chain] = {(period.start, file.sha256) for period in periods for file in period.files}
    assert written[1] == written[3]


WRONG: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "no pair": (
        lambda frame, periods, state: frame,
        {},
        r"the function returned a pyspark\S+DataFrame; with state= it returns a pair of DataFrames",
    ),
    "three": (
        lambda frame, periods, state: (frame, state, state),
        {},
        "returned 3 values; with state= it returns a pair",
    ),
    "no state": (
        lambda frame, periods, state: (frame.select("period", "offset"), None),
        {},
        "returned None as the state; expected a Spark DataFrame with the columns customer int, total bigint",
    ),
    "another type": (
        lambda frame, periods, state: (frame.select("period"), state.selectExpr("*", "1 as extra")),
        {},
        "returned a state with the columns customer int, .* extra int, and state= has customer int",
    ),
    "no period": (
        lambda frame, periods, state: (frame.select("offset"), state),
        {"chain": 3},
        "the function's result has no column 'period', and with chain=3 a frame holds several periods",
    ),
    "two arguments": (
        lambda frame, periods: (frame, frame),
        {},
        r"called as function\(frame, periods, state\), and <lambda>\(frame, periods\) does not take that",
    ),
    "no columns": (balances, {"state": "customer, total"}, "names no columns|expected a text such as"),
    "no frame": (balances, {"state": {"customer": 1}}, "state is a builtins.dict; expected a Spark DataFrame, or"),
    "chain": (balances, {"chain": 0}, "chain is 0; expected a whole number from 1"),
    "keep": (balances, {"keep_states": 1}, "keep_states is 1; expected a whole number from 2"),
    "alone": (balances, {"state": None, "chain": 2}, "chain is given without state="),
}


@pytest.mark.parametrize("what", WRONG)
async def test_bad_input_is_refused_before_anything_is_published(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path, what: str
) -> None:
    function, settings, words = WRONG[what]
    log = await pipelines.write(kafka, "wrong", [[(at(0.1), {"id": 1, "customer": 1, "amount": 5})]])
    async with replaying(spark, kafka, log.name, store=zk_root) as replay:
        with pytest.raises(aiokcc.UsageError, match=words):
            await replay.for_each_period(function, ParquetSink(tmp_path / "out"), **{"state": COLUMNS, **settings})
    assert not [*(tmp_path / "out").rglob("*.parquet")]
    assert not [*(tmp_path / "out").rglob("0*.json")]


async def test_sinks_that_cannot_hold_a_state_are_refused(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path
) -> None:
    log = await pipelines.write(kafka, "sinks", [[(at(0.1), {"id": 1, "customer": 1, "amount": 5})]])
    for sink, words in (
        (KafkaSink("results", bootstrap_servers=kafka.bootstrap), "and this is Kafka topic"),
        (FunctionSink(print), "and this is a function"),
        (print, "and this is a function"),
        (None, "and this is no sink"),
        (DeltaSink("s3://bucket/table"), "s3://bucket/table is not in a directory"),
    ):
        async with replaying(spark, kafka, log.name, store=zk_root) as replay:
            with pytest.raises(aiokcc.UsageError, match=words):
                await replay.for_each_period(balances, sink, state=COLUMNS)


async def test_a_pipeline_does_not_lose_or_change_its_state_by_a_restart(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path
) -> None:
    log = await pipelines.write(kafka, "again", [[(at(0.1), {"id": 1, "customer": 1, "amount": 5})]])

    async def start(function: Any, **settings: Any) -> None:
        async with replaying(spark, kafka, log.name, store=zk_root, end=None, trigger="available_now") as replay:
            await replay.for_each_period(function, ParquetSink(tmp_path / "out"), **settings)

    await start(balances, state=COLUMNS)
    with pytest.raises(aiokcc.PipelineMismatchError, match='state was "customer int, .*" and is not given'):
        await start(pipelines.totals)
    with pytest.raises(aiokcc.PipelineMismatchError, match='state was .* and is "customer int, total int"'):
        await start(balances, state="customer int, total int")
    await start(balances, state=COLUMNS)
    assert state_of(aiokcc.spark.read_state(spark, tmp_path / "out").collect()) == balances_at(log)


async def test_reading_a_state_that_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(aiokcc.UsageError, match="neither the directory of a ParquetSink nor a Delta table"):
        aiokcc.spark.read_state(spark, tmp_path)
