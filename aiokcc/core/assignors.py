"""Who runs which partition: the rules that turn members and partitions into an assignment.

An assignment is a pure function of what was subscribed, the partitions, and who has what now. Members, partitions and the
present assignment are put in order first, so that every leader comes to the same result from the same facts. Call it for
*all* topics at once: balance is counted over all that a member has.

============== ========================================================================================================
``sticky``     the default: as even as the subscriptions let it be, and among those the one that moves the fewest
               partitions (:mod:`aiokcc.core.sticky`)
``range``      topic by topic, neighbouring partitions together: orders.0 and payments.0 go to the same member where the
               topics have as many partitions and the same members. Even within a topic only
``round_robin`` partitions in order, one to each member in turn
============== ========================================================================================================

What holds for all of them:

* A partition is given only to a member whose subscription covers it, and a member gets at most as many of a topic as it asked
  for.
* As many partitions as possible are given, each to one member. Where the limits do not reach for all of a topic, the rest is in
  nobody's hands, and missing in the result.

Partitions that go together, those of a pipeline, are given first and as a whole (:mod:`aiokcc.core.colocation`); the rule is
for the rest, and for the other members.

A *weight* (sticky only) is the user's function of a partition and a member: how heavy the one is on the other. 1 is the usual;
a partition that lags is heavier everywhere, one that is read from another rack is heavier there. The loads, which are the sums
of the weights, are then balanced instead of the numbers (:mod:`aiokcc.core.weighted`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from aiokcc.core.colocation import colocate
from aiokcc.core.eligibility import Eligibility
from aiokcc.core.partitions import Partition
from aiokcc.core.sticky import assign_sticky
from aiokcc.core.subscriptions import Subscription
from aiokcc.core.weighted import Weight, assign_weighted
from aiokcc.errors import UsageError

__all__ = ["ASSIGNORS", "DEFAULT", "assign", "check_assignor"]

DEFAULT: Final = "sticky"


def assign(
    assignor: str,
    members: Mapping[str, Subscription],
    partitions: Iterable[Partition],
    current: Mapping[Partition, str],
    weight: Weight | None = None,
) -> dict[Partition, str]:
    """A member for each partition that can have one. ``current`` is who has what now; it may name who or what is gone."""
    check_assignor(assignor)
    if weight is not None and assignor != DEFAULT:
        raise UsageError(f"a weight is given, but {assignor!r} does not weigh; it needs {DEFAULT!r}")
    partitions = frozenset(partitions)
    whole = colocate(members, partitions, current).given
    others = {name: wants for name, wants in members.items() if wants.pipeline is None}
    takers = Eligibility.of(others, partitions - whole.keys())
    rest = ASSIGNORS[assignor](takers, current) if weight is None else assign_weighted(takers, current, weight)
    return dict(sorted({**rest, **whole}.items())) if whole else rest


def check_assignor(name: object) -> str:
    """The name of an assignor; UsageError if there is none of this name."""
    if not isinstance(name, str) or name not in ASSIGNORS:
        raise UsageError(f"there is no assignor {name!r}; expected one of {', '.join(ASSIGNORS)}")
    return name


def assign_range(takers: Eligibility, _current: Mapping[Partition, str]) -> dict[Partition, str]:
    """Each topic cut into as many neighbouring stretches as it has members; the first ones are one longer."""
    result: dict[Partition, str] = {}
    stretches: dict[tuple[str, tuple[str, ...]], list[Partition]] = {}
    for partition in takers.scarce_first():
        stretches.setdefault((partition.topic, takers.of_partition[partition]), []).append(partition)
    room = dict(takers.limits)
    for (topic, names), stretch in stretches.items():
        shares = _shares(len(stretch), names, [room.get((name, topic)) for name in names])
        at = 0
        for name, share in zip(names, shares, strict=True):
            result.update(dict.fromkeys(stretch[at : at + share], name))
            at += share
            if (name, topic) in room:
                room[name, topic] -= share
    return dict(sorted(result.items()))


def _shares(count: int, names: tuple[str, ...], rooms: list[int | None]) -> list[int]:
    """``count`` in equal parts, where nobody gets more than there is room for."""
    shares = [0] * len(names)
    open_to = [n for n, room in enumerate(rooms) if room is None or room > 0]
    while count and open_to:
        each, more = divmod(count, len(open_to))
        for place, n in enumerate(open_to):
            part = each + (place < more)
            room = rooms[n]
            if room is not None:
                part = min(part, room - shares[n])
            shares[n] += part
            count -= part
        open_to = [n for n in open_to if (room := rooms[n]) is None or shares[n] < room]
    return shares


def assign_round_robin(takers: Eligibility, _current: Mapping[Partition, str]) -> dict[Partition, str]:
    """One to each member in turn; who may not take a partition is passed over, and stays next."""
    result: dict[Partition, str] = {}
    room = dict(takers.limits)
    turn = dict.fromkeys(takers.members)  # in the order in which it is their turn
    for partition in takers.scarce_first():
        names = takers.of_partition[partition]
        for name in turn if len(names) == len(turn) else [name for name in turn if name in names]:
            slot = (name, partition.topic)
            if room.get(slot, 1) > 0:
                if slot in room:
                    room[slot] -= 1
                result[partition] = name
                del turn[name]
                turn[name] = None
                break
    return dict(sorted(result.items()))


ASSIGNORS: Final[Mapping[str, Callable[[Eligibility, Mapping[Partition, str]], dict[Partition, str]]]] = {
    "sticky": assign_sticky,
    "range": assign_range,
    "round_robin": assign_round_robin,
}
"""By name; the first is the default."""
