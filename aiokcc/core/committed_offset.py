"""Committed offsets as they are kept: in the store as ``offsets/<topic>/<number>``, in Kafka as an offset with metadata.

Both say the same, in one line that a person can read::

    offsets/orders/3         55 run=1767225600000 generation=3 at=1767225661234 by=worker-1-1a2b
    Kafka's metadata         aiokcc run=1767225600000 generation=3 at=1767225661234 by=worker-1-1a2b

``run`` tells the run that committed it, by the time it was founded. A run goes on from what it has committed itself and
from its last cut, whichever is later; what others have left under the same name says nothing of what this run has processed,
so to a run it does not count. Only ``start="committed"``, where a new run is founded, goes by whatever stands there. What an
operator has written has neither run nor generation. A number alone is an offset too: so other programs keep them.
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
    """One committed offset: everything before it is processed."""

    offset: int
    run: int | None = None
    """When the run that committed it was founded; None: no run did."""
    generation: int | None = None
    at: int | None = None
    """When, in milliseconds since the epoch."""
    by: str | None = None

    def counts_for(self, run: int) -> bool:
        """Whether this run has committed it itself."""
        return self.run is not None and self.run == run

    @property
    def facts(self) -> str:
        """All but the offset."""
        run, generation, at = ("-" if n is None else str(n) for n in (self.run, self.generation, self.at))
        return f"run={run} generation={generation} at={at} by={self.by or '-'}"

    def encode(self) -> bytes:
        """The node's content."""
        return f"{self.offset} {self.facts}".encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> CommittedOffset:
        """What a node holds; CorruptNodeError if it is something else."""
        try:
            offset, space, facts = data.decode("ascii").strip().partition(" ")
            if not offset.isdecimal() or len(offset) > 19 or int(offset) > MAX_OFFSET:
                raise ValueError(offset)
            return cls(int(offset)) if not space else cls._read(int(offset), facts)
        except ValueError:
            raise CorruptNodeError(path, data, _FORM) from None

    @property
    def metadata(self) -> str:
        """What goes with the offset to Kafka."""
        return f"aiokcc {self.facts}"

    @classmethod
    def from_kafka(cls, offset: int, metadata: str) -> CommittedOffset:
        """What Kafka holds; only the offset where another program has committed it."""
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
    """The offset itself if it can be one; otherwise UsageError."""
    if type(value) is not int or not 0 <= value <= MAX_OFFSET:
        raise UsageError(f"offset {value!r} cannot be one; expected a whole number from 0 up")
    return value


def batched(items: Iterable[T], size: int, most: int) -> Iterator[list[T]]:
    """Lists of at most ``most`` items each, if one takes ``size`` bytes and all of them may take half of a request."""
    count = max(1, min(most, 500_000 // max(1, size)))
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == count:
            yield batch
            batch = []
    if batch:
        yield batch
