"""Managed groups on a real broker and a real ZooKeeper: who reads what, and how it is handed over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aiokcc import local
from aiokcc.core import paths
from aiokcc.core.assignments import State, decode_assignment, decode_state
from aiokcc.stores import Node, Session, open_store
from tests import replays
from tests.replays import at, in_step

pytestmark = pytest.mark.timeout(120)


class Seen:
    """What the handlers of a whole group saw, and the moments a test waits for."""

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


async def until_node(session: Session, path: str, condition: Callable[[bytes], bool]) -> bytes:
    with session.watch() as watch:
        watch.add(path)
        async for change in watch:
            if isinstance(change.now, Node) and condition(change.now.data):
                return change.now.data
    raise AssertionError


def is_stable(*members: str) -> Callable[[bytes], bool]:
    return lambda data: set(decode_assignment("", data).values()) == set(members)


async def shared(session: Session, topic: str, *members: str) -> dict[int, str]:
    """Wait until exactly these members have a share, and all of it is held; the assignment."""
    while True:
        data = await until_node(session, paths.assignment(topic), is_stable(*members))
        await until_node(session, paths.state(topic), lambda state: decode_state("", state)[0] is State.STABLE)
        if (await session.get(paths.assignment(topic))).data == data:
            return decode_assignment("", data)


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
        first = await shared(session, topic, "a", "b")
        assert sorted(first.values()) == ["a", "a", "a", "b", "b", "b"]
        await seen.until(lambda: len(seen.by("b")) > 100)
        await a.leave()
        assert set((await shared(session, topic, "b")).values()) == {"b"}
        await b.ended()
    assert sorted(set(seen.places())) == replays.all_places(topic, *[600] * 6)
    assert in_step(record.timestamp for _, record in seen.records)
