"""Eligibility: which members may be assigned which partitions, by their subscriptions.

Members with equal subscriptions share one tuple per topic. So code that looks for partitions with the same eligible members
compares few objects, however many partitions there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aiokcc.core.partitions import Partition
from aiokcc.core.subscriptions import Subscription

__all__ = ["Eligibility"]


@dataclass(frozen=True, slots=True)
class Eligibility:
    """The eligible members of each partition, sorted by name."""

    members: tuple[str, ...]
    by_partition: Mapping[Partition, tuple[str, ...]]
    """The partitions that have eligible members, sorted. Equal tuples are the same object."""
    limits: Mapping[tuple[str, str], int]
    """For a member and a topic: the most partitions it takes, where that is less than the topic has."""

    @classmethod
    def of(cls, members: Mapping[str, Subscription], partitions: Iterable[Partition]) -> Eligibility:
        """Applies the subscriptions of the members to the partitions."""
        names = tuple(sorted(members))
        listed: dict[Partition, list[str]] = {}
        for name in names:
            for partition in members[name].partitions:
                listed.setdefault(partition, []).append(name)
        interned: dict[tuple[str, ...], tuple[str, ...]] = {names: names}
        of_topic: dict[str, tuple[str, ...]] = {}
        by_partition: dict[Partition, tuple[str, ...]] = {}
        numbers: dict[str, int] = {}
        for partition in sorted(set(partitions)):
            topic = partition.topic
            numbers[topic] = numbers.get(topic, 0) + 1
            eligible = of_topic.get(topic)
            if eligible is None:
                eligible = tuple([name for name in names if members[name].covers_topic(topic)])
                eligible = of_topic[topic] = interned.setdefault(eligible, eligible)
            if partition in listed:
                eligible = tuple(sorted({*eligible, *listed[partition]}))
                eligible = interned.setdefault(eligible, eligible)
            if eligible:
                by_partition[partition] = eligible
        limits = {
            (name, topic): most
            for name in names
            for topic, most in members[name].topics.items()
            if most is not None and most < numbers.get(topic, 0)
        }
        return cls(names, by_partition, limits)

    def keepable(self, current: Mapping[Partition, str]) -> dict[Partition, str]:
        """Returns the part of the present assignment that may stay: the member is there, and is eligible."""
        sets = {id(names): frozenset(names) for names in self.by_partition.values()}
        return {
            partition: current[partition]
            for partition, names in self.by_partition.items()
            if partition in current and current[partition] in sets[id(names)]
        }

    def scarce_first(self) -> list[Partition]:
        """Returns the partitions in an order in which a greedy assignment assigns as many as possible.

        Limits count per member and topic, but not for partitions that the member subscribed by number. So the partitions of a
        topic that nobody subscribed by number come first: the others cannot use up their room.
        """
        if not self.limits:
            return list(self.by_partition)
        return sorted(self.by_partition, key=lambda partition: (len(self.by_partition[partition]), partition))
