"""Reads a DeltaSink's table as of a batch or a time: finds the version of the table, and the files that it has."""

from __future__ import annotations

import json
from typing import Any

from aiokcc.core.periods import format_time
from aiokcc.errors import UsageError

__all__ = ["is_delta", "open_version"]


def is_delta(uri: str) -> bool:
    """Return whether there is a Delta table. False if the package ``deltalake`` is not installed."""
    try:
        from deltalake import DeltaTable
    except ModuleNotFoundError:
        return False
    return bool(DeltaTable.is_deltatable(uri))


def open_version(uri: str, *, batch: int | None = None, time: int | None = None) -> Any:
    """Return the ``DeltaTable`` right after this batch was published, at this time, or as it is now.

    Raise UsageError if the batch is not published, or Delta has no version of that time any more.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    table = DeltaTable(uri)
    try:
        if time is not None:
            table.load_as_version(_version_at(table, uri, time))
        elif batch is not None:
            table.load_as_version(_version_of(table, batch))
    except DeltaError as error:
        what = f"batch {batch}" if time is None else format_time(time)
        raise UsageError(f"as_of: {uri} has no version as of {what} any more: {error}") from error
    return table


def _version_at(table: Any, uri: str, time: int) -> int:
    """Return the last version that was committed by this time, by the clocks of those who committed.

    Delta itself goes by the times of files, which a copy of the table changes, and takes the first version for earlier times.
    """
    entries = table.history()  # the newest first
    for entry in entries:
        if entry.get("timestamp", time + 1) <= time:
            return int(entry["version"])
    first = entries[-1]
    if first["version"] == 0:
        table.load_as_version(0)
        if not table.file_uris():
            return 0  # the table was created without rows, so there were none before
    raise UsageError(
        f"as_of: {uri} has no version as of {format_time(time)} any more; the first that it has is of "
        f"{format_time(first['timestamp'])}"
    )


def _version_of(table: Any, batch: int) -> int:
    """Return the version in which this batch was the last one. A batch without records has none: that of the one before."""
    found: dict[int, int] = {}
    for entry in table.history():  # the newest first
        metadata = json.loads(entry.get("aiokcc", "{}"))
        if metadata.get("number") == -1:
            break  # from scratch: batches before this one are of an earlier run
        if "content" in metadata and "number" in metadata:
            found[metadata["number"]] = entry["version"]
    numbers = [number for number in found if number <= batch]
    if not numbers or batch > max(found):
        last = f"the last one is {max(found)}" if found else "none is"
        raise UsageError(f"as_of: batch {batch} is not in a commit that Delta still has; {last}")
    return found[max(numbers)]
