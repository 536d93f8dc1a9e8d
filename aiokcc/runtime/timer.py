"""One timing wheel for all delayed work of an event loop, driven by one timer of the loop.

``timers()`` gives the running loop's; everything that waits for a deadline shares it. The loop's timer is set for the next
bucket that has something in it, and not at all while nothing is pending: an idle process sleeps. It is set anew only when
something is added that comes before it, or when what it was set for has been cancelled; so a million deadlines that are
pushed back again and again, as idle limits are, cost the loop nothing.

A tick is a millisecond. A timer comes at the end of the tick that its deadline lies in: never early, and at most a tick late
where the loop is free. Callbacks run as the loop's own do, one after the other; one that raises is told to the loop's exception
handler, and the others still run.
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
"""What is pending; ``cancel()`` says whether it was still to come."""


class Timers:
    """The timers of one event loop. ``timers()`` makes it; there is nothing to close."""

    __slots__ = ("_add", "_armed", "_handle", "_loop", "_time", "_turn", "_wheel")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # The loop's clock, without the call that only passes it on.
        self._time = time.monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time
        self._wheel: Wheel[Callable[[], object]] = Wheel(int(loop.time() * _TICKS), on_emptied=self._emptied)
        self._add = self._wheel.add
        self._turn = 0
        """The tick of the last turn of callbacks."""
        self._handle: asyncio.TimerHandle | None = None
        self._armed: float = math.inf
        """The tick that the loop's timer is set for; below 0 while callbacks run, after which it will be set."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timeout:
        """Call ``callback`` once ``delay`` seconds have passed, unless the timer is cancelled before.

        It is never called from within this call, nor in the same turn as the callback that makes it: a row of calls without a
        delay does not keep the loop from its other work.
        """
        try:
            # The tick after the one that the deadline lies in: so it is not early.
            deadline = int((self._time() + (0 if delay <= 0 else delay)) * _TICKS) + 1  # noqa: FURB136 - max() is slow
        except (ValueError, OverflowError):
            raise UsageError(f"the delay is {delay!r}; expected a number of seconds") from None
        if deadline <= self._turn:  # the loop's clock may stand a little before the tick that it has called us for
            deadline = self._turn + 1
        timer = self._add(deadline, callback)
        if deadline < self._armed:
            self._arm(deadline)
        return timer

    def add(self, deadline: int, callback: Callable[[], object]) -> Timeout:
        """The same, at a tick: so that a :class:`~aiokcc.core.delayed.Purgatory` can have its deadlines here."""
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
        """Something was cancelled; perhaps what we are waiting for."""
        if self._armed < 0:
            return  # it is being handled, and the timer will be set after that
        following = self._wheel.next()
        if following is None or following > self._armed:
            self._arm(following)

    def _wake(self) -> None:
        # The loop may call a little early, within the resolution of its clock: the tick that it was set for has come.
        self._turn = now = max(int(self._time() * _TICKS), int(self._armed))
        self._handle, self._armed = None, -math.inf
        try:
            while (timer := self._wheel.pop(now)) is not None:
                try:
                    timer.what()
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as the loop does with its own callbacks
                    self._loop.call_exception_handler(
                        {"message": f"a timer's callback {timer.what!r} failed", "exception": error}
                    )
        finally:
            self._arm(self._wheel.next())


_of_loop: Final[dict[asyncio.AbstractEventLoop, Timers]] = {}


def timers() -> Timers:
    """The running loop's timers."""
    loop = asyncio.get_running_loop()
    found = _of_loop.get(loop)
    if found is None:
        for old in [old for old in _of_loop if old.is_closed()]:
            del _of_loop[old]
        found = _of_loop[loop] = Timers(loop)
    return found
