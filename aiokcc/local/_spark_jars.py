"""What Spark needs to read Kafka: four jars, in the version of the pyspark that is installed.

``spark.jars.packages`` would resolve them in every session afresh and need the network each time. They are fetched once
instead (see `_jars`) and given to Spark as files.
"""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Final

from aiokcc.errors import LocalServiceError

from ._jars import JarSet

if TYPE_CHECKING:
    from collections.abc import Mapping

MINIMUM_JAVA: Final = 17

# The connector is compiled against these: kafka-clients and commons-pool2, from the parent POM of each Spark release.
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
    """The version of the installed pyspark; it is not imported for this."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise LocalServiceError("pyspark is not installed; run `pip install 'aiokcc[spark]'`") from None


def connector(version: str) -> JarSet:
    """The jars with which Spark `version` reads and writes Kafka."""
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
