"""The values that a replay returns besides records: a period, and a summary of what was done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokcc.core.partitions import Partition

__all__ = ["Period", "Summary", "lookahead_gain"]


@dataclass(slots=True)
class Summary:
    """Counts of what a replay has done in this process so far."""

    records: int = 0
    """Records that were handled: the handler has returned, or they were handed out. Every record that was read is counted here,
    or in ``dead_lettered``, ``skipped`` or ``outside``."""
    late: int = 0
    """Records that came after their period had closed, whatever ``late=`` did with them."""
    outside: int = 0
    """Records with a timestamp before ``start=`` that lie behind later ones in the log; they were left out."""
    poisoned: int = 0
    """Records that had no usable timestamp, whatever ``poison=`` did with them."""
    retried: int = 0
    """Further calls of the handler after it had raised."""
    dead_lettered: int = 0
    """Records that were passed to the dead-letter function."""
    skipped: int = 0
    """Records that were left out because of ``late="drop"`` or ``poison="skip"``."""
    periods: int = 0
    """Periods that the group has closed since this process joined it, also those without records here. Neither the period that
    a release leaves open nor anything after it is counted."""
    seconds: float = 0.0
    """The time spent reading."""
    waited: float = 0.0
    """Seconds in which all partitions of this process waited for the limit to move. Measured without lookahead only."""
    round_trips: float = 0.0
    """The part of ``waited`` that round trips to the store took, at least: what a lookahead would have saved."""
    commit_error: str | None = None
    """The reason why the last commit of offsets failed; None if it succeeded, or if there was none."""


@dataclass(frozen=True, slots=True)
class Period:
    """One period's records in this process, by partition. ``cut`` is the first offset after it in each partition."""

    start: int
    end: int
    records: Mapping[Partition, list[Any]]
    cut: Mapping[Partition, int] = field(default_factory=dict)


def lookahead_gain(round_trips: float, waited: float) -> str:
    """Return in words what a lookahead would have saved, from the seconds in a summary."""
    return (
        f"all partitions waited for the limit for {waited:.1f} s, {round_trips:.1f} s of it for round trips to the store; "
        f'lookahead="auto" with max_apart= would save about so much'
    )
