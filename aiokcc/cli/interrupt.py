"""Ctrl-C and SIGTERM: the first signal requests a graceful stop, the second cancels the command.

A graceful stop takes as long as the running handlers take, unless a timeout is given, which acts as the second signal. The
second signal cancels the task. A third one, during the cleanup, has the system's default effect.

One cause may send a signal twice: ``timeout`` sends it to the process and to its group, and a program that wraps another
passes on a Ctrl-C that both have received. So signals that arrive within _SAME_SECONDS of the first count as the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["Interruption"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_SAME_SECONDS: Final = 0.2


class Interruption:
    """Handles the signals of one command, and remembers which of them arrived."""

    def __init__(
        self,
        request_stop: Callable[[], None],
        warn: Callable[[str], None],
        *,
        timeout: float | None = None,
        timed_out: Callable[[], None] = lambda: None,
    ) -> None:
        """``request_stop`` is called at the first signal; ``warn``, with its name, once a second one would cancel.

        If the graceful stop takes longer than ``timeout`` seconds, ``timed_out`` is called and the task is cancelled.
        """
        self._request_stop, self._warn = request_stop, warn
        self._timeout, self._timed_out = timeout, timed_out
        self.by: signal.Signals | None = None
        """The last signal that had an effect; None if there was none."""
        self.cancelled = False
        """True after a second signal, or the timeout, has cancelled the task."""
        self._armed = False

    @property
    def code(self) -> int:
        """The exit code that shells use for this signal."""
        return 128 + (self.by or signal.SIGTERM)

    @contextlib.contextmanager
    def handling(self) -> Iterator[None]:
        """Handle signals while the block runs, in place of the handlers that were set before."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        timers: list[asyncio.TimerHandle] = []

        def on_signal(number: signal.Signals) -> None:
            if self.by is None:
                self.by = number
                timers.append(loop.call_later(_SAME_SECONDS, self._arm))
                if self._timeout is not None:
                    timers.append(loop.call_later(self._timeout, on_timeout))
                self._request_stop()
            elif self._armed:
                self.by = number
                cancel()

        def on_timeout() -> None:
            if not self.cancelled:
                self._timed_out()
                cancel()

        def cancel() -> None:
            self.cancelled = True
            remove_handlers()
            task.cancel()

        def remove_handlers() -> None:
            for number in handled:
                loop.remove_signal_handler(number)

        # A shell that starts a command in the background sets SIGINT to be ignored; that stays so.
        handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        with contextlib.suppress(NotImplementedError):  # a system without signals
            for number in handled:
                loop.add_signal_handler(number, on_signal, number)
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()
            with contextlib.suppress(NotImplementedError):
                remove_handlers()

    def _arm(self) -> None:
        self._armed = True
        self._warn("Ctrl-C" if self.by == signal.SIGINT else "SIGTERM")
