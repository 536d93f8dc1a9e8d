"""The loop that hands records to the handler, on the memory store and virtual time, with lists instead of a broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import aiokcc
from aiokcc.core.run import Bounds
from aiokcc.errors import HandlerError, PoisonTimestampError
from aiokcc.kafka.consumer_policy import ConsumerPolicy
from aiokcc.kafka.fetch_loop import FetchLoop
from aiokcc.kafka.partition_consumer import PartitionConsumer
from aiokcc.kafka.partition_feed import PartitionFeed
from aiokcc.kafka.source_options import SourceOptions
from aiokcc.kafka.summary import Summary
from tests.unit.world import PERIOD, World
from tests.virtual import settle


@pytest.fixture(autouse=True)
def virtual_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("partition_consumer", "exceptional_records"):
        monkeypatch.setattr(f"aiokcc.kafka.{module}.boottime", world.time)


class Lists(FetchLoop):
    """Hands out lists of three records, as if they had been fetched already."""

    def __init__(self, *timestamps: Any) -> None:
        records = [SimpleNamespace(topic="t", partition=0, offset=n, timestamp=ts) for n, ts in enumerate(timestamps)]
        self._lists: list[list[Any]] = [records[n : n + 3] for n in range(0, len(records), 3)]

    async def fetch_now(self, feed: PartitionFeed) -> bool:
        if self._lists:
            feed.add_records(self._lists.pop(0))
            return True
        return False

    def wake(self) -> None:
        pass


def consumer_of(group: aiokcc.Group, gate: aiokcc.Gate, *timestamps: Any, **policy: Any) -> PartitionConsumer:
    source = SourceOptions(topics=("orders",), bootstrap_servers="")
    bounds = Bounds(0, len(timestamps))
    consumer = PartitionConsumer(source, ConsumerPolicy(**policy), gate, bounds, group.membership, Summary())
    consumer.fetch_loop = Lists(*timestamps)
    return consumer


class TestInOrder:
    async def test_every_record_is_handled_once_in_the_order_of_the_log(self, world: World) -> None:
        seen: list[int] = []
        async with world.connect(topics={"orders": 1}) as group, group.gate("orders", 0) as gate:
            consumer = consumer_of(group, gate, 0, 5, 5, PERIOD, 3 * PERIOD, 3 * PERIOD + 1, 9 * PERIOD)
            await consumer.run(lambda record: seen.append(record.offset))
        assert seen == list(range(7))
        assert (consumer.next_offset, consumer._summary.records) == (7, 7)

    async def test_no_record_past_the_limit_starts(self, world: World) -> None:
        seen: list[int] = []
        async with world.connect() as group, group.gate("orders", 0) as gate, group.gate("orders", 1) as other:
            consumer = consumer_of(group, gate, 0, PERIOD, PERIOD + 1, 2 * PERIOD)
            running = asyncio.ensure_future(consumer.run(lambda record: seen.append(record.offset)))
            await settle()
            assert seen == [0]
            other.finish()
            await running
        assert seen == [0, 1, 2, 3]

    async def test_a_handler_that_raises_leaves_its_record_unprocessed(self, world: World) -> None:
        def handle(record: Any) -> None:
            if record.offset == 4:
                raise ValueError("no")

        async with world.connect(topics={"orders": 1}) as group, group.gate("orders", 0) as gate:
            consumer = consumer_of(group, gate, 0, 1, 2, 3, 4, 5)
            with pytest.raises(HandlerError, match="ValueError"):
                await consumer.run(handle)
            assert (consumer.next_offset, consumer._summary.records) == (4, 4)

    async def test_an_unusable_timestamp_is_skipped_or_raises(self, world: World) -> None:
        seen: list[int] = []
        async with world.connect(topics={"orders": 1}) as group, group.gate("orders", 0) as gate:
            with pytest.raises(PoisonTimestampError):
                await consumer_of(group, gate, -1).run(seen.append)
            consumer = consumer_of(group, gate, 0, -1, 2, poison="skip")
            await consumer.run(lambda record: seen.append(record.offset))
        assert seen == [0, 2]
        assert (consumer._summary.records, consumer._summary.skipped, consumer._summary.poisoned) == (2, 1, 1)

    @pytest.mark.parametrize("what", ["poison", "late"])
    async def test_the_policies_leave_the_records_of_a_revoked_partition_to_its_next_owner(
        self, world: World, what: str
    ) -> None:
        """They were fetched already. A record that the next owner skips, or writes to the dead letters, is not taken twice."""
        timestamps = (PERIOD, *([-1] * 2 if what == "poison" else [0] * 2))
        async with world.connect(topics={"orders": 1}) as group, group.gate("orders", 0) as gate:
            consumer = consumer_of(group, gate, *timestamps, poison="skip", late="drop")

            def handle(record: Any) -> None:
                group.membership.revoke(gate)

            with pytest.raises(aiokcc.PartitionRevoked):
                await consumer.run(handle)
            assert (consumer.next_offset, consumer._summary.records, consumer._summary.skipped) == (1, 1, 0)

    async def test_batches_hold_records_of_one_period(self, world: World) -> None:
        seen: list[list[int]] = []
        async with world.connect(topics={"orders": 1}) as group, group.gate("orders", 0) as gate:
            consumer = consumer_of(group, gate, 0, PERIOD, PERIOD + 1, 2 * PERIOD)
            await consumer.run_batches(lambda records: seen.append([record.offset for record in records]))
        assert seen == [[0], [1, 2], [3]]


class TestLateness:
    async def test_an_earlier_record_within_the_bound_comes_in_its_period(self, world: World) -> None:
        seen: list[int] = []
        async with world.connect(topics={"orders": 1}) as group, group.gate("orders", 0) as gate:
            consumer = consumer_of(
                group, gate, 0, PERIOD, PERIOD - 1, 2 * PERIOD, PERIOD + 1, lateness={"orders": PERIOD // 2}
            )
            await consumer.run(lambda record: seen.append(record.offset))
        assert seen == [0, 2, 1, 4, 3]
        assert (consumer.next_offset, consumer._summary.late) == (5, 0)

    async def test_without_a_bound_it_is_late(self, world: World) -> None:
        seen: list[int] = []
        async with world.connect(topics={"orders": 1}) as group, group.gate("orders", 0) as gate:
            consumer = consumer_of(group, gate, 0, PERIOD, PERIOD - 1, late="drop")
            await consumer.run(lambda record: seen.append(record.offset))
        assert seen == [0, 1]
        assert (consumer._summary.late, consumer._summary.skipped) == (1, 1)

    async def test_the_policies_leave_the_records_of_a_revoked_partition_to_its_next_owner(self, world: World) -> None:
        async with world.connect(topics={"orders": 1}) as group, group.gate("orders", 0) as gate:
            timestamps = (2 * PERIOD, 2 * PERIOD + PERIOD // 2 + 1, -1)
            consumer = consumer_of(group, gate, *timestamps, lateness={"orders": PERIOD // 2}, poison="skip")

            def handle(record: Any) -> None:
                if record.offset == 1:
                    group.membership.revoke(gate)

            with pytest.raises(aiokcc.PartitionRevoked):
                await consumer.run(handle)
            assert (consumer.next_offset, consumer._summary.records, consumer._summary.skipped) == (2, 2, 0)
