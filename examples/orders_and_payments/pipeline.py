"""The pipeline, as a data engineer writes it. It is plain PySpark; only the column ``period`` is new."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiokcc.spark
from examples.orders_and_payments.history import LATENESS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORD = "order string, country string, cents long, ordered_at long"

# The time of the order, in orders and in payments: so a payment belongs to the hour of its order, whenever it comes.
ORDERED_AT = "timestamp_millis(cast(get_json_object(cast(value AS string), '$.ordered_at') AS bigint))"


def revenue(frame: DataFrame, period: Any) -> DataFrame:
    """Compute, by hour and country, what was ordered, how much of it was paid, and what was paid too late to count there.

    While the pipeline catches up, a frame holds many hours. `period` is in every join and groupBy, so they do not mix.
    """
    from pyspark.sql import functions as F  # noqa: N812

    record = F.from_json(F.col("value").cast("string"), RECORD)
    records = frame.select("period", "topic", record.alias("record")).select("period", "topic", "record.*")
    orders = records.where(F.col("topic").startswith("orders")).select("period", "order", "country", "cents")
    payments = (
        records.where(F.col("topic").startswith("payments"))
        .groupBy("period", "order", F.col("country").alias("paid_in"))
        .agg(F.sum("cents").alias("paid"))
    )
    joined = orders.join(payments, ["period", "order"], "full_outer")
    was_paid = F.col("cents").isNotNull() & F.col("paid").isNotNull()
    is_late = F.col("cents").isNull()  # the hour of its order is closed
    return joined.groupBy("period", F.coalesce("country", "paid_in").alias("country")).agg(
        F.count("cents").alias("orders"),
        F.coalesce(F.sum("cents"), F.lit(0)).alias("ordered"),
        F.count_if(was_paid).alias("paid_orders"),
        F.coalesce(F.sum(F.when(was_paid, F.col("paid"))), F.lit(0)).alias("paid"),
        F.count_if(is_late).alias("late_payments"),
        F.coalesce(F.sum(F.when(is_late, F.col("paid"))), F.lit(0)).alias("late"),
    )


def run(
    spark: SparkSession, topics: list[str], bootstrap_servers: str, store: str, out: Path, **settings: Any
) -> aiokcc.spark.Summary:
    """Compute all hours that are not published yet, and write them to Parquet files."""
    with aiokcc.spark.replay(
        spark,
        *topics,
        bootstrap_servers=bootstrap_servers,
        store=store,
        name="revenue",
        start="earliest",
        end="now",
        period="1h",
        timestamp=ORDERED_AT,
        lateness=LATENESS,
        **settings,
    ) as replay:
        return replay.for_each_period(revenue, sink=aiokcc.spark.ParquetSink(out))
