"""The signal with which tasks of the runtime wake each other."""

from __future__ import annotations

import asyncio

__all__ = ["Signal"]


class Signal:
    """An event for one waiting task: setting it twice wakes once, and setting it before the wait is not lost.

    ``asyncio.Event`` keeps a queue of waiters and stays set; here one task waits, and waking clears. ``wait()`` returns a bare
    future, because a coroutine around it would double the cost. A gate, which waits once for each period, has a signal that
    costs even less (:mod:`aiokcc.runtime.gate_signal`).
    A task that is cancelled in the moment when it is woken loses the wake-up, so check the condition before each wait.
    """

    __slots__ = ("_is_set", "_loop", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wakes the waiting task, or lets the next ``wait()`` return at once."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        else:
            self._is_set = True

    def clear(self) -> None:
        """Clears the signal."""
        self._is_set = False

    def wait(self) -> asyncio.Future[None]:
        """Returns a future that is done when the signal is set; that clears it. Raises RuntimeError if another task waits."""
        loop = self._loop
        if loop is None:  # kept: up to Python 3.11 the lookup is a system call
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
