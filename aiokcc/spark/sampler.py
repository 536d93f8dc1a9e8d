"""How large records are: nothing tells but reading some.

A job is bounded in bytes, and offsets only count records. So a few records are read where the next batch begins, by a consumer
that lives as long as that takes. It is an estimate, and a failure to make it stops nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError as AiokafkaError

from aiokcc.core.partitions import Partition
from aiokcc.kafka.cluster import consumer_settings, stopping
from aiokcc.kafka.settings import ReplaySettings

__all__ = ["mean_size"]

log = logging.getLogger("aiokcc.spark")

_PARTITIONS: Final = 6
_SECONDS: Final = 2.0
_OVERHEAD: Final = 40
"""Bytes of a row besides key and value: topic, partition, offset, timestamp."""


async def mean_size(settings: ReplaySettings, positions: Mapping[Partition, tuple[int, int]]) -> float | None:
    """The mean size of records of these offset ranges, by a sample; None if there is none to be had."""
    full = sorted((p for p, (start, end) in positions.items() if start < end), key=lambda p: p.number)[:_PARTITIONS]
    if not full:
        return None
    sizes = {**consumer_settings(settings), "max_partition_fetch_bytes": 64 * 1024, "fetch_max_wait_ms": 10}
    count = total = 0
    try:
        consumer = AIOKafkaConsumer(**sizes, group_id=None)
        async with stopping(consumer), asyncio.timeout(_SECONDS):
            await consumer.start()
            consumer.assign([TopicPartition(*p) for p in full])
            for partition in full:
                consumer.seek(TopicPartition(*partition), positions[partition][0])
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                count += len(records)
                total += sum(max(0, r.serialized_key_size) + max(0, r.serialized_value_size) for r in records)
    except (TimeoutError, AiokafkaError) as error:
        log.debug("could not look at the size of records: %r", error)
    return total / count + _OVERHEAD if count else None
