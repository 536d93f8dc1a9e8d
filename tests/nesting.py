"""Ways in which programs nest our blocks with those of asyncio and anyio, and their outcomes.

Each way takes a block and runs it. Its outcome must equal the outcome with a block that does nothing: :func:`outcome` runs a
way and describes the end, so that a test compares the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["WAYS", "Block", "nothing", "outcome"]

Block = Callable[[], AbstractAsyncContextManager[Any]]
Way = Callable[[Block], Awaitable[None]]

LONG: Final = 20.0
SHORT: Final = 0.01


@asynccontextmanager
async def nothing() -> AsyncIterator[None]:
    """Do nothing, in a block of plain asyncio."""
    yield


async def fail() -> None:
    await asyncio.sleep(SHORT)
    raise ValueError("the user's")


async def fail_when_cancelled() -> None:
    try:
        await asyncio.sleep(LONG)
    except asyncio.CancelledError:
        raise ValueError("the user's") from None


def expire(timeout: asyncio.Timeout) -> None:
    """Let a timeout expire soon. It starts with the body, however long the block takes to open."""
    timeout.reschedule(asyncio.get_running_loop().time() + SHORT)


# -- inside the block


async def plain_inside(block: Block) -> None:
    async with block():
        await fail()


async def task_group_inside(block: Block) -> None:
    async with block(), asyncio.TaskGroup() as tasks:
        tasks.create_task(fail())
        tasks.create_task(asyncio.sleep(LONG))


async def task_group_inside_and_busy(block: Block) -> None:
    async with block(), asyncio.TaskGroup() as tasks:
        tasks.create_task(fail())
        await asyncio.sleep(LONG)


async def task_group_inside_and_handled(block: Block) -> None:
    async with block():
        try:
            await task_group_inside(nothing)
        except* ValueError:
            pass
        await asyncio.sleep(SHORT)


async def task_group_inside_and_handled_then_timeout(block: Block) -> None:
    async with block():
        try:
            await task_group_inside_and_busy(nothing)
        except* ValueError:
            pass
        async with asyncio.timeout(SHORT):
            await asyncio.sleep(LONG)


async def nested_task_groups_inside(block: Block) -> None:
    async with block(), asyncio.TaskGroup() as outer:
        outer.create_task(task_group_inside(nothing))
        outer.create_task(asyncio.sleep(LONG))


async def gather_inside(block: Block) -> None:
    async with block():
        await asyncio.gather(fail(), asyncio.sleep(SHORT))


async def timeout_inside(block: Block) -> None:
    async with block(), asyncio.timeout(SHORT):
        await asyncio.sleep(LONG)


async def wait_for_inside(block: Block) -> None:
    async with block():
        await asyncio.wait_for(asyncio.sleep(LONG), SHORT)


async def anyio_group_inside(block: Block) -> None:
    async with block(), anyio.create_task_group() as tasks:
        tasks.start_soon(fail)
        tasks.start_soon(asyncio.sleep, LONG)


async def anyio_deadline_inside(block: Block) -> None:
    async with block():
        with anyio.fail_after(SHORT):
            await asyncio.sleep(LONG)


# -- around it


async def task_group_around(block: Block) -> None:
    async with asyncio.TaskGroup() as tasks, block():
        tasks.create_task(fail())
        await asyncio.sleep(LONG)


async def task_group_around_its_task(block: Block) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(plain_inside(block))
        tasks.create_task(asyncio.sleep(LONG))


async def task_groups_around_and_inside(block: Block) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(task_group_inside(block))
        tasks.create_task(asyncio.sleep(LONG))


async def gather_around(block: Block) -> None:
    await asyncio.gather(plain_inside(block), asyncio.sleep(SHORT))


async def timeout_around(block: Block) -> None:
    async with asyncio.timeout(None) as timeout, block():
        expire(timeout)
        await asyncio.sleep(LONG)


async def timeout_around_a_task_group(block: Block) -> None:
    async with asyncio.timeout(None) as timeout, block(), asyncio.TaskGroup() as tasks:
        expire(timeout)
        tasks.create_task(asyncio.sleep(LONG))


async def timeout_around_a_task_that_fails_of_it(block: Block) -> None:
    async with asyncio.timeout(None) as timeout, block(), asyncio.TaskGroup() as tasks:
        expire(timeout)
        tasks.create_task(fail_when_cancelled())


async def anyio_group_around(block: Block) -> None:
    async with anyio.create_task_group() as tasks, block():
        tasks.start_soon(fail)
        await asyncio.sleep(LONG)


async def anyio_deadline_around(block: Block) -> None:
    with anyio.fail_after(LONG) as scope:
        async with block():
            scope.deadline = anyio.current_time() + SHORT
            await asyncio.sleep(LONG)


async def anyio_move_on_around(block: Block) -> None:
    with anyio.move_on_after(LONG) as scope:
        async with block(), asyncio.TaskGroup() as tasks:
            scope.deadline = anyio.current_time() + SHORT
            tasks.create_task(asyncio.sleep(LONG))


async def cancelled_from_outside(block: Block) -> None:
    async def body() -> None:
        async with block():
            ready.set()
            await asyncio.sleep(LONG)

    ready = asyncio.Event()
    task = asyncio.create_task(body())
    await ready.wait()
    task.cancel()
    await task


async def cancelled_from_outside_in_a_task_group(block: Block) -> None:
    async def body() -> None:
        async with block(), asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(LONG))
            ready.set()

    ready = asyncio.Event()
    task = asyncio.create_task(body())
    await ready.wait()
    task.cancel()
    await task


WAYS: Final[tuple[Way, ...]] = (
    plain_inside,
    task_group_inside,
    task_group_inside_and_busy,
    task_group_inside_and_handled,
    task_group_inside_and_handled_then_timeout,
    nested_task_groups_inside,
    gather_inside,
    timeout_inside,
    wait_for_inside,
    anyio_group_inside,
    anyio_deadline_inside,
    task_group_around,
    task_group_around_its_task,
    task_groups_around_and_inside,
    gather_around,
    timeout_around,
    timeout_around_a_task_group,
    timeout_around_a_task_that_fails_of_it,
    anyio_group_around,
    anyio_deadline_around,
    anyio_move_on_around,
    cancelled_from_outside,
    cancelled_from_outside_in_a_task_group,
)


async def outcome(way: Way, block: Block) -> tuple[str, int]:
    """Run a way in a task of its own. Return its result or error, and the number of cancellations that its task was left with.

    The latter tells the next ``asyncio.timeout`` or task group in that task whether it has been cancelled from outside.
    """

    async def run() -> tuple[str, int]:
        raised: BaseException | None = None
        try:
            await way(block)
        except BaseException as error:  # noqa: BLE001 - that is what is looked at
            raised = error
        task = asyncio.current_task()
        assert task is not None
        cancellations = task.cancelling()
        await asyncio.sleep(0)  # a cancellation that was still to come would come here
        return _described(raised), cancellations

    return await asyncio.create_task(run())


def _described(error: BaseException | None) -> str:
    if isinstance(error, BaseExceptionGroup):
        return f"{type(error).__name__}[{', '.join(map(_described, error.exceptions))}]"
    if isinstance(error, asyncio.CancelledError):  # its message names the scope, and tells nothing
        return "CancelledError()"
    return repr(error)
