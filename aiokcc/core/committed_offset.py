"""A committed offset and its text: in the store as ``offsets/<topic>/<number>``, in Kafka as an offset with metadata.

Both are one line that a person can read::

    offsets/orders/3         55 run=1767225600000 generation=3 at=1767225661234 by=worker-1-1a2b
    Kafka's metadata         aiokcc run=1767225600000 generation=3 at=1767225661234 by=worker-1-1a2b

``run`` identifies the run that committed the offset, by the time at which it was founded. A run continues from its own
committed offset or from its last cut, whichever is later. It ignores the offsets of others under the same name, because they
say nothing about what this run has processed. Only ``start="committed"``, which founds a new run, uses any committed offset.
An offset that an operator wrote has neither run nor generation. A number alone is valid too: other programs store offsets
that way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from aiokcc.errors import CorruptNodeError, UsageError

__all__ = ["MAX_OFFSET", "CommittedOffset", "batched", "check_offset"]

T = TypeVar("T")

MAX_OFFSET: Final = 2**63 - 1
_FORM: Final = "an offset, or like '55 run=1767225600000 generation=3 at=1767225661234 by=worker-1'"
_FACTS: Final = re.compile(
    r"run=(?P<run>[0-9]{1,19}|-) generation=(?P<generation>[0-9]{1,19}|-) at=(?P<at>[0-9]{1,19}|-) by=(?P<by>[!-~]{1,200})"
)


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """One committed offset: all records before it are processed."""

    offset: int
    run: int | None = None
    """The time at which the run that committed it was founded; None if no run did."""
    generation: int | None = None
    at: int | None = None
    """The time of the commit, in milliseconds since the epoch."""
    by: str | None = None

    def counts_for(self, run: int) -> bool:
        """Returns True if this run has committed it."""
        return self.run is not None and self.run == run

    @property
    def facts(self) -> str:
        """The text of all fields but the offset."""
        run, generation, at = ("-" if n is None else str(n) for n in (self.run, self.generation, self.at))
        return f"run={run} generation={generation} at={at} by={self.by or '-'}"

    def encode(self) -> bytes:
        """Returns the node's content."""
        return f"{self.offset} {self.facts}".encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> CommittedOffset:
        """Returns what the node holds. Raises CorruptNodeError if it cannot be read."""
        try:
            offset, space, facts = data.decode("ascii").strip().partition(" ")
            if not offset.isdecimal() or len(offset) > 19 or int(offset) > MAX_OFFSET:
                raise ValueError(offset)
            return cls(int(offset)) if not space else cls._read(int(offset), facts)
        except ValueError:
            raise CorruptNodeError(path, data, _FORM) from None

    @property
    def metadata(self) -> str:
        """The metadata of the offset in Kafka."""
        return f"aiokcc {self.facts}"

    @classmethod
    def from_kafka(cls, offset: int, metadata: str) -> CommittedOffset:
        """Returns what Kafka holds. If another program committed it, only the offset is set."""
        ours, _, facts = metadata.partition(" ")
        try:
            return cls._read(offset, facts) if ours == "aiokcc" else cls(offset)
        except ValueError:
            return cls(offset)

    @classmethod
    def _read(cls, offset: int, facts: str) -> CommittedOffset:
        match = _FACTS.fullmatch(facts)
        if match is None:
            raise ValueError(facts)
        run, generation, at = (None if match[name] == "-" else int(match[name]) for name in ("run", "generation", "at"))
        return cls(offset, run, generation, at, None if match["by"] == "-" else match["by"])


def check_offset(value: object) -> int:
    """Returns the value. Raises UsageError if it is not a valid offset."""
    if type(value) is not int or not 0 <= value <= MAX_OFFSET:
        raise UsageError(f"offset {value!r} is not valid; expected a whole number from 0 up")
    return value


def batched(items: Iterable[T], size: int, most: int) -> Iterator[list[T]]:
    """Yields lists of at most ``most`` items; fewer if items of ``size`` bytes would fill more than half of a request."""
    count = max(1, min(most, 500_000 // max(1, size)))
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == count:
            yield batch
            batch = []
    if batch:
        yield batch
