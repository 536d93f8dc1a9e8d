"""The files of a Delta table, as its log describes them."""

from __future__ import annotations

import json
import time
from typing import Any

from aiokcc.core.periods import format_time

__all__ = ["add_action"]


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
