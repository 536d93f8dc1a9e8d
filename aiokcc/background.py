"""Tasks that run beside the body of an ``async with``, and end with it.

A task group around the body would be enough if the body were ours. It is the user's: on leaving, the group's cancel scope
cancels the task in which the body runs, and has to tell its own cancellation from others by counting them. Up to Python
3.12 ``asyncio.TaskGroup`` leaves the count one too high when one of its tasks fails, so that the scope takes its own
cancellation for a foreign one and raises CancelledError in place of the user's error.

So the group is entered in a task of its own. The body's task is cancelled in one case only, as ``asyncio.timeout`` does it:
when one of our tasks has failed while the body still runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.abc

from aiokcc.exception_groups import main_error

__all__ = ["Background"]


class Background:
    """A task group beside the body: ``async with Background() as background: background.tasks.start_soon(...)``.

    Leaving the block cancels the tasks and waits for their end. If one of them fails before that, the body is cancelled and the
    task's error is raised from the block. An error that the body raises itself has priority.

    :param closing: called and awaited when the body is over, before the tasks are cancelled; nothing cancels it
    """

    tasks: anyio.abc.TaskGroup

    def __init__(self, closing: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        self._closing = closing

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._body = asyncio.current_task()
        self._body_runs = True
        self._interrupted = False
        self._over = asyncio.Event()
        entered: asyncio.Future[anyio.abc.TaskGroup] = loop.create_future()
        self._host = loop.create_task(self._run(entered))
        try:
            self.tasks = await entered
        except BaseException:
            await self._end()
            raise
        return self

    async def _run(self, entered: asyncio.Future[anyio.abc.TaskGroup]) -> None:
        async with anyio.create_task_group() as tasks:
            if not entered.done():
                entered.set_result(tasks)
            try:
                await self._over.wait()
            finally:
                if tasks.cancel_scope.cancel_called:  # a task has failed; cancel the body first
                    self._interrupt()
                if self._closing is not None:
                    with anyio.CancelScope(shield=True):
                        await self._closing()
            tasks.cancel_scope.cancel()

    def _interrupt(self) -> None:
        if self._body_runs and self._body is not None:
            self._interrupted = True
            self._body.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._body_runs = False
        if self._interrupted and self._body is not None:
            self._body.uncancel()  # before anything is awaited: from Python 3.13 on this also calls off what is still to come
        cancelled = await self._end()
        failure = None if self._host.cancelled() else self._host.exception()
        if self._interrupted and failure is not None and (error is None or isinstance(error, asyncio.CancelledError)):
            raise main_error(failure) from None
        if error is None and cancelled is not None:
            raise cancelled

    async def _end(self) -> asyncio.CancelledError | None:
        """Cancels the tasks and waits for their end. Returns a cancellation that comes meanwhile, instead of raising it."""
        cancelled: asyncio.CancelledError | None = None
        self._body_runs = False
        self._over.set()
        # Shielded: a cancelled scope around us would wake us in every turn of the event loop.
        with anyio.CancelScope(shield=True):
            while not self._host.done():
                try:
                    await asyncio.wait([self._host])
                except asyncio.CancelledError as error:
                    cancelled = error
        return cancelled
