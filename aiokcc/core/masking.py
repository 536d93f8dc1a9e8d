"""Hides secrets in what people read: errors, logs, commands to copy, the repr of settings.

This is the one place that knows what a secret looks like. Three forms occur:

* a URL, or what was meant to be one: everything before its last ``@`` is hidden, whatever stands around it. A mistyped URL
  (``zk:/user:password@host``) holds a password like a right one;
* a setting ``NAME=VALUE`` whose name says that the value is secret (``sasl_plain_password``);
* a text that may quote one of these, such as the message of an error from elsewhere.

It hides too much rather than too little: nobody needs the user's name in an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["HIDDEN", "is_secret", "mask_command", "mask_settings", "mask_text", "mask_url"]

HIDDEN: Final = "***"

_SECRET_NAME: Final = re.compile(
    r"passw|passphrase|pwd|secret|token|credential|jaas|(?:^|[._-])key(?!_deserial)", re.IGNORECASE
)
_SCHEME: Final = r"(?P<scheme>[a-z][a-z0-9+.-]*:/+)?"
_CREDENTIALS: Final = re.compile(_SCHEME + r".*@", re.IGNORECASE | re.DOTALL)
# A host's port has at most five digits. What is longer, or has no '@' behind it because that was forgotten, may be a password.
_NO_PORT: Final = re.compile(
    _SCHEME + r"(?P<host>[^\[\]:/,\s]+):(?![0-9]{1,5}(?:[/,]|$))(?P<port>[^/,]{6,})", re.IGNORECASE
)
_QUOTED_URL: Final = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*:/+)?[^\s'\"@/]*:[^\s'\"]*@", re.IGNORECASE)
_QUOTED_NO_PORT: Final = re.compile(
    r"(\b[a-z][a-z0-9+.-]*:/+[^\s:/'\"\[]+:)(?![0-9]{1,5}\b)[^\s/'\",]{6,}", re.IGNORECASE
)
_QUOTED_SETTING: Final = re.compile(r"(?P<name>[\w.-]+)(?P<equals>=)(?P<value>[^\s'\",;]+)")
_ENVIRONMENT_OR_FILE: Final = ("env:", "file:")


def is_secret(name: str) -> bool:
    """Returns whether a setting of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def mask_url(text: str, hidden: str = HIDDEN) -> str:
    """Returns a URL, right or mistyped, without its user and password."""
    found = _CREDENTIALS.match(text)
    if found is not None:
        return f"{found['scheme'] or ''}{hidden}@{text[found.end() :]}"
    found = _NO_PORT.match(text)
    return text if found is None else f"{text[: found.start('port')]}{HIDDEN}{text[found.end() :]}"


def mask_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with the secret values hidden."""
    return {name: HIDDEN if is_secret(name) and value is not None else value for name, value in settings.items()}


def mask_text(text: str) -> str:
    """Returns a text of unknown origin without the credentials and secret settings that it quotes."""
    text = _QUOTED_URL.sub(lambda found: f"{found['scheme'] or ''}{HIDDEN}@", text)
    text = _QUOTED_NO_PORT.sub(rf"\1{HIDDEN}", text)
    return _QUOTED_SETTING.sub(
        lambda found: found[0] if not is_secret(found["name"]) else f"{found['name']}={HIDDEN}", text
    )


def mask_command(words: Sequence[str]) -> list[str]:
    """Returns the words of a command line to be copied, with placeholders where secrets stood.

    A secret that was not typed but named (``env:NAME``, ``file:PATH``) stays: the command works as it is.
    """
    return [_mask_word(word) for word in words]


def _mask_word(word: str) -> str:
    option = re.match(r"--[\w-]+=", word)
    before, value = (option[0], word[option.end() :]) if option else ("", word)
    name, equals, secret = value.partition("=")
    if equals and re.fullmatch(r"[\w.-]+", name):
        if is_secret(name) and not secret.startswith(_ENVIRONMENT_OR_FILE):
            return f"{before}{name}=PASSWORD"
        return word
    if option and is_secret(before):  # a setting that was taken for an option
        return f"{before}PASSWORD"
    return before + mask_url(value, "USER:PASSWORD") if re.search(r":.*@", value, re.DOTALL) else word
