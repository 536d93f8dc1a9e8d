"""Renders views in colour, and redraws them in place, with rich. The only module that imports rich."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Self, assert_never

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from aiokcc.cli.render import write_progress
from aiokcc.runtime.health import HealthKind
from aiokcc.views.model import ReplayProgress, StatusView, Table, View

__all__ = ["LiveDisplay", "print_status", "render"]

_WIDTH: Final = 24
_LEAST_WIDTH: Final = 8
_STATE_STYLES: Final = {
    "running": "yellow",
    "waiting": "green",
    "idle": "blue",
    "finished": "dim",
    "unreported": "yellow",
    "unowned": "red",
    "leads": "green",
}


def _style(kind: HealthKind) -> str:
    match kind:
        case HealthKind.MOVING | HealthKind.ENDED:
            return "green"
        case HealthKind.RELEASED | HealthKind.HELD:
            return "cyan"
        case HealthKind.IDLE | HealthKind.CLOCK:
            return "blue"
        case HealthKind.BLOCKED | HealthKind.STALLED | HealthKind.NO_MEMBERS:
            return "yellow"
        case HealthKind.UNREADABLE:
            return "red"
        case _:
            assert_never(kind)


def print_status(view: StatusView) -> None:
    """Print the view once."""
    Console().print(_status(view))


class LiveDisplay:
    """Redraws the latest view in place: on a full screen on stdout, or below the messages on stderr.

    At the end, the last view of a full screen is printed; otherwise nothing of it stays.
    """

    live = True

    def __init__(self, *, full_screen: bool) -> None:
        self._console = Console(stderr=not full_screen)
        self._live = Live(
            console=self._console,
            screen=full_screen,
            transient=not full_screen,
            auto_refresh=False,
            redirect_stdout=full_screen,
        )
        self._last: StatusView | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if self._last is not None:
            self._console.print(_status(self._last))

    def show(self, view: View) -> None:
        """Redraw the view."""
        self._last = view if isinstance(view, StatusView) else None
        self._live.update(render(view, self._console.width), refresh=True)

    def write(self, line: str) -> None:
        """Print the line above the view, unchanged."""
        self._console.out(line, highlight=False)


def render(view: View, columns: int) -> RenderableType:
    """Return what rich draws for the view, at most ``columns`` wide."""
    match view:
        case StatusView():
            return Group(_status(view), Text(view.note, style="dim"))
        case ReplayProgress():
            return _progress(view, columns)
    return Text(view)


def _progress(view: ReplayProgress, columns: int) -> RenderableType:
    """Draw a bar and a line of text, and the note next to it or below it. The time left gives way first, then the rate."""
    short = replace(view, note="")
    if len(write_progress(short)) > columns:
        short = replace(short, seconds_left=None)
    if len(write_progress(short)) > columns:
        short = replace(short, per_second=None)
    line = write_progress(short)[:columns]
    room = columns - len(line) - 1
    width = min(_WIDTH, room) if room >= _LEAST_WIDTH else 0
    note = Text(view.note, style="yellow" if " for " in view.note.removeprefix("waits for ") else "dim")
    fits = columns >= width + len(line) + len(view.note) + 3
    text = Text.assemble(line, "  ", note) if fits else Text(line)
    row: RenderableType = text
    if width:
        row = RichTable.grid(padding=(0, 1))
        row.add_column(width=width)
        row.add_column(no_wrap=True)
        pulse = view.share is None
        row.add_row(ProgressBar(None if pulse else 1.0, view.share or 0.0, width=width, pulse=pulse), text)
    return row if fits else Group(row, note)


def _status(view: StatusView) -> RenderableType:
    style = "red" if view.health.stuck else _style(view.health.kind)
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
