"""Which members may take which partition: subscriptions, applied to the partitions there are.

Members that subscribed alike share one tuple per topic, so that a rule which looks at "the same takers" compares few things
however many partitions there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aiokcc.core.partitions import Partition
from aiokcc.core.subscriptions import Subscription

__all__ = ["Eligibility"]


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Who may take what, in order of the names."""

    members: tuple[str, ...]
    of_partition: Mapping[Partition, tuple[str, ...]]
    """Only partitions that somebody may take, in order. Equal tuples are the same object."""
    limits: Mapping[tuple[str, str], int]
    """The most partitions of a topic for a member, where that is less than there are."""

    @classmethod
    def of(cls, members: Mapping[str, Subscription], partitions: Iterable[Partition]) -> Eligibility:
        """Apply the subscriptions."""
        names = tuple(sorted(members))
        listed: dict[Partition, list[str]] = {}
        for name in names:
            for partition in members[name].partitions:
                listed.setdefault(partition, []).append(name)
        interned: dict[tuple[str, ...], tuple[str, ...]] = {names: names}
        of_topic: dict[str, tuple[str, ...]] = {}
        of_partition: dict[Partition, tuple[str, ...]] = {}
        numbers: dict[str, int] = {}
        for partition in sorted(set(partitions)):
            topic = partition.topic
            numbers[topic] = numbers.get(topic, 0) + 1
            takers = of_topic.get(topic)
            if takers is None:
                takers = tuple([name for name in names if members[name].covers_topic(topic)])
                takers = of_topic[topic] = interned.setdefault(takers, takers)
            if partition in listed:
                takers = tuple(sorted({*takers, *listed[partition]}))
                takers = interned.setdefault(takers, takers)
            if takers:
                of_partition[partition] = takers
        limits = {
            (name, topic): most
            for name in names
            for topic, most in members[name].topics.items()
            if most is not None and most < numbers.get(topic, 0)
        }
        return cls(names, of_partition, limits)

    def owners(self, current: Mapping[Partition, str]) -> dict[Partition, str]:
        """What of the present assignment may stay: the member is there, and may still take the partition."""
        sets = {id(names): frozenset(names) for names in self.of_partition.values()}
        return {
            partition: current[partition]
            for partition, names in self.of_partition.items()
            if partition in current and current[partition] in sets[id(names)]
        }

    def scarce_first(self) -> list[Partition]:
        """The partitions in an order in which giving each to anybody with room gives away as many as possible.

        Limits are per member and topic, and whoever asked for a partition by its number has no limit on it. So of the
        partitions of a topic those that nobody asked for by number come first: nothing else can take up their room.
        """
        if not self.limits:
            return list(self.of_partition)
        return sorted(self.of_partition, key=lambda partition: (len(self.of_partition[partition]), partition))
