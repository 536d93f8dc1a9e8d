"""The connection between two processes of a host: messages in order, each one line of JSON.

A channel calls ``received`` for each message and ``closed`` once, when the other side is gone. Whatever the other side sends
that is not a message closes the channel.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from aiokcc.errors import AiokccError, CoordinationError

__all__ = ["MAX_BYTES", "Message", "ProcessChannel", "SocketChannel", "decode_error", "encode_error"]

Message: TypeAlias = dict[str, Any]

MAX_BYTES: Final = 16 << 20
"""The longest message. A report of 100,000 partitions has about 4 MB."""


class ProcessChannel:
    """One end of a connection."""

    def __init__(self) -> None:
        self.received: Callable[[Message], None] = lambda _: None
        self.closed: Callable[[], None] = lambda: None
        self.ended_by_peer = False
        """True once the other side has closed the connection, or is dead: it uses nothing any more that depends on it."""

    def send(self, message: Message) -> None:
        """Sends a message after those before it. Does nothing once the connection is gone."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes the connection after what was sent. ``closed`` is called on both sides."""
        raise NotImplementedError


class SocketChannel(ProcessChannel, asyncio.Protocol):
    """A channel over a stream socket.

    :param made: called with the channel once it is connected
    """

    def __init__(self, made: Callable[[SocketChannel], None] | None = None) -> None:
        super().__init__()
        self._made = made
        self._transport: Any = None  # an asyncio.Transport, or None; uvloop's is none by its class
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the connection."""
        self._transport = transport
        if self._made is not None:
            self._made(self)

    def data_received(self, data: bytes) -> None:
        """Calls ``received`` for each whole line."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_BYTES:
            self.close()
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                self.close()
                return
            self.received(message)

    def eof_received(self) -> None:
        """Notes that the other side has ended the connection."""
        self.ended_by_peer = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Calls ``closed``."""
        self.ended_by_peer |= isinstance(exc, ConnectionError)
        self._transport = None
        self.closed()

    def peer_user(self) -> int | None:
        """Returns the user of the process at the other end; None where the system does not tell."""
        connection = None if self._transport is None else self._transport.get_extra_info("socket")
        if connection is None or not hasattr(socket, "SO_PEERCRED"):
            return None
        return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])

    def send(self, message: Message) -> None:
        """Writes a line."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Closes the socket when everything is written."""
        if self._transport is not None:
            self._transport.close()


def encode_error(error: Exception) -> Message:
    """Returns an error as data, with its facts."""
    facts = {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | None)}
    return {"kind": type(error).__name__, "text": str(error), "facts": facts}


def decode_error(message: Message) -> Exception:
    """Returns the error that another process had: of the same class if it is one of ours."""
    kind = _find(AiokccError, message["kind"])
    if kind is None:
        return CoordinationError(f"{message['kind']}: {message['text']}")
    error = kind.__new__(kind)
    error.args = (message["text"],)
    vars(error).update(message["facts"])
    return error


def _find(kind: type[AiokccError], name: str) -> type[AiokccError] | None:
    """Returns the class of our errors that has this name."""
    if kind.__name__ == name:
        return kind
    return next((found for each in kind.__subclasses__() if (found := _find(each, name)) is not None), None)
