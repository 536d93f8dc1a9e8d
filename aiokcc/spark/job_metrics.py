"""Metrics of a pipeline: its jobs, their time, and the periods and rows that they had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aiokcc.runtime.metrics import Histogram, Observed
from aiokcc.spark.progress import Summary

__all__ = ["JobMetrics"]


class JobMetrics:
    """Measures each job once, when its result is published; the rest is read from the summary."""

    def __init__(self, labels: Mapping[str, str], pipeline: str, summary: Summary) -> None:
        self._labels = {**labels, "pipeline": pipeline}
        self._summary = summary
        self._durations = Histogram("aiokcc.spark.job.duration", self._labels)
        self._periods = Histogram("aiokcc.spark.job.periods", self._labels)

    def record_job(self, periods: int, seconds: float) -> None:
        """Note a job that had records of so many periods, and took so long until its result was published."""
        self._durations.record(seconds)
        self._periods.record(periods)

    def observe(self) -> Iterator[Observed]:
        """Yield the present values."""
        yield Observed("aiokcc.spark.jobs", self._summary.jobs, self._labels)
        yield Observed("aiokcc.spark.rows", self._summary.records, self._labels)
        yield self._durations.observed()
        yield self._periods.observed()
        if self._summary.event_time is not None:
            yield Observed("aiokcc.pipeline.published", self._summary.event_time / 1000, self._labels)
