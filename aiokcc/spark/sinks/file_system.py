"""Tries out, before anything is written, that a file system has what a ParquetSink needs.

==================  ==================================================================================================
hard links          a batch is published by giving its manifest a second name
exclusive links     a name that exists is not replaced, so a batch is published once
links to the living a file whose last name is gone cannot be linked, so a driver that was replaced cannot publish
renames             of directories, in one step, also of one that has content: so a driver is fenced out
sync                of files and of directories: what was reported survives a loss of power
==================  ==================================================================================================

Local disks have all of this, and NFS does. Object stores behind a file system in user space often lack one of them, and some
accept the call and do something else; so each is tried, with its result.
"""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from typing import Final

from aiokcc.errors import UsageError
from aiokcc.spark.sinks.disk import Disk

__all__ = ["check_file_system"]

_REFUSED: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EMLINK)
"""The errors by which a file system says that it does not have an operation. Others, such as a full disk, are raised."""


def check_file_system(root: Path, place: Path, disk: Disk) -> None:
    """Try in an own new directory, ``place``, what publishing needs. Raise UsageError, which names what is missing.

    The directory is empty again afterwards. Raise FileNotFoundError if somebody removes it meanwhile.
    """
    first, second = place / "try", place / "try-inner"
    step = "sync of files"
    try:
        disk.write(first, b"1")
        step = "hard links"
        disk.link(first, place / "try-linked")
        if not first.samefile(place / "try-linked"):
            raise _missing(root, "hard links", "a link became a copy")
        step = "exclusive links"
        with contextlib.suppress(FileExistsError):
            disk.link(first, place / "try-linked")
            raise _missing(root, step, "a name that exists was replaced")
        step = "links that fail without a source"
        disk.remove(first)
        with contextlib.suppress(FileNotFoundError):
            disk.link(first, place / "try-again")
            raise _missing(root, step, "a file without a name was linked")
        step = "renames of directories"
        disk.make_directory(second)
        disk.write(second / "file", b"1")
        disk.rename(second, place / "try-renamed")
        if second.exists() or not (place / "try-renamed" / "file").exists():
            raise _missing(root, step, "the directory did not move with its content")
        step = "sync of directories"
        disk.sync(place)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        raise _missing(root, step, str(error.strerror)) from error
    for name in disk.names(place):
        if (place / name).is_dir():
            disk.remove_tree(place / name)
        else:
            disk.remove(place / name)


def _missing(root: Path, what: str, why: str) -> UsageError:
    return UsageError(
        f"{root}: this file system has no {what} ({why}), which a ParquetSink needs; choose a directory on a local disk or "
        f"NFS, or a DeltaSink"
    )
