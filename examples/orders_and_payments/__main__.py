"""Joins orders and their payments, hour by hour, on Spark; writes a table, Parquet files and a picture.

In a checkout of the repository::

    python -m examples.orders_and_payments                                       # starts a Kafka and a ZooKeeper itself
    python -m examples.orders_and_payments 127.0.0.1:9092 zk://127.0.0.1:2181/shop
    python -m examples.orders_and_payments --master spark://127.0.0.1:7077       # on a cluster, see `aiokcc local spark`

Run again with the same servers, topics and directory, it resumes after the last hour that is published.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import aiokcc
import aiokcc.spark
from examples.orders_and_payments.history import PARTITIONS, Figures, make_history, right_answer
from examples.orders_and_payments.picture import draw, table
from examples.orders_and_payments.pipeline import run
from examples.stack import create, jobs, start_services, wait_for, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.orders_and_payments", description=__doc__.splitlines()[0])
    parser.add_argument("servers", nargs="*", help="HOST:PORT of Kafka and zk://HOST:PORT/root; default: new ones")
    parser.add_argument("--master", default="local[*]", help="Spark's; default: local[*]")
    parser.add_argument("--out", type=Path, default=Path("revenue"), metavar="DIR", help="default: ./revenue")
    options = parser.parse_args()
    if len(options.servers) not in {0, 2}:
        parser.error("give both servers, or none")
    try:
        example(options.servers, options.master, options.out)
    except aiokcc.AiokccError as error:
        sys.exit(f"{error}")
    return 0


def example(given: list[str], master: str, out: Path) -> None:
    """Run the whole example."""
    servers, store = start_services(given)
    history = make_history()
    topics = [wait_for(create(servers, topic, number)) for topic, number in PARTITIONS.items()]
    for topic, events in zip(topics, history.values(), strict=True):
        wait_for(write(servers, topic, events))
        print(f"{len(events):,} records written to {topic}", flush=True)
    with aiokcc.spark.session(app="orders and payments", master=master, progress=print) as spark:
        summary = run(spark, topics, servers, store, out)
        print(f"{summary.periods} hours in {jobs(summary.jobs)}, {summary.seconds:.1f} s\n", flush=True)
        rows = read_result(spark, out)
    print(table(rows))
    drawn = draw(rows, out.with_suffix(".png"))
    print(f"\nParquet files in {out}" + (f", the picture: {drawn}" if drawn else ""))
    right = right_answer(history)
    print("All figures are right." if rows == right else "The figures are not those of the plain computation!")


def read_result(spark: SparkSession, out: Path) -> dict[tuple[int, str], Figures]:
    """Return the published rows, by hour and country."""
    frame = aiokcc.spark.read(spark, out).selectExpr("unix_millis(period) AS hour", "* EXCEPT (period)")
    rows = (row.asDict() for row in frame.collect())
    return {(row.pop("hour"), row.pop("country")): Figures(**row) for row in rows}


if __name__ == "__main__":
    raise SystemExit(main())
