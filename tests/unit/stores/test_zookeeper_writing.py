"""Requests sent while answers and events are handled leave in one piece, before the event loop goes on."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from aiokcc.stores.zookeeper import wire
from aiokcc.stores.zookeeper.connection import Connection, LastSeenZxid
from aiokcc.stores.zookeeper.pending import PendingRequest


class Transport:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        pass


class Reader:
    """Reads a node, twice, for each event and each answer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.answers: list[asyncio.Future[Any]] = []

    def ask(self) -> None:
        for name in ("a", "b"):
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self.answers.append(answer)
            self._connection.send(PendingRequest(answer, wire.get_request(wire.string(f"/{name}")), None, name))

    def on_watch_event(self, kind: int, name: str, zxid: int) -> None:
        self.ask()

    def on_answer(self, sent_at: float) -> None:
        pass

    def on_requests_answered(self, number: int, seconds: float) -> None:
        pass

    def on_dropped(self, connection: Connection) -> None:
        pass


def event(name: str) -> bytes:
    body = struct.pack("!iqi", wire.EVENT_XID, 7, 0) + struct.pack("!ii", 3, 3) + wire.string(name)
    return struct.pack("!i", len(body)) + body


def requests(data: bytes) -> int:
    """Return the number of frames."""
    number, at = 0, 0
    while at < len(data):
        at += 4 + struct.unpack_from("!i", data, at)[0]
        number += 1
    assert at == len(data)
    return number


async def test_the_requests_of_several_events_leave_in_one_piece_at_once() -> None:
    connection, transport = Connection(LastSeenZxid()), Transport()
    as_transport: Any = transport
    connection.connection_made(as_transport)
    connection._handshaken = True
    reader = Reader(connection)
    listener: Any = reader
    connection.listener = listener
    connection.data_received(event("/x") + event("/y"))
    assert [requests(data) for data in transport.written] == [4]
    assert len(connection.pending) == 4
    assert not connection.outbox
    reader.ask()  # outside: with the next turn of the loop, because others wait already
    assert len(transport.written) == 1
    await asyncio.sleep(0)
    assert [requests(data) for data in transport.written] == [4, 2]


async def test_nothing_is_written_after_an_answer_that_ended_the_connection() -> None:
    connection, transport = Connection(LastSeenZxid()), Transport()
    as_transport: Any = transport
    connection.connection_made(as_transport)
    connection._handshaken = True
    listener: Any = Reader(connection)
    connection.listener = listener
    connection.data_received(event("/x") + struct.pack("!i", -5))
    assert connection.malformed
    assert transport.written == []
    assert len(connection.outbox) == 2  # they were certainly not sent
