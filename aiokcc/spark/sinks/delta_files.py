"""The files of a Delta table as its log names them, their columns, and what commits say about a batch."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any, Final

from aiokcc.core.periods import format_time
from aiokcc.spark.batch import Batch

__all__ = ["action", "content_of", "delta_schema", "digest", "shortened", "side", "types"]

_MOST_SHOWN: Final = 500


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


def digest(text: str) -> int:
    """Return a digest as a number that fits a version of Delta's."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])


def content_of(batch: Batch) -> str:
    """Return what a batch holds, for people and to be compared: its periods, and the offsets they are read from."""
    periods = [
        f"{format_time(period.start)} to {format_time(period.end)}: "
        + (" ".join(f"{p} {first}-{last}" for p, (first, last) in sorted(period.ranges.items())) or "nothing")
        for period in batch.periods
    ]
    return "; ".join(periods)


def shortened(content: str) -> str:
    return content if len(content) <= _MOST_SHOWN else f"{content[:_MOST_SHOWN]}…"


def side(app: str, root: str | None, run: str | None) -> str:
    """Return the name of one side of a comparison."""
    name = f"the pipeline {app.removeprefix('aiokcc/')!r}"
    return f"{name} under {root} (run {run[:8]})" if root and run else f"another run of {name}"
