"""Balancing by weight: a function of the user says what a partition costs on a member.

The load of a member is the sum of the weights of its partitions. The best assignment is hard to find (it is bin packing), so
this is a search that only goes downhill, in the sum of the squares of the loads:

1. Partitions that may stay with their owners stay.
2. The others are placed, the heaviest first, each where it adds least to the sum. If the limits of a topic are used up by
   partitions that a member without a limit could take, those go there, so that as many as possible are assigned.
3. While moving one partition makes the sum smaller, the member with the greatest load that has such a move makes its best one.

The third step also trades: a partition that is heavy here and light there goes there, even to a member with the same load. Each
move makes the sum smaller by more than rounding, so the search ends, and a balanced assignment stays as it is.

It takes a few milliseconds for a thousand partitions, besides the user's function. For this, partitions with the same weight on
every member are one *kind*, which is examined once; and a member that was found to have no move is not searched again while its
load stays the same, except for moves to members whose load has shrunk. Partitions and members are numbers here, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from aiokcc.core.eligibility import Eligibility
from aiokcc.core.partitions import Partition
from aiokcc.errors import UsageError

__all__ = ["Weight", "assign_weighted"]

Weight: TypeAlias = Callable[[Partition, str], float]
"""Returns the cost of a partition on a member: above 0; 1 is normal, less is better."""

MAX_WEIGHT: Final = 1e15
_NEVER: Final = 1e150
"""The weight of a partition on a member that is not eligible: far above all others, and its square is still finite."""
_ROUNDING: Final = 1e-9
_NUMBERS: Final = frozenset({int, float})


def assign_weighted(eligibility: Eligibility, current: Mapping[Partition, str], weight: Weight) -> dict[Partition, str]:
    """Returns an assignment with even loads, made from the present one by the moves that the search finds.

    Raises UsageError if the user's function returns no valid weight.
    """
    search = _Search(eligibility, weight)
    search.keep(eligibility.keepable(current))
    search.place()
    search.improve()
    return search.result()


class _Search:
    def __init__(self, eligibility: Eligibility, weight: Weight) -> None:
        self._eligibility = eligibility
        self._members = eligibility.members
        self._number = {name: number for number, name in enumerate(eligibility.members)}
        self._partitions = list(eligibility.by_partition)
        self._topic = [partition.topic for partition in self._partitions]
        self._room = {(self._number[name], topic): most for (name, topic), most in eligibility.limits.items()}
        self._limited = frozenset(topic for _, topic in eligibility.limits)
        self._kind: list[int] = []
        """The kind of each partition."""
        self._rows: list[list[float]] = []
        """For each kind: the weight on every member."""
        self._least: list[float] = []
        """For each kind: the smallest weight."""
        self._find_kinds(weight)
        self._twice = [0.0] * len(eligibility.members)
        """The load of each member times two, as it occurs in the difference of two squares."""
        self._held: list[dict[int, set[int]]] = [{} for _ in eligibility.members]
        """The partitions of each member, by kind."""
        self._holder = [-1] * len(self._partitions)

    def _find_kinds(self, weight: Weight) -> None:
        found: dict[tuple[object, ...], int] = {}
        for partition, names in self._eligibility.by_partition.items():
            weights = [weight(partition, name) for name in names]
            if not _NUMBERS.issuperset(map(type, weights)):
                weights = _check(weights, partition, names)
            topic = partition.topic if partition.topic in self._limited else ""
            kind = found.setdefault((id(names), topic, *weights), len(self._rows))
            if kind == len(self._rows):
                least = min(weights)
                if not (least > 0 and sum(weights) <= MAX_WEIGHT):  # false for NaN too
                    weights = _check(weights, partition, names)
                if names is not self._members:
                    known = dict(zip(names, weights, strict=True))
                    weights = [known.get(name, _NEVER) for name in self._members]
                self._rows.append(weights)
                self._least.append(least)
            self._kind.append(kind)

    def keep(self, owners: Mapping[Partition, str]) -> None:
        """Keeps what may stay, up to the limits."""
        places = {partition: place for place, partition in enumerate(self._partitions)}
        for partition in self._eligibility.scarce_first():
            owner = owners.get(partition)
            if owner is not None and self._has_room(self._number[owner], partition.topic):
                self._give(places[partition], self._number[owner])

    def place(self) -> None:
        """Places the rest: where there are limits, partitions with few eligible members first; then the heaviest first."""
        rest = [place for place, holder in enumerate(self._holder) if holder < 0]
        rest.sort(key=lambda place: -self._least[self._kind[place]])
        if self._limited:
            rest.sort(key=lambda place: len(self._eligibility.by_partition[self._partitions[place]]))
        for place in rest:
            _, taker = self._best_taker(self._kind[place], self._topic[place])
            if taker < 0:
                taker = self._make_room(place)
            if taker >= 0:
                self._give(place, taker)

    def improve(self) -> None:
        """Makes the best single move of the member with the greatest load that has one, until no member has one."""
        everybody = range(len(self._members))
        shrunk: list[set[int] | None] = [None] * len(self._members)
        """For a member without a move: whose loads have shrunk since. None: not searched, or its own load has changed."""
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
        """Returns the partition whose move makes the sum of squares smallest, and its taker; one of ``takers`` if given."""
        twice, mine, lowest = self._twice, self._twice[giver], min(self._twice)
        named = sorted(takers or ())
        best, found = -_ROUNDING * max(1.0, mine * mine / 4), None
        for kind, places in sorted(self._held[giver].items()):
            row, least = self._rows[kind], self._least[kind]
            less = row[giver] * (row[giver] - mine)  # (l - w)² - l²
            if less + least * (least + lowest) >= best:
                continue  # it would not gain even with the least weight and the smallest load
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
        """Returns the least cost of this kind, which is (l + w)² - l², and the member with this cost, -1 if there is none."""
        costs = [weight * (weight + twice) for weight, twice in zip(self._rows[kind], self._twice, strict=True)]
        if topic in self._limited:
            costs = [cost if self._has_room(number, topic) else _NEVER for number, cost in enumerate(costs)]
        cost = min(costs)
        return cost, costs.index(cost) if cost < _NEVER else -1

    def _make_room(self, place: int) -> int:
        """Moves a partition of the topic from a member at its limit to another. Returns that member, -1 if there is none."""
        for name in self._eligibility.by_partition[self._partitions[place]]:
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
        self._count(place, number, 1)
        self._holder[place] = number
        self._held[number].setdefault(self._kind[place], set()).add(place)

    def _take(self, place: int) -> None:
        number, self._holder[place] = self._holder[place], -1
        self._count(place, number, -1)
        places = self._held[number][self._kind[place]]
        places.remove(place)
        if not places:
            del self._held[number][self._kind[place]]

    def _count(self, place: int, number: int, sign: int) -> None:
        self._twice[number] += 2 * sign * self._rows[self._kind[place]][number]
        if (slot := (number, self._topic[place])) in self._room:
            self._room[slot] -= sign

    def result(self) -> dict[Partition, str]:
        """Returns the assignment, in the order of the partitions."""
        holders = zip(self._partitions, self._holder, strict=True)
        return {partition: self._members[number] for partition, number in holders if number >= 0}


def _check(weights: list[float], partition: Partition, names: tuple[str, ...]) -> list[float]:
    for name, weight in zip(names, weights, strict=True):
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= MAX_WEIGHT:
            raise UsageError(
                f"the weight of {partition} on {name} is {weight!r}; "
                f"expected a number above 0 (1 is normal, less is better)"
            )
    return list(map(float, weights))
