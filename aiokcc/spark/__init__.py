"""Level 3 of the API: every period as a Spark DataFrame, exactly once, in step with everybody else."""

from aiokcc.spark.batch import Batch, Slice
from aiokcc.spark.compute import Periods
from aiokcc.spark.progress import Progress, Summary
from aiokcc.spark.replay import AsyncReplay, Replay, replay
from aiokcc.spark.session import session
from aiokcc.spark.sinks import Sink

__all__ = ["AsyncReplay", "Batch", "Periods", "Progress", "Replay", "Sink", "Slice", "Summary", "replay", "session"]
