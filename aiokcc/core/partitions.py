"""Partitions, and the agreed set of them as the node ``topic-partitions`` holds it: ``orders:0,1,2;payments:0,1;``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, NamedTuple

from aiokcc.errors import CorruptNodeError, UsageError

__all__ = ["Partition", "PartitionList", "decode_partitions", "encode_partitions", "listing", "parse_topics"]

MAX_NUMBER: Final = 2**31 - 1
"""The greatest partition number that Kafka allows."""
MAX_COUNT: Final = 100_000
"""The most partitions of one topic that fit into the nodes which list them."""

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_FORM: Final = "topics and their partition numbers like orders:0,1,2;payments:0,1;"


class Partition(NamedTuple):
    """One partition of one topic; ``orders.3`` as text."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> Partition:
        """Returns the partition of a text like ``orders.3``, split at the last dot. Raises ValueError for any other text."""
        topic, dot, number = text.rpartition(".")
        if not dot or not topic:
            raise ValueError(text)
        return cls(topic, _number(number))


@dataclass(frozen=True, slots=True)
class PartitionList:
    """Partitions in a fixed order, and their text as reports and cuts have it: ``orders:0,1;payments:0;``.

    Two lists are equal if their texts are. So a text that has not changed need not be parsed again.
    """

    text: str
    _partitions: tuple[Partition, ...] = field(compare=False, repr=False)

    @classmethod
    def of(cls, partitions: Iterable[Partition]) -> PartitionList:
        """Returns the list of these partitions, in this order."""
        found = tuple(partitions)
        runs = itertools.groupby(found, itemgetter(0))
        return cls("".join([f"{topic}:{','.join([str(p.number) for p in run])};" for topic, run in runs]), found)

    @classmethod
    def parse(cls, text: str) -> PartitionList:
        """Returns the list of this text. Raises ValueError if it is malformed, is empty, or names a partition twice."""
        if not text.endswith(";"):
            raise ValueError(text)
        result: list[Partition] = []
        for part in text[:-1].split(";"):
            topic, _, numbers = part.partition(":")
            if not _TOPIC.fullmatch(topic):
                raise ValueError(topic)
            result += [Partition(topic, _number(number)) for number in numbers.split(",")]
        if len(set(result)) != len(result):
            raise ValueError(text)
        return cls(text, tuple(result))

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions)

    def __len__(self) -> int:
        return len(self._partitions)


def parse_topics(topics: object) -> frozenset[Partition]:
    """Returns the set of ``{"orders": 8}`` (numbers 0 to 7) or ``{"orders": [0, 3]}``. Raises UsageError if it is neither."""
    if not isinstance(topics, Mapping) or not topics:
        raise UsageError(
            f'topics is {topics!r}; expected topic: number of partitions, like {{"orders": 8, "payments": 4}}'
        )
    result: set[Partition] = set()
    for topic, spec in topics.items():
        check_topic(topic)
        if isinstance(spec, int) and not isinstance(spec, bool):
            if spec < 1:
                raise UsageError(f"topic {topic!r} is given a number of partitions below 1; it needs at least one")
            if spec > MAX_COUNT:
                raise UsageError(f"topic {topic!r} is given more partitions than {MAX_COUNT}, the most there can be")
            numbers: list[object] = list(range(spec))
        elif isinstance(spec, Iterable) and not isinstance(spec, str | bytes):
            numbers = list(spec)
        else:
            raise UsageError(
                f"topic {topic!r} is given {spec!r}; expected the number of partitions, or a list of numbers"
            )
        for number in numbers:
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MAX_NUMBER:
                shown = "number" if isinstance(number, int) and number.bit_length() > 64 else repr(number)
                raise UsageError(
                    f"topic {topic!r} is given the partition {shown}; expected a whole number from 0 to {MAX_NUMBER}"
                )
            result.add(Partition(topic, number))
        if not numbers:
            raise UsageError(f"topic {topic!r} is given no partitions; it needs at least one")
    return frozenset(result)


def check_topic(topic: object) -> None:
    """Raises UsageError unless this is a name that Kafka allows for a topic."""
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        raise UsageError(f"topic {topic!r} is not a name Kafka allows: letters, digits, '.', '_' and '-', at most 249")


def encode_partitions(partitions: Iterable[Partition]) -> bytes:
    """Returns ``orders:0,1,2;payments:0,1;``. It is sorted, so that equal sets are equal bytes."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    return "".join(f"{topic}:{','.join(map(str, numbers))};" for topic, numbers in by_topic.items()).encode()


def decode_partitions(path: str, data: bytes) -> frozenset[Partition]:
    """Returns the set that the node holds. Raises CorruptNodeError if it cannot be read."""
    result: set[Partition] = set()
    try:
        for part in data.decode().strip().rstrip(";").split(";"):
            topic, _, numbers = part.partition(":")
            if not _TOPIC.fullmatch(topic):
                raise ValueError(topic)
            for number in numbers.split(","):
                partition = Partition(topic, _number(number))
                if partition in result:
                    raise ValueError(number)
                result.add(partition)
    except ValueError:
        raise CorruptNodeError(path, data, _FORM) from None
    return frozenset(result)


def listing(names: Iterable[str], most: int = 20) -> str:
    """Returns names for a line of a log: the first few of them, and how many more there are."""
    found = list(names)
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 10 or int(text) > MAX_NUMBER:
        raise ValueError(text)
    return int(text)
