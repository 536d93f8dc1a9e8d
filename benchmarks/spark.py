"""Measures a Spark pipeline against the bare jobs: in catch-up, in steady state, over empty time, and in memory.

300,000 records of 100 bytes in twelve partitions, an aggregate per period. Ours is a whole replay, from joining the group to
its end, on a real ZooKeeper; the anchors are single Spark jobs over the same offsets that compute the same aggregate without
periods. All share one session with two cores. The ways alternate, so that a disturbance of the machine affects all of them. The
first rounds warm up and do not count, because Java needs them to compile; ratios are medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiokcc.spark
from aiokcc.spark.pipeline import BatchStep
from benchmarks import spark_large
from benchmarks.broker import BASE, Broker, broker, evenly
from benchmarks.floors import anchored
from benchmarks.harness import BenchmarkError, Figures, Goal, Outcome, Result, note, percentile, summary
from benchmarks.server import Server, server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUMMARY: Final = "a pipeline on Spark against the bare jobs: catch-up, steady state, empty time, memory"
EXAMPLES: Final = (
    "python -m benchmarks spark",
    "python -m benchmarks spark --quick --json spark.json",
    "python -m benchmarks spark --only large",
)
PARTITIONS: Final = 12
PARTS: Final = ("catch-up", "steady", "memory", "large")
BATCH_BYTES: Final = 16 * 1024
"""The default batch size of producers. To look up a time the broker reads such a batch: with batches of
512 KB the 1,200 lookups of the catch-up took half a second."""
TUNED: Final = {
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.poll.records": "5000",
    "kafka.isolation.level": "read_committed",
    "kafka.group.id": "benchmarks-tuned",
}
_MINUTE: Final = 60_000

REMARKS: Final = (
    "ours: a whole replay, from joining the group to its end; the default settings, so it is decided from the function's plan",
    "    that it keeps periods apart. The result goes where the anchors' does: to the driver.",
    "plain: one spark.read.format('kafka') over the same offsets with Spark's own settings, 200 shuffle partitions among them.",
    "tuned: the same in our session, with the two settings of the consumer that matter, and consumers that are kept.",
    "parquet: that, and one Parquet file written.",
    "job: a bare tuned job over the same offsets as the period. write: one conditional write to ZooKeeper by our client.",
    "the gate: from telling that a period is published until the next one is planned; the records of it are looked up then.",
    "driver memory: what Python has resident and Java uses of its heap after a collection, at the end and after a tenth of it.",
)


@dataclass(frozen=True, slots=True)
class Effort:
    """The size of a measurement."""

    records: int
    periods: int
    rounds: int
    warming: int
    """Rounds for warming up."""
    steady: int
    """Periods in steady state, in each round."""
    lasting: int
    """Periods over which the memory is watched."""

    @classmethod
    def of(cls, options: argparse.Namespace) -> Effort:
        quick: bool = options.quick
        return cls(
            records=(options.records or (12_000 if quick else 300_000)) // PARTITIONS * PARTITIONS,
            periods=10 if quick else 100,
            rounds=options.rounds or (1 if quick else 7),
            warming=1 if quick else 5,
            steady=3 if quick else 20,
            lasting=10 if quick else 1000,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only this benchmark has."""
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="the Kafka to read from; by default one is started")
    parser.add_argument(
        "--url", help="the ensemble, zk://host:port[,host:port…][/root]; by default a server is started"
    )
    parser.add_argument("--records", type=int, metavar="N", help="records (default 300000; quick: 12000)")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of each way (default 7; quick: 1)")
    parser.add_argument("--only", choices=PARTS, help="one part of it")
    parser.add_argument(
        "--large",
        action="store_true",
        help="also 3 million records in 720 hours, half of them in one partition: minutes",
    )


async def run(options: argparse.Namespace) -> Outcome:
    """Measure all parts, one after the other."""
    effort = Effort.of(options)
    results: list[Result] = []
    async with server(options.url) as store, broker(options.bootstrap) as kafka, _session() as spark:
        if options.only in (None, "catch-up"):
            results += await _catch_up(spark, store, kafka, effort)
        if options.only in (None, "steady"):
            results += await _steady(spark, store, kafka, effort)
        if options.only in (None, "memory"):
            results.append(await _memory(spark, store, kafka, effort))
        large = options.large or options.only == "large"
        if large:
            results += await spark_large.measure(
                spark, store, kafka, TUNED, records=options.records, rounds=options.rounds, quick=options.quick
            )
    remarks = REMARKS + spark_large.LARGE_REMARKS if large else REMARKS
    return Outcome("spark", "A pipeline on Spark", results, goals(results) + spark_large.goals(results), remarks)


def goals(results: Sequence[Result]) -> list[Goal]:
    """Return the goals for what was measured."""
    found = {result.case["what"]: result for result in results}
    wanted: list[Goal] = []

    def ratio(what: str, anchor: str, limit: float, text: str) -> None:
        if what in found:
            wanted.append(Goal(text, found[what].ratios[anchor], limit))

    ratio("catch-up", "plain", 0.5, "catch-up, against one plain read with Spark's defaults")
    ratio("catch-up", "tuned", 1.3, "catch-up, against one tuned read without periods")
    ratio("steady state", "job", 1.3, "one period per job, against a bare tuned job")
    if "the gate" in found:
        wanted.append(Goal("the gate, ms per period", found["the gate"].ours["p50"] or 0.0, 10.0))
    ratio("mostly empty", "catch-up", 1.2, "ten times the periods, most of them empty, against the catch-up")
    ratio("driver memory", "a tenth", 1.1, "driver memory at the end, against after a tenth of the periods")
    return wanted


# -- the topics and the ways -------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _session() -> AsyncIterator[SparkSession]:
    note("starting Spark: about 8 s")
    spark = await asyncio.to_thread(aiokcc.spark.session, app="benchmarks", master="local[2]")
    try:
        yield spark
    finally:
        await asyncio.to_thread(spark.stop)


@dataclass(slots=True)
class History:
    """A topic, and the ways to read it."""

    spark: SparkSession
    store: Server
    bootstrap: str
    topic: str
    records: int
    each: int
    """Records in each partition."""
    rows: list[Any] = field(default_factory=list)

    @classmethod
    async def write(
        cls, spark: SparkSession, store: Server, kafka: Broker, stem: str, stamps: Sequence[int]
    ) -> History:
        """Create a topic whose partitions all have records of these times."""
        topic = await kafka.topic(stem, [stamps] * PARTITIONS, batch_bytes=BATCH_BYTES)
        return cls(spark, store, kafka.bootstrap, topic, PARTITIONS * len(stamps), len(stamps))

    async def replay(
        self, *, after: Callable[[BatchStep, Any], None] | None = None, sink: Any = None, **settings: Any
    ) -> aiokcc.spark.Summary:
        """Replay one-minute periods in a group of its own, and check that all records were counted."""
        counted: list[int] = []

        def collect(frame: DataFrame, _batch: Any) -> None:
            counted.extend(row["count"] for row in frame.collect())

        chosen: dict[str, Any] = {"start": BASE, "end": "now", "period": "1m", "progress": False, **settings}
        url = self.store.url(f"spark-{secrets.token_hex(4)}")
        async with aiokcc.spark.replay(
            self.spark, self.topic, bootstrap_servers=self.bootstrap, store=url, name="benchmark", **chosen
        ) as replay:
            replay.after_step = after
            done = await replay.for_each_period(_per_period, sink or collect)
        if sink is None and sum(counted) != done.records:
            raise BenchmarkError(f"the pipeline counted {sum(counted)} records of {done.records}")
        return done

    async def plain(self) -> None:
        """Read once with Spark's own settings, in a session with Spark's own settings."""
        session = self.spark.newSession()
        session.conf.set("spark.sql.shuffle.partitions", "200")
        await asyncio.to_thread(
            lambda: self._check(_without_periods(self._bare(session)).collect(), self.records),
        )

    async def tuned(self, start: int = 0, end: int | None = None) -> None:
        """Read once with tuned settings, without periods."""

        def job() -> None:
            rows = _without_periods(self._bare(self.spark, start, end, TUNED)).collect()
            self._check(rows, PARTITIONS * ((self.each if end is None else end) - start))

        await asyncio.to_thread(job)

    async def parquet(self) -> None:
        """Read as `tuned` does, and write one Parquet file."""

        def job() -> None:
            with tempfile.TemporaryDirectory() as directory:
                result = _without_periods(self._bare(self.spark, options=TUNED))
                result.coalesce(1).write.parquet(f"{directory}/result")

        await asyncio.to_thread(job)

    def _bare(
        self, spark: SparkSession, start: int = 0, end: int | None = None, options: Mapping[str, str] | None = None
    ) -> DataFrame:
        """Run a job over these offsets of each partition; all by default."""
        numbers = range(PARTITIONS)
        offsets = {
            "assign": {self.topic: list(numbers)},
            "startingOffsets": {self.topic: {str(n): start for n in numbers}},
            "endingOffsets": {self.topic: {str(n): self.each if end is None else end for n in numbers}},
        }
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", self.bootstrap).options(**(options or {}))
        return reader.options(**{name: json.dumps(value) for name, value in offsets.items()}).load()

    @staticmethod
    def _check(rows: list[Any], expected: int) -> None:
        if sum(row["count"] for row in rows) != expected:
            raise BenchmarkError(f"a job counted {sum(row['count'] for row in rows)} records of {expected}")


def _per_period(frame: DataFrame, _periods: Any) -> DataFrame:
    return _aggregate(frame, "period", "partition")


def _without_periods(frame: DataFrame) -> DataFrame:
    return _aggregate(frame, "partition")


def _aggregate(frame: DataFrame, *keys: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return frame.groupBy(*keys).agg(F.count("*").alias("count"), F.sum(F.length("value")).alias("bytes"))


async def _rounds(ways: dict[str, Callable[[], Awaitable[Any]]], effort: Effort) -> dict[str, list[float]]:
    """Return the seconds of each way; all ways run in each round, in turns of order, and the first rounds are dropped."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(1 - effort.warming, effort.rounds + 1):
        names = list(ways) if number % 2 else list(reversed(ways))
        note(f"{_round(number, effort)}: {', '.join(names)}")
        for name in names:
            began = time.monotonic()
            await ways[name]()
            if number > 0:
                times[name].append(time.monotonic() - began)
    return times


def _round(number: int, effort: Effort) -> str:
    return f"round {number} of {effort.rounds}" if number > 0 else f"warming up, {1 - number} to go"


def _ratio(ours: Sequence[float], anchor: Sequence[float]) -> float:
    return percentile([a / b for a, b in zip(ours, anchor, strict=True)], 0.5)


# -- the parts ---------------------------------------------------------------------------------------------------------


async def _catch_up(spark: SparkSession, store: Server, kafka: Broker, effort: Effort) -> list[Result]:
    note(f"writing twice {effort.records:,} records")
    each = effort.records // PARTITIONS
    dense = await History.write(spark, store, kafka, "dense", evenly(each, effort.periods))
    # The same minutes with nine empty ones after each.
    sparse_stamps = [
        BASE + 10 * ((ts - BASE) // _MINUTE) * _MINUTE + (ts - BASE) % _MINUTE for ts in evenly(each, effort.periods)
    ]
    sparse = await History.write(spark, store, kafka, "sparse", sparse_stamps)

    async def to_files() -> None:
        with tempfile.TemporaryDirectory() as directory:
            await dense.replay(sink=aiokcc.spark.ParquetSink(Path(directory) / "result"))

    ways: dict[str, Callable[[], Awaitable[Any]]] = {
        "plain": dense.plain,
        "tuned": dense.tuned,
        "ours": dense.replay,
        "ours, vouched for": partial(dense.replay, keeps_periods=True),
        "ours, mostly empty": sparse.replay,
        "parquet": dense.parquet,
        "ours, to Parquet": to_files,
    }
    times = await _rounds(ways, effort)

    def result(label: str, what: str, periods: int, ours: str, **anchors: str) -> Result:
        return Result(
            label,
            {"what": what, "partitions": PARTITIONS, "records": effort.records, "periods": periods},
            "s",
            {**summary(times[ours]), "records_per_second": effort.records / percentile(times[ours], 0.5)},
            {name: summary(times[way]) for name, way in anchors.items()},
            {name: _ratio(times[ours], times[way]) for name, way in anchors.items()},
        )

    return [
        result(f"catch-up, {effort.periods} periods", "catch-up", effort.periods, "ours", plain="plain", tuned="tuned"),
        result(
            "the same, keeps_periods=True",
            "vouched for",
            effort.periods,
            "ours, vouched for",
            plain="plain",
            tuned="tuned",
        ),
        result(
            f"{10 * effort.periods} periods, most empty",
            "mostly empty",
            10 * effort.periods,
            "ours, mostly empty",
            **{"catch-up": "ours"},
        ),
        result(
            "catch-up to Parquet", "to Parquet", effort.periods, "ours, to Parquet", plain="plain", parquet="parquet"
        ),
    ]


@dataclass(slots=True)
class Steps:
    """Records when each step of each batch was done, in seconds."""

    times: list[tuple[BatchStep, float]] = field(default_factory=list)

    def __call__(self, step: BatchStep, _batch: Any) -> None:
        self.times.append((step, time.monotonic()))

    def between(self, first: BatchStep, second: BatchStep) -> list[float]:
        """Return the milliseconds from each time that one step is done to the next time that the other is."""
        found, since = [], None
        for step, when in self.times:
            if step is second and since is not None:
                found.append(1000 * (when - since))
                since = None
            if step is first:
                since = when
        return found


async def _steady(spark: SparkSession, store: Server, kafka: Broker, effort: Effort) -> list[Result]:
    periods = effort.steady + 1
    size = max(1, effort.records // PARTITIONS // effort.periods)
    note(f"writing {periods} periods of {size * PARTITIONS:,} records")
    history = await History.write(spark, store, kafka, "steady", evenly(size * periods, periods))
    whole, gate, jobs, waits = [], [], [], []
    ratios: list[float] = []
    async with anchored(store) as anchors:
        for number in range(1 - effort.warming, effort.rounds + 1):
            note(f"{_round(number, effort)}: steady state, bare jobs")
            steps, bare = Steps(), []
            await history.replay(after=steps, max_periods=1, lookahead=0)
            for n in range(1, periods):
                began = time.monotonic()
                await history.tuned(n * size, (n + 1) * size)
                bare.append(1000 * (time.monotonic() - began))
            await anchors.measure(effort.steady)
            if number > 0:
                mine = steps.between(BatchStep.REPORTED, BatchStep.REPORTED)
                whole += mine
                gate += steps.between(BatchStep.REPORTED, BatchStep.PLANNED)
                waits += anchors.forget()["write"]
                jobs += bare
                ratios.append(percentile(mine, 0.5) / percentile(bare, 0.5))
            else:
                anchors.forget()
    case = {"partitions": PARTITIONS, "records_per_period": size * PARTITIONS, "periods": effort.steady}
    return [
        Result(
            "one period per job",
            {"what": "steady state", **case},
            "ms",
            summary(whole),
            {"job": summary(jobs)},
            {"job": percentile(ratios, 0.5)},
        ),
        Result("the gate", {"what": "the gate", **case}, "ms", summary(gate), {"write": summary(waits)}),
    ]


async def _memory(spark: SparkSession, store: Server, kafka: Broker, effort: Effort) -> Result:
    periods = effort.lasting
    note(f"writing {periods} periods of {PARTITIONS} records, each for a job of its own")
    history = await History.write(spark, store, kafka, "lasting", evenly(periods, periods))
    seen: dict[int, Figures] = {}

    def watch(step: BatchStep, batch: Any) -> None:
        if step is BatchStep.REPORTED and batch.number + 1 in (max(1, periods // 10), periods):
            seen[batch.number + 1] = _memory_now(spark)

    await history.replay(after=watch, max_periods=1, lookahead=0)
    if len(seen) != 2:
        raise BenchmarkError(f"the pipeline did not make one batch for each of {periods} periods")
    case = {"what": "driver memory", "partitions": PARTITIONS, "periods": periods}
    early, late = (seen[at] for at in sorted(seen))
    return Result(f"{periods} periods, a job each", case, "MB", late, {"a tenth": early})


def _memory_now(spark: SparkSession) -> Figures:
    """Return the memory of the driver: Python's resident memory, and the used heap of Java after a collection."""
    java = spark._jvm.java.lang  # type: ignore[union-attr]
    java.System.gc()
    heap = java.Runtime.getRuntime()
    in_java = (heap.totalMemory() - heap.freeMemory()) / 2**20
    in_python = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    both = in_java + in_python
    return {"p50": both, "p99": both, "samples": 1, "python_mb": in_python, "java_mb": in_java}
