"""Errors and cancellations pass through our blocks unchanged if these are nested with task groups and timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from aiokcc.errors import MissingNodeError
from aiokcc.stores.port import ANY_VERSION
from tests.nesting import WAYS, Block, nothing, outcome
from tests.unit.world import PERIOD, World
from tests.virtual import settle


def blocks(world: World) -> dict[str, Block]:
    @asynccontextmanager
    async def gate() -> AsyncIterator[Any]:
        async with world.connect() as group, group.gate("orders", 0) as gate:
            yield gate

    return {"session": world.store.session, "connect": world.connect, "gate": gate}


@pytest.mark.parametrize("block", ["session", "connect", "gate"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_an_error_comes_out_as_it_would_without_our_block(world: World, way: Any, block: str) -> None:
    assert await outcome(way, blocks(world)[block]) == await outcome(way, nothing)
    assert world.below("ids") == []  # and whoever was there has left


@pytest.mark.parametrize("block", ["session", "connect", "gate"])
async def test_the_users_error_comes_out(world: World, block: str) -> None:
    """The test above only compares two outcomes; here the expected one is written out."""
    with pytest.raises(ExceptionGroup) as raised:
        async with blocks(world)[block](), asyncio.TaskGroup() as tasks:
            tasks.create_task(_fail())
            tasks.create_task(asyncio.sleep(60))
    (error,) = raised.value.exceptions
    assert isinstance(error, ValueError)


async def _fail() -> None:
    raise ValueError("the user's")


# -- what the group itself has to say


async def _in_a_task_group() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.sleep(60))


async def _in_a_busy_task_group() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.sleep(60))
        await asyncio.sleep(60)


async def _in_an_anyio_group() -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asyncio.sleep, 60)


async def _under_a_timeout() -> None:
    async with asyncio.timeout(60):
        await asyncio.sleep(60)


async def _gathered() -> None:
    await asyncio.gather(asyncio.sleep(60), asyncio.sleep(60))


@pytest.mark.parametrize(
    "body",
    [_in_a_task_group, _in_a_busy_task_group, _in_an_anyio_group, _under_a_timeout, _gathered],
    ids=lambda body: body.__name__,
)
async def test_an_error_of_the_group_reaches_a_body_that_waits_for_something_else(world: World, body: Any) -> None:
    task = asyncio.current_task()
    assert task is not None
    async with world.store.session() as hand:
        deleting: asyncio.Task[None] | None = None
        with pytest.raises(MissingNodeError):
            async with asyncio.timeout(10), world.connect():
                await settle()
                deleting = asyncio.create_task(hand.delete("generation", ANY_VERSION))
                await body()
        assert deleting is not None
        await deleting
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_block_may_be_left_in_another_task(world: World) -> None:
    """As the fixtures of some test frameworks do."""
    block = world.connect()
    group = await asyncio.create_task(block.__aenter__())
    assert group.limit > 0
    await asyncio.create_task(block.__aexit__(None, None, None))
    assert world.below("ids") == []


async def test_cancelled_twice_the_block_is_left_all_the_same(world: World) -> None:
    async def body() -> None:
        async with world.connect():
            ready.set()
            await asyncio.sleep(60)

    ready = asyncio.Event()
    task = asyncio.create_task(body())
    await ready.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.below("ids") == []


async def test_the_end_of_the_run_ends_a_gates_block_also_through_a_task_group(world: World) -> None:
    async with world.connect(topics={"orders": 1}, end=2 * PERIOD) as group:
        async with group.gate("orders", 0) as gate, asyncio.TaskGroup() as tasks:
            tasks.create_task(gate.wait_until(5 * PERIOD))
        assert group.ended
