"""Checks that a Delta table is still the one that was opened, and was not dropped and made again under the same address.

A table has an identity, which every snapshot holds, and a table that is made again gets another. A fresh snapshot shows it, but
costs about ten milliseconds, and more for a long log. In a directory the file of the last commit that was loaded shows as much:
commits never change, so the same file is there as long as the table is. Only if it is not, the table is loaded again. Elsewhere
each look takes several requests, so one look is enough for the steps of a commit that follow each other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from aiokcc.errors import PipelineMismatchError

__all__ = ["TableIdentity"]

_ENOUGH: Final = 1.0
"""Seconds for which one look at a table in no directory is enough."""


class TableIdentity:
    """The identity of an open table."""

    def __init__(self, uri: str, shown: str, options: Mapping[str, str] | None, table: Any) -> None:
        self._uri, self._shown = uri, shown
        self._options = None if options is None else dict(options)
        self._table = table
        self._id = table.metadata().id
        self._mark: tuple[int, ...] | None = None
        self._looked = time.monotonic()
        self.remember()

    def remember(self) -> None:
        """Remember the commit that the open table was loaded up to."""
        self._mark = self._commit_file()

    def _commit_file(self) -> tuple[int, ...] | None:
        """Return what identifies the file of that commit; None if there is none, or the table is in no directory."""
        if "://" in self._uri:
            return None
        try:
            found = (Path(self._uri) / "_delta_log" / f"{self._table.version():020}.json").stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

    def check(self) -> None:
        """Raise PipelineMismatchError if the table is not there any more, or is another one, or an older copy."""
        if self._mark is not None and self._commit_file() == self._mark:
            return
        if "://" in self._uri and time.monotonic() - self._looked < _ENOUGH:
            return
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self._uri, self._options):
            raise self._gone("does not exist any more")
        now = DeltaTable(self._uri, storage_options=self._options)
        if now.metadata().id != self._id:
            raise self._gone("was dropped and made again")
        if now.version() < self._table.version():
            raise self._gone(f"was replaced by an older copy, which ends at version {now.version()}")
        self._looked = time.monotonic()

    def _gone(self, what: str) -> PipelineMismatchError:
        return PipelineMismatchError(
            f"the table {self._shown} {what}, while this driver was at work; nothing is written to it. Put the table back, "
            f"choose another one, or give from_scratch=True to compute all of it again"
        )
