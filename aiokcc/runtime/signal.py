"""The one way in which tasks of the runtime wake each other."""

from __future__ import annotations

import asyncio

__all__ = ["Signal"]


class Signal:
    """A level that one task waits for: setting it twice wakes once, and setting it early is not lost.

    ``asyncio.Event`` keeps a queue of waiters and stays set; here one task waits, and waking clears. Cancelling ``wait()``
    loses nothing.
    """

    __slots__ = ("_is_set", "_loop", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the waiting task, or let the next ``wait()`` return at once."""
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """Forget that it was set: what it told has been dealt with."""
        self._is_set = False

    async def wait(self) -> None:
        """Wait until it is set, and clear it."""
        if not self._is_set:
            loop = self._loop
            if loop is None:  # asked for once: up to Python 3.11 that is a system call
                loop = self._loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            await self._waiter
        self._is_set = False
