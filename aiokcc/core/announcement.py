"""The announcement of a limit: a node below ``limits`` whose name has all that a member needs.

The transaction that writes ``coordinator`` also creates ``limits/<version>:<limit>``: the store has both or none. Members are
told the names of nodes that are created there, and read nothing. The version is that of ``coordinator``; the limit is its text,
with commas in place of spaces. A limit whose text is too long for a name is left out; then members read it.

::

    limits/17:1700000060000
    limits/18:1700000180000,1700000120000,1700000060000,after,1700000000000
    limits/19:open
    limits/20
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiokcc.core.limit import Limit
from aiokcc.core.run import MOST_AT_ONCE
from aiokcc.errors import CorruptNodeError

__all__ = ["Announcement"]

_LONGEST: Final = 500
_MOST_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class Announcement:
    """A version of ``coordinator``, and its limit."""

    version: int
    limit: Limit | None
    """The limit; None if it has to be read."""

    @property
    def name(self) -> str:
        """The name of the node."""
        text = "" if self.limit is None else self.limit.encode().decode().replace(" ", ",")
        return f"{self.version}:{text}" if text and len(text) <= _LONGEST else str(self.version)

    @classmethod
    def parse(cls, name: str) -> Announcement | None:
        """Returns what the name announces; None if it is no announcement."""
        version, colon, text = name.partition(":")
        if not (version.isascii() and version.isdigit() and len(version) <= _MOST_DIGITS):
            return None
        if not colon:
            return cls(int(version), None)
        try:
            return cls(int(version), Limit.decode(name, text.replace(",", " ").encode()))
        except CorruptNodeError:
            return None

    def follows(self, known: int | None) -> bool:
        """Returns whether this is what comes next after the known version: one advance on, with its limit.

        If not, announcements were missed, or somebody else than a leader has created the node. Then the member reads.
        """
        return self.limit is not None and known is not None and 0 < self.version - known <= MOST_AT_ONCE
