"""Partitions that Kafka assigns and revokes, on the memory store and virtual time, with a stand-in for aiokafka's consumer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiokafka import TopicPartition

from aiokcc.core.partitions import Partition
from aiokcc.kafka.kafka_group import run_kafka_group
from aiokcc.kafka.source_options import SourceOptions
from tests.unit.kafka.test_partition_tasks import ONE, ZERO, Process, bounds, process
from tests.unit.world import World
from tests.virtual import settle


class FakeConsumer:
    """Stands in for aiokafka's consumer in a Kafka group."""

    def __init__(self) -> None:
        self.topics: Any = None
        self.pattern: str | None = None
        self.listener: Any = None
        self.positions: dict[TopicPartition, int] = {}

    def subscribe(self, topics: Any = (), *, pattern: str | None = None, listener: Any) -> None:
        self.topics, self.pattern, self.listener = topics, pattern, listener

    def seek(self, where: TopicPartition, offset: int) -> None:
        self.positions[where] = offset

    async def assign(self, *partitions: Partition) -> None:
        await self.listener.on_partitions_assigned({TopicPartition(*p) for p in partitions})

    def revoke(self, *partitions: Partition) -> asyncio.Task[None]:
        return asyncio.create_task(self.listener.on_partitions_revoked({TopicPartition(*p) for p in partitions}))


@asynccontextmanager
async def kafka_group(world: World, **settings: Any) -> AsyncIterator[tuple[Process, FakeConsumer, asyncio.Task[None]]]:
    usual: dict[str, Any] = {"topics": ("orders",), "bootstrap_servers": "", "end": "now", "group_id": "g"}
    source = SourceOptions(**{**usual, **settings}, by_group=True)
    kafka = FakeConsumer()
    consumer: Any = kafka
    async with process(world, group_id="g", by_group=True) as ours:
        running = asyncio.create_task(run_kafka_group(ours.partition_tasks, consumer, source, ours.group))
        await settle()
        try:
            yield ours, kafka, running
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


class TestSubscription:
    async def test_the_topics_are_subscribed_by_name(self, world: World) -> None:
        async with kafka_group(world) as (_, kafka, _):
            assert (kafka.topics, kafka.pattern) == (["orders"], None)

    async def test_a_pattern_matches_whole_names(self, world: World) -> None:
        """For aiokafka a pattern may match anywhere in a name."""
        async with kafka_group(world, pattern=re.compile("orders|bills")) as (_, kafka, _):
            assert kafka.pattern == "^(?:orders|bills)$"


class TestAssigned:
    async def test_partitions_are_read_when_their_locks_are_ours(self, world: World) -> None:
        async with world.connect(offsets=bounds, member="other") as other, kafka_group(world) as (ours, kafka, _):
            async with other.gate("orders", 1):
                await kafka.assign(ZERO, ONE)
                await asyncio.sleep(5)
                assert ours.events == []
            await asyncio.sleep(5)
            assert ours.events == ["begin orders.0 at 0", "begin orders.1 at 0"]

    async def test_aiokafka_gets_a_position_at_once(self, world: World) -> None:
        """It fetches nothing for any partition while one of them has no valid position."""
        async with kafka_group(world) as (_, kafka, _):
            await kafka.assign(ZERO, World.partition(7))
            assert kafka.positions == {TopicPartition("orders", 0): 0, TopicPartition("orders", 7): 0}

    @pytest.mark.parametrize(("end", "begun"), [("now", 1), (None, 2)])
    async def test_a_partition_that_is_newer_than_a_run_with_an_end_is_left_alone(
        self, world: World, end: str | None, begun: int
    ) -> None:
        async with kafka_group(world, end=end) as (ours, kafka, _):
            started: list[set[Partition]] = []

            async def start(partitions: Iterable[Partition]) -> None:
                started.append(set(partitions))

            ours.partition_tasks.start = start
            await kafka.assign(ZERO, World.partition(7))
            await settle()
            assert [len(partitions) for partitions in started] == [begun]

    async def test_it_returns_when_the_run_has_ended(self, world: World) -> None:
        async with kafka_group(world) as (ours, kafka, running):
            ours.finishes = True
            await kafka.assign(ZERO, ONE)
            await running
            assert world.limit.value == 0

    async def test_an_error_of_a_start_is_raised(self, world: World) -> None:
        async def start(partitions: Iterable[Partition]) -> None:
            raise OSError("no lock")

        with pytest.raises(OSError, match="no lock"):
            async with kafka_group(world) as (ours, kafka, _):
                ours.partition_tasks.start = start
                await kafka.assign(ZERO)
                await settle()


class TestRevoked:
    async def test_kafka_gets_its_answer_when_the_handler_has_ended_and_the_lock_is_released(
        self, world: World
    ) -> None:
        async with kafka_group(world) as (ours, kafka, _):
            ours.timestamps[ZERO], ours.takes = [1, 2], 10
            await kafka.assign(ZERO, ONE)
            await asyncio.sleep(5)
            revoked = kafka.revoke(ZERO)
            await asyncio.sleep(4)
            assert not revoked.done()
            assert ours.owners()[0] is not None
            await revoked
            assert ours.events[-2:] == ["end orders.0 1", "commit orders.0 at 1"]
            assert ours.owners()[0] is None
            assert ours.partition_tasks.partitions == {ONE}

    async def test_a_revocation_ends_the_wait_for_locks(self, world: World) -> None:
        """A lock may take as long as the session of a member that has died."""
        async with world.connect(offsets=bounds, member="other") as other, kafka_group(world) as (ours, kafka, _):
            async with other.gate("orders", 1):
                await kafka.assign(ZERO, ONE)
                await asyncio.sleep(5)
                await kafka.revoke(ZERO, ONE)
                assert ours.owners()[0] is None
                await kafka.assign(ZERO)
                await asyncio.sleep(1)
                assert ours.events == ["begin orders.0 at 0"]

    async def test_a_partition_is_stopped_while_another_waits_for_its_lock(self, world: World) -> None:
        async with world.connect(offsets=bounds, member="other") as other, kafka_group(world) as (ours, kafka, _):
            await kafka.assign(ZERO)
            await settle()
            async with other.gate("orders", 1):
                await kafka.assign(ONE)
                await asyncio.sleep(1)
                await kafka.revoke(ZERO)
                assert ours.owners()[0] is None

    async def test_the_next_assignment_ends_the_wait_for_locks_too(self, world: World) -> None:
        async with world.connect(offsets=bounds, member="other") as other, kafka_group(world) as (ours, kafka, _):
            async with other.gate("orders", 1):
                await kafka.assign(ONE)
                await asyncio.sleep(1)
                await kafka.assign(ZERO)
                await asyncio.sleep(1)
                assert ours.events == ["begin orders.0 at 0"]

    async def test_nobody_waits_after_the_end(self, world: World) -> None:
        """At the end aiokafka leaves the group, and tells the listener of its last partitions."""
        async with kafka_group(world) as (ours, kafka, running):
            ours.timestamps[ZERO], ours.takes = [1], 1000
            await kafka.assign(ZERO)
            await asyncio.sleep(1)
            waiting = kafka.revoke(ZERO)
            await asyncio.sleep(1)
            assert not waiting.done()
            running.cancel()
            await asyncio.sleep(1)
            assert not waiting.done(), "offsets of partitions that Kafka has taken away cannot be committed"
            assert ours.partition_tasks.at_close is not None
            ours.partition_tasks.at_close()
            await waiting
            await asyncio.wait_for(kafka.revoke(ZERO), 1)
