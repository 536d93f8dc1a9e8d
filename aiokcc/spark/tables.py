"""Reads what a ParquetSink has published: the log of manifests names the files, which any program can read.

The result is the state of the log at one moment, however long the reading takes. Published files are never changed and never
moved, so the list stays valid while the pipeline runs, until somebody starts the pipeline from scratch.
"""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from aiokcc.core.periods import MAX_LIMIT, parse_time
from aiokcc.errors import CoordinationError, UsageError
from aiokcc.spark.sinks.log import HOME, MANIFEST
from aiokcc.spark.sinks.manifest import Manifest, PublishedPeriod
from aiokcc.spark.sinks.places import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["files", "manifest", "read"]

Time: TypeAlias = "str | int | datetime"


def files(path: str | os.PathLike[str], start: Time | None = None, end: Time | None = None) -> list[str]:
    """Return the published Parquet files, in the order of their periods, for pandas, DuckDB, Spark or other programs. ::

        pandas.read_parquet(aiokcc.spark.files("out/revenue"))
        duckdb.read_parquet(aiokcc.spark.files("out/revenue", start="2026-01-01T00:00Z"))

    Args:
        path: the ParquetSink's directory.
        start: only periods that start here or later; ISO 8601 with a zone, a datetime with one, or ms since the epoch.
        end: only periods that start before this.

    Raises:
        UsageError: there is no result of a ParquetSink, or a time cannot be read.
    """
    root = _root(path)
    return [str(root / HOME / file.path) for period in manifest(root, start, end) for file in period.files]


def manifest(path: str | os.PathLike[str], start: Time | None = None, end: Time | None = None) -> list[PublishedPeriod]:
    """Return the published periods in order, those without rows too: bounds, rows, offsets they were read from, and files."""
    first, last = _bounds(start, end)
    return [period for batch in _log(_root(path)) for period in batch.periods if first <= period.start < last]


def read(
    spark: SparkSession, path: str | os.PathLike[str], start: Time | None = None, end: Time | None = None
) -> DataFrame:
    """Return the published rows as a Spark DataFrame; times are as in :func:`files`.

    If the columns have changed over time, it has those of the last batch; a column that a file does not have is null there.
    """
    from pyspark.sql.types import StructType

    root = _root(path)
    first, last = _bounds(start, end)
    log = _log(root)
    schema = next((batch.schema for batch in reversed(log) if batch.schema is not None), None)
    if schema is None:
        raise UsageError(f"{root}: nothing but empty periods is published there yet, so there are no columns to read")
    columns = StructType.fromJson(json.loads(schema))
    chosen = [
        str(root / HOME / file.path)
        for batch in log
        for period in batch.periods
        if first <= period.start < last
        for file in period.files
    ]
    return spark.read.schema(columns).parquet(*chosen) if chosen else spark.createDataFrame([], columns)


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


def _log(root: Path) -> list[Manifest]:
    """Return all manifests as they are at one moment.

    They are read through an open directory. So if a reset replaces the directory meanwhile, the two are not mixed, and if it
    has removed some manifests already, that is noticed.
    """
    for _ in range(10):
        try:
            handle = os.open(root / HOME / "log", os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return []
        try:
            found = filter(None, map(MANIFEST.fullmatch, os.listdir(handle)))  # noqa: PTH208 - of an open directory
            names = {int(match[1]): match[0] for match in found}
            # A listing that goes on while manifests are added may show a later one without an earlier one.
            if all(number in names for number in range(len(names))):
                return [_decode(root, handle, names[number]) for number in range(len(names))]
        except FileNotFoundError:
            continue
        finally:
            os.close(handle)
    raise CoordinationError(f"{root / HOME / 'log'} has gaps: a manifest was deleted, or the results are being reset")


def _decode(root: Path, handle: int, name: str) -> Manifest:
    with open(os.open(name, os.O_RDONLY, dir_fd=handle), "rb") as file:  # noqa: PTH123 - it is opened in the directory
        return Manifest.decode(f"{root / HOME}/log/{name}", file.read())
