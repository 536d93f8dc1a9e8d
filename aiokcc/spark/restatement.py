"""Computes published periods again and replaces them: ``aiokcc.spark.restate``.

The steps of a restatement, by name:

``checked``    the periods are published, their offsets are known, and Kafka still has all of their records
``fenced``     it has taken an attempt of the pipeline, as a driver does: nobody who began before can publish any more
``staged``     the Spark jobs have run. Readers do not see their results yet
``published``  the sink has replaced the periods, all of them in one step

Killed after any step but the last, it is as if it had not begun; what was staged is removed by the next driver. It reads
exactly the offsets that were recorded when the periods were published, and never asks the log again where they lie. With
``late="restate"`` it also reads the late records of these periods.
"""

from __future__ import annotations

import enum
import itertools
import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiokcc.core import paths
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import format_time, parse_duration, parse_time
from aiokcc.errors import AiokccError, CorruptNodeError, KafkaError, SparkJobError, StoreUnreachableError, UsageError
from aiokcc.kafka.cluster import Cluster
from aiokcc.kafka.source_options import SourceOptions
from aiokcc.spark.batch import Batch
from aiokcc.spark.batch_sizer import BatchSizer
from aiokcc.spark.checkpoint import Checkpoint
from aiokcc.spark.compute import Computation, Periods
from aiokcc.spark.function_version import VersionedFunction
from aiokcc.spark.job_errors import first_line, is_permanent
from aiokcc.spark.progress import Summary
from aiokcc.spark.published import LatePeriod
from aiokcc.spark.restating import alone_with, wait_until_not_driven
from aiokcc.spark.sinks import DeltaSink, ParquetSink, Sink
from aiokcc.spark.source import check_timestamp, poison_in, read
from aiokcc.spark.spark_thread import SparkThread
from aiokcc.stores.port import Session, SessionState, Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["RestateOptions", "RestateStep", "Restatement", "list_late"]

log = logging.getLogger("aiokcc.spark")

_SOURCE: Final = re.compile(r"kafka.* start=(\S+) end=\S+ time=\S+ lateness=(\S+) (read_\w+)")
_PARQUET, _DELTA = "Parquet in ", "Delta table "


class RestateStep(enum.Enum):
    """The last step that was completed."""

    CHECKED = "checked"
    FENCED = "fenced"
    STAGED = "staged"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class RestateOptions:
    """The checked arguments of a restatement."""

    spark: Any
    name: str
    function: Callable[[DataFrame, Periods], DataFrame]
    bounds: tuple[int, int] | None
    """The bounds of event time; None: all periods whose late records wait."""
    sink: Sink | None
    """The sink; None: the one that the pipeline has recorded."""
    timestamp: Any
    bootstrap_servers: Any
    client: Any = field(repr=False)
    consumer: Mapping[str, Any] = field(repr=False)
    kafka_options: Mapping[str, str] = field(repr=False)
    max_periods: int
    max_bytes: int
    retries: int
    keeps_periods: bool
    version: str | None
    """The version of the function, as the user gave it."""
    store: Store
    session_timeout: float
    connect_timeout: float
    claim_timeout: float


@dataclass(frozen=True, slots=True)
class _Definition:
    """The definition of the pipeline, as the store has recorded it."""

    content: Mapping[str, Any]
    period: int
    start: int | None
    lateness: Mapping[str, int]
    isolation_level: str
    timestamp: str | None
    sink: str
    restates_late: bool

    @classmethod
    async def read(cls, store: Store, session: Session, name: str) -> _Definition:
        path = f"{paths.PIPELINES}/{name}/definition"
        node = await session.find(path)
        if node is None:
            raise UsageError(
                f"there is no pipeline {name!r} under {store.describe('')}; `aiokcc pipeline status` lists them"
            )
        try:
            content: dict[str, Any] = json.loads(node.data)
            match = _SOURCE.fullmatch(content["source"])
            if match is None:
                raise ValueError(content["source"])
            start, late, isolation_level = match.groups()
            bounds = [] if late == "none" else [one.rpartition(":") for one in late.split(",")]
            return cls(
                content,
                int(content["period"]),
                None if start == "earliest" else parse_time(start, what="start"),
                {topic: parse_duration(bound, what="lateness") for topic, _, bound in bounds},
                isolation_level,
                content["timestamp"],
                content["sink"],
                content.get("late") == "restate",
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CorruptNodeError(store.describe(path), node.data, "a pipeline's definition as JSON") from None


class Restatement:
    """Computes published periods of a pipeline again, and replaces them."""

    def __init__(self, options: RestateOptions) -> None:
        self._options = options
        self._attempt = 0
        self.summary = Summary()
        self.after_step: Callable[[RestateStep], None] = lambda _step: None
        """Called after each step, in the event loop. For tests, which stop the process there."""

    async def run(self) -> Summary:
        """Restate the periods and return the totals. Cancelling stops the running job; what is published stays as it is.

        Raise UsageError if it is refused, PipelineBusyError if a driver is at work, KafkaError if records are gone, FencedError
        if a driver has taken over meanwhile, SparkJobError if a job failed too often.
        """
        options = self._options
        began = time.monotonic()
        spark_thread = SparkThread(options.spark)
        try:
            async with options.store.session(
                timeout=options.session_timeout, connect_timeout=options.connect_timeout
            ) as session:
                definition = await _Definition.read(options.store, session, options.name)
                who = f"{socket.gethostname()}, process {os.getpid()}"
                async with alone_with(session, options.name, who, options.claim_timeout):
                    await self._run(session, definition, spark_thread, who)
        finally:
            spark_thread.close()
            self.summary.seconds += time.monotonic() - began
        return self.summary

    async def _run(self, session: Session, definition: _Definition, spark_thread: SparkThread, who: str) -> None:
        options = self._options

        async def present() -> Session:
            if session.state is SessionState.LOST:
                raise StoreUnreachableError("the session with the store was lost. Nothing was changed; start it again")
            return session

        if definition.content.get("state") is not None:
            raise UsageError(
                f"the pipeline {options.name!r} carries state from period to period: later periods depend on the ones to "
                f"restate. Start it again from scratch (from_scratch=True), or under another name"
            )
        sink = options.sink or _recorded_sink(definition.sink, options.name)
        timestamp = _timestamp(definition, options)
        await spark_thread.call(check_timestamp, options.spark, timestamp, options.kafka_options)
        checkpoint = Checkpoint(options.store, options.name, present)
        await checkpoint.is_complete({**definition.content, "sink": sink.describe()})  # raises if the sink is another
        sink.identify(checkpoint.run, options.store.describe(""))
        if checkpoint.filled is not None:
            await spark_thread.call(sink.check_published, options.name, checkpoint.filled)
        found = await spark_thread.call(sink.published, options.name, checkpoint.published)
        ranges = [options.bounds] if options.bounds is not None else neighbours(found.late())
        if not ranges:
            log.info("%s: no late records wait", options.name)
            return
        batches = [found.restatement(options.name, *bounds, definition.period) for bounds in ranges]
        await self._check_records(batches, definition)
        self.after_step(RestateStep.CHECKED)
        await checkpoint.begin(
            {**definition.content, "sink": sink.describe()},
            who,
            ready=partial(wait_until_not_driven, session, options.name, options.claim_timeout),
        )
        self._attempt = checkpoint.attempt
        await spark_thread.call(sink.begin, options.name, checkpoint.attempt)
        self.after_step(RestateStep.FENCED)
        for bounds in ranges:
            # Read again: nobody has been able to publish since the sink began.
            found = await spark_thread.call(sink.published, options.name, checkpoint.published)
            batch = found.restatement(options.name, *bounds, definition.period)
            after = found.batches[-1].number
            await self._restate(batch, definition, timestamp, sink, spark_thread, checkpoint, after)

    async def _restate(
        self,
        batch: Batch,
        definition: _Definition,
        timestamp: Any,
        sink: Sink,
        spark_thread: SparkThread,
        checkpoint: Checkpoint,
        after: int,
    ) -> None:
        options = self._options
        frames = partial(
            read,
            options.spark,
            bootstrap_servers=options.bootstrap_servers,
            options={"kafka.isolation.level": definition.isolation_level, **options.kafka_options},
            timestamp=timestamp,
            lateness=definition.lateness or None,
            start=definition.start,
            on_time=definition.restates_late,
        )
        versioned = VersionedFunction(options.function, options.version)
        computation = Computation(
            versioned, frames, keeps_periods=options.keeps_periods, one_by_one=options.max_periods == 1
        )
        staged = []
        parts = _parts(batch, BatchSizer(options.max_periods, 1.0, options.max_bytes))
        while parts:
            part = parts.pop(0)
            if part.is_empty:
                continue
            if not computation.is_decided:
                await self._job(spark_thread, part, partial(computation.prepare, part))
                if computation.one_by_one and len(part.periods) > 1:
                    parts = _parts(batch, BatchSizer(1, 1.0, options.max_bytes))  # nothing is staged yet
                    continue

            def stage(part: Batch = part) -> object:
                return sink.stage(computation.result(part), part)

            staged.append(await self._job(spark_thread, part, stage))
            self.summary.jobs += 1
        self.after_step(RestateStep.STAGED)
        await checkpoint.confirm()
        sink.computed_by(versioned.known)
        await spark_thread.call(sink.replace, batch, staged, after)
        self.summary.periods += len(batch.periods)
        self.summary.records += _count(batch)
        log.info(
            "%s: restated %s to %s, %d periods",
            options.name,
            *map(format_time, batch.replaces or ()),
            len(batch.periods),
        )
        self.after_step(RestateStep.PUBLISHED)

    async def _job(self, spark_thread: SparkThread, part: Batch, function: Callable[[], Any]) -> Any:
        what = (
            f"{part.pipeline} restating {format_time(part.start)} to {format_time(part.end)}, attempt {self._attempt}"
        )
        for failures in itertools.count(1):
            try:
                return await spark_thread.job(what, function)
            except AiokccError:
                raise
            except Exception as error:
                if (poison := poison_in(error)) is not None:
                    raise poison from error
                if failures > self._options.retries or is_permanent(error):
                    raise SparkJobError(
                        f"{what} failed with {first_line(error)}; nothing was changed",
                        part.pipeline,
                        part.start,
                        part.end,
                    ) from error
                self.summary.retried += 1
        raise AssertionError

    async def _check_records(self, batches: Sequence[Batch], definition: _Definition) -> None:
        """Raise KafkaError if Kafka does not have all records any more; it names what is missing of each partition."""
        wanted: dict[Partition, list[tuple[int, int]]] = {}
        for batch in batches:
            for partition, span in batch.ranges.items():
                wanted.setdefault(partition, []).append(span)
            for late in batch.included:
                wanted.setdefault(late.partition, []).append((late.first, late.last))
        if not wanted:
            return
        options = self._options
        source = SourceOptions.check(
            sorted({partition.topic for partition in wanted}),
            bootstrap_servers=options.bootstrap_servers,
            kafka=options.client,
            commit=False,
            isolation_level=definition.isolation_level,
            consumer=options.consumer,
        )
        cluster = Cluster(source, options.connect_timeout)
        missing: list[str] = []
        async with cluster.connected():
            there = wanted.keys() & await cluster.present(source.topics)
            begins, ends = await cluster.begins(there), await cluster.ends(there)
        for partition, spans in sorted(wanted.items()):
            begin, end = begins.get(partition), ends.get(partition)
            for low, high in spans:
                if begin is None or end is None:
                    missing.append(f"{partition} does not exist any more, and offsets {low} to {high - 1} were read")
                elif begin > low:
                    missing.append(f"{partition} offsets {low} to {min(begin, high) - 1} (its log begins at {begin})")
                elif end < high:
                    missing.append(f"{partition} offsets {max(low, end)} to {high - 1} (its log ends at {end})")
        if missing:
            more = f"; and {len(missing) - 10} more" if len(missing) > 10 else ""
            raise KafkaError(
                f"records of the periods to restate are gone from Kafka: {'; '.join(missing[:10])}{more}. Nothing was changed: "
                f"without them the new result would be a part of the old one"
            )


async def list_late(
    store: Store, name: str, sink: Sink | None = None, connect_timeout: float = 10.0
) -> list[LatePeriod]:
    """Return the periods whose late records wait to be restated. Raise UsageError if there is no such pipeline."""
    async with store.session(connect_timeout=connect_timeout) as session:

        async def present() -> Session:
            return session

        definition = await _Definition.read(store, session, name)
        target = sink or _recorded_sink(definition.sink, name)
        checkpoint = Checkpoint(store, name, present)
        await checkpoint.is_complete({**definition.content, "sink": target.describe()})
        target.identify(checkpoint.run, store.describe(""))
        return target.published(name, checkpoint.published).late()


def neighbours(late: Sequence[LatePeriod]) -> list[tuple[int, int]]:
    """Return the bounds of these periods, neighbouring and overlapping ones as one."""
    result: list[tuple[int, int]] = []
    for period in late:
        if result and period.start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], period.end))
        else:
            result.append((period.start, period.end))
    return result


def _parts(batch: Batch, sizer: BatchSizer) -> list[Batch]:
    """Return the batch in parts that one job may hold each."""
    counts = [sum(high - low for low, high in period.ranges.values()) for period in batch.periods]
    result, first = [], 0
    while first < len(counts):
        count = sizer.count_fitting(counts[first:])
        result.append(batch.part(first, count))
        first += count
    return result


def _count(batch: Batch) -> int:
    """Return the number of offsets that the batch is read from. Under a bound on lateness, neighbours have some in common."""
    ranged = sum(high - max(low, batch.behind.get(partition, low)) for partition, (low, high) in batch.ranges.items())
    return ranged + sum(late.records for late in batch.included)


def _timestamp(definition: _Definition, options: RestateOptions) -> Any:
    """Return the expression of event time: the one that is given, or the SQL text that the pipeline has recorded."""
    recorded, given = definition.timestamp, options.timestamp
    if given is None:
        if recorded is not None and recorded.startswith("Column<"):
            raise UsageError(
                f"the pipeline {options.name!r} has timestamp={recorded}; give the same expression as timestamp="
            )
        return recorded
    if str(given) != recorded:
        raise UsageError(
            f"timestamp is {given}, and the pipeline {options.name!r} has {recorded}: a restatement keeps event time"
        )
    return given


def _recorded_sink(description: str, name: str) -> Sink:
    if description.startswith(_PARQUET):
        return ParquetSink(description.removeprefix(_PARQUET))
    if description.startswith(_DELTA):
        return DeltaSink(description.removeprefix(_DELTA))
    raise UsageError(f"the result of {name!r} is {description}, which cannot be restated; Parquet and Delta can")
