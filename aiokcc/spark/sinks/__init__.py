"""Where the results of a pipeline go."""

from aiokcc.spark.sinks.port import Sink

__all__ = ["Sink"]
