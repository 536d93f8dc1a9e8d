"""Reads what a ParquetSink has published: the log of manifests names the files, which any program can read.

The result is the state of the log at one moment, however long the reading takes. Published files are never changed and never
moved, so the list stays valid while the pipeline runs and while periods are restated, until somebody starts the pipeline from
scratch. So an earlier state can be read, too. Delta tables are read likewise, as of any version that Delta still has.
"""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from aiokcc.core.periods import MAX_LIMIT, parse_time
from aiokcc.errors import CoordinationError, UsageError
from aiokcc.spark.delta_versions import is_delta, open_version
from aiokcc.spark.published import Published
from aiokcc.spark.sinks.log import HOME, MANIFEST, RESTATE
from aiokcc.spark.sinks.manifest import Manifest, PublishedPeriod
from aiokcc.spark.sinks.places import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["arrow_schema", "batches", "files", "manifest", "published", "read"]

Time: TypeAlias = "str | int | datetime"


def files(
    path: str | os.PathLike[str], start: Time | None = None, end: Time | None = None, *, as_of: Time | None = None
) -> list[str]:
    """Return the published Parquet files, in the order of their periods, for pandas, DuckDB, Spark or other programs. ::

        pandas.read_parquet(aiokcc.spark.files("out/revenue"))
        duckdb.read_parquet(aiokcc.spark.files("out/revenue", start="2026-01-01T00:00Z"))

    Args:
        path: the ParquetSink's directory, or that of a DeltaSink (then without ``start`` and ``end``).
        start: only periods that start here or later; ISO 8601 with a zone, a datetime with one, or ms since the epoch.
        end: only periods that start before this.
        as_of: the state of an earlier moment: the number of a batch (right after it was published), or a time.

    Raises:
        UsageError: there is no result of a ParquetSink, or a time cannot be read.
    """
    if (table := _delta(path, start, end, as_of)) is not None:
        return [str(file) for file in table.file_uris()]
    root = _root(path)
    return [str(root / HOME / file.path) for period in manifest(root, start, end, as_of=as_of) for file in period.files]


def manifest(
    path: str | os.PathLike[str], start: Time | None = None, end: Time | None = None, *, as_of: Time | None = None
) -> list[PublishedPeriod]:
    """Return the published periods in order, those without rows too: bounds, rows, offsets they were read from, and files."""
    first, last = _bounds(start, end)
    return [period for period in published(path, as_of=as_of).periods() if first <= period.start < last]


def batches(path: str | os.PathLike[str]) -> list[Manifest]:
    """Return the manifests of all published batches, in order, without restatements."""
    return list(published(path).batches)


def published(path: str | os.PathLike[str], *, as_of: Time | None = None) -> Published:
    """Return the batches and restatements of a ParquetSink's directory; ``as_of`` as in :func:`files`."""
    found = _log(_root(path))
    batch, time = _moment(as_of)
    if batch is not None:
        return found.as_of_batch(batch)
    return found if time is None else found.as_of_time(time)


def _moment(as_of: Time | None) -> tuple[int | None, int | None]:
    """Return the batch or the time; whole numbers are batches. Raise UsageError if it is neither."""
    if isinstance(as_of, bool):
        raise UsageError(f"as_of is {as_of!r}; expected the number of a batch, or a time")
    if isinstance(as_of, int):
        return as_of, None
    return None, None if as_of is None else parse_time(as_of, what="as_of")


def _delta(path: str | os.PathLike[str], start: Time | None, end: Time | None, as_of: Time | None) -> Any:
    """Return the ``DeltaTable`` at that moment; None if there is no directory with a Delta table."""
    place = local_path(path, "path")
    if place is None or not (place / "_delta_log").is_dir() or not is_delta(str(place)):
        return None
    uri = str(place)
    if start is not None or end is not None:
        raise UsageError(f"{uri!r} is a Delta table; choose rows by its column period, and leave start and end out")
    batch, time = _moment(as_of)
    return open_version(uri, batch=batch, time=time)


def read(
    spark: SparkSession,
    path: str | os.PathLike[str],
    start: Time | None = None,
    end: Time | None = None,
    *,
    as_of: Time | None = None,
) -> DataFrame:
    """Return the published rows as a Spark DataFrame; times and ``as_of`` are as in :func:`files`.

    It has all columns that were published; one that was added later is null in older periods.
    """
    from pyspark.sql.types import StructType

    if (table := _delta(path, start, end, as_of)) is not None:
        schema, uris = StructType.fromJson(json.loads(table.schema().to_json())), table.file_uris()
        return spark.read.schema(schema).parquet(*uris) if uris else spark.createDataFrame([], schema)
    root = _root(path)
    first, last = _bounds(start, end)
    log = published(root, as_of=as_of)
    columns = StructType.fromJson(json.loads(_columns(root, log)))
    chosen = [
        str(root / HOME / file.path)
        for period in log.periods()
        if first <= period.start < last
        for file in period.files
    ]
    return spark.read.schema(columns).parquet(*chosen) if chosen else spark.createDataFrame([], columns)


def arrow_schema(path: str | os.PathLike[str]) -> Any:
    """Return all columns that were published, as a ``pyarrow.Schema``, for readers that take the columns of the first file. ::

        pandas.read_parquet(aiokcc.spark.files("out/revenue"), schema=aiokcc.spark.arrow_schema("out/revenue"))

    With it, a column that was added later is null in older periods; without it, pandas leaves the column out. ``path`` may also
    be the directory of a DeltaSink.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    if (table := _delta(path, None, None, None)) is not None:
        return to_arrow_schema(StructType.fromJson(json.loads(table.schema().to_json())))
    root = _root(path)
    return to_arrow_schema(StructType.fromJson(json.loads(_columns(root, _log(root)))))


def _columns(root: Path, log: Published) -> str:
    """Return the columns of a log. Each batch, and each restatement, has recorded those of all that were published before."""
    schema = next((one.schema for one in log.newest_first() if one.schema is not None), None)
    if schema is None:
        raise UsageError(f"{root}: nothing but empty periods is published there yet, so there are no columns to read")
    return schema


def _root(path: str | os.PathLike[str]) -> Path:
    root = local_path(path, "path")
    if root is None or not (root / HOME / "owner.json").exists():
        raise UsageError(f"{os.fspath(path)!r} is not the directory of a ParquetSink")
    return root


def _bounds(start: Time | None, end: Time | None) -> tuple[int, int]:
    first = 0 if start is None else parse_time(start, what="start")
    last = MAX_LIMIT if end is None else parse_time(end, what="end")
    if last < first:
        raise UsageError(f"end {end!r} lies before start {start!r}")
    return first, last


def _log(root: Path) -> Published:
    """Return all manifests as they are at one moment.

    They are read through an open directory. So if a reset replaces the directory meanwhile, the two are not mixed, and if it
    has removed some manifests already, that is noticed.
    """
    for _ in range(10):
        try:
            handle = os.open(root / HOME / "log", os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return Published(())
        try:
            listed = os.listdir(handle)  # noqa: PTH208 - of an open directory
            names = {int(match[1]): match[0] for match in map(MANIFEST.fullmatch, listed) if match}
            changed = {int(match[1]): match[0] for match in map(RESTATE.fullmatch, listed) if match}
            # A listing that goes on while manifests are added may show a later one without an earlier one.
            if all(number in found for found in (names, changed) for number in range(len(found))):
                restates = tuple(_decode(root, handle, changed[number]) for number in range(len(changed)))
                if all(restate.after < len(names) for restate in restates):
                    return Published(tuple(_decode(root, handle, names[n]) for n in range(len(names))), restates)
        except FileNotFoundError:
            continue
        finally:
            os.close(handle)
    raise CoordinationError(f"{root / HOME / 'log'} has gaps: a manifest was deleted, or the results are being reset")


def _decode(root: Path, handle: int, name: str) -> Manifest:
    with open(os.open(name, os.O_RDONLY, dir_fd=handle), "rb") as file:  # noqa: PTH123 - it is opened in the directory
        return Manifest.decode(f"{root / HOME}/log/{name}", file.read())
