"""The batches that a pipeline has published, as the result itself has recorded them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from aiokcc.core.periods import format_time
from aiokcc.spark.sinks.delta_record import BatchRecord
from aiokcc.spark.sinks.manifest import Manifest
from aiokcc.spark.sinks.places import local_path
from aiokcc.spark.tables import published

__all__ = ["delta_history", "parquet_history"]


def parquet_history(path: str) -> list[dict[str, Any]]:
    """Return the batches in a ParquetSink's directory: number, attempt, function, times, periods, rows and offsets."""
    return [
        {
            "batch": manifest.number if manifest.replaces is None else manifest.after,
            **({} if manifest.replaces is None else {"restatement": manifest.number}),
            "attempt": manifest.attempt,
            **asdict(manifest.function),
            **_content(manifest),
            "rows": sum(period.rows for period in manifest.periods),
        }
        for manifest in reversed(published(path).newest_first())
    ]


def delta_history(uri: str, pipeline: str, storage_options: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Return the batches in a Delta table, of those commits that Delta still has. Batches without records have no commit."""
    from deltalake import DeltaTable

    table = DeltaTable(uri, storage_options=storage_options)
    record = BatchRecord(uri, local_path(uri, "uri"), storage_options)
    rows = _rows_of_files(table, pipeline)
    result: list[dict[str, Any]] = []
    for entry in reversed(table.history()):
        found = json.loads(entry.get("aiokcc", "{}"))
        if found.get("pipeline") != f"aiokcc/{pipeline}" or "content" not in found:
            continue
        if "number" not in found and "restate" not in found:
            continue
        number = found["number"] if "number" in found else found["restate"]
        record.run = found.get("run", "unknown")
        manifest = record.find(number, None if "number" in found else found.get("attempt"))
        result.append(
            {
                "batch": found.get("number", result[-1]["batch"] if result else -1),
                **({} if "number" in found else {"restatement": number}),
                "attempt": found.get("attempt"),
                "version": found.get("version"),
                "fingerprint": found.get("fingerprint"),
                **(_shortened(found["content"]) if manifest is None else _content(manifest)),
                "rows": found.get("rows", rows.get(number if "number" in found else f"r{number}", 0)),
            }
        )
    return result


def _rows_of_files(table: Any, pipeline: str) -> dict[int | str, int]:
    """Return the rows in our files by batch, for commits of an earlier version, which did not record them."""
    prefix = f"aiokcc-{hashlib.sha256(pipeline.encode()).hexdigest()[:8]}-"
    rows: dict[int | str, int] = {}
    actions = table.get_add_actions(flatten=True)
    for path, number in zip(actions["path"].to_pylist(), actions["num_records"].to_pylist(), strict=True):
        if path.startswith(prefix):
            word = path.removeprefix(prefix).split("-")[0]
            batch = int(word) if word.isdigit() else word  # r3 for restatement 3
            rows[batch] = rows.get(batch, 0) + int(number or 0)
    return rows


def _content(manifest: Manifest) -> dict[str, Any]:
    """Return the times, the number of periods and the offsets of a batch."""
    ranges: dict[str, tuple[int, int]] = {}
    for period in manifest.periods:
        for partition, (low, high) in period.ranges.items():
            ranges[str(partition)] = (ranges.get(str(partition), (low, high))[0], high)
    return {
        "from": format_time(manifest.periods[0].start),
        "to": format_time(manifest.periods[-1].end),
        "periods": len(manifest.periods),
        "offsets": " ".join(f"{partition} {low}-{high}" for partition, (low, high) in sorted(ranges.items())),
    }


def _shortened(content: str) -> dict[str, Any]:
    """Return the same as far as the text in the commit has it, for a batch without a record of its own."""
    periods = [text.partition(": ")[0].split(" to ") for text in content.split("; ")]
    if content.endswith("…") and len(periods) > 1:
        periods.pop()  # the sink has shortened it
    return {"from": periods[0][0], "to": periods[-1][-1], "periods": len(periods), "offsets": content}
