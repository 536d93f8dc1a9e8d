"""The files of a Delta table as its log names them, and their columns."""

from __future__ import annotations

import json
import time
from typing import Any

from aiokcc.core.periods import format_time

__all__ = ["action", "delta_schema", "types"]


def action(period: int, name: str, rows: int, size: int) -> Any:
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
    """Spark's JSON of a schema is Delta's; every column may be null, and what Spark notes beside it stays out."""
    content = json.loads(schema)
    for field in content["fields"]:
        field["nullable"], field["metadata"] = True, {}
    return json.dumps(content)


def types(kind: Any) -> Any:
    """A type without whether its parts may be null."""
    if isinstance(kind, dict):
        left_out = ("nullable", "containsNull", "valueContainsNull", "metadata")
        return {key: types(value) for key, value in kind.items() if key not in left_out}
    return [types(value) for value in kind] if isinstance(kind, list) else kind
