"""Event time: integer milliseconds since the Unix epoch, cut into half-open periods.

Boundaries are the multiples of the period since the epoch. Members and later leaders agree on them without further data, also
when the period changes. A record with ``ts == T`` belongs to the period after ``T``.
"""

from __future__ import annotations

import operator
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from aiokcc.errors import UsageError

__all__ = [
    "MAX_LIMIT",
    "MAX_PERIOD",
    "MAX_TIMESTAMP",
    "SECONDS_END",
    "boundary_after",
    "check_timestamp",
    "format_duration",
    "format_time",
    "looks_like_seconds",
    "parse_duration",
    "parse_period",
    "parse_time",
]

MAX_LIMIT: Final = 2**63 - 1
"""The greatest limit: the largest value that fits 64 signed bits."""
MAX_PERIOD: Final = 366 * 86_400_000
"""The longest period. The limit moves to a multiple of it: one of 100,000 days would open the gate until the year 2243."""
MAX_TIMESTAMP: Final = MAX_LIMIT - 1
"""The greatest timestamp: some limit must lie above it."""

_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION: Final = re.compile(r"([0-9]+)(ms|[smhdw])")
_MAX_DIGITS: Final = 30
_DURATION_FORMS: Final = (
    'a whole number of milliseconds, a text like "500ms", "30s", "5m", "1h30m", "1d", or a timedelta'
)
_TIME_FORMS: Final = (
    'ISO 8601 with a zone like "2026-01-31T00:00Z", a datetime with a time zone, or whole milliseconds since the epoch'
)


def boundary_after(ts: int, period: int) -> int:
    """Returns the first multiple of ``period`` that is greater than ``ts``, at most MAX_LIMIT."""
    return min((ts // period + 1) * period, MAX_LIMIT)


def check_timestamp(ts: object, *, what: str = "timestamp") -> int:
    """Returns ``ts`` as a plain int. Raises UsageError if it is not a valid timestamp."""
    if isinstance(ts, bool) or ts is None or isinstance(ts, float):
        hint = " (a record without a timestamp?)" if ts is None else ""
        raise UsageError(
            f"{what} {ts!r} is {type(ts).__name__}{hint}; expected an int: milliseconds since the Unix epoch"
        )
    try:
        value = operator.index(ts)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(
            f"{what} {ts!r} is {type(ts).__name__}; expected an int: milliseconds since the Unix epoch"
        ) from None
    if value < 0:
        raise UsageError(f"{what} {_number(value)} is negative; expected milliseconds since the Unix epoch")
    if value > MAX_TIMESTAMP:
        raise UsageError(f"{what} {_number(value)} is beyond 64 bits; the greatest is {MAX_TIMESTAMP}")
    return value


def _number(value: int) -> str:
    """Returns a number for a message. Python refuses to convert an int of more than a few thousand digits."""
    return str(value) if value.bit_length() <= 256 else f"of {value.bit_length()} bits"


def parse_duration(value: object, *, what: str = "period", least: int = 1) -> int:
    """Returns the milliseconds of an int, a text like ``"1h30m"`` or a timedelta. Raises UsageError for anything else."""
    result: int | None = None
    shown = _number(value) if isinstance(value, int) and not isinstance(value, bool) else repr(value)
    if isinstance(value, timedelta):
        result, rest = divmod(value, timedelta(milliseconds=1))
        if rest:
            raise UsageError(f"{what} {shown} is not a whole number of milliseconds; expected {_DURATION_FORMS}")
    elif isinstance(value, int) and not isinstance(value, bool):
        result = value
    elif isinstance(value, str):
        text = value.strip().lower()
        parts = _DURATION.findall(text)
        if any(len(n) > _MAX_DIGITS for n, _ in parts):
            result = MAX_LIMIT + 1
        elif parts and "".join(n + unit for n, unit in parts) == text:
            result = sum(int(n) * _UNITS[unit] for n, unit in parts)
        elif least and text and not text.strip("0"):
            result = 0  # no unit would make it right
        elif text.isascii() and text.isdecimal():
            raise UsageError(f'{what} {shown} has no unit; write "{text}ms", "{text}s", "{text}m" …')
    if result is None:
        raise UsageError(f"{what} {shown} cannot be read; expected {_DURATION_FORMS}")
    if result < least:
        raise UsageError(f"{what} {shown} is too short; it must be at least {format_duration(least)}")
    if result > MAX_LIMIT:
        raise UsageError(f"{what} {shown} is beyond 64 bits; the greatest is {MAX_LIMIT} milliseconds")
    return result


SECONDS_END: Final = 4 * 10**9
"""Numbers from here on are no likely times in seconds."""


def looks_like_seconds(ts: int) -> bool:
    """Returns True if a number is a likely time in seconds, from 2001 to 2096. As milliseconds it would be early in 1970."""
    return 10**9 <= ts < SECONDS_END


def parse_period(value: object, *, what: str = "period") -> int:
    """Returns the milliseconds of a period. Raises UsageError as :func:`parse_duration` does, and for more than MAX_PERIOD."""
    result = parse_duration(value, what=what)
    if result > MAX_PERIOD:
        raise UsageError(
            f"{what} {value!r} is too long; it can be {format_duration(MAX_PERIOD)} at most, "
            f"for the limit moves by it and never back"
        )
    return result


def parse_time(value: object, *, what: str = "start") -> int:
    """Returns the milliseconds since the epoch of an ISO 8601 text, a datetime or a number.

    Raises UsageError for anything else, and for a number that looks like seconds. A number may also be a text, as from a
    command line.
    """
    if isinstance(value, str) and value.isascii() and value.isdecimal() and 8 != len(value) <= _MAX_DIGITS:
        value = int(value)  # a text of eight digits is a date, "20260131"
    if isinstance(value, int) and not isinstance(value, bool):
        if looks_like_seconds(value):
            raise UsageError(
                f"{what} {value} is read as milliseconds since the epoch and looks like seconds; for "
                f'{format_time(value * 1000)} write {value}000, and for {format_time(value)} write "{format_time(value)}"'
            )
        return check_timestamp(value, what=what)
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            raise UsageError(f"{what} {value!r} cannot be read; expected {_TIME_FORMS}") from None
    if not isinstance(moment, datetime):
        raise UsageError(f"{what} {value!r} cannot be read; expected {_TIME_FORMS}")
    if moment.utcoffset() is None:
        plain = moment.replace(tzinfo=None).isoformat()
        raise UsageError(f'{what} {value!r} has no time zone; for UTC write "{plain}Z"')
    millis = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if millis < 0:
        raise UsageError(f"{what} {value!r} lies before 1970; event time starts at the Unix epoch")
    return millis


def format_duration(millis: int) -> str:
    """Returns a duration as people write it: ``90000`` is ``"1m30s"``."""
    if millis <= 0:
        return f"{millis}ms"
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        n, millis = divmod(millis, _UNITS[unit])
        if n:
            parts.append(f"{n}{unit}")
    return "".join(parts)


def format_time(millis: int) -> str:
    """Returns a timestamp as ISO 8601 in UTC, without milliseconds if they are 0; the number itself after the year 9999."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=millis)
    except OverflowError:
        return str(millis)
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{millis % 1000:03d}Z" if millis % 1000 else f"{text}Z"
