"""How far a replay is, in one line: redrawn on a terminal, now and then a new one elsewhere. It goes to stderr.

What the user's handler prints belongs to stdout, and may be on its way into a file.
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
    """What there is to show."""

    reached: int | None
    """The limit: everything before the period that ends there is done."""
    share: float | None
    """Of the whole, from 0 to 1; None where there is no end."""
    records: int
    per_second: float | None
    seconds_left: float | None
    note: str
    """Who is waited for, or whatever else matters."""


class RateMeter:
    """How fast a count grows, over the last seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, count: float, at: float) -> None:
        """It was so high then."""
        self._samples.append((at, count))
        while at - self._samples[0][0] > _RATE_SECONDS and len(self._samples) > 2:
            self._samples.popleft()

    def per_second(self) -> float | None:
        """The pace; None while nobody can know."""
        if len(self._samples) < 2:
            return None
        (begun, first), (ended, last) = self._samples[0], self._samples[-1]
        return (last - first) / (ended - begun) if ended - begun > 0.3 else None


class Bar(Protocol):
    """Shows one view after the other."""

    def show(self, view: BarState) -> None:
        """Show this instead of the one before."""

    def write(self, line: str) -> None:
        """A line of output, above."""


def write_bar_text(view: BarState) -> str:
    """In one line, without the bar itself."""
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
    """Return the line for so many columns: what matters least is left out first."""
    line = write_bar_text(view)
    for less in ({"seconds_left": None}, {"per_second": None}, {"note": ""}):
        if len(line) > width:
            view = replace(view, **less)
            line = write_bar_text(view)
    return line[:width]


def bar_width(line: str, columns: int) -> int:
    """Return how wide the bar before this line may be; 0 if there is no room for one."""
    room = columns - len(line) - 1
    return min(_WIDTH, room) if room >= _LEAST_WIDTH else 0


def wrap(text: str) -> str:
    """Break long lines between words, on a terminal; a log takes them as they are. A command to be copied stays whole."""
    if not on_terminal():
        return text
    wrapper = textwrap.TextWrapper(shutil.get_terminal_size().columns, break_on_hyphens=False, break_long_words=False)
    return "\n".join(line if line.startswith("    ") else wrapper.fill(line) for line in text.splitlines())


def on_terminal() -> bool:
    """Whether output and errors both go to a terminal that can be redrawn."""
    return sys.stderr.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def choose_bar() -> AbstractContextManager[Bar]:
    """The best there is for this output."""
    if not on_terminal():
        return LineBar()
    if importlib.util.find_spec("rich") is not None:
        from aiokcc.cli.render_rich import RichBar

        return RichBar()
    return PlainBar()


def print_message(text: str) -> None:
    """Our own words. If nobody reads them any more that is no reason to leave off.

    Ctrl-C in ``aiokcc replay … 2>&1 | tee log`` ends tee too, and we have still to stop in good order.
    """
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class PlainBar:
    """One line that is redrawn, and is gone in the end."""

    def __init__(self) -> None:
        self._line = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._put("\r\x1b[K")

    def show(self, view: BarState) -> None:
        """Draw it anew."""
        columns = shutil.get_terminal_size().columns - 1
        line, bar = fit_bar_text(view, columns), ""
        if view.share is not None and (width := bar_width(line, columns - 2)):
            full = int(view.share * width)
            bar = f"[{'#' * full}{'.' * (width - full)}] "
        self._line = bar + line
        self._put(f"\r\x1b[K{self._line}")

    def write(self, line: str) -> None:
        """Above the bar."""
        self._put(f"\r\x1b[K{line}\n{self._line}")

    def _put(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


class LineBar:
    """A line every few seconds: for logs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock() + 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, view: BarState) -> None:
        """A line, if the last is long enough ago."""
        if view.reached is not None and self._clock() >= self._next:
            self._next = self._clock() + _LINE_SECONDS
            print_message(write_bar_text(view))

    def write(self, line: str) -> None:
        """As it is."""
        print(line, flush=True)
