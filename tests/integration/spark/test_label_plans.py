"""The plans that Spark makes of labelled rows stay small: a filter on `period` must not write out the search as one expression.

Otherwise 25 periods give plans of 600,000 characters, which Spark cannot compile, and jobs of a minute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiokcc.core.partitions import Partition
from aiokcc.spark.batch import Batch, Slice
from aiokcc.spark.period_column import label

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR = 3_600_000
PERIODS = 25
ROWS = 10
"""In each period and partition."""
PARTITIONS = [Partition("orders", 0), Partition("orders", 1), Partition("payments", 0)]

pytestmark = pytest.mark.timeout(180)


def labelled(spark: SparkSession, *, late: bool) -> DataFrame:
    """Return rows as Kafka would give them, one each 6 minutes, with their periods."""
    from pyspark.sql import functions as F  # noqa: N812

    batch = Batch(
        "plans",
        0,
        tuple(
            Slice(n * HOUR, (n + 1) * HOUR, {p: (max(0, n - late) * ROWS, (n + 1) * ROWS) for p in PARTITIONS})
            for n in range(PERIODS)
        ),
    )
    offsets = spark.range(PERIODS * ROWS).withColumnRenamed("id", "offset")
    where = spark.createDataFrame([(p.topic, p.number) for p in PARTITIONS], "topic string, partition int")
    frame = offsets.crossJoin(where).withColumn("ts", F.col("offset") * (HOUR // ROWS))
    return label(frame, batch, F.col("ts") if late else None)


@pytest.mark.parametrize("late", [False, True], ids=["by offset", "under lateness"])
def test_plans_of_filters_joins_and_groups_stay_small(spark: SparkSession, late: bool) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    third = F.timestamp_millis(F.lit(2 * HOUR))
    frame = labelled(spark, late=late)
    orders, payments = (
        frame.where("topic = 'orders'"),
        frame.where("topic = 'payments'").withColumnRenamed("ts", "paid"),
    )
    results = {
        "filtered": (frame.where(F.col("period") == third), ROWS * len(PARTITIONS)),
        "grouped, then filtered": (frame.groupBy("period").count().where(F.col("period") == third), 1),
        "joined": (orders.join(payments, ["period", "offset"]), PERIODS * ROWS * 2),
    }
    plain = len(plan(frame))
    for name, (result, rows) in results.items():
        assert len(plan(result)) < 5 * plain, name
        assert result.count() == rows, name


def plan(frame: DataFrame) -> str:
    """Return the plan as Spark would run it."""
    text: str = frame._jdf.queryExecution().optimizedPlan().toString()
    return text
