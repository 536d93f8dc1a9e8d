"""Batches of records: what is written is read again, and what others write in other ways is the same for all readers."""

from __future__ import annotations

import struct
from typing import Any

import aiokafka.record.default_records as batches
import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from aiokcc.stores.kafka.wire import LogEntry, pack_batch, unpack_batches


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
