"""A Delta table as one driver of a pipeline sees it: the numbers in its commits, which fence drivers and identify results.

Every commit carries some of Delta's *application transactions*:

=============================  ==========================================================================
``aiokcc/<pipeline>``          the number of the last published batch: a batch that is there is not added again
``aiokcc/<pipeline>/attempt``  the number of the driver at work
``aiokcc/<pipeline>/run``      the run that the results belong to, as a number
``aiokcc/<pipeline>/batch``    a digest of the last published batch: its periods, and the offsets they were read from
``aiokcc/<pipeline>/state``    the number of the state after the last published batch, if the pipeline carries state; else 0
``aiokcc/<pipeline>/restate``  the number of the last restatement, and as ``…/restated-by`` the attempt that published it
=============================  ==========================================================================

**The fence.** Delta refuses a commit if another one has written the same application transaction since the snapshot that it
is based on. A driver that begins commits its attempt number. Each of its later commits carries the number too, and is based on
a snapshot that holds this number. So a driver that was suspended while another one began is refused, without a lock and without
a clock.

A table that does not exist cannot hold a number. So the first driver that stages a batch creates the table, empty and with its
numbers, before it writes any file. The other drivers then find the table, and take over there or are refused.

**The comparison.** A name can be used again under another root, where batches are numbered from 0 once more. Numbers alone do
not show that. So the run is compared first, before anything is written; and if the number of a batch is already published, the
digest of the batch is compared.

**The same table.** Somebody may drop the table while a driver runs, and make another one in its place. Delta would accept a
commit there that is based on a snapshot of the old one. So every commit first looks whether the table is still the same one.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from aiokcc.core.periods import format_time
from aiokcc.errors import CoordinationError, FencedError, PipelineMismatchError, UsageError
from aiokcc.spark.batch import Batch
from aiokcc.spark.function_version import FunctionVersion
from aiokcc.spark.sinks.columns import added_fields
from aiokcc.spark.sinks.delta_identity import TableIdentity
from aiokcc.spark.sinks.delta_replace import actions_to_replace

__all__ = ["PipelineTable"]

_MOST_SHOWN: Final = 500


class PipelineTable:
    """The table of one pipeline, which need not exist yet."""

    def __init__(self, uri: str, shown: str, options: dict[str, str] | None) -> None:
        self._uri, self._shown, self._options = uri, shown, options
        self._app = ""
        self._table: Any = None
        self._identity: TableIdentity | None = None
        self.attempt = 0
        self.function = FunctionVersion()
        """The function that computes the batches."""
        self.run = ""
        """The run that the results belong to; empty if it is not known."""
        self.where = ""
        """The root of that run in the store."""

    @property
    def exists(self) -> bool:
        """True if the table existed when it was opened, or was created since."""
        return self._table is not None

    @property
    def published(self) -> int:
        """The number of the last published batch with records; -1 if there is none."""
        number = None if self._table is None else self._table.transaction_version(self._app)
        return -1 if number is None else int(number)

    @property
    def state(self) -> int:
        """The number of the state after the last published batch; 0 if there is none."""
        return 0 if self._table is None else int(self._table.transaction_version(f"{self._app}/state") or 0)

    @property
    def schema(self) -> str:
        """The columns of the table, as Delta writes them."""
        return str(self._table.schema().to_json())

    @property
    def is_without_rows(self) -> bool:
        """True if the table has no file."""
        return not self._table.file_uris()

    # A driver begins

    def open(self, pipeline: str, attempt: int) -> None:
        """Load the table, if there is one, for this attempt."""
        self._app, self.attempt = f"aiokcc/{pipeline}", attempt
        self._use(self._load())

    def _use(self, table: Any) -> None:
        self._table = table
        self._identity = None if table is None else TableIdentity(self._uri, self._shown, self._options, table)

    def check_same(self) -> None:
        """Raise PipelineMismatchError if the table was dropped since it was opened, or replaced by another one."""
        if self._identity is not None:
            self._identity.check()

    def _follow(self) -> None:
        """Load what was committed since. Raise PipelineMismatchError if that is another table."""
        self.check_same()
        self._table.update_incremental()
        assert self._identity is not None
        self._identity.remember()

    def _load(self) -> Any:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self._uri, self._options):
            return None
        table = DeltaTable(self._uri, storage_options=self._options)
        if table.metadata().partition_columns:
            raise UsageError(f"{self._shown} has partition columns; a DeltaSink writes to tables without them")
        return table

    def check_published(self, pipeline: str, number: int) -> None:
        """Raise PipelineMismatchError if this batch, which the store has recorded as published, is not in the table."""
        self.open(pipeline, self.attempt)
        if self._table is not None:
            self._refuse_other_run()
        there = self.published
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
            f"the store has recorded batch {number} of {_name_run(self._app, self.where, self.run)} as published, and the "
            f"table {self._shown} {found}: it was dropped, or replaced; put it back, or give from_scratch=True to compute all "
            f"of it again"
        )

    def take_over(self) -> None:
        """Commit our attempt number. Raise FencedError if a greater one, or another driver's equal one, is there."""
        from deltalake.exceptions import CommitFailedError

        for _ in range(100):
            self._follow()
            self._refuse_foreign()
            self._refuse_other_run()
            self._refuse_later()
            try:
                self._commit([], {"attempt": self.attempt, **self._run_number()})
            except CommitFailedError:
                continue  # another driver begins as well: look again
            self._refresh()
            return
        raise CoordinationError(
            f"{self._shown}: a hundred other commits came before the one by which this driver begins; find out who writes there"
        )

    def create(self, schema: str) -> None:
        """Create the empty table with our numbers. Take over if another driver has created it since we began."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        numbers = {"attempt": self.attempt, **self._run_number()}
        try:
            DeltaTable.create(
                self._uri,
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
        self._use(table)
        try:
            if not self._holds_our_numbers():
                self.take_over()
        except Exception:
            self._use(None)  # so that the next try is refused, too
            raise

    # A batch

    def is_published(self, batch: Batch) -> bool:
        """Return whether the batch is in the table. Raise PipelineMismatchError if its number belongs to another batch."""
        if batch.number > self.published:
            return False
        self._refuse_other_batch(batch)
        return True

    def add(self, batch: Batch, actions: list[Any], state: int = 0, rows: int | None = None) -> None:
        """Commit the files of a batch, its number, and that of the state after it; the numbers also if there is no file.

        ``rows`` are recorded for the history.

        Raise FencedError if another driver has taken over.
        """
        from deltalake.exceptions import CommitFailedError

        content = _content_of(batch)
        numbers = {"attempt": self.attempt, "number": batch.number, "batch": _digest(content), **self._run_number()}
        if state:
            numbers["state"] = state
        self._check_ours()  # Delta would accept a commit that is based on a snapshot of the successor's
        try:
            self._commit(actions, numbers, content, rows)
        except CommitFailedError as error:
            self._follow()
            if self.was_added_by_us(batch):
                return  # only the reply was lost
            raise self._fenced() from error
        self._refresh()

    def change_columns(self, schema: str, *, replace: bool) -> None:
        """Give the table these columns, in a commit of its own before that of the batch: Delta's writer has none for both.

        New columns are added, and readers see them as null; with ``replace`` the table, which has no rows, gets these and no
        others. Nothing is committed if the table has them already. Raise FencedError if another driver has taken over.
        """
        from deltalake import Schema
        from deltalake.exceptions import CommitFailedError

        added = {field["name"] for field in added_fields(self.schema, schema)}
        if not added and not (replace and added_fields(schema, self.schema)):
            return
        self.check_same()
        self._check_ours()
        new, properties = Schema.from_json(schema), self._properties({"attempt": self.attempt, **self._run_number()})
        try:
            if replace and self.is_without_rows:
                self._table.create_write_transaction([], "overwrite", new, commit_properties=properties)
            else:
                fields = [field for field in new.fields if field.name in added]
                self._table.alter.add_columns(fields, commit_properties=properties)
        except CommitFailedError as error:
            raise self._fenced() from error
        self._refresh()

    def was_added_by_us(self, batch: Batch) -> bool:
        """Return whether the table's last batch is this one and was committed by this driver."""
        there = self._table.transaction_version(f"{self._app}/batch")
        is_this_batch = self.published == batch.number and there == _digest(_content_of(batch))
        return is_this_batch and self._holds_our_numbers()

    # Periods that are computed again

    @property
    def restated(self) -> tuple[int, int]:
        """The number of the last restatement and the attempt that published it; -1 and 0 if there is none."""
        if self._table is None:
            return -1, 0
        number = self._table.transaction_version(f"{self._app}/restate")
        attempt = self._table.transaction_version(f"{self._app}/restated-by")
        return (-1, 0) if number is None or attempt is None or number < 0 else (int(number), int(attempt))

    def replace(self, batch: Batch, actions: Sequence[Any], prefix: str, rows: int | None = None) -> list[str]:
        """Replace the periods between the bounds of the batch by the added files, in one commit.

        Return the names of files that were written and are in no commit. Raise FencedError if another driver has taken over.
        Others may compact the table meanwhile: then the commit is made again, from what the table has become.
        """
        from deltalake.exceptions import CommitFailedError

        assert batch.replaces is not None
        numbers = {
            "attempt": self.attempt,
            "restate": batch.number,
            "restated-by": self.attempt,
            **self._run_number(),
        }
        unused: list[str] = []
        for _ in range(100):
            self._follow()
            self._check_ours()
            if self.restated == (batch.number, self.attempt):
                return unused  # only the reply was lost, or it is the second call
            removals, written = actions_to_replace(
                self._table, self._uri, self._options, self._shown, batch.replaces, prefix
            )
            try:
                self._commit([*removals, *actions], numbers, _content_of(batch), rows)
            except CommitFailedError:
                unused += written
                continue
            self._refresh()
            return unused
        raise CoordinationError(
            f"{self._shown}: a hundred other commits came before this one; find out who writes there"
        )

    # From scratch

    def last_attempt(self, pipeline: str) -> int:
        """Return the greatest attempt that has begun in the table; 0 if there is none."""
        self._app = f"aiokcc/{pipeline}"
        table = self._load()
        return 0 if table is None else int(table.transaction_version(f"{self._app}/attempt") or 0)

    def check_reset(self, prefix: str) -> dict[str, int]:
        """Return the files that a reset removes, with their sizes. Raise an error if the table has files of others."""
        if self._table is None:
            return {}
        files = self._table.get_add_actions(flatten=True)
        found = dict(zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True))
        self._refuse_foreign()  # before our number is in the table: another pipeline may have no rows yet
        foreign = next((name for name in found if not name.startswith(prefix)), None)
        if foreign is not None:
            raise UsageError(
                f"{self._shown} holds {foreign}, which this pipeline has not written (or which is made of several files by "
                f"compaction); empty the table by hand, or choose another"
            )
        return found

    def reset(self, prefix: str) -> None:
        """Remove the files whose names start with ``prefix`` from the open table, in one commit.

        Raise UsageError if the table has other files: it cannot be known which of their rows are ours. Raise FencedError if a
        later attempt has begun: its commit writes the attempt number as well, so Delta accepts only the first of the two.
        """
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import RemoveAction

        if self._table is None:
            return
        self._refuse_later()
        files = self.check_reset(prefix)
        now = int(time.time() * 1000)
        removals = [RemoveAction(name, True, now, size, {}) for name, size in files.items()]
        try:
            # Our own attempt number is committed later, by take_over.
            reset = {"state": 0} if self.state else {}
            reset |= {} if self.restated[0] < 0 else {"restate": -1}
            self._commit(removals, {"attempt": self.attempt - 1, "number": -1, **reset, **self._run_number()})
        except CommitFailedError as error:
            raise self._fenced() from error
        self._use(None)

    # Refusals

    def _refuse_foreign(self) -> None:
        """Raise PipelineMismatchError if this pipeline has never begun in the table, and there are rows or another pipeline.

        The other one may have begun a moment ago, or have had no rows yet.
        """
        if self._table.transaction_version(f"{self._app}/attempt") is not None:
            return
        entries = [json.loads(entry.get("aiokcc", "{}")) for entry in self._table.history()]
        theirs = next((entry for entry in entries if "pipeline" in entry), None)
        if theirs is None and not self._table.file_uris():
            return
        who = (
            "another program"
            if theirs is None
            else _name_run(theirs["pipeline"], theirs.get("root"), theirs.get("run"))
        )
        raise PipelineMismatchError(
            f"{self._shown} holds the results of {who}, and this is {_name_run(self._app, self.where, self.run)}, which has "
            f"never written there; choose a table of its own"
        )

    def _refuse_other_run(self) -> None:
        there = self._table.transaction_version(f"{self._app}/run")
        if there is None or not self.run or there == _digest(self.run):
            return
        theirs = self._find_metadata(lambda metadata: "root" in metadata)
        raise PipelineMismatchError(
            f"{self._shown} holds the results of {_name_run(self._app, theirs.get('root'), theirs.get('run'))}, up to batch "
            f"{self.published}, and this is {_name_run(self._app, self.where, self.run)}; choose another table, or give "
            f"from_scratch=True to replace them"
        )

    def _refuse_other_batch(self, batch: Batch) -> None:
        """Raise PipelineMismatchError if what is published under this batch's number, or a later one, is not this batch."""
        self._check_ours()
        published = self.published
        there = self._table.transaction_version(f"{self._app}/batch")
        if published == batch.number and (there is None or there == _digest(_content_of(batch))):
            return
        theirs = self._find_metadata(lambda metadata: metadata.get("number") == published)
        raise PipelineMismatchError(
            f"{self._shown} holds batch {published} of {self._app} with {theirs.get('content', 'other periods or offsets')}, "
            f"and the store has batch {batch.number} with {_shorten(_content_of(batch))}: these are results of another run; "
            f"choose another table, or give from_scratch=True to replace them"
        )

    def _refuse_later(self) -> None:
        there = self._table.transaction_version(f"{self._app}/attempt")
        if there is not None and there >= self.attempt:
            raise FencedError(
                f"{self._shown}: attempt {there} has begun there, and this is attempt {self.attempt}: a later driver of "
                f"this pipeline is at work, or these are results of an earlier run that the store knows nothing of "
                f"(then from_scratch=True starts again, or choose another table)"
            )

    def _check_ours(self) -> None:
        """Raise FencedError or PipelineMismatchError if another driver has taken over."""
        there = self._table.transaction_version(f"{self._app}/attempt")
        if there != self.attempt:
            raise FencedError(f"{self._shown}: attempt {there} has taken over from attempt {self.attempt}")
        self._refuse_other_run()

    def _fenced(self) -> FencedError:
        return FencedError(f"{self._shown}: a driver that began after attempt {self.attempt} has taken over")

    # Commits

    def _refresh(self) -> None:
        """Load our own commit. After that the snapshot holds our attempt number; otherwise raise FencedError."""
        self._follow()
        self._check_ours()

    def _holds_our_numbers(self) -> bool:
        """Return whether the last commit of this pipeline was made by this driver: attempts are unique in a run."""
        attempt = self._table.transaction_version(f"{self._app}/attempt")
        run = self._table.transaction_version(f"{self._app}/run")
        return bool(attempt == self.attempt and run == self._run_number().get("run"))

    def _run_number(self) -> dict[str, int]:
        """Return the run as a number that Delta can hold; nothing if the run is not known."""
        return {"run": _digest(self.run)} if self.run else {}

    def _commit(
        self, actions: Sequence[Any], numbers: Mapping[str, int], content: str = "", rows: int | None = None
    ) -> None:
        self.check_same()
        self._table.create_write_transaction(
            actions, "append", self._table.schema(), commit_properties=self._properties(numbers, content, rows)
        )

    def _properties(
        self, numbers: Mapping[str, int], content: str = "", rows: int | None = None, retries: int | None = None
    ) -> Any:
        from deltalake import CommitProperties, Transaction

        names = {what: self._app if what == "number" else f"{self._app}/{what}" for what in numbers}
        metadata = {"pipeline": self._app, **numbers}
        if self.run:
            metadata |= {"run": self.run, "root": self.where}
        if content:
            metadata["content"] = _shorten(content)
            metadata |= {name: value for name, value in asdict(self.function).items() if value is not None}
        if rows is not None:
            metadata["rows"] = rows
        return CommitProperties(
            app_transactions=[Transaction(names[what], number) for what, number in numbers.items()],
            custom_metadata={"aiokcc": json.dumps(metadata)},
            max_commit_retries=retries,
        )

    def _find_metadata(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the metadata of this pipeline's latest commit of a kind, for error messages; empty if Delta has deleted it."""
        for entry in self._table.history():
            metadata = json.loads(entry.get("aiokcc", "{}"))
            if metadata.get("pipeline") == self._app and wanted(metadata):
                return dict(metadata)
        return {}


def _digest(text: str) -> int:
    """Return a digest as a number that fits into the version of an application transaction."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])


def _content_of(batch: Batch) -> str:
    """Return the periods of a batch and the offsets that they are read from, for people and to be compared."""
    periods = [
        f"{format_time(period.start)} to {format_time(period.end)}: "
        + (" ".join(f"{p} {first}-{last}" for p, (first, last) in sorted(period.ranges.items())) or "nothing")
        for period in batch.periods
    ]
    return "; ".join(periods)


def _shorten(content: str) -> str:
    return content if len(content) <= _MOST_SHOWN else f"{content[:_MOST_SHOWN]}…"


def _name_run(app: str, root: str | None, run: str | None) -> str:
    """Return the words for a run of a pipeline in an error message."""
    name = f"the pipeline {app.removeprefix('aiokcc/')!r}"
    if root is None and run is None:
        return name
    return f"{name} under {root} (run {run[:8]})" if root and run else f"another run of {name}"
