"""Hands items from the tasks that read to the loop that iterates, one at a time.

``async for`` runs an async generator. A generator may be left in the middle and closed much later, by whatever task the
garbage collector happens to run in. So it must not hold a task group or a cancel scope across a ``yield``: the reading runs in
the replay's own task group, and the two sides meet here.
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
    """A queue of one item. The side that puts waits until the other side has processed the item."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._item: T | None = None
        self._item_put = Signal()
        self._item_done = Signal()
        self._scope = anyio.CancelScope()
        self._ended = asyncio.Event()
        self._error: Exception | None = None

    async def run_producer(self, read: Callable[[], Awaitable[None]]) -> None:
        """Run the side that puts items. :meth:`get` raises its error."""
        try:
            with self._scope:
                await read()
        except Exception as error:  # noqa: BLE001 - raised by get()
            self._error = error
        finally:
            self._ended.set()
            self._item_put.set()

    async def put(self, item: T) -> None:
        """Hand an item over, and return when it has been processed."""
        async with self._turn:
            self._item = item
            self._item_put.set()
            await self._item_done.wait()

    async def get(self) -> T | None:
        """Wait for the next item and return it; None when there are no more. Raises the error of the producer."""
        while True:
            if self._error is not None:
                raise self._error
            if self._ended.is_set():
                return None
            item, self._item = self._item, None
            if item is not None:
                return item
            await self._item_put.wait()

    def item_done(self) -> None:
        """Tell the producer that the last item is processed."""
        self._item_done.set()

    async def close(self) -> None:
        """Cancel the producer, and wait until it has ended, also while we are being cancelled."""
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._ended.wait()
