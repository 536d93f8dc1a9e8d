"""A Kafka topic as a sink: at least once, each record with its period in the headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from aiokcc.core.masking import mask_url
from aiokcc.credentials import KafkaClient, KafkaConfig, remember_secrets
from aiokcc.errors import UsageError
from aiokcc.spark.batch import Batch
from aiokcc.spark.sinks.port import Sink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["KafkaSink"]

_COLUMNS: Final = ("key", "value", "headers", "partition")
_OURS: Final = ("kafka.bootstrap.servers", "topic")


class KafkaSink(Sink):
    """Writes each row as a record: ``value``, and where the result has them ``key``, ``partition`` and ``headers``.

    At least once: Spark's Kafka writer has no transactions, so the records of a job that failed half way, or whose driver died
    before it had recorded the batch, are written again. Readers see records at once, before the batch is complete.
    Each record has the headers

    ==================  ============================================================================================
    ``aiokcc-period``   the start of its period, ISO 8601 (``2026-01-01T00:00:00.000Z``)
    ``aiokcc-batch``    ``pipeline/number/attempt``: a repetition has the same pipeline and number
    ==================  ============================================================================================

    so a reader that keeps the last record for each period and key (or a compacted topic whose key holds the period) has each
    result once.

    Args:
        topic: the topic; it must exist, unless the broker creates topics.
        bootstrap_servers: ``"host:port"`` or a list of them; by default ``bootstrap.servers`` of ``kafka``.
        kafka: Kafka's client properties, with the credentials: a file or a mapping, as :func:`aiokcc.spark.replay` takes them.
        kafka_options: further settings of Kafka's producer, such as ``{"compression.type": "zstd"}``.
    """

    exactly_once: ClassVar[bool] = False

    def __init__(
        self,
        topic: str,
        *,
        bootstrap_servers: str | Sequence[str] | None = None,
        kafka: KafkaConfig = None,
        kafka_options: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(topic, str) or not topic:
            raise UsageError(f"topic is {topic!r}; expected the name of a topic")
        client = KafkaClient.load(kafka)
        bootstrap_servers = client.bootstrap_servers if bootstrap_servers is None else bootstrap_servers
        if bootstrap_servers is None:
            raise UsageError(
                'bootstrap_servers is missing; give "host:port", or bootstrap.servers in the kafka properties'
            )
        servers = [bootstrap_servers] if isinstance(bootstrap_servers, str) else list(bootstrap_servers)
        if not servers or not all(isinstance(server, str) and server for server in servers):
            raise UsageError(
                f'bootstrap_servers is {mask_url(repr(bootstrap_servers))}; expected "host:port" or a list of them'
            )
        options = {
            name if name.startswith("kafka.") else f"kafka.{name}": str(value)
            for name, value in (kafka_options or {}).items()
        }
        remember_secrets(options)
        for name in _OURS:
            if name in options:
                raise UsageError(f"kafka_options has {name!r}, which is an argument of its own")
        self._topic, self._options = topic, {**client.spark, **options, "kafka.bootstrap.servers": ",".join(servers)}
        self._attempt = 0

    @property
    def servers(self) -> list[str]:
        """The servers that it writes to."""
        return self._options["kafka.bootstrap.servers"].split(",")

    @property
    def options(self) -> Mapping[str, str]:
        """The options of Spark's Kafka writer; a password may be among them."""
        return self._options

    def describe(self) -> str:
        return f"Kafka topic {self._topic}"

    def begin(self, pipeline: str, attempt: int) -> None:
        """Remember the attempt number for the headers. There is no fence: Kafka accepts records from any driver."""
        self._attempt = attempt

    def is_published(self, batch: Batch) -> bool:
        return False

    def stage(self, frame: DataFrame, batch: Batch) -> object:
        from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

        missing = next((name for name in ("period", "value") if name not in frame.columns), None)
        if missing == "value":
            raise UsageError(
                "the result has no column 'value', which is what a record holds; "
                "for all columns as JSON: frame.select('period', F.to_json(F.struct('*')).alias('value'))"
            )
        if missing:
            raise UsageError("the result has no column 'period'; keep it in every groupBy, join and select")
        ours = F.array(
            _header(F.lit("aiokcc-period"), F.date_format(F.to_utc_timestamp("period", F.current_timezone()), _ISO)),
            _header(F.lit("aiokcc-batch"), F.lit(f"{batch.pipeline}/{batch.number}/{self._attempt}")),
        )
        theirs = [F.coalesce(F.col("headers"), F.array().cast(_HEADERS))] if "headers" in frame.columns else []
        records = frame.select(
            *[name for name in _COLUMNS if name in frame.columns and name != "headers"],
            F.concat(*theirs, ours).alias("headers"),
        )
        # Both writers of the connector append; the newer one requires that the mode is given.
        writer = records.write.format("kafka").mode("append").options(**self._options)
        writer.option("topic", self._topic).save()
        return True

    def publish(self, batch: Batch, staged: object | None) -> None:
        """Do nothing: the records were written when the batch was staged."""

    def reset(self, pipeline: str, attempt: int) -> None:
        """Do nothing: the records of the new run follow those of the old one."""


_ISO: Final = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"
_HEADERS: Final = "array<struct<key:string,value:binary>>"


def _header(name: Column, value: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.struct(name.alias("key"), value.cast("binary").alias("value"))
