"""The content of a batch: boundaries, places, and the intent as the store keeps it. Without Spark."""

from __future__ import annotations

import pytest

from aiokcc.core.partitions import Partition
from aiokcc.errors import CorruptNodeError
from aiokcc.spark.batch_sizer import BatchSizer
from aiokcc.spark.participant import _steps
from aiokcc.spark.plan import CrossedPeriod, Intent, Place, next_boundaries, starts_of

A, B = Partition("a", 0), Partition("b", 1)


def place(offset: int) -> Place:
    return Place(offset, offset)


def intent(**changes: object) -> Intent:
    fields: dict[str, object] = {
        "number": 3,
        "walked": ((0, 10),),
        "periods": ((10, 20), (20, 30), (30, 40)),
        "places": {
            A: tuple(map(place, (4, 4, 6, 6, 9))),
            B: (Place(1, 3), Place(1, 3), Place(2, 5), Place(5, 5), Place(5, 5)),
        },
    }
    return Intent(**{**fields, **changes})  # type: ignore[arg-type]


# -- boundaries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("published", "least", "limit", "end", "count", "expected"),
    [
        (0, 5, 40, None, 10, [10, 20, 30, 40]),
        (0, 5, 40, None, 2, [10, 20]),
        (20, 5, 40, None, 10, [30, 40]),  # a late record belongs to the next period
        (0, 25, 40, None, 10, [30, 40]),  # nothing before it: its period is the first
        (0, 10, 40, None, 10, [20, 30, 40]),  # half open
        (0, 40, 40, None, 10, []),  # not open
        (40, 5, 40, None, 10, []),  # published
        (0, 5, 35, 35, 10, [10, 20, 30, 35]),  # the run ends within a period
        (0, 5, 35, None, 10, [10, 20, 30]),  # an operator's smaller step is not ours
        (10, 12, 15, None, 10, [15]),  # unless the group waits for us there
        (0, 5, 40, 35, 1, [10]),
    ],
)
def test_boundaries_are_multiples_of_the_period_up_to_the_limit(
    published: int, least: int, limit: int, end: int | None, count: int, expected: list[int]
) -> None:
    assert next_boundaries(published, least, 10, limit, end, count) == expected


def test_a_period_starts_one_period_before_its_end_or_at_the_published_time() -> None:
    assert starts_of([20, 30], 10, 10) == [10, 20]
    assert starts_of([990, 1000], 10, 10) == [980, 990]
    assert starts_of([20], 15, 10) == [15]
    assert starts_of([35], 30, 10) == [30]


# -- the intent --------------------------------------------------------------------------------------------------------


def test_a_batch_has_exactly_the_recorded_ranges_and_no_empty_ones() -> None:
    batch = intent().batch("p")
    assert [dict(period.ranges) for period in batch.periods] == [{A: (4, 6), B: (1, 5)}, {B: (2, 5)}, {A: (6, 9)}]
    assert [(period.start, period.end) for period in batch.periods] == [(10, 20), (20, 30), (30, 40)]
    assert (batch.pipeline, batch.number, batch.behind) == ("p", 3, {B: 3})


def test_an_intent_is_encoded_and_decoded_without_loss() -> None:
    assert Intent.decode("x", intent().encode()) == intent()
    assert Intent.decode("x", b"") is None


@pytest.mark.parametrize("data", [b"{}", b"no", b"[]", b'{"number":1,"walked":[],"periods":[],"places":{}}'])
def test_corrupt_intents_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptNodeError, match="a batch as JSON"):
        Intent.decode("x", data)


def test_an_intent_whose_places_do_not_fit_is_refused() -> None:
    data = intent().encode().replace(b"[[10,20],", b"[")
    with pytest.raises(CorruptNodeError):
        Intent.decode("x", data)


def test_empty_periods_take_few_bytes() -> None:
    periods = tuple((n, n + 1) for n in range(1000))
    partitions = {Partition("t", n): tuple([place(10**12)] * 1001) for n in range(100)}
    assert len(Intent(0, (), periods, partitions).encode()) < 250_000


def test_counts_and_trimming() -> None:
    assert intent().counts() == [4, 0, 3]
    assert intent().records == 7
    assert intent().trimmed() == intent()
    assert intent().shortened(2).trimmed().periods == ((10, 20), (20, 30))  # its lower offset has moved
    empty = intent(places={A: tuple(map(place, (4, 4, 6, 6, 6)))})
    assert empty.trimmed().periods == ((10, 20),)
    assert empty.trimmed().positions() == {A: place(6)}


# -- what the gate is told ---------------------------------------------------------------------------------------------


def test_neighbouring_crossings_without_records_between_are_reported_once() -> None:
    crossed = [
        CrossedPeriod(0, 10, {A: place(4)}),
        CrossedPeriod(10, 20, {A: place(4)}),
        CrossedPeriod(50, 60, {A: place(7)}),
        CrossedPeriod(60, 70, {A: place(7)}),
    ]
    # Before 50 there is nothing after offset 4, and before 70 nothing after 7.
    assert _steps(A, crossed) == [(50, place(4)), (70, place(7))]
    assert _steps(B, crossed) == []


@pytest.mark.parametrize(("walked", "gap"), [((), (0, 50)), (((0, 10),), (10, 50)), (((40, 50),), None)])
def test_boundaries_between_the_published_place_and_a_batch_lie_before_the_batch(
    walked: tuple[tuple[int, int], ...], gap: tuple[int, int] | None
) -> None:
    """A later driver that knows only this intent reports them; otherwise its first boundary would lie behind the batch."""
    recorded = intent(walked=walked, periods=((50, 60),), places={A: tuple(map(place, (*(4 for _ in walked), 4, 6)))})
    told = [CrossedPeriod(*ends, {A: place(4)}) for ends in walked]
    told += [] if gap is None else [CrossedPeriod(*gap, {A: place(4)})]
    assert recorded.crossed_periods() == [*told, CrossedPeriod(50, 60, {A: place(6)})]
    assert _steps(A, recorded.crossed_periods()) == [(50, place(4)), (60, place(6))]


# -- how many ----------------------------------------------------------------------------------------------------------


def test_the_number_of_periods_scales_with_the_time_that_jobs_take() -> None:
    sizer = BatchSizer(1000, 10.0, 10**9)
    assert sizer.periods == 1000
    sizer.record_job(1000, 20.0)
    assert sizer.periods == 500
    sizer.record_job(500, 100.0)
    assert sizer.periods == 125  # a quarter at most at a time
    sizer.record_job(125, 5.0)
    assert sizer.periods == 250
    sizer.record_job(1, 0.1)  # there was only one to be had
    assert sizer.periods == 250
    sizer.record_job(250, 0.01)
    assert sizer.periods == 1000
    sizer.record_job(1, 60.0)
    assert sizer.periods == 1


def test_a_job_is_bounded_by_periods_with_records_and_by_bytes() -> None:
    sizer = BatchSizer(2, 10.0, 10_000, record_bytes=100.0)
    assert sizer.count_fitting([5, 0, 0, 5, 0, 5]) == 5
    assert sizer.count_fitting([60, 30, 20]) == 2
    assert sizer.count_fitting([500, 1]) == 1  # one period is the least
    assert sizer.count_fitting([0, 0]) == 2


def test_the_average_record_size_is_measured() -> None:
    sizer = BatchSizer(2, 10.0, 10_000)
    sizer.record_size(100.0)
    assert sizer.max_records == 100
    sizer.record_size(200.0)
    assert sizer.record_bytes == pytest.approx(130.0)
