"""A ParquetSink refuses some file systems: those that lack an operation, or do another thing in its place."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from aiokcc.errors import UsageError
from aiokcc.spark.sinks.disk import Disk
from aiokcc.spark.sinks.file_system import check_file_system


class CopiesInPlaceOfLinks(Disk):
    def link(self, source: Path, target: Path) -> None:
        shutil.copy(source, target)


class ReplacesNames(Disk):
    def link(self, source: Path, target: Path) -> None:
        target.unlink(missing_ok=True)
        super().link(source, target)


class LinksWithoutSource(Disk):
    """A cache on top of an object store, which still knows a file that was removed."""

    def link(self, source: Path, target: Path) -> None:
        if source.exists():
            super().link(source, target)
        elif not target.exists():
            target.write_bytes(b"")


class CopiesDirectories(Disk):
    def rename(self, source: Path, target: Path) -> None:
        shutil.copytree(source, target)


class HasNoRename(Disk):
    def rename(self, source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")


class HasNoSync(Disk):
    def sync(self, path: Path) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


@pytest.mark.parametrize(
    ("disk", "missing"),
    [
        (CopiesInPlaceOfLinks(), "has no hard links"),
        (ReplacesNames(), "has no exclusive links"),
        (LinksWithoutSource(), "has no links that fail without a source"),
        (CopiesDirectories(), "has no renames of directories"),
        (HasNoRename(), "has no renames of directories"),
        (HasNoSync(), "has no sync of directories"),
    ],
)
def test_missing_operation_is_named(tmp_path, disk, missing):
    with pytest.raises(UsageError, match=f"{missing} .*; choose a directory on a local disk or NFS, or a DeltaSink"):
        check_file_system(tmp_path, tmp_path, disk)


def test_local_disk_has_all_and_nothing_is_left(tmp_path):
    check_file_system(tmp_path, tmp_path, Disk())
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_no_property_of_the_file_system(tmp_path):
    class Full(Disk):
        def write(self, path: Path, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        check_file_system(tmp_path, tmp_path, Full())


def test_directory_that_another_driver_removes_is_not_taken_for_a_property(tmp_path):
    class Fenced(Disk):
        def make_directory(self, path: Path) -> None:
            shutil.rmtree(path.parent)
            super().make_directory(path)

    (tmp_path / "attempt").mkdir()
    with pytest.raises(FileNotFoundError):
        check_file_system(tmp_path, tmp_path / "attempt", Fenced())
