"""Converts the texts of arguments into values. An invalid text raises ArgumentTypeError, whose message argparse shows."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

from aiokcc.core.masking import is_secret, mask_url
from aiokcc.core.periods import parse_duration, parse_period, parse_time
from aiokcc.credentials import is_reference, read_secret, remember_secrets
from aiokcc.errors import UsageError

__all__ = [
    "listen_address",
    "lookahead",
    "name",
    "period_or",
    "seconds",
    "setting",
    "storage",
    "subscription",
    "time_or",
    "whole_number",
]

T = TypeVar("T")

_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[T ][0-9:.,]{1,20})?(?: ?[a-z]{1,5}|[+-][0-9:]{1,8})?", re.IGNORECASE
)
"""A text that was meant to be a date or a time: it has no room for a password."""


def _convert(read: Callable[[], T], text: str, words: tuple[str, ...] = ()) -> T:
    """Return what ``read`` returns. The error names the ``words`` that would be valid too."""
    try:
        return read()
    except UsageError as error:
        # What is no time may be a URL that was typed without its scheme, with a password behind a ':'.
        shown = str(error) if _TIME.fullmatch(text) else str(error).replace(repr(text), repr(mask_url(text)))
        raise argparse.ArgumentTypeError(
            "; or ".join((shown, *filter(None, [" or ".join(map(repr, words))])))
        ) from None


def period_or(*words: str, what: str = "the period") -> Callable[[str], Any]:
    """Return a converter to milliseconds, which also accepts these words."""
    return lambda text: text if text in words else _convert(lambda: parse_period(text, what=what), text)


def time_or(*words: str) -> Callable[[str], Any]:
    """Return a converter of a time to milliseconds since the epoch, which also accepts these words."""
    return lambda text: text if text in words else _convert(lambda: parse_time(text, what="the time"), text, words)


def seconds(what: str) -> Callable[[str], float]:
    """Return a converter of a duration to seconds."""
    return lambda text: _convert(lambda: parse_duration(text, what=what), text) / 1000


def whole_number(least: int, most: int | None = None, what: str = "") -> Callable[[str], int]:
    """Return a converter to a whole number; ``what`` is the noun for it in the error."""
    expected = f"a whole number from {least} {'up' if most is None or what else f'to {most}'}"

    def convert(text: str) -> int:
        number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 19 else -1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {f'{what}; expected ' if what else ''}{expected}")
        return number

    return convert


def lookahead(text: str) -> int | str:
    """Return a number of periods, or ``"auto"``."""
    try:
        return text if text == "auto" else whole_number(0)(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or 'auto'") from None


def listen_address(text: str) -> tuple[str, int]:
    """Convert ``127.0.0.1:8642``, ``[::1]:8642``, ``:8642`` (all addresses) or ``8642`` (loopback) to a host and a port."""
    host, colon, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address; write host:port, as in 127.0.0.1:8642")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host or ("0.0.0.0" if colon else "127.0.0.1"), int(port)  # noqa: S104 - asked for by the colon


def name(text: str) -> str:
    """Return the text. Raises ArgumentTypeError if it is empty."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; expected a name")
    return text


def storage(text: str) -> str:
    """Return the name of an offset storage as it was typed. Raises ArgumentTypeError for the former name of the store."""
    if text == "zookeeper":
        raise argparse.ArgumentTypeError("'zookeeper' is now 'store', which names any store; write 'store'")
    return text


def subscription(text: str) -> tuple[str, int | None]:
    """Parse TOPIC, or TOPIC=N for at most N of its partitions."""
    topic, equals, most = text.partition("=")
    return topic, whole_number(1, what="a number of partitions")(most) if equals else None


def setting(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE. The value is JSON or text; ``env:NAME`` and ``file:PATH`` say where to read it; a secret is text.

    Errors show only the name, because the value may be a secret.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        shown = re.match(r"[\w.-]*", text)
        raise argparse.ArgumentTypeError(f"{shown[0] if shown else ''!r} is not a setting; expected NAME=VALUE")
    if is_reference(value):
        value = _convert(lambda: read_secret(value, key), value)
        remember_secrets({key: value})
        return key, value
    if is_secret(key):
        remember_secrets({key: value})
        return key, value
    try:
        return key, json.loads(value)  # numbers, true, false, null
    except ValueError:
        return key, value
