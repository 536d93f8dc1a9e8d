"""What a batch holds: pure arithmetic over boundaries and where they lie in the logs.

A boundary ``T`` lies in a partition at a :class:`Place`: ``low`` is the first offset of a record of a later period, ``high``
the first offset from which on none belongs to an earlier one. Without a bound on lateness the two are the same:
the first offset with ``ts >= T``. Neighbouring places give the exact range of a period, so periods tile a partition.

An :class:`Intent` is what the store holds before anything of a batch is published: the batch's periods and where they begin and
end, and before them the *walked* boundaries, which are published and which the gate may not have closed yet. A driver that
comes later needs nothing else to go on: neither the log nor its index is asked again about what was decided.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from aiokcc.core.partitions import Partition
from aiokcc.core.periods import boundary_after
from aiokcc.errors import CorruptNodeError
from aiokcc.spark.batch import Batch, Slice

__all__ = ["MAX_INTENT", "CrossedPeriod", "Intent", "Place", "next_boundaries", "starts_of"]

MAX_INTENT: Final = 700_000
"""Bytes of an intent. The store takes a megabyte for a whole transaction."""

_FORM: Final = "a batch as JSON: number, walked, periods and places"


class Place(NamedTuple):
    """Where a boundary lies in a partition."""

    low: int
    """Everything before it belongs to earlier periods."""
    high: int
    """Nothing from here on does."""


class CrossedPeriod(NamedTuple):
    """A published period, and where it ends in each partition. Kept until the gate has closed it."""

    start: int
    end: int
    places: Mapping[Partition, Place]


@dataclass(frozen=True, slots=True)
class Intent:
    """A batch as it was decided."""

    number: int
    walked: tuple[tuple[int, int], ...]
    """Published periods whose ends the gate may not have closed."""
    periods: tuple[tuple[int, int], ...]
    """Those of the batch."""
    places: Mapping[Partition, tuple[Place, ...]]
    """For the end of each walked period, then for the beginning of the batch, then for the end of each of its periods."""

    def batch(self, pipeline: str) -> Batch:
        """The batch, with empty ranges left out."""
        first = len(self.walked)
        slices = []
        for n, (start, end) in enumerate(self.periods):
            ranges = {
                partition: (places[first + n].low, places[first + n + 1].high)
                for partition, places in self.places.items()
                if places[first + n].low < places[first + n + 1].high
            }
            slices.append(Slice(start, end, ranges))
        behind = {p: places[first].high for p, places in self.places.items() if places[first].low < places[first].high}
        return Batch(pipeline, self.number, tuple(slices), behind)

    @property
    def records(self) -> int:
        """How many offsets the batch covers that none before it has."""
        return sum(self.counts())

    def counts(self) -> list[int]:
        """How many offsets each period of the batch covers."""
        first = len(self.walked)
        return [
            sum(places[first + n + 1].high - places[first + n].high for places in self.places.values())
            for n in range(len(self.periods))
        ]

    def crossed_periods(self) -> list[CrossedPeriod]:
        """The walked periods and those of the batch, with their ends; and before the batch the time in which nothing lies.

        A driver that comes later has to know where the boundaries in that gap lie: before the batch, not behind it.
        """
        result = []
        first = len(self.walked)
        for n, (start, end) in enumerate(self.walked):
            result.append(CrossedPeriod(start, end, {p: places[n] for p, places in self.places.items()}))
        begin, before = self.periods[0][0], self.walked[-1][1] if self.walked else 0
        if before < begin:
            result.append(CrossedPeriod(before, begin, self.beginnings()))
        for n, (start, end) in enumerate(self.periods):
            result.append(CrossedPeriod(start, end, {p: places[first + n + 1] for p, places in self.places.items()}))
        return result

    def beginnings(self) -> dict[Partition, Place]:
        """Where the batch begins in each partition: all before it is published."""
        return {p: places[len(self.walked)] for p, places in self.places.items()}

    def positions(self) -> dict[Partition, Place]:
        """Where the batch ends in each partition: the next one begins there."""
        return {p: places[-1] for p, places in self.places.items()}

    def shortened(self, count: int) -> Intent:
        """The same with the first so many of its periods."""
        kept = len(self.walked) + 1 + count
        return Intent(
            self.number, self.walked, self.periods[:count], {p: places[:kept] for p, places in self.places.items()}
        )

    def trimmed(self) -> Intent:
        """The same without the empty periods at its end, if it has others: the gap after it is the next batch's business."""
        first = len(self.walked)
        count = len(self.periods)
        while count > 1 and all(p[first + count] == p[first + count - 1] for p in self.places.values()):
            count -= 1
        return self.shortened(count)

    def encode(self) -> bytes:
        """The node's content. Offsets stand as differences: a period without records costs two bytes a partition."""
        return json.dumps(
            {
                "number": self.number,
                "walked": self.walked,
                "periods": self.periods,
                "places": {str(p): _packed(places) for p, places in sorted(self.places.items())},
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> Intent | None:
        """What the node holds, None if nothing yet; CorruptNodeError if it is something else."""
        if not data:
            return None
        try:
            raw: Any = json.loads(data)
            walked, periods = (tuple((int(s), int(e)) for s, e in raw[name]) for name in ("walked", "periods"))
            places = {Partition.parse(name): _unpacked(packed) for name, packed in raw["places"].items()}
            if not periods or any(len(found) != len(walked) + 1 + len(periods) for found in places.values()):
                raise ValueError(raw)
            return cls(int(raw["number"]), walked, periods, places)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CorruptNodeError(path, data, _FORM) from None


def _packed(places: Sequence[Place]) -> list[list[int]]:
    low = _differences([place.low for place in places])
    high = _differences([place.high for place in places])
    return [low] if low == high else [low, high]


def _unpacked(packed: list[list[int]]) -> tuple[Place, ...]:
    low, high = (packed * 2)[:2]
    pairs = zip(itertools.accumulate(low), itertools.accumulate(high), strict=True)
    return tuple(Place(int(a), int(b)) for a, b in pairs)


def _differences(offsets: Sequence[int]) -> list[int]:
    return [offsets[0], *(b - a for a, b in itertools.pairwise(offsets))] if offsets else []


def next_boundaries(published: int, least: int, period: int, limit: int, end: int | None, count: int) -> list[int]:
    """The ends of the periods that the next batch may hold: open, and not before the first record that there is.

    They are the pipeline's own: multiples of its period, whatever steps an operator lets the limit make. Where the limit makes
    smaller ones, a period ends at the limit, for the group waits for us there.
    """
    result: list[int] = []
    boundary = max(published, least)
    if boundary >= limit:
        return result
    while len(result) < count:
        boundary = boundary_after(boundary, period)
        if boundary > limit:
            if not result or limit == end:
                result.append(limit)
            break
        result.append(boundary)
        if boundary == limit:
            break
    return result


def starts_of(boundaries: Sequence[int], published: int, period: int) -> list[int]:
    """Where the periods that end at these boundaries start.

    Neighbours touch. The first starts at a multiple of the period, however long the empty time before it was: how far the limit
    has jumped must not show in the result.
    """
    return [max(published, (boundaries[0] - 1) // period * period), *boundaries[:-1]]
