"""Boundaries found by a scan, and ranges made from them: each record is in the period that a stream gives it."""

from __future__ import annotations

import bisect
import itertools

from hypothesis import given
from hypothesis import strategies as st

from aiokcc.core.partitions import Partition
from aiokcc.spark.batch import Batch, Slice
from aiokcc.spark.finder import Found
from aiokcc.spark.period_column import period_offsets_of
from aiokcc.spark.scan import ScanGroup, ScanIndex

ORDERS = Partition("orders", 0)
PERIOD = 10

Log = list[tuple[int, int]]


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Draw offsets with gaps, as compaction and markers leave them, and times in any order."""
    times = draw(st.lists(st.integers(0, 95), min_size=1, max_size=30))
    gaps = draw(st.lists(st.integers(1, 3), min_size=len(times), max_size=len(times)))
    first = draw(st.integers(0, 5))
    return [(first + offset, ts) for offset, ts in zip(itertools.accumulate(gaps, initial=0), times, strict=False)]


def period_of(batch: Batch, partition: Partition, offset: int, ts: int | None = None) -> int | None:
    """Return the start of the period that a record belongs to; None if it belongs to no period of the batch.

    This is what `period_column.label` computes, for one record and without Spark. ``ts`` is given only with lateness.
    """
    begins = period_offsets_of(batch)[partition]
    number = begins.numbers[bisect.bisect_right(begins.offsets, offset) - 1]
    if ts is not None:
        boundaries = [batch.start, *(period.end for period in batch.periods)]
        number = max(number, bisect.bisect_right(boundaries, ts))
    return batch.periods[number - 1].start if 0 < number <= len(batch.periods) else None


def periods_of_a_stream(log: Log, lateness: int) -> dict[int, int]:
    """Return the start of the period in which a partition's stream delivers each record."""
    limit, greatest = PERIOD, -1
    held: Log = []
    result: dict[int, int] = {}

    def let_pass() -> None:
        for offset, ts in list(held):
            if ts < limit:
                result[offset] = limit - PERIOD
                held.remove((offset, ts))

    for offset, ts in log:
        greatest = max(greatest, ts)
        held.append((offset, ts))
        let_pass()
        while held and min(*(ts for _, ts in held), greatest - lateness) >= limit:
            limit += PERIOD
            let_pass()
    while held:
        limit += PERIOD
        let_pass()
    return result


def grouped(log: Log, index: ScanIndex, partition: Partition = ORDERS) -> list[ScanGroup]:
    """Return what the aggregation finds, one record at a time."""
    late = index.lateness.get(partition.topic, 0)
    return [
        ScanGroup(
            partition,
            ts // PERIOD * PERIOD,
            (ts - late) // PERIOD * PERIOD,
            sum(odd <= ts for odd in index.odd),
            Found(offset, ts),
        )
        for offset, ts in log
    ]


@given(logs(), st.integers(0, 35), st.lists(st.integers(0, 120), max_size=3), st.integers(0, 12))
def test_the_index_finds_the_first_record_at_or_past_a_time(log: Log, late: int, odd: list[int], n: int) -> None:
    index = ScanIndex(PERIOD, {"orders": late}, odd)
    groups = grouped(log, index)
    index.add(groups[len(groups) // 2 :])
    index.add(groups[: len(groups) // 2])
    for ts in [n * PERIOD, n * PERIOD + late, *odd]:
        expected = next((Found(offset, time) for offset, time in log if time >= ts), None)
        assert index.knows("orders", ts)
        assert index.first(ORDERS, ts) == expected
    assert index.first(Partition("orders", 1), 0) is None


@given(logs(), st.integers(0, 35), st.data())
def test_each_record_is_in_one_batch_and_in_the_period_of_a_stream(log: Log, late: int, data: st.DataObject) -> None:
    index = ScanIndex(PERIOD, {"orders": late})
    index.add(grouped(log, index))
    start, end = log[0][0], log[-1][0] + 1
    boundaries = list(range(PERIOD, 101, PERIOD))
    places = [(start, start)]
    for boundary in boundaries:
        low, high = index.first(ORDERS, boundary), index.first(ORDERS, boundary + late)
        places.append((low.offset if low else end, high.offset if high else end))
    slices = []
    for n, boundary in enumerate(boundaries):
        low_, high_ = places[n][0], places[n + 1][1]
        slices.append(Slice(boundary - PERIOD, boundary, {ORDERS: (low_, high_)} if low_ < high_ else {}))
    seen: dict[int, int] = {}
    n = 0
    while n < len(slices):
        count = data.draw(st.integers(1, len(slices) - n))
        batch = Batch("p", 0, tuple(slices[n : n + count]), {ORDERS: places[n][1]})
        for offset, ts in log:
            bounds = batch.ranges.get(ORDERS)
            if bounds is not None and bounds[0] <= offset < bounds[1]:
                period = period_of(batch, ORDERS, offset, ts if late else None)
                assert period is None or offset not in seen, "in two batches"
                if period is not None:
                    seen[offset] = period
        n += count
    assert seen == periods_of_a_stream(log, late)


@given(logs(), st.integers(0, 35), st.integers(0, 9), st.integers(1, 10))
def test_a_part_of_a_batch_has_the_records_that_it_has_in_the_whole(
    log: Log, late: int, first: int, count: int
) -> None:
    index = ScanIndex(PERIOD, {"orders": late})
    index.add(grouped(log, index))
    start, end = log[0][0], log[-1][0] + 1
    low, slices = start, []
    for boundary in range(PERIOD, 101, PERIOD):
        found, behind = index.first(ORDERS, boundary), index.first(ORDERS, boundary + late)
        high = behind.offset if behind else end
        slices.append(Slice(boundary - PERIOD, boundary, {ORDERS: (low, high)} if low < high else {}))
        low = found.offset if found else end
    whole = Batch("p", 0, tuple(slices))
    part = whole.part(first, count)
    starts = {period.start for period in part.periods}

    def labelled(batch: Batch) -> dict[int, int]:
        result = {}
        for offset, ts in log:
            bounds = batch.ranges.get(ORDERS)
            if bounds is not None and bounds[0] <= offset < bounds[1]:
                period = period_of(batch, ORDERS, offset, ts if late else None)
                if period in starts:
                    result[offset] = period
        return result

    assert labelled(part) == labelled(whole)
