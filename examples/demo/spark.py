"""The end of the demo: Spark reads the same history and computes a table, one row for each quarter of an hour."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiokcc.spark
from examples.demo.data import END, MINUTE, START, TOPICS, make_log
from examples.stack import jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUARTER: Final = 15 * MINUTE


class Row(NamedTuple):
    """A quarter of an hour."""

    period: int
    orders: int
    payments: int
    paid: int
    """Orders that were paid in the same quarter of an hour."""


def quarters(frame: DataFrame, period: Any) -> DataFrame:
    """Join orders with their payments. `period` is in every join and groupBy."""
    from pyspark.sql import functions as F  # noqa: N812

    orders = frame.where("topic = 'orders'").select("period", "key", F.lit(1).alias("order"))
    payments = frame.where("topic = 'payments'").select("period", "key", F.lit(1).alias("payment"))
    return (
        orders.join(payments, ["period", "key"], "full_outer")
        .groupBy("period")
        .agg(
            F.count("order").alias("orders"),
            F.count("payment").alias("payments"),
            F.count(F.col("order") + F.col("payment")).alias("paid"),
        )
    )


async def compute(servers: str, store: str) -> tuple[list[Row], aiokcc.spark.Summary]:
    """Start Spark, run the pipeline, read its Parquet files."""
    spark = await asyncio.to_thread(aiokcc.spark.session, app="demo", progress=lambda line: print(line, flush=True))
    try:
        with tempfile.TemporaryDirectory(prefix="aiokcc-demo-") as directory:
            out = Path(directory) / "quarters"
            async with aiokcc.spark.replay(
                spark,
                *TOPICS,
                bootstrap_servers=servers,
                store=store,
                name="quarters",
                start=START,
                end=END,
                period=QUARTER,
            ) as replay:
                summary = await replay.for_each_period(quarters, sink=aiokcc.spark.ParquetSink(out))
            frame = aiokcc.spark.read(spark, out).selectExpr("unix_millis(period)", "orders", "payments", "paid")
            return [Row(*row) for row in await asyncio.to_thread(frame.orderBy("period").collect)], summary
    finally:
        await asyncio.to_thread(spark.stop)


def right_rows() -> list[Row]:
    """Compute the same in plain Python, from the history itself."""
    times: dict[str, dict[int, int]] = {"orders": {}, "payments": {}}
    for (topic, _), records in make_log().records.items():
        times[topic] |= {record.order: record.ts for record in records}
    rows = []
    for start in range(START, END, QUARTER):
        orders, payments = (
            {order for order, ts in times[topic].items() if start <= ts < start + QUARTER} for topic in times
        )
        rows.append(Row(start, len(orders), len(payments), len(orders & payments)))
    return rows


def table(rows: list[Row], summary: aiokcc.spark.Summary) -> str:
    """Return the table for the terminal."""
    lines = [f"  {'from':<8}{'orders':>10}{'payments':>12}{'paid in the same quarter of an hour':>40}"]
    for row in rows:
        minutes = (row.period - START) // MINUTE
        lines.append(f"  {minutes // 60:02}:{minutes % 60:02}   {row.orders:>10,}{row.payments:>12,}{row.paid:>40,}")
    verdict = "equal to" if rows == right_rows() else "NOT equal to"
    lines.append(f"  {summary.periods} periods in {jobs(summary.jobs)}, {verdict} the same in plain Python")
    return "\n".join(lines)
