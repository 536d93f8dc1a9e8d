"""Mistakes of a data engineer, and the errors that name them: on real Spark, Kafka and ZooKeeper."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import aiokcc
from aiokcc import local
from aiokcc.spark import DeltaSink, ParquetSink, Progress, Sink
from tests.integration.spark.test_pipeline import count, counts, replaying
from tests.pipelines import MemorySink
from tests.replays import at, topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(180)


class TestFunction:
    async def refusal(self, spark: SparkSession, kafka: local.Kafka, store: str, function: Any, **settings: Any) -> str:
        name = await topic(kafka, [at(0), at(1)])
        sink = MemorySink()
        with pytest.raises(aiokcc.AiokccError) as refused:
            async with replaying(spark, kafka, name, store=store, **settings) as replay:
                await replay.for_each_period(function, sink)
        assert replay.summary.retried == 0
        assert not sink.batches
        return str(refused.value)

    @pytest.mark.parametrize("most", [1, 10])
    async def test_period_of_another_type(
        self, spark: SparkSession, kafka: local.Kafka, zk_root: str, most: int
    ) -> None:
        def as_text(frame: DataFrame, _: Any) -> DataFrame:
            return frame.withColumn("period", frame["period"].cast("string"))

        told = await self.refusal(spark, kafka, zk_root, as_text, max_periods=most)
        assert "the column 'period' of the function's result is of type string; keep it as it was" in told

    async def test_returned_pandas_frame_is_not_printed(
        self, spark: SparkSession, kafka: local.Kafka, zk_root: str
    ) -> None:
        import pandas as pd

        told = await self.refusal(spark, kafka, zk_root, lambda _f, _p: pd.DataFrame({"secret": ["4711"]}))
        assert re.search(r"the function returned a pandas\S*\.DataFrame; expected a Spark DataFrame", told)
        assert "4711" not in told

    async def test_type_error_is_not_retried(self, spark: SparkSession, kafka: local.Kafka, zk_root: str) -> None:
        told = await self.refusal(spark, kafka, zk_root, lambda frame, _: frame + 1)
        assert "failed with TypeError" in told

    async def test_column_in_place_of_a_frame(self, spark: SparkSession, kafka: local.Kafka, zk_root: str) -> None:
        told = await self.refusal(spark, kafka, zk_root, lambda frame, _: frame["offset"])
        assert re.search(r"the function returned a pyspark\S*Column; expected a Spark DataFrame", told)

    @pytest.mark.parametrize(
        ("function", "named"),
        [(lambda frame, _: frame.grupBy("period"), "grupBy"), (lambda _f, _p: undefined, "undefined")],  # type: ignore[name-defined]  # noqa: F821
    )
    async def test_misspelt_name_is_not_retried(
        self, spark: SparkSession, kafka: local.Kafka, zk_root: str, function: Any, named: str
    ) -> None:
        told = await self.refusal(spark, kafka, zk_root, function)
        assert re.search(r"failed with (NameError|\w*AttributeError)", told)
        assert named in told

    async def test_unknown_column_is_not_retried(self, spark: SparkSession, kafka: local.Kafka, zk_root: str) -> None:
        told = await self.refusal(spark, kafka, zk_root, lambda frame, _: frame.select("period", "kountry"))
        assert "failed with AnalysisException" in told
        assert "kountry" in told


@pytest.mark.parametrize(
    ("timestamp", "wrong"),
    [
        ("from_json(value", "is no expression"),
        ("nonsense + 1", "cannot be resolved"),
        ("value", "is of type binary"),
        (5, "is 5; expected a column"),
    ],
)
async def test_unusable_timestamp_is_refused_before_the_group_is_founded(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, timestamp: str, wrong: str
) -> None:
    name = await topic(kafka, [at(0)])
    with pytest.raises(aiokcc.UsageError, match=f"^timestamp {wrong}"):
        async with replaying(spark, kafka, name, store=zk_root, timestamp=timestamp):
            pytest.fail("the group was founded")
    async with aiokcc.open_store(zk_root).session() as session:
        assert await session.find("run") is None


@pytest.mark.parametrize("kind", [ParquetSink, DeltaSink])
async def test_unusable_place_of_the_result(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path, kind: type[Sink]
) -> None:
    (tmp_path / "file").write_text("")
    name = await topic(kafka, [at(0)])
    sink = kind(tmp_path / "file" / "out")  # type: ignore[call-arg]
    with pytest.raises(aiokcc.UsageError, match=f"{kind.__name__} cannot write to .*file/out: Not a directory"):
        async with replaying(spark, kafka, name, store=zk_root) as replay:
            await replay.for_each_period(count, sink)


@pytest.mark.parametrize("other", [{"period": "2m"}, {"timestamp": "timestamp"}, {"start": "2020-01-01T00:00Z"}])
async def test_another_definition_is_a_mismatch_that_names_the_way_out(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, other: dict[str, Any]
) -> None:
    name = await topic(kafka, [at(0), at(1)])
    sink = MemorySink()

    def die(_step: Any, _batch: Any) -> None:
        raise RuntimeError("the driver dies")

    with pytest.raises(RuntimeError, match="the driver dies"):
        async with replaying(spark, kafka, name, store=zk_root) as replay:
            replay.after_step = die
            await replay.for_each_period(count, sink)
    with pytest.raises(aiokcc.PipelineMismatchError, match="'p' .*from_scratch=True"):
        async with replaying(spark, kafka, name, store=zk_root, **other) as replay:
            await replay.for_each_period(count, sink)


async def test_progress_and_descriptions_of_jobs(spark: SparkSession, kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(0), at(1)], [at(0)])
    seen: list[Progress] = []
    described: list[str] = []

    def described_count(frame: DataFrame, _: Any) -> DataFrame:
        described.append(spark.sparkContext.getLocalProperty("spark.job.description"))
        return frame.groupBy("period").count()

    sink = MemorySink()
    async with replaying(spark, kafka, name, store=zk_root, max_periods=1, progress=seen.append) as replay:
        await replay.for_each_period(described_count, sink)
    assert counts(sink.rows) == {at(0): 2, at(1): 1}
    assert [progress.published_to for progress in seen] == [
        {f"{name}.0": 1, f"{name}.1": 1},
        {f"{name}.0": 2, f"{name}.1": 1},
    ]
    first, second = described
    assert first.startswith("p batch 0, ")
    assert second.startswith("p batch 1, ")
    assert second.endswith(", attempt 1")
