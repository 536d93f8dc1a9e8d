"""A run in memory ends with its last member; whoever comes after that begins a new one."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

import aiokcc
from aiokcc.errors import GroupMismatchError, RunEnded
from aiokcc.stores.port import Store
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


async def play_a_part(store: str | Store, **settings: Any) -> aiokcc.Group:
    """A run that is left in the middle, as by a cell of a notebook that is interrupted."""
    chosen: dict[str, Any] = {"topics": {"orders": 1}, "period": "1s", "start": 0, **settings}
    async with aiokcc.connect(store, **chosen) as group, group.gate("orders", 0) as gate:
        await gate.wait_until(5000, 7)
    return group


@pytest.mark.parametrize(
    "settings",
    [{}, {"ahead": "2h"}, {"lookahead": 2}, {"topics": {"orders": 1, "payments": 1}}],
    ids=["equal", "ahead", "lookahead", "topics"],
)
async def test_a_run_that_was_left_unfinished_is_over(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "aiokcc.runtime")
    url = f"memory://{uuid.uuid4().hex}"
    kept = await play_a_part(url)
    assert "is over" not in caplog.text
    chosen: dict[str, Any] = {"topics": {"orders": 1}, "period": "1s", "start": 0, **settings}
    async with aiokcc.connect(url, **chosen) as group, group.gate("orders", 0) as gate:
        assert gate.resume_offset is None
        assert group.limit == 1000 * (1 + settings.get("lookahead", 0))
    told = [r.getMessage() for r in caplog.records if "is over" in r.getMessage()]
    assert len(told) == 1
    assert "its last member has left, and a new run begins" in told[0]
    assert not kept.ended


async def test_a_run_that_has_not_ended_goes_on_in_a_store_that_was_opened_for_it() -> None:
    store = aiokcc.open_store(f"memory://{uuid.uuid4().hex}")
    await play_a_part(store)
    async with (
        aiokcc.connect(store, topics={"orders": 1}, period="1s", start=0) as group,
        group.gate("orders", 0) as gate,
    ):
        assert gate.resume_offset == 7
        gate.finish(8)


async def test_members_that_come_together_after_an_unfinished_run_found_one_run() -> None:
    """None of them takes the run that another one has just founded, and not entered yet, for one that was left."""
    url = f"memory://{uuid.uuid4().hex}"
    kept = await play_a_part(url)
    seen: list[int] = []

    async def member(number: int) -> None:
        async with aiokcc.connect(url, topics={"orders": 3}, period="1s", start=0) as group:
            async with group.gate("orders", number) as gate:
                assert gate.resume_offset is None
                await gate.wait_until(2000)
                seen.append(number)
                gate.finish()

    async with asyncio.timeout(20):
        await asyncio.gather(*map(member, range(3)))
    assert sorted(seen) == [0, 1, 2]
    assert not kept.ended


async def test_while_a_member_is_there_an_unfinished_run_goes_on() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    async with aiokcc.connect(url, topics={"orders": 1}, period="1s", start=0):
        await play_a_part(url)
        with pytest.raises(GroupMismatchError):
            await play_a_part(url, ahead="2h")
        async with (
            aiokcc.connect(url, topics={"orders": 1}, period="1s", start=0) as group,
            group.gate("orders", 0) as gate,
        ):
            assert gate.resume_offset == 7


def test_another_event_loop_begins_anew() -> None:
    """As a notebook that calls asyncio.run in each cell, with several members at a time."""
    url = f"memory://{uuid.uuid4().hex}"

    async def cell() -> list[aiokcc.Group]:
        return await asyncio.gather(*(play_a_part_of(number) for number in range(3)))

    async def play_a_part_of(number: int) -> aiokcc.Group:
        async with aiokcc.connect(url, topics={"orders": 3}, period="1s", start=0) as group:
            async with group.gate("orders", number) as gate:
                assert gate.resume_offset is None
                await gate.wait_until(2000, 5)
        return group

    kept = [asyncio.run(cell()), asyncio.run(cell())]
    assert len(kept) == 2
