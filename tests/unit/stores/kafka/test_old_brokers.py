"""Brokers that do not know a request that the store needs: the error says so at once, and what to do."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.protocol import admin, metadata, offset
from aiokafka.protocol.api import Response
from aiokafka.protocol.metadata import MetadataResponse_v0, MetadataResponse_v4

from aiokcc.errors import StoreError, StoreUnreachableError
from aiokcc.stores import open_store
from aiokcc.stores.kafka.wire import AppendRequest, ReadRequest, VersionedRequest

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, CREATE_TOPICS, DESCRIBE_CONFIGS = 0, 1, 2, 3, 18, 19, 32
KAFKA_0_11 = {
    PRODUCE: (0, 3),
    FETCH: (0, 5),
    LIST_OFFSETS: (0, 2),
    METADATA: (0, 4),
    API_VERSIONS: (0, 1),
    CREATE_TOPICS: (0, 2),
    DESCRIBE_CONFIGS: (0, 0),
}
UNKNOWN_TOPIC = 3


class OldBroker:
    """A broker that knows these versions of these requests, and answers just so far that the next one is asked."""

    def __init__(self, versions: Mapping[int, tuple[int, int]], *, topic: bool = True, end: int = 1) -> None:
        self.versions = versions
        self.topic = topic
        """True if the topic exists."""
        self.end = end
        self.port = 0
        self.asked: list[int] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                body = await reader.readexactly(size)
                key, version, correlation = struct.unpack_from(">hhi", body)
                if key not in self.versions:
                    return  # a broker breaks the connection when it is asked what it does not know
                self.asked.append(key)
                answer = struct.pack(">i", correlation) + self.answer(key, version, body)
                writer.write(struct.pack(">i", len(answer)) + answer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    def answer(self, key: int, version: int, body: bytes) -> bytes:
        name = "__aiokcc.old"
        if key == API_VERSIONS:
            known = b"".join(struct.pack(">hhh", one, *span) for one, span in self.versions.items())
            return struct.pack(">hi", 0, len(self.versions)) + known
        if key == METADATA:
            me = (0, "127.0.0.1", self.port)
            asked = name.encode() in body
            topics = [(0 if self.topic else UNKNOWN_TOPIC, name, [(0, 0, 0, [0], [0])] if self.topic else [])]
            if version == 0:
                return encode(MetadataResponse_v0([me], topics))
            found = [(code, one, False, parts) for code, one, parts in topics] if asked else []
            return encode(MetadataResponse_v4(0, [(*me, None)], "cluster", 0, found))
        if key == DESCRIBE_CONFIGS:
            return encode(admin.DescribeConfigsResponse_v0(0, [(0, None, 2, name, [])]))
        assert key == LIST_OFFSETS, key
        (when,) = struct.unpack(">q", body[-8:])
        return encode(offset.OffsetResponse_v2(0, [(name, [(0, 0, -1, self.end if when == -1 else 0)])]))


def encode(answer: Response) -> bytes:
    return bytes(answer.encode())


@asynccontextmanager
async def running(broker: OldBroker) -> AsyncIterator[str]:
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    async with server:
        yield f"kafka://127.0.0.1:{broker.port}/old"


async def refused(broker: OldBroker, **options: Any) -> StoreError:
    async with running(broker) as url:
        with pytest.raises(StoreError) as caught:
            async with asyncio.timeout(8), open_store(url).session(connect_timeout=30, **options):
                pass
    assert not isinstance(caught.value, StoreUnreachableError), "it is there, and it is too old"
    return caught.value


@pytest.mark.parametrize(
    ("key", "spoken", "expected"),
    [
        (METADATA, (0, 0), "knows Metadata up to version 0, and version 4 is needed"),
        (DESCRIBE_CONFIGS, None, "knows no DescribeConfigs"),
        (LIST_OFFSETS, (0, 0), "knows ListOffsets up to version 0, and version 1 is needed"),
        (LIST_OFFSETS, None, "knows no ListOffsets"),
        (FETCH, (0, 4), "knows Fetch up to version 4, and version 5 is needed"),
    ],
)
async def test_a_broker_that_is_too_old_is_named_at_once(
    key: int, spoken: tuple[int, int] | None, expected: str
) -> None:
    versions = {one: span for one, span in KAFKA_0_11.items() if one != key}
    broker = OldBroker(versions if spoken is None else {**versions, key: spoken})
    message = str(await refused(broker))
    assert expected in message
    assert "too old for kafka://" in message
    assert "Kafka 0.11 and later" in message
    assert broker.connections <= 4, "it was not tried again"


async def test_a_broker_that_cannot_create_a_topic_is_too_old_only_if_the_topic_is_not_there() -> None:
    versions = {key: span for key, span in KAFKA_0_11.items() if key != CREATE_TOPICS}
    assert "knows no CreateTopics" in str(await refused(OldBroker(versions, topic=False)))


async def test_a_broker_that_does_not_take_our_batches() -> None:
    """It is asked to when the log is empty and its first record is to be written."""
    broker = OldBroker({**KAFKA_0_11, PRODUCE: (0, 2)}, end=0)
    assert "knows Produce up to version 2, and version 3 is needed" in str(await refused(broker))


async def test_a_topic_is_not_asked_for_in_a_version_that_creates_it() -> None:
    broker = OldBroker({**KAFKA_0_11, METADATA: (0, 3)}, topic=False)
    await refused(broker)
    assert CREATE_TOPICS not in broker.asked
    assert DESCRIBE_CONFIGS not in broker.asked


async def test_a_broker_that_does_not_say_what_it_knows() -> None:
    """Kafka 0.9 breaks the connection at the first question. So does a listener that speaks another protocol."""
    async with running(OldBroker({})) as url:
        with pytest.raises(StoreUnreachableError) as caught:
            async with open_store(url).session(connect_timeout=0.5):
                pass
    message = str(caught.value)
    assert "closed the connection when it was asked something" in message
    assert "older than 0.11" in message
    assert "security_protocol is PLAINTEXT" in message


@pytest.mark.parametrize(
    "request_",
    [
        AppendRequest(b"log", b"", 1),
        ReadRequest(b"log", 0, 1, 1),
        *map(
            VersionedRequest,
            (
                offset.OffsetRequest(-1, 0, []),
                metadata.MetadataRequest([]),
                admin.CreateTopicsRequest([], 1, False),
                admin.DescribeConfigsRequest([], False),
                admin.DeleteRecordsRequest([], 1),
            ),
        ),
    ],
    ids=lambda request_: str(request_._name),
)
def test_a_broker_that_is_too_new_is_named(request_: Any) -> None:
    with pytest.raises(StoreError, match="too new for the installed aiokafka: it knows .* from version 90 on"):
        request_.prepare(dict.fromkeys(range(100), (90, 99)))
