"""Requests: their bytes are those that aiokafka would send, and answers are read as it reads them, in one piece or in many.

Batches of records: what is written is read again, and what others write in other ways is the same for all readers.
"""

from __future__ import annotations

import asyncio
import io
import struct
from collections import deque
from typing import Any

import aiokafka.record.default_records as batches
import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from aiokcc.errors import StoreError
from aiokcc.stores.kafka.wire import (
    AppendRequest,
    LogEntry,
    ReadAnswer,
    ReadRequest,
    SlowedDown,
    pack_batch,
    split_frames,
    unpack_batches,
)

READ, APPEND = 1, 0


def sent(request: Any, versions: dict[int, tuple[int, int]]) -> bytes:
    """Return what a connection sends for a request, as aiokafka's connection puts it together."""
    prepared = request.prepare(versions)
    header = prepared.build_request_header(correlation_id=77, client_id="aiokafka")
    return bytes(header.encode() + prepared.encode())


@pytest.mark.parametrize("version", range(3, 8))
def test_an_append_is_sent_as_aiokafka_would_send_it(version: int) -> None:
    batch = pack_batch([b"a"])
    theirs = ProduceRequest(transactional_id=None, required_acks=-1, timeout=1500, topics=[("log", [(0, batch)])])
    versions = {APPEND: (0, version)}
    assert sent(AppendRequest(b"log", batch, 1500), versions) == sent(theirs, versions)


@pytest.mark.parametrize("version", [5, 11])
def test_a_read_is_sent_as_aiokafka_would_send_it(version: int) -> None:
    theirs = FetchRequest(500, 1, 4096, 0, [("log", [(0, 2**40, 4096)])])
    versions = {READ: (4, version)}
    assert sent(ReadRequest(b"log", 2**40, 500, 4096), versions) == sent(theirs, versions)


def test_the_highest_version_that_both_know_is_taken() -> None:
    request = ReadRequest(b"log", 0, 1, 1)
    found = [request.prepare({READ: span})._version for span in ((0, 5), (4, 10), (4, 17), (11, 17))]
    assert found == [5, 5, 11, 11]
    with pytest.raises(StoreError, match="too new"):
        request.prepare({READ: (6, 10)})


class Connection:
    """The parts of a connection of aiokafka that a request and :func:`split_frames` meet, with requests that were sent."""

    def __init__(self, *sent: Any) -> None:
        self._reader: Any = asyncio.StreamReader()
        self._requests: deque[Any] = deque()
        split_frames(self)
        self._requests.extend(sent)
        self.feed_data = self._reader.feed_data
        self.answers: list[Any] = []
        self.error: Exception | None = None

    def _handle_frame(self, data: bytes) -> None:
        request, buffer = self._requests.popleft(), io.BytesIO(data)
        assert request.parse_response_header(buffer).correlation_id == 77
        self.answers.append(request.RESPONSE_TYPE.decode(buffer))

    def close(self, reason: Any, exc: Exception) -> None:
        self._reader, self.error = None, exc


def answer_of(version: int, key: int, *parts: Any) -> bytes:
    theirs: Any = FetchRequest if key == READ else ProduceRequest
    struct_class = next(one for one in theirs._CLASSES if version == one.API_VERSION)
    body = struct.pack(">i", 77) + struct_class.RESPONSE_TYPE(*parts).encode()
    return struct.pack(">i", len(body)) + bytes(body)


@pytest.mark.parametrize("version", range(3, 8))
async def test_the_answer_to_an_append_is_its_error_code(version: int) -> None:
    more = () if version < 5 else (0,)
    raw = answer_of(version, APPEND, [("log", [(0, 6, 5, 1, *more)])], 0)
    connection = Connection(AppendRequest(b"log", b"", 1).prepare({APPEND: (3, version)}))
    connection.feed_data(raw)
    assert connection.answers == [6]


READS = {
    5: (0, [("log", [(0, 3, 9, 9, 2, [(1, 2), (3, 4)], b"batches")])]),
    11: (0, 0, 0, [("log", [(0, 3, 9, 9, 2, [(1, 2), (3, 4)], -1, b"batches")])]),
}


@pytest.mark.parametrize("version", READS)
@pytest.mark.parametrize("size", [1, 3, 50, 10_000])
async def test_answers_to_reads_come_in_pieces_of_any_size(version: int, size: int) -> None:
    raw = answer_of(version, READ, *READS[version]) * 3
    connection = Connection(*(ReadRequest(b"log", 0, 1, 1).prepare({READ: (0, version)}) for _ in range(3)))
    for at in range(0, len(raw), size):
        connection.feed_data(raw[at : at + size])
    assert connection.answers == [ReadAnswer(3, 9, 2, b"batches")] * 3


async def test_an_error_for_the_whole_read_and_an_answer_without_records() -> None:
    request = ReadRequest(b"log", 0, 1, 1).prepare({READ: (0, 11)})
    connection = Connection(request, request)
    connection.feed_data(answer_of(11, READ, 0, 71, 0, []))
    connection.feed_data(answer_of(11, READ, 0, 0, 0, [("log", [(0, 0, 9, 9, 2, None, -1, None)])]))
    assert connection.answers == [ReadAnswer(71, 0, 0, b""), ReadAnswer(0, 9, 2, b"")]


@pytest.mark.parametrize(("version", "parts"), [(5, (250, [])), (11, (250, 0, 0, []))])
async def test_the_answer_to_a_read_beyond_a_quota_says_how_long_to_wait(version: int, parts: Any) -> None:
    connection = Connection(ReadRequest(b"log", 0, 1, 1).prepare({READ: (0, version)}))
    connection.feed_data(answer_of(version, READ, *parts))
    assert connection.answers == [SlowedDown(0.25)]


async def test_an_answer_that_cannot_be_read_breaks_the_connection() -> None:
    connection = Connection(ReadRequest(b"log", 0, 1, 1).prepare({READ: (0, 5)}))
    connection.feed_data(struct.pack(">ii", 6, 77) + b"xx" + b"more")
    assert "cannot be read" in str(connection.error)
    assert not connection.answers


async def test_a_connection_that_waits_for_an_answer_or_is_built_in_another_way_stays_as_it_is() -> None:
    connection = Connection()
    connection._reader = reader = asyncio.StreamReader()
    connection._requests.append(None)
    split_frames(connection)
    assert reader.feed_data == asyncio.StreamReader.feed_data.__get__(reader)
    split_frames(object())


def place(batch: bytes, offset: int, epoch: int = 0) -> bytes:
    """Return a batch as a broker keeps it: with its offset and, from format 2 on, its leader's epoch."""
    placed = struct.pack(">q", offset) + batch[8:]
    return placed[:12] + struct.pack(">i", epoch) + placed[16:] if batch[16] == 2 else placed


def compressed(codec: int) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 10_000)
    for number in range(3):
        builder.append(number, 0, None, b"x" * 100, [])
    return bytes(builder.build())


def read(data: bytes, first: int) -> list[tuple[int, bytes | None, int]]:
    return [(entry.offset, entry.raw, entry.epoch) for entry in unpack_batches(data, first)]


def test_records_are_read_again_with_their_leader() -> None:
    data = place(pack_batch([b"a", b"b"]), 5, 1) + place(pack_batch([b"c"]), 7, 2)
    assert read(data, 5) == [(5, b"a", 1), (6, b"b", 1), (7, b"c", 2)]
    assert list(unpack_batches(data, 7)) == [LogEntry(7, 0, b"c", 2)]


def test_records_before_the_offset_and_a_batch_that_is_cut_off_are_left_out() -> None:
    data = place(pack_batch([b"a", b"b"]), 5) + place(pack_batch([b"c"]), 7)
    assert read(data[:-1], 6) == [(6, b"b", 0)]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("has_codec", [True, False])
def test_a_compressed_batch_is_the_same_to_who_can_read_it_and_who_cannot(
    monkeypatch: pytest.MonkeyPatch, codec: int, has_codec: bool
) -> None:
    """Otherwise a stranger's compressed record would stop everybody who has no library for it, or make them differ."""
    middle = compressed(codec)
    for name in () if has_codec else ("gzip", "snappy", "lz4", "zstd"):
        monkeypatch.setattr(batches.codecs, f"has_{name}", lambda: False)
    data = place(pack_batch([b"a"]), 5) + place(middle, 6, 3) + place(pack_batch([b"c"]), 9)
    assert read(data, 5) == [(5, b"a", 0), (6, None, 3), (7, None, 3), (8, None, 3), (9, b"c", 0)]
    assert read(data, 8)[0] == (8, None, 3)


def test_a_batch_of_an_old_format_is_one_without_content() -> None:
    builder = LegacyRecordBatchBuilder(1, 0, 10_000)
    builder.append(0, 0, None, b"old")
    data = place(bytes(builder.build()), 5) + place(pack_batch([b"a"]), 6)
    assert read(data, 5) == [(5, None, -1), (6, b"a", 0)]


def test_a_damaged_batch_is_refused() -> None:
    damaged: Any = bytearray(place(pack_batch([b"aaaa"]), 5))
    damaged[-3] ^= 1
    with pytest.raises(CorruptRecordException):
        read(bytes(damaged), 5)
