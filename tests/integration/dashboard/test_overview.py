"""The list of the groups under a prefix, on a real ZooKeeper with access lists."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

import aiokcc
from aiokcc import local
from aiokcc.dashboard.overview import Overview
from aiokcc.stores import open_store
from tests import kafka_topics
from tests.integration.cli.commands import line_with, started


async def rows_of(overview: Overview, number: int) -> list[Any]:
    """Wait until the list has so many rows, and return the name and the state of each."""
    async for event in overview.channel.read(list):
        for line in event.decode().splitlines():
            if line.startswith("data: "):
                seen = json.loads(line.removeprefix("data: "))
                assert "table" in seen, seen["missing"]
                if len(seen["table"]["rows"]) == number:
                    return [row[:2] for row in seen["table"]["rows"]]
    raise AssertionError("the list has ended")


async def test_a_group_in_kafka_that_does_not_exist_yet_is_waited_for(kafka: local.Kafka) -> None:
    """Its topic does not exist, and what does not exist cannot be watched there."""
    url = f"kafka://{kafka.bootstrap}/{kafka_topics.fresh_name('waited')}"
    async with asyncio.timeout(60), started("dashboard", url, "--listen", "127.0.0.1:0") as process:
        assert "There is no group under" in await line_with(process, "the page waits")
        address = (await line_with(process, "http://")).split()[0]
        async with httpx.AsyncClient(timeout=30) as client, client.stream("GET", f"{address}/events") as page:
            lines = page.aiter_lines()
            await until_line(lines, '"missing":')
            async with aiokcc.connect(url, member="late", topics={"t": 1}, period="1m", start=0):
                await until_line(lines, '"verdict":')


async def until_line(lines: AsyncIterator[str], part: str) -> None:
    async for line in lines:
        if part in line:
            return
    raise AssertionError(f"the stream ended without {part}")


async def test_a_group_that_may_not_be_read_does_not_hide_the_others(zk_root: str) -> None:
    settings: dict[str, Any] = {"topics": {"t": 1}, "period": "1m", "start": 0}
    async with open_store(zk_root, auth=("ann", "secret"), acl="open").session() as session:
        await session.ensure("")
    overview = Overview(open_store(zk_root))
    async with asyncio.timeout(60), aiokcc.connect(f"{zk_root}/one", member="a", **settings):
        following = asyncio.ensure_future(overview.run())
        try:
            assert await rows_of(overview, 1) == [["one", "running"]]
            private = open_store(f"{zk_root}/private", auth=("ann", "secret"), acl="creator")
            async with aiokcc.connect(private, member="b", **settings):
                assert await rows_of(overview, 2) == [["one", "running"], ["private", "no permission"]]
                async with aiokcc.connect(f"{zk_root}/two", member="c", **settings):
                    assert await rows_of(overview, 3) == [
                        ["one", "running"],
                        ["private", "no permission"],
                        ["two", "running"],
                    ]
                    async with started("dashboard", zk_root, "--listen", "127.0.0.1:0") as process:
                        assert "of the 3 groups under" in await line_with(process, "The dashboard")
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
