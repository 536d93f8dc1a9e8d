"""The limit, its chain of open boundaries, and the operator's request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokcc.core.limit import END, OPEN, Limit, Mode, Request, RequestKind
from aiokcc.core.periods import MAX_LIMIT, MAX_PERIOD, MAX_TIMESTAMP
from aiokcc.errors import CorruptNodeError
from tests.unit.naming import brief

limits = (
    st.lists(st.integers(0, MAX_LIMIT), min_size=1, max_size=6, unique=True).map(lambda b: Limit(tuple(sorted(b))))
    | st.just(OPEN)
    | st.just(END)
)
periods = st.integers(1, 200) | st.sampled_from([60_000, 86_400_000, MAX_LIMIT])


def test_without_a_start_nothing_passes_until_all_partitions_are_reported() -> None:
    assert Limit.first(None, 10, 2, None) == Limit((0,))


def test_the_first_limit() -> None:
    assert Limit.first(0, 10, 0, None) == Limit((10,))
    assert Limit.first(10, 10, 0, None) == Limit((20,))
    assert Limit.first(5, 10, 2, None) == Limit((10, 20, 30))
    assert Limit.first(5, 10, 2, 15) == Limit((10, 15))
    assert Limit.first(5, 10, 2, 7) == Limit((7,))


def test_a_gap_of_a_day_is_one_step() -> None:
    assert Limit((10_000,)).after(86_400_000 + 9_999, 1000, 0, None) == Limit((86_410_000,))


def test_open_boundaries_stay_where_they_are() -> None:
    chain = Limit((10, 20, 30))
    assert chain.after(12, 10, 2, None) == Limit((20, 30, 40))
    assert chain.after(12, 7, 2, None) == Limit((20, 30, 35))
    assert chain.after(12, 3, 2, None) == Limit((20, 30, 33))
    assert chain.after(12, 1000, 2, None) == Limit((20, 30, 1000))
    assert chain.after(29, 10, 2, None) == Limit((30, 40, 50))
    assert chain.after(30, 10, 2, None) == Limit((40, 50, 60))


def test_the_end_cuts_the_chain_short() -> None:
    assert Limit((10, 20, 25)).after(15, 10, 2, 25) == Limit((20, 25))
    assert Limit((20, 25)).after(22, 10, 2, 25) == Limit((25,))
    assert Limit((10,)).after(1000, 10, 0, 25) == Limit((25,))


def test_the_chain_does_not_overflow() -> None:
    assert Limit((10,)).after(MAX_TIMESTAMP, 60_000, 3, None) == Limit((MAX_LIMIT,))
    assert Limit.first(MAX_TIMESTAMP, 1, 3, None) == Limit((MAX_LIMIT,))


@given(
    st.integers(0, 500),
    periods,
    st.integers(0, 4),
    st.none() | st.integers(501, 3000),
    st.lists(st.tuples(st.integers(0, 300), periods), max_size=12),
)
def test_neither_the_floor_nor_the_limit_ever_moves_back(
    start: int, period: int, lookahead: int, end: int | None, moves: list[tuple[int, int]]
) -> None:
    """Whatever the period becomes: and each move is one that a late reader can tell from an earlier one."""
    limit = Limit.first(start, period, lookahead, end)
    for beyond, changed in moves:
        ts = limit.floor + beyond
        if ts > MAX_TIMESTAMP or (end is not None and ts >= end):
            break
        later = limit.after(ts, changed, lookahead, end)
        assert later.floor > ts
        assert later.value >= limit.value
        assert limit.precedes(later)
        assert not later.precedes(limit)
        assert {b for b in limit.boundaries if b >= later.floor} <= set(later.boundaries)
        assert len(later.boundaries) == lookahead + 1 or later.value in {end, MAX_LIMIT}
        assert list(later.boundaries) == sorted(set(later.boundaries))
        limit = later


def test_modes_only_go_forward() -> None:
    gated = Limit((MAX_LIMIT,))
    assert gated.precedes(OPEN)
    assert gated.precedes(END)
    assert OPEN.precedes(END)
    assert not OPEN.precedes(gated)
    assert not END.precedes(OPEN)
    for limit in (gated, OPEN, END):
        assert not limit.precedes(limit)


def test_the_greatest_timestamp_that_passes() -> None:
    assert Limit((10, 20)).value == 20
    assert Limit((10, 20)).floor == 10
    assert OPEN.value == MAX_LIMIT
    assert END.value == 0


@given(limits)
def test_a_limit_can_be_read_back(limit: Limit) -> None:
    assert Limit.decode("/c", limit.encode()) == limit


def test_a_limit_is_readable() -> None:
    assert Limit((10, 20, 30)).encode() == b"30 20 10"
    assert Limit((0,)).encode() == b"0"
    assert (OPEN.encode(), END.encode()) == (b"open", b"end")
    assert Limit.decode("/c", b" 30 20\n") == Limit((20, 30))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"closed",
        b"OPEN",
        b"open end",
        b"-1",
        b"+1",
        b"1.5",
        b"1_000",
        b"0x10",
        b"10 20",
        b"20 20",
        b"30 open",
        b"9223372036854775808",
        b"9" * 5000,
        b"9" * 1_000_000,
        b"1 " * 500_000,
        b"\x00" * 1_000_000,
        "٣".encode(),
        b"\xff",
        b"{}",
    ],
    ids=brief,
)
def test_an_invalid_limit_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptNodeError, match="^/g/coordinator holds .*expected a limit in milliseconds"):
        Limit.decode("/g/coordinator", data)


@given(
    st.sampled_from([RequestKind.HOLD, RequestKind.OFF]).map(Request) | st.integers(1, MAX_PERIOD).map(Request.every)
)
def test_a_request_can_be_read_back(request_: Request) -> None:
    assert Request.decode("/p", request_.encode()) == request_


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0",
        b"-5",
        b"5m",
        b"on",
        b"HOLD",
        b"hold off",
        b"9223372036854775808",
        b"9" * 1_000_000,
        b"\xff",
        "٣".encode(),
    ],
    ids=brief,
)
def test_an_invalid_request_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptNodeError, match="^/g/period holds .*expected a period in milliseconds, 'hold' or 'off'"):
        Request.decode("/g/period", data)


@given(st.binary(max_size=40) | st.from_regex(rb"\A[0-9 ]{0,40}\Z"))
def test_any_bytes_are_a_stable_limit_or_corrupt(data: bytes) -> None:
    try:
        limit = Limit.decode("/c", data)
    except CorruptNodeError:
        return
    assert limit.mode is not Mode.GATED or 0 <= limit.floor <= limit.value <= MAX_LIMIT
    assert Limit.decode("/c", limit.encode()) == limit
