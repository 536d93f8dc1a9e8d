"""The records of one partition on their way from the fetch loop to its consumer, and what is known of the end of its log.

The fetch loop fills it (:mod:`aiokcc.kafka.fetch_loop`), the consumer empties it (:mod:`aiokcc.kafka.partition_consumer`). A
change for which the consumer may wait sets the signal of its gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiokafka import TopicPartition

if TYPE_CHECKING:
    from aiokcc.core.limit import Limit
    from aiokcc.runtime.gate import Gate
    from aiokcc.runtime.member import Member

__all__ = ["PartitionFeed"]


class PartitionFeed:
    """Holds at most one list of records of a partition.

    :param position: the offset to begin at
    :param end: the offset behind the last record of the run; None if it is not known yet
    :param until: if the end is not known: the time by the clock at which the run is over for a partition at the end of its log
    """

    def __init__(self, gate: Gate, member: Member, position: int, end: int | None, until: int | None = None) -> None:
        self.tp = TopicPartition(*gate.partition)
        self._signal = gate.signal
        self._member = member
        self.position = position
        """The next offset to fetch."""
        self.end = end
        self.until = until
        self.waiting = False
        """True while the consumer waits for records, or for the end of the log."""
        self.end_seen: Limit | None = None
        """The limit under which the end of the log was last seen at :attr:`position`."""
        self._log_end = end or 0
        """The log is known to reach this offset: the end of the log is not looked up before."""
        self._records: list[Any] = []

    @property
    def buffered(self) -> int:
        """The number of records that were fetched and that the consumer has not taken."""
        return len(self._records)

    @property
    def has_records(self) -> bool:
        """True while it holds records."""
        return bool(self._records)

    @property
    def complete(self) -> bool:
        """True when every record up to the run's end has been fetched."""
        return self.end is not None and self.position >= self.end

    @property
    def wants_records(self) -> bool:
        """True while the consumer waits, and records are to be fetched for it."""
        return self.waiting and not self._records and not self.complete

    @property
    def wants_log_end(self) -> bool:
        """True while the consumer waits and does not know whether the log holds more, under the present limit."""
        return self.wants_records and self.end_seen != self._member.progress.limit and self.position >= self._log_end

    def is_time_up(self, now: int) -> bool:
        """Return whether the run is over at this time for a partition at the end of its log."""
        return self.until is not None and now >= self.until

    def add_records(self, records: list[Any]) -> None:
        """Take fetched records, in the order of the log. Those past the run's end are dropped."""
        self.position = records[-1].offset + 1
        if self.end is not None and self.position > self.end:
            records = [record for record in records if record.offset < self.end]
            self.position = self.end
        self._records = [*self._records, *records] if self._records else records
        if self.waiting:
            self._signal.set()

    def take(self) -> list[Any]:
        """Return the records, and hold them no longer."""
        records, self._records = self._records, []
        return records

    def move_to(self, position: int) -> None:
        """Take over the position of the Kafka consumer, which passes offsets that hold no record."""
        if self.end is not None:
            position = min(position, self.end)
        if position > self.position and not self._records:
            self.position = position
            self._signal.set()

    def note_log_end(self, offset: int, as_of: Limit, asked_at: int) -> None:
        """Take note of the end of the log. It was looked up under the limit ``as_of``, when the clock showed ``asked_at``.

        A record that is written between question and answer is not in the answer. So the clock at the question decides
        whether the run's end has been reached. See [fresh end] in docs/explanation/protocol.md.
        """
        self._log_end = max(self._log_end, offset)
        if self.wants_records and self.position >= offset:
            if self.is_time_up(asked_at):
                self.end = self.position
            self.end_seen = as_of
            self._signal.set()
