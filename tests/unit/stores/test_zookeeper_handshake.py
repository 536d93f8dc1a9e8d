"""The answer to a handshake is never read as the reply to a request."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from aiokcc.stores.zookeeper.connection import Connection, LastSeenZxid


class Transport:
    """A transport that ignores what is written, and receives nothing."""

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        pass


async def test_an_answer_that_comes_after_its_waiter_was_cancelled_changes_no_transaction_id() -> None:
    """A session is closed while it reconnects: the server's answer arrives in the same iteration of the event loop."""
    last_seen = LastSeenZxid()
    connection = Connection(last_seen)
    transport: Any = Transport()
    connection.connection_made(transport)
    waiting = asyncio.ensure_future(connection.handshake(b""))
    await asyncio.sleep(0)
    waiting.cancel()
    body = struct.pack("!iiqi16s?", 0, 10_000, 0x1234, 16, b"p" * 16, False)
    connection.data_received(struct.pack("!i", len(body)) + body)
    assert last_seen.zxid == 0
    assert not connection.malformed
    await asyncio.wait([waiting])
    assert waiting.cancelled()
