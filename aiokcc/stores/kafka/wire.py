"""Adapts the parts of aiokafka that the store uses: its client, its requests and its record batches.

It uses aiokafka's client and its requests, not its producer and consumer: those put a task and a timer between a call and the
request, which costs more than the request itself (a write takes 1.2 ms instead of 0.9, 3.3 instead of 1.3 with three writers).
Nobody promises that the client stays as it is, so :func:`check_aiokafka` compares it with what is known here.
"""

from __future__ import annotations

import inspect
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiokcc.errors import StoreError, UsageError

try:
    import aiokafka  # noqa: F401 - whether it is there at all
except ImportError as error:
    raise UsageError("kafka:// needs aiokafka: pip install 'aiokcc[kafka]'") from error
try:
    import aiokafka.errors as kafka_errors
    from aiokafka import TopicPartition
    from aiokafka.client import AIOKafkaClient, ConnectionGroup
    from aiokafka.protocol.admin import CreateTopicsRequest, DeleteRecordsRequest, DescribeConfigsRequest
    from aiokafka.protocol.fetch import FetchRequest
    from aiokafka.protocol.metadata import MetadataRequest
    from aiokafka.protocol.offset import OffsetRequest
    from aiokafka.protocol.produce import ProduceRequest
    from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

    from aiokcc.credentials.kafka_refusal import Refusal, find_refusal
except ImportError as error:
    raise StoreError(
        f"the installed aiokafka is not one that kafka:// knows ({error}); install aiokafka 0.14"
    ) from error

__all__ = [
    "FAILURES",
    "ConnectionGroup",
    "CreateTopicsRequest",
    "DeleteRecordsRequest",
    "DescribeConfigsRequest",
    "FetchRequest",
    "LogEntry",
    "MetadataRequest",
    "OffsetRequest",
    "ProduceRequest",
    "Refusal",
    "TopicClient",
    "TopicPartition",
    "VersionedRequest",
    "check_aiokafka",
    "find_refusal",
    "kafka_errors",
    "pack_batch",
    "unpack_batches",
]

_KNOWN: Final[tuple[tuple[Any, tuple[str, ...]], ...]] = (
    (ProduceRequest, ("transactional_id", "required_acks", "timeout", "topics")),
    (FetchRequest, ("max_wait_time", "min_bytes", "max_bytes", "isolation_level", "topics")),
    (CreateTopicsRequest, ("create_topic_requests", "timeout", "validate_only")),
    (DescribeConfigsRequest, ("resources", "include_synonyms")),
    (DeleteRecordsRequest, ("topics", "timeout_ms")),
    (MetadataRequest, ("topics", "allow_auto_topic_creation")),
    (OffsetRequest, ("replica_id", "isolation_level", "topics")),
    (MetadataRequest.prepare, ("self", "versions")),
    (AIOKafkaClient.send, ("self", "node_id", "request", "group")),
    (AIOKafkaClient._metadata_update, ("self", "cluster_metadata", "topics")),
)
FAILURES: Final = (kafka_errors.KafkaError, OSError, TimeoutError, RuntimeError, KeyError)
"""The errors of a request that was not answered. RuntimeError comes from uvloop for a connection that breaks at this moment,
KeyError from aiokafka for one that another request has replaced."""
_NEEDED: Final[Mapping[type, tuple[str, int]]] = {
    ProduceRequest: ("Produce", 3),  # batches as they are written here
    FetchRequest: ("Fetch", 5),  # the answer says where the log begins
    OffsetRequest: ("ListOffsets", 1),  # the answer is one offset
    MetadataRequest: ("Metadata", 4),  # to ask for a topic does not create it
    CreateTopicsRequest: ("CreateTopics", 0),
    DescribeConfigsRequest: ("DescribeConfigs", 0),
    DeleteRecordsRequest: ("DeleteRecords", 0),
}
"""Kafka's name of each request, and the lowest version that will do. Kafka 0.11 has them all."""


def check_aiokafka() -> None:
    """Raise StoreError if aiokafka is not built as is known here."""
    for function, known in _KNOWN:
        found = tuple(inspect.signature(function).parameters)
        if found[: len(known)] != known:
            raise StoreError(
                f"the installed aiokafka is not one that kafka:// knows ({function.__qualname__} takes {', '.join(found)}); "
                f"install aiokafka 0.14, or use zk://"
            )


class VersionedRequest:
    """A request that is sent in a version that will do, or not at all: then the connection raises StoreError."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._name, self._least = _NEEDED[type(request)]

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Any:
        """Return the request in the highest version that aiokafka and the broker know. The connection calls this."""
        lowest, highest = versions.get(self._request.API_KEY, (0, -1))
        if highest < self._least:
            spoken = f"{self._name} up to version {highest}" if highest >= 0 else f"no {self._name}"
            raise StoreError(
                f"the Kafka broker is too old for kafka://: it knows {spoken}, and version {self._least} is needed, which "
                f"Kafka 0.11 and later have; take a newer Kafka for the store, or zk://"
            )
        try:
            return self._request.prepare(versions)
        except NotImplementedError:
            raise StoreError(
                f"the Kafka broker is too new for the installed aiokafka: it knows {self._name} from version {lowest} on; "
                f"install a newer aiokafka"
            ) from None


class TopicClient(AIOKafkaClient):  # type: ignore[misc]
    """aiokafka's client, for one topic, which it never creates.

    Brokers create a topic by default when somebody asks who leads it: a topic that was deleted would be there again, with
    settings that lose the log.
    """

    async def _metadata_update(self, cluster_metadata: Any, topics: Any) -> bool:
        nodes = [broker.nodeId for broker in cluster_metadata.brokers()]
        random.shuffle(nodes)
        request = VersionedRequest(MetadataRequest(list(topics or ()), allow_auto_topic_creation=False))
        for node in nodes:
            try:
                answer = await self.send(node, request)
            except (*FAILURES, StoreError):
                continue
            if answer.brokers:
                cluster_metadata.update_metadata(answer)
                return True
        cluster_metadata.failed_update(None)
        return False


# Batches. These are the bytes that Kafka keeps and hands out, with as many records as were sent together.


class LogEntry(NamedTuple):
    """One record of the log."""

    offset: int
    timestamp: int
    raw: bytes | None
    """Its value. None if it has none, or if no client of ours can have written its batch."""
    epoch: int
    """The number of the leader that took the record: every leader of a partition has a larger one than those before it."""


_HEADER: Final = struct.Struct(">qiibIh")
"""The beginning of a batch: its first offset, its length, the leader's epoch, its format, its checksum, and flags."""
_AHEAD: Final = 12
"""So many bytes of a batch are not counted by its length."""
_FORMAT: Final = 2
_COMPRESSED: Final = 7
_CONTROL: Final = 32


def pack_batch(values: Sequence[bytes]) -> bytes:
    """Return a batch of these records."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, sum(map(len, values)) + 100 * len(values) + 200)
    for number, value in enumerate(values):
        if builder.append(number, 0, None, value, []) is None:
            raise AssertionError("the batch was made large enough")
    return bytes(builder.build())


def unpack_batches(data: bytes, first: int) -> Iterator[LogEntry]:
    """Yield the records from an offset on. The broker sends whole batches, also with records before that offset.

    The end of somebody's transaction is a record of Kafka's own: it has an offset, so it is one without content here. So are
    the records of a batch that is compressed or of an older format, for all clients alike, whether or not they could read it:
    ours never are.

    Raises CorruptRecordException for a batch that does not match its checksum.
    """
    at, following = 0, first
    while at + _HEADER.size <= len(data):
        offset, length, epoch, form, _, flags = _HEADER.unpack_from(data, at)
        begin, at = at, at + _AHEAD + length
        if at > len(data):
            return  # the broker cuts the last batch off
        if form != _FORMAT:
            last, epoch, is_ours = offset, -1, False
        else:
            batch = DefaultRecordBatch(data[begin:at])
            if not batch.validate_crc():
                raise kafka_errors.CorruptRecordException("a batch does not match its checksum")
            last, is_ours = batch.next_offset - 1, not flags & (_COMPRESSED | _CONTROL)
        if is_ours:
            for raw in batch:
                if raw.offset >= first:
                    yield LogEntry(raw.offset, raw.timestamp, None if raw.value is None else bytes(raw.value), epoch)
        else:
            for number in range(following, last + 1):
                yield LogEntry(number, 0, None, epoch)
        following = max(following, last + 1)
