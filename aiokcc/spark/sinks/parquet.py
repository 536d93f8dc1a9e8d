"""Parquet files in a directory, a period each, published exactly once.

:mod:`aiokcc.spark.sinks.log` says how a batch becomes visible, and why a driver that was only suspended cannot publish.
:mod:`aiokcc.spark.sinks.arrow` writes the files. :func:`aiokcc.spark.files` and :func:`aiokcc.spark.read` read them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, TypedDict, cast

from aiokcc.core.masking import mask_url
from aiokcc.errors import SparkJobError, UsageError
from aiokcc.spark.batch import Batch
from aiokcc.spark.published import Published
from aiokcc.spark.sinks.arrow import check_installed, check_schema, write_files, write_state
from aiokcc.spark.sinks.columns import SchemaChange, all_nullable, check_schema_change, merge_columns, merge_parts
from aiokcc.spark.sinks.data_file import DataFile
from aiokcc.spark.sinks.log import HOME, Log
from aiokcc.spark.sinks.places import local_path
from aiokcc.spark.sinks.states import PublishedState, States, StateSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from aiokcc.spark.function_version import FunctionVersion
    from aiokcc.spark.sinks.arrow import WrittenFile

__all__ = ["ParquetSink"]

_COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")
_MOST_FILES: Final = 10_000


class _StagedFiles(TypedDict):
    schema: str
    files: list[tuple[int, str, int, int, str]]
    states: States | None
    """The states that are kept when the batch is published; None if the pipeline carries none."""


class ParquetSink(StateSink):
    """Publishes each period as Parquet in a directory of its own: ``ParquetSink("out/revenue")``.

    The directory is a POSIX one with hard links, and on a cluster one that the driver and all workers share under the same
    path. It belongs to one pipeline. The rows of a period are sorted, so that equal results are equal bytes.

    Args:
        path: the directory; it is made if it does not exist.
        files_per_period: the number of files that the rows of a period are spread over, by a hash of all columns. As many
            tasks can then write at once.
        compression: the compression of the columns.
        row_group_rows: the number of rows in a row group; a task holds so many in memory.
        schema: ``"add"``: columns that older files do not have are added, and every other change is refused. ``"replace"``:
            while the result has no rows, the columns may change in any way.
    """

    exactly_once: ClassVar[bool] = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        files_per_period: int = 1,
        compression: str = "zstd",
        row_group_rows: int = 65_536,
        schema: SchemaChange = "add",
    ) -> None:
        self._schema_change = check_schema_change(schema)
        place = local_path(path, "ParquetSink")
        if place is None:
            shown = mask_url(os.fspath(path))
            raise UsageError(
                f"{shown!r} is not on a POSIX file system, whose hard links a ParquetSink publishes by; "
                f"an object store is written to with aiokcc.spark.DeltaSink({shown!r})"
            )
        _check_number("files_per_period", files_per_period, _MOST_FILES)
        _check_number("row_group_rows", row_group_rows, 2**31 - 1)
        if compression not in _COMPRESSIONS:
            raise UsageError(f"compression is {compression!r}; expected one of {', '.join(_COMPRESSIONS)}")
        check_installed("ParquetSink")
        self.path: Path = place
        self._parts, self._compression, self._group_rows = files_per_period, compression, row_group_rows
        self._log = Log(place)

    def __repr__(self) -> str:
        return f"ParquetSink({str(self.path)!r})"

    def describe(self) -> str:
        return f"Parquet in {self.path}"

    def identify(self, run: str, where: str) -> None:
        self._log.run, self._log.where = run, where

    def computed_by(self, function: FunctionVersion) -> None:
        self._log.function = function

    def check_published(self, pipeline: str, number: int) -> None:
        self._log.check_published(number)

    def begin(self, pipeline: str, attempt: int) -> None:
        self._log.begin(pipeline, attempt)

    def is_published(self, batch: Batch) -> bool:
        return self._log.is_published(batch)

    def stage(self, frame: DataFrame, batch: Batch) -> object:
        return self._stage(frame, batch)

    def check_state(self) -> None:
        """Do nothing: a directory can hold a state."""

    def state_before(self, spark: SparkSession, batch: Batch) -> DataFrame | None:
        states = self._log.states
        state = None if states is None else states.before(batch.number)
        return None if states is None or state is None else states.frame(spark, self.path / HOME, state)

    def stage_with_state(self, frame: DataFrame, state: DataFrame, batch: Batch, keep: int) -> object:
        return self._stage(frame, batch, state, keep)

    def _stage(self, frame: DataFrame, batch: Batch, state: DataFrame | None = None, keep: int = 0) -> _StagedFiles:
        check_schema(frame)
        columns = self._merge(all_nullable(frame.schema.json()))
        place = self._log.make_stage(batch)
        try:
            files = write_files(
                frame,
                batch,
                str(place),
                parts=self._parts,
                compression=self._compression,
                group_rows=self._group_rows,
            )
            after = (
                [] if state is None else write_state(state, str(place), parts=self._parts, group_rows=self._group_rows)
            )
            for file in (*files, *after):
                self._check_seen(place, file, batch)
        except Exception:
            self._log.check()  # a driver that has taken over removes the directory while tasks write
            raise
        self._log.sync_stage(place)
        inside = place.relative_to(self.path / HOME).as_posix()
        states = None
        if state is not None:
            named = tuple(DataFile(f"{inside}/{file.name}", file.rows, file.size, file.sha256) for file in after)
            before = self._log.states or States(all_nullable(state.schema.json()))
            states = before.added(PublishedState(batch.number, batch.end, named), keep)
        return _StagedFiles(
            schema=columns,
            files=[(file.period, f"{inside}/{file.name}", file.rows, file.size, file.sha256) for file in files],
            states=states,
        )

    def _merge(self, schema: str) -> str:
        """Return the columns of the result after this batch. Raise UsageError if the batch does not fit what is published."""
        there = self._log.schema
        if self._schema_change == "replace" and self._log.is_without_rows:
            there = None
        return merge_columns(there, schema, str(self.path))

    def _check_seen(self, place: Path, file: WrittenFile, batch: Batch) -> None:
        """Raise SparkJobError if the driver does not see what a worker wrote: then their directories are not the same."""
        path = place / file.name
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            size = -1
        if size != file.size:
            seen = "does not see it" if size < 0 else f"sees {size} bytes"
            raise SparkJobError(
                f"the worker on {file.host} wrote {file.size} bytes to {path}, and the driver {seen}: a ParquetSink needs "
                f"a directory that the driver and all workers share under the same path",
                batch.pipeline,
                batch.start,
                batch.end,
            )

    def publish(self, batch: Batch, staged: object | None) -> None:
        if staged is None:
            self._log.publish(batch, {})
            return
        result = cast("_StagedFiles", staged)
        self._log.publish(batch, _by_period([result]), result["schema"], result["states"])

    def published(self, pipeline: str, last: int) -> Published:
        found = self._log.published()
        # The log has one more if a driver died before the store recorded it.
        batches = tuple(batch for batch in found.batches if batch.number <= last or batch.run == self._log.run)
        return Published(batches, found.restates)

    def replace(self, batch: Batch, staged: Sequence[object], after: int) -> None:
        results = [cast("_StagedFiles", part) for part in staged]
        schema = merge_parts([result["schema"] for result in results], str(self.path))
        self._log.replace(batch, _by_period(results), after, schema)

    def last_attempt(self, pipeline: str) -> int:
        return self._log.last_attempt()

    def check_reset(self, pipeline: str, result: Callable[[], DataFrame | None]) -> None:
        self._log.check_reset(pipeline)

    def reset(self, pipeline: str, attempt: int) -> None:
        self._log.reset(pipeline, attempt)


def _by_period(results: Iterable[_StagedFiles]) -> dict[int, tuple[DataFile, ...]]:
    found: dict[int, tuple[DataFile, ...]] = {}
    for result in results:
        for start, path, rows, size, digest in result["files"]:
            found[start] = (*found.get(start, ()), DataFile(path, rows, size, digest))
    return found


def _check_number(what: str, value: object, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise UsageError(f"{what} is {value!r}; expected a whole number from 1 to {most}")
