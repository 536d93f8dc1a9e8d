"""The connection to Kafka where a broker is slow: reads beyond a quota, and closing while a broker says nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiokcc.stores.kafka.client import LogClient, LogSlice
from aiokcc.stores.kafka.wire import ReadAnswer, SlowedDown


class Cluster:
    def leader_for_partition(self, partition: Any) -> int:
        return 0


class Client:
    """Stands for aiokafka's client: it gives these answers, and its connections close when it is told so."""

    def __init__(self, *answers: Any) -> None:
        self.cluster = Cluster()
        self.answers = list(answers)
        self.closed = asyncio.Event()

    async def send(self, node: int, request: Any, *, group: Any) -> Any:
        return self.answers.pop(0)

    async def close(self) -> None:
        await self.closed.wait()


def connected(client: Client) -> LogClient:
    found = LogClient(["127.0.0.1:1"], "log", {}, 5.0)
    found._client = client
    return found


async def test_a_read_beyond_a_quota_waits_as_long_as_the_broker_says(caplog: pytest.LogCaptureFixture) -> None:
    """Its answer has no records, and nothing is broken: to connect again would only cost more."""
    client = connected(Client(SlowedDown(0.7), SlowedDown(0.4), ReadAnswer(0, 9, 2, b"")))
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert await client.fetch(9, 0.5) == LogSlice([], 2, 9)
    assert loop.time() - begun == pytest.approx(1.1)
    assert caplog.text.count("by a quota") == 1


async def test_closing_does_not_wait_for_a_broker_that_says_nothing() -> None:
    """A frozen broker does not answer the farewell of TLS, and the follower connects again to find another one."""
    client = connected(Client())
    async with asyncio.timeout(10):
        await client.close()
