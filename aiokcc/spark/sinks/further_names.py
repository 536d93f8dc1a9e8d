"""The further names of published files: one for each period, for people and for tools that read a whole directory.

They are hard links, made after the manifest that publishes the files. After a crash some may be missing or old; the next driver
puts them right. The log alone says what is published. Each change goes through the attempt's own directory, which a driver that
takes over removes: a driver that was suspended cannot bring back the name of a file that was replaced meanwhile.
"""

from __future__ import annotations

import errno
import itertools
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from aiokcc.spark.sinks.disk import Disk
from aiokcc.spark.sinks.manifest import DataFile, PublishedPeriod, period_name

__all__ = ["FURTHER", "FurtherNames"]

_logger = logging.getLogger("aiokcc.spark")
FURTHER: Final = re.compile(r"\d+(T\d{6}(\.\d{3})?Z)?(-\d{5})?\.parquet")
_GONE: Final = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR)


class FurtherNames:
    """The further names in a result's directory, of files below ``home``."""

    def __init__(self, root: Path, home: Path, disk: Disk) -> None:
        self._root, self._home, self._disk = root, home, disk

    def show(self, periods: Iterable[PublishedPeriod], own: Path, *, replaced: bool = False) -> None:
        """Give the files of these periods their further names.

        ``own`` is the attempt's own directory. ``replaced`` says that the periods may have had other files before, whose names
        are then removed. If it fails, log a warning: the files are published nevertheless.
        """
        for period in periods:
            stem = period_name(period.start)
            names = _names(stem, period.files)
            try:
                for name, file in names.items():
                    self._show_file(self._home / file.path, self._root / name, own)
                if replaced:
                    self._remove_others(stem, names.keys(), own)
            except OSError as error:
                if error.errno not in _GONE:  # gone: the result was reset meanwhile, or another driver has taken over
                    _logger.warning(
                        "%s: a file of %s has got no second name (%s); aiokcc.spark.files finds the file",
                        self._root,
                        stem,
                        error,
                    )
                return

    def _show_file(self, source: Path, shown: Path, own: Path) -> None:
        if shown.exists() and source.samefile(shown):
            return
        draft = own / shown.name
        self._disk.remove(draft)
        self._disk.link(source, draft)
        self._disk.rename(draft, shown)  # in one step: a reader finds the replaced file or this one

    def _remove_others(self, stem: str, kept: Iterable[str], own: Path) -> None:
        """Remove the names that a replaced period had and this one does not: it has fewer files, or none."""
        parts = itertools.takewhile(
            lambda name: (self._root / name).exists(), (_part(stem, part) for part in itertools.count())
        )
        for name in sorted(
            {f"{stem}.parquet", *parts} - {*kept}, reverse=True
        ):  # the last first: no gap if it is killed
            if (self._root / name).exists():
                self._disk.rename(self._root / name, own / name)
                self._disk.remove(own / name)


def _part(stem: str, part: int) -> str:
    return f"{stem}-{part:05d}.parquet"


def _names(stem: str, files: tuple[DataFile, ...]) -> dict[str, DataFile]:
    if len(files) == 1:
        return {f"{stem}.parquet": files[0]}
    return {_part(stem, part): file for part, file in enumerate(files)}
