"""The published periods of a pipeline: its batches, with those periods replaced that were restated since. Pure.

Batches are numbered from 0 and follow each other in event time. A restatement replaces the periods between two boundaries by
the same periods, computed again, and knows the batch after which it was published. So the state at any earlier moment is known:
the batches up to one, with the restatements that were published before the next.

Late records are listed by the batch in which they were read, and belong to earlier periods. They *wait* until a restatement of
their period, published after that batch, includes them.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aiokcc.core.partitions import Partition
from aiokcc.core.periods import format_time
from aiokcc.errors import UsageError
from aiokcc.spark.batch import Batch, LateRecords, Slice
from aiokcc.spark.sinks.manifest import Manifest, PublishedPeriod

__all__ = ["LatePeriod", "Published"]


@dataclass(frozen=True, slots=True)
class LatePeriod:
    """A period whose late records wait to be included: ``[start, end)``, their number, and where they are in the logs."""

    start: int
    end: int
    records: int
    offsets: tuple[LateRecords, ...]


@dataclass(frozen=True, slots=True)
class Published:
    """The batches of a pipeline and its restatements, each in the order of their numbers."""

    batches: tuple[Manifest, ...]
    restates: tuple[Manifest, ...] = ()

    def periods(self) -> list[PublishedPeriod]:
        """Return the periods that readers see, in order."""
        result = [period for batch in self.batches for period in batch.periods]
        for restate in self.restates:
            assert restate.replaces is not None
            first, last = (
                bisect.bisect_left(result, bound, key=lambda period: period.start) for bound in restate.replaces
            )
            result[first:last] = restate.periods
        return result

    def newest_first(self) -> list[Manifest]:
        """Return batches and restatements in the order in which they were published, the newest first."""
        order = [(batch.number, -1, batch) for batch in self.batches] + [(r.after, r.number, r) for r in self.restates]
        return [manifest for *_, manifest in sorted(order, key=lambda one: one[:2], reverse=True)]

    # -- at an earlier moment -------------------------------------------------------------------------------------------

    def as_of_batch(self, number: int) -> Published:
        """Return the state right after this batch was published. Raise UsageError if it is not published."""
        if not 0 <= number < len(self.batches):
            last = f"the last one is {len(self.batches) - 1}" if self.batches else "none is"
            raise UsageError(f"as_of: batch {number} is not published; {last}")
        return Published(self.batches[: number + 1], tuple(r for r in self.restates if r.after < number))

    def as_of_time(self, time: int) -> Published:
        """Return the state at this time, by the clocks of the drivers that published it. Raise UsageError if it is unknown."""

        def until(manifests: Sequence[Manifest]) -> tuple[Manifest, ...]:
            for count, manifest in enumerate(manifests):
                if manifest.published_at is None:
                    raise UsageError(
                        f"as_of: batch {manifest.number} was published by an earlier version of aiokcc, which did not record "
                        f"when; give the number of a batch"
                    )
                if manifest.published_at > time:
                    return tuple(manifests[:count])
            return tuple(manifests)

        batches = until(self.batches)
        return Published(batches, tuple(restate for restate in until(self.restates) if restate.after < len(batches)))

    # -- late records ---------------------------------------------------------------------------------------------------

    def late(self) -> list[LatePeriod]:
        """Return the periods whose late records are in no period yet, in order."""
        waiting: dict[tuple[int, int], list[LateRecords]] = {}
        for batch in self.batches:
            for late in batch.late:
                if not any(_includes(restate, late, batch.number) for restate in self.restates):
                    waiting.setdefault((late.start, late.end), []).append(late)
        return [
            LatePeriod(start, end, sum(late.records for late in found), tuple(found))
            for (start, end), found in sorted(waiting.items())
        ]

    # -- a restatement --------------------------------------------------------------------------------------------------

    def restatement(self, pipeline: str, start: int, end: int, period: int) -> Batch:
        """Return the batch that computes the periods of ``[start, end)`` again, from the offsets that were recorded for them.

        It includes all late records of these periods. Raise UsageError, which names the boundaries that would be right, if
        ``start`` or ``end`` is no boundary of published periods, or nothing is published between them.
        """
        published = self.periods()
        self._check(published, start, end, period)
        included = [late for batch in self.batches for late in batch.late if start <= late.start < end]
        behind: dict[Partition, int] = {}
        slices: list[Slice] = []
        at = start
        for one in published:
            if one.start >= end:
                break
            if one.start >= start:
                slices += _fill(at, one.start, included)
                slices.append(Slice(one.start, one.end, one.ranges))
                at = one.end
            elif not slices:
                behind |= {partition: high for partition, (_, high) in one.ranges.items()}
        slices += _fill(at, end, included)
        number = len(self.restates)
        return Batch(pipeline, number, tuple(slices), behind, replaces=(start, end), included=tuple(included))

    def _check(self, published: list[PublishedPeriod], start: int, end: int, period: int) -> None:
        if start >= end:
            raise UsageError(f"start {format_time(start)} is not before end {format_time(end)}")
        if not published:
            raise UsageError("nothing is published yet, so there is nothing to restate")
        first, last = published[0].start, published[-1].end
        late = min((some.start for batch in self.batches for some in batch.late), default=first)
        if start < min(first, late) or end > last:
            raise UsageError(
                f"{format_time(start)} to {format_time(end)} is not published as a whole; published is "
                f"{format_time(first)} to {format_time(last)}"
            )
        for what, time in (("start", start), ("end", end)):
            around = bisect.bisect_right(published, time, key=lambda one: one.start) - 1
            one = published[around] if around >= 0 else None
            if one is not None and one.start < time < one.end:
                raise UsageError(
                    f"{what} {format_time(time)} lies inside the period {format_time(one.start)} to {format_time(one.end)}; "
                    f"give {what}={format_time(one.start)!r} or {what}={format_time(one.end)!r}"
                )
            is_boundary = time in (first, last) or (one is not None and time in (one.start, one.end))
            if not is_boundary and time % period:
                below = time // period * period
                raise UsageError(
                    f"{what} {format_time(time)} is no boundary of periods; give {what}={format_time(below)!r} or "
                    f"{what}={format_time(below + period)!r}"
                )
        waits = any(start <= some.start < end for batch in self.batches for some in batch.late)
        if not waits and not any(start <= one.start < end for one in published):
            raise UsageError(
                f"no period is published between {format_time(start)} and {format_time(end)}: there are no records"
            )
        for some in (late for batch in self.batches for late in batch.late):
            for what, time in (("start", start), ("end", end)):
                if some.start < time < some.end:
                    raise UsageError(
                        f"{what} {format_time(time)} parts late records of {format_time(some.start)} to "
                        f"{format_time(some.end)}; give {what}={format_time(some.start)!r} or {what}={format_time(some.end)!r}"
                    )


def _includes(restate: Manifest, late: LateRecords, batch: int) -> bool:
    assert restate.replaces is not None
    return restate.after >= batch and restate.replaces[0] <= late.start < restate.replaces[1]


def _fill(start: int, end: int, included: Iterable[LateRecords]) -> list[Slice]:
    """Return new periods for late records of a time in which nothing is published."""
    cells = sorted({(max(late.start, start), min(late.end, end)) for late in included})
    return [Slice(first, last) for first, last in cells if first < last]
