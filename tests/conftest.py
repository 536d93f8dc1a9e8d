"""Fixtures for every suite. If a service cannot be started, the tests that need it fail; they are never skipped.

Three ways to a real ZooKeeper:

- ``zk_root``: a URL with a root that no other test uses, on the server shared by the whole session. The usual one.
- ``zookeeper``: that shared server. Read from it (``command``, ``metrics``), but leave it running.
- ``private_zookeeper``: a server of one's own, which may be killed, frozen and started again.

And to a real Kafka, with `tests.kafka_topics` to fill it:

- ``kafka``: the broker shared by the whole session; `kafka_topics.fresh_name` gives names that no other test uses.
- ``private_kafka``: a broker of one's own, which may be killed, frozen and started again. It takes some seconds.
- ``kafka_cluster``: three brokers of one's own, each of which may be killed, frozen and started again. They take some ten
  seconds.

And to Spark:

- ``spark``: the session shared by the whole run, ``local[2]`` with the Kafka connector. A process can have only one: a test
  that kills its driver, or wants another master, starts a process of its own.

``--loop uvloop`` runs the tests, and the processes that they start, on uvloop; by default it is asyncio's own loop. Tests on
virtual time have their loop in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import uuid
from typing import TYPE_CHECKING, TypeVar

import pytest

from aiokcc import local
from aiokcc.cli.loops import LOOP_VARIABLE
from aiokcc.credentials import known_secrets
from aiokcc.errors import LocalServiceError
from aiokcc.local import _jars, _java, _kafka

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from pyspark.sql import SparkSession

T = TypeVar("T")

_SERVICES = {"zookeeper", "zk_root", "private_zookeeper", "kafka", "private_kafka", "kafka_cluster", "spark"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of the event loop."""
    parser.addoption("--loop", choices=("asyncio", "uvloop"), default="asyncio", help="the event loop of the tests")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Give the tests the chosen loop."""
    if config.getoption("loop") == "uvloop":
        import uvloop

        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


def pytest_configure(config: pytest.Config) -> None:
    """Tell the processes that tests start which loop to take, and let them be stopped.

    Where a shell has started us in the background SIGINT is ignored, by us and by every process that a test would stop.
    """
    os.environ[LOOP_VARIABLE] = config.getoption("loop")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_secret_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without known secrets: a word that was a password in another test is not hidden in this one."""
    monkeypatch.setattr(known_secrets, "_known", known_secrets._Known())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a real service, so that ``-m 'not service'`` selects the quick ones."""
    for item in items:
        if _SERVICES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.service)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch Kafka and Spark's connector, once on a machine, before the timeout of a test runs."""
    asked: set[str] = set()
    for item in session.items:
        asked |= set(getattr(item, "fixturenames", ()))
    if session.config.getoption("collectonly"):
        return
    with contextlib.suppress(LocalServiceError):  # the tests that need it will fail with it; the others may run
        if asked & {"kafka", "private_kafka", "kafka_cluster"}:
            asyncio.run(_jars.fetch(_kafka.JARS, _java.find_java(_kafka.MINIMUM_JAVA), print))
        if "spark" in asked:
            asyncio.run(local.prepare_spark(print))


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[local.ZooKeeper]:
    """Start one real server for the whole session."""
    yield from _for_the_session(local.zookeeper())


@pytest.fixture(scope="session")
def kafka() -> Iterator[local.Kafka]:
    """Start one real broker for the whole session."""
    yield from _for_the_session(local.kafka())


def _for_the_session(context: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Start a service in an event loop of its own, which runs only while the service starts and ends.

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
    """Return the URL of a root that no other test uses. It is named after the test, for a person who looks into the server."""
    name = re.sub(r"\W+", "-", request.node.name).strip("-")[:60]
    return zookeeper.url(f"{name}-{uuid.uuid4().hex[:8]}")


@pytest.fixture
async def private_zookeeper() -> AsyncIterator[local.ZooKeeper]:
    """Start a server for one test, which may kill or freeze it."""
    async with local.zookeeper() as running:
        yield running


@pytest.fixture
async def private_kafka() -> AsyncIterator[local.Kafka]:
    """Start a broker for one test, which may kill or freeze it."""
    async with local.kafka() as running:
        yield running


@pytest.fixture
async def kafka_cluster() -> AsyncIterator[local.KafkaCluster]:
    """Start three brokers for one test, which may kill or freeze them."""
    async with local.kafka(brokers=3) as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Start one Spark session for the whole run; it takes about 8 s."""
    from aiokcc.spark.session import session as spark_session  # the unit tests do without its dependencies

    with pytest.MonkeyPatch.context() as patch:
        _close_sockets_of_pyspark(patch)
        running = spark_session(app="tests", master="local[2]")
        context = running.sparkContext
        gateway = context._gateway
        yield running
        running.stop()
        # The Java process would end with ours; here it is awaited, so that nothing of it is left when the tests have ended.
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        type(context)._gateway = type(context)._jvm = None


def _close_sockets_of_pyspark(patch: pytest.MonkeyPatch) -> None:
    """Close the socket of each collect(). PySpark leaves it to the garbage collector, which warns; warnings are errors."""
    import pyspark.util

    connect = pyspark.util.local_connect_and_auth

    def connect_and_let_go(port: int, secret: str) -> tuple[object, socket.socket]:
        file, connection = connect(port, secret)
        connection.close()  # in earnest once the file is closed too
        return file, connection

    patch.setattr(pyspark.util, "local_connect_and_auth", connect_and_let_go)
