"""The large history of the Spark benchmark: a month of hours, as results and as rows; a day restated; nothing to do.

Three million records of 200 bytes in 24 partitions, half of them in one partition, over 720 hours. Ours is a whole replay in
hourly periods; the anchors are single tuned jobs over the same offsets.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiokcc.spark
from aiokcc.spark.restate import prepare_restate
from benchmarks.broker import BASE, Broker
from benchmarks.harness import BenchmarkError, Goal, Result, note, percentile, summary
from benchmarks.server import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LARGE_REMARKS", "goals", "measure"]

LARGE_REMARKS: Final = (
    "tuned: one tuned read of everything, an aggregate by partition, no periods, no files.",
    "by hour: the same read, the aggregate by hour and partition, written by Spark's own writer, a file for each hour.",
    "rows by hour: the same read, all columns of all records, written by Spark's own writer, a file for each hour.",
    "nothing to do: a second start with trigger='available_now', from joining the group to its return; the session is there.",
    "restating: a day in the middle of the month, the whole call. Its anchor: one start that publishes the whole month.",
)
_PARTITIONS: Final = 24
_HOUR: Final = 3_600_000
_DAY: Final = 24
"""The hours that are restated."""
_START: Final = (BASE // _HOUR + 1) * _HOUR
_VALUE: Final = bytes(range(200))
_BATCH_BYTES: Final = 16 * 1024


def measure_settings(records: int | None, rounds: int | None, *, quick: bool) -> tuple[int, int, int, int]:
    """Return the number of records, hours, rounds, and rounds for warming up."""
    if quick:
        return records or 4_800, 48, rounds or 1, 1
    return records or 3_000_000, 720, rounds or 3, 1


@dataclass(slots=True)
class _Month:
    """The topic, and the ways to read it."""

    spark: SparkSession
    store: Server
    bootstrap: str
    topic: str
    sizes: list[int]
    """Records in each partition."""
    tuned_options: dict[str, str]

    @property
    def records(self) -> int:
        return sum(self.sizes)

    async def replay(self, function: Callable[..., Any], sink: Any, url: str | None = None, **settings: Any) -> Any:
        """Replay all hours in a group of its own, or at this root."""
        place = url or self.store.url(f"large-{secrets.token_hex(4)}")
        chosen = {"start": _START, "end": "now", **settings}
        async with aiokcc.spark.replay(
            self.spark,
            self.topic,
            bootstrap_servers=self.bootstrap,
            store=place,
            name="large",
            period="1h",
            progress=False,
            **chosen,
        ) as replay:
            return await replay.for_each_period(function, sink)

    async def ours(self) -> None:
        counted: list[int] = []
        await self.replay(_by_period, lambda frame, _: counted.extend(row["count"] for row in frame.collect()))
        _check(sum(counted), self.records)

    async def ours_to_parquet(self, function: Callable[..., Any]) -> None:
        with tempfile.TemporaryDirectory() as directory:
            done = await self.replay(function, aiokcc.spark.ParquetSink(Path(directory) / "out"))
            _check(done.records, self.records)

    async def tuned(self) -> None:
        def job() -> None:
            rows = _aggregate(self._bare(), "partition").collect()
            _check(sum(row["count"] for row in rows), self.records)

        await asyncio.to_thread(job)

    async def by_hour(self, *, rows: bool) -> None:
        def job() -> None:
            from pyspark.sql import functions as F  # noqa: N812

            frame = self._bare().withColumn("hour", F.date_trunc("hour", "timestamp"))
            result = frame.repartition("hour") if rows else _aggregate(frame, "hour", "partition").repartition("hour")
            with tempfile.TemporaryDirectory() as directory:
                result.write.partitionBy("hour").parquet(f"{directory}/out")

        await asyncio.to_thread(job)

    async def scheduled(self, hours: int) -> tuple[float, float, float]:
        """Publish all in one start, start again, restate a day. Return the seconds of each of the three."""
        url = self.store.url(f"large-{secrets.token_hex(4)}")
        with tempfile.TemporaryDirectory() as directory:
            sink = Path(directory) / "out"
            settings: dict[str, Any] = {"url": url, "end": None, "trigger": "available_now"}
            began = time.monotonic()
            await self.replay(_by_period, aiokcc.spark.ParquetSink(sink), **settings)
            whole = time.monotonic() - began
            began = time.monotonic()
            done = await self.replay(_by_period, aiokcc.spark.ParquetSink(sink), **settings)
            if done.periods:
                raise BenchmarkError(f"the second start published {done.periods} periods; it should find nothing to do")
            nothing = time.monotonic() - began
            first = _START + (hours // 2 - _DAY // 2) * _HOUR
            began = time.monotonic()
            again = await prepare_restate(
                self.spark,
                _by_period,
                store=url,
                name="large",
                bootstrap_servers=self.bootstrap,
                start=first,
                end=first + _DAY * _HOUR,
            ).run()
            restating = time.monotonic() - began
            if again.periods != _DAY:
                raise BenchmarkError(f"{again.periods} periods were restated, not {_DAY}")
            return whole, nothing, restating

    def _bare(self) -> DataFrame:
        offsets = {
            "assign": {self.topic: list(range(len(self.sizes)))},
            "startingOffsets": {self.topic: {str(n): 0 for n in range(len(self.sizes))}},
            "endingOffsets": {self.topic: {str(n): size for n, size in enumerate(self.sizes)}},
        }
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader.options(**self.tuned_options)
        return reader.options(**{name: json.dumps(value) for name, value in offsets.items()}).load()


def _aggregate(frame: DataFrame, *keys: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return frame.groupBy(*keys).agg(F.count("*").alias("count"), F.sum(F.length("value")).alias("bytes"))


def _by_period(frame: DataFrame, _periods: Any) -> DataFrame:
    return _aggregate(frame, "period", "partition")


def _rows(frame: DataFrame, _periods: Any) -> DataFrame:
    return frame


def _check(counted: int, expected: int) -> None:
    if counted != expected:
        raise BenchmarkError(f"a job counted {counted} records of {expected}")


async def measure(
    spark: SparkSession,
    store: Server,
    kafka: Broker,
    tuned_options: dict[str, str],
    *,
    records: int | None,
    rounds: int | None,
    quick: bool,
) -> list[Result]:
    """Write the topic once, and measure every way in each round, in turns of order."""
    total, hours, counted, warming = measure_settings(records, rounds, quick=quick)
    sizes = [total // 2] + [total // 2 // (_PARTITIONS - 1)] * (_PARTITIONS - 1)
    note(f"writing {sum(sizes):,} records of {len(_VALUE)} bytes over {hours} hours, half of them in one partition")
    logs = [[_START + n * hours * _HOUR // size for n in range(size)] for size in sizes]
    topic = await kafka.topic("large", logs, batch_bytes=_BATCH_BYTES, value=_VALUE)
    del logs
    month = _Month(spark, store, kafka.bootstrap, topic, sizes, tuned_options)
    ways: dict[str, Callable[[], Awaitable[Any]]] = {
        "tuned": month.tuned,
        "ours": month.ours,
        "by hour": lambda: month.by_hour(rows=False),
        "ours, to Parquet": lambda: month.ours_to_parquet(_by_period),
        "rows by hour": lambda: month.by_hour(rows=True),
        "ours, rows to Parquet": lambda: month.ours_to_parquet(_rows),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(1 - warming, counted + 1):
        names = list(ways) if number % 2 else list(reversed(ways))
        note(f"round {number} of {counted}: {', '.join(names)}" if number > 0 else "warming up")
        for name in names:
            began = time.monotonic()
            await ways[name]()
            if number > 0:
                times[name].append(time.monotonic() - began)
    case = {"partitions": _PARTITIONS, "records": month.records, "periods": hours}

    def result(label: str, what: str, ours: str, anchor: str) -> Result:
        ratio = percentile([a / b for a, b in zip(times[ours], times[anchor], strict=True)], 0.5)
        figures = {
            **summary(times[ours]),
            "records_per_second": month.records / percentile(times[ours], 0.5),
        }
        return Result(label, {"what": what, **case}, "s", figures, {anchor: summary(times[anchor])}, {anchor: ratio})

    wholes: list[float] = []
    nothings: list[float] = []
    again: list[float] = []
    for number in range(1 - warming, counted + 1):
        note(f"scheduled starts and a restatement, round {number} of {counted}" if number > 0 else "warming up")
        measured = await month.scheduled(hours)
        if number > 0:
            for seconds, one in zip((wholes, nothings, again), measured, strict=True):
                seconds.append(one)
    ratio = percentile([a / b for a, b in zip(again, wholes, strict=True)], 0.5)
    return [
        result(f"{hours} hours, aggregate only", "large", "ours", "tuned"),
        result(f"{hours} hours to Parquet", "large to Parquet", "ours, to Parquet", "by hour"),
        result("the rows themselves to Parquet", "large rows to Parquet", "ours, rows to Parquet", "rows by hour"),
        Result("available_now, nothing to do", {"what": "nothing to do", **case}, "s", summary(nothings), {}),
        Result(
            f"restating {_DAY} of {hours} hours",
            {"what": "restating", **case},
            "s",
            summary(again),
            {"whole": summary(wholes)},
            {"whole": ratio},
        ),
    ]


def goals(results: Sequence[Result]) -> list[Goal]:
    """Return the goals for what was measured."""
    found = {result.case["what"]: result for result in results}
    wanted = []
    for what, anchor, limit, text in (
        ("large", "tuned", 1.3, "the large history, aggregate only, against one tuned read without periods"),
        (
            "large to Parquet",
            "by hour",
            1.0,
            "the large history to Parquet, against a tuned read that writes a file per hour",
        ),
    ):
        if what in found:
            wanted.append(Goal(text, found[what].ratios[anchor], limit))
    if "nothing to do" in found:
        wanted.append(Goal("available_now with nothing to do, s", found["nothing to do"].ours["p50"] or 0.0, 3.0))
    if "restating" in found:
        result = found["restating"]
        whole, periods = result.anchors["whole"]["p50"] or 0.0, result.case["periods"]
        text = f"restating {_DAY} of {periods} hours, s (1.5 times their share of the whole, and 1 s)"
        wanted.append(Goal(text, result.ours["p50"] or 0.0, 1.5 * _DAY / periods * whole + 1.0))
    return wanted
