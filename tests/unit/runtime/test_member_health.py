"""The health of a process that takes part in a group."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import aiokcc
from aiokcc.runtime import member_health
from aiokcc.stores.memory import MemoryStore

SETTINGS: dict[str, Any] = {"topics": {"orders": 2}, "start": 0, "period": "1m", "member": "one"}


async def test_a_member_that_takes_part_is_live_and_ready() -> None:
    async with aiokcc.connect(MemoryStore("health-good"), **SETTINGS) as group, group.gate("orders", 0) as gate:
        await gate.wait_until(0)
        health = await group.health()
        assert (health.live, health.ready, health.stuck) == (True, True, False)
        assert (health.member, health.generation, health.leads) == ("one", 1, True)
        assert health.limit == 60_000


async def test_a_process_whose_own_partition_blocks_is_not_ready() -> None:
    store = MemoryStore("health-stuck")
    store.server.wall_clock = lambda: time.time() - 60  # the limit was written a minute ago
    async with aiokcc.connect(store, **SETTINGS) as group:
        async with group.gate("orders", 0), group.gate("orders", 1):
            health = await group.health()
            assert (health.live, health.ready, health.stuck) == (True, False, True)
            assert health.state == "blocked"
            assert health.blocking_here == ("orders.0", "orders.1")
            assert (await group.health(stuck_after=120)).ready, "it has not stood for that long"


async def test_a_process_is_ready_while_the_limit_moves() -> None:
    async with aiokcc.connect(MemoryStore("health-moving"), **SETTINGS) as group:
        async with group.gate("orders", 0), group.gate("orders", 1):
            health = await group.health(stuck_after=0.0)
            assert (health.state, health.ready, health.stuck) == ("moving", True, False)
            assert health.blocking_here == ("orders.0", "orders.1"), "they have work, which is no reason to be unready"


async def test_a_process_that_waits_for_others_is_ready_although_the_group_is_stuck() -> None:
    async with aiokcc.connect(MemoryStore("health-other"), **SETTINGS) as group, group.gate("orders", 0) as gate:
        waiting = asyncio.ensure_future(gate.wait_until(90_000))
        await asyncio.sleep(0.05)
        health = await group.health(stuck_after=0.0)
        waiting.cancel()
        assert (health.live, health.ready, health.stuck) == (True, True, True)
        assert (health.blocking, health.blocking_here) == (("orders.1",), ())


async def test_without_the_store_it_is_live_but_not_ready() -> None:
    store = MemoryStore("health-away")
    async with aiokcc.connect(store, **SETTINGS) as group:
        store.server.suspend()
        health = await group.health()
        assert (health.state, health.live, health.ready) == ("away", True, False)
        store.server.resume()
        async with asyncio.timeout(5):
            while not (await group.health()).ready:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)


async def test_a_status_that_takes_too_long_says_that_the_store_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(member_health, "read_status", never)
    async with aiokcc.connect(MemoryStore("health-slow"), **SETTINGS) as group:
        health = await group.health()
        assert (health.state, health.live, health.ready) == ("away", True, False)
        assert health.why == "The status cannot be read: the store does not answer"


async def test_a_process_that_cannot_go_on_is_not_live() -> None:
    async with aiokcc.connect(MemoryStore("health-failed"), **SETTINGS) as group:
        group.membership.failure = aiokcc.MissingNodeError("/replay/generation")
        health = await group.health()
        group.membership.failure = None
        assert (health.state, health.live, health.ready) == ("failed", False, False)
        assert "/replay/generation" in health.why


async def test_it_shows_no_password() -> None:
    async with aiokcc.connect(MemoryStore("health-masked"), **SETTINGS) as group:
        group.membership.failure = aiokcc.StoreError("zk://ann:hunter2@h:2181/replay refuses us")
        health = await group.health()
        group.membership.failure = None
        assert "refuses us" in health.why
        assert "hunter2" not in health.why


async def test_it_can_be_written_as_json() -> None:
    async with aiokcc.connect(MemoryStore("health-json"), **SETTINGS) as group:
        assert (await group.health()).as_dict()["member"] == "one"
