"""The assignors: functions that assign partitions to members.

An assignment is a pure function of the subscriptions, the partitions and the present assignment. All of them are sorted first,
so that every leader computes the same result from the same facts. Call :func:`assign` for *all* topics at once: the balance
counts all partitions of a member.

============== ========================================================================================================
``sticky``     the default: as even as the subscriptions allow, and among such assignments the one that moves the fewest
               partitions (:mod:`aiokcc.core.sticky`)
``range``      topic by topic, neighbouring partitions together: orders.0 and payments.0 go to the same member if the
               topics have the same number of partitions and the same members. Even within each topic only
``round_robin`` partitions in order, one to each member in turn
============== ========================================================================================================

All assignors guarantee:

* A partition is assigned only to a member whose subscription covers it, and a member gets at most as many partitions of a topic
  as its subscription allows.
* As many partitions as possible are assigned, each to one member. Where the limits of the members do not suffice for all
  partitions of a topic, the rest is unassigned: the result does not contain it.

The partitions of a pipeline are assigned first, together (:mod:`aiokcc.core.colocation`). The assignor assigns the other
partitions to the other members.

A *weight* (sticky only) is the user's function of a partition and a member. It returns the cost of that partition on that
member: 1 is normal; a partition that lags costs more everywhere, one that is read from another rack costs more there. The
assignor then balances the loads, which are sums of weights, instead of the numbers (:mod:`aiokcc.core.weighted`).
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
    """Returns a member for each partition that can have one.

    ``current`` is the present assignment; it may name members and partitions that are gone. Raises UsageError if there is no
    such assignor, or if it takes no weight.
    """
    check_assignor(assignor)
    if weight is not None and assignor != DEFAULT:
        raise UsageError(
            f"a weight is given, but the assignor {assignor!r} takes none; expected the assignor {DEFAULT!r}"
        )
    partitions = frozenset(partitions)
    colocated = colocate(members, partitions, current).assigned
    others = {name: wants for name, wants in members.items() if wants.pipeline is None}
    eligibility = Eligibility.of(others, partitions - colocated.keys())
    rest = (
        ASSIGNORS[assignor](eligibility, current) if weight is None else assign_weighted(eligibility, current, weight)
    )
    return dict(sorted({**rest, **colocated}.items())) if colocated else rest


def check_assignor(name: object) -> str:
    """Returns the name. Raises UsageError if no assignor has it."""
    if not isinstance(name, str) or name not in ASSIGNORS:
        raise UsageError(f"there is no assignor {name!r}; expected one of {', '.join(ASSIGNORS)}")
    return name


def assign_range(eligibility: Eligibility, _current: Mapping[Partition, str]) -> dict[Partition, str]:
    """Cuts each topic into one range of neighbouring partitions for each member; the first ranges are longer by one."""
    result: dict[Partition, str] = {}
    ranges: dict[tuple[str, tuple[str, ...]], list[Partition]] = {}
    for partition in eligibility.scarce_first():
        ranges.setdefault((partition.topic, eligibility.by_partition[partition]), []).append(partition)
    room = dict(eligibility.limits)
    for (topic, names), partitions in ranges.items():
        shares = _divide(len(partitions), names, [room.get((name, topic)) for name in names])
        at = 0
        for name, share in zip(names, shares, strict=True):
            result.update(dict.fromkeys(partitions[at : at + share], name))
            at += share
            if (name, topic) in room:
                room[name, topic] -= share
    return dict(sorted(result.items()))


def _divide(count: int, names: tuple[str, ...], rooms: list[int | None]) -> list[int]:
    """Divides ``count`` into equal shares, none of them greater than the member's room."""
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


def assign_round_robin(eligibility: Eligibility, _current: Mapping[Partition, str]) -> dict[Partition, str]:
    """Assigns one partition to each member in turn. A member that is not eligible is skipped, and stays the next."""
    result: dict[Partition, str] = {}
    room = dict(eligibility.limits)
    turn = dict.fromkeys(eligibility.members)  # in the order of their turns
    for partition in eligibility.scarce_first():
        names = eligibility.by_partition[partition]
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
"""The assignors by name; the first is the default."""
