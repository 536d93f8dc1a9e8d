"""Takes errors out of the exception groups in which task groups wrap them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.abc

__all__ = ["leaves", "main_error", "unwrapped"]


def leaves(error: BaseException) -> list[BaseException]:
    """Returns the errors in a group and in the groups within it, in order; the error itself if it is no group."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in leaves(part)]
    return [error]


def main_error(error: BaseException, prefer: Callable[[BaseException], bool] = lambda _: True) -> BaseException:
    """Returns the one error to raise or to show for a group: the first that is preferred, else the first."""
    every = leaves(error)
    return next(filter(prefer, every), every[0])


@asynccontextmanager
async def unwrapped() -> AsyncIterator[anyio.abc.TaskGroup]:
    """Opens a task group that raises its first error itself, and not inside an exception group."""
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        error = main_error(group, lambda error: not isinstance(error, asyncio.CancelledError))
        raise error from error.__cause__
