"""What we ask of aiokafka's fetcher, and it has no setting for.

It relies on how the fetcher is built, which nobody promises. Where that looks different from what is known here, nothing is
changed: then reading is slower, and everything else is the same.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.consumer.fetcher import PartitionRecords
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


def prepare_fetcher(consumer: AIOKafkaConsumer) -> None:
    """To be called when the consumer has started, before it is told its partitions."""
    fetcher: Any = getattr(consumer, "_fetcher", None)
    if hasattr(fetcher, "_prefetch_backoff"):
        # For 0.1 s after each fetch aiokafka asks a broker for nothing while it holds anything unread of it: whoever does
        # not read is to slow down. Here one partition waits at the limit, and the others must not wait for it.
        fetcher._prefetch_backoff = 0.0
    if _is_known() and type(getattr(fetcher, "_records", None)) is OrderedDict and not fetcher._records:
        fetcher._records = _Fetched()


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

    aiokafka makes each record through three calls, one inside the other: most of what reading a record costs, more than the
    gate and a small handler together. Here one loop makes the same records for three quarters of that.
    """

    next_fetch_offset: int

    def __iter__(self) -> Iterator[Any]:
        return self._records_iterator  # type: ignore[no-any-return]

    def _unpack_records(self) -> Iterator[Any]:
        topic, partition = self._tp
        batches, checked = self._records, self._check_crcs
        while batches.has_next():
            batch = batches.next_batch()
            if checked and not batch.validate_crc():
                raise CorruptRecordException(f"a batch of {topic}.{partition} does not match its checksum")
            if not batch.is_control_batch:
                first = self.next_fetch_offset  # a batch comes whole, also what is before the offset that was asked for
                for raw in batch:
                    offset = raw.offset
                    if offset < first:
                        continue
                    key, value, headers = raw.key, raw.value, raw.headers
                    self.next_fetch_offset = offset + 1
                    yield ConsumerRecord(
                        topic,
                        partition,
                        offset,
                        raw.timestamp,
                        raw.timestamp_type,
                        key,
                        value,
                        raw.checksum,
                        -1 if key is None else len(key),
                        -1 if value is None else len(value),
                        tuple(headers) if headers else (),
                    )
            self.next_fetch_offset = batch.next_offset
