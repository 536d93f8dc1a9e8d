"""The view model: what the commands and the dashboard show, before :mod:`aiokcc.cli.render` or the page draws it."""

from __future__ import annotations

from dataclasses import dataclass

from aiokcc.runtime.health import Health

__all__ = ["ReplayProgress", "StatusView", "Table", "View"]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under headings. ``marked`` are the rows to highlight."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    """The columns that are aligned to the right."""
    marked: frozenset[int] = frozenset()
    note: str = ""


@dataclass(frozen=True, slots=True)
class StatusView:
    """Everything that ``aiokcc status`` shows, the most important first."""

    where: str
    health: Health
    blocking: Table | None
    facts: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    problems: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    note: str = ""
    """A line below the view, while it is followed."""


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """The progress of ``aiokcc replay``, in one line."""

    reached: int | None
    """The limit; None before the first one is known."""
    share: float | None
    """The part of the run that is done, from 0 to 1; None if the run has no end."""
    records: int
    per_second: float | None
    seconds_left: float | None
    note: str
    """The partition that the others wait for, or another remark."""


View = StatusView | ReplayProgress | str
"""A view; a text is shown while there is nothing else."""
