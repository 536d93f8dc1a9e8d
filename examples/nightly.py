"""A pipeline that a scheduler starts: each start publishes what is closed by then, and the next one goes on there.

``python -m examples.nightly HOST:PORT zk://HOST:PORT/root TOPIC DIRECTORY`` is one start, for Airflow, Dagster or cron. Its
exit code tells the scheduler what to do:

=  =================================================================================================
0  published, or nothing to do
1  a service or a job has failed, or another start is still running: start it again, and it resumes
2  refused: another start would be refused as well, a person has to look
=  =================================================================================================

A start that is repeated, or killed and started again, publishes no period twice. ``python -m examples.nightly`` alone starts
what it needs, writes two days of orders and shows two starts.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import aiokcc
import aiokcc.spark
from examples.stack import Event, create, start_services, wait_for, write

HOUR = 3_600_000
START = 1_772_409_600_000  # 2026-03-02T00:00Z, in milliseconds


def revenue(frame: DataFrame, _periods: aiokcc.spark.Periods) -> DataFrame:
    """Compute the revenue by hour and country."""
    order = F.from_json(F.col("value").cast("string"), "country string, cents long")
    orders = frame.select("period", order.alias("order")).select("period", "order.*")
    return orders.groupBy("period", "country").agg(F.sum("cents").alias("cents"), F.count("*").alias("orders"))


def start(servers: str, store: str, topic: str, out: str) -> aiokcc.spark.Summary:
    """Publish every hour that is closed by now."""
    spark = aiokcc.spark.session(app="nightly")
    with aiokcc.spark.replay(
        spark,
        topic,
        bootstrap_servers=servers,
        store=store,
        name="revenue",
        period="1h",
        trigger="available_now",
    ) as replay:
        return replay.for_each_period(revenue, sink=aiokcc.spark.ParquetSink(out))


def main(servers: str, store: str, topic: str, out: str) -> int:
    """Run one start, print what it did, and return the exit code."""
    try:
        done = start(servers, store, topic, out)
    except aiokcc.UsageError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    except aiokcc.AiokccError as error:
        print(f"failed, start it again: {error}", file=sys.stderr)
        return 1
    print(
        f"published {done.periods} hours with {done.records:,} records" if done.periods else "nothing to do", flush=True
    )
    return 0


def show() -> int:
    """Start the services, write two days of orders, and start the pipeline twice."""
    kafka, store = start_services([])
    topic = wait_for(create(kafka, "orders", partitions=4))
    orders = [
        Event(
            n % 4,
            START + n * HOUR // 20,
            key=str(n),
            value=json.dumps({"country": "NL" if n % 3 else "BE", "cents": n}),
        )
        for n in range(2 * 24 * 20)
    ]
    wait_for(write(kafka, topic, orders))
    with tempfile.TemporaryDirectory() as directory:
        out = str(Path(directory) / "revenue")
        codes = []
        for night in ("first", "second"):
            print(f"The {night} start, over two days of orders: ", end="", flush=True)
            codes.append(main(kafka, store, topic, out))
        print(f"The table has {len(aiokcc.spark.files(out))} files, one for each hour; its last rows are")
        aiokcc.spark.read(aiokcc.spark.session(), out).orderBy(F.desc("period"), "country").show(4, truncate=False)
    return max(codes)


if __name__ == "__main__":
    if len(sys.argv) not in (1, 5):
        sys.exit("usage: python -m examples.nightly [HOST:PORT zk://HOST:PORT/root TOPIC DIRECTORY]")
    sys.exit(show() if len(sys.argv) == 1 else main(*sys.argv[1:]))
