"""The sticky assignor: as even as possible, and then with as few moves as possible. Both exactly.

*Even* means that no other assignment has a smaller sum of the squares of the members' loads (numbers of partitions). Such an
assignment also has the smallest maximum, the smallest spread, and the minimum of every other measure that punishes unevenness.
A *move* is a partition that its owner could keep and that is assigned to another member.

**Every member may take every partition** (the usual case). The shares are known: with n partitions and m members each gets
n // m, and n % m members get one more. The longer shares go to the members with the most partitions now, which keep what fits;
the rest is distributed.

**Subscriptions differ.** Then it is a minimum-cost flow, and it is solved as one. The nodes are the members. There is an edge
from a to b if a has a partition that b may take; its cost is the change in the number of moves: 1 if the partition was a's
before, -1 if it was b's and returns, 0 otherwise. A path from a to b moves one partition along each edge, so a has one less and
b one more. Its gain in evenness counts before its cost in moves. We apply the best path while one gains. We start with the
present assignment, where no edge is negative, so there is never a cycle that gains, and a search for shortest paths with
negative edges ends (Bellman and Ford). Unassigned partitions belong to an artificial member that gives at any cost and takes
nothing.

A limit of streams splits a member that has its full number of a topic into two nodes: another partition of this topic can only
pass *through* it, in exchange for one of the same topic.

Mostly the best path is a single move, and this is known without a search. No path gains more than one from a member with the
greatest load to one with the smallest. And for given loads there is a least number of moves: what a member has beyond what it
owned before was another's, or is new. If there are no more moves than that so far, then a single move that keeps to the least
number, for the pair of members that needs fewest, is as good as any path.

Example: a has orders.0 to 3 and payments.0. Now b joins, which may take everything, and c, which may take payments only.

1. a has 5, the others nothing. a → b and a → c gain and cost the same, so the name decides: one of the orders goes to b.
2. a 4, b 1, c 0: a → c gains most, payments.0.
3. a 3, b 1, c 1: a → b gains, another of the orders. With a 2, b 2, c 1 no path gains: three moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from aiokcc.core.eligibility import Eligibility
from aiokcc.core.partitions import Partition

__all__ = ["assign_sticky"]


def assign_sticky(eligibility: Eligibility, current: Mapping[Partition, str]) -> dict[Partition, str]:
    """Returns the even assignment that moves the fewest partitions."""
    if not eligibility.by_partition:
        return {}
    owners = eligibility.keepable(current)
    if not eligibility.limits and all(names is eligibility.members for names in eligibility.by_partition.values()):
        return _all_eligible(eligibility, owners)
    return _Flow(eligibility, owners).solve()


def _all_eligible(eligibility: Eligibility, owners: Mapping[Partition, str]) -> dict[Partition, str]:
    """Solves the usual case, in which every member may take every partition."""
    held: dict[str, list[Partition]] = {name: [] for name in eligibility.members}
    spare: list[Partition] = []
    for partition in eligibility.by_partition:
        owner = owners.get(partition)
        (spare if owner is None else held[owner]).append(partition)
    each, more = divmod(len(eligibility.by_partition), len(held))
    # Sorting is stable: of members with the same number, the first by name get the longer shares.
    shares = {name: each + (n < more) for n, name in enumerate(sorted(held, key=lambda name: -len(held[name])))}
    result: dict[Partition, str] = {}
    for name, mine in held.items():
        over = len(mine) - shares[name]
        if over > 0:
            # Taken evenly from the topics, so that a new member gets some of each.
            revoked = {mine[n * len(mine) // over] for n in range(over)}
            spare += revoked
            mine = [partition for partition in mine if partition not in revoked]
        result.update(dict.fromkeys(mine, name))
        shares[name] -= len(mine)
    spare.sort(reverse=True)
    while spare:  # one to each in turn, so that a topic is spread
        for name, share in shares.items():
            if share and spare:
                result[spare.pop()] = name
                shares[name] -= 1
    return dict(sorted(result.items()))


_NOBODY: Final = ""  # the artificial member; no real one has this name
_FAR: Final = 1 << 60

_Node: TypeAlias = tuple[str, str]
"""A member, or a member and a topic of which it has its full number."""


class _Kind(NamedTuple):
    """Partitions with the same eligible members, which count against the same limits."""

    eligible: tuple[str, ...]
    topic: str
    """The topic that a member limits; empty if none does."""


class _Flow:
    """The flow for subscriptions that differ.

    The partitions of a member are kept by kind and by previous owner, because nothing else decides what a move costs.
    """

    def __init__(self, eligibility: Eligibility, owners: Mapping[Partition, str]) -> None:
        self._eligibility = eligibility
        self._members = eligibility.members
        self._kinds: list[_Kind] = []
        self._load = dict.fromkeys(self._members, 0)
        self._room = dict(eligibility.limits)
        self._full: set[tuple[str, str]] = set()  # members and topics without room
        self._held: dict[str, dict[int, dict[str, list[Partition]]]] = {name: {} for name in (*self._members, _NOBODY)}
        self._able: list[str] = []  # the members that may take any partition at all
        self._home = dict.fromkeys(self._members, 0)  # how many partitions each member had before
        self._new = 0  # how many partitions had no owner before
        self._away = 0  # how many partitions have moved
        self._scale = 2 * len(eligibility.by_partition) + 2  # one step of evenness outweighs all moves together
        self._start(owners)

    def solve(self) -> dict[Partition, str]:
        """Applies the best path while one gains."""
        while path := self._single_move() or self._best_path():
            for giver, taker, kind in path:
                self._move(giver, taker, kind)
        result = {
            partition: name
            for name in self._members
            for owners in self._held[name].values()
            for partitions in owners.values()
            for partition in partitions
        }
        return dict(sorted(result.items()))

    def _start(self, owners: Mapping[Partition, str]) -> None:
        """Keeps what may stay. Assigns new partitions to the members with the least: wherever they end, that is no move."""
        limited = {topic for _, topic in self._room}
        numbers: dict[tuple[int, str], int] = {}
        fresh: list[tuple[Partition, int]] = []
        for partition in self._eligibility.scarce_first():
            names = self._eligibility.by_partition[partition]
            topic = partition.topic if partition.topic in limited else ""
            kind = numbers.setdefault((id(names), topic), len(self._kinds))
            if kind == len(self._kinds):
                self._kinds.append(_Kind(names, topic))
            owner = owners.get(partition, _NOBODY)
            if owner == _NOBODY:
                fresh.append((partition, kind))
            else:
                self._home[owner] += 1
                self._put(_NOBODY if (owner, topic) in self._full else owner, kind, owner, partition)
        self._new = len(fresh)
        self._able = sorted({name for kind in self._kinds for name in kind.eligible})
        for partition, kind in fresh:
            names, topic = self._kinds[kind]
            free = [name for name in names if (name, topic) not in self._full] if topic else names
            self._put(min(free, key=self._load.__getitem__, default=_NOBODY), kind, _NOBODY, partition)

    def _put(self, name: str, kind: int, owner: str, partition: Partition) -> None:
        self._held[name].setdefault(kind, {}).setdefault(owner, []).append(partition)
        if name != _NOBODY:
            self._away += owner not in (name, _NOBODY)
            self._count(name, kind, 1)

    def _count(self, name: str, kind: int, step: int) -> None:
        self._load[name] += step
        slot = (name, self._kinds[kind].topic)
        if slot in self._room:
            self._room[slot] -= step
            (self._full.discard if self._room[slot] > 0 else self._full.add)(slot)

    def _move(self, giver: str, taker: str, kind: int) -> None:
        """Moves the cheapest partition of this kind: one that was the taker's if there is one, the giver's own last."""
        owners = self._held[giver][kind]
        owner = taker if taker in owners else min(owners, key=lambda name: (name == giver, name))
        partition = owners[owner].pop()
        if not owners[owner]:
            del owners[owner]
            if not owners:
                del self._held[giver][kind]
        if giver != _NOBODY:
            self._away -= owner not in (giver, _NOBODY)
            self._count(giver, kind, -1)
        self._put(taker, kind, owner, partition)

    def _single_move(self) -> list[tuple[str, str, int]]:
        """Returns the best path if it is known to be a single move; an empty one if only a search can find it."""
        load, home = {name: self._load[name] for name in self._able}, self._home
        most, least = max(load.values()), min(load.values())
        beyond = sum([max(0, load[name] - home[name]) for name in load])
        if most - least < 2 or self._held[_NOBODY] or self._away != max(0, beyond - self._new):
            return []
        # First givers with partitions of others, and takers that miss some of their own: these add nothing to the moves.
        givers = sorted([(load[name] <= home[name], name) for name in load if load[name] == most])
        takers = sorted([(load[name] >= home[name], name) for name in load if load[name] == least])
        fewest = max(0, beyond + givers[0][0] - 1 + takers[0][0] - self._new)
        for gives_own, giver in givers:
            for takes_foreign, taker in takers:
                if max(0, beyond + gives_own - 1 + takes_foreign - self._new) == fewest:
                    kinds = self._kinds_to_move(giver, taker, fewest - self._away)
                    if kinds:
                        return [(giver, taker, -max(kinds)[1])]
        return []

    def _kinds_to_move(self, giver: str, taker: str, cost: int) -> list[tuple[int, int]]:
        """Returns the kinds of which a partition can move at this cost, each with how many more of it the giver has."""
        theirs = self._held[taker]
        return [
            (_count_of(owners) - _count_of(theirs.get(kind, {})), -kind)
            for kind, owners in self._held[giver].items()
            if taker in self._kinds[kind].eligible
            and (taker, self._kinds[kind].topic) not in self._full
            and cost == (-1 if taker in owners else len(owners) == 1 and giver in owners)
        ]

    def _best_path(self) -> list[tuple[str, str, int]]:
        """Returns the moves that gain most; an empty list if none gain.

        An edge is followed in two steps, to the kind and from there to all its eligible members: this is one relaxation per
        kind of each member, instead of one for each pair of members.
        """
        scale, load = self._scale, self._load
        # The gain if this member has one less: n² - (n-1)².
        distance: dict[_Node, int] = {(name, ""): -(2 * load[name] - 1) * scale for name in self._members if load[name]}
        if self._held[_NOBODY]:
            distance[_NOBODY, ""] = -_FAR
        reached = [_FAR] * len(self._kinds)
        giver_of: list[_Node] = [(_NOBODY, "")] * len(self._kinds)
        before: dict[_Node, tuple[_Node | None, int]] = {}
        # From the greatest load: most nodes are then reached at their final distance at once.
        queue = sorted(distance, key=lambda node: (distance[node], node))
        while queue:
            again: dict[_Node, None] = {}
            kinds: dict[int, None] = {}
            for node in queue:
                giver, only = node
                here = distance[node]
                for kind, owners in self._held[giver].items():
                    if only and self._kinds[kind].topic != only:
                        continue
                    cost = here + (giver != _NOBODY and len(owners) == 1 and giver in owners)
                    if cost < reached[kind]:
                        reached[kind], giver_of[kind] = cost, node
                        kinds[kind] = None
                    for owner in owners:
                        if owner not in (giver, _NOBODY):  # it would return to its owner
                            target = self._node(owner, self._kinds[kind].topic)
                            if here - 1 < distance.get(target, _FAR):
                                distance[target] = here - 1
                                before[target] = (node, kind)
                                again[target] = None
            for kind in kinds:
                cost = reached[kind]
                topic = self._kinds[kind].topic
                for taker in self._kinds[kind].eligible:
                    target = self._node(taker, topic)
                    if cost < distance.get(target, _FAR):
                        distance[target] = cost
                        before[target] = (None, kind)
                        again[target] = None
            queue = list(again)
        # The cost if the last member has one more: (n+1)² - n².
        gain, last = min(
            ((distance[name, ""] + (2 * load[name] + 1) * scale, name) for name in load if (name, "") in distance),
            default=(0, ""),
        )
        path: list[tuple[str, str, int]] = []
        if gain < 0:
            node = (last, "")
            while node in before:
                previous, kind = before[node]
                previous = previous or giver_of[kind]
                path.append((previous[0], node[0], kind))
                node = previous
        return path

    def _node(self, name: str, topic: str) -> _Node:
        slot = (name, topic)
        return slot if slot in self._full else (name, "")


def _count_of(owners: Mapping[str, list[Partition]]) -> int:
    return sum(map(len, owners.values()))
