"""A session in a task of its own.

A store may run tasks behind a session, in a group that must be left by the task that entered it, the last entered first.
Fixtures are set up and torn down in different tasks, and programs close sessions in any order. So each has its own task.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiokcc.stores import Session, Store


@contextlib.asynccontextmanager
async def kept(store: Store) -> AsyncIterator[Session]:
    """Give an open session. Any task may enter and leave this context."""
    opened: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
    leave = asyncio.Event()

    async def keep() -> None:
        async with store.session() as session:
            opened.set_result(session)
            await leave.wait()

    keeping = asyncio.create_task(keep())
    await asyncio.wait((opened, keeping), return_when=asyncio.FIRST_COMPLETED)
    if not opened.done():
        opened.cancel()
        await keeping  # raises what went wrong
    yield opened.result()
    leave.set()
    await keeping
