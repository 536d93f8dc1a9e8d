"""Late records of a pipeline with ``late="restate"``: finds them in a batch, and reads them when their periods are restated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Final

from aiokcc.core.partitions import Partition
from aiokcc.spark.batch import Batch, LateRecords
from aiokcc.spark.period_column import PERIOD, late_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

__all__ = ["collect_late", "read_in_layers", "read_included"]

_NEAR: Final = 10_000
"""Ranges that are closer than so many offsets are read as one: a further read costs more than these records."""
_SPAN: Final = (
    "l_topic string, l_partition int, l_first bigint, l_last bigint, l_from bigint, l_to bigint, l_period bigint"
)


def collect_late(frame: DataFrame, batch: Batch, millis: Column, period: int) -> tuple[LateRecords, ...]:
    """Run a job that finds the late records in a frame of the batch's ranges. Return them by period and partition."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = late_rows(frame, batch, millis)
    cell = (F.col("ts") - F.pmod(F.col("ts"), F.lit(period))).alias("cell")
    found = rows.groupBy(cell, "number", "topic", "partition").agg(
        F.min("offset").alias("first"), (F.max("offset") + 1).alias("last"), F.count("*").alias("records")
    )
    # A period of the batch may end inside a cell, at a limit of the group. Then records of the rest of the cell are not late.
    bounds = [0, batch.start, *(one.end for one in batch.periods)]
    return tuple(
        LateRecords(
            max(start, bounds[by_time]),
            min(start + period, bounds[by_time + 1]),
            Partition(topic, number),
            first,
            last,
            records,
        )
        for start, by_time, topic, number, first, last, records in sorted(tuple(row) for row in found.collect())
    )


def read_included(frame: DataFrame, batch: Batch, millis: Column) -> DataFrame:
    """Return those rows of a frame that are the late records which the batch includes, with the column ``period``."""
    from pyspark.sql import functions as F  # noqa: N812

    spans = [
        (
            *late.partition,
            late.first,
            late.last,
            max(late.start, period.start),
            min(late.end, period.end),
            period.start,
        )
        for late in batch.included
        for period in batch.periods
        if late.start < period.end and period.start < late.end
    ]
    columns = frame.columns
    wanted = F.broadcast(frame.sparkSession.createDataFrame(spans, _SPAN))
    ts = F.col("__aiokcc_late_ts")
    joined = frame.withColumn("__aiokcc_late_ts", millis).join(
        wanted,
        (F.col("topic") == F.col("l_topic"))
        & (F.col("partition") == F.col("l_partition"))
        & (F.col("offset") >= F.col("l_first"))
        & (F.col("offset") < F.col("l_last"))
        & (ts >= F.col("l_from"))
        & (ts < F.col("l_to")),
    )
    return joined.select(*(f"`{name}`" for name in columns), F.timestamp_millis("l_period").alias(PERIOD))


def read_in_layers(
    included: Iterable[LateRecords], load: Callable[[Mapping[Partition, tuple[int, int]]], DataFrame]
) -> DataFrame:
    """Return the offsets in which these records are. One read has one range of a partition, so there may be several."""
    spans: dict[Partition, list[tuple[int, int]]] = {}
    for late in sorted(included, key=lambda late: (late.partition, late.first)):
        mine = spans.setdefault(late.partition, [])
        if mine and late.first - mine[-1][1] < _NEAR:
            mine[-1] = (mine[-1][0], max(mine[-1][1], late.last))
        else:
            mine.append((late.first, late.last))
    layers = [
        load({partition: mine[n] for partition, mine in spans.items() if n < len(mine)})
        for n in range(max(map(len, spans.values())))
    ]
    return reduce(lambda a, b: a.unionByName(b), layers)
