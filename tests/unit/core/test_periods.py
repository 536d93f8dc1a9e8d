"""Event time: boundaries, timestamps, and durations and times as people write them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone, tzinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokcc.core.periods import (
    MAX_LIMIT,
    MAX_TIMESTAMP,
    boundary_after,
    check_timestamp,
    format_duration,
    format_time,
    parse_duration,
    parse_time,
)
from aiokcc.errors import UsageError
from tests.unit.naming import brief

timestamps = st.integers(0, MAX_TIMESTAMP)
durations = st.integers(1, MAX_LIMIT)


@pytest.mark.parametrize(
    ("ts", "period", "boundary"),
    [
        (0, 10, 10),
        (9, 10, 10),
        (10, 10, 20),  # half open: ts == T belongs to the next period
        (19, 10, 20),
        (0, 1, 1),
        (MAX_TIMESTAMP, 1, MAX_LIMIT),
        (MAX_TIMESTAMP, 60_000, MAX_LIMIT),
        (0, MAX_LIMIT, MAX_LIMIT),
    ],
    ids=brief,
)
def test_boundary_after(ts: int, period: int, boundary: int) -> None:
    assert boundary_after(ts, period) == boundary


@given(timestamps, durations)
def test_boundary_is_the_first_multiple_after_and_stays_in_64_bits(ts: int, period: int) -> None:
    boundary = boundary_after(ts, period)
    assert ts < boundary <= MAX_LIMIT
    assert boundary - ts <= period
    assert boundary % period == 0 or boundary == MAX_LIMIT


class Index:
    """A number of another library."""

    def __index__(self) -> int:
        return 12


@pytest.mark.parametrize("ts", [0, 1, 1_700_000_000_000, MAX_TIMESTAMP])
def test_a_timestamp_is_kept(ts: int) -> None:
    assert check_timestamp(ts) == ts


def test_integers_of_other_libraries_become_plain_ones() -> None:
    value = check_timestamp(Index())
    assert value == 12
    assert type(value) is int


@pytest.mark.parametrize(
    ("ts", "wrong"),
    [
        (-1, "-1 is negative"),
        (-(10**5000), "is negative"),
        (1.5, "is float"),
        (float("nan"), "is float"),
        (True, "is bool"),
        (None, "a record without a timestamp?"),
        ("12", "is str"),
        (b"12", "is bytes"),
        (MAX_TIMESTAMP + 1, f"beyond 64 bits; the greatest is {MAX_TIMESTAMP}"),
        (2**64, "beyond 64 bits"),
        (10**5000, "beyond 64 bits"),
    ],
    ids=brief,
)
def test_an_invalid_timestamp_is_refused(ts: object, wrong: str) -> None:
    with pytest.raises(UsageError, match="^timestamp ") as caught:
        check_timestamp(ts)
    assert wrong in str(caught.value)
    assert "since the Unix epoch" in str(caught.value) or "the greatest" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "millis"),
    [
        (1, 1),
        (60_000, 60_000),
        ("500ms", 500),
        ("30s", 30_000),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("1d", 86_400_000),
        ("2w", 2 * 604_800_000),
        (" 1H30M ", 5_400_000),
        ("1m500ms", 60_500),
        (timedelta(seconds=1.5), 1500),
        (timedelta(days=400), 400 * 86_400_000),
        (MAX_LIMIT, MAX_LIMIT),
        (f"{MAX_LIMIT}ms", MAX_LIMIT),
    ],
    ids=brief,
)
def test_durations(value: object, millis: int) -> None:
    assert parse_duration(value) == millis


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "period 0 is too short; it must be at least 1ms"),
        (-5, "period -5 is too short"),
        ("0s", "period '0s' is too short"),
        ("0", "period '0' is too short; it must be at least 1ms"),
        ("٣", "period '٣' cannot be read"),
        (timedelta(0), "is too short"),
        (timedelta(microseconds=1), "not a whole number of milliseconds; expected"),
        ("5", 'period \'5\' has no unit; write "5ms", "5s"'),
        ("-5m", "period '-5m' cannot be read; expected a whole number of milliseconds"),
        ("", "period '' cannot be read"),
        ("fast", "cannot be read"),
        ("5 m", "cannot be read"),
        ("5m!", "cannot be read"),
        ("m", "cannot be read"),
        ("1.5m", "cannot be read"),
        ("٥m", "cannot be read"),
        (1.5, "period 1.5 cannot be read"),
        (True, "period True cannot be read"),
        (None, "period None cannot be read"),
        (b"5m", "cannot be read"),
        ([], "cannot be read"),
        (MAX_LIMIT + 1, f"is beyond 64 bits; the greatest is {MAX_LIMIT} milliseconds"),
        ("99999999999999999999d", "is beyond 64 bits"),
        ("9" * 5000 + "d", "is beyond 64 bits"),
        (10**5000, "is beyond 64 bits"),
        (-(10**5000), "is too short"),
    ],
    ids=brief,
)
def test_an_invalid_duration_is_refused(value: object, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(value)
    assert message in str(caught.value)


def test_a_duration_is_named_as_the_caller_calls_it_and_may_be_zero_where_that_is_allowed() -> None:
    with pytest.raises(UsageError, match="^ahead -1 is too short; it must be at least 0ms"):
        parse_duration(-1, what="ahead", least=0)
    assert parse_duration(0, what="ahead", least=0) == 0


@given(st.text(max_size=20) | st.from_regex(r"\A[0-9]{1,25}(ms|[smhdw])([0-9]{1,3}[smh])?\Z"))
def test_any_text_is_a_duration_or_a_usage_error(text: str) -> None:
    try:
        assert 1 <= parse_duration(text) <= MAX_LIMIT
    except UsageError as error:
        assert str(error).startswith("period ")


@given(durations)
def test_a_duration_can_be_read_back(millis: int) -> None:
    assert parse_duration(format_duration(millis)) == millis


@pytest.mark.parametrize(("millis", "text"), [(0, "0ms"), (90_000, "1m30s"), (86_400_001, "1d1ms"), (3_600_000, "1h")])
def test_durations_as_people_write_them(millis: int, text: str) -> None:
    assert format_duration(millis) == text


@pytest.mark.parametrize(
    ("value", "millis"),
    [
        (0, 0),
        (1_700_000_000_123, 1_700_000_000_123),
        ("1970-01-01T00:00Z", 0),
        ("2026-01-31T00:00Z", 1_769_817_600_000),
        (" 2026-01-31T00:00:00.5Z ", 1_769_817_600_500),
        ("2026-01-31T01:00+01:00", 1_769_817_600_000),
        (datetime(2026, 1, 31, tzinfo=UTC), 1_769_817_600_000),
        (datetime(2026, 1, 31, 2, tzinfo=timezone(timedelta(hours=2))), 1_769_817_600_000),
        (MAX_TIMESTAMP, MAX_TIMESTAMP),
    ],
    ids=brief,
)
def test_times(value: object, millis: int) -> None:
    assert parse_time(value) == millis


class Nowhere(tzinfo):
    """A zone that does not know its offset: the time is as good as naive."""

    def utcoffset(self, _: datetime | None) -> None:
        return None


@pytest.mark.parametrize(
    ("value", "suggestion"),
    [
        ("2026-01-31", "2026-01-31T00:00:00Z"),
        ("20260131", "2026-01-31T00:00:00Z"),
        ("2026-01-31T10:30", "2026-01-31T10:30:00Z"),
        (datetime(2026, 1, 31, 10), "2026-01-31T10:00:00Z"),
        (datetime(2026, 1, 31, tzinfo=Nowhere()), "2026-01-31T00:00:00Z"),
    ],
    ids=brief,
)
def test_a_time_without_a_zone_is_refused_with_a_suggestion_that_works(value: object, suggestion: str) -> None:
    with pytest.raises(UsageError, match="^end .* has no time zone") as caught:
        parse_time(value, what="end")
    assert f'for UTC write "{suggestion}"' in str(caught.value)
    assert parse_time(suggestion) == parse_time(f"{suggestion[:-1]}+00:00")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("yesterday", "cannot be read; expected ISO 8601"),
        ("", "cannot be read"),
        ("2026-13-01T00:00Z", "cannot be read"),
        (None, "cannot be read"),
        (1.5, "cannot be read"),
        (True, "cannot be read"),
        (b"2026-01-31", "cannot be read"),
        (date(2026, 1, 31), "cannot be read"),
        ("1969-12-31T23:59:59Z", "lies before 1970"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), "lies before 1970"),
        (-1, "start -1 is negative"),
        (2**63, "is beyond 64 bits"),
        (10**5000, "is beyond 64 bits"),
    ],
    ids=brief,
)
def test_an_invalid_time_is_refused(value: object, message: str) -> None:
    with pytest.raises(UsageError, match="^start ") as caught:
        parse_time(value)
    assert message in str(caught.value)


@given(st.integers(0, 253_402_300_799_999))
def test_a_time_can_be_read_back(millis: int) -> None:
    assert parse_time(format_time(millis)) == millis


def test_times_as_people_write_them() -> None:
    assert format_time(0) == "1970-01-01T00:00:00Z"
    assert format_time(1_769_817_600_007) == "2026-01-31T00:00:00.007Z"
    assert format_time(MAX_LIMIT) == str(MAX_LIMIT)


def test_a_bare_number_is_read_alike_as_a_number_and_as_a_text() -> None:
    assert parse_time("1767225600000") == parse_time(1767225600000) == parse_time("2026-01-01T00:00Z")
    assert parse_time("0") == parse_time(0) == 0


@pytest.mark.parametrize("value", [1767225600, "1767225600"])
def test_a_time_that_looks_like_seconds_is_refused_with_what_would_be_right(value: object) -> None:
    with pytest.raises(UsageError) as raised:
        parse_time(value)
    assert str(raised.value) == (
        "start 1767225600 is read as milliseconds since the epoch and looks like seconds; for 2026-01-01T00:00:00Z write "
        '1767225600000, and for 1970-01-21T10:53:45.600Z write "1970-01-21T10:53:45.600Z"'
    )
    assert parse_time("1970-01-21T10:53:45.600Z") == 1767225600
