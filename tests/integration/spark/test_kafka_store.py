"""A pipeline with ``store="kafka"``: what it has published is kept in the Kafka that it reads, and it resumes after that."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import aiokcc
from aiokcc import local
from aiokcc.errors import SparkJobError
from aiokcc.spark import Batch, ParquetSink
from tests import pipelines
from tests.integration.cli.commands import run
from tests.pipelines import some_records, totals, totals_in_python, totals_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def test_a_pipeline_resumes_from_what_the_topic_holds(
    spark: SparkSession, kafka: local.Kafka, tmp_path: Path
) -> None:
    chance = random.Random(16)
    log = await pipelines.write(kafka, "orders", [some_records(chance, 40, minutes=6) for _ in range(2)])
    settings: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap, "period": "1m", "end": "now", "progress": False}

    class FullOnce(ParquetSink):
        calls = 0

        def publish(self, batch: Batch, staged: object | None) -> None:
            FullOnce.calls += 1
            if FullOnce.calls == 3:
                raise OSError("the disk is full")
            super().publish(batch, staged)

    async def replay() -> int:
        async with aiokcc.spark.replay(
            spark, log.name, store="kafka", name="revenue", max_periods=1, retries=0, **settings
        ) as running:
            return (await running.for_each_period(totals, FullOnce(tmp_path / "out"))).jobs

    with pytest.raises(SparkJobError, match="the disk is full"):
        await replay()
    assert await replay() == 4, "it begins behind the two periods that were published"
    assert totals_of(aiokcc.spark.read(spark, tmp_path / "out").collect()) == totals_in_python([log])
    shown = await run("pipeline", "status", f"kafka://{kafka.bootstrap}/{log.name}/of.revenue")
    assert shown.code == 0, shown.err
    assert "revenue" in shown.out
