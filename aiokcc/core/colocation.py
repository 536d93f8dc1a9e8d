"""Colocation: all partitions of a pipeline are assigned to one of its drivers.

A pipeline publishes each period once, from exactly its partitions, so they cannot be distributed. Its drivers name the pipeline
in their subscriptions (:attr:`~aiokcc.core.subscriptions.Subscription.pipeline`). While a driver is there, the pipeline's
partitions are reserved: one driver is assigned all of them, the other drivers stand by, and no other member gets any. A driver
that has them keeps them; if several have some, the one with most gets all; if nobody has any, the first by name.

Two pipelines may want the same partition. The one that has more partitions wins; if both have the same number, the first by
name. The other one is refused: it is assigned nothing at all, as if it had no drivers. So an existing assignment stays, and
every leader computes the same result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aiokcc.core.partitions import Partition
from aiokcc.core.subscriptions import Subscription

__all__ = ["Colocation", "colocate"]


class Colocation(NamedTuple):
    """The result for all pipelines."""

    assigned: dict[Partition, str]
    """The driver of each partition."""
    refused: dict[str, tuple[Partition, str]]
    """For each refused pipeline: a partition that it wants, and the pipeline that has it."""


def colocate(
    members: Mapping[str, Subscription], partitions: Iterable[Partition], current: Mapping[Partition, str]
) -> Colocation:
    """Assigns all partitions of each pipeline to one of its drivers. ``current`` may name members that are gone."""
    drivers: dict[str, list[str]] = {}
    for name in sorted(members):
        if (pipeline := members[name].pipeline) is not None:
            drivers.setdefault(pipeline, []).append(name)
    result = Colocation({}, {})
    if not drivers:
        return result
    ordered = sorted(set(partitions))
    owned = Counter(current[partition] for partition in ordered if partition in current)
    chosen = {pipeline: min(names, key=lambda name: (-owned[name], name)) for pipeline, names in drivers.items()}
    reserved: dict[Partition, str] = {}
    for pipeline, name in sorted(chosen.items(), key=lambda choice: (-owned[choice[1]], choice[0])):
        wanted = [partition for partition in ordered if members[name].covers(partition)]
        taken = next((partition for partition in wanted if partition in reserved), None)
        if taken is not None:
            result.refused[pipeline] = (taken, reserved[taken])
            continue
        reserved.update(dict.fromkeys(wanted, pipeline))
        result.assigned.update(dict.fromkeys(wanted, name))
    return result
