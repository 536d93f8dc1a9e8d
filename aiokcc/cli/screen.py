"""Chooses how status views are shown: redrawn on a terminal, with or without rich, or as lines in a pipe."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self

from aiokcc.cli.render_text import write_view_line, write_view_text
from aiokcc.cli.status_view import StatusView

__all__ = ["JsonLines", "LogLines", "PlainScreen", "Screen", "choose_screen", "print_view"]


class Screen(Protocol):
    """Shows the latest view."""

    def show(self, view: StatusView, note: str) -> None:
        """Replace the view that is shown."""

    def show_text(self, text: str) -> None:
        """Show a sentence while there is no view."""


def _is_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _has_rich() -> bool:
    return importlib.util.find_spec("rich") is not None


def print_view(view: StatusView) -> None:
    """Print the view once, in colour if possible."""
    if _is_terminal() and _has_rich():
        from aiokcc.cli import render_rich

        render_rich.print_view(view)
    else:
        sys.stdout.write(write_view_text(view))


def choose_screen() -> AbstractContextManager[Screen]:
    """Return the best screen for this output."""
    if not _is_terminal():
        return LogLines()
    if _has_rich():
        from aiokcc.cli.render_rich import RichScreen

        return RichScreen()
    return PlainScreen()


class PlainScreen:
    """Redraws plain text on the terminal's alternate screen, and prints the last view on the normal one at the end."""

    def __init__(self) -> None:
        self._last: StatusView | None = None

    def __enter__(self) -> Self:
        self._write("\x1b[?1049h\x1b[?25l")
        return self

    def __exit__(self, *_: object) -> None:
        self._write("\x1b[?25h\x1b[?1049l")
        if self._last is not None:
            self._write(write_view_text(self._last))

    def show(self, view: StatusView, note: str) -> None:
        """Draw as much of the view as fits."""
        self._last = view
        self._draw(f"{write_view_text(view)}\n{note}")

    def show_text(self, text: str) -> None:
        """Draw a sentence."""
        self._draw(text)

    def _draw(self, text: str) -> None:
        size = shutil.get_terminal_size()
        lines = [line[: size.columns] for line in text.splitlines()[: size.lines]]
        self._write("\x1b[H" + "\x1b[K\r\n".join(lines) + "\x1b[K\x1b[J")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


class LogLines:
    """Prints one line when something other than the elapsed time has changed."""

    def __init__(self) -> None:
        self._last: object = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, view: StatusView, note: str) -> None:
        """Print one line, if the view has changed."""
        culprits = [] if view.blocking is None else [(row[0], row[1], row[3]) for row in view.blocking.rows]
        self._print((view.facts, view.health.kind, culprits, view.problems), write_view_line(view))

    def show_text(self, text: str) -> None:
        """Print the line, unless it is the same as the last."""
        self._print(text, text)

    def _print(self, news: object, text: str) -> None:
        if news != self._last:
            self._last = news
            print(text, flush=True)


class JsonLines:
    """Prints one JSON object per line."""

    @staticmethod
    def write(value: dict[str, Any]) -> None:
        """Print one object."""
        print(json.dumps(value), flush=True)
