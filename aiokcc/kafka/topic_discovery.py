"""Adds new partitions, and new topics that match a pattern, to a replay that follows its topics without an end.

Kafka does not notify anybody of a new partition, so the leader's process asks at intervals. A new partition joins the agreed
set at the present limit, and is read from its beginning; records before the limit are late then, and the policy for late
records applies. A process that reads all partitions claims the new ones too; one that has a rule claims those for which the
rule is true; in a Kafka group, Kafka assigns them. If every process has a list, a new partition is unowned, and the limit waits
until a process is started that has it in its list.

In a managed group the leader assigns the new partitions, and removes deleted ones from the set: those of a topic that was
missing two times in a row, because a broker that has just started may not know all topics yet.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from aiokcc.core.partitions import Partition, listing
from aiokcc.core.run import Bounds
from aiokcc.errors import KafkaError, UsageError
from aiokcc.exception_groups import unwrapped
from aiokcc.runtime.listener import Listener
from aiokcc.runtime.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokcc.kafka.cluster import Cluster
    from aiokcc.kafka.partition_tasks import PartitionTasks
    from aiokcc.kafka.source_options import SourceOptions
    from aiokcc.runtime.group import Group

__all__ = ["claim_new", "discover", "include_present"]

log = logging.getLogger("aiokcc.kafka")


async def discover(source: SourceOptions, cluster: Cluster, group: Group) -> None:
    """Ask for partitions that are not in the set yet, and add them while we lead. Runs until cancelled."""
    seconds = _interval(source)
    missing = frozenset[Partition]()
    while True:
        await anyio.sleep(seconds)  # time is the event: Kafka does not notify of new partitions
        if group.epoch is None:
            missing = frozenset()
            continue
        try:
            if source.managed:
                found = await cluster.present(await cluster.topics())
                gone = group.partitions - found
                if gone & missing:
                    group.remove(gone & missing)
                missing = gone
            else:
                found = await cluster.partitions(await cluster.topics())
            await _add(cluster, group, found - group.partitions)
        except (
            KafkaError,
            UsageError,
        ) as error:  # a topic was deleted, or no broker answers: the fetch loop reports it
            log.warning("could not look for new partitions: %s", error)


async def include_present(source: SourceOptions, cluster: Cluster, group: Group) -> None:
    """Wait until the agreed set has all partitions that are there now, and add those that it lacks once we lead.

    For a start that ends before :func:`discover` looks for the first time. If another member leads, it is given three times the
    interval at which it looks; then the log names what is left out. Raises KafkaError and UsageError as the cluster does.
    """
    found = await cluster.partitions(await cluster.topics())
    growth = _SetListener()
    group.membership.add_listener(growth)
    try:
        with anyio.move_on_after(3 * _interval(source)):
            while new := found - group.partitions:
                if group.epoch is not None:
                    await _add(cluster, group, new)
                await growth.signal.wait()
            return
    finally:
        group.membership.remove_listener(growth)
    names = listing(map(str, sorted(found - group.partitions)))
    log.warning("%s: not in the agreed set yet, so this start does not read it; another member leads", names)


def _interval(source: SourceOptions) -> float:
    return float(source.consumer.get("metadata_max_age_ms", 5000)) / 1000


async def _add(cluster: Cluster, group: Group, new: frozenset[Partition]) -> None:
    if new:
        begins = await cluster.begins(new)
        group.add({p: Bounds(begins[p]) for p in new})


async def claim_new(partition_tasks: PartitionTasks, group: Group, wants: Callable[[Partition], bool]) -> None:
    """Read our partitions of the set, and those that join it later. Runs until cancelled.

    Those that join are claimed at once, in a task of their own: the earlier ones may still wait for locks that others hold.
    """
    growth = _SetListener()
    group.membership.add_listener(growth)
    claimed = set[Partition]()
    try:
        async with unwrapped() as tasks:
            while True:
                new = set(filter(wants, group.partitions - claimed))
                if new:
                    claimed |= new  # before it is read: a partition that waits for its lock must not be claimed twice
                    tasks.start_soon(partition_tasks.start_each, new)
                await growth.signal.wait()
    finally:
        group.membership.remove_listener(growth)


class _SetListener(Listener):
    """Sets its signal when the agreed set has changed, and when this member has become the leader."""

    def __init__(self) -> None:
        self.signal = Signal()

    def set_changed(self) -> None:
        self.signal.set()

    def elected(self) -> None:
        self.signal.set()
