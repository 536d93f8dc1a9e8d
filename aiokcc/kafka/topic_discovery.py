"""New partitions, and new topics that match a pattern, join a replay that follows its topics for ever.

Kafka tells nobody of a new partition, so the leader's process asks every few seconds; it is time that makes the answer
worth having. What it finds joins the agreed set at the present limit, read from its beginning; what lies before the limit
by then is late, and the policy for late records says what becomes of it. Whoever reads all partitions takes the new ones
too, and whoever has a rule takes those that the rule gives him; in a Kafka group, Kafka assigns them. With nothing but lists a
new partition is in nobody's hands, and the limit waits until somebody is started who has it in his list.

In a managed group the leader assigns what has joined, and what was deleted leaves the set: a topic that was not there two times
in a row, so that a broker that has just come up and knows little yet takes nothing out.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from aiokcc.core.partitions import Partition
from aiokcc.core.run import Bounds
from aiokcc.errors import KafkaError, UsageError
from aiokcc.runtime.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokcc.kafka.cluster import Cluster
    from aiokcc.kafka.partition_tasks import PartitionTasks
    from aiokcc.kafka.settings import ReplaySettings
    from aiokcc.runtime.group import Group

__all__ = ["discover", "take"]

log = logging.getLogger("aiokcc.kafka")


async def discover(settings: ReplaySettings, cluster: Cluster, group: Group) -> None:
    """Look for partitions that are not in the set yet, for as long as the replay runs; have them join if we lead."""
    seconds = settings.consumer.get("metadata_max_age_ms", 5000) / 1000
    missing = frozenset[Partition]()
    while True:
        await anyio.sleep(seconds)  # time is the event: Kafka tells nobody of new partitions
        if group.epoch is None:
            missing = frozenset()
            continue
        try:
            if settings.managed:
                found = await cluster.present(await cluster.topics(settings))
                gone = group.partitions - found
                if gone & missing:
                    group.remove(gone & missing)
                missing = gone
            else:
                found = await cluster.partitions(await cluster.topics(settings))
            new = found - group.partitions
            if new:
                begins = await cluster.begins(new)
                group.add({p: Bounds(begins[p]) for p in new})
        except (
            KafkaError,
            UsageError,
        ) as error:  # a topic deleted, or the broker away: what is being read says so itself
            log.warning("could not look for new partitions: %s", error)


async def take(reading: PartitionTasks, group: Group, wants: Callable[[Partition], bool]) -> None:
    """Read our partitions of the set, and those that join it later; one after the other, or one would be opened twice."""
    grown = Signal()
    member = group._member
    member.on_set = grown.set
    try:
        while True:
            if new := set(filter(wants, group.partitions - reading.partitions)):
                await reading.begin_as_they_come(new)
            await grown.wait()
    finally:
        member.on_set = None
