"""The fast path into aiokafka's fetcher, for which aiokafka has no setting. Everything that relies on its insides is here.

The reasons, in the order of what they bring:

* *A partition at the limit must not slow down the others.* For 0.1 s after a fetch aiokafka asks a broker for nothing while it
  holds unread records of it. Here one partition waits at the limit by design, so this back-off is set to 0.
* *Making records costs most.* aiokafka makes each record through three nested calls behind two loops, which costs more than the
  gate and a small handler together. :class:`_PlainRecords` makes the same records in one loop, for two thirds of that.
* *A partition should not wait for its next fetch.* aiokafka fetches a partition again when nothing of it is unread. In a run
  with an end, :class:`FetchedRecords` counts a fetch as read when its first list is taken, so that the next one is under way
  while this one is used up.

Nobody promises that the fetcher stays as it is. So :func:`prepare_fetcher` compares it with what is known here. If it looks
different, nothing is changed: reading is slower then, and everything else is the same.
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

__all__ = ["FetchedRecords", "prepare_fetcher"]

_RECORDS_PARAMETERS: Final = (
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
_RESULT_PARAMETERS: Final = ("self", "tp", "assignment", "partition_records", "backoff")
_RESULT_ATTRIBUTES: Final = {"_assignment", "_partition_records"}
_METHODS: Final = (
    (FetchResult, ("check_assignment", "_update_position")),
    (Fetcher, ("_notify",)),
    (Assignment, ("state_value", "active")),
    (TopicPartitionState, ("consumed_to", "pause")),
)
_RECORDS_ATTRIBUTES: Final = {
    "_tp",
    "_records",
    "_aborted_transactions",
    "_key_deserializer",
    "_value_deserializer",
    "_check_crcs",
    "next_fetch_offset",
    "_records_iterator",
}


class FetchedRecords:
    """Gives out records that were fetched, list by list. If it returns None for a partition, ask the consumer.

    ``fetch_ahead``: a fetch counts as read when its first list is taken, so that the next fetch is made while this one is used
    up. That is for runs with an end only: for a partition at the end of its log the broker would keep its answer open, and
    delay all other partitions.
    """

    def __init__(self, fetcher: Any = None, *, fetch_ahead: bool = False) -> None:
        self._fetcher = fetcher
        self._fetch_ahead = fetch_ahead
        self._opened: dict[TopicPartition, tuple[_PlainRecords, Any]] = {}
        """The fetch that is being used up, and the assignment under which it was made."""

    def take(self, partition: TopicPartition, most: int, end: int | None = None) -> list[Any] | None:
        """Return the next records of a partition, at most so many; None: ask the consumer.

        ``end``: the offset at which the run ends; nothing is fetched from there on.
        """
        if self._fetcher is None:
            return None
        if not self._fetch_ahead:
            return self._take_in_place(partition, most)
        opened = self._opened.get(partition)
        records = opened[0] if opened is not None and opened[1].active else self._open(partition, end)
        if records is None:
            return None
        found = records.take(most)
        if records.is_empty:
            self.forget(partition)
        return found

    def held_bytes(self) -> int | None:
        """Return the size of the fetches of which records are left, as the broker sent them; None if that is not known."""
        if self._fetcher is None:
            return None
        waiting = (getattr(fetched, "_partition_records", None) for fetched in self._fetcher._records.values())
        held = (*waiting, *(records for records, _ in self._opened.values()))
        return sum(int(records._records.size_in_bytes()) for records in held if type(records) is _PlainRecords)

    def forget(self, partition: TopicPartition) -> None:
        """Drop what was fetched of this partition."""
        opened = self._opened.pop(partition, None)
        if opened is not None:
            opened[0].release()

    def _take_in_place(self, partition: TopicPartition, most: int) -> list[Any] | None:
        """Do what ``getmany`` does with one partition that has fetched records, without its work before and after."""
        fetched, records = self._fetched(partition)
        if records is None:
            return None
        found = records.take(most)
        fetched._update_position()
        if records.is_empty:
            self._mark_read(partition)
            records.release()
        return found

    def _open(self, partition: TopicPartition, end: int | None) -> _PlainRecords | None:
        """Do what ``getmany`` would do if it took the whole fetch, and return the records."""
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
        self._mark_read(partition)
        return records

    def _fetched(self, partition: TopicPartition) -> tuple[Any, _PlainRecords | None]:
        fetched = self._fetcher._records.get(partition)
        records = getattr(fetched, "_partition_records", None)
        usable = type(records) is _PlainRecords and fetched.check_assignment(partition)
        return fetched, records if usable else None

    def _mark_read(self, partition: TopicPartition) -> None:
        """Tell the fetcher that the partition has no unread records, so that it fetches more."""
        del self._fetcher._records[partition]
        self._fetcher._notify(self._fetcher._wait_consume_future)


def prepare_fetcher(consumer: AIOKafkaConsumer, *, fetch_ahead: bool = False) -> FetchedRecords:
    """Change the fetcher of a consumer, if it is built as is known here, and return the way to its records.

    Call it when the consumer has started, before it is told its partitions.
    """
    fetcher: Any = getattr(consumer, "_fetcher", None)
    if hasattr(fetcher, "_prefetch_backoff"):
        fetcher._prefetch_backoff = 0.0
    if not _are_records_known() or type(getattr(fetcher, "_records", None)) is not OrderedDict or fetcher._records:
        return FetchedRecords()
    fetcher._records = _FetchedByPartition()
    return FetchedRecords(fetcher, fetch_ahead=fetch_ahead) if _is_result_known(fetcher) else FetchedRecords()


def _parameters_of(function: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _is_result_known(fetcher: Any) -> bool:
    """Return whether aiokafka's result of a fetch is built as is known here."""
    if _parameters_of(FetchResult.__init__) != _RESULT_PARAMETERS or not hasattr(fetcher, "_wait_consume_future"):
        return False
    empty = FetchResult(TopicPartition("-", 0), assignment=None, partition_records=None, backoff=0)
    return _RESULT_ATTRIBUTES.issubset(vars(empty)) and all(
        hasattr(kind, name) for kind, names in _METHODS for name in names
    )


def _are_records_known() -> bool:
    """Return whether aiokafka's records are built as is known here: an error in its own task would end all fetching."""
    if _parameters_of(PartitionRecords.__init__) != _RECORDS_PARAMETERS:
        return False
    empty = PartitionRecords(TopicPartition("-", 0), MemoryRecords(b""), None, 0, None, None, True, 0)
    return _RECORDS_ATTRIBUTES.issubset(vars(empty))


class _FetchedByPartition(OrderedDict[TopicPartition, Any]):
    """Results of fetches by partition. It turns records that are plain into :class:`_PlainRecords` when they come in."""

    def __setitem__(self, partition: TopicPartition, fetched: Any) -> None:
        records: Any = getattr(fetched, "_partition_records", None)
        if type(records) is PartitionRecords and _is_plain(records):
            records.__class__ = _PlainRecords
            records._records_iterator = records._unpack_records()
        super().__setitem__(partition, fetched)


def _is_plain(records: Any) -> bool:
    """Return whether records need no deserializer and no filter for aborted transactions, and none was taken yet."""
    return (
        records._key_deserializer is None
        and records._value_deserializer is None
        and not records._aborted_transactions
        and inspect.getgeneratorstate(records._records_iterator) == inspect.GEN_CREATED
    )


class _Batches:
    """All batches of a fetch, split and not unpacked yet."""

    def __init__(self, batches: Any) -> None:
        self.size_in_bytes = batches.size_in_bytes
        """The size of the whole fetch: each batch keeps all of its memory."""
        self.left: deque[Any] = deque()
        while batches.has_next():
            self.left.append(batches.next_batch())

    def has_next(self) -> bool:
        return bool(self.left)

    def next_batch(self) -> Any:
        return self.left.popleft()


class _PlainRecords(PartitionRecords):  # type: ignore[misc]
    """The records of one partition in one fetch, without deserializers and aborted transactions; nearly all are so."""

    next_fetch_offset: int
    _records: Any
    _batch: Any = None
    """The batch in use, with records left."""
    _left: Iterator[Any]

    def take(self, most: int) -> list[Any]:
        """Return the next records, at most so many; an empty list when there are no more. Raises for a wrong checksum."""
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
        """Return the offset behind the last record."""
        self._records = batches = _Batches(self._records)
        last = batches.left[-1] if batches.left else self._batch
        return self.next_fetch_offset if last is None else int(last.next_offset)

    def release(self) -> None:
        """Drop what was fetched. The generator, which was never started, would keep it until the garbage is collected."""
        self._records_iterator = None
        self._batch, self._left = None, iter(())

    @property
    def is_empty(self) -> bool:
        """True when there are no more records."""
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
            # The broker sends whole batches, also with records before the offset that was asked for.
            self._left = dropwhile(partial(_is_before, self.next_fetch_offset), batch)
            self._batch = batch
            return True
        return False

    def _unpack_records(self) -> Iterator[Any]:
        """Yield the records one by one, for reads through aiokafka."""
        while found := self.take(1):
            yield found[0]


def _is_before(first: int, raw: Any) -> bool:
    return bool(raw.offset < first)
