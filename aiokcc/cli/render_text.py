"""Renders a status view as plain text, for pipes, logs, dumb terminals, and if rich is not installed."""

from __future__ import annotations

from collections.abc import Iterator

from aiokcc.cli.status_view import StatusView, Table

__all__ = ["write_table", "write_view_line", "write_view_text"]


def write_view_text(view: StatusView) -> str:
    """Return the whole view."""
    blocks = [f"{view.where}\n{view.health.text}" + "".join(f"\n  {hint}" for hint in view.hints)]
    if view.blocking is not None:
        blocks.append(write_table(view.blocking))
    if view.problems:
        blocks.append("Problems\n" + "\n".join(f"  ! {problem}" for problem in view.problems))
    width = max((len(label) for label, _ in view.facts), default=0)
    blocks.append("\n".join(f"{label:<{width}}  {value}" for label, value in view.facts))
    blocks += map(write_table, view.tables)
    return "\n\n".join(filter(None, blocks)) + "\n"


def write_view_line(view: StatusView) -> str:
    """Return the limit and the health, as one line for a log."""
    facts = dict(view.facts)
    return "  ".join(filter(None, (facts.get("limit", "").split("   ")[0], view.health.text)))


def write_table(table: Table) -> str:
    """Return one table."""
    return "\n".join(_lines(table))


def _lines(table: Table) -> Iterator[str]:
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
