"""The content of a batch: pure arithmetic over boundaries and their places in the logs.

A boundary ``T`` lies in a partition at a :class:`Place`. ``low`` is the first offset of a record of a later period. ``high`` is
the offset from which on no record belongs to an earlier period. Without a bound on lateness the two are the same: the first
offset with ``ts >= T``. Neighbouring places give the exact range of a period, so periods tile a partition.

The store holds an :class:`Intent` before anything of a batch is published. It has the batch's periods with the places at which
they begin and end, and before them the *walked* periods, which are published and whose ends the limit may not have passed. A
later driver needs nothing else to continue: it never asks the log or its index again about what was decided.
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
"""The greatest size of an intent in bytes. The store accepts a megabyte for a whole transaction."""

_FORM: Final = "a batch as JSON: number, walked, periods and places"


class Place(NamedTuple):
    """The offsets at which a boundary lies in a partition."""

    low: int
    """All records before this offset belong to earlier periods."""
    high: int
    """No record from this offset on belongs to an earlier period."""


class CrossedPeriod(NamedTuple):
    """A published period, and the place at which it ends in each partition. It is kept until the limit has passed it."""

    start: int
    end: int
    places: Mapping[Partition, Place]


@dataclass(frozen=True, slots=True)
class Intent:
    """A batch as it was decided, with the published periods before it that the limit may not have passed."""

    number: int
    walked: tuple[tuple[int, int], ...]
    """Published periods whose ends the limit may not have passed, each as start and end."""
    periods: tuple[tuple[int, int], ...]
    """The periods of the batch, each as start and end."""
    places: Mapping[Partition, tuple[Place, ...]]
    """The places of: the end of each walked period, the beginning of the batch, the end of each of its periods."""

    def batch(self, pipeline: str) -> Batch:
        """Return the batch, with empty ranges left out."""
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
        """The number of offsets that this batch covers and no earlier one."""
        return sum(self.counts())

    def counts(self) -> list[int]:
        """Return the number of offsets that each period of the batch covers."""
        first = len(self.walked)
        return [
            sum(places[first + n + 1].high - places[first + n].high for places in self.places.values())
            for n in range(len(self.periods))
        ]

    def crossed_periods(self) -> list[CrossedPeriod]:
        """Return the walked periods and those of the batch; between them the gap in event time, if there is one.

        The gap has no records. It is included so that a later driver places the boundaries in it before the batch.
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
        """Return the places at which the batch begins. Everything before them is published."""
        return {p: places[len(self.walked)] for p, places in self.places.items()}

    def positions(self) -> dict[Partition, Place]:
        """Return the places at which the batch ends. The next one begins there."""
        return {p: places[-1] for p, places in self.places.items()}

    def shortened(self, count: int) -> Intent:
        """Return the intent with only the first ``count`` periods of the batch."""
        kept = len(self.walked) + 1 + count
        return Intent(
            self.number, self.walked, self.periods[:count], {p: places[:kept] for p, places in self.places.items()}
        )

    def trimmed(self) -> Intent:
        """Return the intent without empty periods at its end, which the next batch handles; keep at least one period."""
        first = len(self.walked)
        count = len(self.periods)
        while count > 1 and all(p[first + count] == p[first + count - 1] for p in self.places.values()):
            count -= 1
        return self.shortened(count)

    def encode(self) -> bytes:
        """Return the node's content. Offsets are written as differences: an empty period costs two bytes per partition."""
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
        """Return the intent in the node, or None if the node is empty. Raise CorruptNodeError for other content."""
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
    """Return the ends of the periods that the next batch may hold: below the limit, and not before the first record.

    They are multiples of the pipeline's own period, also if an operator has changed the group's period. If the limit lies
    before the next multiple, a period ends at the limit, because the group waits for us there.
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
    """Return the starts of the periods that end at these boundaries.

    Each period starts where the one before ends. The first starts at a multiple of the period, however long the empty time
    before it was, so that the result does not depend on how far the limit has jumped.
    """
    return [max(published, (boundaries[0] - 1) // period * period), *boundaries[:-1]]
