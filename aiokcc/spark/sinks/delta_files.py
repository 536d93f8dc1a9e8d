"""The files and the columns of a Delta table, as its log describes them."""

from __future__ import annotations

import json
import time
from typing import Any

from aiokcc.core.periods import format_time

__all__ = ["add_action", "bare_type", "delta_schema"]


def add_action(period: int, name: str, rows: int, size: int) -> Any:
    """Return the action that adds a file to the table, with the file's period in its statistics."""
    from deltalake.transaction import AddAction

    start = format_time(period)
    shown = start if "." in start else start.replace("Z", ".000Z")
    stats = {
        "numRecords": rows,
        "minValues": {"period": shown},
        "maxValues": {"period": shown},
        "nullCount": {"period": 0},
    }
    return AddAction(name, size, {}, int(time.time() * 1000), True, json.dumps(stats))


def delta_schema(schema: str) -> str:
    """Return Delta's JSON of a schema for Spark's: the same text, but all columns are nullable and have no metadata."""
    content = json.loads(schema)
    for field in content["fields"]:
        field["nullable"], field["metadata"] = True, {}
    return json.dumps(content)


def bare_type(kind: Any) -> Any:
    """Return a type without the marks that its parts may be null, to be compared."""
    if isinstance(kind, dict):
        left_out = ("nullable", "containsNull", "valueContainsNull", "metadata")
        return {key: bare_type(value) for key, value in kind.items() if key not in left_out}
    return [bare_type(value) for value in kind] if isinstance(kind, list) else kind
