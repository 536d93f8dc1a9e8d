"""The committer commits the newest offsets, one commit at a time, and only in the session in which they were noted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from aiokcc.core.partitions import Partition
from aiokcc.errors import CoordinationError, SessionLostError
from aiokcc.kafka.offset_committer import Committer, KafkaOffsets
from aiokcc.kafka.summary import Summary

ORDERS = Partition("orders", 0)
OTHER = Partition("orders", 1)


class FakeStorage:
    """Keeps what is committed, when it is let."""

    def __init__(self) -> None:
        self.commits: list[tuple[str, dict[Partition, int]]] = []
        self.asked = asyncio.Event()
        self.let = asyncio.Event()
        self.let.set()
        self.error: Exception | None = None

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 7)

    async def commit(self, us: Any, offsets: Mapping[Partition, int]) -> None:
        self.asked.set()
        await self.let.wait()
        if self.error is not None:
            raise self.error
        self.commits.append((us, dict(offsets)))


@pytest.fixture
def member() -> Any:
    return SimpleNamespace(member_session="first session")


def committer(storage: FakeStorage, member: Any, summary: Summary | None = None, *, enabled: bool = True) -> Committer:
    return Committer(storage, member, summary or Summary(), enabled=enabled)


async def test_the_summary_tells_whether_the_last_commit_failed(member: Any) -> None:
    storage, summary = FakeStorage(), Summary()
    commits = committer(storage, member, summary)
    storage.error = CoordinationError("no")
    await commits.commit_now({ORDERS: 1})
    assert "could not commit offsets: CoordinationError('no')" in str(summary.commit_error)
    storage.error = None
    await commits.commit_now({ORDERS: 2})
    assert summary.commit_error is None
    storage.let.clear()
    storage.asked.clear()
    running = [asyncio.create_task(commits.commit_now({ORDERS: 3}))]
    await storage.asked.wait()
    running.append(asyncio.create_task(commits.commit_now({ORDERS: 4})))
    await asyncio.sleep(0)
    member.member_session = "second session"
    storage.let.set()
    await asyncio.gather(*running)
    assert "the session in which they were reached is over" in str(summary.commit_error)
    await commits.commit_now({ORDERS: 5})
    assert summary.commit_error is None
    member.member_session = None
    await commits.commit_now({ORDERS: 4})
    assert "there is no session" in str(summary.commit_error)


async def test_the_newest_of_each_partition_is_committed(member: Any) -> None:
    storage = FakeStorage()
    commits = committer(storage, member)
    commits.note({ORDERS: 1, OTHER: 1})
    commits.note({ORDERS: 2})
    await commits.commit_now({})
    await commits.commit_now({})
    assert storage.commits == [("first session", {ORDERS: 2, OTHER: 1})]


async def test_offsets_noted_in_one_session_are_not_committed_in_the_next(member: Any) -> None:
    """In between somebody else may have gone further, and left again."""
    storage = FakeStorage()
    commits = committer(storage, member)
    commits.note({ORDERS: 5})
    member.member_session = "second session"
    await commits.commit_now({})
    assert storage.commits == []
    commits.note({ORDERS: 5})
    member.member_session = "third session"
    await commits.commit_now({OTHER: 1})
    assert storage.commits == [("third session", {OTHER: 1})]


async def test_without_a_session_there_is_nothing_to_note(member: Any) -> None:
    storage = FakeStorage()
    commits = committer(storage, member)
    member.member_session = None
    await commits.commit_now({ORDERS: 5})
    member.member_session = "second session"
    await commits.commit_now({})
    assert storage.commits == []


async def test_one_commit_at_a_time_so_that_none_overtakes_another(member: Any) -> None:
    storage = FakeStorage()
    storage.let.clear()
    commits = committer(storage, member)
    commits.note({ORDERS: 1})
    running = asyncio.create_task(commits.run())
    await storage.asked.wait()
    committing = asyncio.create_task(commits.commit_now({ORDERS: 2}))
    await asyncio.sleep(0)
    storage.let.set()
    await committing
    running.cancel()
    assert [offsets[ORDERS] for _, offsets in storage.commits] == [1, 2]


@pytest.mark.parametrize("error", [TimeoutError(), SessionLostError("gone"), CoordinationError("no")])
async def test_a_commit_that_fails_is_told_and_stops_nothing(
    member: Any, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    storage = FakeStorage()
    storage.error = error
    commits = committer(storage, member)
    await commits.commit_now({ORDERS: 1})
    assert "a restart resumes at the last cut in the store" in caplog.text
    storage.error = None
    await commits.commit_now({ORDERS: 2})
    assert storage.commits == [("first session", {ORDERS: 2})]


async def test_turned_off_it_neither_commits_nor_asks(member: Any) -> None:
    storage = FakeStorage()
    commits = committer(storage, member, enabled=False)
    await commits.commit_now({ORDERS: 1})
    assert storage.commits == []
    assert await commits.committed([ORDERS]) == {}
    assert await committer(storage, member).committed([ORDERS]) == {ORDERS: 7}


# In Kafka, which has no fence


class Broker:
    """A consumer whose commit takes as long as the process is stopped."""

    def __init__(self, clock: list[float], stopped: float) -> None:
        self._clock, self._stopped = clock, stopped
        self.committed: list[Any] = []

    async def commit(self, entries: Any) -> None:
        self._clock[0] += self._stopped
        self.committed.append(entries)


@pytest.mark.parametrize(("stopped", "warned"), [(1.0, False), (60.0, True)])
async def test_a_process_stopped_in_the_middle_of_a_commit_says_what_it_may_have_moved_back(
    stopped: float, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [100.0]
    monkeypatch.setattr("aiokcc.kafka.offset_committer.boottime", lambda: clock[0])

    async def get(path: str) -> None:
        assert path == "generation"

    us: Any = SimpleNamespace(
        name="worker-1",
        generation=SimpleNamespace(number=3, version=7, see=lambda node: None),
        ownership=SimpleNamespace(holds=lambda partition: True),
        session=SimpleNamespace(get=get, stop_at=110.0),
    )
    broker: Any = Broker(clock, stopped)
    cluster: Any = None
    member: Any = SimpleNamespace(founded=1, clock=lambda: 5)
    offsets = KafkaOffsets(broker, cluster, member)
    offsets._fence = 7
    await offsets.commit(us, {ORDERS: 5, OTHER: 8})
    assert len(broker.committed) == 1
    assert ("worker-1: the session's deadline passed" in caplog.text) is warned
    assert ("orders.0 at 5, orders.1 at 8" in caplog.text) is warned
