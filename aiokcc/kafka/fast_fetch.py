"""What we ask of aiokafka's fetcher, and it has no setting for.

It relies on how the fetcher is built, which nobody promises. Where that looks different from what is known here, nothing is
changed: then reading is slower, and everything else is the same.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict, deque
from collections.abc import Iterator
from functools import partial
from itertools import dropwhile, islice
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.consumer.fetcher import Fetcher, FetchResult, PartitionRecords
from aiokafka.consumer.subscription_state import Assignment, TopicPartitionState
from aiokafka.errors import CorruptRecordException
from aiokafka.record.memory_records import MemoryRecords

__all__ = ["AtHand", "prepare_fetcher"]

_MADE_FROM: Final = (
    "self",
    "tp",
    "records",
    "aborted_transactions",
    "fetch_offset",
    "key_deserializer",
    "value_deserializer",
    "check_crcs",
    "isolation_level",
)
_RESULT_OF: Final = ("self", "tp", "assignment", "partition_records", "backoff")
_RESULT_HAS: Final = {"_assignment", "_partition_records"}
_HAVE: Final = (
    (FetchResult, ("check_assignment", "_update_position")),
    (Fetcher, ("_notify",)),
    (Assignment, ("state_value", "active")),
    (TopicPartitionState, ("consumed_to", "pause")),
)
_HAS: Final = {
    "_tp",
    "_records",
    "_aborted_transactions",
    "_key_deserializer",
    "_value_deserializer",
    "_check_crcs",
    "next_fetch_offset",
    "_records_iterator",
}


class AtHand:
    """Records that were fetched, to be taken list by list. What it knows nothing of is to be had from the consumer.

    aiokafka fetches a partition again when nothing of it is left unread; then it has nothing until that has come. ``ahead``:
    what was fetched counts as read as soon as the first list of it is taken, so that the next fetch is made while this one is
    used up. That is for runs with an end: a partition at the end of its log keeps the broker's answer open for all the others.
    """

    def __init__(self, fetcher: Any = None, *, ahead: bool = False) -> None:
        self._fetcher = fetcher
        self._ahead = ahead
        self._opened: dict[TopicPartition, tuple[_PlainRecords, Any]] = {}
        """What is being used up, and the assignment under which it was fetched."""

    def take(self, partition: TopicPartition, most: int, end: int | None = None) -> list[Any] | None:
        """The next records of a partition, up to so many. None: ask the consumer.

        ``end``: from here on nothing is wanted, so nothing is fetched.
        """
        if self._fetcher is None:
            return None
        if not self._ahead:
            return self._take_in_place(partition, most)
        opened = self._opened.get(partition)
        records = opened[0] if opened is not None and opened[1].active else self._open(partition, end)
        if records is None:
            return None
        found = records.take(most)
        if records.is_empty:
            self.forget(partition)
        return found

    def forget(self, partition: TopicPartition) -> None:
        """Nothing more will be taken of what was fetched of this partition."""
        opened = self._opened.pop(partition, None)
        if opened is not None:
            opened[0].release()

    def _take_in_place(self, partition: TopicPartition, most: int) -> list[Any] | None:
        """What ``getmany`` does with one partition of which records are at hand, without what it does before and after."""
        fetched, records = self._fetched(partition)
        if records is None:
            return None
        found = records.take(most)
        fetched._update_position()
        if records.is_empty:
            self._is_read(partition)
            records.release()
        return found

    def _open(self, partition: TopicPartition, end: int | None) -> _PlainRecords | None:
        """What ``getmany`` would do if it took all of it."""
        self.forget(partition)
        fetched, records = self._fetched(partition)
        if records is None:
            return None
        assignment, behind = fetched._assignment, records.find_end()
        state = assignment.state_value(partition)
        state.consumed_to(behind)
        if end is not None and behind >= end:
            state.pause()
        self._opened[partition] = records, assignment
        self._is_read(partition)
        return records

    def _fetched(self, partition: TopicPartition) -> tuple[Any, _PlainRecords | None]:
        fetched = self._fetcher._records.get(partition)
        records = getattr(fetched, "_partition_records", None)
        usable = type(records) is _PlainRecords and fetched.check_assignment(partition)
        return fetched, records if usable else None

    def _is_read(self, partition: TopicPartition) -> None:
        """So that more of it is fetched."""
        del self._fetcher._records[partition]
        self._fetcher._notify(self._fetcher._wait_consume_future)


def prepare_fetcher(consumer: AIOKafkaConsumer, *, ahead: bool = False) -> AtHand:
    """To be called when the consumer has started, before it is told its partitions."""
    fetcher: Any = getattr(consumer, "_fetcher", None)
    if hasattr(fetcher, "_prefetch_backoff"):
        # For 0.1 s after each fetch aiokafka asks a broker for nothing while it holds anything unread of it: whoever does
        # not read is to slow down. Here one partition waits at the limit, and the others must not wait for it.
        fetcher._prefetch_backoff = 0.0
    if not _is_known() or type(getattr(fetcher, "_records", None)) is not OrderedDict or fetcher._records:
        return AtHand()
    fetcher._records = _Fetched()
    return AtHand(fetcher, ahead=ahead) if _is_taken_as_known(fetcher) else AtHand()


def _names_of(function: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _is_taken_as_known(fetcher: Any) -> bool:
    """Whether it is known how a fetch that was read is told from one that was not."""
    if _names_of(FetchResult.__init__) != _RESULT_OF or not hasattr(fetcher, "_wait_consume_future"):
        return False
    nothing = FetchResult(TopicPartition("-", 0), assignment=None, partition_records=None, backoff=0)
    return _RESULT_HAS.issubset(vars(nothing)) and all(hasattr(kind, name) for kind, names in _HAVE for name in names)


def _is_known() -> bool:
    """Whether what a fetch brings is built as is assumed here: an error in aiokafka's own task would end all fetching."""
    if _names_of(PartitionRecords.__init__) != _MADE_FROM:
        return False
    nothing = PartitionRecords(TopicPartition("-", 0), MemoryRecords(b""), None, 0, None, None, True, 0)
    return _HAS.issubset(vars(nothing))


class _Fetched(OrderedDict[TopicPartition, Any]):
    """What was fetched and not handed on yet, by partition."""

    def __setitem__(self, partition: TopicPartition, fetched: Any) -> None:
        records: Any = getattr(fetched, "_partition_records", None)
        if type(records) is PartitionRecords and _is_plain(records):
            records.__class__ = _PlainRecords
            records._records_iterator = records._unpack_records()
        super().__setitem__(partition, fetched)


def _is_plain(records: Any) -> bool:
    return (
        records._key_deserializer is None
        and records._value_deserializer is None
        and not records._aborted_transactions
        and inspect.getgeneratorstate(records._records_iterator) == inspect.GEN_CREATED
    )


class _Batches:
    """All batches of a fetch, found and not opened yet."""

    def __init__(self, batches: Any) -> None:
        self.size_in_bytes = batches.size_in_bytes
        """Each of them keeps all of it."""
        self.left: deque[Any] = deque()
        while batches.has_next():
            self.left.append(batches.next_batch())

    def has_next(self) -> bool:
        return bool(self.left)

    def next_batch(self) -> Any:
        return self.left.popleft()


class _PlainRecords(PartitionRecords):  # type: ignore[misc]
    """What one fetch brought of one partition, without deserializers and aborted transactions, as nearly every one is.

    aiokafka makes each record through three calls, one inside the other, behind two loops: most of what reading a record
    costs, more than the gate and a small handler together. Here one loop makes the same records for two thirds of that.
    """

    next_fetch_offset: int
    _records: Any
    _batch: Any = None
    """The batch of which something is left."""
    _left: Iterator[Any]

    def take(self, most: int) -> list[Any]:
        """The next records, up to so many; none when there are no more."""
        topic, partition = self._tp
        found: list[Any] = []
        while len(found) < most and (self._batch is not None or self._open_next()):
            found += [
                ConsumerRecord(
                    topic,
                    partition,
                    raw.offset,
                    raw.timestamp,
                    raw.timestamp_type,
                    key := raw.key,
                    value := raw.value,
                    raw.checksum,
                    -1 if key is None else len(key),
                    -1 if value is None else len(value),
                    tuple(headers) if (headers := raw.headers) else (),
                )
                for raw in islice(self._left, most - len(found))
            ]
            if len(found) == most:
                self.next_fetch_offset = found[-1].offset + 1
            else:
                self.next_fetch_offset = self._batch.next_offset
                self._batch = None
        return found

    def find_end(self) -> int:
        """The offset behind the last of them."""
        self._records = batches = _Batches(self._records)
        last = batches.left[-1] if batches.left else self._batch
        return self.next_fetch_offset if last is None else int(last.next_offset)

    def release(self) -> None:
        """Let go of what was fetched: the generator, which nobody has started, would keep it until the garbage is collected."""
        self._records_iterator = None
        self._batch, self._left = None, iter(())

    @property
    def is_empty(self) -> bool:
        """Whether there are no more."""
        all_taken = self._batch is None or self._batch.next_offset == self.next_fetch_offset
        return all_taken and not self._records.has_next()

    def _open_next(self) -> bool:
        batches = self._records
        while batches.has_next():
            batch = batches.next_batch()
            if self._check_crcs and not batch.validate_crc():
                topic, partition = self._tp
                raise CorruptRecordException(f"a batch of {topic}.{partition} does not match its checksum")
            if batch.is_control_batch:
                self.next_fetch_offset = batch.next_offset
                continue
            # A batch comes whole, also what is before the offset that was asked for.
            self._left = dropwhile(partial(_is_before, self.next_fetch_offset), batch)
            self._batch = batch
            return True
        return False

    def _unpack_records(self) -> Iterator[Any]:
        """One by one, for whoever reads them through aiokafka."""
        while found := self.take(1):
            yield found[0]


def _is_before(first: int, raw: Any) -> bool:
    return bool(raw.offset < first)
