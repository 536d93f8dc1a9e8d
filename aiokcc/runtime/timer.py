"""One timing wheel for all delayed work of an event loop, driven by one timer of the loop.

``timers()`` returns the timers of the running loop; everything that waits for a deadline shares them. The loop's timer is set
for the next bucket that has timers, and not at all while nothing is pending: an idle process sleeps. It is set again only if an
earlier timer is added, or if the timer it was set for is cancelled. So a million deadlines that move back again and again, as
idle limits do, cost the loop nothing.

A tick is a millisecond. A callback is called at the end of the tick of its deadline: never early, and at most a tick late if
the loop is free. Callbacks run one after the other. If one raises, the loop's exception handler is called, and the others
still run.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

from aiokcc.core.wheel import Timer, Wheel
from aiokcc.errors import UsageError

__all__ = ["Timeout", "Timers", "timers"]

_TICKS: Final = 1000  # per second

Timeout = Timer[Callable[[], object]]
"""A pending call; ``cancel()`` returns False if it was called or cancelled before."""


class Timers:
    """The timers of one event loop. Get them from ``timers()``; there is nothing to close."""

    __slots__ = ("_add", "_armed", "_handle", "_loop", "_time", "_turn", "_wheel")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # The loop's clock, without the call of a method that only returns it.
        self._time = time.monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time
        self._wheel: Wheel[Callable[[], object]] = Wheel(int(loop.time() * _TICKS), on_emptied=self._emptied)
        self._add = self._wheel.add
        self._turn = 0
        """The tick at which callbacks last ran."""
        self._handle: asyncio.TimerHandle | None = None
        self._armed: float = math.inf
        """The tick that the loop's timer is set for; below 0 while callbacks run, because it is set after them."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timeout:
        """Call ``callback`` after ``delay`` seconds, unless the timer is cancelled before. UsageError for an invalid delay.

        It is not called within this call, nor in the same turn as a callback that calls this. So callbacks that call each other
        without a delay do not block the loop.
        """
        try:
            # The tick after that of the deadline, so that it is not early.
            deadline = int((self._time() + (0 if delay <= 0 else delay)) * _TICKS) + 1  # noqa: FURB136 - max() is slow
        except (ValueError, OverflowError):
            raise UsageError(f"the delay is {delay!r}; expected a number of seconds") from None
        if deadline <= self._turn:  # the loop's clock may be slightly before the tick for which it has called us
            deadline = self._turn + 1
        timer = self._add(deadline, callback)
        if deadline < self._armed:
            self._arm(deadline)
        return timer

    def add(self, deadline: int, callback: Callable[[], object]) -> Timeout:
        """Call ``callback`` at a tick of the loop's clock. Delayed operations (:mod:`aiokcc.core.delayed`) use it."""
        deadline = max(deadline, self._turn + 1)
        timer = self._add(deadline, callback)
        if deadline < self._armed:
            self._arm(deadline)
        return timer

    def _arm(self, tick: int | None) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if tick is None:
            self._handle, self._armed = None, math.inf
        else:
            self._handle, self._armed = self._loop.call_at(tick / _TICKS, self._wake), tick

    def _emptied(self) -> None:
        """Set the loop's timer again, if the cancelled timer was the one it was set for."""
        if self._armed < 0:
            return  # callbacks run, and the loop's timer is set after them
        following = self._wheel.next()
        if following is None or following > self._armed:
            self._arm(following)

    def _wake(self) -> None:
        # The loop may call slightly early, within the resolution of its clock: treat the tick that was set as reached.
        self._turn = now = max(int(self._time() * _TICKS), int(self._armed))
        self._handle, self._armed = None, -math.inf
        try:
            while (timer := self._wheel.pop(now)) is not None:
                try:
                    timer.item()
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as the loop does with its own callbacks
                    self._loop.call_exception_handler(
                        {"message": f"a timer's callback {timer.item!r} failed", "exception": error}
                    )
        finally:
            self._arm(self._wheel.next())


_of_loop: Final[dict[asyncio.AbstractEventLoop, Timers]] = {}


def timers() -> Timers:
    """Return the timers of the running loop."""
    loop = asyncio.get_running_loop()
    found = _of_loop.get(loop)
    if found is None:
        for old in [old for old in _of_loop if old.is_closed()]:
            del _of_loop[old]
        found = _of_loop[loop] = Timers(loop)
    return found
