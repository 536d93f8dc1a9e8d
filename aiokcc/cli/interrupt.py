"""Being told to stop: the first Ctrl-C or SIGTERM asks, the second ends it.

Asked, a command comes to its end in good order, for as long as that takes. Told again, it is cancelled where it stands. Whoever
tells it a third time, while it still cleans up, gets what the system does by default.

One cause may bring a signal twice: ``timeout`` sends it to the process and to its group, and a program that wraps another
passes on the Ctrl-C that both have got. So what follows at once counts as the same; from then on *once more* is meant.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["Interruption"]

_HEARD: Final = (signal.SIGINT, signal.SIGTERM)
_SAME_SECONDS: Final = 0.2


class Interruption:
    """What the command was told from outside."""

    def __init__(self, ask: Callable[[], None], warn: Callable[[str], None]) -> None:
        """``ask`` is called when asked; ``warn``, with a word for what was heard, when from then on once more ends it."""
        self._ask, self._warn = ask, warn
        self.by: signal.Signals | None = None
        """The signal that asked; None: nobody did."""
        self.twice = False
        """Whether it was told again, and cancelled."""
        self._armed = False

    @property
    def code(self) -> int:
        """The exit code for it, as shells count."""
        return 128 + (self.by or signal.SIGTERM)

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Hear signals while the block runs, instead of whoever has heard them so far."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        timer: asyncio.TimerHandle | None = None

        def hear(number: signal.Signals) -> None:
            nonlocal timer
            if self.by is None:
                self.by = number
                timer = loop.call_later(_SAME_SECONDS, self._arm)
                self._ask()
            elif self._armed:
                self.by, self.twice = number, True
                unheard()
                task.cancel()

        def unheard() -> None:
            for number in heard:
                loop.remove_signal_handler(number)

        # Who starts us in the background of a script has Ctrl-C ignored, for it is not meant for us.
        heard = [number for number in _HEARD if signal.getsignal(number) is not signal.SIG_IGN]
        with contextlib.suppress(NotImplementedError):  # a system without signals
            for number in heard:
                loop.add_signal_handler(number, hear, number)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            with contextlib.suppress(NotImplementedError):
                unheard()

    def _arm(self) -> None:
        self._armed = True
        self._warn("Ctrl-C" if self.by == signal.SIGINT else "SIGTERM")
