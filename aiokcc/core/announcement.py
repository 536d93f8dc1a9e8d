"""The announcement of a limit: a node below ``limits`` whose name has all that a member needs.

The transaction that writes ``coordinator`` also creates ``limits/<version>:<limit>:<checksum>``: the store has both or none.
Members are told the names of nodes that are created there, and read nothing. The version is that of ``coordinator``; the limit
is its text, with commas in place of spaces. The checksum is over both and the leader's name, so a node that somebody creates by
hand is not taken for an announcement. A limit whose text is too long for a name is left out; then members read it.

::

    limits/17:1700000060000:f2a11c04
    limits/18:1700000180000,1700000120000,1700000060000,after,1700000000000:07c3d9b1
    limits/19:open:9a5be210
    limits/20
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

from aiokcc.core.limit import Limit
from aiokcc.errors import CorruptNodeError

__all__ = ["Announcement", "checksum"]

_LONGEST: Final = 500
_MOST_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class Announcement:
    """A version of ``coordinator``, and its limit."""

    version: int
    limit: Limit | None
    """The limit; None if it has to be read."""

    def name(self, leader: str) -> str:
        """Returns the name of the node, as the leader (a member session) writes it."""
        text = "" if self.limit is None else self.limit.encode().decode().replace(" ", ",")
        if not text or len(text) > _LONGEST:
            return str(self.version)
        stated = f"{self.version}:{text}"
        return f"{stated}:{checksum(stated, leader)}"

    @classmethod
    def parse(cls, name: str, leader: str) -> Announcement | None:
        """Returns what the name announces; None if it is no announcement.

        It has a limit only if this leader has written the name. Otherwise the limit has to be read: there is another leader by
        now, or no leader has created the node.
        """
        stated, _, found = name.rpartition(":")
        version, _, text = (stated or name).partition(":")
        if not (version.isascii() and version.isdigit() and len(version) <= _MOST_DIGITS):
            return None
        if not text or found != checksum(stated, leader):
            return cls(int(version), None)
        try:
            return cls(int(version), Limit.decode(name, text.replace(",", " ").encode()))
        except CorruptNodeError:
            return None


def checksum(stated: str, leader: str) -> str:
    """Returns the checksum of a version and a limit in the name of this leader."""
    return f"{zlib.crc32(f'{leader} {stated}'.encode()):08x}"
