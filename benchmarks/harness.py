"""The code that all benchmarks share: figures, results, goals, the table, the JSON, the picture.

A result is one case: ours, the anchors that were measured in the same run, and for each anchor the ratio ours / anchor.
Absolute figures depend on the machine; ratios depend on it less.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

__all__ = [
    "BenchmarkError",
    "Figures",
    "Goal",
    "Outcome",
    "Result",
    "draw",
    "note",
    "percentile",
    "show",
    "show_load",
    "summary",
]

Figures: TypeAlias = dict[str, float | int | None]
"""``p50`` and ``p99`` in the result's unit, then everything else that was counted; None if it could not be counted."""

QUIET_LOAD: Final = 1.0
_CHOSEN: Final = ("p50", "p99")


class BenchmarkError(Exception):
    """The benchmark cannot be run, or something it measures has failed. The message says what to do."""


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which this part of the values lies, interpolated between neighbours."""
    ordered = sorted(values)
    at = part * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def summary(values: Sequence[float]) -> Figures:
    """Return the median, the 99th percentile, and the number of values."""
    return {"p50": percentile(values, 0.5), "p99": percentile(values, 0.99), "samples": len(values)}


@dataclass(frozen=True, slots=True)
class Result:
    """One case. ``ratios`` are ours / anchor, of the medians unless the benchmark passes its own."""

    label: str
    case: Mapping[str, Any]
    unit: str
    ours: Figures
    anchors: dict[str, Figures]
    known_ratios: dict[str, float] = field(default_factory=dict)

    @property
    def ratios(self) -> dict[str, float]:
        """By anchor."""
        ratios = {}
        for name, figures in self.anchors.items():
            ours, anchor = self.ours["p50"], figures["p50"]
            assert ours is not None
            assert anchor is not None
            ratios[name] = self.known_ratios.get(name, ours / anchor)
        return ratios

    def to_json(self) -> dict[str, Any]:
        """Return the result as it is in the JSON."""
        return {
            "case": dict(self.case),
            "unit": self.unit,
            "ours": self.ours,
            "anchors": self.anchors,
            "ratios": self.ratios,
        }


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal for a figure: at most ``limit``, or at least ``limit``."""

    text: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """True if the goal is met."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of one run of a benchmark."""

    benchmark: str
    title: str
    results: Sequence[Result]
    goals: Sequence[Goal] = ()
    remarks: Sequence[str] = ()
    """Lines that explain what was measured."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object, which has the same form for all benchmarks."""
        return {"benchmark": self.benchmark, "results": [result.to_json() for result in self.results]}

    def write_json(self, file: str) -> None:
        """Write the JSON to a file, or to the standard output for ``-``."""
        text = json.dumps(self.to_json(), indent=2) + "\n"
        if file == "-":
            sys.stdout.write(text)
        else:
            Path(file).write_text(text)


def note(text: str) -> None:
    """Print what is being done, for a person who waits."""
    print(text, file=sys.stderr, flush=True)


def show_load() -> None:
    """Print how busy the machine is, and warn if it is too busy for figures that one would compare or publish."""
    load, cores = os.getloadavg()[0], os.cpu_count()
    note(f"load of the machine at the start: {load:.2f} on {cores} cores")
    if load > QUIET_LOAD:
        note(f"WARNING: above {QUIET_LOAD:g} the figures are those of a busy machine; measure again when it is quiet")


# -- tables ------------------------------------------------------------------------------------------------------------


def show(outcome: Outcome) -> None:
    """Print the tables, on standard error so that ``--json -`` has the output for itself."""
    for unit, results in _by_unit(outcome).items():
        names = list(dict.fromkeys(name for result in results for name in result.anchors))
        rows = []
        for result in results:
            row = [result.label, _number(result.ours["p50"]), _number(result.ours["p99"])]
            for name in names:
                figures = result.anchors.get(name)
                row.append(f"{_number(figures['p50'])}  ({_number(result.ratios[name])})" if figures else "")
            rows.append(row)
        _table(
            f"{outcome.title}, in {unit}; in brackets ours / anchor",
            ["case", "ours p50", "ours p99", *(f"{name} p50" for name in names)],
            rows,
        )
    _show_costs(outcome)
    if outcome.goals:
        _table(
            "goals",
            ["", "goal", "measured", "wanted"],
            [
                [
                    "met" if goal.met else "MISSED",
                    goal.text,
                    _number(goal.value),
                    f"{'≥' if goal.at_least else '≤'} {_number(goal.limit)}",
                ]
                for goal in outcome.goals
            ],
        )
    for remark in outcome.remarks:
        note(remark)


def _by_unit(outcome: Outcome) -> dict[str, list[Result]]:
    """Group the results that can be compared in one table."""
    groups: dict[str, list[Result]] = {}
    for result in outcome.results:
        groups.setdefault(result.unit, []).append(result)
    return groups


def _show_costs(outcome: Outcome) -> None:
    """Print everything that was counted besides the time, for ours and for the anchors that have it."""
    lines = [
        (result.label, name, figures)
        for result in outcome.results
        for name, figures in [("ours", result.ours), *result.anchors.items()]
        if set(figures) - {*_CHOSEN, "samples"}
    ]
    keys = list(dict.fromkeys(key for _, _, figures in lines for key in figures if key not in _CHOSEN))
    if lines:
        rows = [[label, name, *(_number(figures.get(key)) for key in keys)] for label, name, figures in lines]
        _table("what it costs", ["case", "", *(key.replace("_", " ") for key in keys)], rows)


def _number(value: float | int | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e6):
        return str(int(value))
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def _table(title: str, head: list[str], rows: list[list[str]]) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        _plain_table(title, head, rows)
        return
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(head):
        table.add_column(name, justify="left" if number == 0 or not name or name == "goal" else "right")
    for row in rows:
        table.add_row(*row)
    # A pipe or a file has no width: never truncate a figure there.
    console = Console(stderr=True) if sys.stderr.isatty() else Console(stderr=True, width=160)
    console.print(table)


def _plain_table(title: str, head: list[str], rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    note(f"\n{title}")
    for row in (head, ["-" * width for width in widths], *rows):
        note("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


# -- the picture -------------------------------------------------------------------------------------------------------


def drawing() -> Callable[[Outcome, str], None]:
    """Import matplotlib. It is called before anything is measured, so that a missing library is noticed at once."""
    try:
        import matplotlib as mpl  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise BenchmarkError("--plot needs matplotlib: pip install matplotlib") from None
    mpl.use("Agg")
    return draw


def draw(outcome: Outcome, file: str) -> None:
    """Draw bars per case: ours and each anchor, medians with a line up to the 99th percentile, on a log scale per unit."""
    from matplotlib import pyplot as plt  # type: ignore[import-not-found,unused-ignore]

    groups = _by_unit(outcome)
    sizes = [len(results) for results in groups.values()]
    figure, places = plt.subplots(
        1,
        len(groups),
        squeeze=False,
        figsize=(max(8.0, 2.2 * sum(sizes) + 2), 5.5),
        layout="constrained",
        width_ratios=sizes,
    )
    names = ["ours", *dict.fromkeys(name for result in outcome.results for name in result.anchors)]
    for axes, (unit, results) in zip(places[0], groups.items(), strict=True):
        _draw_bars(axes, unit, results, names)
    figure.suptitle(f"{outcome.title}\nbar: p50, whisker: p99; under an anchor's figure: ours / anchor", fontsize=11)
    try:
        figure.savefig(file, dpi=150)
    except ValueError as error:  # an unknown suffix
        raise BenchmarkError(f"--plot {file}: {error}") from None
    finally:
        plt.close(figure)


def _draw_bars(axes: Any, unit: str, results: Sequence[Result], names: Sequence[str]) -> None:
    present = [name for name in names if name == "ours" or any(name in result.anchors for result in results)]
    width = 0.84 / len(present)
    for place, name in enumerate(present):
        at, heights, tails, labels = [], [], [], []
        for number, result in enumerate(results):
            figures = result.ours if name == "ours" else result.anchors.get(name)
            if figures is None:
                continue
            median = figures["p50"] or 0.0
            at.append(number + (place - (len(present) - 1) / 2) * width)
            heights.append(median)
            tails.append(max(0.0, (figures.get("p99") or median) - median))
            labels.append(_number(median) if name == "ours" else f"{_number(median)}\n{_number(result.ratios[name])}×")
        colours = ("#9fb3c8", "#627d98", "#e9b44c", "#50808e", "#8d6a9f")
        bars = axes.bar(
            at,
            heights,
            width * 0.92,
            yerr=[[0.0] * len(tails), tails],
            error_kw={"ecolor": "#33333388", "elinewidth": 1, "capsize": 2},
            color="#d1495b" if name == "ours" else colours[names.index(name) % 5],
            label=name,
        )
        axes.bar_label(bars, labels, label_type="center", fontsize=7)
    axes.set_yscale("log")
    axes.set_ylim(bottom=axes.get_ylim()[0] / 2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(range(len(results)), [result.label for result in results])
    axes.set_ylabel(f"{unit} (log scale)")
    axes.grid(axis="y", which="major", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(ncols=len(present), fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.08), frameon=False)
