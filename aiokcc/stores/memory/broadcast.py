"""A broadcast: wakes all present waiters and keeps no state.

Unlike ``asyncio.Event`` it belongs to no loop and needs no clearing. A waiter checks its condition, waits, and checks again.
It cannot miss a notification between checking and waiting, because there is no await between them.
"""

from __future__ import annotations

import asyncio

__all__ = ["Broadcast"]


class Broadcast:
    """``await wait()`` returns at the next ``notify_all()``."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def wait(self) -> None:
        """Wait for the next notification. Can be cancelled at any time."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            await future
        finally:
            self._waiting.pop(future, None)

    def notify_all(self) -> None:
        """Wake all waiters."""
        for future in self._waiting:
            # A waiter whose loop was closed can no longer be woken.
            if not future.done() and not future.get_loop().is_closed():
                future.set_result(None)
        self._waiting.clear()
