"""Hides secrets in what people read: errors, logs, commands to copy, the repr of settings.

This is the one place that knows what a secret looks like. Three forms occur:

* a URL, or what was meant to be one: everything before its last ``@`` is hidden, whatever stands around it, and so is
  everything behind a ``?`` or ``#``, and what stands in place of a port. A mistyped URL (``zk:/user:password@host``) holds a
  password like a right one;
* a setting ``NAME=VALUE`` whose name says that the value is secret (``sasl_plain_password``), also as Python or JSON write it;
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
    r"passw|passphrase|pwd|secret|token|credential|jaas|(?:^|[._-])key(?![a-z]|_(?:de)?serial)|(?:^|[._-])auth$",
    re.IGNORECASE,
)
_SCHEME: Final = r"(?P<scheme>[a-z][a-z0-9+.-]*(?::/+|//))?+"
_CREDENTIALS: Final = re.compile(_SCHEME + r".*@", re.IGNORECASE | re.DOTALL)
_HOST: Final = r"(?:\[[^\]]*\]|[^\[\]:/,?\#\s]*)"
# A host's port has at most five digits. Anything else behind the ':' may be a password behind which the '@' was forgotten.
_NO_PORT: Final = re.compile(
    rf"{_SCHEME}(?:{_HOST}(?::[0-9]{{1,5}})?,)*{_HOST}:(?![0-9]{{1,5}}(?:[/,?\#]|$))(?P<rest>.+)",
    re.IGNORECASE | re.DOTALL,
)
_OPTIONS: Final = re.compile(r"[?#](?P<rest>.+)", re.DOTALL)

# A text may be long, and not ours: no pattern may look at it more often than a few times. So a run of characters is looked at
# from its beginning only, and never given back.
_QUOTED_URL: Final = re.compile(r"(?P<quote>['\"])(?P<url>[a-z][a-z0-9+.-]*+:/+.*?)(?P=quote)", re.IGNORECASE)
_BARE_URL: Final = re.compile(
    r"(?<![a-z0-9+.-])(?P<before>[0-9+.-]*+)(?P<url>[a-z][a-z0-9+.-]*+:/+[^\s'\"]*[^\s'\".,;:)\]}…])", re.IGNORECASE
)
_RUN: Final = re.compile(r"[^\s'\"]++")
_FORM: Final = re.compile(
    r"(?:zks?|kafka)://(?:\[?user:password@\]?)?host\[?:(?:port|2181|9092)\]?(?:\[,host\[?:port\]?…\])?(?:\[?/root\]?)?",
    re.IGNORECASE,
)
"""The form of a URL, as our own errors write it. It contains no secret and is not masked, or the advice would be lost."""
_PLACEHOLDER: Final = re.compile(r"(?:[a-z][a-z0-9+.-]*:/+)?\[?(?:user:password|USER:PASSWORD|\*{3})")

_QUOTED: Final = (
    r"""[bru]{0,2}(?:'(?:\\.|[^'\\])*+'?|"(?:\\.|[^"\\])*+"?"""
    r"""|\\++(?P<escaped>['"])(?:[^\\]|\\++(?!(?P=escaped)))*+\\++(?P=escaped))"""
)
_LISTED: Final = r"""[(\[{](?:'(?:\\.|[^'\\])*+'?|"(?:\\.|[^"\\])*+"?|[^'")\]}])*+[)\]}]?"""
_NAME: Final = re.compile(
    r"""(?P<quote>(?:(?<!\\)\\++)?+['"]?)(?<![\w.-])(?P<name>[\w.-]++)(?P=quote)(?=\s*[=:])""", re.IGNORECASE
)
_VALUE: Final = re.compile(
    rf"""\s*[=:]\s*(?P<quoted>{_QUOTED})|\s*=\s*(?P<listed>{_LISTED})|=(?P<word>\S+)
    |(?<=['"])\s*:\s*(?P<item>{_LISTED}|[^\s,}}]+)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_PRIVATE_KEY: Final = re.compile(
    r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL
)
_NO_SECRET: Final = re.compile(r"(?:(?:PASSWORD|FILE|\*{3}|\.{3}|…)(?:&.*)?|(?:env|file):.*)[.,;:)]*")
"""Values that stand for a secret in our own errors and in commands to copy."""
_ENVIRONMENT_OR_FILE: Final = ("env:", "file:")


def is_secret(name: str) -> bool:
    """Returns whether a setting of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def mask_url(text: str, hidden: str = HIDDEN) -> str:
    """Returns a URL, right or mistyped, without its user and password, and without anything behind a ``?`` or ``#``."""
    options = _OPTIONS.search(text)
    found = _CREDENTIALS.match(text)
    if found is not None:
        if options is not None and options.start() < found.end():
            # The '@' may belong to an option, with the rest of a secret behind it.
            return f"{found['scheme'] or ''}{hidden}"
        text = f"{found['scheme'] or ''}{hidden}@{text[found.end() :]}"
        options = _OPTIONS.search(text)
    else:
        wrong = _NO_PORT.match(text)
        if wrong is not None:
            return f"{text[: wrong.start('rest')]}{HIDDEN}"
    return text if options is None else f"{text[: options.start('rest')]}{HIDDEN}"


def mask_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with the secret values hidden."""
    return {name: HIDDEN if is_secret(name) and value is not None else value for name, value in settings.items()}


def mask_text(text: str) -> str:
    """Returns a text of unknown origin without the credentials and secret settings that it quotes.

    The forms and placeholders of our own errors stay: they say what to write.
    """
    text = _QUOTED_URL.sub(lambda found: f"{found['quote']}{_mask_quoted_url(found['url'])}{found['quote']}", text)
    text = _BARE_URL.sub(lambda found: found["before"] + _mask_quoted_url(found["url"]), text)
    if "@" in text:
        text = _RUN.sub(_mask_credentials, text)
    return _mask_named(_PRIVATE_KEY.sub(rf"\1{HIDDEN}", text))


def _mask_credentials(found: re.Match[str]) -> str:
    """Return a run of characters without a user and a password in front of its last ``@``."""
    run = found[0]
    at, colon = run.rfind("@"), run.find(":")
    if not 0 <= colon < at:
        return run
    start = max(run.rfind("@", 0, colon), run.rfind("/", 0, colon)) + 1
    return run if _PLACEHOLDER.fullmatch(run[start:at]) else f"{run[:start]}{HIDDEN}{run[at:]}"


def _mask_quoted_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if _FORM.fullmatch(url):
        return url
    if rest.startswith("USER:PASSWORD@"):  # as in a command to copy
        return f"{scheme}://USER:PASSWORD@{mask_url(rest.removeprefix('USER:PASSWORD@'))}"
    return mask_url(url)


def _mask_named(text: str) -> str:
    """Return a text without the values whose names say that they are secret, also inside of other values."""
    parts: list[str] = []
    done = 0
    for found in _NAME.finditer(text):
        name = found["name"]
        is_error = name.endswith(("Error", "Exception"))  # as in "TokenError: 'x'"
        if found.start() < done or is_error or not is_secret(name):
            continue
        value = _VALUE.match(text, found.end())
        if value is None or _NO_SECRET.fullmatch(next(filter(None, value.groups(""))).strip("'\"\\")):
            continue
        start = next(value.start(group) for group in ("quoted", "listed", "word", "item") if value[group])
        parts += [text[done:start], HIDDEN]
        done = value.end()
    return "".join([*parts, text[done:]])


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
        return word if "@" not in secret else f"{before}{name}={mask_url(secret, 'USER:PASSWORD')}"
    if option and is_secret(before):  # a setting that was taken for an option
        return f"{before}PASSWORD"
    return before + mask_url(value, "USER:PASSWORD") if re.search(r":.*@", value, re.DOTALL) else word
