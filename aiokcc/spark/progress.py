"""The progress of a replay, for people and programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

from aiokcc.core.periods import format_duration, format_time

__all__ = ["Line", "Progress", "Summary"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The totals of what this driver has published so far. A new one is made after each batch."""

    pipeline: str
    periods: int
    """The number of published periods, with those that have no records."""
    jobs: int
    records: int
    """The number of published offsets; records that compaction has removed count too."""
    event_time: int
    """Everything before it is published; milliseconds since the epoch."""
    seconds: float
    """The time since this driver began."""
    records_per_second: float
    done: float | None
    """The part of all records that is published, from 0 to 1; None where the replay follows its topics."""
    seconds_left: float | None
    """The time left at the present rate; None if it is not known."""
    published_to: dict[str, int] = field(default_factory=dict)
    """The first offset that is not published, as ``orders.3``."""

    def __str__(self) -> str:
        parts = [f"{self.pipeline}  {format_time(self.event_time)}"]
        if self.done is not None:
            parts.append(f"{self.done:.0%}")
        parts.append(f"{self.periods:,} periods in {self.jobs:,} jobs")
        parts.append(f"{self.records_per_second:,.0f} records/s")
        if self.seconds_left is not None:
            parts.append(
                f"{format_duration(round(self.seconds_left) * 1000)} left" if self.seconds_left >= 1 else "done soon"
            )
        return "  ".join(parts)


@dataclass(slots=True)
class Summary:
    """The totals of what a replay has published in this process."""

    periods: int = 0
    """The number of published periods, with those that have no records."""
    jobs: int = 0
    """The number of batches that Spark computed. Batches without records need no job."""
    records: int = 0
    """The number of published offsets."""
    retried: int = 0
    event_time: int | None = None
    """Everything before this time is published, by this driver or an earlier one."""
    seconds: float = 0.0


class Line:
    """One line on a terminal that shows the newest progress. It writes nothing if the stream is no terminal."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._shown_at = float("-inf")
        self._width = 0
        self.visible = self._stream.isatty()

    def show(self, progress: Progress) -> None:
        """Replace the line, at most ten times a second."""
        now = self._clock()
        if not self.visible or (now - self._shown_at < 0.1 and progress.done != 1.0):
            return
        self._shown_at = now
        text = str(progress)
        self._stream.write(f"\r{text:<{self._width}}")
        self._stream.flush()
        self._width = len(text)

    def end(self) -> None:
        """Leave the last line where it stands."""
        if self._width:
            self._stream.write("\n")
            self._stream.flush()
            self._width = 0
