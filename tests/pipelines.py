"""Pipelines on Spark for tests: topics of orders and payments, their results in plain Python, and a sink in memory."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from aiokcc import local
from aiokcc.spark import Batch, Periods, Sink
from tests import kafka_topics
from tests.kafka_topics import Row
from tests.replays import BASE, MINUTE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "id int, customer int, amount int"


class Log:
    """One topic as the test wrote it: per partition, timestamps and values in the order of the log."""

    def __init__(self, name: str, partitions: Sequence[Sequence[tuple[int, dict[str, int]]]]) -> None:
        self.name = name
        self.partitions = partitions

    def labelled(self, period: int = MINUTE, lateness: int = 0) -> list[tuple[int, dict[str, int]]]:
        """Return each record with the start of its period: the first T with offset < high(T) and ts < T."""
        result = []
        for records in self.partitions:
            greatest = 0
            for ts, value in records:
                greatest = max(greatest, ts)
                result.append((max(greatest - lateness, ts) // period * period, value))
        return result


def some_records(
    chance: random.Random, count: int, *, minutes: int, disorder: int = 0, first: int = 0
) -> list[tuple[int, dict[str, int]]]:
    """Return records of one partition, nearly in order: each at most ``disorder`` milliseconds behind an earlier one."""
    stamps = sorted(BASE + chance.randrange(minutes * MINUTE) for _ in range(count))
    order = sorted(stamps, key=lambda ts: ts + chance.randrange(disorder + 1))
    return [
        (ts, {"id": first + n, "customer": chance.randrange(5), "amount": chance.randrange(100)})
        for n, ts in enumerate(order)
    ]


async def write(
    kafka: local.Kafka, stem: str, partitions: Sequence[Sequence[tuple[int, dict[str, int]]]], **configs: Any
) -> Log:
    """Create a topic with these records."""
    name = await kafka_topics.create_fresh(kafka.bootstrap, stem, partitions=len(partitions), **configs)
    rows = [
        Row(number, ts, json.dumps(value).encode())
        for number, records in enumerate(partitions)
        for ts, value in records
    ]
    await kafka_topics.write(kafka.bootstrap, name, rows)
    return Log(name, partitions)


# -- the same twice: on Spark, and in plain Python ---------------------------------------------------------------------


def decoded(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    value = F.from_json(F.col("value").cast("string"), SCHEMA)
    return frame.select("period", "topic", "timestamp", value.alias("v")).select("period", "topic", "timestamp", "v.*")


def totals(frame: DataFrame, periods: Periods) -> DataFrame:
    """Compute per period and customer the sum, the count, and the customer's rank by sum within the period (a window)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    sums = (
        decoded(frame).groupBy("period", "customer").agg(F.sum("amount").alias("total"), F.count("*").alias("orders"))
    )
    rank = F.rank().over(Window.partitionBy("period").orderBy(F.desc("total"), "customer"))
    return sums.withColumn("place", rank)


def totals_in_python(logs: Iterable[Log], lateness: int = 0) -> list[tuple[int, int, int, int, int]]:
    sums: dict[tuple[int, int], list[int]] = defaultdict(list)
    for log in logs:
        for start, value in log.labelled(lateness=lateness):
            sums[start, value["customer"]].append(value["amount"])
    rows = []
    for (start, customer), amounts in sums.items():
        better = [
            other
            for (when, other), theirs in sums.items()
            if when == start and (-sum(theirs), other) < (-sum(amounts), customer)
        ]
        rows.append((start, customer, sum(amounts), len(amounts), len(better) + 1))
    return sorted(rows)


def totals_of(rows: Iterable[Any]) -> list[tuple[int, int, int, int, int]]:
    return sorted((millis(r["period"]), r["customer"], r["total"], r["orders"], r["place"]) for r in rows)


def joined(orders: str, payments: str) -> Any:
    """Return a function that joins orders and payments of the same number in the same period."""

    def join(frame: DataFrame, periods: Periods) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        rows = decoded(frame)
        left = rows.where(F.col("topic") == orders).select("period", "id", F.col("amount").alias("ordered"))
        right = rows.where(F.col("topic") == payments).select("period", "id", F.col("amount").alias("paid"))
        return left.join(right, ["period", "id"], "full")

    return join


def joined_in_python(orders: Log, payments: Log) -> set[tuple[int, int, int | None, int | None]]:
    left = {(start, value["id"]): value["amount"] for start, value in orders.labelled()}
    right = {(start, value["id"]): value["amount"] for start, value in payments.labelled()}
    return {(*key, left.get(key), right.get(key)) for key in left.keys() | right.keys()}


def millis(moment: Any) -> int:
    """Return the milliseconds of a timestamp as Spark gives it, a datetime in the zone of this process."""
    seconds: float = moment.timestamp()
    return round(seconds * 1000)


class MemorySink(Sink):
    """Keeps the rows of each batch in this process, and counts how often each was published."""

    exactly_once = True

    def __init__(self) -> None:
        self.batches: dict[int, tuple[Batch, list[Any]]] = {}
        self.began: list[tuple[str, int]] = []
        self.staged: list[Batch] = []

    def describe(self) -> str:
        return "the memory of a test"

    def begin(self, pipeline: str, attempt: int) -> None:
        self.began.append((pipeline, attempt))

    def is_published(self, batch: Batch) -> bool:
        return batch.number in self.batches

    def stage(self, frame: DataFrame, batch: Batch) -> object:
        self.staged.append(batch)
        return frame.collect()

    def publish(self, batch: Batch, staged: Any) -> None:
        assert batch.number not in self.batches, f"batch {batch.number} was published twice"
        self.batches[batch.number] = (batch, staged or [])

    def reset(self, pipeline: str, attempt: int) -> None:
        self.batches.clear()

    @property
    def rows(self) -> list[Any]:
        return [row for number in sorted(self.batches) for row in self.batches[number][1]]

    @property
    def full(self) -> list[int]:
        """Return the number of periods with records of each job."""
        return [sum(1 for period in batch.periods if period.ranges) for batch in self.staged]


def check_tiling(batches: Iterable[Batch], logs: Iterable[Log]) -> None:
    """Check that the batches are numbered without a gap, and that their ranges tile each partition without gap or overlap."""
    ordered = sorted(batches, key=lambda batch: batch.number)
    assert [batch.number for batch in ordered] == list(range(len(ordered)))
    ends = [BASE, *(period.end for batch in ordered for period in batch.periods)]
    assert ends == sorted(set(ends)), "periods overlap or go back"
    for log in logs:
        for number, records in enumerate(log.partitions):
            at = 0
            for batch in ordered:
                for period in batch.periods:
                    start, end = period.ranges.get((log.name, number), (at, at))  # type: ignore[call-overload]
                    assert start == at, f"{log.name}.{number}: {at} is followed by {start} in batch {batch.number}"
                    at = end
            assert at == len(records), f"{log.name}.{number} ends at {at}, not at {len(records)}"
