"""Partitions that go together: those of a pipeline, all of them to one of its drivers.

A pipeline publishes each period once, from exactly its partitions, so they cannot be shared out. Its drivers say so in their
subscriptions (:attr:`~aiokcc.core.subscriptions.Subscription.pipeline`). While one of them is there, the pipeline's partitions
are reserved: one driver is given all of them, the others stand by, and nobody else gets any. The driver that has them keeps
them; where several have some, the one with most, and where nobody has any, the first by name.

Two pipelines may want the same partition. One that has partitions goes before one that has none, one that has more before one
that has fewer, and then the name decides; whoever comes later gets nothing at all, as if none of its drivers were there. So
what a rule gave stays given, and every leader comes to the same result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aiokcc.core.partitions import Partition
from aiokcc.core.subscriptions import Subscription

__all__ = ["Colocation", "colocate"]


class Colocation(NamedTuple):
    """What pipelines are given."""

    given: dict[Partition, str]
    """To which driver."""
    refused: dict[str, tuple[Partition, str]]
    """Pipelines that get nothing: a partition they want, and the pipeline that has it."""


def colocate(
    members: Mapping[str, Subscription], partitions: Iterable[Partition], current: Mapping[Partition, str]
) -> Colocation:
    """All partitions of each pipeline to one of its drivers. ``current`` may name who or what is gone."""
    drivers: dict[str, list[str]] = {}
    for name in sorted(members):
        if (pipeline := members[name].pipeline) is not None:
            drivers.setdefault(pipeline, []).append(name)
    result = Colocation({}, {})
    if not drivers:
        return result
    there = sorted(set(partitions))
    held = Counter(current[partition] for partition in there if partition in current)
    chosen = {pipeline: min(names, key=lambda name: (-held[name], name)) for pipeline, names in drivers.items()}
    has: dict[Partition, str] = {}
    for pipeline, name in sorted(chosen.items(), key=lambda choice: (-held[choice[1]], choice[0])):
        wanted = [partition for partition in there if members[name].covers(partition)]
        taken = next((partition for partition in wanted if partition in has), None)
        if taken is not None:
            result.refused[pipeline] = (taken, has[taken])
            continue
        has.update(dict.fromkeys(wanted, pipeline))
        result.given.update(dict.fromkeys(wanted, name))
    return result
