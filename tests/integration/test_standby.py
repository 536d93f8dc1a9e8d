"""Hot standbys, and a lock lost and won back, on a real ZooKeeper and a real broker."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

import aiokcc
from aiokcc import local
from aiokcc.core.partitions import Partition
from aiokcc.stores import Session, SessionState
from tests.faults import Proxy
from tests.integration.kafka.test_topic_discovery import add_partitions
from tests.replays import all_places, append, at, cuts, memory, places, replaying, topic

PERIOD = 1000
PERIODS = 150


def join(url: str, name: str, **settings: Any) -> AbstractAsyncContextManager[aiokcc.Group]:
    usual = {"topics": {"orders": 2}, "period": PERIOD, "start": 0, "member": name, "claim_timeout": math.inf}
    return aiokcc.connect(url, **{**usual, **settings})


async def consume(group: aiokcc.Group, number: int, done: list[int], upto: int = PERIODS) -> None:
    """Runs a partition with one record in each period, up to the record at which it is released."""
    async with group.gate("orders", number) as gate:
        for period in range(gate.resume_offset or 0, upto):
            await gate.wait_until(period * PERIOD, period)
            done.append(period)
        if upto == PERIODS:
            gate.finish(PERIODS)


@pytest.mark.parametrize("lookahead", [0, 4])
@pytest.mark.parametrize("leads", ["owner", "standby"])
async def test_the_group_runs_at_full_speed_beside_a_standby_which_then_takes_over(
    zk_root: str, leads: str, lookahead: int
) -> None:
    names = ["owner", "standby"] if leads == "owner" else ["standby", "owner"]
    settings = {"lookahead": lookahead, "session_timeout": 4}
    seen: list[int] = []
    others: list[int] = []
    async with asyncio.timeout(60), join(zk_root, names[0], **settings) as one:
        async with join(zk_root, names[1], **settings) as two:
            owner, standby = (one, two) if leads == "owner" else (two, one)
            waits = asyncio.Event()
            begun = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(consume(owner, 0, seen, PERIODS // 2))
                await asyncio.sleep(0)
                async with standby.gate("orders", 1) as own:
                    taking = tasks.create_task(consume(standby, 0, seen))
                    for period in range(PERIODS):
                        await own.wait_until(period * PERIOD, period)
                        others.append(period)
                        if period == PERIODS // 2 - 10:
                            assert not taking.done()
                            waits.set()
                    own.finish(PERIODS)
                await running
                await taking
            took = time.monotonic() - begun
            assert waits.is_set()
    assert took < PERIODS / 10, "as with a report that is late by a second each period"
    assert others == list(range(PERIODS))
    assert sorted(set(seen)) == list(range(PERIODS))
    assert len(seen) <= PERIODS + 1 + lookahead, "nothing that was closed comes again"


async def test_a_lock_lost_and_won_back_tells_where_to_go_on(zk_root: str) -> None:
    """The first member is cut off past its session; the second closes periods and leaves; the first goes on in its gate."""
    upstream, root = zk_root.removeprefix("zk://").split("/")
    settings = {"topics": {"orders": 1}}
    async with (
        asyncio.timeout(60),
        Proxy(upstream) as proxy,
        join(f"zk://{proxy.connection}/{root}", "first", session_timeout=1.5, **settings) as first,
        first.gate("orders", 0) as gate,
    ):
        await gate.wait_until(0, 0)
        session = first.membership.session
        assert isinstance(session, Session)
        proxy.blackhole()
        await session.until(SessionState.LOST)
        async with join(zk_root, "second", **settings) as second:
            seen: list[int] = []
            await consume(second, 0, seen, 20)
        mark = max((await cuts(zk_root)).items())[1].find(Partition("orders", 0))
        assert mark is not None
        proxy.heal()
        with pytest.raises(aiokcc.PositionLostError, match="go on at offset 19") as told:
            await gate.wait_until(PERIOD // 2, 1)
        assert told.value.offset == gate.resume_offset == mark.offset == 19
        for period in range(19, 30):
            await gate.wait_until(period * PERIOD, period)
        assert gate.late == 0
        gate.finish(30)


# Leaving a replay before its end


@pytest.mark.parametrize(
    ("how", "store", "lookahead", "assignment"),
    [
        *itertools.product(("break", "return", "aclose"), ("memory", "zookeeper"), (0, 3), ("fixed",)),
        *itertools.product(("break", "return", "aclose"), ("zookeeper",), (0, 3), ("managed",)),
        ("periods", "memory", 0, "fixed"),  # periods() is read one at a time, from partitions that stay
        ("periods", "zookeeper", 0, "fixed"),
    ],
)
async def test_leaving_a_replay_early_ends_although_a_partition_has_finished(
    kafka: local.Kafka, zk_root: str, how: str, store: str, lookahead: int, assignment: Any
) -> None:
    """An empty topic has finished in the period that is open, so no cut holds it; the next start reads everything."""
    empty, name = await topic(kafka, []), await topic(kafka, [at(m) for m in range(5)])
    where = memory() if store == "memory" else zk_root

    async def leave(replay: Any) -> None:
        async for _ in replay.periods() if how == "periods" else replay:
            if how == "return":
                return
            break

    settings = {"store": where, "lookahead": lookahead, "assignment": assignment}
    async with asyncio.timeout(20), replaying(kafka, empty, name, **settings) as replay:
        if how == "aclose":
            records = aiter(replay)
            await anext(records)
            await records.aclose()
        else:
            await leave(replay)
    seen: list[Any] = []
    if store == "zookeeper":
        async with asyncio.timeout(20), replaying(kafka, empty, name, **settings) as replay:
            await replay.run(seen.append)
        assert set(places(seen)) == set(all_places(name, 5))


async def test_a_replay_that_was_left_early_keeps_nothing_from_another_process(
    kafka: local.Kafka, zk_root: str
) -> None:
    """It is left, and its block goes on: what had finished is free for others as well."""
    empty, name = await topic(kafka, []), await topic(kafka, [at(m) for m in range(5)])
    seen: list[Any] = []
    async with asyncio.timeout(20), replaying(kafka, empty, name, store=zk_root) as left:
        async for _ in left:
            break
        async with replaying(kafka, empty, name, store=zk_root) as other:
            await other.run(seen.append)
    assert set(places(seen)) == set(all_places(name, 5))


async def test_two_replays_of_the_same_partitions_one_stands_by(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(m) for m in range(40)], [at(m, 1) for m in range(40)])
    seen: list[Any] = []
    settings = {"store": zk_root, "claim_timeout": math.inf}

    async def stand_by() -> None:
        async with replaying(kafka, name, **settings) as standby:
            await standby.run(seen.append)

    async with asyncio.timeout(40), asyncio.TaskGroup() as tasks:
        async with replaying(kafka, name, **settings) as owner:

            def handle(record: Any) -> None:
                seen.append(record)
                if len(seen) == 2:
                    tasks.create_task(stand_by())
                if len(seen) == 40:
                    owner.stop()

            await owner.run(handle)
    assert set(places(seen)) == set(all_places(name, 40, 40))
    assert len(seen) <= 84


@pytest.mark.parametrize("follows", [False, True])
async def test_one_replay_stands_by_for_two_others(kafka: local.Kafka, zk_root: str, follows: bool) -> None:
    """Each of two runs a partition. When one of them stops, the standby runs that one, while it waits for the other."""
    name = await topic(kafka, [at(m) for m in range(40)], [at(m, 1) for m in range(40)])
    seen: list[Any] = []
    taken_over: list[Any] = []
    settings = {"store": zk_root, "claim_timeout": math.inf, **({"end": None} if follows else {})}
    both, runs = asyncio.Event(), [asyncio.Event(), asyncio.Event()]

    async def run(number: int, upto: int) -> None:
        async with replaying(kafka, name, partitions={name: [number]}, **settings) as replay:

            async def handle(record: Any) -> None:
                runs[number].set()
                await both.wait()
                seen.append(record)
                if record.offset + 1 == upto:
                    replay.stop()

            await replay.run(handle)

    async def stand_by() -> None:
        async with replaying(kafka, name, **settings) as standby:

            def handle(record: Any) -> None:
                taken_over.append(record)
                if follows and record.offset == 39:
                    standby.stop()

            both.set()
            await standby.run(handle)

    async with asyncio.timeout(40), asyncio.TaskGroup() as tasks:
        tasks.create_task(run(0, 20))
        tasks.create_task(run(1, 40 if follows else 99))
        for runs_by_now in runs:
            await runs_by_now.wait()
        tasks.create_task(stand_by())
    assert {record.partition for record in taken_over} == {0}
    assert set(places(seen + taken_over)) == set(all_places(name, 40, 40))


async def test_a_standby_takes_a_new_partition_while_it_waits_for_the_others(kafka: local.Kafka) -> None:
    """Two replays run a partition each, and a third one waits for both. Nobody else wants the partition that is added."""
    name = await topic(kafka, [at(0)], [at(0)])
    settings = {"store": memory(), "claim_timeout": math.inf, "end": None, "metadata_max_age_ms": 300}
    runs, looked, got = [asyncio.Event(), asyncio.Event()], asyncio.Event(), asyncio.Event()
    answers: list[int] = []
    busy: list[set[int]] = []

    def wants_all(_: str, number: int) -> bool:
        answers.append(number)
        if len(answers) == 4:  # twice for each: when it joins, and when it asks for the locks
            looked.set()
        return True

    async def run(wants: Callable[[str, int], bool], handler: Callable[[Any], Any]) -> None:
        async with replaying(kafka, name, partitions=wants, **settings) as replay:
            await replay.run(handler)

    async def stand_by() -> None:
        async with replaying(kafka, name, partitions=wants_all, **settings) as standby:

            def handle(record: Any) -> None:
                busy.append({number for _, number in standby.busy})
                assert record.partition == 2
                got.set()

            await standby.run(handle)

    async with asyncio.timeout(40), asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(run(lambda _, number: number == 0, lambda _: runs[0].set())),
            tasks.create_task(run(lambda _, number: number == 1, lambda _: runs[1].set())),
        ]
        for runs_by_now in runs:
            await runs_by_now.wait()
        running.append(tasks.create_task(stand_by()))
        await looked.wait()
        await add_partitions(kafka.bootstrap, name, 3)
        await append(kafka, name, 2, [at(0)])
        try:
            async with asyncio.timeout(10):
                await got.wait()
        finally:
            for task in running:
                task.cancel()
    assert busy == [{2}], "nobody waits for it because of what it waits for itself"
