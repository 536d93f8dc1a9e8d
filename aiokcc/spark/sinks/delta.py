"""A Delta table as a sink, through the ``deltalake`` package: exactly once, without Delta's jars in Spark.

Spark's workers write Parquet files into the table's directory, where no reader looks for files that no commit names. One commit
then names them all. It also carries two of Delta's *application transactions*:

=============================  ==========================================================================
``aiokcc/<pipeline>``          the number of the last published batch: a batch that is there is not added again
``aiokcc/<pipeline>/attempt``  the number of the driver at work
=============================  ==========================================================================

**The fence.** Delta refuses a commit if another one has written the same application transaction since the snapshot that it
is based on. Who begins commits its attempt number; every later commit carries it too, based on a snapshot in which that number
was still its own. So a driver that was asleep while another began is refused, without a lock and without a clock. (A table that
is not there yet cannot hold a number. There the first commit, which makes the table, decides: it succeeds once.)

A batch without rows makes no commit: repeating it adds nothing either.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, cast

from aiokcc.core.periods import format_time
from aiokcc.errors import CoordinationError, FencedError, UsageError
from aiokcc.spark.batch import Batch
from aiokcc.spark.sinks.arrow import check_installed, check_schema, write_files
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

    The table is made with the first rows. It may be read, compacted and written to by others meanwhile. It has no partition
    columns; the files tell their period, so that a reader who asks for some periods opens only those.

    Args:
        table_uri: a directory (on a cluster one that all share), or a URI that both ``deltalake`` and ``pyarrow.fs`` know.
        storage_options: for ``deltalake``: credentials and the like. The workers' come from their environment.
        files_per_period: into how many files the rows of a period are spread.
        row_group_rows: rows in a row group; a task holds so many in memory.
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
        for what, value in (("files_per_period", files_per_period), ("row_group_rows", row_group_rows)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"{what} is {value!r}; expected a whole number from 1")
        if importlib.util.find_spec("deltalake") is None:
            raise UsageError("DeltaSink writes through the deltalake package: pip install 'aiokcc[delta]'")
        check_installed("DeltaSink")
        self._options = dict(storage_options or {}) or None
        self._parts, self._group_rows = files_per_period, row_group_rows
        self._app, self._prefix, self._attempt = "", "", 0
        self._table: Any = None

    def __repr__(self) -> str:
        return f"DeltaSink({self.uri!r})"

    def describe(self) -> str:
        return f"Delta table {self.uri}"

    # A driver begins

    def begin(self, pipeline: str, attempt: int) -> None:
        self._name(pipeline)
        self._attempt, self._table = attempt, self._load()
        if self._table is not None:
            self._take_over()
        self._remove_leftovers()

    def _name(self, pipeline: str) -> None:
        self._app = f"aiokcc/{pipeline}"
        # A file's name must bear any name of a pipeline.
        self._prefix = f"aiokcc-{hashlib.sha256(pipeline.encode()).hexdigest()[:8]}-"

    def _load(self) -> Any:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self.uri, self._options):
            return None
        table = DeltaTable(self.uri, storage_options=self._options)
        if table.metadata().partition_columns:
            raise UsageError(f"{self.uri} has partition columns; a DeltaSink writes to tables without")
        return table

    def _take_over(self) -> None:
        """Commit our attempt number, unless a greater one, or another driver's equal one, is there."""
        from deltalake.exceptions import CommitFailedError

        for _ in range(100):
            self._table.update_incremental()
            self._refuse_later()
            try:
                self._commit([], {"attempt": self._attempt})
            except CommitFailedError:
                continue  # somebody else begins: look again
            self._refresh()
            return
        raise CoordinationError(f"{self.uri}: a hundred others began while this driver did; something is wrong there")

    def _refuse_later(self) -> None:
        there = self._table.transaction_version(f"{self._app}/attempt")
        if there is not None and there >= self._attempt:
            raise FencedError(
                f"{self.uri}: attempt {there} has begun there, and this is attempt {self._attempt}: a later driver of "
                f"this pipeline is at work, or these are results of an earlier run that the store knows nothing of "
                f"(then from_scratch=True starts again, or choose another table)"
            )

    def _refresh(self) -> None:
        """See our own commit. From here on the snapshot is one in which the attempt is ours, or we are fenced."""
        self._table.update_incremental()
        self._check_ours()

    def _check_ours(self) -> None:
        there = self._table.transaction_version(f"{self._app}/attempt")
        if there != self._attempt:
            raise FencedError(f"{self.uri}: attempt {there} has taken over from attempt {self._attempt}")

    def _commit(self, actions: list[Any], numbers: Mapping[str, int]) -> None:
        self._table.create_write_transaction(
            actions, "append", self._table.schema(), commit_properties=self._properties(numbers)
        )

    def _properties(self, numbers: Mapping[str, int]) -> Any:
        from deltalake import CommitProperties, Transaction

        names = {"attempt": f"{self._app}/attempt", "number": self._app}
        return CommitProperties(
            app_transactions=[Transaction(names[what], number) for what, number in numbers.items()],
            custom_metadata={"aiokcc": json.dumps(dict(numbers))},
        )

    def _published(self) -> int:
        number = None if self._table is None else self._table.transaction_version(self._app)
        return -1 if number is None else int(number)

    def _remove_leftovers(self) -> None:
        """Files of dead attempts. Those of a batch that is published may be needed for older versions: Delta's vacuum knows."""
        if self._local is None or not self._local.is_dir():
            return
        ours = re.compile(re.escape(self._prefix) + r"(\d+)-(\d+)-.*\.parquet")
        last = self._published()
        for path in self._local.iterdir():
            match = ours.fullmatch(path.name)
            if match and int(match[1]) > last and int(match[2]) < self._attempt:
                path.unlink(missing_ok=True)

    # A batch

    def is_published(self, batch: Batch) -> bool:
        return batch.number <= self._published()

    def stage(self, frame: DataFrame, batch: Batch) -> object:
        check_schema(frame)
        schema = _delta_schema(frame.schema.json())
        self._check_columns(schema)
        if self._local is not None:
            self._local.mkdir(parents=True, exist_ok=True)
        files = write_files(
            frame,
            batch,
            self.uri,
            parts=self._parts,
            compression="zstd",
            group_rows=self._group_rows,
            prefix=f"{self._prefix}{batch.number}-{self._attempt}-{secrets.token_hex(4)}-",
        )
        return _Staged(schema=schema, files=[(file.period, file.name, file.rows, file.size) for file in files])

    def _check_columns(self, schema: str) -> None:
        if self._table is None:
            return
        there = {field["name"]: field["type"] for field in json.loads(self._table.schema().to_json())["fields"]}
        for field in json.loads(schema)["fields"]:
            if field["name"] not in there:
                raise UsageError(f"{self.uri} has no column {field['name']!r}; its columns are {', '.join(there)}")
            if _types(field["type"]) != _types(there[field["name"]]):
                raise UsageError(
                    f"{self.uri} has the column {field['name']!r} as {json.dumps(there[field['name']])}, "
                    f"and the result as {json.dumps(field['type'])}"
                )

    def publish(self, batch: Batch, staged: object | None) -> None:
        from deltalake import Schema
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import create_table_with_add_actions

        if staged is None or self.is_published(batch):
            return
        result = cast("_Staged", staged)
        actions = [_action(*file) for file in result["files"]]
        if not actions:
            return
        numbers = {"attempt": self._attempt, "number": batch.number}
        if self._table is None:
            try:
                create_table_with_add_actions(
                    self.uri,
                    Schema.from_json(result["schema"]),
                    actions,
                    storage_options=self._options,
                    commit_properties=self._properties(numbers),
                )
            except DeltaError:
                self._table = self._load()
                if self._table is None:
                    raise
            else:
                self._table = self._load()
                self._refresh()
                return
            # It was made since we began: by a predecessor that we can fence out now, by a successor, or by somebody else.
            if self._is_ours(batch):
                return
            self._take_over()
            if self.is_published(batch):
                return
            self._check_columns(result["schema"])
        self._check_ours()  # else the snapshot is one of the successor's, and Delta would take what is based on it
        try:
            self._commit(actions, numbers)
        except CommitFailedError as error:
            self._table.update_incremental()
            if self._is_ours(batch):
                return  # done, though the answer was lost
            raise FencedError(
                f"{self.uri}: a driver that began after attempt {self._attempt} has taken over"
            ) from error
        self._refresh()

    def _is_ours(self, batch: Batch) -> bool:
        attempt = self._table.transaction_version(f"{self._app}/attempt")
        return attempt == self._attempt and self._published() == batch.number

    # From nothing

    def last_attempt(self, pipeline: str) -> int:
        self._name(pipeline)
        table = self._load()
        return 0 if table is None else int(table.transaction_version(f"{self._app}/attempt") or 0)

    def reset(self, pipeline: str, attempt: int) -> None:
        """Take our files out of the table, in one commit. UsageError if it holds others: they cannot be told apart.

        A commit by a later attempt, which also names its number, conflicts with this one: Delta takes the first of them.
        """
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import RemoveAction

        self._name(pipeline)
        self._attempt, self._table = attempt, self._load()
        if self._table is None:
            return
        self._refuse_later()
        paths = self._table.get_add_actions(flatten=True)
        names, sizes = paths["path"].to_pylist(), paths["size_bytes"].to_pylist()
        foreign = [name for name in names if not name.startswith(self._prefix)]
        if foreign:
            raise UsageError(
                f"{self.uri} holds {foreign[0]}, which this pipeline has not written (or which is made of several files by "
                f"compaction); empty the table by hand, or choose another"
            )
        now = int(time.time() * 1000)
        gone = [RemoveAction(name, True, now, size, {}) for name, size in zip(names, sizes, strict=True)]
        try:
            self._commit(gone, {"attempt": attempt - 1, "number": -1})  # ours follows, when we begin
        except CommitFailedError as error:
            raise FencedError(f"{self.uri}: a driver that began after attempt {attempt} has taken over") from error
        self._table = None


def _action(period: int, name: str, rows: int, size: int) -> Any:
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


def _delta_schema(schema: str) -> str:
    """Spark's JSON of a schema is Delta's; every column may be null, and what Spark notes beside it stays out."""
    content = json.loads(schema)
    for field in content["fields"]:
        field["nullable"], field["metadata"] = True, {}
    return json.dumps(content)


def _types(kind: Any) -> Any:
    """A type without whether its parts may be null."""
    if isinstance(kind, dict):
        left_out = ("nullable", "containsNull", "valueContainsNull", "metadata")
        return {key: _types(value) for key, value in kind.items() if key not in left_out}
    return [_types(value) for value in kind] if isinstance(kind, list) else kind
