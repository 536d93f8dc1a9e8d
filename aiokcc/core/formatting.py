"""Formats durations, counts and names for messages."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from aiokcc.core.periods import format_duration

__all__ = ["count", "did_you_mean", "format_elapsed", "join_names", "short_names"]

_SECONDS_ONLY: Final = 10
_MINUTE: Final = 60
_DAY: Final = 86_400


def format_elapsed(seconds: float) -> str:
    """Returns a duration rounded for reading: ``0.4s``, ``12s``, ``3m20s``, ``2h5m``, ``3d4h``."""
    seconds = max(0.0, seconds)
    if seconds < _SECONDS_ONLY:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    grain = 1 if whole < 60 * _MINUTE else 60 if whole < _DAY else 3600
    return format_duration(max(grain, whole // grain * grain) * 1000)


def count(number: int, thing: str) -> str:
    """Returns the number with its noun: ``1 member``, ``1,024 partitions``, ``2 batches``."""
    plural = "es" if thing.endswith("ch") else "s"
    return f"{number:,} {thing}{'' if number == 1 else plural}"


def did_you_mean(word: str, choices: Iterable[str], *, quote: Callable[[str], str] = repr) -> str:
    """Returns ``; did you mean 'status'?``, or an empty string if no choice is similar."""
    near = difflib.get_close_matches(word, list(choices), 1)
    return f"; did you mean {quote(near[0])}?" if near else ""


def join_names(words: Iterable[str], most: int = 3) -> str:
    """Returns ``a, b and c``; if there are more than ``most``, ``a, b, c and 9 more``."""
    words = list(words)
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most:,} more"
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""


def short_names(names: Iterable[str]) -> Mapping[str, str]:
    """Maps member names to names without the session at their end, where these are still distinct."""
    full = sorted(set(names))
    stems: dict[str, list[str]] = {}
    for name in full:
        stem, dash, session = name.rpartition("-")
        hexadecimal = bool(session) and all(c in "0123456789abcdef" for c in session)
        stems.setdefault(stem if dash and stem and hexadecimal else name, []).append(name)
    return {name: stem if len(sharers) == 1 else name for stem, sharers in stems.items() for name in sharers}
