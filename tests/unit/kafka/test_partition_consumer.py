"""A partition consumer alone, without Kafka: when it has reached the end of a run that ends at a time in the future."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from aiokcc.core.limit import Limit
from aiokcc.core.partitions import Partition
from aiokcc.core.run import Bounds
from aiokcc.kafka.partition_consumer import PartitionConsumer
from aiokcc.kafka.summary import Summary
from aiokcc.runtime.signal import Signal

END = 1000


def waiting_consumer(now: list[int]) -> PartitionConsumer:
    """Return a consumer at the end of its log, at offset 5, that waits for records; the clock shows the last of these times."""
    settings: Any = SimpleNamespace(timestamp=None, lateness={}, start="earliest", end=END)
    gate: Any = SimpleNamespace(partition=Partition("t", 0), resume_offset=5, signal=Signal())
    member: Any = SimpleNamespace(clock=lambda: now[-1], progress=SimpleNamespace(limit=Limit((END,))))
    consumer = PartitionConsumer(settings, gate, Bounds(0, None), member, Summary())
    consumer._waiting = True
    return consumer


def test_an_end_that_was_asked_for_before_its_time_is_not_the_runs_end() -> None:
    """The answer comes when the time is over; a record may have come between question and answer."""
    now = [END - 1]
    consumer = waiting_consumer(now)
    asked_at = now[-1]
    now.append(END + 1)
    consumer.note_log_end(5, Limit((END,)), asked_at)
    assert not consumer.complete
    consumer.note_log_end(5, Limit((END,)), now[-1])
    assert consumer.complete
    assert consumer.end == 5
