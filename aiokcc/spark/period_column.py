"""Which period a row belongs to, as Spark expressions: by its offset, and under a bound on lateness also by its time.

A row's period is the first boundary ``T`` with ``offset < high(T)`` and ``ts < T``. Without a bound on lateness the second
follows from the first, and an offset alone tells; ``floor(ts / period)`` would not, since records may stand out of order.

For each partition there is a *ladder*: the offsets at which another period begins, ascending. The row's rung is the last one
not above it, found by quartering. Each step is a projection of its own, a few instructions in the code that Spark generates;
written as one expression it would double in size with each. The ladders are constants of the plan, passed to that code as
objects: so the code is the same for every batch, and Spark compiles it once. A broadcast join does the same with a job more.

Spark moves a filter on ``period``, which it also invents for a join, below these projections, and writes them out as the one
expression that they must not be. So the result passes through something of which Spark does not know that it is always true.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokcc.core.partitions import Partition
from aiokcc.spark.batch import Batch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["PERIOD", "PeriodOffsets", "label", "period_of", "period_offsets_of"]

PERIOD: Final = "period"
"""The column that is added: where the row's period starts."""

_LOWEST: Final = -(2**63)
_RUNGS, _AT, _NUMBER, _TS = "__aiokcc_rungs", "__aiokcc_at", "__aiokcc_number", "__aiokcc_ts"


class PeriodOffsets(NamedTuple):
    """Where the periods of a batch begin in one partition: from each offset on, ascending, the period of this number.

    Periods are numbered from 1; 0 is what belongs to earlier batches, and what is past the last belongs to later ones.
    """

    offsets: list[int]
    numbers: list[int]


def period_offsets_of(batch: Batch) -> dict[Partition, PeriodOffsets]:
    """By partition, for those that have records in the batch. ValueError if the ranges leave something out in between."""
    result: dict[Partition, PeriodOffsets] = {}
    reached: dict[Partition, int] = {}
    for number, period in enumerate(batch.periods, start=1):
        for partition, (low, high) in period.ranges.items():
            ladder = result.get(partition)
            if ladder is None:
                begin = batch.behind.get(partition, low)
                ladder = result[partition] = PeriodOffsets([_LOWEST], [0])
                reached[partition] = max(begin, low)
            if low > reached[partition] or high < reached[partition]:
                raise ValueError(
                    f"the ranges of {partition} do not touch: {low} to {high} follows what ends at {reached[partition]}"
                )
            # Periods before this one may have had no range at all: then their ends lie where the last one's does.
            _add(ladder, reached[partition], number)
            reached[partition] = high
    for partition, ladder in result.items():
        _add(ladder, reached[partition], len(batch.periods) + 1)
    return result


def _add(ladder: PeriodOffsets, offset: int, number: int) -> None:
    """From this offset on it is a later period; where two begin at the same offset, the first has no record by offset."""
    if ladder.offsets[-1] == offset:
        ladder.numbers[-1] = number
    else:
        ladder.offsets.append(offset)
        ladder.numbers.append(number)


def period_of(batch: Batch, partition: Partition, offset: int, ts: int | None = None) -> int | None:
    """The start of the period that a record belongs to; None if it belongs to none of the batch's. ``ts`` under lateness only.

    What :func:`label` does, for one record and without Spark.
    """
    ladder = period_offsets_of(batch)[partition]
    number = ladder.numbers[bisect.bisect_right(ladder.offsets, offset) - 1]
    if ts is not None:
        number = max(number, bisect.bisect_right(_boundaries(batch), ts))
    return batch.periods[number - 1].start if 0 < number <= len(batch.periods) else None


def _boundaries(batch: Batch) -> list[int]:
    return [batch.start, *(period.end for period in batch.periods)]


# -- as Spark does it --------------------------------------------------------------------------------------------------


def label(
    frame: DataFrame, batch: Batch, millis: Column | None = None, columns: Sequence[str] | None = None
) -> DataFrame:
    """Add the column ``period`` to a frame with Kafka's columns that holds the batch's ranges and nothing else.

    ``millis`` is given under a bound on lateness: the event time in milliseconds. Then rows of the ranges that belong to other
    batches are left out. Of the frame's own columns these are kept, or all.
    """
    from pyspark.sql import functions as F  # noqa: N812

    columns = columns or frame.columns
    ladders = period_offsets_of(batch)
    starts = [period.start for period in batch.periods]
    if millis is None:
        # All rows are ours, so the rungs before and behind are needless, and a rung may say the start instead of a number.
        inner = {p: PeriodOffsets(ladder.offsets[1:-1], ladder.numbers[1:-1]) for p, ladder in ladders.items()}
        found = _climb(frame, F.col("offset"), {p: ladder.offsets for p, ladder in inner.items()})
        by_rung = {p: [starts[number - 1] for number in ladder.numbers] for p, ladder in inner.items()}
        return found.select(*map(_named, columns), _sealed(F.timestamp_millis(_of_rung(by_rung))).alias(PERIOD))
    found = _climb(frame.withColumn(_TS, millis), F.col("offset"), {p: la.offsets for p, la in ladders.items()})
    found = found.withColumn(_NUMBER, _of_rung({p: ladder.numbers for p, ladder in ladders.items()}))
    by_time = [_LOWEST, *_boundaries(batch)]
    found = _climb(found, F.col(_TS), {p: by_time for p in ladders})  # noqa: C420 - only read
    found = found.withColumn(_NUMBER, _sealed(F.greatest(_NUMBER, _AT)))
    found = found.where((F.col(_NUMBER) > 0) & (F.col(_NUMBER) <= len(starts)))
    start = F.get(_constant(starts, "array<bigint>"), F.col(_NUMBER) - 1)
    return found.select(*map(_named, columns), F.timestamp_millis(start).alias(PERIOD))


def _climb(frame: DataFrame, value: Column, ladders: Mapping[Partition, Sequence[int]]) -> DataFrame:
    """Add the index of the row's rung, the last one not above its value."""
    from pyspark.sql import functions as F  # noqa: N812

    longest = max(map(len, ladders.values()))
    if longest == 1:
        return frame.withColumn(_AT, F.lit(0))
    found = frame.withColumn(_RUNGS, _of_partition(ladders, "array<array<bigint>>"))
    at = F.lit(0)
    for bits in reversed(range(0, (longest - 1).bit_length(), 2)):
        # Two bits of the index at once: half as many projections, each of which Spark analyses by itself. Past the end of the
        # ladder there is nothing, which is not at most anything.
        ahead = [at + F.lit(steps << bits) for steps in (3, 2, 1)]
        choice = F.when(F.get(_RUNGS, ahead[0]) <= value, ahead[0])
        for rung in ahead[1:]:
            choice = choice.when(F.get(_RUNGS, rung) <= value, rung)
        found = found.withColumn(_AT, choice.otherwise(at))
        at = F.col(_AT)
    return found


def _of_rung(values: Mapping[Partition, Sequence[int]]) -> Column:
    """What stands at the row's rung."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.get(_of_partition(values, "array<array<bigint>>"), F.col(_AT))


def _of_partition(values: Mapping[Partition, Sequence[int]], kind: str) -> Column:
    """The list of the row's partition. It depends on the row even for one topic: Spark must not copy it into every step."""
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
    """The same, through which no filter is moved: it has a part that is not deterministic, as Spark calls it."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.when(F.spark_partition_id() >= 0, column)


def _constant(values: object, kind: str) -> Column:
    """A constant of any size in one call: as text, which Spark reads once, when it optimizes the plan."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.from_json(F.lit(json.dumps(values, separators=(",", ":"))), kind)


def _named(name: str) -> str:
    return f"`{name}`"
