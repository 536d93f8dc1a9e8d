"""Reads a properties file as Java does: ``name=value`` or ``name: value``, comments, continued lines, escapes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aiokcc.errors import UsageError

__all__ = ["parse_properties", "read_properties"]

_PAIR: Final = re.compile(r"(?P<name>(?:\\.|[^\s=:\\])+)\s*(?:[=:]\s*)?(?P<value>.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LETTERS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def read_properties(path: str | Path, what: str) -> dict[str, str]:
    """Return the properties of a file. Raises UsageError, which begins with ``what``, if it cannot be read."""
    try:
        text = Path(path).expanduser().read_text()
    except UnicodeError:
        raise UsageError(f"{what}: the file {path} is not text; expected a properties file") from None
    except OSError as error:
        raise UsageError(f"{what}: the file {path} cannot be read: {error.strerror or error}") from None
    return parse_properties(text, f"{what} {path}")


def parse_properties(text: str, where: str) -> dict[str, str]:
    """Return the properties of a text. Raises UsageError for a name that stands twice; the error shows no value."""
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        match = _PAIR.fullmatch(line)
        if match is None:
            raise UsageError(f"{where}, line {number}: expected name=value")
        name = _ESCAPE.sub(_unescape, match["name"])
        if name in found:
            raise UsageError(f"{where}, line {number}: {name} stands there twice")
        found[name] = _ESCAPE.sub(_unescape, match["value"])
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Return the lines with their numbers, without blank ones and comments; a line that ends with a backslash goes on."""
    begun, parts = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.lstrip()
        if not parts and (not line or line[0] in "#!"):
            continue
        begun = begun if parts else number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            parts += line[:-1]
            continue
        yield begun, (parts + line).rstrip("\r")
        parts = ""
    if parts:
        yield begun, parts


def _unescape(found: re.Match[str]) -> str:
    escape = found[1]
    return chr(int(escape[1:], 16)) if len(escape) == 5 else _LETTERS.get(escape, escape)
