"""Reads secrets from where the user says they are: ``env:NAME`` is an environment variable, ``file:PATH`` a file.

Whoever can list the processes of a machine can read their command lines, so a secret is named there and not written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from aiokcc.errors import UsageError

__all__ = ["is_reference", "read_secret"]

_PLACES: Final = ("env:", "file:")


def is_reference(text: str) -> bool:
    """Return whether the text says where a secret is, and is not the secret itself."""
    return text.startswith(_PLACES)


def read_secret(text: str, what: str) -> str:
    """Return the value that ``env:NAME`` or ``file:PATH`` names; any other text is the value itself.

    The newline at the end of a file is left out. Raises UsageError, which begins with ``what``, if there is no such variable
    or the file cannot be read. An error never shows a value.
    """
    place, _, where = text.partition(":")
    if not is_reference(text):
        return text
    if place == "env":
        if where not in os.environ:
            raise UsageError(f"{what}: the environment variable {where} is not set")
        return os.environ[where]
    try:
        return Path(where).expanduser().read_text().rstrip("\r\n")
    except UnicodeError:
        raise UsageError(f"{what}: the file {where} is not text") from None
    except OSError as error:
        raise UsageError(f"{what}: the file {where} cannot be read: {error.strerror or error}") from None
