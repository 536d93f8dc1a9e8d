"""Holds the records of one partition back while an earlier record may still come. Pure: no clock, no gate, no Kafka.

With a bound on lateness a partition is read past the limit until no record before the limit can come any more. The records
past the limit are held here. The partition stands at its *watermark*: the timestamp of the oldest record held, or the greatest
timestamp seen less the bound, whichever is smaller.

Records are processed in the order of the periods, so the processed offsets have gaps. The buffer keeps account of them: every
record before :attr:`LatenessBuffer.next_offset` is done, every one before :attr:`LatenessBuffer.read_to` has been read.
"""

from __future__ import annotations

import heapq
from collections import deque
from operator import itemgetter
from typing import Any

from aiokcc.core.periods import MAX_TIMESTAMP

__all__ = ["LatenessBuffer"]


class LatenessBuffer:
    """The records of one partition that were read and may not be processed yet."""

    def __init__(self, lateness: int, position: int) -> None:
        self._lateness = lateness
        self._held: list[tuple[int, int, Any]] = []
        """A heap of timestamp, offset and record."""
        self._unprocessed: deque[int] = deque()
        """Offsets that were added, in the order of the log. The first is not processed; some behind it may be."""
        self._processed: set[int] = set()
        """Offsets in ``_unprocessed`` that were already processed."""
        self.read_to = position
        """The next offset to read. Every record before it was processed, is held, or was skipped."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def oldest(self) -> int:
        """The smallest timestamp among the records held; MAX_TIMESTAMP if there are none."""
        return self._held[0][0] if self._held else MAX_TIMESTAMP

    @property
    def next_offset(self) -> int:
        """The next offset to process: every record before it is done."""
        return self._unprocessed[0] if self._unprocessed else self.read_to

    def watermark(self, greatest: int) -> int:
        """Return the time before which no record comes any more, given the greatest timestamp seen or the clock."""
        return max(0, min(self.oldest, greatest - self._lateness))

    def skip(self, offset: int) -> None:
        """Count the record at this offset as read. It is not processed."""
        self.read_to = offset + 1

    def add(self, ts: int, offset: int, record: Any) -> None:
        """Hold a record back. Offsets are added in the order of the log."""
        self.read_to = offset + 1
        heapq.heappush(self._held, (ts, offset, record))
        self._unprocessed.append(offset)

    def take_below(self, limit: int) -> list[tuple[int, int, Any]]:
        """Remove the records before the limit, and return timestamp, offset and record of each in the order of the log."""
        taken: list[tuple[int, int, Any]] = []
        while self._held and self._held[0][0] < limit:
            taken.append(heapq.heappop(self._held))
        taken.sort(key=itemgetter(1))
        return taken

    def mark_processed(self, offset: int) -> None:
        """Count a record that was taken as done, which may move :attr:`next_offset`."""
        self._processed.add(offset)
        while self._unprocessed and self._unprocessed[0] in self._processed:
            self._processed.discard(self._unprocessed.popleft())
