"""When a partition's stream has reached the end of a run that ends at a time still to come. Without Kafka."""

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


def waiting_stream(now: list[int]) -> PartitionConsumer:
    """A stream at the end of its log, at offset 5, that waits for records; the clock shows the last of these times."""
    settings: Any = SimpleNamespace(timestamp=None, lateness={}, start="earliest", end=END)
    gate: Any = SimpleNamespace(partition=Partition("t", 0), resume_offset=5, signal=Signal())
    member: Any = SimpleNamespace(clock=lambda: now[-1], member_progress=SimpleNamespace(limit=Limit((END,))))
    stream = PartitionConsumer(settings, gate, Bounds(0, None), member, Summary())
    stream._waiting = True
    return stream


def test_an_end_that_was_asked_for_before_its_time_is_not_the_runs_end() -> None:
    """The answer comes when the time is over; a record may have come between question and answer."""
    now = [END - 1]
    stream = waiting_stream(now)
    asked_at = now[-1]
    now.append(END + 1)
    stream.log_ends_at(5, Limit((END,)), asked_at)
    assert not stream.complete
    stream.log_ends_at(5, Limit((END,)), now[-1])
    assert stream.complete
    assert stream.end == 5
