"""One suite for all stores. ``store`` is each of them in turn, with a root that is this test's alone.

The ZooKeeper half needs the real server of ``tests/conftest.py``; ``-m "not service"`` leaves it out.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from aiokcc.stores import Session, Store, open_store


def new_store(kind: str, request: pytest.FixtureRequest) -> Store:
    """A store of this kind under a root that nobody else uses. A server that cannot be had is an error, not a skip."""
    unique = uuid.uuid4().hex[:12]
    if kind == "memory":
        return open_store(f"memory://conformance-{unique}/root")
    return open_store(f"zk://{request.getfixturevalue('zookeeper').connection}/conformance-{unique}")


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.service)])
def store(request: pytest.FixtureRequest) -> Store:
    return new_store(request.param, request)


@pytest.fixture
async def session(store: Store) -> AsyncIterator[Session]:
    """A session, with the root there."""
    async with store.session() as session:
        await session.ensure("")
        yield session


@pytest.fixture
async def other(store: Store, session: Session) -> AsyncIterator[Session]:
    """Somebody else's session with the same root."""
    async with store.session() as other:
        yield other
