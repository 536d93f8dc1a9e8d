"""The record of a Delta table's batches: periods, offsets and late records, in files below ``_aiokcc`` beside its own files.

Delta's own log keeps commits for a month by default, and has no place for offsets. So each batch has a file, in the form of a
manifest without files, written right before its commit. Its content follows from the batch, which was decided before; so it
does not matter which driver wrote it, or whether its commit failed: the store says which batches are published.

A restatement writes the list of all restatements up to it, under its number and attempt, right before its commit. The commit
holds both numbers, so the list of one that failed is never read. Delta's vacuum leaves names that start with ``_`` alone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from aiokcc.errors import CoordinationError, UsageError
from aiokcc.spark.published import Published
from aiokcc.spark.sinks.delta_storage import read_bytes, write_bytes
from aiokcc.spark.sinks.manifest import Manifest

__all__ = ["BatchRecord"]

_HOME = "_aiokcc"
_LISTS = "restates-"


class BatchRecord:
    """The files of one run of a pipeline."""

    def __init__(self, uri: str, local: Path | None, options: Mapping[str, str] | None = None) -> None:
        self._uri, self._local, self._options = uri, local, options
        self.run = "unknown"

    def write_batch(self, manifest: Manifest) -> None:
        """Write the record of a batch, or replace it by the same."""
        self._write(f"{manifest.number:08d}.json", manifest.encode())

    def write_restates(self, restates: Sequence[Manifest]) -> None:
        """Write all restatements up to the last of these, under its number and attempt."""
        last = restates[-1]
        self._write(_list_name(last.number, last.attempt), b"".join(manifest.encode() for manifest in restates))

    def find(self, number: int, attempt: int | None = None) -> Manifest | None:
        """Return the record of a batch, or with ``attempt`` that of a restatement; None if it is not there."""
        name = f"{number:08d}.json" if attempt is None else _list_name(number, attempt)
        data = self._read(name)
        return None if not data else Manifest.decode(name, data.splitlines()[-1])

    def read(self, last: int, restate: int, attempt: int, shown: str) -> Published:
        """Return the batches up to ``last``, and the restatements up to number ``restate`` (-1: none), made by this attempt.

        Raise UsageError if a batch has no record: an earlier version of aiokcc published it.
        """
        batches = []
        for number in range(last + 1):
            data = self._read(f"{number:08d}.json")
            if data is None:
                raise UsageError(
                    f"{shown} has no record of the offsets of batch {number}: an earlier version of aiokcc published it, which "
                    f"did not record them. Only a table that was started with this version can be restated"
                )
            batches.append(Manifest.decode(f"{number:08d}.json", data))
        if restate < 0:
            return Published(tuple(batches))
        name = _list_name(restate, attempt)
        data = self._read(name)
        if data is None:
            raise CoordinationError(f"{shown}: {_HOME}/{self.run}/{name} is missing: somebody has deleted it")
        return Published(tuple(batches), tuple(Manifest.decode(name, line) for line in data.splitlines()))

    def discard(self) -> None:
        """Remove the files of a run that the table has refused, if none of its batches had records: nobody needs them.

        Beside a table that is not in a directory they stay.
        """
        if self._local is None:
            return
        home = self._local / _HOME / self.run
        for path in home.glob("*.json"):
            if path.name.startswith(_LISTS) or any(
                period.ranges for period in Manifest.decode(str(path), path.read_bytes()).periods
            ):
                return
        shutil.rmtree(home, ignore_errors=True)
        with contextlib.suppress(OSError):  # another run has files there, or nobody has
            home.parent.rmdir()

    def _write(self, name: str, data: bytes) -> None:
        if self._local is None:
            write_bytes(self._uri, self._options, f"{_HOME}/{self.run}/{name}", data)
            return
        home = self._local / _HOME / self.run
        home.mkdir(parents=True, exist_ok=True)
        draft = home / f"{name}.{secrets.token_hex(4)}"
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(home / name)

    def _read(self, name: str) -> bytes | None:
        try:
            if self._local is not None:
                return (self._local / _HOME / self.run / name).read_bytes()
            return read_bytes(self._uri, self._options, f"{_HOME}/{self.run}/{name}")
        except FileNotFoundError:
            return None


def _list_name(number: int, attempt: int) -> str:
    return f"{_LISTS}{number:08d}-{attempt:08d}.json"
