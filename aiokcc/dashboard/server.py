"""Serves the dashboard over HTTP until it is cancelled."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator
from typing import Final

import anyio
import uvicorn

from aiokcc.dashboard.app import Dashboard, is_loopback
from aiokcc.errors import UsageError

__all__ = ["bind", "check_token", "serve"]

_SHORTEST_TOKEN: Final = 16


def check_token(host: str, token: str | None) -> None:
    """Raise UsageError unless only this machine can connect, or visitors need a token that cannot be guessed."""
    if token is None and not is_loopback(host):
        raise UsageError(
            f"{host} can be reached from other machines, and whoever reaches it would see the group; "
            f"give --token env:NAME with a text that visitors have to know, or listen on 127.0.0.1"
        )
    if token is not None and (len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isalnum()):
        raise UsageError(
            f"the token is too easy to guess, or has other characters than letters and digits; take at least "
            f"{_SHORTEST_TOKEN}, such as those of `openssl rand -hex 16`"
        )


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises UsageError if the port is taken, or the address is not of this machine."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        where = f"{host}:{port}"
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"{where} is taken by another program; give another with --listen, or 127.0.0.1:0 for any free port"
            ) from None
        is_unknown = isinstance(error, socket.gaierror)  # its number is not one of the operating system's
        reason = error.strerror if is_unknown else os.strerror(error.errno or 0)
        raise UsageError(f"cannot listen on {where}: {reason}") from None


class _Server(uvicorn.Server):
    """Leaves signals to the program."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(dashboard: Dashboard, listening: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until cancelled. Cancelling ends the pages' streams, stops the feeds and closes the socket."""
    config = uvicorn.Config(
        dashboard.app,
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=2,
        server_header=False,
    )
    server = _Server(config)
    async with anyio.create_task_group() as tasks:
        done = anyio.Event()

        async def run() -> None:
            try:
                with anyio.CancelScope(shield=True):
                    await server.serve(sockets=[listening])
            finally:
                done.set()

        tasks.start_soon(run)
        ready()
        try:
            await done.wait()
        finally:
            dashboard.close()
            server.should_exit = True
