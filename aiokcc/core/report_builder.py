"""Builds a member's report from the progress of the partitions that it owns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from aiokcc.core.limit import Limit
from aiokcc.core.marks import Marks
from aiokcc.core.partition_progress import PartitionProgress, PartitionState
from aiokcc.core.partitions import PartitionList
from aiokcc.core.report import Crossing, Entry, Report
from aiokcc.core.run import MOST_AT_ONCE

__all__ = ["build_report", "milestone_interval", "withheld_report"]

_MOST_MARKS: Final = 4000
"""The most marks of further boundaries in one report: far below the store's 1 MB."""


def milestone_interval(period: int, lookahead: int) -> int:
    """Returns the milliseconds between the milestones of a run with these settings.

    It is half of the open periods: a member reports after the first half while its partitions go on in the second.
    """
    return period * min((lookahead + 1) // 2, MOST_AT_ONCE)


def build_report(
    generation: int,
    limit: Limit,
    partitions: PartitionList,
    owned: Sequence[PartitionProgress],
    milestone_interval: int,
) -> Report:
    """Returns the report of these partitions under this limit; ``owned`` is their progress. It counts if all have arrived."""
    floor = limit.floor
    try:  # the usual case, faster: all of them have crossed the floor
        crossings = [progress.crossings[floor] for progress in owned]
    except KeyError:
        report = Report.of(generation, floor, partitions, [_entry(progress, floor) for progress in owned])
    else:
        times, offsets = zip(*crossings, strict=True)
        report = Report(generation, floor, partitions, times, Marks.of(offsets), min(times))
    if report.running or report.idle:
        return report
    further = _further(limit, owned, milestone_interval)
    return replace(report, further=further) if further else report


def withheld_report(generation: int, limit: Limit, partitions: PartitionList) -> Report:
    """Returns a report that does not count, whoever reads it: what has arrived is not processed yet."""
    return Report.of(generation, limit.floor, partitions, [Entry(PartitionState.RUNNING)] * len(partitions))


def _entry(progress: PartitionProgress, floor: int) -> Entry:
    """Returns the entry of one partition. A crossing has priority over a finish that came later."""
    crossing = progress.crossings.get(floor)
    if crossing is not None:
        return Entry(PartitionState.BLOCKED, *crossing)
    if progress.state is PartitionState.FINISHED:
        return Entry(PartitionState.FINISHED, None, progress.offset)
    if progress.state is PartitionState.BLOCKED and progress.ts >= floor:
        return Entry(PartitionState.BLOCKED, progress.ts, progress.offset)
    if progress.state is PartitionState.IDLE and progress.idle_at == floor:
        return Entry(PartitionState.IDLE, None, progress.offset)
    return Entry(PartitionState.RUNNING)


def _further(limit: Limit, owned: Sequence[PartitionProgress], milestone_interval: int) -> tuple[Crossing, ...]:
    """Returns the boundaries behind the floor that every partition has crossed, or has finished before.

    With milestones it returns those up to the last milestone, so that the reports of all members end at the same boundary.
    """
    most = min(MOST_AT_ONCE - 1, max(1, _MOST_MARKS // len(owned)))
    crossed: list[Crossing] = []
    for boundary in limit.boundaries[1 : 1 + most]:
        crossing = _crossing(boundary, owned)
        if crossing is None:
            break
        crossed.append(crossing)
    if milestone_interval:
        reached = [limit.floor, *(crossing.boundary for crossing in crossed)]
        milestones = (n for n, boundary in enumerate(reached) if boundary % milestone_interval == 0)
        crossed = crossed[: max(milestones, default=len(crossed))]
    return tuple(crossed)


def _crossing(boundary: int, owned: Sequence[PartitionProgress]) -> Crossing | None:
    """Returns where these partitions have crossed the boundary; None if one has neither crossed it nor finished."""
    least: int | None = None
    offsets: list[int | None] = []
    finished: list[bool] = []
    for progress in owned:
        crossing = progress.crossings.get(boundary)
        if crossing is not None:
            ts, offset = crossing
            if least is None or ts < least:
                least = ts
        elif progress.state is PartitionState.FINISHED:
            offset = progress.offset
        else:
            return None
        offsets.append(offset)
        finished.append(crossing is None)
    return Crossing(boundary, least, Marks.of(offsets, finished if True in finished else None))
