"""Converts the texts of arguments into values. An invalid text raises ArgumentTypeError, whose message argparse shows."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from aiokcc.core.masking import is_secret, mask_url
from aiokcc.core.periods import parse_duration, parse_period, parse_time
from aiokcc.errors import UsageError

__all__ = ["check_settings", "name", "period_or", "seconds", "setting", "storage", "time_or", "whole_number"]

T = TypeVar("T")


def _convert(read: Callable[[], T], text: str, words: tuple[str, ...] = ()) -> T:
    """Return what ``read`` returns. The error names the ``words`` that would be valid too."""
    try:
        return read()
    except UsageError as error:
        # No time has a user in it. A text that has one may be a URL that was typed without its scheme.
        shown = str(error).replace(repr(text), repr(mask_url(text)))
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


def setting(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE. The value is JSON or text; ``env:NAME`` and ``file:PATH`` say where to read it; a secret is text.

    Errors show only the name, because the value may be a secret.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        shown = re.match(r"[\w.-]*", text)
        raise argparse.ArgumentTypeError(f"{shown[0] if shown else ''!r} is not a setting; expected NAME=VALUE")
    place, colon, where = value.partition(":")
    if colon and place == "env":
        if where not in os.environ:
            raise argparse.ArgumentTypeError(f"{key}: the environment variable {where} is not set")
        return key, os.environ[where]
    if colon and place == "file":
        try:
            return key, Path(where).read_text().rstrip("\r\n")
        except (OSError, UnicodeError) as error:
            raise argparse.ArgumentTypeError(f"{key}: the file {where} cannot be read: {error}") from None
    if is_secret(key):
        return key, value
    try:
        return key, json.loads(value)  # numbers, true, false, null
    except ValueError:
        return key, value


def check_settings(settings: Iterable[tuple[str, Any]]) -> None:
    """Raise UsageError for TLS: its context is an object, which --consumer cannot give."""
    given = dict(settings)
    if given.get("security_protocol") in {"SSL", "SASL_SSL"} or "ssl_context" in given:
        raise UsageError(
            "TLS to Kafka needs ssl_context, an object that cannot be typed on the command line. In a program of your own, "
            "call aiokcc.replay(..., security_protocol='SSL', ssl_context=aiokafka.helpers.create_ssl_context(cafile=...)); "
            "or reach Kafka through a listener without TLS"
        )
