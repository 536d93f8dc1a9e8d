"""The sinks: they publish the results of a pipeline.

* :class:`ParquetSink`: files in a directory, exactly once
* :class:`DeltaSink`: a Delta table, exactly once
* :class:`KafkaSink`: records in a topic, at least once
* :class:`FunctionSink`: your own function, at least once: it must be idempotent by period
"""

from aiokcc.spark.sinks.delta import DeltaSink
from aiokcc.spark.sinks.function import FunctionSink
from aiokcc.spark.sinks.kafka import KafkaSink
from aiokcc.spark.sinks.parquet import ParquetSink
from aiokcc.spark.sinks.port import Sink

__all__ = ["DeltaSink", "FunctionSink", "KafkaSink", "ParquetSink", "Sink"]
