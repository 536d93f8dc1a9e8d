"""A user's function as a sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from aiokcc.errors import UsageError
from aiokcc.spark.batch import Batch
from aiokcc.spark.sinks.port import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FunctionSink"]


class FunctionSink(Sink):
    """Calls ``function(frame, batch)`` for each batch that holds records; its result is visible at once.

    At least once: if a driver dies before it has recorded the batch, the next one calls the function again with **the same**
    periods and rows, and a driver that was only suspended may call it while its successor does. So the function must be
    idempotent by period: it replaces what it wrote for ``batch.periods`` before, or writes under a key made of the period. It
    is called in a thread.
    """

    exactly_once: ClassVar[bool] = False

    def __init__(self, function: Callable[[DataFrame, Batch], Any]) -> None:
        if not callable(function):
            raise UsageError(
                f"sink is {function!r}; expected a sink such as aiokcc.spark.ParquetSink, or a function of a frame and a batch"
            )
        self._function = function

    def describe(self) -> str:
        return "a function"

    def begin(self, pipeline: str, attempt: int) -> None:
        """Do nothing: a function has no place that could hold the attempt number."""

    def is_published(self, batch: Batch) -> bool:
        return False

    def stage(self, frame: DataFrame, batch: Batch) -> object:
        self._function(frame, batch)
        return True

    def publish(self, batch: Batch, staged: object | None) -> None:
        """Do nothing: the function was called when the batch was staged."""

    def reset(self, pipeline: str, attempt: int) -> None:
        """Do nothing: the function replaces what it wrote, period by period."""
