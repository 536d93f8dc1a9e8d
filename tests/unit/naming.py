"""Short names for parametrized cases: some of them are a megabyte long, or numbers that Python refuses to write out."""

from __future__ import annotations


def brief(value: object) -> str:
    """Return the beginning of the value's text."""
    try:
        text = repr(value)
    except ValueError:
        return "huge"
    return text if len(text) <= 40 else f"{text[:30]}...{len(text)}"
