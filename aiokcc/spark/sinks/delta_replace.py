"""The actions by which one Delta commit replaces periods: remove the files that hold them, add those of the new ones.

A file of ours holds one period. A file that somebody has made by compacting the table may also hold other periods: its rows
outside of the replaced time are written to a new file, which the same commit adds. Rows without a period, which another program
has added, belong to no period and stay.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiokcc.core.periods import format_time
from aiokcc.errors import UsageError
from aiokcc.spark.sinks.delta_storage import read_bytes, write_bytes

__all__ = ["actions_to_replace"]


def actions_to_replace(
    table: Any, uri: str, options: Mapping[str, str] | None, shown: str, bounds: tuple[int, int], prefix: str
) -> tuple[list[Any], list[str]]:
    """Return the actions that take ``[start, end)`` out of the table, and the names of files that were written for that.

    New files get names that start with ``prefix``.
    """
    from deltalake.transaction import RemoveAction

    start, end = bounds
    files = table.get_add_actions(flatten=True)
    present = set(files.schema.names)
    names, sizes = files["path"].to_pylist(), files["size_bytes"].to_pylist()
    first, last = (
        [_millis(value) for value in files[name].to_pylist()] if name in present else [None] * len(names)
        for name in ("min.period", "max.period")
    )
    now = int(time.time() * 1000)
    result: list[Any] = []
    written: list[str] = []
    deleted = {row["filepath"].rsplit("/", 1)[-1] for row in _rows(table.deletion_vectors())}
    for name, size, low, high in zip(names, sizes, first, last, strict=True):
        if low is not None and high is not None and (high < start or low >= end):
            continue
        if low is None or high is None or low < start or high >= end:
            if name.rsplit("/", 1)[-1] in deleted:
                raise UsageError(
                    f"{shown}: rows of {name} were deleted by a deletion vector; compact the table (purge) first"
                )
            old = _read(uri, options, name)
            rest = _rest(old, bounds)
            if rest is not None and rest.num_rows == old.num_rows:
                continue
            if rest is not None:
                added = _write_rest(uri, options, rest, f"{prefix}rest-{secrets.token_hex(4)}.parquet")
                written.append(added.path)
                result.append(added)
        result.append(RemoveAction(name, True, now, size, {}))
    return result, written


def _read(uri: str, options: Mapping[str, str] | None, name: str) -> Any:
    """Return the rows of a file of the table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = Path(uri, name).read_bytes() if "://" not in uri else read_bytes(uri, options, name)
    return pq.read_table(pa.BufferReader(data))


def _rest(table: Any, bounds: tuple[int, int]) -> Any:
    """Return the rows that lie outside of the bounds, or have no period; None if there are none."""
    import pyarrow.compute as pc

    if "period" not in table.column_names:
        return table
    period = _column(table)
    start, end = bounds
    outside = pc.or_(pc.less(period, start), pc.greater_equal(period, end))
    rest = table.filter(pc.fill_null(outside, True))
    return rest if rest.num_rows else None


def _write_rest(uri: str, options: Mapping[str, str] | None, table: Any, target: str) -> Any:
    """Write rows to a new file, and return the action that adds it."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    from deltalake.transaction import AddAction

    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd", store_schema=False)
    data = buffer.getvalue().to_pybytes()
    if "://" not in uri:
        Path(uri, target).write_bytes(data)
    else:
        write_bytes(uri, options, target, data)
    period = _column(table)
    ends = pc.min_max(period).as_py()
    stats: dict[str, Any] = {"numRecords": table.num_rows, "nullCount": {"period": period.null_count}}
    if ends["min"] is not None:
        stats |= {"minValues": {"period": _shown(ends["min"])}, "maxValues": {"period": _shown(ends["max"])}}
    return AddAction(target, len(data), {}, int(time.time() * 1000), False, json.dumps(stats))


def _column(table: Any) -> Any:
    """Return the starts of the rows' periods in milliseconds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.cast(pc.cast(table["period"], pa.timestamp("ms", "UTC"), safe=False), pa.int64())


def _shown(millis: int) -> str:
    text = format_time(millis)
    return text if "." in text else text.replace("Z", ".000Z")


def _millis(value: Any) -> int | None:
    if not isinstance(value, datetime):
        return None
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)


def _rows(reader: Any) -> list[dict[str, Any]]:
    import pyarrow as pa

    return [row for batch in pa.RecordBatchReader.from_stream(reader) for row in batch.select(["filepath"]).to_pylist()]
