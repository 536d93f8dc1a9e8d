"""The ways to read a replay, on a real broker: each sees every record once, in the order of periods, and ends cleanly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import aiokcc
from aiokcc import local
from aiokcc.core.partitions import Partition
from aiokcc.kafka import Replay
from aiokcc.runtime.health import assess
from aiokcc.views.status_view import build_view
from tests.replays import MINUTE, all_places, at, in_step, memory, other_tasks, places, replaying, topic

Reader = Callable[[Replay, list[Any]], Awaitable[None]]


async def by_coroutine(replay: Replay, seen: list[Any]) -> None:
    async def handle(record: Any) -> None:
        await asyncio.sleep(0)
        seen.append(record)

    await replay.run(handle)


async def by_function(replay: Replay, seen: list[Any]) -> None:
    await replay.run(seen.append)


async def by_batches(replay: Replay, seen: list[Any]) -> None:
    async def handle(records: list[Any]) -> None:
        assert len({(r.topic, r.partition, r.timestamp // MINUTE) for r in records}) == 1, "one partition, one period"
        await asyncio.sleep(0)
        seen.extend(records)

    await replay.run_batches(handle)


async def by_iteration(replay: Replay, seen: list[Any]) -> None:
    async for record in replay:
        seen.append(record)  # noqa: PERF401 - one by one, as a user does


async def by_periods(replay: Replay, seen: list[Any]) -> None:
    async for period in replay.periods():
        for where, records in period.records.items():
            assert all(Partition(r.topic, r.partition) == where for r in records)
            assert all(period.start <= r.timestamp < period.end for r in records)
            assert period.cut[where] == records[-1].offset + 1
            seen.extend(records)


READERS = [by_coroutine, by_function, by_batches, by_iteration, by_periods]


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    """No test here leaves a task behind."""
    before = other_tasks()
    yield
    async with asyncio.timeout(5):
        while left := other_tasks() - before:
            await asyncio.wait(left)


@pytest.mark.parametrize("read", READERS)
async def test_each_way_sees_every_record_once_in_period_order(kafka: local.Kafka, read: Reader) -> None:
    skewed = [at(m, n) for m in range(6) for n in range(200)]
    orders = await topic(kafka, skewed, [at(m) for m in range(6)])
    payments = await topic(kafka, [at(5, n) for n in range(10)])
    seen: list[Any] = []
    async with replaying(kafka, orders, payments) as replay:
        await read(replay, seen)
        assert replay.summary.records == 1216
        assert replay.summary.periods == 6
        assert replay.summary.seconds > 0
        assert (replay.summary.late, replay.summary.poisoned, replay.summary.dead_lettered) == (0, 0, 0)
    assert sorted(places(seen)) == sorted(all_places(orders, 1200, 6) + all_places(payments, 10))
    assert in_step(r.timestamp for r in seen)
    for where in {(r.topic, r.partition) for r in seen}:
        offsets = [r.offset for r in seen if (r.topic, r.partition) == where]
        assert offsets == sorted(offsets), "each partition in the order of its log"


async def test_without_an_end_it_ends_where_the_topics_end(kafka: local.Kafka) -> None:
    """As the README's first lines have it: the program returns when it has read what there is."""
    name = await topic(kafka, [at(0), at(1)], [])
    seen: list[Any] = []
    async with aiokcc.replay(name, bootstrap_servers=kafka.bootstrap, store=memory(), period="1m") as replay:
        summary = await replay.run(seen.append)
    assert places(seen) == all_places(name, 2)
    assert summary.records == 2


async def test_the_status_of_a_run_from_earliest_to_now_knows_how_much_is_done(
    kafka: local.Kafka, zk_root: str
) -> None:
    name = await topic(kafka, [at(m) for m in range(10)], [at(m) for m in range(10)])
    seen: list[tuple[int | None, int | None]] = []
    async with replaying(kafka, name, store=zk_root) as replay:
        async for period in replay.periods():
            status = await replay.group.status()
            assert (status.start, status.end) == (None, None)
            assert "start=earliest end=now" in status.source
            seen.append((status.offsets_done, status.offsets_total))
            facts = dict(build_view(status, assess(status, stuck_after=30, now=0), now=0).facts)
            if period.start == at(5):
                assert facts["limit"].endswith("   50.0% of the run")
                assert facts["run"] == "from the earliest record to where the topics ended when it began"
                assert facts["offsets"] == "10 of 20 are processed"
        ended = await replay.group.status()
    assert seen == [(2 * n, 20) for n in range(10)]
    assert (ended.state, ended.offsets_done) == ("ended", 20)


@pytest.mark.parametrize("read", READERS)
async def test_three_members_see_it_all_once_and_in_step(kafka: local.Kafka, zk_root: str, read: Reader) -> None:
    name = await topic(kafka, *([at(m, 7 * n) for m in range(4) for n in range(20)] for _ in range(6)))
    seen: list[Any] = []

    async def work(number: int) -> None:
        mine = {name: [number, number + 3]}
        async with replaying(kafka, name, store=zk_root, partitions=mine, member=f"w{number}") as replay:
            await read(replay, seen)

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        for number in range(3):
            tasks.create_task(work(number))
    assert sorted(places(seen)) == all_places(name, *[80] * 6)
    assert in_step(r.timestamp for r in seen)


class BrokenError(Exception):
    """Raised in a body."""


@pytest.mark.parametrize("how", ["iteration", "periods"])
async def test_breaking_out_early_gives_the_partitions_up_and_ends(kafka: local.Kafka, how: str) -> None:
    name = await topic(kafka, [at(m) for m in range(5)], [at(m) for m in range(5)])
    async with asyncio.timeout(20), replaying(kafka, name) as replay:
        async for _ in replay if how == "iteration" else replay.periods():
            break
        assert replay.group.limit == at(1), "what was not asked for is not passed"
    # and the block was left without an error


@pytest.mark.parametrize("how", ["iteration", "periods"])
async def test_an_exception_in_the_body_comes_out_as_it_is(kafka: local.Kafka, how: str) -> None:
    name = await topic(kafka, [at(m) for m in range(5)])
    with pytest.raises(BrokenError):
        async with asyncio.timeout(20), replaying(kafka, name) as replay:
            async for _ in replay if how == "iteration" else replay.periods():
                raise BrokenError


@pytest.mark.parametrize("how", ["iteration", "periods"])
async def test_closing_the_iterator_gives_the_partitions_up(kafka: local.Kafka, zk_root: str, how: str) -> None:
    name = await topic(kafka, [at(m) for m in range(5)])
    async with asyncio.timeout(30), replaying(kafka, name, store=zk_root) as replay:
        records: Any = replay.__aiter__() if how == "iteration" else replay.periods()
        await anext(records)
        await records.aclose()
        async with replaying(
            kafka, name, store=zk_root
        ) as other:  # which gets the lock, while the first is still there
            seen: list[Any] = []
            await other.run(seen.append)
    assert places(seen) == all_places(name, 5), "the open period again"


@pytest.mark.parametrize("read", READERS)
async def test_cancelling_ends_at_once_and_leaves_nothing(kafka: local.Kafka, read: Reader) -> None:
    name = await topic(kafka, [at(m) for m in range(3)])

    class Noting(list[Any]):
        """Says when the third record has come."""

        def append(self, item: Any) -> None:
            super().append(item)
            if len(self) == 3:
                third.set()

        def extend(self, items: Any) -> None:
            for item in items:
                self.append(item)

    seen, third = Noting(), asyncio.Event()

    async def follow() -> None:
        async with replaying(kafka, name, end=None) as replay:
            await read(replay, seen)

    task = asyncio.ensure_future(follow())
    async with asyncio.timeout(20):
        await third.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("read", READERS)
async def test_an_error_comes_out_bare(kafka: local.Kafka, read: Reader) -> None:
    name = await topic(kafka, [at(0), -5, at(1)], [at(0)])
    with pytest.raises(aiokcc.PoisonTimestampError) as caught:
        async with asyncio.timeout(20), replaying(kafka, name) as replay:
            await read(replay, [])
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == (name, 0, 1)


@pytest.mark.parametrize("again", READERS)
async def test_a_second_read_is_refused(kafka: local.Kafka, again: Reader) -> None:
    name = await topic(kafka, [at(0)])
    async with replaying(kafka, name) as replay:
        await replay.run(lambda _: None)
        with pytest.raises(aiokcc.UsageError, match="read already"):
            await again(replay, [])


async def test_a_root_whose_run_has_ended_is_refused(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(0)])
    async with replaying(kafka, name, store=zk_root) as replay:
        await replay.run(lambda _: None)
    with pytest.raises(aiokcc.RunEnded, match="another root"):
        async with replaying(kafka, name, store=zk_root):
            pass


async def test_asking_for_the_next_says_that_the_last_is_done(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0), at(1)], [at(0), at(1)])
    async with replaying(kafka, name) as replay:
        limits = [(record.timestamp, replay.group.limit) async for record in replay]
    assert [limit for _, limit in limits] == [at(1), at(1), at(2), at(2)]


async def test_a_period_is_whole_and_held_until_the_next_is_asked_for(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0, n) for n in range(50)] + [at(3)], [at(0), at(2)], [])
    async with replaying(kafka, name) as replay:
        found = []
        async for period in replay.periods():
            assert replay.group.limit == period.end, "nobody moves on while we work"
            found.append((period.start, period.end, {p.number: len(r) for p, r in period.records.items()}))
            assert all(type(p) is Partition for p in period.cut)
    assert [f[1:] for f in found] == [(at(1), {0: 50, 1: 1}), (at(3), {1: 1}), (at(4), {0: 1})]
    assert [f[0] for f in found][1:] == [f[1] for f in found][:-1], "periods tile event time"


async def test_lookahead_reads_the_same_records(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(m, 5) for m in range(20)], [at(m) for m in range(0, 20, 3)])
    seen: list[Any] = []
    async with replaying(kafka, name, lookahead=3) as replay:
        await replay.run(seen.append)
    assert sorted(places(seen)) == all_places(name, 20, 7)
    greatest = 0
    for record in seen:
        assert record.timestamp > greatest - 4 * MINUTE - MINUTE
        greatest = max(greatest, record.timestamp)


async def test_auto_lookahead_reads_the_same_records_within_its_bound(kafka: local.Kafka, zk_root: str) -> None:
    """A record takes no time, so round trips are all there is: the leader chooses as much as the bound allows."""
    name = await topic(kafka, [at(m, 5) for m in range(300)], [at(m) for m in range(0, 300, 3)])
    settings = {"store": zk_root, "lookahead": "auto", "max_apart": "10m"}
    first: list[Any] = []
    second: list[Any] = []
    open_boundaries = 0

    async def read(number: int, seen: list[Any]) -> None:
        async with replaying(kafka, name, partitions={name: [number]}, **settings) as replay:

            def handle(record: Any) -> None:
                nonlocal open_boundaries
                open_boundaries = max(open_boundaries, len(replay.group.membership.progress.limit.boundaries))
                seen.append(record)

            summary = await replay.run(handle)
        assert summary.records == len(seen)
        assert summary.periods == 300

    await asyncio.gather(read(0, first), read(1, second))
    assert sorted(places(first + second)) == all_places(name, 300, 100)
    assert 4 <= open_boundaries <= 10


async def test_the_summary_says_what_round_trips_cost(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(m) for m in range(100)])
    async with replaying(kafka, name, store=zk_root) as replay:
        summary = await replay.run(lambda _: None)
    assert 0 < summary.round_trips <= summary.waited < summary.seconds
    async with replaying(kafka, name, lookahead=3) as replay:
        summary = await replay.run(lambda _: None)
    assert (summary.round_trips, summary.waited) == (0, 0)


@pytest.mark.parametrize("lateness", [None, "2m"])
async def test_periods_are_whole_with_lookahead_too(kafka: local.Kafka, lateness: str | None) -> None:
    """Two processes of different speed: each gets its periods whole and in order, and the limit waits for the slower."""
    stamps = [at(m, 5) for m in range(20)]
    if lateness is not None:
        stamps[3:6] = reversed(stamps[3:6])
    name = await topic(kafka, stamps, [at(m) for m in range(0, 20, 3)])
    settings = {"store": memory(), "lookahead": 4, "lateness": lateness}

    async def read(number: int, takes: float) -> list[tuple[int, list[int]]]:
        found = []
        async with replaying(kafka, name, partitions={name: [number]}, **settings) as replay:
            async for period in replay.periods():
                await asyncio.sleep(takes)
                assert replay.group.limit <= period.end + 4 * MINUTE, "it closes when it is processed"
                found.append((period.end, [r.timestamp for rs in period.records.values() for r in rs]))
        return found

    slow, fast = await asyncio.gather(read(0, 0.02), read(1, 0))
    assert slow == [(at(m + 1), [at(m, 5)]) for m in range(20)]
    assert fast == [(at(m + 1), [at(m)]) for m in range(0, 20, 3)]
