"""The place of a sink's files: a path on this machine, or a URI of another place."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from aiokcc.errors import UsageError

__all__ = ["local_path", "scheme_of", "unusable"]

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def scheme_of(place: str) -> str:
    """Return ``s3`` for ``s3://bucket/key``, and an empty text for a path."""
    match = _SCHEME.match(place)
    return match[1].lower() if match else ""


def unusable(place: Path, what: str, error: OSError) -> str:
    """Return the sentence for a place that cannot be written to."""
    at = f" at {error.filename}" if error.filename and str(error.filename) != str(place) else ""
    return f"{what} cannot write to {place}: {error.strerror}{at}. Choose a directory that this process may create and write to"


def local_path(place: object, what: str) -> Path | None:
    """Return the absolute path; None if it is a URI of another place. Raise UsageError if it is neither."""
    if not isinstance(place, str | os.PathLike) or not (text := os.fspath(place)) or not isinstance(text, str):
        raise UsageError(f'{what} is given {place!r}; expected a directory, like "out/revenue"')
    scheme = scheme_of(text)
    if scheme == "file":
        text = unquote(text[len("file:") :])
        text = "/" + text.lstrip("/")
    elif scheme:
        return None
    return Path(text).expanduser().absolute()
