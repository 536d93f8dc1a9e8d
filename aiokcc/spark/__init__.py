"""Level 3 of the API: every period as a Spark DataFrame, exactly once, in step with everybody else."""

try:
    from aiokcc.spark.batch import Batch, Slice
    from aiokcc.spark.compute import Periods
    from aiokcc.spark.driver import AsyncReplay
    from aiokcc.spark.progress import Progress, Summary
    from aiokcc.spark.replay import Replay, replay
    from aiokcc.spark.session import session
    from aiokcc.spark.sinks import DeltaSink, FunctionSink, KafkaSink, ParquetSink, Sink
    from aiokcc.spark.tables import files, manifest, read
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
    "ParquetSink",
    "Periods",
    "Progress",
    "Replay",
    "Sink",
    "Slice",
    "Summary",
    "files",
    "manifest",
    "read",
    "replay",
    "session",
]
