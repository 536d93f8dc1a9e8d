"""The partitions that a leader is to add to the agreed set or to remove from it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from aiokcc.core.partitions import Partition, listing

if TYPE_CHECKING:
    from aiokcc.core.run import Bounds

__all__ = ["SetChanges", "describe_change"]


class SetChanges:
    """The changes of the set that are wanted and not written yet."""

    def __init__(self) -> None:
        self._added: dict[Partition, Bounds] = {}
        self._removed: set[Partition] = set()

    def __bool__(self) -> bool:
        return bool(self._added or self._removed)

    def add(self, added: Mapping[Partition, Bounds], removed: AbstractSet[Partition]) -> None:
        """Wants these partitions added and those removed."""
        self._added.update(added)
        self._removed |= removed

    def take(self, agreed: frozenset[Partition]) -> tuple[dict[Partition, Bounds], frozenset[Partition]]:
        """Returns what is to be added to this set and removed from it, and forgets it. A set is never left empty."""
        added = {p: bounds for p, bounds in self._added.items() if p not in agreed}
        removed = agreed & self._removed - added.keys()
        self._added.clear()
        self._removed.clear()
        return ({}, frozenset()) if removed >= agreed else (added, removed)


def describe_change(added: Mapping[Partition, Bounds], removed: AbstractSet[Partition]) -> str:
    """Returns the change in words, for the log and the generation."""
    changes = (("added", added), ("removed", removed))
    return ", ".join(f"{verb} {listing(map(str, sorted(ps)))}" for verb, ps in changes if ps)
