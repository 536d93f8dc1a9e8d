"""Shows the result as a table and as a picture."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from examples.orders_and_payments.history import COUNTRIES, Figures


def by_hour(rows: dict[tuple[int, str], Figures]) -> dict[int, Figures]:
    """Return the sums of all countries, by hour."""
    hours: dict[int, Figures] = {}
    for (hour, _), row in sorted(rows.items()):
        total = hours.setdefault(hour, Figures())
        for name, value in vars(row).items():
            setattr(total, name, getattr(total, name) + value)
    return hours


def table(rows: dict[tuple[int, str], Figures]) -> str:
    """Return the table for the terminal."""
    lines = ["hour     orders    ordered  paid orders       paid  late payments      late"]
    for hour, row in by_hour(rows).items():
        lines.append(
            f"{clock(hour)}  {row.orders:8,} {euros(row.ordered):>10} {row.paid_orders:12,} {euros(row.paid):>10}"
            f" {row.late_payments:14,} {euros(row.late):>9}"
        )
    return "\n".join(lines)


def draw(rows: dict[tuple[int, str], Figures], path: Path) -> Path | None:
    """Draw a PNG and return its path; None if matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        return None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    hours = by_hour(rows)
    clocks = [clock(hour) for hour in hours]
    figure, (above, below) = plt.subplots(2, 1, figsize=(11, 7), sharex=True, height_ratios=(3, 1))
    bottom = [0.0] * len(hours)
    for country in COUNTRIES:
        paid = [rows.get((hour, country), Figures()).paid / 100 for hour in hours]
        above.bar(clocks, paid, bottom=bottom, label=f"{country}, paid")
        bottom = [a + b for a, b in zip(bottom, paid, strict=True)]
    above.step(
        clocks, [row.ordered / 100 for row in hours.values()], where="mid", color="black", lw=1.2, label="ordered"
    )
    above.set_ylabel("€ by the hour of the order")
    above.legend(frameon=False)
    below.bar(clocks, [row.late / 100 for row in hours.values()], color="tab:red")
    below.set_ylabel("€ paid too late")
    below.tick_params(axis="x", rotation=90)
    for axis in (above, below):
        axis.grid(axis="y", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def clock(hour: int) -> str:
    return f"{datetime.fromtimestamp(hour / 1000, UTC):%d %H:%M}"


def euros(cents: int) -> str:
    return f"{cents / 100:,.2f}"
