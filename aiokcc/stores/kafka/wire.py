"""Adapts the parts of aiokafka that the store uses: its client, its requests and its record batches.

It uses aiokafka's client and its requests, not its producer and consumer: those put a task and a timer between a call and the
request, which costs more than the request itself (a write takes 1.2 ms instead of 0.9, 3.3 instead of 1.3 with three writers).
The bytes of the two requests that every write and every read cost, :class:`AppendRequest` and :class:`ReadRequest`, are made
and read here, and :func:`split_frames` takes an answer in the turn of the event loop in which it arrives. aiokafka's own way
costs as much again as all the rest of a write.

Nobody promises that the client stays as it is, so :func:`check_aiokafka` compares it with what is known here.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, Final, NamedTuple, Self

from aiokcc.errors import StoreError, UsageError

try:
    import aiokafka  # noqa: F401 - whether it is there at all
except ImportError as error:
    raise UsageError("kafka:// needs aiokafka: pip install 'aiokcc[kafka]'") from error
try:
    import aiokafka.errors as kafka_errors
    from aiokafka import TopicPartition
    from aiokafka.client import AIOKafkaClient, ConnectionGroup
    from aiokafka.conn import AIOKafkaConnection, CloseReason
    from aiokafka.protocol.admin import CreateTopicsRequest, DeleteRecordsRequest, DescribeConfigsRequest
    from aiokafka.protocol.metadata import MetadataRequest
    from aiokafka.protocol.offset import OffsetRequest
    from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

    from aiokcc.credentials.kafka_refusal import Refusal, find_refusal
except ImportError as error:
    raise StoreError(
        f"the installed aiokafka is not one that kafka:// knows ({error}); install aiokafka 0.14"
    ) from error

__all__ = [
    "FAILURES",
    "AppendRequest",
    "ConnectionGroup",
    "CreateTopicsRequest",
    "DeleteRecordsRequest",
    "DescribeConfigsRequest",
    "LogEntry",
    "MetadataRequest",
    "OffsetRequest",
    "ReadAnswer",
    "ReadRequest",
    "Refusal",
    "SlowedDown",
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
    (CreateTopicsRequest, ("create_topic_requests", "timeout", "validate_only")),
    (DescribeConfigsRequest, ("resources", "include_synonyms")),
    (DeleteRecordsRequest, ("topics", "timeout_ms")),
    (MetadataRequest, ("topics", "allow_auto_topic_creation")),
    (OffsetRequest, ("replica_id", "isolation_level", "topics")),
    (MetadataRequest.prepare, ("self", "versions")),
    (AIOKafkaClient.send, ("self", "node_id", "request", "group")),
    (AIOKafkaClient._metadata_update, ("self", "cluster_metadata", "topics")),
    (AIOKafkaClient._get_conn, ("self", "node_id", "group", "no_hint")),
    (AIOKafkaConnection.send, ("self", "request", "expect_response")),
    (AIOKafkaConnection._handle_frame, ("self", "resp")),
    (AIOKafkaConnection.close, ("self", "reason", "exc")),
)
FAILURES: Final = (kafka_errors.KafkaError, OSError, TimeoutError, RuntimeError, KeyError)
"""The errors of a request that was not answered. RuntimeError comes from uvloop for a connection that breaks at this moment,
KeyError from aiokafka for one that another request has replaced."""
_NEEDED: Final[Mapping[type, tuple[str, int]]] = {
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
        lowest, _ = _find_versions(versions, self._request.API_KEY, self._name, self._least)
        try:
            return self._request.prepare(versions)
        except NotImplementedError:
            raise _too_new(self._name, lowest) from None


def _find_versions(versions: Mapping[int, tuple[int, int]], key: int, name: str, least: int) -> tuple[int, int]:
    """Return the lowest and the highest version of a request that the broker knows. Raises StoreError if none will do."""
    lowest, highest = versions.get(key, (0, -1))
    if highest < least:
        spoken = f"{name} up to version {highest}" if highest >= 0 else f"no {name}"
        raise StoreError(
            f"the Kafka broker is too old for kafka://: it knows {spoken}, and version {least} is needed, which "
            f"Kafka 0.11 and later have; take a newer Kafka for the store, or zk://"
        )
    return lowest, highest


def _too_new(name: str, lowest: int) -> StoreError:
    return StoreError(
        f"the Kafka broker is too new for the installed aiokafka: it knows {name} from version {lowest} on; "
        f"install a newer aiokafka and aiokcc"
    )


class _RequestHeader(NamedTuple):
    raw: bytes

    def encode(self) -> bytes:
        return self.raw


class _ResponseHeader(NamedTuple):
    correlation_id: int


class _OwnRequest:
    """A request of which the bytes are made here. The connection calls what it calls on a request of aiokafka."""

    API_KEY: int
    _name: str
    _known: tuple[int, ...]
    """The versions that are known here, in order. The first is the oldest that will do."""
    _version = 0

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Self:
        """Choose the highest version that the broker knows too."""
        lowest, highest = _find_versions(versions, self.API_KEY, self._name, self._known[0])
        usable = [version for version in self._known if lowest <= version <= highest]
        if not usable:
            raise _too_new(self._name, lowest)
        self._version = usable[-1]
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> _RequestHeader:
        """Return the header."""
        client = client_id.encode()
        return _RequestHeader(_REQUEST.pack(self.API_KEY, self._version, correlation_id, len(client)) + client)

    def encode(self) -> bytes:
        """Return the body."""
        raise NotImplementedError

    def parse_response_header(self, buffer: BytesIO) -> _ResponseHeader:
        """Return the number of the request that is answered."""
        return _ResponseHeader(*_CORRELATION.unpack_from(buffer.getvalue()))

    @property
    def RESPONSE_TYPE(self) -> Self:  # noqa: N802 - the connection calls it so
        """The object whose ``decode`` reads the answer."""
        return self

    def decode(self, buffer: BytesIO) -> Any:
        """Return the answer."""
        try:
            return self._decode(buffer.getvalue())
        except struct.error as error:
            raise kafka_errors.KafkaError(f"an answer to {self._name} cannot be read: {error}") from error

    def _decode(self, data: bytes) -> Any:
        raise NotImplementedError


_REQUEST: Final = struct.Struct(">hhih")
_CORRELATION: Final = struct.Struct(">i")


class AppendRequest(_OwnRequest):
    """Append a batch to partition 0 of a topic, and wait for the replicas in sync. The answer is an error code.

    :param timeout: the milliseconds after which the broker gives up
    """

    API_KEY = 0
    _name, _known = "Produce", (3, 4, 5, 6, 7)  # 3: batches as they are written here
    _HEAD: Final = struct.Struct(">hhiih")
    _PARTITION: Final = struct.Struct(">iii")

    def __init__(self, topic: bytes, batch: bytes, timeout: int) -> None:
        self._topic, self._batch, self._timeout = topic, batch, timeout

    def encode(self) -> bytes:
        # No transaction; acknowledged by all replicas in sync; one topic, one partition.
        head = self._HEAD.pack(-1, -1, self._timeout, 1, len(self._topic))
        return b"".join((head, self._topic, self._PARTITION.pack(1, 0, len(self._batch)), self._batch))

    def _decode(self, data: bytes) -> int:
        # The numbers of the request, of topics, of the length of the name, of partitions and of the partition come before it.
        (code,) = struct.unpack_from(">h", data, 4 + 4 + 2 + len(self._topic) + 4 + 4)
        return int(code)


class ReadAnswer(NamedTuple):
    """The answer to a read: an error code, where the log can be read to, where it begins, and the batches."""

    code: int
    end: int
    start: int
    data: bytes


class SlowedDown(NamedTuple):
    """The answer to a read that is beyond a quota: nothing, and the seconds after which to ask again."""

    seconds: float


class ReadRequest(_OwnRequest):
    """Read partition 0 of a topic from an offset on. The answer is a :class:`ReadAnswer`, or :class:`SlowedDown`.

    :param wait: the milliseconds for which the broker waits for a record
    :param most: the number of bytes to read; the first batch is read whole, also if it is larger
    """

    API_KEY = 1
    _name, _known = "Fetch", (5, 11)  # 5: the answer says where the log begins; 10: it may have batches of zstd
    _HEAD: Final = struct.Struct(">iiiib")
    _SESSION: Final = struct.Struct(">ii")
    _ERROR: Final = struct.Struct(">hi")
    _NUMBERS: Final = struct.Struct(">ii")
    _FOUND: Final = struct.Struct(">ihqqqi")

    def __init__(self, topic: bytes, offset: int, wait: int, most: int) -> None:
        self._topic, self._offset, self._wait, self._most = topic, offset, wait, most

    def encode(self) -> bytes:
        # We are no replica; one byte is enough to be answered; what is in a transaction is read, too.
        head = self._HEAD.pack(-1, self._wait, 1, self._most, 0)
        topic = struct.pack(">ih", 1, len(self._topic)) + self._topic
        if self._version < 11:
            return head + topic + struct.pack(">iiqqi", 1, 0, self._offset, -1, self._most)
        partition = struct.pack(">iiiqqi", 1, 0, -1, self._offset, -1, self._most)  # the leader's epoch is not given
        return b"".join((head, self._SESSION.pack(0, -1), topic, partition, struct.pack(">ih", 0, 0)))

    def _decode(self, data: bytes) -> ReadAnswer | SlowedDown:
        _, delay = self._NUMBERS.unpack_from(data)
        at = self._NUMBERS.size
        if self._version >= 11:
            code, _ = self._ERROR.unpack_from(data, at)
            if code:
                return ReadAnswer(code, 0, 0, b"")
            at += self._ERROR.size
        if delay > 0 and data[at:] == bytes(4):  # no topic
            return SlowedDown(delay / 1000)
        at += 4 + 2 + len(self._topic) + 4
        _, code, end, _, start, aborted = self._FOUND.unpack_from(data, at)
        at += self._FOUND.size + 16 * max(aborted, 0) + (4 if self._version >= 11 else 0)
        (size,) = struct.unpack_from(">i", data, at)
        return ReadAnswer(code, end, start, data[at + 4 : at + 4 + max(size, 0)])


def split_frames(connection: Any) -> None:
    """Let a connection of aiokafka handle each answer where its bytes arrive.

    aiokafka has a task that waits for four bytes, then for the rest, and then wakes the caller: two turns of the event loop
    more. The task stays, and learns of the connection's end. A connection that is built in another way, or that waits for an
    answer already, stays as it is.
    """
    reader = getattr(connection, "_reader", None)
    if not isinstance(reader, asyncio.StreamReader) or getattr(connection, "_requests", True):
        return
    rest = bytearray()

    def feed(data: bytes) -> None:
        nonlocal rest
        if rest:
            rest += data
            if len(rest) < 4 or len(rest) < 4 + _CORRELATION.unpack_from(rest)[0]:
                return  # a large answer comes in many pieces
            data, rest = bytes(rest), bytearray()
        at = 0
        while len(data) >= at + 4 and connection._reader is reader:
            end = at + 4 + _CORRELATION.unpack_from(data, at)[0]
            if end > len(data):
                break
            try:
                connection._handle_frame(data[at + 4 : end])
            except Exception as error:  # noqa: BLE001 - as aiokafka's task does
                connection.close(reason=CloseReason.CONNECTION_BROKEN, exc=error)
                return
            at = end
        rest += data[at:]

    reader.feed_data = feed  # type: ignore[assignment, method-assign]


class TopicClient(AIOKafkaClient):  # type: ignore[misc]
    """aiokafka's client, for one topic, which it never creates.

    Brokers create a topic by default when somebody asks who leads it: a topic that was deleted would be there again, with
    settings that lose the log.
    """

    async def _get_conn(self, node_id: int, *, group: Any = ConnectionGroup.DEFAULT, no_hint: bool = False) -> Any:
        before = self._conns.get((node_id, group))
        connection = await super()._get_conn(node_id, group=group, no_hint=no_hint)
        if connection is not None and connection is not before:
            split_frames(connection)
        return connection

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
