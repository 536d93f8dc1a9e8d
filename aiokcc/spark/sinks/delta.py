"""A Delta table as a sink, through the ``deltalake`` package: exactly once, without Delta's jars in Spark.

Spark's workers write Parquet files into the table's directory, where no reader looks for files that no commit names. One commit
then names them all. :mod:`aiokcc.spark.sinks.delta_table` says what else the commit holds, and how it fences drivers.

Files of dead attempts are removed only after the table holds our attempt: from then on no commit can name them.

A batch without records makes no commit: repeating it adds nothing either. A batch with records makes one also if its result
has no rows, so that the table always tells which batch with records was published last.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypedDict, cast

from aiokcc.core.masking import mask_url
from aiokcc.errors import PipelineMismatchError, UsageError
from aiokcc.spark.batch import Batch
from aiokcc.spark.published import Published
from aiokcc.spark.sinks.arrow import check_installed, check_schema, write_files
from aiokcc.spark.sinks.columns import SchemaChange, all_nullable, check_schema_change, merge_columns, merge_parts
from aiokcc.spark.sinks.delta_files import add_action
from aiokcc.spark.sinks.delta_record import BatchRecord
from aiokcc.spark.sinks.delta_states import DeltaStates
from aiokcc.spark.sinks.delta_table import PipelineTable
from aiokcc.spark.sinks.manifest import Manifest, PublishedPeriod
from aiokcc.spark.sinks.places import local_path, unusable
from aiokcc.spark.sinks.states import States, StateSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from aiokcc.spark.function_version import FunctionVersion

__all__ = ["DeltaSink"]


class _Staged(TypedDict):
    schema: str
    is_replaced: bool
    files: list[tuple[int, str, int, int]]
    state: int
    """The number of the state that is published with the batch; 0 if there is none."""


class DeltaSink(StateSink):
    """Adds each period to a Delta table: ``DeltaSink("out/revenue")``. ``pip install 'aiokcc[delta]'``.

    The table is created when the first batch with records is computed. Others may read, compact and write to it meanwhile.
    It has no partition columns. Each file has its period in its statistics, so a reader that asks for some periods opens only
    their files.

    Args:
        table_uri: a directory (on a cluster one that all share), or a URI that ``deltalake`` knows, such as ``s3://…``.
        storage_options: for ``deltalake``, on the driver and on the workers: credentials and the like. What is not given comes
            from the environment of each.
        files_per_period: the number of files that the rows of a period are spread over.
        row_group_rows: the number of rows in a row group; a task holds so many in memory.
        schema: ``"add"``: columns that the table does not have are added to it, and every other change is refused.
            ``"replace"``: while the table has no rows, the result's columns also replace the table's.
    """

    exactly_once: ClassVar[bool] = True

    def __init__(
        self,
        table_uri: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
        files_per_period: int = 1,
        row_group_rows: int = 65_536,
        schema: SchemaChange = "add",
    ) -> None:
        self._schema_change = check_schema_change(schema)
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
        self._states: DeltaStates | None = None
        self._options = dict(storage_options or {}) or None
        self._table = PipelineTable(self.uri, self._shown, self._options)
        self._record = BatchRecord(self.uri, self._local, self._options)

    def __repr__(self) -> str:
        return f"DeltaSink({self._shown!r})"

    def describe(self) -> str:
        return f"Delta table {self._shown}"

    def identify(self, run: str, where: str) -> None:
        self._table.run, self._table.where = run, where
        self._record.run = run or "unknown"

    def computed_by(self, function: FunctionVersion) -> None:
        self._table.function = function

    def check_published(self, pipeline: str, number: int) -> None:
        if number >= 0:
            self._table.check_published(pipeline, number)

    def begin(self, pipeline: str, attempt: int) -> None:
        self._open(pipeline, attempt)
        if self._table.exists:
            with self._discarding():
                self._table.take_over()
            self._remove_leftovers()

    @contextlib.contextmanager
    def _discarding(self) -> Iterator[None]:
        """Leave nothing in the table's directory if the table refuses this run."""
        try:
            yield
        except PipelineMismatchError:
            self._record.discard()
            raise

    def _open(self, pipeline: str, attempt: int) -> None:
        self._check_place()
        # A pipeline's name may hold what the name of a file must not, so files have a digest of it.
        digest = hashlib.sha256(pipeline.encode()).hexdigest()[:8]
        self._prefix = f"aiokcc-{digest}-"
        self._table.open(pipeline, attempt)
        self._states = None if self._local is None else DeltaStates(self._local, digest)

    def _check_place(self) -> None:
        """Raise UsageError if a table on this machine cannot be written to."""
        if self._local is None:
            return
        try:
            self._local.mkdir(parents=True, exist_ok=True)
            if not os.access(self._local, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self._local))
        except OSError as error:
            raise UsageError(unusable(self._local, "DeltaSink", error)) from error

    def _remove_leftovers(self) -> None:
        """Remove files of dead attempts. Files of published batches stay, as older versions need them; Delta's vacuum knows."""
        if self._local is None or not self._local.is_dir():
            return
        if self._states is not None:
            self._states.remove_leftovers(self._table.published, self._table.attempt, self._published_states())
        ours = re.compile(re.escape(self._prefix) + r"(r?)(\d+)-(\d+)-.*\.parquet")
        last, restated = self._table.published, self._table.restated[0]
        for path in self._local.iterdir():
            match = ours.fullmatch(path.name)
            if match and int(match[2]) > (restated if match[1] else last) and int(match[3]) < self._table.attempt:
                path.unlink(missing_ok=True)

    def is_published(self, batch: Batch) -> bool:
        return self._table.is_published(batch)

    def check_state(self) -> None:
        """Raise UsageError if the table is not in a directory: a state is read back from files that Spark sees as well."""
        if self._local is None:
            raise UsageError(
                f"a state is kept in files beside the table, in a directory that the driver and all workers share, and "
                f"{self._shown} is not in a directory; choose one for a pipeline with state="
            )

    def _published_states(self) -> States | None:
        number = self._table.state
        return self._states.read(number) if self._states is not None and number else None

    def state_before(self, spark: SparkSession, batch: Batch) -> DataFrame | None:
        states = self._published_states()
        state = None if states is None else states.before(batch.number)
        assert self._local is not None
        return None if states is None or state is None else states.frame(spark, self._local, state)

    def stage(self, frame: DataFrame, batch: Batch) -> object:
        return self._stage(frame, batch)

    def stage_with_state(self, frame: DataFrame, state: DataFrame, batch: Batch, keep: int) -> object:
        assert self._states is not None
        staged = self._stage(frame, batch)
        before, attempt = self._published_states(), self._table.attempt
        staged["state"] = self._states.stage(
            state, batch, attempt, before, keep, parts=self._parts, rows=self._group_rows
        )
        return staged

    def _stage(self, frame: DataFrame, batch: Batch) -> _Staged:
        check_schema(frame)
        self._table.check_same()
        schema = all_nullable(frame.schema.json())
        if not self._table.exists:
            if self._local is not None:
                self._local.mkdir(parents=True, exist_ok=True)
            with self._discarding():
                self._table.create(schema)
            self._remove_leftovers()
        is_replaced = self._schema_change == "replace" and self._table.is_without_rows
        columns = schema if is_replaced else merge_columns(self._table.schema, schema, self._shown)
        files = write_files(
            frame,
            batch,
            self.uri,
            parts=self._parts,
            compression="zstd",
            group_rows=self._group_rows,
            storage_options=self._options,
            prefix=f"{self._names(batch)}{secrets.token_hex(4)}-",
        )
        return _Staged(
            schema=columns,
            is_replaced=is_replaced,
            files=[(file.period, file.name, file.rows, file.size) for file in files],
            state=0,
        )

    def _names(self, batch: Batch) -> str:
        """Return how the names of the files that this attempt writes for a batch begin."""
        return f"{self._prefix}{'r' if batch.replaces else ''}{batch.number}-{self._table.attempt}-"

    def publish(self, batch: Batch, staged: object | None) -> None:
        self._table.check_same()
        if staged is None:
            self._record.write_batch(self._manifest(batch))
            return
        result = cast("_Staged", staged)
        files = result["files"]
        names = frozenset(name for _, name, _, _ in files)
        try:
            is_new = not self._table.is_published(batch)
            if is_new:
                self._table.change_columns(result["schema"], replace=result["is_replaced"])
                self._record.write_batch(self._manifest(batch))
                rows = sum(count for _, _, count, _ in files)
                self._table.add(batch, [add_action(*file) for file in files], result["state"], rows)
        except PipelineMismatchError:
            self._remove(names)
            raise
        if is_new:
            self._committed = names
            if self._states is not None and result["state"]:
                self._states.remove_leftovers(batch.number, self._table.attempt, self._published_states())
        else:
            self._remove(names - self._committed)

    def _manifest(self, batch: Batch, after: int = -1) -> Manifest:
        return Manifest(
            pipeline=batch.pipeline,
            number=batch.number,
            attempt=self._table.attempt,
            run=self._table.run,
            root=self._table.where,
            periods=tuple(PublishedPeriod(period.start, period.end, period.ranges) for period in batch.periods),
            published_at=time.time_ns() // 1_000_000,
            late=batch.included if batch.replaces else batch.late,
            replaces=batch.replaces,
            after=after,
        )

    def published(self, pipeline: str, last: int) -> Published:
        self._table.open(pipeline, self._table.attempt)
        return self._record.read(last, *self._table.restated, self._shown)

    def replace(self, batch: Batch, staged: Sequence[object], after: int) -> None:
        if not self._table.exists:
            return  # no batch had records, so there is nothing to replace
        self._table.check_same()
        results = [cast("_Staged", part) for part in staged]
        files = [file for result in results for file in result["files"]]
        number, attempt = self._table.restated
        if (number, attempt) != (batch.number, self._table.attempt):
            columns = merge_parts([result["schema"] for result in results], self._shown)
            before = self._record.read(after, number, attempt, self._shown).restates
            self._record.write_restates([*before, self._manifest(batch, after)])
            if columns is not None:
                self._table.change_columns(columns, replace=results[0]["is_replaced"])
        rows = sum(count for _, _, count, _ in files)
        unused = self._table.replace(batch, [add_action(*file) for file in files], self._names(batch), rows)
        self._remove(frozenset(unused))

    def _remove(self, names: frozenset[str]) -> None:
        """Remove files that no commit names. If the table is not in a directory, Delta's vacuum removes them."""
        if self._local is not None:
            for name in names:
                (self._local / name).unlink(missing_ok=True)

    def last_attempt(self, pipeline: str) -> int:
        return self._table.last_attempt(pipeline)

    def check_reset(self, pipeline: str, result: Callable[[], DataFrame | None]) -> None:
        self._open(pipeline, self._table.attempt)
        self._table.check_reset(self._prefix)
        if not self._table.exists or self._schema_change == "replace" or (frame := result()) is None:
            return
        check_schema(frame)
        merge_columns(self._table.schema, all_nullable(frame.schema.json()), self._shown)

    def reset(self, pipeline: str, attempt: int) -> None:
        """Take our files out of the table, in one commit. Raise UsageError if it holds files of others."""
        self._open(pipeline, attempt)
        self._table.reset(self._prefix)
