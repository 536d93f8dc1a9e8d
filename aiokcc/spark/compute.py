"""Applies the user's function, and decides whether one job for many periods gives the same result as one job for each.

In catch-up a frame holds several periods, which the column ``period`` distinguishes. A function that keeps this column in every
``groupBy``, join and window gives each period the same rows as if it were computed alone. The analysed plan of the result shows
whether it does (:mod:`aiokcc.spark.separation`); no job runs for that. If an operator mixes periods, the function is
refused. If the plan does not show it, each period is computed alone, and later jobs hold one period. That is so

* if the result has no column ``period``;
* if Python code gets many rows at once, as with ``mapInPandas`` or a scalar UDF in pandas;
* if the function runs a job itself, such as ``count()``, or looks at its second argument: what it learns there may go into the
  plan as a constant;
* in a session of Spark Connect, whose client does not have the analysed plan.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, cast

from aiokcc.core.periods import format_time
from aiokcc.errors import UsageError
from aiokcc.spark.analysed_plan import analysed_plan
from aiokcc.spark.batch import Batch
from aiokcc.spark.function_jobs import FunctionJobs
from aiokcc.spark.period_column import PERIOD
from aiokcc.spark.period_rows import MixesPeriods, NotShownByPlan
from aiokcc.spark.separation import RECORDS, check_separation
from aiokcc.spark.spark_thread import is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from aiokcc.spark.sinks import Sink

__all__ = ["Computation", "Periods", "WatchedPeriods", "checked_result", "is_frame", "type_name", "with_period"]

log = logging.getLogger("aiokcc.spark")


@dataclass(frozen=True)
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


_LOOKED_AT: Final = ("start", "end", "boundaries", "number", "__dict__", "__reduce_ex__", "__reduce__", "__getstate__")
"""The names that tell the content: the fields, and what copies them all, as Spark does for a UDF on the workers."""


class WatchedPeriods(Periods):
    """Notes whether the function has looked at it, or has passed it to a UDF."""

    was_read = False

    def __getattribute__(self, name: str) -> Any:
        if name in _LOOKED_AT:
            object.__setattr__(self, "was_read", True)
        return object.__getattribute__(self, name)


class Computation:
    """Applies the user's function to batches."""

    def __init__(
        self,
        function: Callable[[DataFrame, Periods], DataFrame],
        read: Callable[[Batch], DataFrame],
        *,
        keeps_periods: bool,
        one_by_one: bool,
    ) -> None:
        self._function = function
        self._read = read
        self._keeps_periods = keeps_periods
        """True if the user vouches for the function: then nothing is decided from its plan."""
        self.one_by_one = one_by_one
        """True if each period is computed alone: the user chose it, or the plan does not show that periods are kept apart."""
        self._prepared: tuple[Batch, DataFrame] | None = None
        self.is_decided = one_by_one
        """True if it was decided how the periods of a batch are computed."""

    def prepare(self, batch: Batch) -> None:
        """Decide before the first batch is recorded how the periods are computed. Later calls do nothing.

        Raise UsageError if the function mixes periods, or returns no DataFrame. No job runs.
        """
        if self.is_decided or batch.is_empty:
            return
        result = self._together(batch)
        if result is not None:
            self._prepared = batch, result
        self.is_decided = True

    def stage(self, sink: Sink, batch: Batch) -> object:
        """Compute a batch and let the sink write it where no reader looks; return what the sink needs to publish it."""
        return sink.stage(self.result(batch), batch)

    def result(self, batch: Batch) -> DataFrame:
        """Return the function's result for a batch, with the column ``period``. Raise UsageError if the function is refused."""
        prepared, self._prepared = self._prepared, None
        if not self.one_by_one:
            result = prepared[1] if prepared is not None and prepared[0] == batch else self._together(batch)
            if result is not None:
                return result
        return reduce(lambda a, b: a.unionByName(b), [self._alone(batch.part(n)) for n in batch.full])

    def _together(self, batch: Batch) -> DataFrame | None:
        """Return the result for all periods of a batch at once; None if each is to be computed alone, from now on."""
        frame = self._read(batch)
        if self._keeps_periods:
            result = self._call(frame, Periods.of(batch))
            reason = self._missing(result)
        else:
            result, reason = self._judged(frame, batch)
        if reason is None:
            return result
        self.one_by_one = True
        log.warning(
            "%s: each job holds one period, because %s. Several periods at once are many times faster: keep %r in every "
            "groupBy, distinct, join and window%s",
            batch.pipeline,
            reason,
            PERIOD,
            "" if self._keeps_periods else "; or give keeps_periods=True if the function keeps periods apart",
        )
        return None

    def _judged(self, frame: DataFrame, batch: Batch) -> tuple[DataFrame, str | None]:
        """Return the result, and why its periods have to be computed one by one, if so. Raise UsageError if it mixes them."""
        periods = WatchedPeriods.of(batch)
        assert isinstance(periods, WatchedPeriods)
        spark = frame.sparkSession
        if is_remote(spark):
            result = self._call(frame, periods)
            return result, self._missing(result) or "Spark Connect does not show the analysed plan to its client"
        jobs = FunctionJobs(spark)
        result = self._call(frame.alias(RECORDS), periods)
        if reason := self._missing(result):
            return result, reason
        try:
            check_separation(analysed_plan(result))
        except MixesPeriods as mixes:
            raise UsageError(
                f"the function mixes periods: {mixes}. Keep the column {PERIOD!r} in every groupBy, distinct, join and window; "
                f"or give max_periods=1 to have one period in each frame; or keeps_periods=True if you know that each period "
                f"gets the same rows as alone"
            ) from None
        except NotShownByPlan as unknown:
            return result, str(unknown)
        if periods.was_read:
            return result, "the function looks at its second argument, whose value depends on the job"
        if jobs.were_run():
            return (
                result,
                "the function runs jobs of its own, such as count() or collect(), whose results the plan does not show",
            )
        return result, None

    @staticmethod
    def _missing(result: DataFrame) -> str | None:
        return None if PERIOD in result.columns else f"the function's result has no column {PERIOD!r}"

    def _call(self, frame: DataFrame, periods: Periods) -> DataFrame:
        return checked_result(self._function(frame, periods))

    def _alone(self, batch: Batch) -> DataFrame:
        return with_period(self._call(self._read(batch), Periods.of(batch)), batch.start)


def is_frame(value: object) -> bool:
    """Return whether a value is a DataFrame, of a classic session or of Spark Connect."""
    # A Column has every attribute that it is asked for.
    return (
        isinstance(getattr(value, "columns", None), list)
        and hasattr(value, "schema")
        and hasattr(value, "sparkSession")
    )


def type_name(value: object) -> str:
    """Return the words for the type of what a function returned. The value itself may be large, or secret."""
    made = type(value)
    return "None" if value is None else f"a {made.__module__}.{made.__qualname__}"


def checked_result(result: Any) -> DataFrame:
    """Return what the function returned. Raise UsageError if it is no DataFrame, or its ``period`` is no timestamp."""
    if not is_frame(result):
        raise UsageError(
            f"the function returned {type_name(result)}; expected a Spark DataFrame made from the one it was given"
        )
    if PERIOD in result.columns and (kind := dict(result.dtypes)[PERIOD]) != "timestamp":
        raise UsageError(
            f"the column {PERIOD!r} of the function's result is of type {kind}; keep it as it was, the timestamp of the "
            f"period's start, and give what you computed another name"
        )
    return cast("DataFrame", result)


def with_period(frame: DataFrame, start: int) -> DataFrame:
    """Return the frame with this start of a period in each row."""
    from pyspark.sql import functions as F  # noqa: N812

    return frame.withColumn(PERIOD, F.timestamp_millis(F.lit(start)))
