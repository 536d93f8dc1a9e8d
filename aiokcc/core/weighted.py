"""Balancing by weight: what a partition costs is told by a function of the user.

The load of a member is the sum of the weights of what it has. The best assignment is hard to find (it is bin packing), so this
is a search that only ever goes downhill, in the sum of the squares of the loads:

1. What may stay stays.
2. The rest is placed, the heaviest first, each where it adds least to the sum. Where a topic's limits are used up by
   partitions that a member without a limit could take, those go there, so that as many as possible are given.
3. While moving one partition makes the sum smaller, the member with the greatest load that has such a move makes its best.

The third step evens out, and it also trades: a partition that is heavy here and light there goes there, even to somebody who
has as much. Each move makes the sum smaller by more than rounding, so the search ends, and what is balanced stays as it is.

It is done for a thousand partitions in a few milliseconds, besides what the function takes. So partitions that weigh the same
everywhere are of one kind and looked at once; and who was found to have no move is not searched again while its own load stays,
except for moves to those whose load has shrunk since. Partitions and members are numbers here, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from aiokcc.core.eligibility import Eligibility
from aiokcc.core.partitions import Partition
from aiokcc.errors import UsageError

__all__ = ["Weight", "assign_weighted"]

Weight: TypeAlias = Callable[[Partition, str], float]
"""How heavy this partition is on this member: above 0; 1 is the usual, less is better."""

MAX_WEIGHT: Final = 1e15
_NEVER: Final = 1e150
"""So heavy is a partition on a member that may not take it: nothing else comes near, and its square is still a number."""
_ROUNDING: Final = 1e-9
_NUMBERS: Final = frozenset({int, float})


def assign_weighted(takers: Eligibility, current: Mapping[Partition, str], weight: Weight) -> dict[Partition, str]:
    """An assignment of even loads, from the present one by as few moves as the search needs."""
    search = _Search(takers, weight)
    search.keep(takers.owners(current))
    search.place()
    search.improve()
    return search.result()


class _Search:
    def __init__(self, takers: Eligibility, weight: Weight) -> None:
        self._takers = takers
        self._members = takers.members
        self._number = {name: number for number, name in enumerate(takers.members)}
        self._partitions = list(takers.of_partition)
        self._topic = [partition.topic for partition in self._partitions]
        self._room = {(self._number[name], topic): most for (name, topic), most in takers.limits.items()}
        self._limited = frozenset(topic for _, topic in takers.limits)
        self._kind: list[int] = []
        """Of each partition."""
        self._rows: list[list[float]] = []
        """Of each kind: the weight on every member."""
        self._least: list[float] = []
        """Of each kind: the smallest of them."""
        self._kinds_of(weight)
        self._twice = [0.0] * len(takers.members)
        """The load of each member, twice: as it stands in the difference of two squares."""
        self._held: list[dict[int, set[int]]] = [{} for _ in takers.members]
        """The partitions of each member, by kind."""
        self._holder = [-1] * len(self._partitions)

    def _kinds_of(self, weight: Weight) -> None:
        found: dict[tuple[object, ...], int] = {}
        for partition, names in self._takers.of_partition.items():
            weights = [weight(partition, name) for name in names]
            if not _NUMBERS.issuperset(map(type, weights)):
                weights = _check(weights, partition, names)
            topic = partition.topic if partition.topic in self._limited else ""
            kind = found.setdefault((id(names), topic, *weights), len(self._rows))
            if kind == len(self._rows):
                least = min(weights)
                if not (least > 0 and sum(weights) <= MAX_WEIGHT):  # which also tells of what is no number
                    weights = _check(weights, partition, names)
                if names is not self._members:
                    known = dict(zip(names, weights, strict=True))
                    weights = [known.get(name, _NEVER) for name in self._members]
                self._rows.append(weights)
                self._least.append(least)
            self._kind.append(kind)

    def keep(self, owners: Mapping[Partition, str]) -> None:
        """What may stay stays, up to the limits."""
        places = {partition: place for place, partition in enumerate(self._partitions)}
        for partition in self._takers.scarce_first():
            owner = owners.get(partition)
            if owner is not None and self._has_room(self._number[owner], partition.topic):
                self._give(places[partition], self._number[owner])

    def place(self) -> None:
        """The rest, the heaviest first; but first those that fewest may take."""
        rest = [place for place, holder in enumerate(self._holder) if holder < 0]
        rest.sort(key=lambda place: -self._least[self._kind[place]])
        if self._limited:
            rest.sort(key=lambda place: len(self._takers.of_partition[self._partitions[place]]))
        for place in rest:
            _, taker = self._best_taker(self._kind[place], self._topic[place])
            if taker < 0:
                taker = self._make_room(place)
            if taker >= 0:
                self._give(place, taker)

    def improve(self) -> None:
        """The best single move of the member with the greatest load that has one, until nobody has."""
        everybody = range(len(self._members))
        shrunk: list[set[int] | None] = [None] * len(self._members)
        """Whose load has shrunk since this one was found to have no move; None: it was not, or its own load has changed."""
        for _ in range(4 * len(self._partitions)):
            for giver in sorted(everybody, key=lambda number: (-self._twice[number], number)):
                move = self._best_move(giver, shrunk[giver])
                if move is not None:
                    break
                shrunk[giver] = set()
            else:
                return
            place, taker = move
            self._take(place)
            self._give(place, taker)
            shrunk[giver] = shrunk[taker] = None
            for others in shrunk:
                if others is not None:
                    others.add(giver)

    def _best_move(self, giver: int, takers: set[int] | None) -> tuple[int, int] | None:
        """The partition whose move makes the sum of squares smallest, and to whom; of these only, if they are named."""
        twice, mine, lowest = self._twice, self._twice[giver], min(self._twice)
        named = sorted(takers or ())
        best, found = -_ROUNDING * max(1.0, mine * mine / 4), None
        for kind, places in sorted(self._held[giver].items()):
            row, least = self._rows[kind], self._least[kind]
            less = row[giver] * (row[giver] - mine)  # (l - w)² - l²
            if less + least * (least + lowest) >= best:
                continue  # not even if the lightest were where the load is smallest
            if takers is None:
                more, taker = self._best_taker(kind, self._topic[min(places)])
                if less + more < best:
                    best, found = less + more, (places, taker)
                continue
            for taker in named:
                change = less + row[taker] * (row[taker] + twice[taker])
                if change < best and self._has_room(taker, self._topic[min(places)]):
                    best, found = change, (places, taker)
        return None if found is None else (min(found[0]), found[1])

    def _best_taker(self, kind: int, topic: str) -> tuple[float, int]:
        """Who could have a partition of this kind at the least cost, which is (l + w)² - l², and the cost. -1: nobody."""
        costs = [weight * (weight + twice) for weight, twice in zip(self._rows[kind], self._twice, strict=True)]
        if topic in self._limited:
            costs = [cost if self._has_room(number, topic) else _NEVER for number, cost in enumerate(costs)]
        cost = min(costs)
        return cost, costs.index(cost) if cost < _NEVER else -1

    def _make_room(self, place: int) -> int:
        """Somebody whose limit is used up by a partition of the topic that another one can take hands that over."""
        for name in self._takers.of_partition[self._partitions[place]]:
            number = self._number[name]
            for other in sorted(other for places in self._held[number].values() for other in places):
                if self._topic[other] == self._topic[place]:
                    _, taker = self._best_taker(self._kind[other], self._topic[other])
                    if taker >= 0:
                        self._take(other)
                        self._give(other, taker)
                        return number
        return -1

    def _has_room(self, number: int, topic: str) -> bool:
        return self._room.get((number, topic), 1) > 0

    def _give(self, place: int, number: int) -> None:
        self._settle(place, number, 1)
        self._holder[place] = number
        self._held[number].setdefault(self._kind[place], set()).add(place)

    def _take(self, place: int) -> None:
        number, self._holder[place] = self._holder[place], -1
        self._settle(place, number, -1)
        places = self._held[number][self._kind[place]]
        places.remove(place)
        if not places:
            del self._held[number][self._kind[place]]

    def _settle(self, place: int, number: int, sign: int) -> None:
        self._twice[number] += 2 * sign * self._rows[self._kind[place]][number]
        if (slot := (number, self._topic[place])) in self._room:
            self._room[slot] -= sign

    def result(self) -> dict[Partition, str]:
        """In the order of the partitions."""
        holders = zip(self._partitions, self._holder, strict=True)
        return {partition: self._members[number] for partition, number in holders if number >= 0}


def _check(weights: list[float], partition: Partition, names: tuple[str, ...]) -> list[float]:
    for name, weight in zip(names, weights, strict=True):
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= MAX_WEIGHT:
            raise UsageError(
                f"the weight of {partition} on {name} is {weight!r}; "
                f"expected a number above 0 (1 is the usual, less is better)"
            )
    return list(map(float, weights))
