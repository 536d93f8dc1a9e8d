"""Fixtures for every suite. A service that cannot be had fails the tests that need it; it never skips them.

Three ways to a real ZooKeeper:

- ``zk_root``: a URL with a root that no other test uses, on the server shared by the whole session. The usual one.
- ``zookeeper``: that shared server. Look at it (``command``, ``metrics``), but leave it running.
- ``private_zookeeper``: a server of one's own, which may be killed, frozen and started again.

And to a real Kafka, with `tests.kafka_topics` to fill it:

- ``kafka``: the broker shared by the whole session; `kafka_topics.fresh_name` gives names that no other test uses.
- ``private_kafka``: a broker of one's own, which may be killed, frozen and started again. It takes some seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from typing import TYPE_CHECKING, TypeVar

import pytest

from aiokcc import local
from aiokcc.errors import LocalServiceError
from aiokcc.local import _jars, _java, _kafka

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from contextlib import AbstractAsyncContextManager

T = TypeVar("T")

_SERVICES = {"zookeeper", "zk_root", "private_zookeeper", "kafka", "private_kafka"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what asks for a real service, so that ``-m 'not service'`` is the quick half of the tests."""
    for item in items:
        if _SERVICES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.service)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch Kafka, which is done once on a machine, before the clock of a test runs."""
    wanted = any({"kafka", "private_kafka"} & set(getattr(item, "fixturenames", ())) for item in session.items)
    if wanted and not session.config.getoption("collectonly"):
        with contextlib.suppress(LocalServiceError):  # the tests that need it will fail with it; the others may run
            asyncio.run(_jars.fetch(_kafka.JARS, _java.find_java(_kafka.MINIMUM_JAVA), print))


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[local.ZooKeeper]:
    """One real server for the whole session."""
    yield from _for_the_session(local.zookeeper())


@pytest.fixture(scope="session")
def kafka() -> Iterator[local.Kafka]:
    """One real broker for the whole session."""
    yield from _for_the_session(local.kafka())


def _for_the_session(context: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """A service with an event loop of its own, which runs only while the service starts and ends.

    Between the two it needs none, so tests may use the service from whatever loop they run on.
    """

    async def enter() -> T:
        return await context.__aenter__()

    async def leave() -> None:
        await context.__aexit__(None, None, None)

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        yield runner.run(enter())
        runner.run(leave())


@pytest.fixture
def zk_root(zookeeper: local.ZooKeeper, request: pytest.FixtureRequest) -> str:
    """The URL of a root that is this test's alone; its name tells the test, for a person who looks into the server."""
    name = re.sub(r"\W+", "-", request.node.name).strip("-")[:60]
    return zookeeper.url(f"{name}-{uuid.uuid4().hex[:8]}")


@pytest.fixture
async def private_zookeeper() -> AsyncIterator[local.ZooKeeper]:
    """A server for one test, which may do with it what it likes."""
    async with local.zookeeper() as running:
        yield running


@pytest.fixture
async def private_kafka() -> AsyncIterator[local.Kafka]:
    """A broker for one test, which may do with it what it likes."""
    async with local.kafka() as running:
        yield running
