"""Three days of a scheduled pipeline: a driver is killed every day, day two is restated, a column is added on day three.

In a checkout of the repository::

    python -m examples.three_days                                       # starts a Kafka and a ZooKeeper itself
    python -m examples.three_days 127.0.0.1:9092 zk://127.0.0.1:2181/days
    python -m examples.three_days … delta                                # a Delta table in place of Parquet files

Each day is started as a scheduler does, with ``trigger="available_now"``. A first process is killed (SIGKILL) in its second
job, and the next start goes on there. On day two some orders are returned, which the function does not know; the day is
restated with a fixed one, and that is killed as well. After every step ``aiokcc.spark.read``, plain Spark, pandas and DuckDB
must see the same table, and it must be the one that is computed by hand.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pandas
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import aiokcc.spark
from examples.stack import Event, create, start_services, wait_for, write

HOUR = 3_600_000
PERIOD, DAY = 4 * HOUR, 24 * HOUR
START = 1_772_409_600_000  # 2026-03-02T00:00Z
PARTITIONS = 2
SINKS = {"parquet": aiokcc.spark.ParquetSink, "delta": aiokcc.spark.DeltaSink}

Function = Callable[[DataFrame, aiokcc.spark.Periods], DataFrame]
Row = tuple[int, str, int, int | None]
"""The start of the period, the country, its cents, and from day three on the number of its orders."""


class Order(NamedTuple):
    """One order, as it is in the topic."""

    time: int
    country: str
    cents: int
    returned: bool


ORDERS = [
    Order(START + n * HOUR // 10, "NL" if n % 3 else "BE", n + 1, returned=n // 240 > 0 and n % 7 == 0)
    for n in range(3 * 240)
]


def _orders(frame: DataFrame) -> DataFrame:
    order = F.from_json(F.col("value").cast("string"), "country string, cents long, returned boolean")
    return frame.select("period", order.alias("order")).select("period", "order.*")


def revenue(frame: DataFrame, _periods: aiokcc.spark.Periods) -> DataFrame:
    """Compute the revenue by period and country. It counts returned orders, which is wrong."""
    return _orders(frame).groupBy("period", "country").agg(F.sum("cents").alias("cents"))


def fixed(frame: DataFrame, _periods: aiokcc.spark.Periods) -> DataFrame:
    """Leave out returned orders."""
    return _orders(frame).where("not returned").groupBy("period", "country").agg(F.sum("cents").alias("cents"))


def wider(frame: DataFrame, _periods: aiokcc.spark.Periods) -> DataFrame:
    """Count the orders, too."""
    kept = _orders(frame).where("not returned")
    return kept.groupBy("period", "country").agg(F.sum("cents").alias("cents"), F.count("*").alias("orders"))


class Step(NamedTuple):
    """One thing that is started: a day, or the restatement of one."""

    name: str
    day: int
    function: Function
    version: str
    restates: bool = False


STEPS = [
    Step("day 1", 1, revenue, "1"),
    Step("day 2", 2, revenue, "1"),
    Step("day 2 restated", 2, fixed, "2", restates=True),
    Step("day 3", 3, wider, "3"),
]


# -- what the scheduler starts -----------------------------------------------------------------------------------------


def open_spark() -> SparkSession:
    """Make a session for a small table."""
    settings: dict[str, Any] = {"spark.sql.shuffle.partitions": "2"}
    return aiokcc.spark.session(app="three-days", master="local[2]", **settings)


def start(
    step: Step, function: Function, spark: SparkSession, servers: str, store: str, topic: str, out: str, sink: str
) -> None:
    """Publish the periods that are closed at the end of the step's day, or restate those of the day."""
    begin, end = START + (step.day - 1) * DAY, START + step.day * DAY
    common: dict[str, Any] = {"bootstrap_servers": servers, "store": store, "name": "revenue", "version": step.version}
    common |= {"session_timeout": 2, "max_periods": 2}
    if step.restates:
        aiokcc.spark.restate(spark, function, start=begin, end=end, **common)
        return
    with aiokcc.spark.replay(
        spark,
        topic,
        start=START,
        period="4h",
        trigger="available_now",
        clock=lambda: end,
        progress=False,
        **common,
    ) as replay:
        replay.for_each_period(function, sink=SINKS[sink](out))


def start_and_stop(number: int, place: list[str]) -> None:
    """Start a step in this process, and stand still in its second job until somebody kills it."""
    step, calls = STEPS[number], itertools.count(1)

    def function(frame: DataFrame, periods: aiokcc.spark.Periods) -> DataFrame:
        if next(calls) == 2:
            print("here", flush=True)
            sys.stdin.read()
        return step.function(frame, periods)

    start(step, function, open_spark(), *place)


def start_and_kill(number: int, place: list[str]) -> None:
    """Start a step in a process of its own, and kill it in its second job."""
    command = [sys.executable, "-m", "examples.three_days", "--process", str(number), *place]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        reached = process.stdout.readline()
        process.kill()
    if reached != "here\n":
        raise SystemExit(f"{STEPS[number].name}: the process ended before its second job")


# -- the table ---------------------------------------------------------------------------------------------------------


def by_hand(until: int, wrong: range, counted: int) -> list[Row]:
    """Return the rows of the periods before a time. ``wrong`` are the days whose returned orders count."""
    cents: dict[tuple[int, str], int] = defaultdict(int)
    orders: dict[tuple[int, str], int] = defaultdict(int)
    for order in ORDERS:
        period = order.time - order.time % PERIOD
        is_wrong = (order.time - START) // DAY + 1 in wrong
        if period < until and (is_wrong or not order.returned):
            cents[period, order.country] += order.cents
            orders[period, order.country] += 1
    return sorted((*key, value, orders[key] if key[0] >= counted else None) for key, value in cents.items())


def read_all(spark: SparkSession, out: str) -> dict[str, list[Row]]:
    """Return the table as each reader sees it."""
    files = aiokcc.spark.files(out)
    table = pandas.read_parquet(files, schema=aiokcc.spark.arrow_schema(out))
    found = duckdb.read_parquet(files, union_by_name=True)
    seen = found.select(f"epoch_ms(period), country, cents{', orders' if 'orders' in found.columns else ''}").fetchall()
    return {
        "aiokcc.spark.read": _collect(aiokcc.spark.read(spark, out)),
        "Spark": _collect(spark.read.option("mergeSchema", "true").parquet(*files)),
        "pandas": _rows(
            (round(row["period"].timestamp() * 1000), row["country"], row["cents"], row.get("orders"))
            for row in table.to_dict("records")
        ),
        "DuckDB": _rows(seen),
    }


def _collect(frame: DataFrame) -> list[Row]:
    orders = ["orders"] if "orders" in frame.columns else []
    return _rows(tuple(row) for row in frame.select(F.unix_millis("period"), "country", "cents", *orders).collect())


def _rows(rows: Iterable[tuple[Any, ...]]) -> list[Row]:
    return sorted(
        (int(period), str(country), int(cents), None if not orders or pandas.isna(orders[0]) else int(orders[0]))
        for period, country, cents, *orders in rows
    )


def check(spark: SparkSession, out: str, what: str, *, wrong: range, wide: bool, until: int | None = None) -> None:
    """Compare what each reader sees with the table by hand. Without ``until`` the last period is taken from the table."""
    tables = read_all(spark, out)
    last = max(row[0] for row in tables["DuckDB"]) + PERIOD if until is None else until
    right = by_hand(last, wrong, START + 2 * DAY if wide else last)
    for reader, rows in tables.items():
        if rows != right:
            raise SystemExit(f"{what}: {reader} sees {rows}, and by hand it is {right}")
    print(f"{what}: {(last - START) // PERIOD} periods, {sum(row[2] for row in right):,} cents, as by hand", flush=True)


def main(given: list[str]) -> None:
    """Run the three days."""
    sink = given.pop() if given and given[-1] in SINKS else "parquet"
    servers, store = start_services(given)
    topic = wait_for(create(servers, "orders", PARTITIONS))
    spark = open_spark()
    print("Each line is a step, and the table that all readers see after it. Periods have four hours.", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        out = str(Path(directory) / "revenue")
        place = [servers, store, topic, out, sink]
        for number, step in enumerate(STEPS):
            if not step.restates:
                today = [order for order in ORDERS if (order.time - START) // DAY + 1 == step.day]
                rows = [(n % PARTITIONS, order) for n, order in enumerate(today)]
                events = [Event(n, order.time, order.country, json.dumps(order._asdict())) for n, order in rows]
                wait_for(write(servers, topic, events))
            wrong, wide, end = range(2, 2 if number > 2 else 3), step.day == 3, START + step.day * DAY
            start_and_kill(number, place)
            check(spark, out, f"{step.name}, killed", wrong=wrong, wide=wide, until=end if step.restates else None)
            start(step, step.function, spark, *place)
            wrong = range(2, 2 if number > 1 else 3)
            check(spark, out, step.name, wrong=wrong, wide=wide, until=end)
        start(STEPS[-1], STEPS[-1].function, spark, *place)
        check(spark, out, "started again", wrong=range(2, 2), wide=True, until=START + 3 * DAY)
    print("Every reader saw the right table after every step.")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--process"]:
        start_and_stop(int(sys.argv[2]), sys.argv[3:])
    else:
        main(sys.argv[1:])
