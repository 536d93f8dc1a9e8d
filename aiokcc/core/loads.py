"""Balancing by weight: what a partition costs is told by a function of the user.

The load of a member is the sum of the weights of what it has. The best assignment is hard to find (it is bin packing), so this
is a search that only ever goes downhill:

1. What may stay stays.
2. The rest is placed, the heaviest first, each where the load is smallest with it. Where a topic's limits are used up by
   partitions that a member without a limit could take, those go there, so that as many as possible are given.
3. While moving one partition makes the sum of the squares of the loads smaller, the move that gains most is made.

The third step evens out, and it also trades: a partition that is heavy here and light there goes there, even to somebody who
has as much. Each move makes the sum smaller by more than rounding, so the search ends, and what is balanced stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from aiokcc.core.partitions import Partition
from aiokcc.core.takers import Takers
from aiokcc.errors import UsageError

__all__ = ["Weight", "balance_loads"]

Weight: TypeAlias = Callable[[Partition, str], float]
"""How heavy this partition is on this member: above 0; 1 is the usual, less is better."""

MAX_WEIGHT: Final = 1e15
_ROUNDING: Final = 1e-9


def balance_loads(takers: Takers, current: Mapping[Partition, str], weight: Weight) -> dict[Partition, str]:
    """An assignment of even loads, from the present one by as few moves as the search needs."""
    weights = {
        partition: {name: _check(weight(partition, name), partition, name) for name in names}
        for partition, names in takers.of_partition.items()
    }
    search = _Search(takers, weights)
    search.keep(takers.owners(current))
    search.place()
    search.improve()
    return dict(sorted(search.holder.items()))


def _check(weight: object, partition: Partition, name: str) -> float:
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= MAX_WEIGHT:
        raise UsageError(
            f"the weight of {partition} on {name} is {weight!r}; expected a number above 0 (1 is the usual, less is better)"
        )
    return float(weight)


class _Search:
    def __init__(self, takers: Takers, weights: Mapping[Partition, Mapping[str, float]]) -> None:
        self._takers, self._weights = takers, weights
        self._least = {partition: min(on.values()) for partition, on in weights.items()}
        self._room = dict(takers.limits)
        self._held: dict[str, set[Partition]] = {name: set() for name in takers.members}
        self._load = dict.fromkeys(takers.members, 0.0)
        self.holder: dict[Partition, str] = {}

    def keep(self, owners: Mapping[Partition, str]) -> None:
        """What may stay stays, up to the limits."""
        for partition in self._takers.scarce_first():
            owner = owners.get(partition)
            if owner is not None and self._has_room(owner, partition):
                self._give(partition, owner)

    def place(self) -> None:
        """The rest, the heaviest first; but first those that fewest may take."""
        rest = [partition for partition in self._takers.of_partition if partition not in self.holder]
        rest.sort(key=lambda partition: -self._least[partition])
        if self._takers.limits:
            rest.sort(key=lambda partition: len(self._takers.of_partition[partition]))
        for partition in rest:
            free = self._free(partition) or self._make_room(partition)
            if free:
                self._give(partition, self._lightest(partition, free))

    def improve(self) -> None:
        """The best single move of the member with the greatest load that has one, until nobody has."""
        for _ in range(4 * len(self._weights)):
            moves = (self._best_move(name) for name in sorted(self._load, key=lambda name: (-self._load[name], name)))
            move = next((move for move in moves if move is not None), None)
            if move is None:
                return
            partition, name = move
            self._take(partition)
            self._give(partition, name)

    def _best_move(self, giver: str) -> tuple[Partition, str] | None:
        load = self._load
        mine = load[giver]
        twice = 2 * min(load.values())
        best, found = 0.0, None
        for partition in sorted(self._held[giver]):
            weights = self._weights[partition]
            less = weights[giver] * (weights[giver] - 2 * mine)  # (l - w)² - l²
            least = self._least[partition]
            if less + least * (least + twice) >= best:
                continue  # not even if the lightest were where the load is smallest
            for name, more in weights.items():
                change = less + more * (more + 2 * load[name])  # (l + w)² - l²
                if change < best and name != giver and self._has_room(name, partition):
                    best, found = change, (partition, name)
        return found if best < -_ROUNDING * max(1.0, mine * mine) else None

    def _lightest(self, partition: Partition, names: Sequence[str]) -> str:
        weights, load = self._weights[partition], self._load
        _, name = min([(load[name] + weights[name], name) for name in names])
        return name

    def _free(self, partition: Partition) -> Sequence[str]:
        if not self._room:
            return self._takers.of_partition[partition]
        return [name for name in self._takers.of_partition[partition] if self._has_room(name, partition)]

    def _make_room(self, partition: Partition) -> list[str]:
        """Somebody whose limit is used up by a partition of the topic that another one can take hands that over."""
        for name in self._takers.of_partition[partition]:
            for other in sorted(self._held[name]):
                if other.topic == partition.topic and (free := self._free(other)):
                    self._take(other)
                    self._give(other, self._lightest(other, free))
                    return [name]
        return []

    def _has_room(self, name: str, partition: Partition) -> bool:
        return self._room.get((name, partition.topic), 1) > 0

    def _give(self, partition: Partition, name: str) -> None:
        self._settle(partition, name, 1)
        self.holder[partition] = name
        self._held[name].add(partition)

    def _take(self, partition: Partition) -> None:
        name = self.holder.pop(partition)
        self._settle(partition, name, -1)
        self._held[name].remove(partition)

    def _settle(self, partition: Partition, name: str, sign: int) -> None:
        self._load[name] += sign * self._weights[partition][name]
        if (name, partition.topic) in self._room:
            self._room[name, partition.topic] -= sign
