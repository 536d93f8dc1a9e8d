"""Tables of Spark pipelines, for ``aiokcc status``, ``aiokcc pipeline`` and the dashboard."""

from __future__ import annotations

from collections.abc import Sequence

from aiokcc.core.formatting import count, format_elapsed
from aiokcc.core.periods import format_time
from aiokcc.runtime.pipelines import PipelineStatus
from aiokcc.views.model import Table

__all__ = ["describe_state", "pipeline_table"]


def pipeline_table(pipelines: Sequence[PipelineStatus], now: float) -> Table:
    """Return a row for each pipeline: how far it is published, how far that is behind the clock, and what it does."""
    rows = tuple(
        (
            pipeline.name,
            "nothing" if pipeline.published_to is None else format_time(pipeline.published_to),
            "" if pipeline.published_to is None else format_elapsed(max(0.0, now - pipeline.published_to / 1000)),
            pipeline.version or "",
            describe_state(pipeline),
            pipeline.sink,
        )
        for pipeline in pipelines
    )
    marked = frozenset(n for n, pipeline in enumerate(pipelines) if pipeline.error is not None)
    return Table(
        f"Pipelines ({len(rows):,})",
        ("pipeline", "published to", "behind the clock", "version", "state", "result"),
        rows,
        marked=marked,
    )


def describe_state(pipeline: PipelineStatus) -> str:
    """Return what a pipeline does, in words."""
    words = [_describe_batch(pipeline)]
    if pipeline.restated_by is not None:
        words.insert(0, f"is being restated by {pipeline.restated_by}")
    if pipeline.late:
        words.append(f"{count(pipeline.late, 'late record')} to restate")
    return "; ".join(words)


def _describe_batch(pipeline: PipelineStatus) -> str:
    driver = f"{pipeline.driver}, attempt {pipeline.attempt}"
    if pipeline.pending is None:
        return f"driven by {driver}" if pipeline.is_driven else "not driven"
    number, start, end = pipeline.pending
    what = f"batch {number}, {format_time(start)} to {format_time(end)}"
    if pipeline.error is not None:
        what += f", has failed: {pipeline.error}"
    return f"{what}, driven by {driver}" if pipeline.is_driven else f"{what}, waits for a driver"
