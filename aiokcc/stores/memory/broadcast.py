"""A bare signal: wakes all who wait now, and remembers nothing.

Unlike ``asyncio.Event`` it belongs to no loop and needs no clearing; whoever waits looks first, then waits, then looks
again. Nothing can be missed between looking and waiting, as there is no await between them.
"""

from __future__ import annotations

import asyncio

__all__ = ["Broadcast"]


class Broadcast:
    """``await wait()`` until the next ``fire()``."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def wait(self) -> None:
        """Wait until fired."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            await future
        finally:
            self._waiting.pop(future, None)

    def notify_all(self) -> None:
        """Wake everybody who waits."""
        for future in self._waiting:
            # The second: who waited in a loop that was closed under it can no longer be woken.
            if not future.done() and not future.get_loop().is_closed():
                future.set_result(None)
        self._waiting.clear()
