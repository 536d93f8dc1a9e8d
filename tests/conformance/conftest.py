"""One suite for all stores. ``store`` is each of them in turn, with a root that is this test's alone.

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
    """A store of this kind under a root that nobody else uses. A server that cannot be had is an error, not a skip."""
    unique = uuid.uuid4().hex[:12]
    if kind == "memory":
        return open_store(f"memory://conformance-{unique}/root")
    return open_store(f"zk://{request.getfixturevalue('zookeeper').connection}/conformance-{unique}")


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.service)])
def store(request: pytest.FixtureRequest) -> Store:
    return new_store(request.param, request)


@asynccontextmanager
async def held(opening: AbstractAsyncContextManager[Session]) -> AsyncIterator[Session]:
    """A session entered and left in one task of its own.

    The two halves of an async fixture run in different tasks, and the task group inside a session does not bear that.
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
    """A session, with the root there."""
    async with kept(store) as session:
        await session.ensure("")
        yield session


@pytest.fixture
async def other(store: Store, session: Session) -> AsyncIterator[Session]:
    """Somebody else's session with the same root."""
    async with kept(store) as other:
        yield other
