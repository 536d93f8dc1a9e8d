"""Reads and writes the one line of JAAS that ``sasl.jaas.config`` holds: a login module and its options."""

from __future__ import annotations

import re
from typing import Final

from aiokcc.errors import UsageError

__all__ = ["login_line", "read_login"]

_LINE: Final = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)(?P<options>.*);\s*", re.DOTALL
)
_OPTION: Final = re.compile(
    r"""\s+(?P<name>[\w.]+)\s*=\s*(?:"(?P<quoted>(?:\\.|[^"\\])*)"|(?P<bare>[^\s";]+))""", re.DOTALL
)
_MODULES: Final = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}


def read_login(line: str) -> dict[str, str]:
    """Return the options of the line. Raises UsageError, which shows none of it, if it is not one."""
    match = _LINE.fullmatch(line)
    options: dict[str, str] = {}
    position = 0
    text = match["options"] if match is not None else ""
    while match is not None and text[position:].strip():
        found = _OPTION.match(text, position)
        if found is None:
            match = None
            break
        quoted = found["quoted"]
        options[found["name"]] = found["bare"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        position = found.end()
    if match is None:
        raise UsageError(
            "sasl.jaas.config cannot be read; expected one line such as "
            'org.apache.kafka.common.security.scram.ScramLoginModule required username="..." password="...";'
        )
    return options


def login_line(mechanism: str, user: str, password: str) -> str:
    """Return the line for Kafka's Java client."""
    module = f"org.apache.kafka.common.security.{_MODULES[mechanism]}"
    quoted = [re.sub(r'(["\\])', r"\\\1", text) for text in (user, password)]
    return f'{module} required username="{quoted[0]}" password="{quoted[1]}";'
