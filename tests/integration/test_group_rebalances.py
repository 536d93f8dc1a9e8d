"""A managed group as docs/how-to/managed-group.md describes it, on a real ZooKeeper: when and how it rebalances."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiokafka import ConsumerRecord

import aiokcc
from aiokcc import local
from aiokcc.core import paths
from aiokcc.core.assignments import TopicState, decode_assignment
from aiokcc.core.partitions import Partition
from aiokcc.core.rebalance import Await
from aiokcc.core.run import Bounds, Generation
from aiokcc.runtime.assignment_leader import AssignmentLeader
from aiokcc.runtime.election import list_candidates
from aiokcc.runtime.status_reader import read_status
from aiokcc.runtime.timer import Timeout, Timers
from aiokcc.stores import SessionState, open_store
from tests import kafka_topics, replays
from tests.faults import Proxy
from tests.kafka_topics import Row
from tests.managed import (
    PERIOD,
    Stage,
    break_off,
    generation,
    given,
    name_of,
    owners,
    session_of,
    shared,
    through,
    until_children,
    until_node,
    until_state,
    upstream,
)


@pytest.fixture
def stage(zk_root: str) -> Stage:
    return Stage(zk_root)


# -- away ---------------------------------------------------------------------------------------------------------------


async def test_while_zookeeper_is_away_all_go_on_with_what_they_have(stage: Stage) -> None:
    away = asyncio.Event()
    passed: list[str] = []

    async def work(gate: aiokcc.Gate) -> None:
        await away.wait()
        for ts in range(PERIOD):
            await gate.wait_until(ts, ts)
        passed.append(str(gate.partition))
        stage.note("worked", "", gate.partition.number)

    async with Proxy(upstream(stage)) as proxy, stage.looking() as session:
        settings: dict[str, Any] = {"url": through(proxy, stage), "session_timeout": 20, "expect": 2}
        async with stage.member("a", work, **settings) as a, stage.member("b", work, **settings) as b:
            before, fence = await shared(session, "a", "b"), await generation(session)
            break_off(proxy)
            for group in (a, b):
                await session_of(group).until(SessionState.SUSPENDED)
            away.set()
            await stage.until(lambda: len(passed) == 4)
            assert sorted(len(c.assigned) for c in (a, b)) == [2, 2]
            proxy.accept()
            for group in (a, b):
                await session_of(group).until(SessionState.CONNECTED)
            assert await shared(session, "a", "b") == before
            assert await generation(session) == fence, "something was assigned anew"
            assert not [event for event in stage.events if event[0] == "ends"]


async def test_a_member_that_cannot_be_reached_loses_its_share_with_its_session_and_is_not_isolated(
    stage: Stage,
) -> None:
    async with Proxy(upstream(stage)) as proxy, stage.looking() as session:
        lost: dict[str, Any] = {"url": through(proxy, stage), "session_timeout": 1.5}
        async with stage.member("a", expect=2) as a, stage.member("b", expect=2, **lost) as b:
            await shared(session, "a", "b")
            break_off(proxy)
            await session_of(b).until(SessionState.SUSPENDED)
            assert set((await given(session)).values()) == {"a", "b"}, "nobody is taken for dead within its session"
            assert set((await shared(session, "a")).values()) == {"a"}
            assert await session.children(paths.ISOLATED) == ()
            assert await owners(session) == dict.fromkeys(range(4), name_of(a))
            proxy.accept()
            assert sorted((await shared(session, "a", "b")).values()) == ["a", "a", "b", "b"], "it comes back by itself"


# -- rebalances ---------------------------------------------------------------------------------------------------------


async def test_a_rebalance_starts_when_a_member_joins_leaves_or_dies(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiokcc.runtime")
    async with Proxy(upstream(stage)) as proxy, stage.looking() as session, stage.member("a"):
        await shared(session, "a")
        async with stage.member("b"):
            await shared(session, "a", "b")
            assert "b joined, 2 to close" in caplog.text
        await shared(session, "a")
        assert "b left, 2 to start" in caplog.text
        async with stage.member("c", url=through(proxy, stage), session_timeout=1.5):
            await shared(session, "a", "c")
            break_off(proxy)
            await shared(session, "a")
            assert "c left, 2 to start" in caplog.text


async def test_a_rebalance_starts_when_the_coordinator_changes(stage: Stage) -> None:
    """The new one looks at everything anew: what is right stays, and who has come since is given a share."""
    async with stage.member("a", expect=2) as a, stage.member("b", expect=2) as b, stage.looking() as session:
        before, fence = await shared(session, "a", "b"), await generation(session)
        leader, other = (a, b) if fence.leader == name_of(a) else (b, a)
        await session.delete((await list_candidates(session))[0], -1)
        taken = await until_node(session, paths.GENERATION, lambda data: f" {name_of(other)} ".encode() in data)
        assert taken == f"{fence.number + 1} {name_of(other)} took office".encode()
        async with stage.member("c"):
            after = await shared(session, "a", "b", "c")
            assert sum(after[number] != before[number] for number in before) == 1
            assert (await generation(session)).leader == name_of(other)
            assert leader.epoch is None


async def test_a_rebalance_starts_when_partitions_or_topics_come_and_go(stage: Stage) -> None:
    grows: dict[str, Any] = {"grows": True, "expect": 2}
    async with stage.member("a", **grows) as a, stage.member("b", **grows) as b, stage.looking() as session:
        before = await shared(session, "a", "b")
        leader = a if a.epoch is not None else b
        assert leader.add({Partition("orders", n): Bounds(0) for n in (4, 5)} | {Partition("payments", 0): Bounds(0)})
        await until_node(session, paths.assignment("orders"), lambda data: len(decode_assignment("", data)) == 6)
        after = await shared(session, "a", "b")
        assert {number: after[number] for number in before} == before, "a member has lost a partition that it had"
        assert sorted(after.values()).count("a") == 3
        await until_node(session, paths.state("payments"), lambda data: data.startswith(b"Stable"))
        leader.remove(frozenset({Partition("orders", 5), Partition("payments", 0)}))
        await until_node(session, paths.assignment("orders"), lambda data: len(decode_assignment("", data)) == 5)
        await until_children(session, paths.ASSIGNMENTS, lambda names: names == ("orders",))
        assert (await session.get(paths.TOPIC_PARTITIONS)).data == b"orders:0,1,2,3,4;"


async def test_each_step_of_a_rebalance_is_one_generation_and_being_stable_is_none(stage: Stage) -> None:
    two: dict[str, Any] = {"topics": {"orders": 2}}
    async with stage.member("a", **two) as a, stage.looking() as session:
        await shared(session, "a")
        assert await generation(session) == Generation(2, name_of(a), "2 to start"), "the first was taking over"
        async with stage.member("b", **two):
            await shared(session, "a", "b")
            assert await generation(session) == Generation(4, name_of(a), "1 to start"), "closed, and started"
        await shared(session, "a")
        assert await generation(session) == Generation(5, name_of(a), "b left, 1 to start")


async def test_a_group_that_is_empty_holds_nothing_and_comes_to_life_with_the_next_member(stage: Stage) -> None:
    async with stage.looking() as session:
        async with stage.member("a"):
            await shared(session, "a")
            fence = await generation(session)
        for path in (paths.IDS, paths.LEADER, paths.PROGRESS, f"{paths.OWNERS}/orders"):
            assert await session.children(path) == ()
        status = await read_status(open_store(stage.url), session)
        assert status.group is not None
        assert [worker.here for worker in status.group.workers] == [False]
        assert {partition.state for partition in status.partitions} == {"unowned"}
        async with stage.member("z"):
            assert set((await shared(session, "z")).values()) == {"z"}
            assert (await generation(session)).number > fence.number


# -- the join window ----------------------------------------------------------------------------------------------------


@pytest.fixture
def deadlines(monkeypatch: pytest.MonkeyPatch) -> list[Timeout]:
    """Returns the entries of the group's delayed operations on the wheel, which has others too."""
    made: list[Timeout] = []
    add = Timers.add

    def add_and_note(self: Timers, deadline: int, callback: Callable[[], object]) -> Timeout:
        made.append(add(self, deadline, callback))
        return made[-1]

    monkeypatch.setattr(Timers, "add", add_and_note)
    return made


async def test_the_join_window_ends_early_when_everybody_is_there_and_its_timer_is_taken_off_the_wheel(
    stage: Stage, deadlines: list[Timeout], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = asyncio.Event()
    wait = AssignmentLeader._wait

    def wait_and_tell(self: AssignmentLeader, decision: Await) -> None:
        wait(self, decision)
        waits.set()

    monkeypatch.setattr(AssignmentLeader, "_wait", wait_and_tell)
    async with stage.member("a", expect=2, join_window=3600), stage.looking() as session:
        await waits.wait()
        assert await until_state(session, TopicState.INITIAL) == ({}, {})
        assert any(timer.pending for timer in deadlines), "nothing waits for the deadline"
        async with stage.member("b", expect=2):
            await shared(session, "a", "b")
            assert not any(timer.pending for timer in deadlines), "nothing is left to wake for"


async def test_the_join_window_ends_at_its_deadline_without_those_who_did_not_come(
    stage: Stage, deadlines: list[Timeout]
) -> None:
    async with stage.member("a", expect=2, join_window=0.5), stage.looking() as session:
        assert set((await shared(session, "a")).values()) == {"a"}, "only the timer can have ended it"
        assert deadlines
        assert not any(timer.pending for timer in deadlines)


async def test_a_member_that_has_not_rejoined_when_the_window_closes_is_left_out(stage: Stage) -> None:
    """All lose their sessions at once; two come back under the same ids, and keep what they had."""
    six: dict[str, Any] = {"topics": {"orders": 6}}
    async with stage.looking() as session:
        async with Proxy(upstream(stage)) as proxy:
            settings: dict[str, Any] = {
                "url": through(proxy, stage),
                "session_timeout": 1.5,
                "expect": 3,
                "join_window": 30,
                **six,
            }
            async with AsyncExitStack() as stack:
                for name in "abc":
                    await stack.enter_async_context(stage.member(name, **settings))
                before = await shared(session, "a", "b", "c")
                break_off(proxy)
                await until_children(session, paths.IDS, lambda names: not names)
        assert await given(session) == before, "nobody was there to change it"
        async with stage.member("b", **six), stage.member("a", **six):
            after = await shared(session, "a", "b")
            assert {number for number in before if after[number] != before[number]} == {
                number for number, who in before.items() if who == "c"
            }
            assert sorted(after.values()) == ["a", "a", "a", "b", "b", "b"]


# -- streams ------------------------------------------------------------------------------------------------------------


async def test_a_partitions_stream_is_bounded_and_the_fetcher_waits(kafka: local.Kafka, zk_root: str) -> None:
    """One partition lies far ahead of the other: what is held of it stays below the bound, however much there is."""
    name = await kafka_topics.create_fresh(kafka.bootstrap, partitions=2)
    ahead = [Row(0, replays.at(30, n)) for n in range(5_000)]
    await kafka_topics.write(kafka.bootstrap, name, [*ahead, *(Row(1, replays.at(minute)) for minute in range(30))])
    most = 0
    settings: dict[str, Any] = {"assignment": "managed", "join_window": 0, "buffer_records": 100}
    async with replays.replaying(kafka, name, store=zk_root, **settings) as replay:

        def handle(record: Any) -> None:
            nonlocal most
            if record.partition == 1:
                held = [r for r in replays.alive(ConsumerRecord) if r.topic == name and r.partition == 0]
                most = max(most, len(held))

        await replay.run(handle)
    assert replay.summary.records == 5_030
    assert 0 < most <= 100
