"""A Delta table as a sink, through the ``deltalake`` package: exactly once, without Delta's jars in Spark.

Spark's workers write Parquet files into the table's directory, where no reader looks for files that no commit names. One commit
then names them all. It also carries some of Delta's *application transactions*:

=============================  ==========================================================================
``aiokcc/<pipeline>``          the number of the last published batch: a batch that is there is not added again
``aiokcc/<pipeline>/attempt``  the number of the driver at work
``aiokcc/<pipeline>/run``      the run that these are results of, as a number
``aiokcc/<pipeline>/batch``    a digest of the last published batch: its periods, and the offsets they were read from
=============================  ==========================================================================

**The fence.** Delta refuses a commit if another one has written the same application transaction since the snapshot that it
is based on. Who begins commits its attempt number; every later commit carries it too, based on a snapshot in which that number
was still its own. So a driver that was asleep while another began is refused, without a lock and without a clock.

A table that does not exist cannot hold a number. So the first driver that stages a batch creates the table, empty and with its
numbers, before it writes any file. The other drivers find the table then, and take over there or are refused. Files of dead
attempts are removed only after the table holds our attempt: from then on no commit can name them.

**The comparison.** A name can be used again under another root, where batches are numbered from 0 once more. Then numbers say
nothing, so the run is compared first, before anything is written; and under a number that is there, the batch's digest.

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
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, cast

from aiokcc.core.masking import mask_url
from aiokcc.errors import CoordinationError, FencedError, PipelineMismatchError, UsageError
from aiokcc.spark.batch import Batch
from aiokcc.spark.sinks.arrow import check_installed, check_schema, write_files
from aiokcc.spark.sinks.delta_files import action, content_of, delta_schema, digest, shortened, side, types
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

    The table is created when the first batch with records is computed. It may be read, compacted and written to by others
    meanwhile. It has no partition columns; the files tell their period, so that a reader who asks for some periods opens
    only those.

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
        self._shown = mask_url(self.uri) if self._local is None else self.uri
        """The address without credentials: for errors, and for the description, which everybody can read in the store."""
        for what, value in (("files_per_period", files_per_period), ("row_group_rows", row_group_rows)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"{what} is {value!r}; expected a whole number from 1")
        if importlib.util.find_spec("deltalake") is None:
            raise UsageError("DeltaSink writes through the deltalake package: pip install 'aiokcc[delta]'")
        check_installed("DeltaSink")
        self._options = dict(storage_options or {}) or None
        self._parts, self._group_rows = files_per_period, row_group_rows
        self._app, self._prefix, self._attempt = "", "", 0
        self._run, self._where = "", ""
        self._committed: frozenset[str] = frozenset()
        """The files of our last commit."""
        self._table: Any = None

    def __repr__(self) -> str:
        return f"DeltaSink({self._shown!r})"

    def describe(self) -> str:
        return f"Delta table {self._shown}"

    def identify(self, run: str, where: str) -> None:
        self._run, self._where = run, where

    # A driver begins

    def check_published(self, pipeline: str, number: int) -> None:
        if number < 0:
            return
        self._name(pipeline)
        self._table = self._load()
        if self._table is not None:
            self._refuse_other_run()
        there = self._published()
        if there >= number:
            return
        found = (
            "does not exist"
            if self._table is None
            else "holds no batch of it"
            if there < 0
            else f"ends at batch {there}"
        )
        raise PipelineMismatchError(
            f"the store has recorded batch {number} of {side(self._app, self._where, self._run)} as published, and the table "
            f"{self._shown} {found}: it was dropped, or replaced; put it back, or give from_scratch=True to compute all of it "
            f"again"
        )

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
            raise UsageError(f"{self._shown} has partition columns; a DeltaSink writes to tables without")
        return table

    def _take_over(self) -> None:
        """Commit our attempt number, unless a greater one, or another driver's equal one, is there."""
        from deltalake.exceptions import CommitFailedError

        for _ in range(100):
            self._table.update_incremental()
            self._refuse_other_run()
            self._refuse_later()
            try:
                self._commit([], {"attempt": self._attempt, **self._run_number()})
            except CommitFailedError:
                continue  # somebody else begins: look again
            self._refresh()
            return
        raise CoordinationError(
            f"{self._shown}: a hundred others began while this driver did; something is wrong there"
        )

    def _create(self, schema: str) -> None:
        """Create the empty table with our numbers; take over if it was created since we began, by whomever."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        if self._local is not None:
            self._local.mkdir(parents=True, exist_ok=True)
        numbers = {"attempt": self._attempt, **self._run_number()}
        try:
            DeltaTable.create(
                self.uri,
                Schema.from_json(schema),
                mode="error",
                storage_options=self._options,
                # With retries, a second creation is not refused but becomes the table's next version.
                commit_properties=self._properties(numbers, retries=0),
            )
        except DeltaError:
            if (table := self._load()) is None:
                raise
        else:
            table = self._load()
        self._table = table
        try:
            if not self._holds_our_numbers():
                self._take_over()
        except Exception:
            self._table = None  # whoever tries again is refused again
            raise
        self._remove_leftovers()

    def _run_number(self) -> dict[str, int]:
        """Return the run as a number that Delta can hold; nothing if we were not told which it is."""
        return {"run": digest(self._run)} if self._run else {}

    def _refuse_other_run(self) -> None:
        there = self._table.transaction_version(f"{self._app}/run")
        if there is None or not self._run or there == digest(self._run):
            return
        theirs = self._told(lambda told: "root" in told)
        raise PipelineMismatchError(
            f"{self._shown} holds the results of {side(self._app, theirs.get('root'), theirs.get('run'))}, up to batch "
            f"{self._published()}, and this is {side(self._app, self._where, self._run)}; choose another table, or give "
            f"from_scratch=True to replace them"
        )

    def _refuse_other_batch(self, batch: Batch) -> None:
        """Raise PipelineMismatchError if what is published under this batch's number, or a later one, is not this batch."""
        self._check_ours()
        published = self._published()
        there = self._table.transaction_version(f"{self._app}/batch")
        if published == batch.number and (there is None or there == digest(content_of(batch))):
            return
        theirs = self._told(lambda told: told.get("number") == published)
        raise PipelineMismatchError(
            f"{self._shown} holds batch {published} of {self._app} with {theirs.get('content', 'other periods or offsets')}, "
            f"and the store has batch {batch.number} with {shortened(content_of(batch))}: these are results of another run; "
            f"choose another table, or give from_scratch=True to replace them"
        )

    def _told(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return what our latest commit of this kind says about itself, for people; nothing if Delta has forgotten it."""
        for entry in self._table.history():
            told = json.loads(entry.get("aiokcc", "{}"))
            if told.get("pipeline") == self._app and wanted(told):
                return dict(told)
        return {}

    def _refuse_later(self) -> None:
        there = self._table.transaction_version(f"{self._app}/attempt")
        if there is not None and there >= self._attempt:
            raise FencedError(
                f"{self._shown}: attempt {there} has begun there, and this is attempt {self._attempt}: a later driver of "
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
            raise FencedError(f"{self._shown}: attempt {there} has taken over from attempt {self._attempt}")
        self._refuse_other_run()

    def _holds_our_numbers(self) -> bool:
        """Return whether the last commit of this pipeline was made by this driver: attempts are unique in a run."""
        attempt = self._table.transaction_version(f"{self._app}/attempt")
        run = self._table.transaction_version(f"{self._app}/run")
        return bool(attempt == self._attempt and run == self._run_number().get("run"))

    def _commit(self, actions: list[Any], numbers: Mapping[str, int], content: str = "") -> None:
        self._table.create_write_transaction(
            actions, "append", self._table.schema(), commit_properties=self._properties(numbers, content)
        )

    def _properties(self, numbers: Mapping[str, int], content: str = "", retries: int | None = None) -> Any:
        from deltalake import CommitProperties, Transaction

        names = {what: self._app if what == "number" else f"{self._app}/{what}" for what in numbers}
        told = {"pipeline": self._app, **numbers}
        if self._run:
            told |= {"run": self._run, "root": self._where}
        if content:
            told["content"] = shortened(content)
        return CommitProperties(
            app_transactions=[Transaction(names[what], number) for what, number in numbers.items()],
            custom_metadata={"aiokcc": json.dumps(told)},
            max_commit_retries=retries,
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
        if batch.number > self._published():
            return False
        self._refuse_other_batch(batch)
        return True

    def stage(self, frame: DataFrame, batch: Batch) -> object:
        check_schema(frame)
        schema = delta_schema(frame.schema.json())
        if self._table is None:
            self._create(schema)
        self._check_columns(schema)
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
        there = {field["name"]: field["type"] for field in json.loads(self._table.schema().to_json())["fields"]}
        for field in json.loads(schema)["fields"]:
            if field["name"] not in there:
                raise UsageError(f"{self._shown} has no column {field['name']!r}; its columns are {', '.join(there)}")
            if types(field["type"]) != types(there[field["name"]]):
                raise UsageError(
                    f"{self._shown} has the column {field['name']!r} as {json.dumps(there[field['name']])}, "
                    f"and the result as {json.dumps(field['type'])}"
                )

    def publish(self, batch: Batch, staged: object | None) -> None:
        if staged is None:
            return
        result = cast("_Staged", staged)
        names = frozenset(name for _, name, _, _ in result["files"])
        try:
            is_new = not self.is_published(batch)
            if is_new:
                self._publish(batch, result)
        except PipelineMismatchError:
            self._remove(names)
            raise
        if is_new:
            self._committed = names
        else:
            self._remove(names - self._committed)

    def _remove(self, names: frozenset[str]) -> None:
        """Remove files that no commit names. Where the table is not a directory, Delta's vacuum does."""
        if self._local is not None:
            for name in names:
                (self._local / name).unlink(missing_ok=True)

    def _publish(self, batch: Batch, result: _Staged) -> None:
        """Commit the files and the batch's number; the number also where there is no file."""
        from deltalake.exceptions import CommitFailedError

        content = content_of(batch)
        numbers = {
            "attempt": self._attempt,
            "number": batch.number,
            "batch": digest(content),
            **self._run_number(),
        }
        self._check_ours()  # else the snapshot is one of the successor's, and Delta would take what is based on it
        try:
            self._commit([action(*file) for file in result["files"]], numbers, content)
        except CommitFailedError as error:
            self._table.update_incremental()
            if self._is_ours(batch):
                return  # done, though the answer was lost
            raise FencedError(
                f"{self._shown}: a driver that began after attempt {self._attempt} has taken over"
            ) from error
        self._refresh()

    def _is_ours(self, batch: Batch) -> bool:
        there = self._table.transaction_version(f"{self._app}/batch")
        is_this_batch = self._published() == batch.number and there == digest(content_of(batch))
        return is_this_batch and self._holds_our_numbers()

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
                f"{self._shown} holds {foreign[0]}, which this pipeline has not written (or which is made of several files by "
                f"compaction); empty the table by hand, or choose another"
            )
        now = int(time.time() * 1000)
        gone = [RemoveAction(name, True, now, size, {}) for name, size in zip(names, sizes, strict=True)]
        try:
            # Our attempt follows, when we begin.
            self._commit(gone, {"attempt": attempt - 1, "number": -1, **self._run_number()})
        except CommitFailedError as error:
            raise FencedError(f"{self._shown}: a driver that began after attempt {attempt} has taken over") from error
        self._table = None
