"""Where boundaries lie in the logs, by Kafka's own index of times.

``offsets_for_times(T)`` gives the first offset in log order with ``ts >= T``, and that record's timestamp. That is worth as
much as the offset: no boundary up to it needs a question of its own, so a gap in event time costs one question however
many periods it has. Several boundaries are asked about at once; the answers do not depend on each other.

What is found does not change: no earlier record can come to stand before it. What is *not* found may come later, so there the
end of the log counts, which must be read after the limit was seen.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from aiokafka import TopicPartition

from aiokcc.core.partitions import Partition
from aiokcc.core.periods import MAX_TIMESTAMP
from aiokcc.kafka.cluster import Cluster

__all__ = ["Finder", "Found"]

_AT_ONCE: Final = 16
"""Questions on their way at a time: more only queue in the broker."""


class Found(NamedTuple):
    """A record: where it stands and of what time it is."""

    offset: int
    ts: int


class Finder:
    """Asks the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Where the logs end now."""
        wanted = list(partitions)
        return await self._cluster.ends(wanted) if wanted else {}

    async def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Where the logs begin now."""
        wanted = list(partitions)
        return await self._cluster.begins(wanted) if wanted else {}

    async def at(self, times: Mapping[Partition, int]) -> dict[Partition, Found | None]:
        """The first record at or past a time, of each partition; None where there is none."""
        return await self._ask(times)

    async def _ask(self, times: Mapping[Partition, int]) -> dict[Partition, Found | None]:
        if not times:
            return {}
        asked = {TopicPartition(*p): min(ts, MAX_TIMESTAMP) for p, ts in times.items()}
        answer = await self._cluster.ask(self._cluster._consumer.offsets_for_times(asked), "ask for offsets by time of")
        return {
            Partition(*tp): None if found is None else Found(found.offset, found.timestamp)
            for tp, found in answer.items()
        }

    async def across(
        self, known: Mapping[Partition, Found | None], boundaries: Sequence[int]
    ) -> dict[Partition, list[Found | None]]:
        """For each boundary, ascending, the first record at or past it; None where there is none.

        ``known`` is the first record that was found before, so that boundaries up to its time need no question.
        """
        result = {p: _Column(boundaries, found) for p, found in known.items()}
        while True:
            rounds: list[dict[Partition, int]] = []
            for partition, column in result.items():
                for n, ts in enumerate(column.unknown()):
                    if n == len(rounds):
                        rounds.append({})
                    rounds[n][partition] = ts
            if not rounds:
                return {p: column.found for p, column in result.items()}
            for times, answer in zip(rounds, await asyncio.gather(*map(self._ask, rounds)), strict=True):
                for partition, ts in times.items():
                    result[partition].learn(ts, answer[partition])


class _Column:
    """One partition's answers. Those for later boundaries may come first."""

    def __init__(self, boundaries: Sequence[int], known: Found | None) -> None:
        self._boundaries = boundaries
        self.found: list[Found | None] = [None] * len(boundaries)
        self._answered = [False] * len(boundaries)
        self._next = 0
        self._wide = 1
        if known is not None and boundaries:
            self.learn(boundaries[0], known)

    def unknown(self) -> list[int]:
        """The next boundaries to ask about: more and more at a time while each is found to have records of its own."""
        result: list[int] = []
        n = self._next
        while n < len(self._boundaries) and len(result) < self._wide:
            if not self._answered[n]:
                result.append(self._boundaries[n])
            n += 1
        self._wide = min(_AT_ONCE, 2 * self._wide)
        return result

    def learn(self, ts: int, found: Found | None) -> None:
        """The answer for one boundary holds for all later ones up to the found record's time, or for all if there is none."""
        first = bisect.bisect_left(self._boundaries, ts)
        last = len(self._boundaries) if found is None else bisect.bisect_right(self._boundaries, found.ts)
        if last - first > 1:
            self._wide = 1  # a gap: the next question may well answer many again
        for n in range(first, last):
            self.found[n], self._answered[n] = found, True
        while self._next < len(self._boundaries) and self._answered[self._next]:
            self._next += 1
