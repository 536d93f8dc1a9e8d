"""The fetch loop and aiokafka's own background tasks, on a real broker."""

from __future__ import annotations

from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from aiokcc import local
from aiokcc.core.partitions import Partition
from aiokcc.kafka.cluster import stopping
from aiokcc.kafka.fetch_loop import FetchLoop
from tests.replays import at, topic


async def test_partitions_that_come_one_after_the_other_leave_the_group_in_order(kafka: local.Kafka) -> None:
    """Locks of a killed process come one by one. An assignment while aiokafka looks for the coordinator would end its task."""
    name = await topic(kafka, [at(0)], [at(0)])

    async def ask(question: Awaitable[Any], _: str) -> Any:
        return await question

    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap, group_id=name, enable_auto_commit=False, auto_offset_reset="none"
    )
    cluster: Any = SimpleNamespace(ask=ask)
    member: Any = SimpleNamespace()
    async with stopping(consumer):
        await consumer.start()
        loop = FetchLoop(consumer, cluster, member, assigns=True, fast=True, fetch_ahead=False, batch=10)
        for number in range(2):
            reader: Any = SimpleNamespace(position=0, complete=False)
            loop.add({Partition(name, number): reader})
            await loop.find_coordinator()
        assert await consumer.committed(TopicPartition(name, 0)) is None
        brought: dict[Any, list[Any]] = {}
        while len(brought) < 2:  # it raises if the background task has ended
            brought |= await consumer.getmany(timeout_ms=1000)
