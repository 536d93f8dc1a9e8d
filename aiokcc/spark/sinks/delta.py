"""A Delta table as a sink, through the ``deltalake`` package: exactly once, without Delta's jars in Spark.

Spark's workers write Parquet files into the table's directory, where no reader looks for files that no commit names. One commit
then names them all. :mod:`aiokcc.spark.sinks.delta_table` says what else the commit holds, and how it fences drivers.

Files of dead attempts are removed only after the table holds our attempt: from then on no commit can name them.

A batch without records makes no commit: repeating it adds nothing either. A batch with records makes one also if its result
has no rows, so that the table always tells which batch with records was published last.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, TypedDict, cast

from aiokcc.core.masking import mask_url
from aiokcc.errors import PipelineMismatchError, UsageError
from aiokcc.spark.batch import Batch
from aiokcc.spark.sinks.arrow import check_installed, check_schema, write_files
from aiokcc.spark.sinks.delta_files import add_action, bare_type, delta_schema
from aiokcc.spark.sinks.delta_table import PipelineTable
from aiokcc.spark.sinks.places import local_path
from aiokcc.spark.sinks.port import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DeltaSink"]


class _Staged(TypedDict):
    schema: str
    files: list[tuple[int, str, int, int]]


class DeltaSink(Sink):
    """Adds each period to a Delta table: ``DeltaSink("out/revenue")``. ``pip install 'aiokcc[delta]'``.

    The table is created when the first batch with records is computed. Others may read, compact and write to it meanwhile.
    It has no partition columns. Each file has its period in its statistics, so a reader that asks for some periods opens only
    their files.

    Args:
        table_uri: a directory (on a cluster one that all share), or a URI that both ``deltalake`` and ``pyarrow.fs`` know.
        storage_options: for ``deltalake``: credentials and the like. The workers' come from their environment.
        files_per_period: the number of files that the rows of a period are spread over.
        row_group_rows: the number of rows in a row group; a task holds so many in memory.
    """

    exactly_once: ClassVar[bool] = True

    def __init__(
        self,
        table_uri: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
        files_per_period: int = 1,
        row_group_rows: int = 65_536,
    ) -> None:
        self._local = local_path(table_uri, "DeltaSink")
        self.uri = os.fspath(table_uri).rstrip("/") if self._local is None else str(self._local)
        self._shown = mask_url(self.uri) if self._local is None else self.uri
        """The address without credentials: for errors, and for the description, which everybody can read in the store."""
        for what, value in (("files_per_period", files_per_period), ("row_group_rows", row_group_rows)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"{what} is {value!r}; expected a whole number from 1")
        if importlib.util.find_spec("deltalake") is None:
            raise UsageError("DeltaSink writes through the deltalake package: pip install 'aiokcc[delta]'")
        check_installed("DeltaSink")
        self._parts, self._group_rows = files_per_period, row_group_rows
        self._prefix = ""
        """The names of the pipeline's files start with this."""
        self._committed: frozenset[str] = frozenset()
        """The files of our last commit."""
        self._table = PipelineTable(self.uri, self._shown, dict(storage_options or {}) or None)

    def __repr__(self) -> str:
        return f"DeltaSink({self._shown!r})"

    def describe(self) -> str:
        return f"Delta table {self._shown}"

    def identify(self, run: str, where: str) -> None:
        self._table.run, self._table.where = run, where

    def check_published(self, pipeline: str, number: int) -> None:
        if number >= 0:
            self._table.check_published(pipeline, number)

    def begin(self, pipeline: str, attempt: int) -> None:
        self._open(pipeline, attempt)
        if self._table.exists:
            self._table.take_over()
            self._remove_leftovers()

    def _open(self, pipeline: str, attempt: int) -> None:
        # A pipeline's name may hold what the name of a file must not, so files have a digest of it.
        self._prefix = f"aiokcc-{hashlib.sha256(pipeline.encode()).hexdigest()[:8]}-"
        self._table.open(pipeline, attempt)

    def _remove_leftovers(self) -> None:
        """Remove files of dead attempts. Files of published batches stay, as older versions need them; Delta's vacuum knows."""
        if self._local is None or not self._local.is_dir():
            return
        ours = re.compile(re.escape(self._prefix) + r"(\d+)-(\d+)-.*\.parquet")
        last = self._table.published
        for path in self._local.iterdir():
            match = ours.fullmatch(path.name)
            if match and int(match[1]) > last and int(match[2]) < self._table.attempt:
                path.unlink(missing_ok=True)

    def is_published(self, batch: Batch) -> bool:
        return self._table.is_published(batch)

    def stage(self, frame: DataFrame, batch: Batch) -> object:
        check_schema(frame)
        schema = delta_schema(frame.schema.json())
        if not self._table.exists:
            if self._local is not None:
                self._local.mkdir(parents=True, exist_ok=True)
            self._table.create(schema)
            self._remove_leftovers()
        self._check_columns(schema)
        files = write_files(
            frame,
            batch,
            self.uri,
            parts=self._parts,
            compression="zstd",
            group_rows=self._group_rows,
            prefix=f"{self._prefix}{batch.number}-{self._table.attempt}-{secrets.token_hex(4)}-",
        )
        return _Staged(schema=schema, files=[(file.period, file.name, file.rows, file.size) for file in files])

    def _check_columns(self, schema: str) -> None:
        there = self._table.columns
        for field in json.loads(schema)["fields"]:
            if field["name"] not in there:
                raise UsageError(f"{self._shown} has no column {field['name']!r}; its columns are {', '.join(there)}")
            if bare_type(field["type"]) != bare_type(there[field["name"]]):
                raise UsageError(
                    f"{self._shown} has the column {field['name']!r} as {json.dumps(there[field['name']])}, "
                    f"and the result as {json.dumps(field['type'])}"
                )

    def publish(self, batch: Batch, staged: object | None) -> None:
        if staged is None:
            return
        files = cast("_Staged", staged)["files"]
        names = frozenset(name for _, name, _, _ in files)
        try:
            is_new = not self._table.is_published(batch)
            if is_new:
                self._table.add(batch, [add_action(*file) for file in files])
        except PipelineMismatchError:
            self._remove(names)
            raise
        if is_new:
            self._committed = names
        else:
            self._remove(names - self._committed)

    def _remove(self, names: frozenset[str]) -> None:
        """Remove files that no commit names. If the table is not in a directory, Delta's vacuum removes them."""
        if self._local is not None:
            for name in names:
                (self._local / name).unlink(missing_ok=True)

    def last_attempt(self, pipeline: str) -> int:
        return self._table.last_attempt(pipeline)

    def reset(self, pipeline: str, attempt: int) -> None:
        """Take our files out of the table, in one commit. Raise UsageError if it holds files of others."""
        self._open(pipeline, attempt)
        self._table.reset(self._prefix)
