"""What we ask of aiokafka's fetcher, and it has no setting for.

It relies on how the fetcher is built, which nobody promises. Where that looks different from what is known here, nothing is
changed: then reading is slower, and everything else is the same.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import dropwhile, islice
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.consumer.fetcher import FetchResult, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.memory_records import MemoryRecords

__all__ = ["prepare_fetcher"]

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
_TAKEN_BY: Final = ("check_assignment", "_update_position")

Take = Callable[[TopicPartition, int], list[Any] | None]
"""The next records at hand of a partition, up to so many. None: ask the consumer."""


def prepare_fetcher(consumer: AIOKafkaConsumer) -> Take:
    """To be called when the consumer has started, before it is told its partitions."""
    fetcher: Any = getattr(consumer, "_fetcher", None)
    if hasattr(fetcher, "_prefetch_backoff"):
        # For 0.1 s after each fetch aiokafka asks a broker for nothing while it holds anything unread of it: whoever does
        # not read is to slow down. Here one partition waits at the limit, and the others must not wait for it.
        fetcher._prefetch_backoff = 0.0
    if not _is_known() or type(getattr(fetcher, "_records", None)) is not OrderedDict or fetcher._records:
        return lambda *_: None
    fetcher._records = _Fetched()
    if not all(hasattr(FetchResult, name) for name in _TAKEN_BY) or not hasattr(fetcher, "_wait_consume_future"):
        return lambda *_: None
    return partial(_take, fetcher)


def _take(fetcher: Any, partition: TopicPartition, most: int) -> list[Any] | None:
    """What ``getmany`` does with one partition of which records are at hand, and without what it does before and after."""
    fetched = fetcher._records.get(partition)
    records = getattr(fetched, "_partition_records", None)
    if type(records) is not _PlainRecords or not fetched.check_assignment(partition):
        return None
    found = records.take(most)
    fetched._update_position()
    if records.is_empty:  # so that more are requested
        fetched._partition_records = None
        del fetcher._records[partition]
        fetcher._notify(fetcher._wait_consume_future)
    return found


def _is_known() -> bool:
    """Whether what a fetch brings is built as is assumed here: an error in aiokafka's own task would end all fetching."""
    if tuple(inspect.signature(PartitionRecords.__init__).parameters) != _MADE_FROM:
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


class _PlainRecords(PartitionRecords):  # type: ignore[misc]
    """What one fetch brought of one partition, without deserializers and aborted transactions, as nearly every one is.

    aiokafka makes each record through three calls, one inside the other, behind two loops: most of what reading a record
    costs, more than the gate and a small handler together. Here one loop makes the same records for two thirds of that.
    """

    next_fetch_offset: int
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
