"""The fingerprint of a function's plan on real Spark, and what a pipeline records and says of its function."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from aiokcc import local
from aiokcc.spark import DeltaSink, ParquetSink
from aiokcc.spark.analysed_plan import analysed_plan
from aiokcc.spark.fingerprint import GIVEN, fingerprint
from aiokcc.spark.history import delta_history, parquet_history
from tests.integration.spark.test_pipeline import replaying
from tests.replays import append, at, topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(120)

Function = Callable[["DataFrame"], "DataFrame"]


def F() -> Any:  # noqa: N802
    from pyspark.sql import functions

    return functions


def by_country(frame: DataFrame) -> DataFrame:
    value = F().from_json(F().col("value").cast("string"), "country string, cents long")
    sums = (
        frame.select("period", value.alias("o")).groupBy("period", "o.country").agg(F().sum("o.cents").alias("cents"))
    )
    return sums.where("cents > 0")


FUNCTIONS: dict[str, Function] = {
    "select": lambda f: f.select("period", "offset"),
    "another column": lambda f: f.select("period", "partition"),
    "another name": lambda f: f.select("period", F().col("offset").alias("position")),
    "a literal": lambda f: f.where("offset > 1"),
    "another literal": lambda f: f.where("offset > 2"),
    "groups": by_country,
    "sql": lambda f: f.sparkSession.sql(
        "with t as (select period, count(*) n from {f} group by period) select a.* from t a join t b on a.period = b.period",
        f=f,
    ),
    "lambdas": lambda f: f.select("period", F().transform(F().array("offset"), lambda x: x + 1).alias("l")),
    "chance": lambda f: f.sample(0.5).withColumn("r", F().rand()),
    "a join": lambda f: f.join(f.groupBy("period").count(), "period"),
    "a UDF": lambda f: f.withColumn("twice", F().udf(lambda n: n * 2, "long")("offset")),
    "a table": lambda f: f.join(f.sparkSession.createDataFrame([(1, "NL")], "offset long, c string"), "offset"),
}


def taken(spark: SparkSession, function: Function, records: int) -> str:
    """Return the fingerprint of a function over a frame of so many records."""
    n = F().col("id")
    frame = spark.range(records).select(
        n.cast("string").cast("binary").alias("value"),
        n.cast("int").alias("partition"),
        n.alias("offset"),
        F().timestamp_millis(n * records).alias("period"),
    )
    return fingerprint(analysed_plan(function(frame.alias(GIVEN))))


def test_fingerprints_are_the_same_for_each_call_and_differ_between_functions(spark: SparkSession) -> None:
    first = {name: taken(spark, function, 10) for name, function in FUNCTIONS.items()}
    again = {name: taken(spark, function, 20) for name, function in reversed(FUNCTIONS.items())}
    assert again == first
    assert len(set(first.values())) == len(FUNCTIONS)


def test_fingerprint_is_the_same_in_every_session(spark: SparkSession) -> None:
    """The value was taken in another session, with another hash seed, after other frames."""
    assert spark.version == "4.0.0", "take the value again for this version of Spark"
    assert taken(spark, by_country, 10) == "2196950868669d5a"


@pytest.mark.parametrize("kind", ["parquet", pytest.param("delta", marks=pytest.mark.long)])
async def test_versions_are_recorded_and_a_silent_change_is_said_once(
    spark: SparkSession,
    kafka: local.Kafka,
    zk_root: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    name = await topic(kafka, [at(0)])
    caplog.set_level(logging.WARNING, "aiokcc.spark")

    def counted(frame: DataFrame, _: Any) -> DataFrame:
        return frame.groupBy("period").count()

    def changed(frame: DataFrame, _: Any) -> DataFrame:
        return frame.where("offset >= 0").groupBy("period").count()

    async def publish(function: Any, version: str | None, minute: int) -> list[str]:
        """Write a record of this minute and publish it; return what was said about the function."""
        caplog.clear()
        await append(kafka, name, 0, [at(minute)])
        sink = (ParquetSink if kind == "parquet" else DeltaSink)(tmp_path)
        async with replaying(
            spark, kafka, name, store=zk_root, trigger="available_now", version=version, clock=lambda: at(minute + 1)
        ) as replay:
            await replay.for_each_period(function, sink)
        return [record.getMessage() for record in caplog.records if "the function is another one" in record.message]

    assert await publish(counted, "1", 0) == []
    assert await publish(counted, "1", 1) == []
    (said,) = await publish(changed, "1", 2)
    assert "its version is still '1'" in said
    assert await publish(changed, "1", 3) == []
    assert await publish(counted, "2", 4) == []
    history = parquet_history(str(tmp_path)) if kind == "parquet" else delta_history(str(tmp_path), "p")
    assert [batch["version"] for batch in history] == ["1", "1", "1", "1", "2"]
    prints = [batch["fingerprint"] for batch in history]
    assert prints[0] == prints[1] == prints[4] != prints[2] == prints[3]
    if kind == "delta":
        metadata = [json.loads(entry["aiokcc"]) for entry in DeltaTable(tmp_path).history() if "aiokcc" in entry]
        assert [entry["version"] for entry in metadata if "content" in entry] == ["2", "1", "1", "1", "1"]


async def test_function_that_looks_at_its_periods_has_no_fingerprint(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path
) -> None:
    name = await topic(kafka, [at(0), at(1)])
    async with replaying(spark, kafka, name, store=zk_root, max_periods=1) as replay:
        await replay.for_each_period(
            lambda frame, periods: frame.select("period", F().lit(periods.start).alias("s")), ParquetSink(tmp_path)
        )
    assert [batch["fingerprint"] for batch in parquet_history(str(tmp_path))] == [None, None]
