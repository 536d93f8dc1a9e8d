"""A replay that follows its topics: ended in good order, released, and joined by partitions that come later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer

import aiokcc
from aiokcc import local
from aiokcc.kafka import Replay
from tests.integration.kafka.test_topic_discovery import Seen, add_partitions
from tests.replays import MINUTE, all_places, append, at, in_step, places, replaying, topic

# -- ended by stop() ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lateness", [None, "1m"])
@pytest.mark.parametrize("way", ["run", "batches", "iteration"])
async def test_stop_ends_in_good_order_and_the_next_goes_on_where_it_was(
    kafka: local.Kafka, zk_root: str, way: str, lateness: str | None
) -> None:
    """Stopped in the middle of a period, with records fetched and not handled: none is lost, and none comes twice."""
    name = await topic(kafka, [at(m, n) for m in range(3) for n in range(20)], [at(m) for m in range(3)])
    following = {"store": zk_root, "end": None, "lateness": lateness, "assignment": "fixed", "group_id": name}
    seen: list[Any] = []
    async with asyncio.timeout(30), replaying(kafka, name, **following) as replay:
        await read(replay, way, until(replay, seen, 30))
        assert 30 <= len(seen) < 63
        assert replay.partitions == ()
    if way == "run":
        assert len(seen) == 30, "no further record was started"
    async with asyncio.timeout(30), replaying(kafka, name, **following) as replay:
        await read(replay, way, until(replay, seen, 63))
    assert sorted(places(seen)) == all_places(name, 60, 3)


def until(replay: Replay, seen: list[Any], number: int) -> Callable[[Any], None]:
    """Return a handler that stops the replay when it has got this number of records."""

    def handle(record: Any) -> None:
        seen.append(record)
        if len(seen) == number:
            replay.stop()

    return handle


async def read(replay: Replay, way: str, handle: Callable[[Any], None]) -> None:
    if way == "run":
        await replay.run(handle)
    elif way == "batches":

        def handle_all(records: list[Any]) -> None:
            for record in records:
                handle(record)

        await replay.run_batches(handle_all)
    else:
        async for record in replay:
            handle(record)


async def test_stop_without_commits_repeats_the_open_period_at_most(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(m, n) for m in range(3) for n in range(20)])
    first: list[Any] = []
    second: list[Any] = []
    async with asyncio.timeout(30), replaying(kafka, name, store=zk_root, end=None) as replay:
        await replay.run(until(replay, first, 30))
    async with asyncio.timeout(30), replaying(kafka, name, store=zk_root, end=None) as replay:
        await replay.run(until(replay, second, 40))
    assert [r.offset for r in first] == list(range(30))
    assert [r.offset for r in second] == list(range(20, 60))


async def test_stop_of_periods_ends_with_the_period_that_is_processed(kafka: local.Kafka, zk_root: str) -> None:
    """It is worked on for a while after the stop; it counts as done when the next one is asked for, and comes once."""
    name = await topic(kafka, [at(m, n) for m in range(4) for n in range(20)], [at(m) for m in range(4)])
    following: dict[str, Any] = {"store": zk_root, "end": None, "assignment": "fixed", "group_id": name}
    found: list[Any] = []
    for stop_at in (at(2), at(4)):
        async with asyncio.timeout(30), replaying(kafka, name, **following) as replay:
            async for period in replay.periods():
                found.append(sorted((r.partition, r.offset) for records in period.records.values() for r in records))
                if period.end == stop_at:
                    replay.stop()
                    await until_drained(replay)
    assert found == [[*((0, 20 * m + n) for n in range(20)), (1, m)] for m in range(4)]


async def until_drained(replay: Replay) -> None:
    """Wait until all partition tasks have ended, which they do once they are revoked."""
    partition_tasks = replay._reader._partition_tasks
    while partition_tasks is not None and not partition_tasks.done:
        await replay.group.status()


async def test_stop_of_periods_hands_out_no_part_of_one(kafka: local.Kafka, zk_root: str) -> None:
    """Stopped while a period is being gathered: that one comes again, whole."""
    name = await topic(kafka, [at(0, n) for n in range(3000)] + [at(1)], [at(0)])
    following: dict[str, Any] = {"store": zk_root, "end": None, "assignment": "fixed", "group_id": name}
    replays: list[Replay] = []

    def stamp(record: Any) -> int:
        if record.offset == 2500 and len(replays) == 1:
            replays[0].stop()
        return int(record.timestamp)

    found: list[int] = []
    for _ in range(2):
        async with asyncio.timeout(40), replaying(kafka, name, timestamp=stamp, **following) as replay:
            replays.append(replay)
            async for period in replay.periods():
                found.append(sum(map(len, period.records.values())))
                replay.stop()
    assert found == [3001]


async def test_stop_of_periods_after_a_release_loses_nothing(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(m) for m in range(5)], [at(m) for m in range(5)])
    following: dict[str, Any] = {"store": zk_root, "end": None, "assignment": "fixed", "group_id": name}
    found: set[tuple[str, int, int]] = set()
    async with asyncio.timeout(40), replaying(kafka, name, **following) as replay:
        async for period in replay.periods():
            found.update(place for records in period.records.values() for place in places(records))
            if replay.group.released:
                replay.stop()
            else:
                await replay.group.release()
    while len(found) < 10:
        async with asyncio.timeout(40), replaying(kafka, name, **following) as replay:
            async for period in replay.periods():
                found.update(place for records in period.records.values() for place in places(records))
                replay.stop()
    assert found == set(all_places(name, 5, 5))


async def test_stop_while_nothing_comes_and_before_anything_was_read(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0)], [])
    seen = Seen()
    async with asyncio.timeout(30), replaying(kafka, name, end=None) as replay:
        running = asyncio.ensure_future(replay.run(seen.handle))
        await seen.until(1)
        replay.stop()
        replay.stop()
        summary = await running
    assert summary.records == 1
    async with asyncio.timeout(30), replaying(kafka, name, end=None) as replay:
        replay.stop()
        assert (await replay.run(seen.handle)).records == 0


@pytest.mark.parametrize("assignment", ["group", "managed"])
async def test_stop_hands_over_what_was_assigned(kafka: local.Kafka, zk_root: str, assignment: str) -> None:
    name = await topic(kafka, [at(m, n) for m in range(3) for n in range(20)], [at(m) for m in range(3)])
    following: dict[str, Any] = {"store": zk_root, "end": None, "assignment": assignment, "group_id": name}
    seen: list[Any] = []
    for number in (30, 63):
        async with asyncio.timeout(30), replaying(kafka, name, **following) as replay:
            await replay.run(until(replay, seen, number))
    assert sorted(places(seen)) == all_places(name, 60, 3), "each once, by way of the offsets"


async def test_stop_while_partitions_are_being_released(kafka: local.Kafka, zk_root: str) -> None:
    """A second member joins the Kafka group, so the first releases partitions; it is stopped while its handler still runs."""
    name = await topic(kafka, [at(m) for m in range(3)], [at(m) for m in range(3)])
    following: dict[str, Any] = {"store": zk_root, "end": None, "group_id": name, "heartbeat_interval_ms": 300}
    seen: list[Any] = []
    begun, go_on, releasing = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(record: Any) -> None:
        begun.set()
        await go_on.wait()
        seen.append(record)

    async def second() -> None:
        async with replaying(kafka, name, **following) as replay:
            await replay.run(until(replay, seen, 6))

    async with asyncio.timeout(50), replaying(kafka, name, **following) as replay:
        running = asyncio.ensure_future(replay.run(slow))
        await begun.wait()
        revoke = replay._member.revoke

        def noting(gate: Any, **settings: Any) -> None:
            revoke(gate, **settings)
            releasing.set()

        replay._member.revoke = noting  # type: ignore[method-assign]
        other = asyncio.ensure_future(second())
        await releasing.wait()
        replay.stop()
        go_on.set()
        await running
        await other  # which gets the locks although the first is still there
    assert sorted(places(seen)) == all_places(name, 3, 3)


# -- released -------------------------------------------------------------------------------------------------------------


async def test_after_a_release_what_is_done_is_committed_and_does_not_come_again(
    kafka: local.Kafka, zk_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cut is written any more; the replay is cancelled, and the next one continues at the committed offsets."""
    name = await topic(kafka, [at(0), at(1)], [at(0), at(1)])
    following: dict[str, Any] = {"store": zk_root, "end": None, "assignment": "fixed", "group_id": name}
    done, commit = asyncio.Event(), AIOKafkaConsumer.commit

    async def noting(self: Any, offsets: Any) -> None:
        await commit(self, offsets)
        if [offset for offset, _ in offsets.values()] == [4, 2]:
            done.set()

    monkeypatch.setattr(AIOKafkaConsumer, "commit", noting)
    seen = Seen()
    async with asyncio.timeout(40), replaying(kafka, name, **following) as replay:
        running = asyncio.ensure_future(replay.run(seen.handle))
        await seen.until(4)
        await replay.group.release()
        await append(kafka, name, 0, [at(9), at(7)], first=2)
        await done.wait()
        running.cancel()
        await asyncio.wait([running])
    await append(kafka, name, 1, [at(3)], first=2)
    async with asyncio.timeout(40), replaying(kafka, name, **following) as replay:
        await replay.run(until(replay, seen.records, 7))
    assert places(seen.records)[-1] == (name, 1, 2)
    assert sorted(places(seen.records)) == all_places(name, 4, 3)


# -- joined by more partitions ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def member(kafka: local.Kafka, name: str, store: str, seen: Seen, **settings: Any) -> AsyncIterator[Replay]:
    """A member that follows beside the test until it is stopped."""
    async with replaying(kafka, name, store=store, end=None, metadata_max_age_ms=200, **settings) as replay:
        running = asyncio.ensure_future(replay.run(seen.handle))
        try:
            yield replay
        finally:
            replay.stop()
            await running


async def test_new_partitions_go_to_whoever_has_a_rule_for_them(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(0)], [at(0)])
    evens, odds = Seen(), Seen()
    async with (
        asyncio.timeout(50),
        member(kafka, name, zk_root, evens, partitions=lambda _, number: number % 2 == 0) as even,
        member(kafka, name, zk_root, odds, partitions=lambda _, number: number % 2 == 1) as odd,
    ):
        await asyncio.gather(evens.until(1), odds.until(1))
        await add_partitions(kafka.bootstrap, name, 4)
        for number in range(4):
            await append(kafka, name, number, [at(5)])
        await asyncio.gather(evens.until(3), odds.until(3))
        assert [p.number for p in even.partitions] == [0, 2]
        assert [p.number for p in odd.partitions] == [1, 3]
    assert {r.partition for r in evens.records} == {0, 2}
    assert {r.partition for r in odds.records} == {1, 3}


async def test_the_one_that_reads_all_the_rest_waits_for_its_first(kafka: local.Kafka, zk_root: str) -> None:
    """A rule that fits nothing yet is no reason to end."""
    name = await topic(kafka, [at(0)])
    first, later = Seen(), Seen()
    async with (
        asyncio.timeout(50),
        member(kafka, name, zk_root, first, partitions=[(name, 0)]),
        member(kafka, name, zk_root, later, partitions=lambda _, number: number > 0) as other,
    ):
        await first.until(1)
        assert other.partitions == ()
        await add_partitions(kafka.bootstrap, name, 2)
        await append(kafka, name, 1, [at(3)])
        await later.until(1)
    assert places(later.records) == [(name, 1, 0)]


async def test_a_partition_added_while_nobody_was_there_joins_at_the_next_start(
    kafka: local.Kafka, zk_root: str
) -> None:
    """Kafka has it, and the set that was agreed on does not yet."""
    name = await topic(kafka, [at(0), at(1)])
    seen = Seen()
    async with asyncio.timeout(30), member(kafka, name, zk_root, seen):
        await seen.until(2)
    await add_partitions(kafka.bootstrap, name, 2)
    await append(kafka, name, 1, [at(2)])
    for partitions in (None, [(name, 0), (name, 1)]):
        again = Seen()
        async with asyncio.timeout(30), member(kafka, name, zk_root, again, partitions=partitions):
            while (name, 1, 0) not in places(again.records):
                await again.until(len(again.records) + 1)


async def test_a_partition_joins_after_a_release_too(kafka: local.Kafka, zk_root: str) -> None:
    """Released is how history is followed into the present; a new partition must not be passed over there."""
    name = await topic(kafka, [at(0)])
    seen = Seen()
    async with asyncio.timeout(30), member(kafka, name, zk_root, seen) as replay:
        await seen.until(1)
        await replay.group.release()
        await add_partitions(kafka.bootstrap, name, 2)
        await append(kafka, name, 1, [at(2)])
        await seen.until(2)
        assert replay.group.released
    assert places(seen.records) == all_places(name, 1, 1)


async def test_a_rule_that_says_no_to_all_has_nothing_to_do(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0)])
    with pytest.raises(aiokcc.UsageError, match="nothing to do"):
        async with replaying(kafka, name, partitions=lambda *_: False):
            pass


# -- what it says it did ------------------------------------------------------------------------------------------------------


async def test_every_member_counts_the_same_periods(kafka: local.Kafka, zk_root: str) -> None:
    """One of them has a record in the last period only, and sees the limit pass by in leaps."""
    name = await topic(kafka, [at(m) for m in range(200)], [at(199)])
    seen: list[Any] = []

    async def work(number: int) -> int:
        async with replaying(kafka, name, store=zk_root, partitions={name: [number]}, start=at(0)) as replay:
            joined[number].set()
            await asyncio.gather(*(event.wait() for event in joined))
            return (await replay.run(seen.append)).periods

    joined = [asyncio.Event(), asyncio.Event()]
    async with asyncio.timeout(50):
        assert list(await asyncio.gather(work(0), work(1))) == [200, 200]
    assert in_step((r.timestamp for r in seen), MINUTE)
