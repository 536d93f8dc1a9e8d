"""Level 3 of the API: every period as a Spark DataFrame, exactly once, in step with everybody else."""

try:
    from aiokcc.spark.batch import Batch, Slice
    from aiokcc.spark.compute import Periods
    from aiokcc.spark.driver import AsyncReplay
    from aiokcc.spark.progress import Progress, Summary
    from aiokcc.spark.published import LatePeriod
    from aiokcc.spark.replay import Replay, replay
    from aiokcc.spark.restate import late, restate
    from aiokcc.spark.session import session
    from aiokcc.spark.sinks import DeltaSink, FunctionSink, KafkaSink, ParquetSink, Sink
    from aiokcc.spark.state_tables import read_state
    from aiokcc.spark.tables import arrow_schema, files, manifest, read
except ModuleNotFoundError as error:
    if error.name != "aiokafka":
        raise
    raise ModuleNotFoundError(
        "aiokcc.spark reads Kafka through aiokafka: pip install 'aiokcc[spark]'", name=error.name
    ) from error

__all__ = [
    "AsyncReplay",
    "Batch",
    "DeltaSink",
    "FunctionSink",
    "KafkaSink",
    "LatePeriod",
    "ParquetSink",
    "Periods",
    "Progress",
    "Replay",
    "Sink",
    "Slice",
    "Summary",
    "arrow_schema",
    "files",
    "late",
    "manifest",
    "read",
    "read_state",
    "replay",
    "restate",
    "session",
]
