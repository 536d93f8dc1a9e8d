"""Finds where boundaries lie in the logs, by Kafka's own index of times.

A request for the time ``T`` gives the first offset in log order with ``ts >= T``, and that record's timestamp. The timestamp
is as useful as the offset: no boundary up to it needs a request of its own, so a gap in event time costs one request however
many periods it has. Several requests are on their way at once; the answers do not depend on each other.

A record that was found stays the first one, because records are only appended. A record that was *not* found may be appended
later. Then the end of the log counts, which must be read after the limit was read.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from aiokcc.core.partitions import Partition
from aiokcc.core.periods import MAX_TIMESTAMP
from aiokcc.exception_groups import unwrapped
from aiokcc.kafka.cluster import Cluster

__all__ = ["Finder", "Found"]

_AT_ONCE: Final = 16
"""The number of requests on their way at once; more would only wait in the broker."""


class Found(NamedTuple):
    """The offset and the timestamp of a record."""

    offset: int
    ts: int


class Finder:
    """Finds records by time, and the ends of logs, by requests to the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def looks_ahead(self) -> bool:
        """True if a request is cheap enough to be made for the next batch while a job runs."""
        return False

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the present end offsets of the logs."""
        wanted = list(partitions)
        return await self._cluster.ends(wanted) if wanted else {}

    async def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the present first offsets of the logs."""
        wanted = list(partitions)
        return await self._cluster.begins(wanted) if wanted else {}

    async def at(self, times: Mapping[Partition, int]) -> dict[Partition, Found | None]:
        """Return the first record at or past a time, for each partition; None where there is none."""
        return await self._ask(times)

    async def _ask(self, times: Mapping[Partition, int]) -> dict[Partition, Found | None]:
        if not times:
            return {}
        answer = await self._cluster.look_up({p: min(ts, MAX_TIMESTAMP) for p, ts in times.items()})
        return {p: None if found is None else Found(*found) for p, found in answer.items()}

    async def across(
        self, known: Mapping[Partition, Found | None], boundaries: Sequence[int]
    ) -> dict[Partition, list[Found | None]]:
        """Return for each boundary, ascending, the first record at or past it; None where there is none.

        ``known`` is the first record that was found before; boundaries up to its time need no request.
        """
        searches = {p: _PartitionSearch(boundaries, found) for p, found in known.items()}
        running = 0

        async def ask(times: Mapping[Partition, int]) -> None:
            nonlocal running
            answer = await self._ask(times)
            running -= 1
            for partition, ts in times.items():
                searches[partition].answer(ts, answer[partition])
            go_on()

        def go_on() -> None:
            nonlocal running
            while running < _AT_ONCE:
                times = {p: ts for p, search in searches.items() if (ts := search.question()) is not None}
                if not times:
                    return
                running += 1
                tasks.start_soon(ask, times)

        async with unwrapped() as tasks:
            go_on()
        return {p: search.found for p, search in searches.items()}


class _PartitionSearch:
    """The answers for one partition. Answers for later boundaries may come first."""

    def __init__(self, boundaries: Sequence[int], known: Found | None) -> None:
        self._boundaries = boundaries
        self.found: list[Found | None] = [None] * len(boundaries)
        self._answered = [False] * len(boundaries)
        self._next = 0
        """The index of the first boundary that is neither answered nor asked for."""
        self._running = 0
        self._wide = 1
        """The number of requests that may be on their way. It grows as long as each answer serves one boundary only."""
        if known is not None and boundaries:
            self._learn(boundaries[0], known)

    def question(self) -> int | None:
        """Return the next boundary to ask for; None if none is left, or if answers must come first."""
        while self._next < len(self._boundaries) and self._answered[self._next]:
            self._next += 1
        if self._next == len(self._boundaries) or self._running >= self._wide:
            return None
        self._running += 1
        self._next += 1
        return self._boundaries[self._next - 1]

    def answer(self, ts: int, found: Found | None) -> None:
        """Record the answer to a request."""
        self._running -= 1
        if self._learn(ts, found) > 1:
            self._wide = 1  # a gap: the next answer is likely to serve many boundaries, too
        else:
            self._wide = min(_AT_ONCE, self._wide + 1)

    def _learn(self, ts: int, found: Found | None) -> int:
        """Record an answer for its boundary and for all later ones up to the time of the found record; return their number."""
        first = bisect.bisect_left(self._boundaries, ts)
        last = len(self._boundaries) if found is None else bisect.bisect_right(self._boundaries, found.ts)
        for n in range(first, last):
            self.found[n], self._answered[n] = found, True
        return last - first
