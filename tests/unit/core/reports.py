"""Reports for tests, written shortly: ``{"orders.0": "61@55", "orders.1": "idle@9"}``."""

from __future__ import annotations

from collections.abc import Mapping

from aiokcc.core.marks import Mark
from aiokcc.core.partition_progress import PartitionState
from aiokcc.core.partitions import Partition, PartitionList
from aiokcc.core.report import Entry, Report

__all__ = ["entry", "report_of", "shown"]


def entry(text: str) -> Entry:
    """The entry of ``61@55``, ``idle``, ``finished@9`` or ``running``."""
    word, _, offset = text.partition("@")
    at = Mark.parse(offset).offset if offset else None
    return Entry(PartitionState.BLOCKED, int(word), at) if word.isdigit() else Entry(PartitionState(word), None, at)


def report_of(generation: int, limit: int, entries: Mapping[str, str]) -> Report:
    """A report with these entries."""
    partitions = PartitionList.of(map(Partition.parse, entries))
    return Report.of(generation, limit, partitions, [entry(text) for text in entries.values()])


def shown(report: Report) -> dict[str, str]:
    """The entries of a report, as :func:`report_of` takes them."""
    return {
        str(partition): f"{state.value if ts is None else ts}{'' if offset is None else f'@{offset}'}"
        for partition, (state, ts, offset) in report.entries.items()
    }
