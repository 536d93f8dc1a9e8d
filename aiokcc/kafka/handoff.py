"""From the tasks that read to the loop that iterates, one thing at a time.

``async for`` is an async generator, and a generator may be left in the middle and closed much later, by whatever task the
garbage collector happens to run in. So it holds no task group and no cancel scope across a ``yield``: the reading runs in the
replay's own task group, and the two meet here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio

from aiokcc.runtime.signal import Signal

__all__ = ["Handoff"]

T = TypeVar("T")


class Handoff(Generic[T]):
    """Where one side lays things down and waits until the other has dealt with them."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._item: T | None = None
        self._laid = Signal()
        self._dealt_with = Signal()
        self._scope = anyio.CancelScope()
        self._ended = asyncio.Event()
        self._error: Exception | None = None

    async def serve(self, read: Callable[[], Awaitable[None]]) -> None:
        """Run the side that lays down; its error comes out at :meth:`receive`."""
        try:
            with self._scope:
                await read()
        except Exception as error:  # noqa: BLE001 - raised where it belongs
            self._error = error
        finally:
            self._ended.set()
            self._laid.set()

    async def hand(self, item: T) -> None:
        """Lay something down; return when it has been dealt with."""
        async with self._turn:
            self._item = item
            self._laid.set()
            await self._dealt_with.wait()

    async def receive(self) -> T | None:
        """The next thing; None when there will be none. Raises what the reading raised."""
        while True:
            if self._error is not None:
                raise self._error
            if self._ended.is_set():
                return None
            item, self._item = self._item, None
            if item is not None:
                return item
            await self._laid.wait()

    def done(self) -> None:
        """What was received last is dealt with."""
        self._dealt_with.set()

    async def close(self) -> None:
        """Stop the reading, and wait until it has given up what it held."""
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._ended.wait()
