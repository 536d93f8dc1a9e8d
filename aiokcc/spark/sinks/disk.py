"""The operations on a POSIX file system that publishing is made of, one method each.

They stand apart so that a test can stop a driver between any two of them. Nothing here repairs or retries.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["Disk"]


class Disk:
    """Files and directories; what was synced is there after a loss of power too."""

    def make_directory(self, path: Path) -> None:
        """Its parent must be there: a directory that was taken from us is never made again by accident."""
        path.mkdir()

    def ensure_directory(self, path: Path) -> None:
        """Make it, and its parents, unless it is there."""
        path.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, data: bytes) -> None:
        """A new or replaced file, synced. The directory's entry is not."""
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def link(self, source: Path, target: Path) -> None:
        """A second name for a file. FileExistsError if there is one; FileNotFoundError if the source has no name any more."""
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Another name for a file or directory, at once."""
        source.rename(target)

    def remove(self, path: Path) -> None:
        """Take a file's name away; nothing if it has none."""
        path.unlink(missing_ok=True)

    def remove_directory(self, path: Path) -> None:
        """Take away an empty directory."""
        path.rmdir()

    def sync(self, path: Path) -> None:
        """Make a directory's entries durable."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def names(self, path: Path) -> list[str]:
        """What is in a directory, sorted."""
        return sorted(os.listdir(path))  # noqa: PTH208 - a quarter of the time of iterdir

    def remove_tree(self, path: Path) -> None:
        """Take away a directory with all it holds, also if somebody goes on filling it: nothing can be made in it after."""
        for _ in range(100):
            try:
                for name in self.names(path):
                    inner = path / name
                    if inner.is_dir() and not inner.is_symlink():
                        self.remove_tree(inner)
                    else:
                        self.remove(inner)
                self.remove_directory(path)
            except FileNotFoundError:
                return
            except OSError:
                if not os.listdir(path):  # noqa: PTH208 - it is empty and stays: not for want of trying
                    raise
            else:
                return
        raise OSError(f"{path} cannot be removed: something goes on writing into it")
