"""Getting a connection: which server, how long to wait for it, and how long to wait before the next.

Servers are tried in a random order that stays the same, so that many clients spread and one client visits all. After a
break every server is tried once without a pause; from then on the pauses double from 50 ms up to a tenth of the session
timeout, with some jitter, so that a server which is back is found within the session. A server that accepts and
then hangs up counts as a failure too: only a connection on which something was answered lets the pauses start over, and
only one that lasted a second earns an attempt without a pause.

A server that does not answer is given up after a part of the timeout, so that others can be tried before the session
ends.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
from dataclasses import dataclass, field
from typing import Final

import anyio

from aiokcc.stores.port import boottime
from aiokcc.stores.zookeeper import wire
from aiokcc.stores.zookeeper.call import DroppedError
from aiokcc.stores.zookeeper.connection import Connection, Horizon

_FIRST_PAUSE: Final = 0.05
_LASTING: Final = 1.0


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Address:
    """All that is needed to connect: which servers, and how to prove who we are. Its repr keeps the secrets."""

    servers: tuple[Server, ...]
    ssl: ssl.SSLContext | None = field(default=None, repr=False)
    auth: tuple[str, str] | None = field(default=None, repr=False)
    horizon: Horizon = field(default_factory=Horizon, repr=False)


@dataclass(frozen=True, slots=True)
class Greeting:
    """A connection that has been accepted, and what was said."""

    connection: Connection
    handshake: wire.Handshake
    sent_at: float
    server: Server


class Dialer:
    """Connects one session, again and again."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._order = random.sample(address.servers, len(address.servers))
        self._next = 0
        self._failures = 0
        self.errors: dict[Server, str] = {}
        """What each server was last tried with."""

    def succeeded(self, lasted: float) -> None:
        """The last connection was a good one: the next break is a new one. One that broke soon earns only a short pause."""
        self._failures = 0 if lasted >= _LASTING else min(self._failures, len(self._order))

    async def dial(self, timeout: float, session_id: int, password: bytes) -> Greeting:
        """Try until a server accepts. Ends otherwise only by cancellation."""
        patience = max(timeout / 3 / len(self._order), min(1.0, timeout / 3))
        while True:
            if self._failures >= len(self._order):
                pause = min(_FIRST_PAUSE * 2 ** min(self._failures - len(self._order), 20), timeout / 10)
                await anyio.sleep(pause * random.uniform(0.75, 1.25))
            self._failures += 1
            server = self._order[self._next % len(self._order)]
            self._next += 1
            try:
                with anyio.fail_after(patience):
                    return await self._attempt(server, timeout, session_id, password)
            except TimeoutError:
                self.errors[server] = f"no answer within {patience:.3g} s"
            except (OSError, UnicodeError, DroppedError, wire.MalformedReplyError) as error:
                self.errors[server] = _reason(error)

    async def _attempt(self, server: Server, timeout: float, session_id: int, password: bytes) -> Greeting:
        address = self._address
        self.errors.setdefault(server, "being tried")
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(address.horizon), server.host, server.port, ssl=address.ssl
        )
        try:
            sent_at = boottime()
            frame = wire.connect_frame(address.horizon.zxid, timeout, session_id, password)
            try:
                handshake = await connection.greet(frame)
            except DroppedError as error:
                raise DroppedError(f"{error} during the handshake, as by a server that starts or lags behind") from None
            if not handshake.session_id and not session_id:
                raise DroppedError("the server refused to open a session")
            if address.auth is not None and handshake.session_id == (session_id or handshake.session_id):
                await connection.authenticate(wire.auth_frame(*address.auth))
        except BaseException:
            connection.abort("given up")
            raise
        return Greeting(connection, handshake, sent_at, server)


def _reason(error: Exception) -> str:
    """What went wrong, in the words of the system: asyncio's own tell the address once more, and not that it was refused."""
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError | socket.gaierror):
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
