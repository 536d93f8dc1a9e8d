"""A sample of records that cannot be read is None, and nothing else fails."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from aiokcc.core.partitions import Partition
from aiokcc.spark import record_sampler
from aiokcc.spark.finder import Found
from aiokcc.spark.record_sampler import RecordSampler

P = Partition("t", 0)


def settings(port: int) -> Any:
    return SimpleNamespace(
        consumer={}, bootstrap_servers=f"127.0.0.1:{port}", isolation_level="read_committed", group_id=None
    )


async def test_without_a_broker_it_returns_none(unused_tcp_port: int) -> None:
    sampler = RecordSampler(settings(unused_tcp_port))
    async with sampler.open():
        for _ in range(2):
            assert await sampler.mean_size({P: (0, 5)}) is None
            assert not await sampler.are_records({P: Found(0, 1)})
        assert sampler._consumer is None


class Consumer:
    """Lists the partitions that are read at the same time."""

    def __init__(self, **_: Any) -> None:
        self.at: dict[Any, int] = {}
        self.read: list[dict[Any, int]] = []

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def assign(self, places: list[Any]) -> None:
        assert not self.at, "somebody else is reading"

    def seek(self, place: Any, offset: int) -> None:
        self.at[place] = offset

    def unsubscribe(self) -> None:
        self.at = {}

    async def getmany(self, *_: Any, **__: Any) -> dict[Any, list[Any]]:
        await asyncio.sleep(0)
        raise KafkaConnectionError("gone")


async def test_two_concurrent_samples_do_not_move_each_others_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_sampler, "AIOKafkaConsumer", Consumer)
    sampler = RecordSampler(settings(1))
    async with sampler.open(), asyncio.TaskGroup() as tasks:
        for n in range(3):
            tasks.create_task(sampler.mean_size({Partition("t", n): (0, 5)}))
