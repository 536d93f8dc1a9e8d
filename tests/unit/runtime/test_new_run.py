"""A run in memory ends with its last member; whoever comes after that begins a new one."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

import aiokcc
from aiokcc.errors import RunEnded
from tests.virtual import settle


async def play(url: str, stamps: list[int], **settings: Any) -> aiokcc.Group:
    """One run from beginning to end, as in a cell of a notebook; what it returns keeps the tree alive."""
    chosen: dict[str, Any] = {"topics": {"orders": 1}, "period": "1s", "start": 0, **settings}
    async with aiokcc.connect(url, **chosen) as group:
        async with group.gate("orders", 0) as gate:
            assert gate.resume_offset is None
            assert group.limit == 1000
            for offset, ts in enumerate(stamps):
                await gate.wait_until(ts, offset)
            gate.finish(len(stamps))
        await settle()
        assert group.ended
    return group


async def test_a_second_run_under_the_same_name_begins_anew() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    kept = [await play(url, [5, 1005]), await play(url, [7, 3007]), await play(url, [9], ahead="2h")]
    assert all(group.ended for group in kept)


async def test_while_a_member_is_there_the_run_has_ended() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    async with aiokcc.connect(url, topics={"orders": 1}, period="1s", start=0) as group:
        async with group.gate("orders", 0) as gate:
            gate.finish(0)
        await settle()
        assert group.ended
        with pytest.raises(RunEnded):
            await play(url, [5])
    assert (await play(url, [5])).ended


async def test_members_that_come_together_found_one_run() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    kept = await play(url, [5])

    async def member(number: int) -> None:
        async with aiokcc.connect(url, topics={"orders": 3}, period="1s", start=0) as group:
            async with group.gate("orders", number) as gate:
                await gate.wait_until(2000)
                gate.finish()

    await asyncio.gather(*map(member, range(3)))
    assert kept.ended


async def test_a_run_that_has_not_ended_goes_on() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    kept = aiokcc.open_store(url)
    settings: dict[str, Any] = {"topics": {"orders": 1}, "period": "1s", "start": 0}
    async with aiokcc.connect(kept, **settings) as group, group.gate("orders", 0) as gate:
        await gate.wait_until(5000, 7)
    async with aiokcc.connect(url, **settings) as group, group.gate("orders", 0) as gate:
        assert gate.resume_offset == 7
        gate.finish(8)
