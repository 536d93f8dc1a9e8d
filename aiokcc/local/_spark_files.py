"""Prepares what Spark needs on this machine before it starts: a Java, and the four jars by which it reads Kafka.

The jars are in the version of the installed pyspark. ``spark.jars.packages`` would resolve them again in every session and need
the network each time. Instead they are fetched once (see `_jars`) and given to Spark as files.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokcc.errors import LocalServiceError

from ._jars import JarSet, cache_directory, fetch
from ._java import find_java, java_home

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_MINIMUM_JAVA: Final = 17

# The versions of kafka-clients and commons-pool2 that each Spark release is compiled with, from its parent POM.
_BUILT_WITH: Final[Mapping[str, tuple[str, str]]] = {
    "4.0.0": ("3.9.0", "2.12.0"),
    "4.0.1": ("3.9.1", "2.12.0"),
    "4.0.2": ("3.9.1", "2.12.0"),
    "4.1.0": ("3.9.1", "2.12.1"),
    "4.1.1": ("3.9.1", "2.12.1"),
    "4.2.0": ("3.9.2", "2.13.1"),
}
_NEWEST: Final = "4.2.0"


class SparkFiles(NamedTuple):
    """The files with which Spark starts on this machine."""

    version: str
    """The version of the installed pyspark."""
    java: str
    """The path of the Java program."""
    java_home: Path
    """The ``JAVA_HOME`` for Spark's own scripts."""
    jars: list[Path]
    """The jars by which Spark reads and writes Kafka."""


async def prepare_spark(progress: Callable[[str], None]) -> SparkFiles:
    """Return what Spark needs; fetch the jars if they are not in the cache. `progress` is called with lines of text.

    Cancelling leaves the cache as it was. Raises LocalServiceError if there is no pyspark or no Java, or the jars cannot be
    fetched.
    """
    version = _pyspark_version()
    java = await asyncio.to_thread(find_java, _MINIMUM_JAVA)
    jars = await fetch(_connector(version), java, progress)
    return SparkFiles(version, java, await asyncio.to_thread(java_home, java, cache_directory()), jars)


def _pyspark_version() -> str:
    """Return the version of the installed pyspark without importing it. Raises LocalServiceError if there is none."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise LocalServiceError("pyspark is not installed; run `pip install 'aiokcc[spark]'`") from None


def _connector(version: str) -> JarSet:
    """Return the jars with which Spark `version` reads and writes Kafka."""
    clients, pool = _BUILT_WITH.get(version, _BUILT_WITH[_NEWEST])
    return JarSet(
        f"spark-kafka-{version}",
        (
            f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}",
            f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{version}",
            f"org.apache.kafka:kafka-clients:{clients}",
            f"org.apache.commons:commons-pool2:{pool}",
        ),
        megabytes=10,
        fetched_by="aiokcc.spark.session() or `aiokcc local spark`",
    )
