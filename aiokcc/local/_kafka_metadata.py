"""Asks one broker where the replicas of a partition are: Kafka's Metadata request, version 4, on a connection of its own.

The admin client of aiokafka chooses the broker itself, so it cannot tell what each broker knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import Final, NamedTuple

_API_KEY: Final = 3
_API_VERSION: Final = 4
_CREATE_NO_TOPIC: Final = 0


class ReplicaIds(NamedTuple):
    """The brokers of one partition, by their ids."""

    leader: int
    """-1 while no replica may lead."""
    all: tuple[int, ...]
    in_sync: tuple[int, ...]


async def ask_replicas(host: str, port: int, topic: str, partition: int) -> ReplicaIds | None:
    """Return the replicas of a partition as this broker knows them, or None if it knows no such partition.

    Raises OSError or EOFError if the broker does not answer.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        header = struct.pack(">hhi", _API_KEY, _API_VERSION, 1) + _string("aiokcc.local")
        request = header + struct.pack(">i", 1) + _string(topic) + struct.pack(">b", _CREATE_NO_TOPIC)
        writer.write(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        answer = _Answer(await reader.readexactly(size))
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return _find(answer, partition)


def _find(answer: _Answer, partition: int) -> ReplicaIds | None:
    answer.skip("i", "i")  # correlation id, throttle time
    for _ in range(answer.integer()):
        answer.skip("i", "s", "i", "s")  # a broker's id, host, port and rack
    answer.skip("s", "i")  # cluster id, controller id
    for _ in range(answer.integer()):
        answer.skip("h", "s", "b")  # a topic's error and name, and whether it is internal
        for _ in range(answer.integer()):
            _, number, leader = answer.integers("hii")
            found = ReplicaIds(leader, answer.array(), answer.array())
            if number == partition:
                return found
    return None


class _Answer:
    """A response that is read from its beginning to its end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def integers(self, types: str) -> tuple[int, ...]:
        values = struct.unpack_from(f">{types}", self._data, self._at)
        self._at += struct.calcsize(f">{types}")
        return values

    def integer(self) -> int:
        return self.integers("i")[0]

    def array(self) -> tuple[int, ...]:
        return self.integers("i" * self.integer())

    def skip(self, *types: str) -> None:
        """Skip values: numbers by their types, ``s`` for a string or null."""
        for kind in types:
            if kind == "s":
                (length,) = self.integers("h")
                self._at += max(length, 0)  # -1: null
            else:
                self.integers(kind)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()
