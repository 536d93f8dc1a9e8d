"""Logs of the command line: ``--log-level`` and ``--log-format``, as text or as one JSON object per line, on stderr.

The facts that the packages give with ``extra=`` are fields of the object. With JSON the messages of the command itself are log
records as well, so that every line on stderr is an object. Secrets are masked in both formats.
"""

from __future__ import annotations

import datetime
import json
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiokcc.core.masking import HIDDEN, is_secret
from aiokcc.credentials import hide_secrets

__all__ = ["LEVELS", "LOG_FORMATS", "JsonFormatter", "TextFormatter", "choose_logs", "is_json", "set_up_logs"]

LOG_FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")

_BELOW: Final = ("aiokafka", "asyncio", "py4j")
"""The packages below ours, which log much."""
_DEEPEST: Final = 8
"""Values that are nested deeper in a fact become text, because a value may contain itself."""
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""The attributes that every log record has; the others are facts."""


class TextFormatter(logging.Formatter):
    """Formats a record as a line of text: time, level, member if it is known, logger and message."""

    def __init__(self, member: str | None = None) -> None:
        who = "" if member is None else f"{member.replace('%', '%%')} "
        super().__init__(f"%(asctime)s %(levelname)s {who}%(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and a traceback below it if the record has one."""
        return hide_secrets(super().format(record))


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object in one line. ``facts`` are fields of every object."""

    def __init__(self, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._facts = dict(facts or {})

    def format(self, record: logging.LogRecord) -> str:
        """Return the object: ``time``, ``level``, ``logger``, ``message``, the facts, and ``error`` with a traceback."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        fields: dict[str, Any] = {
            "time": f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": hide_secrets(record.getMessage()),
            **self._facts,
            **{name: _mask_fact(value, name) for name, value in vars(record).items() if name not in _STANDARD},
        }
        if record.exc_info:
            fields["error"] = hide_secrets(self.formatException(record.exc_info))
        return json.dumps(fields, ensure_ascii=False)


def _mask_fact(value: Any, name: str = "", depth: int = 0) -> Any:
    """Return a fact as JSON has it, with the secrets in it hidden: known ones, by their form, and by the names of dicts."""
    if isinstance(value, int | None) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if is_secret(name) and name != "key":  # a record has a key, too
        return HIDDEN
    if isinstance(value, Mapping) and depth < _DEEPEST:
        return {hide_secrets(str(key)): _mask_fact(each, str(key), depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth < _DEEPEST:
        return [_mask_fact(each, "", depth + 1) for each in value]
    return hide_secrets(str(value))


class _LastResort(logging.Handler):
    """Prints records for which there is no handler as Python does, but hides secrets."""

    def emit(self, record: logging.LogRecord) -> None:
        print(hide_secrets(self.format(record)), file=sys.stderr)


_LAST_RESORT: Final = _LastResort(logging.WARNING)


def choose_logs(log_format: str | None, level: str | None, *, verbose: bool) -> tuple[str, str] | None:
    """Return the format and the level in force; None if nothing is logged, because none of the options is given."""
    if log_format is None and level is None and not verbose:
        return None
    return log_format or "text", level or "info"


def set_up_logs(logs: Sequence[str] | None, *, member: str | None = None) -> None:
    """Log to stderr in this format and from this level on; with None, log nothing: the command prints its own messages.

    The packages below ours log much at INFO: their lines are shown from WARNING on, and from INFO on at the level ``debug``.
    """
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each.formatter, TextFormatter | JsonFormatter)]:
        root.removeHandler(handler)
    # What has no handler, such as asyncio's "Task exception was never retrieved", is printed too.
    logging.lastResort = _LAST_RESORT
    if logs is None:
        for name in ("aiokcc", "aiokafka"):
            logging.getLogger(name).addHandler(logging.NullHandler())
        return
    log_format, name = logs
    level = logging.getLevelNamesMapping()[name.upper()]
    handler = logging.StreamHandler(sys.stderr)
    facts = {} if member is None else {"member": member}
    handler.setFormatter(JsonFormatter(facts) if log_format == "json" else TextFormatter(member))
    below = logging.INFO if level == logging.DEBUG else max(level, logging.WARNING)
    handler.addFilter(lambda record: record.levelno >= (below if record.name.startswith(_BELOW) else level))
    root.addHandler(handler)
    root.setLevel(level)


def is_json() -> bool:
    """Return whether the messages of the command are logged as JSON and not printed."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)
