"""A channel carries what changes from one feed to any number of pages, as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, Final

__all__ = ["Channel", "encode_event"]

KEEPALIVE_SECONDS: Final = 15.0
"""A page that receives nothing else receives a comment this often, so that a dead connection is noticed."""
_MOST_MOMENTS: Final = 256
"""The moments that are kept for slow pages. A page that is slower than that misses some."""


def encode_event(kind: str, data: Any) -> bytes:
    """Return one server-sent event."""
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class Channel:
    """Holds the last event of each kind, and the last moments. Each event is encoded once, for all pages.

    It is level-triggered: a page that reads slowly skips states, but never the last one, and nothing is queued for it.
    """

    def __init__(self) -> None:
        self._states: dict[str, tuple[int, bytes]] = {}
        self._moments: deque[tuple[int, bytes]] = deque(maxlen=_MOST_MOMENTS)
        self._number = 0
        self._changed = asyncio.Event()
        self._closed = False
        self.pages = 0
        """The number of pages that read at present."""

    def set_state(self, kind: str, data: Any) -> None:
        """Replace the last event of this kind; nothing happens if it is the same."""
        event = encode_event(kind, data)
        if kind not in self._states or self._states[kind][1] != event:
            self._number += 1
            self._states[kind] = (self._number, event)
            self._wake()

    def add_moment(self, kind: str, data: Any) -> None:
        """Add an event that does not replace an earlier one."""
        self._number += 1
        self._moments.append((self._number, encode_event(kind, data)))
        self._wake()

    def close(self) -> None:
        """End all pages' streams. They connect again by themselves when the server is back."""
        self._closed = True
        self._wake()

    async def changed(self) -> None:
        """Wait until something changes."""
        await self._changed.wait()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def read(self, begin: Callable[[], Iterable[bytes]]) -> AsyncGenerator[bytes, None]:
        """Yield ``begin()``, the present states, and then what changes, until the channel is closed. Can be cancelled."""
        self.pages += 1
        try:
            moments = self._number
            seen = 0
            yield b"retry: 1000\n\n" + b"".join(begin())
            while not self._closed:
                changed = self._changed
                number = self._number
                news = [event for at, event in self._states.values() if at > seen]
                news += [event for at, event in self._moments if at > moments]
                seen = moments = number
                if news:
                    yield b"".join(news)
                    continue
                try:
                    async with asyncio.timeout(KEEPALIVE_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self.pages -= 1
