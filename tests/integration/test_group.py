"""Managed groups on a real broker and a real ZooKeeper: who reads what, and how it is handed over."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import aiokcc
from aiokcc import local
from aiokcc.core import paths
from aiokcc.core.assignments import decode_assignment
from aiokcc.stores import Session, open_store
from tests import kafka_topics, replays
from tests.integration.kafka.test_topic_discovery import add_partitions
from tests.managed import shared, until_node
from tests.replays import at, in_step

pytestmark = pytest.mark.timeout(120)


class Seen:
    """Records what the handlers of a whole group saw, and has the events for which a test waits."""

    def __init__(self) -> None:
        self.records: list[tuple[str, Any]] = []
        self._changed = asyncio.Event()

    def by(self, name: str) -> list[Any]:
        return [record for who, record in self.records if who == name]

    def note(self, name: str, record: Any) -> None:
        self.records.append((name, record))
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def places(self) -> list[tuple[str, int, int]]:
        return replays.places(record for _, record in self.records)


class One:
    """One member of the group, reading in a task of its own."""

    def __init__(
        self, kafka: local.Kafka, store: str, seen: Seen, name: str, *topics: str, slow: float = 0.0, **more: Any
    ) -> None:
        self.name, self._seen, self._slow = name, seen, slow
        settings = {"assignment": "managed", "member": name, "session_timeout": 5, "join_window": 0.2, **more}
        self._context = replays.replaying(kafka, *topics, store=store, **settings)
        self.replay: Any = None
        self.joined = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        async with self._context as self.replay:
            self.joined.set()
            await self.replay.run(self._handle)

    async def _handle(self, record: Any) -> None:
        self._seen.note(self.name, record)
        await asyncio.sleep(self._slow)

    async def ended(self) -> None:
        await self._task

    async def leave(self) -> None:
        """In good order."""
        self.replay.stop()
        await self._task

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@asynccontextmanager
async def looking(url: str) -> AsyncIterator[Session]:
    async with open_store(url).session(timeout=10) as session:
        yield session


def logs(partitions: int, minutes: int, each: int = 10) -> list[list[int]]:
    return [[at(n / each, ms=p) for n in range(minutes * each)] for p in range(partitions)]


async def test_three_members_share_a_replay(kafka: local.Kafka, zk_root: str) -> None:
    topic = await replays.topic(kafka, *logs(6, 20))
    seen = Seen()
    ones = [One(kafka, zk_root, seen, name, topic, expect=3) for name in ("a", "b", "c")]
    for one in ones:
        await one.ended()
    assert sorted(seen.places()) == replays.all_places(topic, *[200] * 6)
    assert in_step(record.timestamp for _, record in seen.records)
    for name in ("a", "b", "c"):
        assert len({record.partition for record in seen.by(name)}) == 2


async def test_a_member_joins_and_one_leaves_in_the_middle(kafka: local.Kafka, zk_root: str) -> None:
    topic = await replays.topic(kafka, *logs(6, 60))
    seen = Seen()
    a = One(kafka, zk_root, seen, "a", topic, slow=0.001)
    async with looking(zk_root) as session:
        await seen.until(lambda: len(seen.records) > 200)
        b = One(kafka, zk_root, seen, "b", topic, slow=0.001)
        first = await shared(session, "a", "b", topic=topic)
        assert sorted(first.values()) == ["a", "a", "a", "b", "b", "b"]
        await seen.until(lambda: len(seen.by("b")) > 100)
        await a.leave()
        assert set((await shared(session, "b", topic=topic)).values()) == {"b"}
        await b.ended()
    assert sorted(set(seen.places())) == replays.all_places(topic, *[600] * 6)
    assert in_step(record.timestamp for _, record in seen.records)


async def test_the_handover_commits_before_it_releases(kafka: local.Kafka, zk_root: str) -> None:
    """Nothing comes twice where members leave in good order: the next owner goes on where the last one stopped."""
    topic = await replays.topic(kafka, *logs(4, 30))
    seen = Seen()
    settings: dict[str, Any] = {"offset_storage": "store", "slow": 0.001}
    first = One(kafka, zk_root, seen, "a", topic, **settings)
    await seen.until(lambda: len(seen.records) > 100)
    second = One(kafka, zk_root, seen, "b", topic, **settings)
    await seen.until(lambda: len(seen.by("b")) > 100)
    await first.leave()
    await second.ended()
    assert sorted(seen.places()) == replays.all_places(topic, *[300] * 4)


async def test_a_member_that_fails_is_replaced_and_says_why(kafka: local.Kafka, zk_root: str) -> None:
    topic = await replays.topic(kafka, *logs(4, 30))
    seen = Seen()
    a = One(kafka, zk_root, seen, "a", topic, slow=0.001)
    await seen.until(lambda: len(seen.records) > 100)

    class Broken(One):
        async def _handle(self, record: Any) -> None:
            raise LookupError("no such customer")

    b = Broken(kafka, zk_root, seen, "b", topic)
    with pytest.raises(aiokcc.HandlerError, match="no such customer"):
        await b.ended()
    await a.ended()
    assert sorted(set(seen.places())) == replays.all_places(topic, *[300] * 4)


async def test_streams_and_patterns_bound_what_a_member_is_given(kafka: local.Kafka, zk_root: str) -> None:
    orders = await replays.topic(kafka, *logs(4, 10), stem="orders")
    payments = await replays.topic(kafka, *logs(2, 10), stem="payments")
    seen = Seen()
    ones = [
        One(kafka, zk_root, seen, "few", orders, payments, expect=3, subscription={orders: 1}),
        One(kafka, zk_root, seen, "pays", orders, payments, expect=3, subscription=re.compile("payments.*")),
        One(kafka, zk_root, seen, "rest", orders, payments, expect=3, subscription=[orders, payments]),
    ]
    for one in ones:
        await one.ended()
    assert len({(r.topic, r.partition) for r in seen.by("few")}) == 1
    assert {r.topic for r in seen.by("few")} == {orders}
    assert {r.topic for r in seen.by("pays")} == {payments}
    assert sorted(set(seen.places())) == sorted(
        [*replays.all_places(orders, *[100] * 4), *replays.all_places(payments, *[100] * 2)]
    )


async def test_new_partitions_and_a_patterns_new_topics_join_and_deleted_ones_leave(
    kafka: local.Kafka, zk_root: str
) -> None:
    stem = kafka_topics.fresh_name("wild")
    for name in ("one", "two"):
        await kafka_topics.create(kafka.bootstrap, f"{stem}-{name}")
        await replays.append(kafka, f"{stem}-{name}", 0, [at(n) for n in range(3)])
    seen = Seen()
    follow: dict[str, Any] = {"pattern": f"{stem}-.*", "end": None, "metadata_max_age_ms": 200}
    a = One(kafka, zk_root, seen, "a", expect=2, **follow)
    b = One(kafka, zk_root, seen, "b", expect=2, **follow)
    async with looking(zk_root) as session:
        await seen.until(lambda: len(seen.records) == 6)
        await kafka_topics.create(kafka.bootstrap, f"{stem}-three")
        await replays.append(kafka, f"{stem}-three", 0, [at(10)])
        await seen.until(lambda: len(seen.records) == 7)
        assert seen.records[-1][1].topic == f"{stem}-three"
        await add_partitions(kafka.bootstrap, f"{stem}-one", 2)
        await replays.append(kafka, f"{stem}-one", 1, [at(11)])
        await seen.until(lambda: len(seen.records) == 8)
        async with kafka_topics.admin(kafka.bootstrap) as client:
            await client.delete_topics([f"{stem}-two"])
        await until_node(session, paths.TOPIC_PARTITIONS, lambda data: b"-two" not in data)
        await until_node(session, paths.assignment(f"{stem}-one"), lambda data: len(decode_assignment("", data)) == 2)
        for name, numbers in (("one", (0, 1)), ("three", (0,))):  # the limit does not wait for what is gone
            for number in numbers:
                await replays.append(kafka, f"{stem}-{name}", number, [at(20)])
        await seen.until(lambda: len(seen.records) == 11)
        assert await session.find(paths.assignment(f"{stem}-two")) is None
        await a.leave()
        await b.leave()


async def test_the_same_id_twice(kafka: local.Kafka, zk_root: str) -> None:
    topic = await replays.topic(kafka, *logs(2, 30))
    seen = Seen()
    a = One(kafka, zk_root, seen, "a", topic, slow=0.001)
    await seen.until(lambda: len(seen.records) > 50)
    twin = One(kafka, zk_root, seen, "a", topic)
    with pytest.raises(aiokcc.MemberExistsError, match="the member id 'a' is in use"):
        await twin.ended()
    await a.ended()
    assert sorted(seen.places()) == replays.all_places(topic, *[300] * 2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"subscription": {}}, "the subscription is empty"),
        ({"subscription": {"orders": -4}}, "is given -4 streams"),
        ({"subscription": re.compile("")}, "the pattern is empty"),
        ({"assignor": "fair"}, "there is no assignor 'fair'"),
        ({"partitions": {"orders": [0]}}, "subscription= bounds it"),
        ({"expect": 0}, "expect is 0"),
        ({"assignment": "kafka"}, "assignment is 'kafka'"),
        ({"assignment": "fixed", "expect": 3}, 'only mean something with assignment="managed"'),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_connected(wrong: dict[str, Any], message: str) -> None:
    settings = {"bootstrap_servers": "127.0.0.1:1", "store": "zk://127.0.0.1:1/x", "period": "1m"}
    with pytest.raises(aiokcc.UsageError, match=re.escape(message)):
        aiokcc.replay("orders", **{"assignment": "managed", **settings, **wrong})


def test_a_bad_pattern() -> None:
    with pytest.raises(aiokcc.UsageError, match="is not a regular expression"):
        aiokcc.replay(
            pattern="orders-(", bootstrap_servers="h:1", store="zk://h:1/x", period="1m", assignment="managed"
        )


async def test_a_state_node_that_cannot_be_read(kafka: local.Kafka, zk_root: str) -> None:
    topic = await replays.topic(kafka, *logs(2, 30))
    seen = Seen()
    a = One(kafka, zk_root, seen, "a", topic, slow=0.001)
    await seen.until(lambda: len(seen.records) > 50)
    await a.leave()
    async with looking(zk_root) as session:
        await session.set(paths.state(topic), b"Sleeping", -1)
        b = One(kafka, zk_root, seen, "b", topic)
        with pytest.raises(aiokcc.CorruptNodeError, match=rf"state/{topic} holds 'Sleeping'; expected three lines"):
            await b.ended()


async def test_released_in_the_middle_it_comes_to_an_end_all_the_same(kafka: local.Kafka, zk_root: str) -> None:
    """No end is written then: who is done leaves, and whoever stays finds that nothing is left to do."""
    topic = await replays.topic(kafka, *logs(4, 30))
    seen = Seen()
    settings: dict[str, Any] = {"offset_storage": "store", "slow": 0.001, "expect": 2}
    ones = [One(kafka, zk_root, seen, name, topic, **settings) for name in ("a", "b")]
    await seen.until(lambda: len(seen.records) > 200)
    await ones[0].replay.group.release()
    for one in ones:
        await one.ended()
    assert sorted(set(seen.places())) == replays.all_places(topic, *[300] * 4)
