"""Keep-alive: pings an idle connection and aborts a connection that does not answer.

The session timeout is divided into thirds. After a third in which nothing was sent, a ping is sent. After another third without
an answer the connection is considered dead. The last third is left for another connection to take over the session.
"""

from __future__ import annotations

from typing import Protocol

import anyio
from anyio.lowlevel import checkpoint

from aiokcc.stores.port import boottime
from aiokcc.stores.zookeeper.connection import Connection


class SessionLiveness(Protocol):
    """A session's timeout, and the send time of its last answered request."""

    timeout: float
    confirmed_at: float


async def keep_alive(connection: Connection, session: SessionLiveness) -> None:
    """Ping the connection when it is idle, abort it when it does not answer, and return when it has ended.

    Raises the connection's ``internal_error``, if there is one. Cancelling leaves the connection open.
    """
    third = session.timeout / 3
    while not connection.closed.is_set():
        now = boottime()
        since = connection.oldest_unanswered()
        end = session.confirmed_at + session.timeout
        if now >= end or (since is not None and now >= since + third):
            # If this process was stopped, answers may wait in the socket: read them in one turn of the event loop.
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
