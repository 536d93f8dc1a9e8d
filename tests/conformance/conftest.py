"""One suite for all stores. ``store`` is each of them in turn, with a root that no other test uses.

The ZooKeeper half needs the real server of ``tests/conftest.py``; ``-m "not service"`` leaves it out.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from aiokcc.stores import Session, Store, open_store
from tests.conformance.kept import kept


def new_store(kind: str, request: pytest.FixtureRequest) -> Store:
    """Return a store of this kind under a root that no other test uses. If no server can be started, the test fails."""
    unique = uuid.uuid4().hex[:12]
    if kind == "memory":
        return open_store(f"memory://conformance-{unique}/root")
    return open_store(f"zk://{request.getfixturevalue('zookeeper').connection}/conformance-{unique}")


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.service)])
def store(request: pytest.FixtureRequest) -> Store:
    return new_store(request.param, request)


@asynccontextmanager
async def held(opening: AbstractAsyncContextManager[Session]) -> AsyncIterator[Session]:
    """Give a session that is entered and left in one task of its own.

    The two halves of an async fixture run in different tasks, and the task group in a session must be left in the same task.
    """
    opened: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
    leave = asyncio.Event()

    async def hold() -> None:
        async with opening as session:
            opened.set_result(session)
            await leave.wait()

    holder = asyncio.create_task(hold())
    await asyncio.wait((holder, opened), return_when=asyncio.FIRST_COMPLETED)
    try:
        if opened.done():
            yield opened.result()
    finally:
        leave.set()
        await holder


@pytest.fixture
async def session(store: Store) -> AsyncIterator[Session]:
    """Give a session, with the root created."""
    async with kept(store) as session:
        await session.ensure("")
        yield session


@pytest.fixture
async def other(store: Store, session: Session) -> AsyncIterator[Session]:
    """Give another session with the same root."""
    async with kept(store) as other:
        yield other
