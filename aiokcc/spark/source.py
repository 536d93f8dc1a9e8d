"""Reads a batch as a DataFrame: exactly its offset ranges, with fast settings, each row with its period.

Only batch reads with explicit offsets are exact and repeatable. ``earliest``, ``latest`` and times are resolved again by each
job, or even by each task, so none of them is ever passed. Empty ranges are left out, because each would cost a task.

These settings make the read several times faster than Spark's defaults:

- ``fetch.max.wait.ms``: with the default a task waits half a second at its end, in a fetch for records past its range.
- ``max.poll.records``: fewer and larger steps.
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
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from aiokcc.core.partitions import Partition
from aiokcc.core.periods import format_time
from aiokcc.errors import PoisonTimestampError, UsageError
from aiokcc.spark.batch import Batch
from aiokcc.spark.period_column import label
from aiokcc.spark.spark_thread import is_remote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["check_options", "event_millis", "load", "offsets_text", "poison", "poison_in", "read"]

_TUNED: Final = {
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.poll.records": "5000",
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
) -> DataFrame:
    """Return the batch's records with the columns of Spark's Kafka source and ``period``, the start of the row's period.

    :param options: further options of the source, such as ``{"includeHeaders": "true", "kafka.security.protocol": "SSL"}``
    :param timestamp: event time as an expression; Kafka's own by default
    :param lateness: the bound by topic, in milliseconds; with one, a row's time counts as well as its offset
    :param start: of the run: older records lie outside of it, wherever they stand. They are left out, as by
        :func:`aiokcc.replay`

    A record that has no time, or one before 1970, makes the job fail; :func:`poison_in` finds it in the error.
    """
    frame = load(spark, batch.ranges, bootstrap_servers=bootstrap_servers, options=options)
    columns = frame.columns
    late = any((lateness or {}).values())
    if timestamp is not None and not late and start is None:
        return label(frame, batch, columns=columns)  # the scan for its boundaries has checked the times
    from pyspark.sql import functions as F  # noqa: N812

    ts = event_millis(frame, timestamp)
    if late or timestamp is not None:  # computed once for all uses
        frame, ts = frame.withColumn(_TS, ts), F.col(_TS)
    inside = _sound(ts) if start is None else _sound(ts) & (ts >= start)
    return label(frame.where(inside), batch, ts if late else None, columns)


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
        digest = hashlib.sha256(json.dumps(sorted(chosen.items())).encode()).hexdigest()[:12]
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


def event_millis(frame: DataFrame, timestamp: Column | str | None) -> Column:
    """Return event time in milliseconds since the epoch.

    Raise UsageError if the expression cannot be resolved, or is of a wrong type.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F  # noqa: N812

    if timestamp is None:
        return F.unix_millis("timestamp")
    try:
        column = F.expr(timestamp) if isinstance(timestamp, str) else timestamp
        kind = frame.select(column).schema[0].dataType.simpleString()
    except (AnalysisException, ParseException) as error:
        raise UsageError(
            f"timestamp cannot be resolved over the columns {', '.join(frame.columns)}: {str(error).splitlines()[0]}"
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


def _sound(ts: Column) -> Column:
    """Return a condition that is true for a good timestamp and fails the job otherwise.

    It is a filter condition because Spark keeps that whatever columns are used afterwards.
    """
    from pyspark.sql import functions as F  # noqa: N812

    words = [F.lit(_POISON), F.coalesce(ts.cast("string"), F.lit("null")), F.lit(" at "), F.col("topic"), F.lit(" ")]
    words += [F.col("partition").cast("string"), F.lit(" "), F.col("offset").cast("string"), F.lit(";")]
    return F.when(ts >= 0, F.lit(True)).otherwise(F.raise_error(F.concat(*words)).cast("boolean"))


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
