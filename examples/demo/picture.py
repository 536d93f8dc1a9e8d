"""Draws the event time that each partition has reached, against real time."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from examples.demo.data import END, MINUTE, PARTITIONS, START
from examples.demo.join import Outcome

TITLES: Final = ("without the gate", "with the gate")
_WIDTH, _HEIGHT = 44, 13
_MANY: Final = 4


def draw(outcomes: tuple[Outcome, Outcome], path: Path) -> Path | None:
    """Draw a PNG and return its path; None if matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        return None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(12, 5), sharex=True, sharey=True)
    for axis, outcome, title in zip(axes, outcomes, TITLES, strict=True):
        for topic, number in PARTITIONS:
            times, reached = zip(*outcome.history[topic, number], strict=True)
            minutes = [(ts - START) / MINUTE for ts in reached]
            axis.step(times, minutes, where="post", lw=1.6, label=f"{topic}.{number}")
        axis.set_title(f"{title}: at most {outcome.spread / MINUTE:.0f} minutes apart")
        axis.set_xlabel("seconds since the start")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("event time reached (minutes)")
    axes[0].legend(loc="lower right", frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def sketch(outcomes: tuple[Outcome, Outcome]) -> str:
    """Return the same picture in letters, for the terminal."""
    seconds = max(outcome.seconds for outcome in outcomes)
    left, right = (_panel(outcome, seconds) for outcome in outcomes)
    lines = [f"        {TITLES[0]:<{_WIDTH}}   {TITLES[1]}"]
    for n, (a, b) in enumerate(zip(left, right, strict=True)):
        label = f"{120 - 120 * n // (_HEIGHT - 1):>4} m" if n % 3 == 0 else ""
        lines.append(f"{label:>6} |{a} |{b}")
    lines.append(f"       +{'-' * _WIDTH}-+{'-' * _WIDTH}-")
    lines.append(f"        {'0 s':<{_WIDTH - 5}}{seconds:>4.1f}s   {'0 s':<{_WIDTH - 5}}{seconds:>4.1f}s")
    key = "  ".join(f"{_letter(n)} {topic}.{number}" for n, (topic, number) in enumerate(PARTITIONS))
    return "\n".join([*lines, f"        {key}  # four or more of them"])


def _letter(n: int) -> str:
    return "abcdef"[n]


def _panel(outcome: Outcome, seconds: float) -> list[str]:
    grid = [[""] * _WIDTH for _ in range(_HEIGHT)]
    for n, partition in enumerate(PARTITIONS):
        history = outcome.history[partition]
        position = 0
        for column in range(_WIDTH):
            at = seconds * (column + 0.5) / _WIDTH
            while position + 1 < len(history) and history[position + 1][0] <= at:
                position += 1
            if at > history[-1][0] and column and seconds * (column - 0.5) / _WIDTH > history[-1][0]:
                break
            share = (history[position][1] - START) / (END - START)
            grid[_HEIGHT - 1 - round(share * (_HEIGHT - 1))][column] += _letter(n)
    return ["".join(_cell(letters) for letters in row) for row in grid]


def _cell(letters: str) -> str:
    return "#" if len(letters) >= _MANY else letters[-1:] or " "
