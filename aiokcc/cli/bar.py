"""The progress of a replay in one line on stderr: redrawn on a terminal, printed every few seconds elsewhere.

stdout belongs to the user's handler.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, Protocol, Self

from aiokcc.cli.formatting import count, format_elapsed
from aiokcc.core.periods import format_time

__all__ = [
    "Bar",
    "BarState",
    "LineBar",
    "PlainBar",
    "RateMeter",
    "bar_width",
    "choose_bar",
    "fit_bar_text",
    "on_terminal",
    "print_message",
    "wrap",
    "write_bar_text",
]

_WIDTH: Final = 24
_LEAST_WIDTH: Final = 8
_LINE_SECONDS: Final = 5.0
_RATE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class BarState:
    """The values that a bar shows."""

    reached: int | None
    """The limit; None before the first one is known."""
    share: float | None
    """The part of the run that is done, from 0 to 1; None if the run has no end."""
    records: int
    per_second: float | None
    seconds_left: float | None
    note: str
    """The partition that the others wait for, or another remark."""


class RateMeter:
    """Measures the rate at which a count grows, over the last _RATE_SECONDS."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, count: float, at: float) -> None:
        """Record one sample of the count."""
        self._samples.append((at, count))
        while at - self._samples[0][0] > _RATE_SECONDS and len(self._samples) > 2:
            self._samples.popleft()

    def per_second(self) -> float | None:
        """Return the rate; None while there are too few samples."""
        if len(self._samples) < 2:
            return None
        (begun, first), (ended, last) = self._samples[0], self._samples[-1]
        return (last - first) / (ended - begun) if ended - begun > 0.3 else None


class Bar(Protocol):
    """Shows the latest state, and lines of output above it."""

    def show(self, view: BarState) -> None:
        """Replace the state that is shown."""

    def write(self, line: str) -> None:
        """Print a line of output above the bar."""


def write_bar_text(view: BarState) -> str:
    """Return the text next to the bar, in one line."""
    parts = ["starting" if view.reached is None else format_time(view.reached)]
    if view.share is not None:
        parts.append(f"{int(view.share * 100)}%")
    parts.append(count(view.records, "record"))
    if view.per_second is not None:
        parts.append(f"{view.per_second:,.0f}/s")
    if view.seconds_left is not None:
        parts.append(f"{format_elapsed(view.seconds_left)} left")
    return "  ".join((*parts, view.note) if view.note else parts)


def fit_bar_text(view: BarState, width: int) -> str:
    """Return the text in at most ``width`` columns; the least important parts are left out first."""
    line = write_bar_text(view)
    for less in ({"seconds_left": None}, {"per_second": None}, {"note": ""}):
        if len(line) > width:
            view = replace(view, **less)
            line = write_bar_text(view)
    return line[:width]


def bar_width(line: str, columns: int) -> int:
    """Return the width of the bar next to this text; 0 if there is no room for one."""
    room = columns - len(line) - 1
    return min(_WIDTH, room) if room >= _LEAST_WIDTH else 0


def wrap(text: str) -> str:
    """Break long lines between words if the output is a terminal. Indented commands, meant to be copied, stay whole."""
    if not on_terminal():
        return text
    wrapper = textwrap.TextWrapper(shutil.get_terminal_size().columns, break_on_hyphens=False, break_long_words=False)
    return "\n".join(line if line.startswith("    ") else wrapper.fill(line) for line in text.splitlines())


def on_terminal() -> bool:
    """Return whether stdout and stderr both go to a terminal that can be redrawn."""
    return sys.stderr.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def choose_bar() -> AbstractContextManager[Bar]:
    """Return the best bar for this output."""
    if not on_terminal():
        return LineBar()
    if importlib.util.find_spec("rich") is not None:
        from aiokcc.cli.render_rich import RichBar

        return RichBar()
    return PlainBar()


def print_message(text: str) -> None:
    """Print a message of the command to stderr. If stderr is closed, this and later messages are dropped.

    Ctrl-C in ``aiokcc replay … 2>&1 | tee log`` ends tee too, and the replay still has to stop gracefully.
    """
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class PlainBar:
    """Redraws one line of plain text, and erases it at the end."""

    def __init__(self) -> None:
        self._line = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._put("\r\x1b[K")

    def show(self, view: BarState) -> None:
        """Redraw the line."""
        columns = shutil.get_terminal_size().columns - 1
        line, bar = fit_bar_text(view, columns), ""
        if view.share is not None and (width := bar_width(line, columns - 2)):
            full = int(view.share * width)
            bar = f"[{'#' * full}{'.' * (width - full)}] "
        self._line = bar + line
        self._put(f"\r\x1b[K{self._line}")

    def write(self, line: str) -> None:
        """Print the line above the bar."""
        self._put(f"\r\x1b[K{line}\n{self._line}")

    def _put(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


class LineBar:
    """Prints a line every few seconds, for logs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock() + 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, view: BarState) -> None:
        """Print a line, if _LINE_SECONDS have passed since the last."""
        if view.reached is not None and self._clock() >= self._next:
            self._next = self._clock() + _LINE_SECONDS
            print_message(write_bar_text(view))

    def write(self, line: str) -> None:
        """Print the line to stdout, unchanged."""
        print(line, flush=True)
