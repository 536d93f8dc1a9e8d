"""The four jars that Spark needs to read Kafka, in the version of the installed pyspark.

``spark.jars.packages`` would resolve them again in every session and need the network each time. Instead they are fetched
once (see `_jars`) and given to Spark as files.
"""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Final

from aiokcc.errors import LocalServiceError

from ._jars import JarSet

if TYPE_CHECKING:
    from collections.abc import Mapping

MINIMUM_JAVA: Final = 17

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


def pyspark_version() -> str:
    """Return the version of the installed pyspark without importing it. Raises LocalServiceError if there is none."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise LocalServiceError("pyspark is not installed; run `pip install 'aiokcc[spark]'`") from None


def connector(version: str) -> JarSet:
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
