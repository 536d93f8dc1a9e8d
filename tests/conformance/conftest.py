"""One suite for all stores. ``store`` is each of them in turn, with a root that no other test uses.

ZooKeeper and Kafka are the real servers of ``tests/conftest.py``; ``-m "not service"`` leaves them out.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import pytest

from aiokcc.stores import Session, Store, open_store
from aiokcc.stores.kafka.client import LogClient, LogSlice
from tests.conformance.kept import kept

LAG = 0.03
"""The seconds after which a session on a lagging Kafka reads what others have written."""


def new_store(kind: str, request: pytest.FixtureRequest) -> Store:
    """Return a store of this kind under a root that no other test uses. If no server can be started, the test fails."""
    unique = uuid.uuid4().hex[:12]
    if kind == "memory":
        return open_store(f"memory://conformance-{unique}/root")
    if kind == "kafka":
        return open_store(f"kafka://{request.getfixturevalue('kafka').bootstrap}/conformance-{unique}")
    return open_store(f"zk://{request.getfixturevalue('zookeeper').connection}/conformance-{unique}")


@pytest.fixture(
    params=[
        "memory",
        pytest.param("zookeeper", marks=pytest.mark.service),
        pytest.param("kafka", marks=pytest.mark.service),
    ]
)
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "kafka":
        let_readers_lag(monkeypatch)
    return new_store(request.param, request)


def let_readers_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every session read records of others LAG seconds late, and its own at once with all that is before them.

    A store promises no more than that. So a test that reads what another session has written, without a ``sync()`` or a watch,
    fails every time and not once in a thousand runs.
    """
    append, fetch = LogClient.append, LogClient.fetch
    own: defaultdict[LogClient, set[bytes]] = defaultdict(set)
    appended: defaultdict[LogClient, asyncio.Event] = defaultdict(asyncio.Event)

    async def noted_append(self: LogClient, values: Sequence[bytes]) -> None:
        own[self].update(values)
        await append(self, values)
        appended[self].set()

    async def late_fetch(self: LogClient, offset: int, wait: float) -> LogSlice:
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as late:
                while True:
                    appended[self].clear()
                    found = await fetch(self, offset, wait)
                    if not found.entries or not own[self].isdisjoint(entry.raw or b"" for entry in found.entries):
                        return found
                    if late.when() is None:
                        late.reschedule(asyncio.get_running_loop().time() + LAG)
                    await appended[self].wait()
        return found

    monkeypatch.setattr(LogClient, "append", noted_append)
    monkeypatch.setattr(LogClient, "fetch", late_fetch)


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
