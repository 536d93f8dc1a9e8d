"""Other processes on the Java process of the tests' Spark session: a session takes seconds to start, a process a moment.

To Spark each of them is a driver program like any other: its jobs, its threads. What is shared is the context.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def environment(spark: SparkSession) -> dict[str, str]:
    """Return the environment variables with which another process finds the session."""
    parameters = spark.sparkContext._gateway.gateway_parameters
    return {
        **os.environ,
        "PYSPARK_GATEWAY_PORT": str(parameters.port),
        "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        "PYSPARK_PYTHON": sys.executable,
    }


def attached() -> SparkSession:
    """Return, in the other process, a session on the running context."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()
    jvm = gateway.jvm
    java = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
        jvm.org.apache.spark.SparkContext.getOrCreate()
    )
    context = SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jvm=jvm, _jconf=java.getConf()))
    return SparkSession(context)
