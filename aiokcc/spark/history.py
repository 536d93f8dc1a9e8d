"""The batches that a pipeline has published, as the result itself has recorded them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from aiokcc.core.periods import format_time
from aiokcc.spark.tables import published

__all__ = ["delta_history", "parquet_history"]


def parquet_history(path: str) -> list[dict[str, Any]]:
    """Return the batches in a ParquetSink's directory: number, attempt, function, times, periods, rows and offsets."""
    result = []
    for manifest in reversed(published(path).newest_first()):
        ranges: dict[str, tuple[int, int]] = {}
        for period in manifest.periods:
            for partition, (low, high) in period.ranges.items():
                ranges[str(partition)] = (ranges.get(str(partition), (low, high))[0], high)
        result.append(
            {
                "batch": manifest.number if manifest.replaces is None else manifest.after,
                **({} if manifest.replaces is None else {"restatement": manifest.number}),
                "attempt": manifest.attempt,
                **asdict(manifest.function),
                "from": format_time(manifest.periods[0].start),
                "to": format_time(manifest.periods[-1].end),
                "periods": len(manifest.periods),
                "rows": sum(period.rows for period in manifest.periods),
                "offsets": _text(ranges.items()),
            }
        )
    return result


def delta_history(uri: str, pipeline: str, storage_options: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Return the batches in a Delta table, of those commits that Delta still has. Batches without records have no commit."""
    from deltalake import DeltaTable

    table = DeltaTable(uri, storage_options=storage_options)
    prefix = f"aiokcc-{hashlib.sha256(pipeline.encode()).hexdigest()[:8]}-"
    rows: dict[int | str, int] = {}
    actions = table.get_add_actions(flatten=True)
    for path, number in zip(actions["path"].to_pylist(), actions["num_records"].to_pylist(), strict=True):
        if path.startswith(prefix):
            word = path.removeprefix(prefix).split("-")[0]
            batch = int(word) if word.isdigit() else word  # r3 for restatement 3
            rows[batch] = rows.get(batch, 0) + int(number or 0)
    result: list[dict[str, Any]] = []
    for entry in reversed(table.history()):
        found = json.loads(entry.get("aiokcc", "{}"))
        if found.get("pipeline") != f"aiokcc/{pipeline}" or "content" not in found:
            continue
        if "number" not in found and "restate" not in found:
            continue
        periods = [text.partition(": ")[0].split(" to ") for text in found["content"].split("; ")]
        if found["content"].endswith("…") and len(periods) > 1:
            periods.pop()  # the sink has shortened it
        first, last = periods[0][0], periods[-1][-1]
        result.append(
            {
                "batch": found.get("number", result[-1]["batch"] if result else -1),
                **({} if "number" in found else {"restatement": found["restate"]}),
                "attempt": found.get("attempt"),
                "version": found.get("version"),
                "fingerprint": found.get("fingerprint"),
                "from": first,
                "to": last,
                "periods": len(periods),
                "rows": rows.get(found["number"] if "number" in found else f"r{found['restate']}", 0),
                "offsets": found["content"],
            }
        )
    return result


def _text(ranges: Iterable[tuple[str, tuple[int, int]]]) -> str:
    return " ".join(f"{partition} {low}-{high}" for partition, (low, high) in sorted(ranges))
