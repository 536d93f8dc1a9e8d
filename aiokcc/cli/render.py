"""Renders views: with rich on a terminal; as plain text in pipes, in logs, and where rich (the ``cli`` extra) is missing.

On a terminal the latest view is redrawn in place (:mod:`aiokcc.cli.render_rich`). Elsewhere a view becomes a line of text.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol, TextIO

from aiokcc.cli.logs import is_json
from aiokcc.core.formatting import count, format_elapsed
from aiokcc.core.periods import format_time
from aiokcc.views.model import ReplayProgress, StatusView, Table, View

__all__ = [
    "Display",
    "LogLines",
    "open_progress_display",
    "open_status_display",
    "print_message",
    "print_status",
    "wrap",
    "write_line",
    "write_progress",
    "write_status",
    "write_table",
]

log = logging.getLogger("aiokcc.cli")

_FIRST_LINE_SECONDS: Final = 1.0
_LINE_SECONDS: Final = 10.0


class Display(Protocol):
    """Shows the latest view, and messages above it."""

    live: bool
    """True if the view is redrawn in place, so that elapsed time can be shown as it passes."""

    def show(self, view: View) -> None:
        """Replace the view that is shown."""

    def write(self, line: str) -> None:
        """Print a message, which stays."""


def open_status_display() -> AbstractContextManager[Display]:
    """Return the display for ``status --watch``, on stdout. The last view stays on the terminal."""
    if _can_redraw(sys.stdout):
        from aiokcc.cli.render_rich import LiveDisplay

        return LiveDisplay(full_screen=True)
    return nullcontext(LogLines(lambda line: print(line, flush=True)))


def open_progress_display() -> AbstractContextManager[Display]:
    """Return the display for the progress of a replay, on stderr: stdout belongs to the user's handler."""
    if is_json():
        return nullcontext(LogLines(print_message, every=_LINE_SECONDS, write_view=_log_view))
    if _can_redraw(sys.stdout, sys.stderr):
        from aiokcc.cli.render_rich import LiveDisplay

        return LiveDisplay(full_screen=False)
    return nullcontext(LogLines(print_message, every=_LINE_SECONDS))


def print_status(view: StatusView) -> None:
    """Print the view once, in colour if possible."""
    if _can_redraw(sys.stdout):
        from aiokcc.cli import render_rich

        render_rich.print_status(view)
    else:
        sys.stdout.write(write_status(view))


def print_message(text: str) -> None:
    """Print a message of the command to stderr, or log it as JSON. If stderr is closed, later messages are dropped.

    Ctrl-C in ``aiokcc replay … 2>&1 | tee log`` ends tee too, and the replay still has to stop gracefully.
    """
    if is_json():
        log.info("%s", text)
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def wrap(text: str) -> str:
    """Break long lines between words if the output is a terminal. Indented commands, meant to be copied, stay whole."""
    if not _is_terminal(sys.stdout, sys.stderr):
        return text
    wrapper = textwrap.TextWrapper(shutil.get_terminal_size().columns, break_on_hyphens=False, break_long_words=False)
    return "\n".join(line if line.startswith("    ") else wrapper.fill(line) for line in text.splitlines())


class LogLines:
    """Prints one line for a view.

    With ``every``, it prints a line after that many seconds; without, if something other than the elapsed time has changed.
    """

    live = False

    def __init__(
        self,
        write: Callable[[str], None],
        every: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        write_view: Callable[[View, str], None] | None = None,
    ) -> None:
        self.write = write
        self._write_view = write_view or (lambda _, line: write(line))
        self._every, self._clock = every, clock
        self._next = clock() + _FIRST_LINE_SECONDS
        self._last: object = None

    def show(self, view: View) -> None:
        """Print one line, if it is due."""
        line, news, now = write_line(view), _news(view), self._clock()
        due = news != self._last if self._every is None else now >= self._next
        if line and due:
            self._last, self._next = news, now + (self._every or 0)
            self._write_view(view, line)


def _log_view(view: View, line: str) -> None:
    """Log the progress, with its figures as facts."""
    facts: dict[str, object] = {}
    if isinstance(view, ReplayProgress):
        facts = {
            "limit": view.reached,
            "share": view.share,
            "records": view.records,
            "records_per_second": view.per_second,
            "seconds_left": view.seconds_left,
            "note": view.note,
        }
    log.info("%s", line, extra=facts)


# -- plain text ---------------------------------------------------------------------------------------------------------


def write_status(view: StatusView) -> str:
    """Return the whole view as text."""
    blocks = [f"{view.where}\n{view.health.text}" + "".join(f"\n  {hint}" for hint in view.hints)]
    if view.blocking is not None:
        blocks.append(write_table(view.blocking))
    if view.problems:
        blocks.append("Problems\n" + "\n".join(f"  ! {problem}" for problem in view.problems))
    width = max((len(label) for label, _ in view.facts), default=0)
    blocks.append("\n".join(f"{label:<{width}}  {value}" for label, value in view.facts))
    blocks += map(write_table, view.tables)
    return "\n\n".join(filter(None, blocks)) + "\n"


def write_table(table: Table) -> str:
    """Return a table as text."""
    return "\n".join(_table_lines(table))


def _table_lines(table: Table) -> Iterator[str]:
    yield table.title
    rows = [tuple(c.upper() for c in table.columns), *table.rows]
    widths = [max(len(row[n]) for row in rows) for n in range(len(table.columns))]
    for number, row in enumerate(rows, start=-1):
        cells = [
            f"{c:>{w}}" if n in table.right else f"{c:<{w}}" for n, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"{'*' if number in table.marked else ' '} {'  '.join(cells)}".rstrip()
    if table.note:
        yield f"  {table.note}"


def write_line(view: View) -> str:
    """Return the most important of a view in one line; empty for a replay that has not begun."""
    match view:
        case StatusView():
            limit = dict(view.facts).get("limit", "").split("   ")[0]
            return "  ".join(filter(None, (limit, view.health.text)))
        case ReplayProgress():
            return "" if view.reached is None else write_progress(view)
    return view


def write_progress(view: ReplayProgress) -> str:
    """Return the progress in one line."""
    parts = ["starting" if view.reached is None else format_time(view.reached)]
    if view.share is not None:
        parts.append(f"{int(view.share * 100)}%")
    parts.append(count(view.records, "record"))
    if view.per_second is not None:
        parts.append(f"{view.per_second:,.0f}/s")
    if view.seconds_left is not None:
        parts.append(f"{format_elapsed(view.seconds_left)} left")
    return "  ".join((*parts, view.note) if view.note else parts)


def _news(view: View) -> object:
    """Return the part of a view whose change is worth a line."""
    if not isinstance(view, StatusView):
        return view
    blocking = [] if view.blocking is None else [(row[0], row[1], row[3]) for row in view.blocking.rows]
    return view.facts, view.health.kind, blocking, view.problems


def _is_terminal(*streams: TextIO) -> bool:
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM", "dumb") != "dumb"


def _can_redraw(*streams: TextIO) -> bool:
    return _is_terminal(*streams) and importlib.util.find_spec("rich") is not None
