"""The store on three real brokers: leaders are killed and frozen, replicas are lost and come back.

Each conditional write is applied exactly once, sessions survive what is shorter than their timeout, and records that Kafka
loses are noticed and named.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack

import pytest
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from aiokcc import local
from aiokcc.errors import SessionLostError, StoreError
from aiokcc.stores import Session, SessionState, open_store
from aiokcc.stores.kafka import KafkaStore
from aiokcc.stores.kafka.client import LogSlice
from aiokcc.stores.kafka.session import KafkaSession
from aiokcc.stores.kafka.topic import make_settings
from tests import kafka_topics
from tests.kafka_topics import admin

pytestmark = [pytest.mark.service, pytest.mark.timeout(240)]


@pytest.fixture
async def cluster() -> AsyncIterator[local.KafkaCluster]:
    async with local.kafka(brokers=3) as running:
        yield running


def new_store(cluster: local.KafkaCluster) -> KafkaStore:
    store = open_store(f"kafka://{cluster.bootstrap}/{kafka_topics.fresh_name('root')}")
    assert isinstance(store, KafkaStore)
    return store


async def test_each_write_is_applied_once_while_leaders_die_and_freeze(cluster: local.KafkaCluster) -> None:
    store = new_store(cluster)
    stop = asyncio.Event()
    counts = [0, 0, 0]

    async def count(number: int, session: Session) -> None:
        """Count up a node of one's own, each time on the version that the last answer gave."""
        await session.create(f"count-{number}")
        version = 0
        while not stop.is_set():
            version = await session.set(f"count-{number}", b"%d" % version, version)
            counts[number] = version

    async with (
        store.session(timeout=40) as one,
        store.session(timeout=40) as two,
        store.session(timeout=40) as three,
        asyncio.TaskGroup() as tasks,
    ):
        await one.ensure("")
        await one.create("lock", ephemeral=True)
        await asyncio.gather(two.sync(), three.sync())
        for number, session in enumerate((one, two, three)):
            tasks.create_task(count(number, session))
        for fault in ("kill", "freeze", "replicas", "kill"):
            leader = await cluster.leader(store.topic)
            before = list(counts)
            if fault == "kill":
                await leader.kill()
                await moved(counts, before)
                await leader.start()
            elif fault == "freeze":
                leader.freeze()
                await moved(counts, before)
                leader.thaw()
            else:  # two of three are gone: nothing may be acknowledged
                others = [broker for broker in cluster.brokers if broker is not leader]
                await asyncio.gather(*(broker.kill() for broker in others))
                await asyncio.gather(*(broker.start() for broker in others))
                await moved(counts, list(counts))
            await cluster.wait_in_sync(store.topic)
        stop.set()
    async with open_store(store.url).session() as reader:
        for number in range(3):
            assert (await reader.get(f"count-{number}")).version == counts[number] > 20
    assert one.state is two.state is three.state is SessionState.LOST, "they were closed, and not lost before that"
    assert all("it was closed" in str(session._lost_reason) for session in (one, two, three))  # type: ignore[attr-defined]


async def moved(counts: list[int], before: list[int]) -> None:
    """Wait until every writer has gone on."""
    async with asyncio.timeout(60):
        while not all(now > then + 5 for now, then in zip(counts, before, strict=True)):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.05)


async def test_records_that_an_unclean_election_loses_are_noticed_and_named(
    cluster: local.KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process reads on at once. Another one was frozen between two reads until the log was longer than it had read."""
    store = new_store(cluster)
    frozen_store = open_store(store.url)
    async with store.session(timeout=60) as session, frozen_store.session(timeout=120) as frozen:
        assert isinstance(frozen, KafkaSession)
        await session.ensure("")
        await session.create("before")
        await configure(cluster, store, {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"})
        leader = await cluster.leader(store.topic)
        others = [broker for broker in cluster.brokers if broker is not leader]
        await asyncio.gather(*(broker.kill() for broker in others))
        await cluster.wait_in_sync(store.topic, count=1)
        for number in range(20):
            await session.create(f"lost-{number}")  # only the leader has them
        await frozen.sync()
        read = frozen._follower.machine.position
        failed = contacts(frozen, monkeypatch)
        thaw = await freeze_between_reads(frozen, monkeypatch)
        await leader.kill()
        await asyncio.gather(*(broker.start() for broker in others))
        async with asyncio.timeout(60):
            await session.until(SessionState.LOST)
        with pytest.raises(SessionLostError, match="Kafka has lost acknowledged records"):
            await session.find("lost-1")
        with pytest.raises(StoreError, match="Kafka has lost acknowledged records"):
            async with store.session():
                pass

        await configure(cluster, store, make_settings(3))
        async with AsyncExitStack() as stack:
            newcomer = await open_when_configured(store, stack)
            assert await newcomer.find("lost-1") is None, "who starts afterwards cannot know"
            for number in range(60):
                await newcomer.create(f"new-{number}")
            assert newcomer._follower.machine.position > read + 10
            thaw.set()
            async with asyncio.timeout(60):
                await frozen.until(SessionState.LOST)
            assert failed() == 0, "it has noticed it without a read that failed"
            assert frozen.peek("new-1") is None, "it has not followed the other history"
            with pytest.raises(SessionLostError, match="Kafka has lost acknowledged records"):
                await frozen.find("lost-1")


async def configure(cluster: local.KafkaCluster, store: KafkaStore, settings: Mapping[str, str]) -> None:
    async with admin(cluster.bootstrap) as client:
        await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, store.topic, dict(settings))])


async def open_when_configured(store: KafkaStore, stack: AsyncExitStack) -> KafkaSession:
    """Open a session in another process. Until the settings have reached all brokers, it is refused for those before."""
    async with asyncio.timeout(30):
        while True:
            try:
                session = await stack.enter_async_context(open_store(store.url).session())
            except StoreError as error:
                if "would lose the group's agreement" not in str(error):
                    raise
                await asyncio.sleep(0.05)
            else:
                assert isinstance(session, KafkaSession)
                return session


def contacts(session: KafkaSession, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return what counts how often the session has lost contact from now on."""
    lost: list[bool] = []
    told = session._follower._on_contact

    def note(is_there: bool) -> None:
        lost.extend([True] if not is_there else [])
        told(is_there)

    monkeypatch.setattr(session._follower, "_on_contact", note)
    return lambda: len(lost)


async def freeze_between_reads(session: KafkaSession, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let the session send no read until the event is set, as in a process that is frozen; its connections are ended."""
    fetch, thaw, is_frozen = session._client.fetch, asyncio.Event(), asyncio.Event()

    async def fetch_later(offset: int, wait: float) -> LogSlice:
        is_frozen.set()
        await thaw.wait()
        await session._client.refresh()  # its appender has learnt who leads before it reads again
        return await fetch(offset, wait)

    monkeypatch.setattr(session._client, "fetch", fetch_later)
    await is_frozen.wait()
    return thaw
