"""Measures the store alone with our client, between the rounds of what is measured: one write, and two writes and two reads."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from aiokcc import open_store
from aiokcc.stores import Session
from benchmarks.server import Server
from benchmarks.worker import works

__all__ = ["Anchors", "anchored"]


class Anchors:
    """Measures the store alone, with our client."""

    def __init__(self, session: Session, path: str, version: int) -> None:
        self._session = session
        self._path = path
        self._version = version
        self._samples: dict[str, list[float]] = {"write": [], "floor": []}

    async def measure(self, count: int) -> None:
        """Measure ``count`` of each, after the same pauses as a process of the group: after a pause it wakes more slowly."""
        session, path, version = self._session, self._path, self._version
        pauses = works({"index": 0, "processes": 1}, version)
        clock = time.monotonic_ns
        write, floor = self._samples["write"], self._samples["floor"]
        for _ in range(count):
            data = str(version).encode()
            await asyncio.sleep(next(pauses))
            start = clock()
            version = await session.set(path, data, version)
            write.append((clock() - start) / 1e6)
        for _ in range(count):
            data = str(version).encode()
            await asyncio.sleep(next(pauses))
            start = clock()
            version = await session.set(path, data, version)
            await session.get(path)
            version = await session.set(path, data, version)
            await session.get(path)
            floor.append((clock() - start) / 1e6)
        self._version = version

    def forget(self) -> dict[str, list[float]]:
        """Return what was measured since the last call, in ms, and forget it."""
        samples, self._samples = self._samples, {"write": [], "floor": []}
        return samples


@contextlib.asynccontextmanager
async def anchored(running: Server) -> AsyncIterator[Anchors]:
    """Open the harness's own session with the server."""
    async with open_store(running.url("anchor")).session() as session:
        await session.ensure("node")
        yield Anchors(session, "node", (await session.get("node")).version)
