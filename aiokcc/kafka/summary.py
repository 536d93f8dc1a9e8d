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
    """Read, handled or not."""
    late: int = 0
    """Came after their period had closed."""
    outside: int = 0
    """Lay before the start of the replay, behind others that did not; they were left out."""
    poisoned: int = 0
    """Had no usable timestamp."""
    retried: int = 0
    dead_lettered: int = 0
    periods: int = 0
    """Closed by the group since this process joined it, whether or not it had records in them. What lies beyond a release is
    in no period, nor is the period that a release leaves open."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Period:
    """One period's records in this process, by partition. ``cut`` is the first offset after it in each partition."""

    start: int
    end: int
    records: Mapping[Partition, list[Any]]
    cut: Mapping[Partition, int] = field(default_factory=dict)
