"""Partitions, the agreed set, and the names of the nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokcc.core import paths
from aiokcc.core.partitions import (
    MAX_COUNT,
    MAX_NUMBER,
    Partition,
    decode_partitions,
    encode_partitions,
    parse_topics,
)
from aiokcc.errors import CorruptNodeError, UsageError
from tests.unit.naming import brief

topics = st.from_regex(r"\A[A-Za-z0-9._-]{1,20}\Z").filter(lambda name: name not in {".", ".."})
partitions = st.builds(Partition, topics, st.integers(0, MAX_NUMBER))


def test_topics_with_a_number_or_a_list() -> None:
    assert parse_topics({"orders": 3}) == {("orders", 0), ("orders", 1), ("orders", 2)}
    assert parse_topics({"orders": [0, 3], "a.b": range(2)}) == {("orders", 0), ("orders", 3), ("a.b", 0), ("a.b", 1)}
    assert len(parse_topics({"orders": MAX_COUNT})) == MAX_COUNT


@pytest.mark.parametrize(
    ("given_topics", "message"),
    [
        (None, 'expected topic: number of partitions, like {"orders": 8'),
        ({}, "topics is {}; expected"),
        (["orders"], "expected topic: number of partitions"),
        ("orders", "expected topic: number of partitions"),
        ({"": 1}, "topic '' is not a name Kafka allows"),
        ({"a/b": 1}, "not a name Kafka allows"),
        ({"a b": 1}, "not a name Kafka allows"),
        ({"ä": 1}, "not a name Kafka allows"),
        ({"..": 1}, "not a name Kafka allows"),
        ({"a" * 250: 1}, "at most 249"),
        ({7: 1}, "topic 7 is not a name"),
        ({"orders": 0}, "it needs at least one"),
        ({"orders": -1}, "it needs at least one"),
        ({"orders": []}, "it needs at least one"),
        ({"orders": MAX_COUNT + 1}, f"more partitions than {MAX_COUNT}"),
        ({"orders": 10**5000}, f"more partitions than {MAX_COUNT}"),
        ({"orders": True}, "expected the number of partitions, or a list"),
        ({"orders": None}, "expected the number of partitions, or a list"),
        ({"orders": 1.0}, "expected the number of partitions, or a list"),
        ({"orders": "0,1"}, "expected the number of partitions, or a list"),
        ({"orders": [0, -1]}, "the partition -1; expected a whole number from 0"),
        ({"orders": [True]}, "the partition True; expected"),
        ({"orders": ["0"]}, "the partition '0'; expected"),
        ({"orders": [MAX_NUMBER + 1]}, f"expected a whole number from 0 to {MAX_NUMBER}"),
        ({"orders": [10**5000]}, f"expected a whole number from 0 to {MAX_NUMBER}"),
    ],
    ids=brief,
)
def test_invalid_topics_are_refused(given_topics: object, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_topics(given_topics)
    assert message in str(caught.value)


@given(partitions)
def test_a_partition_can_be_read_back_from_its_text(partition: Partition) -> None:
    assert Partition.parse(str(partition)) == partition


@pytest.mark.parametrize("text", ["", "orders", "orders.", ".3", "orders.x", "orders.-1", "orders.٣", "o.99999999999"])
def test_an_invalid_partition_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        Partition.parse(text)


@given(st.frozensets(partitions, min_size=1, max_size=20))
def test_a_set_can_be_read_back_and_equal_sets_are_equal_bytes(agreed: frozenset[Partition]) -> None:
    data = encode_partitions(agreed)
    assert decode_partitions("/p", data) == agreed
    assert encode_partitions(sorted(agreed, reverse=True)) == data


def test_a_set_is_readable() -> None:
    assert encode_partitions(parse_topics({"payments": 2, "orders": 3})) == b"orders:0,1,2;payments:0,1;"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b";",
        b"orders",
        b"orders:",
        b"orders:0,;",
        b"orders:x;",
        b"orders:-1;",
        b":0;",
        b"orders:0;;payments:0;",
        b"orders:0,0;",
        b"orders:0;orders:0;",
        b"orders:0,00;",
        b"orders:2147483648;",
        b"orders:" + b"9" * 5000 + b";",
        b"a/b:0;",
        "orders:٣;".encode(),
        b"\xff\xfe",
        b"\x00" * 1_000_000,
        b"x" * 1_000_000,
        b"orders:" + b"," * 1_000_000,
    ],
    ids=brief,
)
def test_an_invalid_set_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptNodeError) as caught:
        decode_partitions("/g/topic-partitions", data)
    assert caught.value.content == data
    assert "/g/topic-partitions holds " in str(caught.value)
    assert "expected topics and their partition numbers" in str(caught.value)
    assert len(str(caught.value)) < 600


def test_paths() -> None:
    partition = Partition("a.b", 3)
    assert paths.owner(partition) == "owners/a.b/3"
    assert paths.progress("w-1f") == "progress/w-1f"
    assert paths.member("w-1f") == "ids/w-1f"
    assert [paths.cut(n, 16) for n in (0, 15, 16, 33)] == ["cuts/0", "cuts/15", "cuts/0", "cuts/1"]
