"""The one way in which tasks of the runtime wake each other."""

from __future__ import annotations

import asyncio

__all__ = ["Signal"]


class Signal:
    """A level that one task waits for: setting it twice wakes once, and setting it early is not lost.

    ``asyncio.Event`` keeps a queue of waiters and stays set; here one task waits, and waking clears. What is awaited is a bare
    future: a coroutine around it would cost as much again, and this is where every record that meets the limit waits.
    A task that is cancelled in the very moment it is woken takes the wake-up with it; so look before you wait.
    """

    __slots__ = ("_is_set", "_loop", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the waiting task, or let the next ``wait()`` return at once."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        else:
            self._is_set = True

    def clear(self) -> None:
        """Forget that it was set: what it told has been dealt with."""
        self._is_set = False

    def wait(self) -> asyncio.Future[None]:
        """To be awaited: done when it is set, which clears it. RuntimeError if another task waits already."""
        loop = self._loop
        if loop is None:  # asked for once: up to Python 3.11 that is a system call
            loop = self._loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        if self._is_set:
            self._is_set = False
            waiter.set_result(None)
        else:
            before = self._waiter
            if before is not None and not before.done():
                raise RuntimeError("another task waits for this signal already; it would never be woken")
            self._waiter = waiter
        return waiter
