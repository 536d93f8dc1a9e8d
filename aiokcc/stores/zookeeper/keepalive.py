"""Whether the other end is still there: pings into the silence, and the end of a connection that does not answer.

Three thirds of the timeout: after one in which we sent nothing, a ping; after another without an answer the connection is
dead, though nobody has told us; the last one is for another connection to take the session over.
"""

from __future__ import annotations

from typing import Protocol

import anyio
from anyio.lowlevel import checkpoint

from aiokcc.stores.port import boottime
from aiokcc.stores.zookeeper.connection import Connection


class SessionLiveness(Protocol):
    """What is known of the session: its timeout, and the send time of the last request that was answered."""

    timeout: float
    confirmed_at: float


async def keep_alive(connection: Connection, session: SessionLiveness) -> None:
    """Ping when it is time and end the connection when it has gone silent; return when it has ended.

    Raises the bug of ours that ended it, if it was one.
    """
    third = session.timeout / 3
    while not connection.closed.is_set():
        now = boottime()
        since = connection.oldest_unanswered()
        end = session.confirmed_at + session.timeout
        if now >= end or (since is not None and now >= since + third):
            # If it was us who slept, the answers may lie in the socket: one turn of the loop to read them.
            await checkpoint()
            if connection.oldest_unanswered() == since and not connection.closed.is_set():
                connection.abort(f"no answer for {now - (session.confirmed_at if since is None else since):.3g} s")
        elif since is None and now >= connection.last_sent + third:
            connection.ping()
        else:
            with anyio.move_on_after(min(third + (connection.last_sent if since is None else since), end) - now):
                await connection.closed.wait()
    if connection.internal_error is not None:
        raise connection.internal_error
