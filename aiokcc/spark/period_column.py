"""Adds the column ``period`` to rows, as Spark expressions: by a row's offset, and under a bound on lateness also by its time.

A row's period is the first boundary ``T`` with ``offset < high(T)`` and ``ts < T``. Without a bound on lateness the second
condition follows from the first, so the offset alone decides. ``floor(ts / period)`` would be wrong, because records may stand
out of order.

For each partition there is a list of the offsets at which a period begins, ascending. A row belongs to the last of them that is
not above its offset. The search halves the list twice in each step. Each step is a projection of its own, which is a few
instructions in the code that Spark generates; one expression for all steps would double in size with each of them. The lists
are constants of the plan and are passed to the generated code as objects, so the code is the same for every batch and Spark
compiles it once. A broadcast join would give the same result with one more job.

The expressions are SQL text. Each call of the DataFrame API goes to Java and back, and each frame is analysed by itself: built
by calls, a search over a hundred periods took 75 ms of a catch-up of 800. As text, all steps of a search are columns of one
frame, each of which may use the ones before it, and Spark's analysis makes a projection of each.

Spark pushes a filter on ``period``, which it also derives for a join, below these projections, and then merges them into the
one expression that has to be avoided. So the result passes through a condition that is always true, which Spark cannot know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokcc.core.partitions import Partition
from aiokcc.spark.batch import Batch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["PERIOD", "PeriodOffsets", "label", "late_rows", "period_offsets_of"]

PERIOD: Final = "period"
"""The name of the added column. It holds the start of the row's period."""

_LOWEST: Final = -(2**63)
_NUMBER, _TS = "__aiokcc_number", "__aiokcc_ts"


class PeriodOffsets(NamedTuple):
    """The offsets at which the periods of a batch begin in one partition, ascending, and the number of each of these periods.

    Periods are numbered from 1. Number 0 stands for earlier batches, and the number after the last period for later ones.
    """

    offsets: list[int]
    numbers: list[int]


def period_offsets_of(batch: Batch) -> dict[Partition, PeriodOffsets]:
    """Return the offsets for each partition that has records in the batch. Raise ValueError if its ranges have a gap."""
    result: dict[Partition, PeriodOffsets] = {}
    reached: dict[Partition, int] = {}
    for number, period in enumerate(batch.periods, start=1):
        for partition, (low, high) in period.ranges.items():
            begins = result.get(partition)
            if begins is None:
                begin = batch.behind.get(partition, low)
                begins = result[partition] = PeriodOffsets([_LOWEST], [0])
                reached[partition] = max(begin, low)
            if low > reached[partition] or high < reached[partition]:
                raise ValueError(
                    f"the ranges of {partition} do not touch: {low} to {high} follows what ends at {reached[partition]}"
                )
            # Periods before this one may have no range: then they end at the same offset as the last one with a range.
            _add(begins, reached[partition], number)
            reached[partition] = high
    for partition, begins in result.items():
        _add(begins, reached[partition], len(batch.periods) + 1)
    return result


def _add(begins: PeriodOffsets, offset: int, number: int) -> None:
    """Add the offset at which a period begins. A period that begins at the same offset has no record, and is replaced."""
    if begins.offsets[-1] == offset:
        begins.numbers[-1] = number
    else:
        begins.offsets.append(offset)
        begins.numbers.append(number)


# -- as Spark does it --------------------------------------------------------------------------------------------------


def label(
    frame: DataFrame,
    batch: Batch,
    millis: Column | None = None,
    columns: Sequence[str] | None = None,
    *,
    on_time: bool = False,
) -> DataFrame:
    """Add the column ``period`` to a frame with Kafka's columns that holds the batch's ranges and nothing else.

    ``millis`` is the event time in milliseconds. It is given only under a bound on lateness, or with ``on_time``; then rows in
    the ranges that belong to other batches are left out. ``on_time`` also leaves out rows that are late. The result
    keeps the given ``columns`` of the frame, by default all.
    """
    columns = [_named(name) for name in columns or frame.columns]
    by_partition = period_offsets_of(batch)
    starts = [period.start for period in batch.periods]
    if millis is None:
        # All rows belong to the batch: the first and the last entry are not needed, and an entry may hold the period's start.
        inner = {p: PeriodOffsets(begins.offsets[1:-1], begins.numbers[1:-1]) for p, begins in by_partition.items()}
        steps, index = _search("offset", {p: begins.offsets for p, begins in inner.items()}, "o")
        values = {p: [starts[number - 1] for number in begins.numbers] for p, begins in inner.items()}
        found = frame.selectExpr("*", *steps) if steps else frame
        start = f"timestamp_millis(get({_of_partition(values)}, {index}))"
        return found.selectExpr(*columns, f"{_sealed(start)} AS {PERIOD}")
    found, number, later = _numbered(frame, batch, millis, by_partition)
    chosen = f"CASE WHEN {later} >= {number} THEN {later} ELSE 0 END" if on_time else f"greatest({number}, {later})"
    found = found.selectExpr("*", f"{_sealed(chosen)} AS {_NUMBER}")
    found = found.where(f"{_NUMBER} > 0 AND {_NUMBER} <= {len(starts)}")
    start = f"get({_constant(starts, 'array<bigint>')}, {_NUMBER} - 1)"
    return found.selectExpr(*columns, f"timestamp_millis({start}) AS {PERIOD}")


def late_rows(frame: DataFrame, batch: Batch, millis: Column) -> DataFrame:
    """Return the rows of the batch's ranges that are late: their time is before the period that their offset lies in.

    Each late row of a log is in one batch. The result has ``topic``, ``partition``, ``offset``, the event time as ``ts``, and
    ``number``, the period of the batch that the time lies in: from 1, and 0 before the batch.
    """
    found, number, later = _numbered(frame, batch, millis, period_offsets_of(batch))
    is_late = f"{number} > 0 AND {number} <= {len(batch.periods)} AND {later} < {number}"
    wanted = ["topic", "partition", "offset", f"{_TS} AS ts", f"{later} AS number"]
    found = found.selectExpr(*wanted, f"{_sealed(is_late)} AS __aiokcc_is_late")
    return found.where("__aiokcc_is_late").select("topic", "partition", "offset", "ts", "number")


def _numbered(
    frame: DataFrame, batch: Batch, millis: Column, by_partition: Mapping[Partition, PeriodOffsets]
) -> tuple[DataFrame, str, str]:
    """Return the frame with what a row's number needs; the period that its offset lies in, and that of its time, as SQL."""
    steps, index = _search("offset", {p: begins.offsets for p, begins in by_partition.items()}, "o")
    number = f"get({_of_partition({p: begins.numbers for p, begins in by_partition.items()})}, {index})"
    by_time = [_LOWEST, batch.start, *(period.end for period in batch.periods)]
    more, later = _search(_TS, {p: by_time for p in by_partition}, "t")  # noqa: C420 - only read
    found = frame.withColumn(_TS, millis).selectExpr("*", *steps, *more, f"{number} AS __aiokcc_by_offset")
    return found, "__aiokcc_by_offset", later


def _search(value: str, by_partition: Mapping[Partition, Sequence[int]], name: str) -> tuple[list[str], str]:
    """Return the columns to add, each after the ones before it, and the expression that has the result.

    That is the index of the last entry, in the list of the row's partition, that is not above the row's value.
    """
    longest = max(map(len, by_partition.values()))
    if longest == 1:
        return [], "0"
    entries = f"__aiokcc_{name}_starts"
    columns, at = [f"{_of_partition(by_partition)} AS {entries}"], "0"
    for bits in reversed(range(0, (longest - 1).bit_length(), 2)):
        # Two bits of the index at once: half as many projections, each of which Spark analyses by itself. Past the end of the
        # list get() gives null, and the comparison with null is not true.
        ahead = [f"{at} + {steps << bits}" for steps in (3, 2, 1)]
        choice = " ".join(f"WHEN get({entries}, {index}) <= {value} THEN {index}" for index in ahead)
        step = f"__aiokcc_{name}_{bits}"
        columns.append(f"CASE {choice} ELSE {at} END AS {step}")
        at = step
    return columns, at


def _of_partition(values: Mapping[Partition, Sequence[int]]) -> str:
    """Return the list of the row's partition. It depends on the row even for one topic, or Spark copies it into each step."""
    topics: dict[str, list[Sequence[int] | None]] = {}
    for (topic, number), mine in sorted(values.items()):
        lists = topics.setdefault(topic, [])
        lists += [None] * (number - len(lists))
        lists.append(mine)
    choices = (
        f"WHEN topic = '{topic}' THEN get({_constant(lists, 'array<array<bigint>>')}, partition)"
        for topic, lists in topics.items()
    )
    return f"CASE {' '.join(choices)} END"


def _sealed(expression: str) -> str:
    """Return the same value with a part that Spark calls nondeterministic, so that Spark moves no filter below it."""
    return f"CASE WHEN spark_partition_id() >= 0 THEN {expression} END"


def _constant(values: object, kind: str) -> str:
    """Return a constant of any size: it is JSON text, which Spark parses once, when it optimizes the plan."""
    return f"from_json('{json.dumps(values, separators=(',', ':'))}', '{kind}')"


def _named(name: str) -> str:
    return f"`{name}`"
