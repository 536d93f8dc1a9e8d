"""State from period to period: a function that gets the state before some periods, and returns the state after them.

The sink publishes the state after a batch together with the batch (:mod:`aiokcc.spark.sinks.states`). **The next batch reads
the state that was published**, also in the same driver. So a driver that goes on after another one computes what that one would
have computed, and Spark's plan does not grow from period to period.

The frame of a job is kept by Spark until both are written, because the result and the state are two jobs over the same records.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, cast

from aiokcc.errors import UsageError
from aiokcc.spark.batch import Batch
from aiokcc.spark.compute import Periods, checked_result, is_frame, type_name, with_period
from aiokcc.spark.period_column import PERIOD
from aiokcc.spark.sinks.arrow import check_types
from aiokcc.spark.sinks.port import Sink
from aiokcc.spark.sinks.states import StateSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["StateOptions", "StatefulComputation"]

KEPT: Final = 24
"""The default number of states that are kept."""
_LEAST_KEPT: Final = 2


@dataclass(frozen=True, slots=True)
class StateOptions:
    """The checked arguments of ``for_each_period`` that concern the state."""

    initial: DataFrame
    chain: int
    keep: int

    @classmethod
    def check(
        cls, spark: SparkSession, function: object, sink: object, state: object, chain: object, keep_states: object
    ) -> StateOptions | None:
        """Return the options; None without ``state``. Raise UsageError if one is wrong, or the sink cannot hold a state."""
        if state is None:
            for name, value in (("chain", chain), ("keep_states", keep_states)):
                if value is not None:
                    raise UsageError(f"{name} is given without state=; give the state before the first period, too")
            return None
        if not isinstance(sink, StateSink):
            what = "no sink" if sink is None else sink.describe() if isinstance(sink, Sink) else "a function"
            raise UsageError(
                f"state= needs a sink that publishes the state with the period, a ParquetSink or a DeltaSink, and this is "
                f"{what}"
            )
        sink.check_state()
        _check_signature(function)
        initial = _initial(spark, state)
        _check_columns(initial.schema)
        return cls(
            initial,
            _count("chain", 1 if chain is None else chain, 1),
            _count("keep_states", KEPT if keep_states is None else keep_states, _LEAST_KEPT),
        )

    @property
    def columns(self) -> str:
        """The columns of the state with their types, as they are recorded for the pipeline."""
        return _columns(self.initial.schema)


class StatefulComputation:
    """Applies the user's function to batches, each with the state after the one before."""

    is_decided: Final = True
    """Nothing is to be decided from the function's plan: it gets the periods that it can take."""

    def __init__(self, function: Callable[..., Any], read: Callable[[Batch], DataFrame], options: StateOptions) -> None:
        self._function = function
        self._read = read
        self._options = options
        self.one_by_one = options.chain == 1
        """True if a frame holds one period."""

    def prepare(self, batch: Batch) -> None:
        """Do nothing."""

    def stage(self, sink: Sink, batch: Batch) -> object:
        """Compute a batch and the state after it, and let the sink write both where no reader looks.

        Raise UsageError before anything is written if the function does not return a pair of frames with the right columns.
        """
        target = cast("StateSink", sink)
        initial = self._options.initial
        state = target.state_before(initial.sparkSession, batch)
        if state is None:
            state = initial
        full = [n for n, period in enumerate(batch.periods) if period.ranges]
        results: list[DataFrame] = []
        held: list[DataFrame] = []
        try:
            # A batch that was recorded may have more periods than the function takes now.
            for first in range(0, len(full), self._options.chain):
                mine = full[first : first + self._options.chain]
                part = batch.part(mine[0], mine[-1] - mine[0] + 1)
                if results:
                    state = state.localCheckpoint()
                frame = self._read(part).persist()
                held.append(frame)
                result, state = self._call(frame, part, state)
                results.append(result)
            together = reduce(lambda a, b: a.unionByName(b), results)
            return target.stage_with_state(together, state, batch, self._options.keep)
        finally:
            for frame in held:
                frame.unpersist()

    def _call(self, frame: DataFrame, part: Batch, state: DataFrame) -> tuple[DataFrame, DataFrame]:
        returned: Any = self._function(frame, Periods.of(part), state)
        if not isinstance(returned, tuple) or len(returned) != 2:
            what = f"{len(returned)} values" if isinstance(returned, tuple) else type_name(returned)
            raise UsageError(
                f"the function returned {what}; with state= it returns a pair of DataFrames, the result and the state after "
                f"these periods: return result, state"
            )
        result = checked_result(returned[0])
        if self.one_by_one:
            result = with_period(result, part.start)
        elif PERIOD not in result.columns:
            raise UsageError(
                f"the function's result has no column {PERIOD!r}, and with chain={self._options.chain} a frame holds several "
                f"periods; keep it, or leave chain out"
            )
        return result, self._checked_state(returned[1])

    def _checked_state(self, state: Any) -> DataFrame:
        """Return the state with its columns in the declared order. Raise UsageError if they are not the declared ones."""
        if not is_frame(state):
            raise UsageError(
                f"the function returned {type_name(state)} as the state; expected a Spark DataFrame with the columns "
                f"{self._options.columns}"
            )
        declared = self._options.initial.schema
        if sorted(_fields(state.schema)) != sorted(_fields(declared)):
            raise UsageError(
                f"the function returned a state with the columns {_columns(state.schema)}, and state= has "
                f"{_columns(declared)}; select and cast them, so that each period gets the same columns"
            )
        return cast("DataFrame", state.select(*(f"`{name}`" for name in declared.names)))


def _initial(spark: SparkSession, state: object) -> DataFrame:
    from pyspark.sql.types import StructType

    if is_frame(state):
        return cast("DataFrame", state)
    if isinstance(state, str | StructType):
        from pyspark.errors import ParseException

        try:
            return spark.createDataFrame([], state)
        except ParseException as error:
            raise UsageError(
                f'state {state!r} names no columns; expected a text such as "customer string, total bigint"'
            ) from error
    raise UsageError(
        f"state is {type_name(state)}; expected a Spark DataFrame, or the columns of an empty one, such as "
        f'"customer string, total bigint"'
    )


def _check_columns(schema: StructType) -> None:
    names = [name.lower() for name in schema.names]
    if not names:
        raise UsageError('state has no columns; expected some, such as "customer string, total bigint"')
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"state has two columns {twice!r}; rename one (Spark does not tell upper from lower case)")
    check_types(schema, "the state")


def _check_signature(function: object) -> None:
    if not callable(function):
        return  # refused later, as without a state
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables written in C have none
        return
    try:
        signature.bind(None, None, None)
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        raise UsageError(
            f"with state= the function is called as function(frame, periods, state), and {name}{signature} does not take that"
        ) from None


def _count(name: str, value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        why = "; a job that is repeated starts from the state before the last" if least > 1 else ""
        raise UsageError(f"{name} is {value!r}; expected a whole number from {least}{why}")
    return value


def _fields(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


def _columns(schema: StructType) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in _fields(schema))
