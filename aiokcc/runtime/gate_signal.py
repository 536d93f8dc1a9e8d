"""The signal of a gate: what the task of a partition waits for, and how all of them are woken at once.

When the limit moves, all gates of a member open. With a future for each, every wake-up is a call of its own in the event loop's
queue, and that costs more than the task does until it waits again. Here the signal itself is what the task waits for, in place
of a future, and :func:`wake_together` puts one call into the queue, which lets the tasks go on one after the other.

It does what ``asyncio`` asks of anything that a task waits for: ``_asyncio_future_blocking``, ``add_done_callback``,
``get_loop``, ``cancel`` and ``result``. It serves one task at a time, and again and again, so nothing is made for each wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from contextvars import Context
from typing import Any, Self

__all__ = ["GateSignal", "wake_together"]


class GateSignal:
    """Wakes one waiting task: setting it twice wakes once, and setting it before the wait is not lost.

    A task that is cancelled in the moment when it is woken loses the wake-up, so check the condition before each wait.
    """

    __slots__ = ("_asyncio_future_blocking", "_callback", "_cancelled", "_context", "_is_set", "_loop", "_waits")

    def __init__(self) -> None:
        self._asyncio_future_blocking = False
        self._is_set = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waits = False
        """True while a task waits and nothing has woken it."""
        self._cancelled: asyncio.CancelledError | None = None
        """The arguments of the error for a task that was cancelled while it waited; anyio knows its own by the message."""
        self._callback: Callable[[Any], object] | None = None
        """Lets the waiting task go on; None if none waits."""
        self._context: Context | None = None

    def set(self) -> None:
        """Wakes the waiting task, or lets the next ``await`` return at once."""
        if self._waits:
            self._waits = False
            self.get_loop().call_soon(self._go_on)
        else:
            self._is_set = True

    def wait(self) -> Self:
        """Returns the signal itself, to be awaited: that returns when it is set, and clears it.

        Awaiting raises RuntimeError if another task waits.
        """
        return self

    def __await__(self) -> Generator[Self, None, None]:
        if self._is_set:
            self._is_set = False
            return
        if self._callback is not None:
            raise RuntimeError("another task waits for this signal already; it would never be woken")
        self._asyncio_future_blocking = True
        yield self

    def _go_on(self) -> None:
        callback, context = self._callback, self._context
        if callback is not None and context is not None:
            self._callback = self._context = None  # the task may wait again before this returns
            context.run(callback, self)

    # -- what a task asks of what it waits for --------------------------------------------------------------------------

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Returns the event loop."""
        loop = self._loop
        if loop is None:  # kept: up to Python 3.11 the lookup is a system call
            loop = self._loop = asyncio.get_running_loop()
        return loop

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context) -> None:
        """Takes what lets the task go on."""
        self._callback, self._context = callback, context
        self._waits = True

    def cancel(self, msg: object = None) -> bool:
        """Cancels the wait. Returns False if the task was woken already: then it is cancelled when it goes on."""
        if not self._waits:
            return False
        self._waits, self._cancelled = False, asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
        self.get_loop().call_soon(self._go_on)
        return True

    def result(self) -> None:
        """Raises CancelledError if the wait was cancelled."""
        error = self._cancelled
        if error is not None:
            self._cancelled = None
            raise error


def wake_together(signals: Iterable[GateSignal]) -> None:
    """Sets all these signals: the tasks go on in the next turn of the event loop, in this order."""
    waiting: list[GateSignal] = []
    for signal in signals:
        if signal._waits:
            signal._waits = False
            waiting.append(signal)
        else:
            signal._is_set = True
    if waiting:
        waiting.reverse()
        waiting[-1].get_loop().call_soon(_go_on_together, waiting)


def _go_on_together(waiting: list[GateSignal]) -> None:
    try:
        while waiting:  # as GateSignal._go_on does, without a call for each
            signal = waiting.pop()
            callback, context = signal._callback, signal._context
            if callback is not None and context is not None:
                signal._callback = signal._context = None
                context.run(callback, signal)
    finally:
        if waiting:  # a task has ended with KeyboardInterrupt or SystemExit; that must not stop the others
            waiting[-1].get_loop().call_soon(_go_on_together, waiting)
