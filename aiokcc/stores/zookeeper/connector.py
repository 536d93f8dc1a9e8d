"""Connects a session to one of the servers, with a timeout for each attempt and a backoff between attempts.

Servers are tried in a random order that stays the same, so that many clients spread over the servers and each client visits
all of them. After a break every server is tried once without a pause. Then the pauses double from 50 ms up to a tenth of the
session timeout, with jitter, so that a server that is back is found before the session expires. A server that accepts and
then closes the connection counts as a failure: only a connection with an answered request shortens the pauses, and only one
that lasted a second resets them.

An attempt ends after a part of the session timeout, so that other servers can be tried before the session expires.
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

from aiokcc.credentials import explain_tls_error
from aiokcc.stores.port import boottime
from aiokcc.stores.zookeeper import wire
from aiokcc.stores.zookeeper.connection import Connection, LastSeenZxid
from aiokcc.stores.zookeeper.pending import ConnectionDroppedError

_FIRST_BACKOFF: Final = 0.05
_STABLE_AFTER: Final = 1.0


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Ensemble:
    """The servers, the credentials for them, and the newest transaction seen there. Its repr does not show secrets."""

    servers: tuple[ServerAddress, ...]
    ssl: ssl.SSLContext | None = field(default=None, repr=False)
    auth: tuple[str, str] | None = field(default=None, repr=False)
    last_seen: LastSeenZxid = field(default_factory=LastSeenZxid, repr=False)


@dataclass(frozen=True, slots=True)
class AcceptedConnection:
    """A connection after the handshake."""

    connection: Connection
    handshake: wire.Handshake
    sent_at: float
    server: ServerAddress


class Connector:
    """Connects and reconnects one session."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._order = random.sample(ensemble.servers, len(ensemble.servers))
        self._next = 0
        self._failures = 0
        self.errors: dict[ServerAddress, str] = {}
        """For each server, the error of the last attempt."""

    def reset_backoff(self, lasted: float) -> None:
        """Reset the backoff after a connection with an answered request; if it lasted less than a second, only shorten it."""
        self._failures = 0 if lasted >= _STABLE_AFTER else min(self._failures, len(self._order))

    async def connect(self, timeout: float, session_id: int, password: bytes) -> AcceptedConnection:
        """Try the servers until one accepts, and return the connection. Only cancelling ends this otherwise."""
        attempt_timeout = max(timeout / 3 / len(self._order), min(1.0, timeout / 3))
        while True:
            if self._failures >= len(self._order):
                backoff = min(_FIRST_BACKOFF * 2 ** min(self._failures - len(self._order), 20), timeout / 10)
                await anyio.sleep(backoff * random.uniform(0.75, 1.25))
            self._failures += 1
            server = self._order[self._next % len(self._order)]
            self._next += 1
            try:
                with anyio.fail_after(attempt_timeout):
                    return await self._try_server(server, timeout, session_id, password)
            except TimeoutError:
                self.errors[server] = f"no answer within {attempt_timeout:.3g} s"
            except ConnectionResetError as error:
                no_tls = self._ensemble.ssl is not None and not error.errno
                self.errors[server] = (
                    "does not speak TLS on this port; zk:// is without TLS" if no_tls else _reason(error)
                )
            except (OSError, UnicodeError, ConnectionDroppedError, wire.MalformedReplyError) as error:
                self.errors[server] = _reason(error)

    async def _try_server(
        self, server: ServerAddress, timeout: float, session_id: int, password: bytes
    ) -> AcceptedConnection:
        ensemble = self._ensemble
        self.errors.setdefault(server, "being tried")
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(ensemble.last_seen), server.host, server.port, ssl=ensemble.ssl
        )
        try:
            sent_at = boottime()
            frame = wire.connect_frame(ensemble.last_seen.zxid, timeout, session_id, password)
            try:
                handshake = await connection.handshake(frame)
            except ConnectionDroppedError as error:
                if connection.refused_by_tls:  # in TLS 1.3 the server looks at our certificate after its own handshake
                    raise
                other = "" if ensemble.ssl is not None else ", or by one that expects TLS on this port (zks://)"
                raise ConnectionDroppedError(
                    f"{error} during the handshake, as by a server that starts or lags behind{other}"
                ) from None
            if not handshake.session_id and not session_id:
                raise ConnectionDroppedError("the server refused to open a session")
            if ensemble.auth is not None and handshake.session_id == (session_id or handshake.session_id):
                await connection.authenticate(wire.auth_frame(*ensemble.auth))
        except BaseException:
            connection.abort("the attempt to connect failed")
            raise
        return AcceptedConnection(connection, handshake, sent_at, server)


def _reason(error: Exception) -> str:
    """Return the text of an error. For a system error, not asyncio's text, which repeats the address and omits the reason."""
    if isinstance(error, ssl.SSLError):
        return explain_tls_error(error)
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
