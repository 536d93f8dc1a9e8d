"""Remembers the secrets that this process was given, and hides them wherever they occur in what people read.

:func:`~aiokcc.core.masking.mask_text` knows a secret by its form, such as ``password='…'``. The message of an error from
elsewhere may have a password in it without any form. So whoever receives a secret remembers it here, and
:func:`hide_secrets` replaces it by its value. Both are needed: a mistyped URL is never received, but has the form.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
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
_WORDS: Final = """
true false none null default plain scram admin root user username password passwd secret token client server broker kafka
zookeeper spark aiokcc topic topics partition partitions record records offset offsets group groups member members store limit
period leader replay localhost error file test
"""
_ORDINARY: Final = frozenset(_WORDS.split())
"""Words that our own messages are made of. A gap in place of one would say which word the password is, and the message would
be lost: such a password is hidden by its form only, as in ``password='…'``."""
_NO_SECRETS: Final = (".location", "_location", ".file")
"""The endings of the names of settings whose value only says where a secret is."""


class _Known:
    """The secrets, and the pattern that finds them."""

    def __init__(self) -> None:
        self.texts: set[str] = set()
        self.forms: tuple[str, ...] = ()
        self.pattern: re.Pattern[str] | None = None


_known = _Known()
_lock = threading.Lock()


def remember_secret(value: object) -> None:
    """Have this text hidden from now on, also as Python, JSON and URLs write it. Other values than texts are ignored.

    So are texts of less than four characters, and ordinary words: hiding them would garble every line, and protect nothing.
    """
    if not isinstance(value, str) or len(value) < _SHORTEST or value in _known.texts or value.lower() in _ORDINARY:
        return
    with _lock:
        _known.texts.add(value)
        forms = {form for text in _known.texts for form in _forms(text)}
        # The longest first: one secret may contain another.
        _known.forms = tuple(sorted(forms, key=lambda form: (-len(form), form)))
        _known.pattern = re.compile("|".join(_matching(form) for form in _known.forms))


def _forms(text: str) -> set[str]:
    """Return the text as it is, and as Python, JSON and URLs write it."""
    data = text.encode(errors="surrogatepass")
    python = {repr(text)[1:-1], ascii(text)[1:-1], repr(data)[2:-1], text.replace("'", "\\'")}
    json_forms = {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    return {text, *python, *json_forms, quote(data, ""), quote_plus(data)}


def _matching(form: str) -> str:
    """Return the pattern for a form. A short one is found as a word only, also behind an escaped newline or zero byte."""
    if len(form) >= _LONG:
        return re.escape(form)
    return rf"(?:(?<!\w)|(?<=\\[abfnrtv0])|(?<=\\x[0-9a-f]{{2}})){re.escape(form)}(?!\w)"


def remember_secrets(settings: Mapping[str, Any]) -> None:
    """Remember the values of the settings whose names say that they are secret."""
    for name, value in settings.items():
        if is_secret(name) and not name.lower().endswith(_NO_SECRETS):
            remember_secret(value)
        if isinstance(value, str) and "jaas" in name.lower():
            with contextlib.suppress(UsageError):  # whoever uses it says what is wrong with it
                remember_secrets(read_login(value))


def hide_secrets(text: str) -> str:
    """Return a text of unknown origin without the secrets of this process, and without what has the form of one."""
    # Looking for plain texts is many times as fast as the pattern, and nearly always enough.
    if _known.pattern is not None and any(form in text for form in _known.forms):
        text = _known.pattern.sub(HIDDEN, text)
    return mask_text(text)
