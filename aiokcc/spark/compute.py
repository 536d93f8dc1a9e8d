"""Applies the user's function, and checks that one job for many periods gives the same result as one job for each.

In catch-up a frame holds several periods, which the column ``period`` distinguishes. A function that keeps this column in every
``groupBy``, join and window gives each period the same rows as if it were computed alone. Two checks guard this rule. If the
result has no such column, each period is computed alone, and later jobs hold one period. And before the first job with several
periods is published, one of them is computed alone and compared.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from aiokcc.core.periods import format_time
from aiokcc.errors import UsageError
from aiokcc.spark.batch import Batch, Slice
from aiokcc.spark.period_column import PERIOD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Computation", "Periods"]

log = logging.getLogger("aiokcc.spark")

_FEW: Final = 100_000
"""The check runs in one task up to this number of records."""


@dataclass(frozen=True, slots=True)
class Periods:
    """The periods of one job: neighbours in event time, milliseconds since the epoch."""

    start: int
    end: int
    boundaries: tuple[int, ...]
    """The end of each period, ascending; the last is ``end``."""
    number: int
    """The number of the batch. The same number always has the same periods and records."""

    @classmethod
    def of(cls, batch: Batch) -> Periods:
        """Return the periods of a batch."""
        return cls(batch.start, batch.end, tuple(period.end for period in batch.periods), batch.number)

    def __str__(self) -> str:
        return f"{format_time(self.start)} to {format_time(self.end)}"


class Computation:
    """Applies the user's function to batches."""

    def __init__(
        self,
        function: Callable[[DataFrame, Periods], DataFrame],
        read: Callable[[Batch], DataFrame],
        *,
        check: bool,
        one_by_one: bool,
    ) -> None:
        self._function = function
        self._read = read
        self._unchecked = check
        self.one_by_one = one_by_one
        """True if each period is computed alone: by the user's choice, or because the result has no column ``period``."""

    def result(self, batch: Batch) -> DataFrame:
        """Return the function's result for a batch, with the column ``period``. Raise UsageError if it is no DataFrame."""
        if not self.one_by_one:
            result = self._apply(batch)
            if PERIOD in result.columns:
                return result
            self.one_by_one = True
            log.warning(
                "%s: the function's result has no column %r, so each job holds one period. Keep it in every groupBy, "
                "join and window to have several periods computed at once, which is many times faster",
                batch.pipeline,
                PERIOD,
            )
        full = [n for n, period in enumerate(batch.periods) if period.ranges]
        return reduce(lambda a, b: a.unionByName(b), [self._alone(batch.part(n)) for n in full])

    def verify(self, batch: Batch) -> None:
        """Before the first job with several periods, raise UsageError if the function mixes them. Later calls do nothing."""
        full = [n for n, period in enumerate(batch.periods) if period.ranges]
        if not self._unchecked or self.one_by_one or len(full) < 2:
            return
        self._unchecked = False
        first, second = min(itertools.pairwise(full), key=lambda pair: sum(_size(batch.periods[n]) for n in pair))
        pair, period = batch.part(first, second - first + 1), batch.periods[first]
        start = _instant(period.start)
        frame = self._read(pair).persist()  # read from Kafka once for both
        try:
            together = self._call(frame, pair)
            if PERIOD not in together.columns:
                return  # result() handles that
            alone = frame.where(frame[PERIOD] == start)
            few = sum(_size(batch.periods[n]) for n in (first, second)) <= _FEW
            both, one = _digests(
                together.where(together[PERIOD] == start), self._call(alone, batch.part(first)), few=few
            )
            if both == one:
                return
            if _digests(self._call(alone, batch.part(first)), few=few) != [one]:
                log.warning(
                    "%s: the function gives another result each time, so it cannot be checked whether it mixes periods",
                    batch.pipeline,
                )
                return
        finally:
            frame.unpersist()
        raise UsageError(
            f"the function mixes periods: for {format_time(period.start)} to {format_time(period.end)} it gives other rows "
            f"when the next period is in the same frame. Keep the column 'period' in every groupBy, join and window; or "
            f"give max_periods=1 to have one period in each frame; or check=False if the difference is meant"
        )

    def _apply(self, batch: Batch) -> DataFrame:
        return self._call(self._read(batch), batch)

    def _call(self, frame: DataFrame, batch: Batch) -> DataFrame:
        result: Any = self._function(frame, Periods.of(batch))
        if not hasattr(result, "columns") or not hasattr(result, "schema"):
            raise UsageError(f"the function returned {result!r}; expected a DataFrame made from the one it was given")
        return result

    def _alone(self, batch: Batch) -> DataFrame:
        return self._apply(batch).withColumn(PERIOD, _instant(batch.start))


def _size(period: Slice) -> int:
    return sum(end - start for start, end in period.ranges.values())


def _instant(millis: int) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    return F.timestamp_millis(F.lit(millis))


def _digests(*frames: DataFrame, few: bool) -> list[tuple[Any, ...]]:
    """Return a digest of each frame, computed in one job; equal rows in any order give equal digests.

    Sums of floats depend on the order of addition, so floats count with nine digits. ``few`` rows are summed in one task,
    because a shuffle would cost more.
    """
    from pyspark.sql import functions as F  # noqa: N812

    hashes = reduce(
        lambda a, b: a.unionAll(b),
        [frame.select(F.lit(n).alias("n"), _hash(frame).alias("h")) for n, frame in enumerate(frames)],
    )
    if few:
        hashes = hashes.coalesce(1)
    # The upper half of each, so that no sum is too large.
    sums = hashes.groupBy("n").agg(F.count("h"), F.bit_xor("h"), F.sum(F.shiftright("h", 32)))
    found = {row[0]: tuple(row)[1:] for row in sums.collect()}
    return [found.get(n, ()) for n in range(len(frames))]


def _hash(frame: DataFrame) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    columns = [
        F.format_string("%.8e", F.col(f"`{name}`").cast("double"))
        if kind in ("float", "double")
        else F.col(f"`{name}`")
        for name, kind in frame.dtypes
    ]
    if all(kind.isidentifier() or kind.startswith("decimal(") for _, kind in frame.dtypes):  # nothing nested
        return F.xxhash64(*columns)
    return F.xxhash64(F.to_json(F.struct(*(column.alias(f"c{n}") for n, column in enumerate(columns)))))
