"""Level 3 of the API: every period as a Spark DataFrame, exactly once, in step with everybody else."""

from aiokcc.spark.batch import Batch, Slice
from aiokcc.spark.session import session
from aiokcc.spark.sinks import Sink

__all__ = ["Batch", "Sink", "Slice", "session"]
