"""Virtual time for tests: an event loop whose clock jumps to the next timer when nothing else can happen.

A test may wait for an hour without delay, and every run sees the same order of events. ``await asyncio.sleep(x)`` lets
everything run that can run within ``x`` seconds of virtual time, so ``settle()`` is how a test waits until all is quiet.

If nothing is ready and no timer is set, nothing can ever happen again: a real loop hangs then, this one raises DeadlockError
and says where each task waits.
"""

from __future__ import annotations

import asyncio
import io
import selectors

__all__ = ["DeadlockError", "VirtualLoop", "settle"]

_INSTANT = 1e-6


class DeadlockError(RuntimeError):
    """Every task waits, and no timer will wake one."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time. No sockets, no threads: nothing from outside can wake it."""

    def __init__(self) -> None:
        self._now = 1000.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float | None) -> None:
        """Let so much time pass, because nothing is ready. None means that there is nothing to wait for."""
        if seconds is None:
            raise DeadlockError(self._where())
        self._now += seconds

    def _where(self) -> str:
        text = io.StringIO()
        text.write("every task waits for another:\n")
        for task in sorted(asyncio.all_tasks(self), key=lambda task: task.get_name()):
            task.print_stack(limit=3, file=text)
        return text.getvalue()


class _Selector(selectors.SelectSelector):
    """Never waits: when the loop would sleep, its clock jumps."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events and (timeout is None or timeout > 0):
            self._loop.jump(timeout)
        return events


async def settle() -> None:
    """Let all tasks run until nothing more can happen now."""
    await asyncio.sleep(_INSTANT)
