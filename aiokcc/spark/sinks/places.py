"""Where a sink's files go: a path of this machine, or a URI of somewhere else."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from aiokcc.errors import UsageError

__all__ = ["local_path", "scheme_of"]

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def scheme_of(place: str) -> str:
    """``s3`` of ``s3://bucket/key``; nothing of a path."""
    match = _SCHEME.match(place)
    return match[1].lower() if match else ""


def local_path(place: object, what: str) -> Path | None:
    """The absolute path; None if it is a URI of another place. UsageError if it is neither."""
    if not isinstance(place, str | os.PathLike) or not (text := os.fspath(place)) or not isinstance(text, str):
        raise UsageError(f'{what} is given {place!r}; expected a directory, like "out/revenue"')
    scheme = scheme_of(text)
    if scheme == "file":
        text = unquote(text[len("file:") :])
        text = "/" + text.lstrip("/")
    elif scheme:
        return None
    return Path(text).expanduser().absolute()
