"""The directories of the attempts, by which the drivers of a ParquetSink fence each other out.

Each driver makes a directory with its attempt number and a random part in its name. A driver that takes over removes the
directories of all smaller attempts. :mod:`aiokcc.spark.sinks.log` says why a driver without its directory cannot publish.

Of two drivers that begin together, each makes its directory first and looks for others after that. So at least one sees the
other, and the smaller number gives way. The directory with the greatest number always stays.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Final

from aiokcc.errors import FencedError
from aiokcc.spark.sinks.disk import Disk

__all__ = ["ENDED", "Attempts"]

ENDED: Final = "ended-"
"""The name of what is being removed starts with this."""
_ATTEMPT: Final = re.compile(r"(\d{8,})-[0-9a-f]+")


class Attempts:
    """The attempts on one result, below ``root``."""

    def __init__(self, root: Path, path: Path, disk: Disk) -> None:
        self._root, self.path, self._disk = root, path, disk

    def make(self, attempt: int) -> str:
        """Make a directory for an attempt, and return its name. No other driver gets the same name."""
        name = f"{attempt:08d}-{secrets.token_hex(6)}"
        self._disk.make_directory(self.path / name)
        return name

    def exists(self, name: str) -> bool:
        """Return whether an attempt's directory is still there: if it is not, a later attempt has begun."""
        return (self.path / name).exists()

    def numbers(self) -> list[int]:
        """Return the numbers of the attempts that have a directory."""
        return [int(match[1]) for match in map(_ATTEMPT.fullmatch, self._disk.names(self.path)) if match]

    def fence(self, attempt: int, name: str) -> None:
        """Remove the directories of all other attempts. Raise FencedError if one of them has this number or a greater one."""
        others = [other for other in self._disk.names(self.path) if other != name]
        numbers = [int(match[1]) for match in map(_ATTEMPT.fullmatch, others) if match]
        if any(number >= attempt for number in numbers):
            raise FencedError(
                f"{self._root}: attempt {max(numbers)} has begun there, and this is attempt {attempt}: a later driver of this "
                f"pipeline is at work, or these are results of an earlier run that the store knows nothing of "
                f"(then from_scratch=True starts again, or choose another directory)"
            )
        for other in others:
            self.end(other)

    def end(self, name: str) -> None:
        """Remove an attempt's directory. It is renamed first: its driver then finds nothing under the path that it knows."""
        place = self.path / name
        if not name.startswith(ENDED):
            ended = self.path / f"{ENDED}{name}"
            try:
                self._disk.rename(place, ended)
            except FileNotFoundError:
                return
            place = ended
        self._disk.remove_tree(place)

    def take(self, path: Path, name: str) -> None:
        """Move a file or directory, if it exists, into an attempt's directory. Raise FileNotFoundError if that is gone."""
        own = self.path / name
        try:
            self._disk.rename(path, own / path.name)
        except FileNotFoundError:
            if not own.exists():
                raise

    def fenced(self, attempt: int) -> FencedError:
        """Return the error for a driver whose directory is gone."""
        return FencedError(f"{self._root}: a driver that began after attempt {attempt} has taken over")
