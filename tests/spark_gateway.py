"""Other processes on the Java process of the tests' Spark session: a session takes seconds to start, a process a moment.

To Spark each of them is a driver program like any other: its jobs, its threads. What is shared is the context.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
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


@contextlib.contextmanager
def connect_server(spark: SparkSession) -> Iterator[str]:
    """Serve Spark Connect from the Java process of a classic session, and give the address for other processes."""
    jvm = spark._jvm
    assert jvm is not None
    conf = jvm.org.apache.spark.SparkEnv.get().conf()
    conf.set("spark.connect.grpc.binding.address", "127.0.0.1")
    conf.set("spark.connect.grpc.binding.port", "0")
    kind = getattr(jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
    service = getattr(kind, "MODULE$")  # the object of Scala
    service.start(spark.sparkContext._jsc.sc())
    try:
        yield f"sc://127.0.0.1:{service.localPort()}"
    finally:
        service.stop(jvm.scala.Option.empty(), jvm.scala.Option.empty())


def connected(url: str) -> SparkSession:
    """Return, in the other process, a session of Spark Connect."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.remote(url).getOrCreate()
