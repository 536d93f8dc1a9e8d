"""Renders a status view and the bar in colour, with rich (the ``cli`` extra). The only module that imports rich."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from aiokcc.cli.bar import BarState, bar_width, fit_bar_text
from aiokcc.cli.health import HealthKind
from aiokcc.cli.status_view import StatusView, Table

__all__ = ["RichBar", "RichScreen", "print_view"]

_STYLES: Final = {
    HealthKind.MOVING: "green",
    HealthKind.ENDED: "green",
    HealthKind.RELEASED: "cyan",
    HealthKind.HELD: "cyan",
    HealthKind.IDLE: "blue",
    HealthKind.CLOCK: "blue",
    HealthKind.BLOCKED: "yellow",
    HealthKind.STALLED: "yellow",
    HealthKind.NO_MEMBERS: "yellow",
    HealthKind.UNREADABLE: "red",
}
_STATE_STYLES: Final = {
    "running": "yellow",
    "waiting": "green",
    "idle": "blue",
    "finished": "dim",
    "unreported": "yellow",
    "unowned": "red",
    "leads": "green",
}


def print_view(view: StatusView) -> None:
    """Print the view once."""
    Console().print(_render(view))


class RichScreen:
    """Redraws the view in place, and leaves the last one on the terminal."""

    def __init__(self) -> None:
        self._console = Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._last: StatusView | None = None

    def __enter__(self) -> RichScreen:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if self._last is not None:
            self._console.print(_render(self._last))

    def show(self, view: StatusView, note: str) -> None:
        """Redraw the view."""
        self._last = view
        self._live.update(Group(_render(view), Text(note, style="dim")), refresh=True)

    def show_text(self, text: str) -> None:
        """Draw a sentence while there is no view."""
        self._live.update(Text(text), refresh=True)


class RichBar:
    """Redraws the bar in one line, and erases it at the end."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, transient=True, auto_refresh=False, redirect_stdout=False)

    def __enter__(self) -> RichBar:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, view: BarState) -> None:
        """Redraw the bar."""
        columns, pulse = self._console.width, view.share is None
        line = fit_bar_text(replace(view, note=""), columns)
        note = Text(view.note, style="yellow" if " for " in view.note.removeprefix("waits for ") else "dim")
        width = bar_width(line, columns)
        fits = columns >= width + len(line) + len(view.note) + 3
        shown = Text.assemble(line, "  ", note) if fits else Text(line)
        row: RenderableType = shown
        if width:
            row = RichTable.grid(padding=(0, 1))
            row.add_column(width=width)
            row.add_column(no_wrap=True)
            bar = ProgressBar(None if pulse else 1.0, view.share or 0.0, width=width, pulse=pulse)
            row.add_row(bar, shown)
        self._live.update(row if fits else Group(row, note), refresh=True)

    def write(self, line: str) -> None:
        """Print the line above the bar, unchanged."""
        self._console.out(line, highlight=False)


def _render(view: StatusView) -> RenderableType:
    style = "red" if view.health.stuck else _STYLES[view.health.kind]
    head = Text(view.health.text, style=f"bold {style}")
    for hint in view.hints:
        head.append(f"\n{hint}", style="default not bold")
    parts: list[RenderableType] = [Panel(head, title=Text(view.where), title_align="left", border_style=style)]
    if view.blocking is not None:
        parts += [_table(view.blocking, style), Text()]
    for problem in view.problems:
        parts.append(Text(f"! {problem}", style="red"))
    facts = RichTable.grid(padding=(0, 2))
    for label, value in view.facts:
        number, *rest = value.split("   ")
        facts.add_row(
            Text(f" {label}", style="dim"), Text.assemble((number, "bold"), *(("   " + r, "dim") for r in rest))
        )
    parts.append(facts)
    for table in view.tables:
        parts += [Text(), _table(table, style)]
    return Group(*parts)


def _table(table: Table, style: str) -> RichTable:
    made = RichTable(
        title=Text(table.title, style="bold"),
        title_justify="left",
        caption=Text(table.note, style="dim") if table.note else None,
        caption_justify="left",
        box=None,
        header_style="dim",
        pad_edge=True,
    )
    for n, column in enumerate(table.columns):
        made.add_column(column, justify="right" if n in table.right else "left", no_wrap=n == 0)
    for number, row in enumerate(table.rows):
        marked = f"bold {style}" if number in table.marked else ""
        made.add_row(*(Text(cell, style=marked or _STATE_STYLES.get(cell, "")) for cell in row))
    return made
