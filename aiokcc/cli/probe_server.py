"""The server of ``aiokcc replay --metrics``: the metrics of all workers, and their health for probes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import time
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from aiokcc.errors import UsageError
from aiokcc.runtime.metrics import Observed
from aiokcc.views.exposition import CONTENT_TYPE, prometheus_text

__all__ = ["Probes", "serve_probes"]

_SILENT_SECONDS: Final = 30.0
"""A worker that has reported nothing for this long is not live: its handler blocks the event loop."""
_REQUEST_SECONDS: Final = 5.0


class Probes:
    """Holds what the workers have reported last."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._reports: dict[int, Mapping[str, Any]] = {}
        self._heard: dict[int, float] = {}
        self._ended: set[int] = set()

    def joined(self, worker: int) -> None:
        """Note that a worker has joined: it reports from now on, also if it blocks its event loop before the first report."""
        self._heard[worker] = time.monotonic()

    def receive(self, worker: int, facts: Mapping[str, Any]) -> None:
        """Take a worker's report: ``health``, and ``metrics`` as a list of name, value and attributes."""
        self._heard[worker] = time.monotonic()
        self._reports[worker] = facts

    def forget(self, worker: int) -> None:
        """Take out a worker that has ended: what it reported last is true no more, and nobody waits for its next report."""
        self._ended.add(worker)
        self._heard.pop(worker, None)
        self._reports.pop(worker, None)

    def metrics(self) -> bytes:
        """Return the metrics of all workers, as Prometheus reads them."""
        return prometheus_text(Observed(*each) for facts in self._reports.values() for each in facts["metrics"])

    def health(self) -> dict[str, Any]:
        """Return the health: ``live`` and ``ready`` if all workers that run are, and what each of them says."""
        now = time.monotonic()
        silent = sorted(worker + 1 for worker, heard in self._heard.items() if now - heard > _SILENT_SECONDS)
        workers = [self._reports[worker]["health"] for worker in sorted(self._reports)]
        joined = bool(workers) and len(workers) + len(self._ended) >= self._processes
        live = not silent and all(worker["live"] for worker in workers)
        return {
            "live": live,
            "ready": live and joined and all(worker["ready"] for worker in workers),
            "stuck": any(worker["stuck"] for worker in workers),
            "silent": silent,
            "workers": workers,
        }

    def answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """Return the status, the type and the content for a path."""
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE, self.metrics()
        health = self.health()
        if path == "/livez":
            good = health["live"]
        elif path == "/readyz":
            good = health["ready"]
        elif path == "/healthz":
            good = health["live"] and not health["stuck"]
        else:
            return HTTPStatus.NOT_FOUND, "text/plain", b"there are /metrics, /healthz, /livez and /readyz\n"
        status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
        return status, "application/json", json.dumps(health).encode()


@contextlib.asynccontextmanager
async def serve_probes(probes: Probes, host: str, port: int) -> AsyncIterator[str]:
    """Serve while the block runs, and give the address. Raises UsageError if the port is taken."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                method, path, *_ = (await reader.readline()).decode("latin-1").split()
                while (await reader.readline()).strip():
                    pass
                status, kind, body = probes.answer(path.partition("?")[0])
                if method not in {"GET", "HEAD"}:
                    status, kind, body = HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"only GET\n"
                head = (
                    f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {kind}\r\n"
                    f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
                )
                writer.write(head.encode() + (b"" if method == "HEAD" else body))
                await writer.drain()
        except (ValueError, OSError, TimeoutError):  # not HTTP, or gone
            pass
        finally:
            writer.close()

    try:
        server = await asyncio.start_server(answer, host, port)
    except OSError as error:
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        taken = error.errno == errno.EADDRINUSE
        reason = "is taken by another program" if taken else f"cannot be used: {error.strerror or error}"
        advice = "give another address, or port 0 for any free port; the address is printed"
        raise UsageError(f"--metrics {where} {reason}; {advice}") from None
    try:
        address, bound = server.sockets[0].getsockname()[:2]
        yield f"http://{f'[{address}]' if ':' in address else address}:{bound}/metrics"
    finally:
        server.close()
