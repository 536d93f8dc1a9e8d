"""Adds the column ``period`` to rows, as Spark expressions: by a row's offset, and under a bound on lateness also by its time.

A row's period is the first boundary ``T`` with ``offset < high(T)`` and ``ts < T``. Without a bound on lateness the second
condition follows from the first, so the offset alone decides. ``floor(ts / period)`` would be wrong, because records may stand
out of order.

For each partition there is a list of the offsets at which a period begins, ascending. A row belongs to the last of them that is
not above its offset. The search halves the list twice in each step. Each step is a projection of its own, which is a few
instructions in the code that Spark generates; one expression for all steps would double in size with each of them. The lists
are constants of the plan and are passed to the generated code as objects, so the code is the same for every batch and Spark
compiles it once. A broadcast join would give the same result with one more job.

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

__all__ = ["PERIOD", "PeriodOffsets", "label", "period_offsets_of"]

PERIOD: Final = "period"
"""The name of the added column. It holds the start of the row's period."""

_LOWEST: Final = -(2**63)
_STARTS, _INDEX, _NUMBER, _TS = "__aiokcc_starts", "__aiokcc_index", "__aiokcc_number", "__aiokcc_ts"


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
    frame: DataFrame, batch: Batch, millis: Column | None = None, columns: Sequence[str] | None = None
) -> DataFrame:
    """Add the column ``period`` to a frame with Kafka's columns that holds the batch's ranges and nothing else.

    ``millis`` is the event time in milliseconds. It is given only under a bound on lateness; then rows in the ranges that
    belong to other batches are left out. The result keeps the given ``columns`` of the frame, by default all.
    """
    from pyspark.sql import functions as F  # noqa: N812

    columns = columns or frame.columns
    by_partition = period_offsets_of(batch)
    starts = [period.start for period in batch.periods]
    if millis is None:
        # All rows belong to the batch: the first and the last entry are not needed, and an entry may hold the period's start.
        inner = {p: PeriodOffsets(begins.offsets[1:-1], begins.numbers[1:-1]) for p, begins in by_partition.items()}
        found = _search(frame, F.col("offset"), {p: begins.offsets for p, begins in inner.items()})
        values = {p: [starts[number - 1] for number in begins.numbers] for p, begins in inner.items()}
        return found.select(*map(_named, columns), _sealed(F.timestamp_millis(_at_index(values))).alias(PERIOD))
    found = _search(
        frame.withColumn(_TS, millis), F.col("offset"), {p: begins.offsets for p, begins in by_partition.items()}
    )
    found = found.withColumn(_NUMBER, _at_index({p: begins.numbers for p, begins in by_partition.items()}))
    by_time = [_LOWEST, batch.start, *(period.end for period in batch.periods)]
    found = _search(found, F.col(_TS), {p: by_time for p in by_partition})  # noqa: C420 - only read
    found = found.withColumn(_NUMBER, _sealed(F.greatest(_NUMBER, _INDEX)))
    found = found.where((F.col(_NUMBER) > 0) & (F.col(_NUMBER) <= len(starts)))
    start = F.get(_constant(starts, "array<bigint>"), F.col(_NUMBER) - 1)
    return found.select(*map(_named, columns), F.timestamp_millis(start).alias(PERIOD))


def _search(frame: DataFrame, value: Column, by_partition: Mapping[Partition, Sequence[int]]) -> DataFrame:
    """Add a column: the index of the last entry, in the list of the row's partition, that is not above the row's value."""
    from pyspark.sql import functions as F  # noqa: N812

    longest = max(map(len, by_partition.values()))
    if longest == 1:
        return frame.withColumn(_INDEX, F.lit(0))
    found = frame.withColumn(_STARTS, _of_partition(by_partition, "array<array<bigint>>"))
    at = F.lit(0)
    for bits in reversed(range(0, (longest - 1).bit_length(), 2)):
        # Two bits of the index at once: half as many projections, each of which Spark analyses by itself. Past the end of the
        # list F.get gives null, and the comparison with null is not true.
        ahead = [at + F.lit(steps << bits) for steps in (3, 2, 1)]
        choice = F.when(F.get(_STARTS, ahead[0]) <= value, ahead[0])
        for index in ahead[1:]:
            choice = choice.when(F.get(_STARTS, index) <= value, index)
        found = found.withColumn(_INDEX, choice.otherwise(at))
        at = F.col(_INDEX)
    return found


def _at_index(values: Mapping[Partition, Sequence[int]]) -> Column:
    """Return the value at the row's index, from the list of the row's partition."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.get(_of_partition(values, "array<array<bigint>>"), F.col(_INDEX))


def _of_partition(values: Mapping[Partition, Sequence[int]], kind: str) -> Column:
    """Return the list of the row's partition. It depends on the row even for one topic, or Spark copies it into each step."""
    from pyspark.sql import functions as F  # noqa: N812

    topics: dict[str, list[Sequence[int] | None]] = {}
    for (topic, number), mine in sorted(values.items()):
        lists = topics.setdefault(topic, [])
        lists += [None] * (number - len(lists))
        lists.append(mine)
    choice = None
    for topic, lists in topics.items():
        found = F.get(_constant(lists, kind), F.col("partition"))
        is_it = F.col("topic") == F.lit(topic)
        choice = F.when(is_it, found) if choice is None else choice.when(is_it, found)
    assert choice is not None
    return choice


def _sealed(column: Column) -> Column:
    """Return the same column with a part that Spark calls nondeterministic, so that Spark moves no filter below it."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.when(F.spark_partition_id() >= 0, column)


def _constant(values: object, kind: str) -> Column:
    """Return a constant of any size, made in one call: it is JSON text, which Spark parses once, when it optimizes the plan."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.from_json(F.lit(json.dumps(values, separators=(",", ":"))), kind)


def _named(name: str) -> str:
    return f"`{name}`"
