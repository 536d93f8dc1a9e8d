"""What a replay hands out besides records: a period, and what was done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokcc.core.partitions import Partition

__all__ = ["Period", "Summary"]


@dataclass(slots=True)
class Summary:
    """What a replay has done in this process so far."""

    records: int = 0
    """Records that were handled: the handler has returned, or they were handed out. Every record that was read is counted here,
    or in ``dead_lettered``, ``skipped`` or ``outside``."""
    late: int = 0
    """Records that came after their period had closed, whatever became of them."""
    outside: int = 0
    """Records that lay before the start of the replay, behind others that did not; they were left out."""
    poisoned: int = 0
    """Records that had no usable timestamp, whatever became of them."""
    retried: int = 0
    """Calls of the handler that were made again because it had raised."""
    dead_lettered: int = 0
    """Records that went to the dead-letter function instead."""
    skipped: int = 0
    """Records that were left out because of ``late="drop"`` or ``poison="skip"``."""
    periods: int = 0
    """Closed by the group since this process joined it, whether or not it had records in them. What lies beyond a release is
    in no period, nor is the period that a release leaves open."""
    seconds: float = 0.0
    commit_error: str | None = None
    """Why the last commit of offsets failed; None if it succeeded, or if there was none."""


@dataclass(frozen=True, slots=True)
class Period:
    """One period's records in this process, by partition. ``cut`` is the first offset after it in each partition."""

    start: int
    end: int
    records: Mapping[Partition, list[Any]]
    cut: Mapping[Partition, int] = field(default_factory=dict)
