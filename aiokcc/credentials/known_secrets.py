"""Remembers the secrets that this process was given, and hides them wherever they occur in what people read.

:func:`~aiokcc.core.masking.mask_text` knows a secret by its form, such as ``password='…'``. The message of an error from
elsewhere may have a password in it without any form. So whoever receives a secret remembers it here, and
:func:`hide_secrets` replaces it by its value. Both are needed: a mistyped URL is never received, but has the form.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus

from aiokcc.core.masking import HIDDEN, is_secret, mask_text
from aiokcc.credentials.jaas import read_login
from aiokcc.errors import UsageError

__all__ = ["hide_secrets", "remember_secret", "remember_secrets"]

_SHORTEST: Final = 4
"""A shorter secret would hide parts of ordinary words, and protects nothing."""
_LONG: Final = 8
"""From this length on a secret is hidden inside of words as well."""


class _Known:
    """The secrets, and the pattern that finds them."""

    def __init__(self) -> None:
        self.texts: set[str] = set()
        self.pattern: re.Pattern[str] | None = None


_known = _Known()


def remember_secret(value: object) -> None:
    """Have this text hidden from now on, also as Python, JSON and URLs write it. Other values than texts are ignored."""
    if not isinstance(value, str) or len(value) < _SHORTEST or value in _known.texts:
        return
    _known.texts.add(value)
    forms = {
        form for text in _known.texts for form in (text, repr(text)[1:-1], json.dumps(text)[1:-1], quote(text, ""))
    }
    forms |= {form for text in _known.texts for form in (text.replace("'", "\\'"), quote_plus(text))}
    # The longest first: one secret may contain another.
    parts = sorted(forms, key=lambda form: (-len(form), form))
    _known.pattern = re.compile(
        "|".join(re.escape(p) if len(p) >= _LONG else rf"(?<!\w){re.escape(p)}(?!\w)" for p in parts)
    )


def remember_secrets(settings: Mapping[str, Any]) -> None:
    """Remember the values of the settings whose names say that they are secret."""
    for name, value in settings.items():
        if is_secret(name):
            remember_secret(value)
        if isinstance(value, str) and "jaas" in name.lower():
            with contextlib.suppress(UsageError):  # whoever uses it says what is wrong with it
                remember_secrets(read_login(value))


def hide_secrets(text: str) -> str:
    """Return a text of unknown origin without the secrets of this process, and without what has the form of one."""
    return mask_text(text if _known.pattern is None else _known.pattern.sub(HIDDEN, text))
