"""The states of a pipeline beside a Delta table: in ``_aiokcc`` below its directory, where no reader of Delta looks.

::

    out/revenue/_aiokcc/5a2f10cc-12-3-01b2c3d4e5f607/state.json             batch 12, as attempt 3 wrote it
    out/revenue/_aiokcc/5a2f10cc-12-3-01b2c3d4e5f607/state-….parquet

The last part of the name is a random number. The commit of the batch carries it as the application transaction
``aiokcc/<pipeline>/state``, so the state is published by the same commit, under the same fence, and Delta keeps the number when
it deletes old commits. A directory that no commit has named is a left-over.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiokcc.errors import CorruptNodeError, PipelineMismatchError
from aiokcc.spark.sinks.arrow import write_state
from aiokcc.spark.sinks.data_file import DataFile
from aiokcc.spark.sinks.disk import Disk
from aiokcc.spark.sinks.states import PublishedState, States

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from aiokcc.spark.batch import Batch

__all__ = ["DeltaStates"]

HOME: Final = "_aiokcc"
_NAME: Final = re.compile(r"([0-9a-f]{8})-(\d+)-(\d+)-([0-9a-f]{14})")


class DeltaStates:
    """The states of one pipeline below a table's directory."""

    def __init__(self, table: Path, digest: str) -> None:
        self._table, self._home, self._digest = table, table / HOME, digest
        self._disk = Disk()

    def read(self, number: int) -> States:
        """Return the states that were published under this number. Raise PipelineMismatchError if they are gone."""
        found = next((name for name, _, _, mine in self._names() if mine == number), None)
        path = self._home / (found or "") / "state.json"
        try:
            data = path.read_bytes()
        except OSError as error:
            raise PipelineMismatchError(
                f"{self._table} was published with a state, and {self._home} does not have it any more ({error.strerror}): "
                f"put it back, or give from_scratch=True to compute all of it again"
            ) from error
        try:
            return States.from_json(json.loads(data)["state"])
        except (ValueError, KeyError, TypeError):
            raise CorruptNodeError(str(path), data, "the states of a pipeline as JSON") from None

    def stage(
        self, state: DataFrame, batch: Batch, attempt: int, before: States | None, keep: int, *, parts: int, rows: int
    ) -> int:
        """Write the state after a batch, and return the number under which a commit publishes it."""
        number = int.from_bytes(secrets.token_bytes(7)) or 1
        name = f"{self._digest}-{batch.number}-{attempt}-{number:014x}"
        place = self._home / name
        self._disk.ensure_directory(self._home)
        self._disk.make_directory(place)
        files = write_state(state, str(place), parts=parts, group_rows=rows)
        inside = f"{HOME}/{name}"
        new = PublishedState(
            batch.number,
            batch.end,
            tuple(DataFile(f"{inside}/{file.name}", file.rows, file.size, file.sha256) for file in files),
            inside,
        )
        states = (before or States(state.schema.json())).added(new, keep)
        content = {"pipeline": batch.pipeline, "state": replace(states, dropped=()).to_json()}
        self._disk.write(place / "state.json", json.dumps(content).encode() + b"\n")
        for path in (place, self._home, self._table):
            self._disk.sync(path)
        return number

    def remove_leftovers(self, published: int, attempt: int, states: States | None) -> None:
        """Remove what smaller attempts staged past the published batch, and what is not kept of those up to it."""
        kept = {state.place for state in states.kept} if states is not None else set()
        for name, batch, theirs, _ in self._names():
            if theirs < attempt if batch > published else f"{HOME}/{name}" not in kept:
                self._disk.remove_tree(self._home / name)

    def _names(self) -> list[tuple[str, int, int, int]]:
        """Return the name, the batch, the attempt and the number of each directory of this pipeline."""
        try:
            names = os.listdir(self._home)  # noqa: PTH208 - names
        except OSError:
            return []
        found = [match for match in map(_NAME.fullmatch, names) if match and match[1] == self._digest]
        return [(match[0], int(match[2]), int(match[3]), int(match[4], 16)) for match in found]
