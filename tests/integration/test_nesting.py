"""Errors and cancellations pass through our blocks, nested with task groups and timeouts, unchanged: on real services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import aiokcc
from aiokcc import local
from tests.nesting import WAYS, Block, nothing, outcome
from tests.replays import at, replaying, topic


@pytest.mark.parametrize("block", ["session", "gate"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_on_zookeeper_what_comes_out_is_what_would_without_us(zk_root: str, way: Any, block: str) -> None:
    @asynccontextmanager
    async def gate() -> AsyncIterator[Any]:
        async with (
            aiokcc.connect(zk_root, topics={"orders": 1}, period="1m", start=at(0)) as group,
            group.gate("orders", 0) as gate,
        ):
            yield gate

    blocks: dict[str, Block] = {"session": aiokcc.open_store(zk_root).session, "gate": gate}
    assert await outcome(way, blocks[block]) == await outcome(way, nothing)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_in_the_middle_of_a_replay_what_comes_out_is_what_would_without_us(kafka: local.Kafka, way: Any) -> None:
    name = await topic(kafka, [at(m) for m in range(3)])

    @asynccontextmanager
    async def reading() -> AsyncIterator[Any]:
        async with replaying(kafka, name) as replay:
            async for record in replay:
                yield record
                return

    assert await outcome(way, reading) == await outcome(way, nothing)
