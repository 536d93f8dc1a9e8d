"""Handlers that raise, and replays that are stopped at any point and started again on the same root."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

import aiokcc
from aiokcc import local
from aiokcc.kafka import Replay
from tests import kafka_topics
from tests.integration.kafka.test_topic_discovery import add_partitions
from tests.replays import MINUTE, all_places, at, cuts, partition, places, replaying, topic

# -- handlers -----------------------------------------------------------------------------------------------------------


async def test_a_handler_that_raises_names_the_record_and_the_limit_does_not_pass_it(
    kafka: local.Kafka, zk_root: str
) -> None:
    name = await topic(kafka, [at(0), at(1), at(2)], [at(m) for m in range(5)])

    def handle(record: Any) -> None:
        if (record.partition, record.offset) == (0, 1):
            raise ZeroDivisionError("no")

    async with replaying(kafka, name, store=zk_root) as replay:
        with pytest.raises(aiokcc.HandlerError, match=rf"{name}.0 at offset 1: .*ZeroDivisionError\('no'\)") as caught:
            await replay.run(handle)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert (caught.value.topic, caught.value.partition, caught.value.offset) == (name, 0, 1)
        status = await replay.group.status()
    assert status.limit == at(2)
    assert {b.partition for b in status.blocking} >= {f"{name}.0"}


async def test_an_error_of_ours_in_a_handler_is_still_the_handlers(kafka: local.Kafka) -> None:
    """A handler may use aiokcc itself; what it raises there must not be taken for the end of this run."""
    name = await topic(kafka, [at(0), at(1)])

    def handle(_: Any) -> None:
        raise aiokcc.RunEnded("of another run")

    for run in (Replay.run, Replay.run_batches):
        with pytest.raises(aiokcc.HandlerError, match="offset 0") as caught:
            async with replaying(kafka, name) as replay:
                await run(replay, handle)
        assert isinstance(caught.value.__cause__, aiokcc.RunEnded)


async def test_a_batch_handler_that_raises_names_the_first_record(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0), at(1), at(1), at(1)])

    async def handle(records: list[Any]) -> None:
        if len(records) == 3:
            raise ZeroDivisionError

    with pytest.raises(aiokcc.HandlerError, match="batch of 3 records") as caught:
        async with replaying(kafka, name) as replay:
            await replay.run_batches(handle)
    assert caught.value.offset == 1


@pytest.mark.parametrize("lateness", [None, "1m"])
async def test_retries(kafka: local.Kafka, lateness: str | None) -> None:
    name = await topic(kafka, [at(0), at(1)])
    tries: list[int] = []

    async def handle(record: Any) -> None:
        tries.append(record.offset)
        if tries.count(0) < 3:
            raise ZeroDivisionError

    async with replaying(kafka, name, retries=2, lateness=lateness) as replay:
        await replay.run(handle)
    assert tries == [0, 0, 0, 1]
    assert replay.summary.retried == 2
    assert replay.summary.records == 2
    tries.clear()
    with pytest.raises(aiokcc.HandlerError):
        async with replaying(kafka, name, retries=1, lateness=lateness) as replay:
            await replay.run(handle)
    assert tries == [0, 0]


async def test_a_record_that_keeps_failing_goes_to_the_dead_letter_handler(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0), at(0), at(1)])
    handled: list[int] = []
    buried: list[tuple[int, str]] = []

    async def handle(record: Any) -> None:
        if record.offset == 1:
            raise ZeroDivisionError("again")
        handled.append(record.offset)

    async def bury(record: Any, reason: str) -> None:
        await asyncio.sleep(0)
        buried.append((record.offset, reason))

    async with replaying(kafka, name, retries=1, on_error="dead-letter", dead_letter=bury) as replay:
        await replay.run(handle)
    assert handled == [0, 2]
    assert buried == [(1, "ZeroDivisionError('again')")]
    assert (replay.summary.retried, replay.summary.dead_lettered) == (1, 1)


async def test_a_dead_letter_handler_that_raises_stops_the_replay(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0), -1])

    def bury(record: Any, reason: str) -> None:
        raise ZeroDivisionError(reason)

    with pytest.raises(aiokcc.HandlerError, match="offset 1: dead_letter raised"):
        async with replaying(kafka, name, poison="dead-letter", dead_letter=bury) as replay:
            await replay.run(lambda _: None)


# -- stopped and started again --------------------------------------------------------------------------------------------


class StopHereError(Exception):
    """Raised by a handler to end a replay as a crash would, but for the process."""


STAMPS = [
    [at(m, 1000 * n) for m in range(4) for n in range(3)],
    [at(0), at(2), at(1, 30_000), at(2, 1), at(1, 45_000), at(3), at(3, 1)],
]


@pytest.mark.parametrize("lateness", [None, "2m"])
@pytest.mark.parametrize("way", ["run", "batches", "iteration", "periods"])
async def test_stopped_at_any_point_nothing_is_lost_and_nothing_comes_from_behind_the_cut(
    kafka: local.Kafka, zookeeper: local.ZooKeeper, way: str, lateness: str | None
) -> None:
    """A replay that is stopped at its third record, again and again, comes to its end."""
    name = await topic(kafka, *STAMPS)
    root = zookeeper.url(name)
    handled: list[Any] = []
    ended = False
    async with asyncio.timeout(50):
        for _ in range(40):
            known = await cuts(root) if handled else {}
            closed = known[max(known)] if known else None
            handled_now: list[Any] = []
            try:
                await read_some(kafka, name, root, way, lateness, handled_now)
                ended = True
            except (StopHereError, aiokcc.HandlerError):
                pass
            for record in handled_now:
                mark = closed.find(partition(name, record.partition)) if closed is not None else None
                if mark is not None and mark.offset is not None:
                    assert closed is not None
                    high = getattr(mark.offset, "high", mark.offset)
                    assert record.offset >= mark.offset, "redelivery from behind the cut"
                    again = record in handled and record.offset < high
                    assert not (again and record.timestamp < closed.limit), "a record of a closed period came again"
            handled += handled_now
            if ended:
                break
    assert ended
    assert set(places(handled)) == set(all_places(name, *map(len, STAMPS)))


async def read_some(
    kafka: local.Kafka, name: str, root: str, way: str, lateness: str | None, handled: list[Any]
) -> None:
    """Handle records until one too many."""

    def handle(record: Any) -> None:
        if len(handled) == 7:
            raise StopHereError
        handled.append(record)

    def handle_all(records: list[Any]) -> None:
        if len(handled) >= 7:
            raise StopHereError
        handled.extend(records)

    async with replaying(kafka, name, store=root, lateness=lateness) as replay:
        if way == "run":
            await replay.run(handle)
        elif way == "batches":
            await replay.run_batches(handle_all)
        elif way == "iteration":
            async for record in replay:
                handle(record)
        else:
            async for period in replay.periods():
                handle_all([r for rs in period.records.values() for r in rs])


async def test_the_last_period_left_unprocessed_comes_again(kafka: local.Kafka, zk_root: str) -> None:
    """All partitions have finished by then; that must not be the last word."""
    name = await topic(kafka, [at(0), at(1)], [at(0)])
    with pytest.raises(StopHereError):
        async with replaying(kafka, name, store=zk_root) as replay:
            async for period in replay.periods():
                if period.end == at(2):
                    raise StopHereError
    async with asyncio.timeout(20), replaying(kafka, name, store=zk_root) as replay:
        again = [places(r) async for p in replay.periods() for r in p.records.values()]
    assert again == [[(name, 0, 1)]]


async def test_cuts_tile_the_log(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, *STAMPS)
    async with replaying(kafka, name, store=zk_root, lateness="2m") as replay:
        await replay.run(lambda _: None)
    found = await cuts(zk_root)
    boundaries = [found[n] for n in sorted(found)]
    assert [c.previous for c in boundaries][1:] == [c.limit for c in boundaries][:-1]
    for number, stamps in enumerate(STAMPS):
        for offset, ts in enumerate(stamps):
            of = [c.limit for c in boundaries if ts < c.limit and offset < reach(c.find(partition(name, number)))]
            assert of, f"record {offset} of {number} is in no cut"
            assert of[0] - MINUTE <= ts, "each in the cut of its own period"


@pytest.mark.parametrize("seed", range(4))
async def test_capped_records_keep_their_period_over_a_stop(
    kafka: local.Kafka, zookeeper: local.ZooKeeper, seed: int
) -> None:
    """A quarter have no timestamp, many are out of order: stopped after any period, each comes in the one it has in a run
    that is not stopped. The first record held back lies past the cut, so what is read again tells the greatest one anew."""
    chance = random.Random(seed)
    name = await topic(kafka, *(disorder(chance) for _ in range(2)))
    whole = await by_period(kafka, name, zookeeper.url(f"{name}-whole"))
    assert len(whole) == 50
    for stop_after in range(1, len(set(whole.values())), 3):
        root = zookeeper.url(f"{name}-{stop_after}")
        first = await by_period(kafka, name, root, stop_after)
        second = await by_period(kafka, name, root)
        assert first | second == whole
        closed = {place for place, end in first.items() if end < max(first.values())}
        assert not closed & second.keys(), "a record of a closed period came again"


def disorder(chance: random.Random) -> list[int]:
    stamps, now = [], 0
    for _ in range(25):
        now += chance.choice([0, 0, 10_000, 40_000, 90_000])
        ts = at(0, max(0, now - chance.choice([0, 0, 0, 30_000, 100_000, 170_000])))
        stamps.append(-1 if chance.random() < 0.25 else ts)
    return stamps


async def by_period(kafka: local.Kafka, name: str, root: str, stop_after: int | None = None) -> dict[Any, int]:
    """In which period each record was handed out; left in the last of so many."""
    found: dict[Any, int] = {}
    async with asyncio.timeout(40), replaying(kafka, name, store=root, lateness="2m", poison="cap") as replay:
        async for period in replay.periods():
            for records in period.records.values():
                found.update(dict.fromkeys(places(records), period.end))
            if stop_after is not None and len(set(found.values())) == stop_after:
                break
    return found


def reach(mark: Any) -> int:
    return int(getattr(mark.offset, "high", mark.offset))


# -- committed offsets ----------------------------------------------------------------------------------------------------


async def committed(kafka: local.Kafka, group: str, name: str, count: int) -> list[int | None]:
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        found = []
        for number in range(count):
            consumer.assign([TopicPartition(name, number)])
            found.append(await consumer.committed(TopicPartition(name, number)))
        return found
    finally:
        await consumer.stop()


def mine(name: str) -> dict[str, Any]:
    return {"partitions": {name: [0, 1]}, "group_id": f"group-{name}"}


async def test_committed_offsets_reach_the_end_and_never_pass_the_cut(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(m) for m in range(4)], [at(0), at(0), at(3)])
    found: list[list[int | None]] = []

    async def handle(record: Any) -> None:
        if record.partition == 1 and record.offset == 2:
            found.append(await committed(kafka, f"group-{name}", name, 2))

    async with replaying(kafka, name, store=zk_root, **mine(name)) as replay:
        await replay.run(handle)
    ((first, second),) = found
    assert (first or 0) <= 3, "not yet, or not past the cut at the third minute"
    assert (second or 0) <= 2
    assert await committed(kafka, f"group-{name}", name, 2) == [4, 3]


@pytest.mark.parametrize("lateness", [None, "1m"])
async def test_from_the_committed_offsets_on(kafka: local.Kafka, lateness: str | None) -> None:
    name = await topic(kafka, [at(m) for m in range(3)], [at(0)])
    async with replaying(kafka, name, lateness=lateness, **mine(name)) as replay:
        await replay.run(lambda _: None)
    await kafka_topics.write(kafka.bootstrap, name, [kafka_topics.Row(0, at(9)), kafka_topics.Row(1, at(8))])
    seen: list[Any] = []
    async with replaying(kafka, name, start="committed", lateness=lateness, **mine(name)) as replay:
        await replay.run(seen.append)
    assert places(seen) == [(name, 1, 1), (name, 0, 3)]


async def test_commit_false_commits_nothing(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(m) for m in range(3)], [])
    async with replaying(kafka, name, commit=False, **mine(name)) as replay:
        await replay.run(lambda _: None)
    assert await committed(kafka, f"group-{name}", name, 2) == [None, None]


async def test_offsets_of_an_earlier_run_under_the_same_group_do_not_hide_records(
    kafka: local.Kafka, zk_root: str
) -> None:
    """A second run over the same history, stopped before its first commit, starts again at its own cut, not at the old end."""
    name = await topic(kafka, [at(m) for m in range(5)], [at(m) for m in range(5)])
    async with replaying(kafka, name, **mine(name)) as replay:
        await replay.run(lambda _: None)
    handled: list[Any] = []

    def handle(record: Any) -> None:
        if record.timestamp >= at(1):
            raise StopHereError
        handled.append(record)

    second: dict[str, Any] = {"store": zk_root, "start": at(0), **mine(name)}
    with pytest.raises(aiokcc.HandlerError):
        async with replaying(kafka, name, commit=False, **second) as replay:
            await replay.run(handle)
    async with replaying(kafka, name, **second) as replay:
        await replay.run(handled.append)
    assert sorted(places(handled)) == all_places(name, 5, 5)


# -- what has come to be since --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["all", "rule", "group", "managed", "pattern"])
async def test_a_run_with_an_end_keeps_the_partitions_it_was_founded_with(
    kafka: local.Kafka, zk_root: str, way: str
) -> None:
    """Stopped, it goes on, although the topic has got another partition, and another topic matches."""
    name = await topic(kafka, [at(m) for m in range(4)], [at(m) for m in range(4)])
    ways: dict[str, dict[str, Any]] = {
        "all": {},
        "rule": {"partitions": lambda *_: True},
        "group": {"group_id": name},
        "managed": {"assignment": "managed", "join_window": 0},
        "pattern": {"pattern": f"{name}.*"},
    }
    topics = () if way == "pattern" else (name,)
    settings = {"store": zk_root, "end": "now", "lookahead": 0, **ways[way]}
    seen: list[Any] = []
    async with asyncio.timeout(50):
        async with replaying(kafka, *topics, **settings) as replay:

            def until_minute_two(record: Any) -> None:
                if record.timestamp >= at(2):
                    replay.stop()
                seen.append(record)

            await replay.run(until_minute_two)
        assert len(seen) < 8
        await add_partitions(kafka.bootstrap, name, 3)
        await kafka_topics.write(kafka.bootstrap, name, [kafka_topics.Row(2, at(1))])
        if way == "pattern":
            await kafka_topics.create(kafka.bootstrap, f"{name}-more")
            await kafka_topics.write(kafka.bootstrap, f"{name}-more", [kafka_topics.Row(0, at(1))])
        async with replaying(kafka, *topics, **settings) as replay:
            await replay.run(seen.append)
            assert replay.group.ended
    assert sorted(set(places(seen))) == all_places(name, 4, 4)


async def test_a_partition_that_is_newer_than_the_run_is_refused_where_it_is_named(
    kafka: local.Kafka, zk_root: str
) -> None:
    name = await topic(kafka, [at(0)])
    other = await topic(kafka, [at(0)])
    async with replaying(kafka, name, store=zk_root, end="now"):
        await add_partitions(kafka.bootstrap, name, 2)
        with pytest.raises(aiokcc.PartitionError, match=f"{name}.1 is newer than the run"):
            async with replaying(kafka, name, store=zk_root, end="now", partitions={name: [0, 1]}):
                pass
        with pytest.raises(aiokcc.GroupMismatchError, match="runs with other settings: partitions is"):
            async with replaying(kafka, name, other, store=zk_root, end="now"):
                pass
