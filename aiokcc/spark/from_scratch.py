"""Checks before a pipeline starts from scratch: what is published is only thrown away for a start that is not refused later.

The sink says whether it can be emptied. If its table keeps its columns, the result's columns are compared as well: the function
is called with a frame that has no rows. If it fails on such a frame, its columns are compared by the first job, when the table
is empty.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiokcc.errors import AiokccError
from aiokcc.spark.compute import Periods, checked_result, with_period
from aiokcc.spark.period_column import PERIOD
from aiokcc.spark.pipeline_options import PipelineOptions
from aiokcc.spark.sinks import Sink
from aiokcc.spark.source import empty_frame
from aiokcc.spark.state import StateOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["check_from_scratch"]

log = logging.getLogger("aiokcc.spark")


def check_from_scratch(
    options: PipelineOptions, function: Callable[..., Any], sink: Sink, state: StateOptions | None
) -> None:
    """Raise UsageError or PipelineMismatchError if the result could not be emptied, or would not take the new columns."""

    def result_without_rows() -> DataFrame | None:
        frame = with_period(empty_frame(options.spark, options.kafka_options), 0)
        period = options.group.settings.period
        periods = Periods(0, period, (period,), 0)
        try:
            returned = function(frame, periods) if state is None else function(frame, periods, state.initial)[0]
            result = checked_result(returned)
        except AiokccError:
            raise
        except Exception as error:  # noqa: BLE001 - a function of the user may raise anything
            log.info("%s: the columns of the result are not known before the first job: %r", options.name, error)
            return None
        return result if PERIOD in result.columns else with_period(result, 0)

    sink.check_reset(options.name, result_without_rows)
