"""The channel from one feed to many pages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiokcc.dashboard.channel import Channel


async def reading(channel: Channel) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(channel.read(lambda: [b"begin"])) as stream:
        async for part in stream:
            yield part


async def test_a_page_gets_the_present_state_and_then_what_changes() -> None:
    channel = Channel()
    channel.set_state("view", 1)
    page = channel.read(lambda: [b"begin"])
    assert (await anext(page)).endswith(b"begin")
    assert await anext(page) == b"event: view\ndata: 1\n\n"
    channel.set_state("view", 2)
    channel.add_moment("sample", 3)
    assert await anext(page) == b"event: view\ndata: 2\n\nevent: sample\ndata: 3\n\n"
    await page.aclose()


async def test_a_slow_page_skips_states_but_not_the_last_one() -> None:
    channel = Channel()
    page = channel.read(list)
    await anext(page)
    for number in range(10_000):
        channel.set_state("view", number)
    assert await anext(page) == b"event: view\ndata: 9999\n\n"
    await page.aclose()


async def test_the_same_state_wakes_nobody() -> None:
    channel = Channel()
    page = channel.read(list)
    await anext(page)
    channel.set_state("view", 1)
    await anext(page)
    waiting = asyncio.ensure_future(anext(page))
    await asyncio.sleep(0)
    channel.set_state("view", 1)
    await asyncio.sleep(0)
    assert not waiting.done()
    channel.close()
    with contextlib.suppress(StopAsyncIteration):
        await waiting


async def test_pages_that_come_and_go_leave_nothing() -> None:
    channel = Channel()
    for _ in range(100):
        page = channel.read(list)
        await anext(page)
        assert channel.pages == 1
        await page.aclose()
    assert channel.pages == 0


async def test_closing_ends_every_page() -> None:
    channel = Channel()

    async def read() -> int:
        return len([part async for part in reading(channel)])

    async with asyncio.TaskGroup() as tasks:
        pages = [tasks.create_task(read()) for _ in range(50)]
        while channel.pages < 50:  # noqa: ASYNC110 - a few turns of the loop
            await asyncio.sleep(0)
        channel.close()
    assert [page.result() for page in pages] == [1] * 50
    assert channel.pages == 0
