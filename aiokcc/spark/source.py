"""Reads a batch as a DataFrame: exactly its offset ranges, with fast settings, each row with its period.

Only batch reads with explicit offsets are exact and repeatable. ``earliest``, ``latest`` and times are resolved again by each
job, or even by each task, so none of them is ever passed. Empty ranges are left out, because each would cost a task.

These settings make the read several times faster than Spark's defaults:

- ``fetch.max.wait.ms``: with the default a task waits half a second at its end, in a fetch for records past its range.
- ``max.poll.records``: fewer and larger steps.
- ``max.partition.fetch.bytes`` and ``receive.buffer.bytes``: a consumer reads one partition, so a task waits for each answer of
  this size. They are not larger because Spark keeps a consumer for each partition, which may hold such an answer.
- A fixed group id, by which executors keep their consumers from job to job. Spark keeps them by group id and partition, and
  refuses one whose other settings differ; so a digest of the settings is part of the id.
- The newer of the connector's two readers, in a classic session: the older one converts each row to objects and back.
- As many tasks as shuffle partitions, which are about the cores, where there are more Kafka partitions than that and little to
  read: each task costs some milliseconds, and a small period in many partitions is hardly anything but tasks.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import math
import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiokcc.core.partitions import Partition
from aiokcc.core.periods import format_time
from aiokcc.credentials import remember_secrets
from aiokcc.errors import PoisonTimestampError, UsageError
from aiokcc.spark.batch import Batch, LateRecords
from aiokcc.spark.late_records import collect_late, read_in_layers, read_included
from aiokcc.spark.period_column import PERIOD, label
from aiokcc.spark.spark_thread import is_remote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "check_options",
    "check_timestamp",
    "empty_frame",
    "event_millis",
    "find_late",
    "load",
    "offsets_text",
    "poison",
    "poison_in",
    "read",
]

_TUNED: Final = {
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": "4194304",
    "kafka.receive.buffer.bytes": "1048576",
    "kafka.isolation.level": "read_committed",
    "failOnDataLoss": "true",
}
_OPTIONS: Final = {
    "failondataloss": "failOnDataLoss",
    "fetchoffset.numretries": "fetchOffset.numRetries",
    "fetchoffset.retryintervalms": "fetchOffset.retryIntervalMs",
    "includeheaders": "includeHeaders",
    "kafkaconsumer.polltimeoutms": "kafkaConsumer.pollTimeoutMs",
    "maxrecordsperpartition": "maxRecordsPerPartition",
    "minpartitions": "minPartitions",
}
_DECIDED: Final = re.compile(r"assign|subscribe|subscribepattern|(starting|ending)(offsets|timestamp).*", re.IGNORECASE)
_V1_LIST: Final = "spark.sql.sources.useV1SourceList"
_V1_LIST_LOCK: Final = threading.Lock()
"""Pipelines of one process may share a session, each with a thread of its own: they change the setting one at a time."""
_TASKS: Final = "spark.sql.shuffle.partitions"
_FEW: Final = 250_000
"""The number of offsets for which one task is enough; more are spread over further tasks."""
_SALT: Final = secrets.token_bytes(16)
"""Without it the group id, which brokers show, would let one guess a password that is among the options."""
_COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
_HEADERS: Final = "headers array<struct<key: string, value: binary>>"
_TS: Final = "__aiokcc_event_ts"
_POISON: Final = "aiokcc: poison timestamp "
_POISON_FORM: Final = re.compile(_POISON + r"(-?\d+|null) at (\S+) (\d+) (\d+);")


def read(
    spark: SparkSession,
    batch: Batch,
    *,
    bootstrap_servers: str,
    options: Mapping[str, str] | None = None,
    timestamp: Column | str | None = None,
    lateness: Mapping[str, int] | None = None,
    start: int | None = None,
    on_time: bool = False,
) -> DataFrame:
    """Return the batch's records with the columns of Spark's Kafka source and ``period``, the start of the row's period.

    :param options: further options of the source, such as ``{"includeHeaders": "true", "kafka.security.protocol": "SSL"}``
    :param timestamp: event time as an expression; Kafka's own by default
    :param lateness: the bound by topic, in milliseconds; with one, a row's time counts as well as its offset
    :param start: of the run: older records lie outside of it, wherever they stand. They are left out, as by
        :func:`aiokcc.replay`
    :param on_time: leave out late records, except for those that the batch includes

    A record that has no time, or one before 1970, makes the job fail; :func:`poison_in` finds it in the error.
    """
    ranged = partial(load, spark, bootstrap_servers=bootstrap_servers, options=options)
    if batch.included:
        included = read_in_layers(batch.included, ranged)
        inside, ts = _inside(included, timestamp, start)
        late_rows = read_included(inside, batch, ts).select(*(f"`{name}`" for name in (*included.columns, PERIOD)))
        if not batch.ranges:
            return late_rows
        rest = replace(batch, included=())
        same: dict[str, Any] = {"timestamp": timestamp, "lateness": lateness, "start": start, "on_time": on_time}
        whole = read(spark, rest, bootstrap_servers=bootstrap_servers, options=options, **same).unionByName(late_rows)
        return whole.select(
            *(f"`{name}`" for name in whole.columns)
        )  # a projection, as aiokcc.spark.separation expects it
    frame = ranged(batch.ranges)
    columns = frame.columns
    by_time = on_time or any((lateness or {}).values())
    if timestamp is not None and not by_time and start is None:
        return label(frame, batch, columns=columns)  # the scan for its boundaries has checked the times
    frame, ts = _inside(frame, timestamp, start, once=by_time or timestamp is not None)
    return label(frame, batch, ts if by_time else None, columns, on_time=on_time)


def find_late(
    spark: SparkSession,
    batch: Batch,
    *,
    bootstrap_servers: str,
    options: Mapping[str, str] | None = None,
    timestamp: Column | str | None = None,
    start: int | None = None,
    period: int,
    **_others: Any,
) -> tuple[LateRecords, ...]:
    """Run a job that finds the late records in the batch's ranges: those that :func:`read` leaves out with ``on_time``."""
    if not batch.ranges:
        return ()
    frame, ts = _inside(
        load(spark, batch.ranges, bootstrap_servers=bootstrap_servers, options=options), timestamp, start
    )
    return collect_late(frame, batch, ts, period)


def _inside(
    frame: DataFrame, timestamp: Column | str | None, start: int | None, *, once: bool = True
) -> tuple[DataFrame, Column]:
    """Return the records that lie in the run, and their event time, as a column that is computed once if it is used often."""
    from pyspark.sql import functions as F  # noqa: N812

    ts = "unix_millis(timestamp)"
    if once:
        frame, ts = frame.withColumn(_TS, event_millis(frame, timestamp)), _TS
    inside = frame.where(_sound(ts) if start is None else f"{_sound(ts)} AND {ts} >= {start}")
    return inside, F.col(_TS) if once else F.expr(ts)


def load(
    spark: SparkSession,
    ranges: Mapping[Partition, tuple[int, int]],
    *,
    bootstrap_servers: str,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return these offset ranges, the ends exclusive, as the Kafka source reads them. Raise ValueError if all are empty."""
    starts, ends = _by_topic(ranges)
    if not starts:
        raise ValueError("no range holds an offset: there is nothing to read")
    assigned = {topic: [int(number) for number in numbers] for topic, numbers in starts.items()}
    chosen = {**_TUNED, **(options or {}), "kafka.bootstrap.servers": bootstrap_servers}
    if not any(name.lower() == "kafka.group.id" for name in chosen):
        digest = hashlib.sha256(_SALT + json.dumps(sorted(chosen.items())).encode()).hexdigest()[:12]
        chosen["kafka.group.id"] = f"aiokcc-spark-{digest}"
    offsets = {"assign": assigned, "startingOffsets": starts, "endingOffsets": ends}
    with _newer_reader(spark):
        reader = spark.read.format("kafka").options(**chosen)
        frame = reader.options(**{name: _text(value) for name, value in offsets.items()}).load()
    if any(name.lower() == "minpartitions" for name in chosen):
        return frame
    cores, total = int(spark.conf.get(_TASKS) or 200), sum(max(0, end - start) for start, end in ranges.values())
    tasks = cores * math.ceil(total / (cores * _FEW))
    return frame.coalesce(tasks) if tasks < sum(map(len, starts.values())) else frame


def offsets_text(batch: Batch) -> str:
    """Return the batch's offsets as options of Spark's Kafka source, to repeat a job by hand."""
    starts, ends = _by_topic(batch.ranges)
    return f"startingOffsets={_text(starts)} endingOffsets={_text(ends)}"


def check_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the user's options of the source. Raise UsageError for an unknown one, or one that the replay decides itself."""
    remember_secrets({str(name): value for name, value in options.items()})
    result = {}
    for name, value in options.items():
        lower = str(name).lower()
        if _DECIDED.fullmatch(lower):
            raise UsageError(f"{name} cannot be passed through: which offsets are read is decided by the replay")
        if lower == "failondataloss" and str(value).lower() != "true":
            raise UsageError(
                "failOnDataLoss cannot be turned off: a replay skips nothing; give start= a later time instead"
            )
        if lower in {"kafka.isolation.level", "kafka.bootstrap.servers"}:
            raise UsageError(f"{name} cannot be passed through: it is an argument of its own")
        if not lower.startswith("kafka.") and lower not in _OPTIONS:
            near = difflib.get_close_matches(lower, _OPTIONS, 1)
            hint = f"; {_OPTIONS[near[0]]}?" if near else "; settings of the Kafka consumer begin with 'kafka.'"
            raise UsageError(f"{name!r} is no option of Spark's Kafka source{hint}")
        result[str(name)] = str(value).lower() if isinstance(value, bool) else str(value)
    return result


def check_timestamp(spark: SparkSession, timestamp: Column | str | None, options: Mapping[str, str]) -> None:
    """Raise UsageError if the expression cannot be resolved over the columns of the source, or has a wrong type."""
    if timestamp is None:
        return
    event_millis(empty_frame(spark, options), timestamp)


def empty_frame(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return a frame with the columns that the source has under these options, and without rows."""
    headers = any(name.lower() == "includeheaders" and value == "true" for name, value in options.items())
    return spark.createDataFrame([], f"{_COLUMNS}, {_HEADERS}" if headers else _COLUMNS)


def event_millis(frame: DataFrame, timestamp: Column | str | None) -> Column:
    """Return event time in milliseconds since the epoch.

    Raise UsageError if the expression cannot be resolved, or is of a wrong type.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import Column
    from pyspark.sql import functions as F  # noqa: N812

    if timestamp is None:
        return F.unix_millis("timestamp")
    if not isinstance(timestamp, str | Column):
        raise UsageError(f"timestamp is {timestamp!r}; expected a column, or an expression as text")
    try:
        column = F.expr(timestamp) if isinstance(timestamp, str) else timestamp
        kind = frame.select(column).schema[0].dataType.simpleString()
    except (AnalysisException, ParseException) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        wrong = "is no expression" if isinstance(error, ParseException) else "cannot be resolved"
        raise UsageError(
            f"timestamp {wrong} over the columns {', '.join(frame.columns)}: {reason}. Expected one such as "
            f"\"timestamp_millis(cast(get_json_object(cast(value as string), '$.at') as bigint))\""
        ) from error
    if kind == "timestamp":
        return F.unix_millis(column)
    if kind == "bigint":
        return column
    raise UsageError(
        f"timestamp is of type {kind}; expected a timestamp, or a bigint of milliseconds since the epoch: cast it, such as "
        f"F.from_json('value', 'at timestamp')['at'] or F.timestamp_seconds('seconds')"
    )


def poison_in(error: BaseException) -> PoisonTimestampError | None:
    """Return the error for the bad record that made a job fail; None if the job failed for another reason."""
    found = _POISON_FORM.search(str(error))
    if found is None:
        return None
    ts, topic, partition, offset = found.groups()
    return poison(None if ts == "null" else int(ts), topic, int(partition), int(offset))


def poison(ts: int | None, topic: str, partition: int, offset: int, ceiling: int | None = None) -> PoisonTimestampError:
    """Return the error for a record without a usable timestamp, or with one above the ceiling, which is too far ahead."""
    if ts is not None and ceiling is not None and ts > ceiling:
        wrong = f"the timestamp {ts} ({format_time(ts)}) lies further ahead of the clock than ahead= allows"
    else:
        wrong = f"the timestamp {'null' if ts is None else ts} is none: expected milliseconds since the Unix epoch"
    return PoisonTimestampError(f"{wrong}; timestamp= can tell event time in another way", topic, partition, offset)


def _sound(ts: str) -> str:
    """Return a condition that is true for a good timestamp and fails the job otherwise.

    It is a filter condition because Spark keeps that whatever columns are used afterwards.
    """
    text = f"concat('{_POISON}', coalesce(string({ts}), 'null'), ' at ', topic, ' ', partition, ' ', offset, ';')"
    return f"CASE WHEN {ts} >= 0 THEN true ELSE boolean(raise_error({text})) END"


def _by_topic(
    ranges: Mapping[Partition, tuple[int, int]],
) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for (topic, number), (start, end) in sorted(ranges.items()):
        if start < 0:
            raise ValueError(f"{topic}.{number} is to be read from {start}; negative offsets mean earliest and latest")
        if start < end:
            starts.setdefault(topic, {})[str(number)] = start
            ends.setdefault(topic, {})[str(number)] = end
    return starts, ends


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


@contextlib.contextmanager
def _newer_reader(spark: SparkSession) -> Iterator[None]:
    """Let Spark choose the connector's newer reader for a read that is made inside the block, then put the setting back.

    Only one thread is in the block at a time. A session of Spark Connect chooses the reader later, on the server, by the
    server's own settings: nothing is changed for it.
    """
    if is_remote(spark):
        yield
        return
    with _V1_LIST_LOCK:
        before = spark.conf.get(_V1_LIST)
        kept = [name for name in before.split(",") if name.strip().lower() != "kafka"]
        spark.conf.set(_V1_LIST, ",".join(kept))
        try:
            yield
        finally:
            spark.conf.set(_V1_LIST, before)
