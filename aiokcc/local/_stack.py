"""ZooKeeper and Kafka, started together."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._kafka import Kafka, kafka
from ._process import gather_or_cancel
from ._zookeeper import ZooKeeper, zookeeper

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@dataclass(frozen=True, slots=True)
class Stack:
    """The running services."""

    zookeeper: ZooKeeper
    kafka: Kafka


@contextlib.asynccontextmanager
async def up(*, progress: Callable[[str], None] | None = None) -> AsyncIterator[Stack]:
    """Start a ZooKeeper and a Kafka broker on 127.0.0.1 at the same time; both end with the context or with this process.

    `zookeeper` and `kafka` start one service and have more options. `progress` is called with lines of text while Kafka's jars
    are fetched.

    Raises:
        LocalServiceError: one of them could not be started; the other one was ended.
    """
    async with contextlib.AsyncExitStack() as stack:
        zk = asyncio.ensure_future(stack.enter_async_context(zookeeper()))
        broker = asyncio.ensure_future(stack.enter_async_context(kafka(progress=progress)))
        await gather_or_cancel(zk, broker)
        yield Stack(zk.result(), broker.result())
