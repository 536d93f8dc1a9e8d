"""The semantics of a replay, section by section, on a real broker: periods, idle partitions, ends, lateness, timestamps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.consumer.fetcher import PartitionRecords

import aiokcc
from aiokcc import local
from aiokcc.core.periods import MAX_LIMIT, format_time
from aiokcc.kafka import Replay
from aiokcc.runtime.status import Status
from tests import kafka_topics
from tests.kafka_topics import Row
from tests.replays import MINUTE, alive, all_places, append, at, cuts, in_step, partition, places, replaying, topic


class Seen(list[Any]):
    """Records, with a way to wait for so many of them."""

    def __init__(self) -> None:
        super().__init__()
        self._grown = asyncio.Event()

    def append(self, item: Any) -> None:
        super().append(item)
        self._grown.set()

    async def reach(self, number: int) -> None:
        async with asyncio.timeout(20):
            while len(self) < number:
                self._grown.clear()
                await self._grown.wait()


class Following:
    """A replay that runs beside the test until it is told to end."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        self._context = replaying(*args, **settings)
        self.seen = Seen()
        self._running: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Following:
        self.replay: Replay = await self._context.__aenter__()
        self._running = asyncio.ensure_future(self.replay.run(self.seen.append))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.wait([self._running])
        await self._context.__aexit__(None, None, None)
        if not self._running.cancelled():
            self._running.result()

    async def status(self, condition: Callable[[Status], bool]) -> Status:
        """Ask until the answer fulfils the condition: the store is the only one that knows."""
        async with asyncio.timeout(20):
            while not condition(status := await self.replay.group.status()):  # noqa: ASYNC110 - the store's word
                await asyncio.sleep(0.02)
        return status

    async def limit(self, at_least: int) -> None:
        await self.status(lambda s: s.limit is not None and s.limit >= at_least)


def states(status: Status) -> dict[str, str]:
    return {p.partition.rpartition(".")[2]: p.state for p in status.partitions}


async def everything(*args: Any, **settings: Any) -> tuple[list[Any], Replay]:
    seen: list[Any] = []
    async with asyncio.timeout(30), replaying(*args, **settings) as replay:
        await replay.run(seen.append)
    return seen, replay


# -- periods are half-open ---------------------------------------------------------------------------------------------


async def test_periods_are_half_open(kafka: local.Kafka) -> None:
    """A record at T waits for the next period; one a millisecond before does not."""
    name = await topic(kafka, [at(1, -1), at(1)], [at(0), at(1)])
    async with replaying(kafka, name) as replay:
        found = [
            (p.end, sorted((r.partition, r.offset) for rs in p.records.values() for r in rs))
            async for p in replay.periods()
        ]
    assert found == [(at(1), [(0, 0), (1, 0)]), (at(2), [(0, 1), (1, 1)])]


# -- waiting, idle, finished -------------------------------------------------------------------------------------------


async def test_waiting_idle_and_finished_are_distinct(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(0), at(5)], [at(0)], [])
    async with Following(kafka, name, store=zk_root, end=None) as follower:
        await follower.seen.reach(3)
        await follower.status(lambda s: states(s) == {"0": "idle", "1": "idle", "2": "idle"})
        await follower.replay.group.hold()
        await append(kafka, name, 0, [at(9)])
        status = await follower.status(lambda s: states(s)["0"] == "waiting")
        assert states(status) == {"0": "waiting", "1": "idle", "2": "idle"}
        assert status.state == "held"


async def test_a_finished_partition_is_not_waited_for(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(0)], [at(m) for m in range(5)])
    seen: list[Any] = []
    found: list[dict[str, str]] = []

    async def handle(record: Any) -> None:
        if record.offset == 4:
            found.append(states(await replay.group.status()))
        seen.append(record)

    async with replaying(kafka, name, store=zk_root) as replay:
        await replay.run(handle)
    assert len(seen) == 6
    assert found == [{"0": "finished", "1": "running"}]


# -- partitions without records ----------------------------------------------------------------------------------------


async def test_an_empty_partition_and_one_that_starts_at_its_end(kafka: local.Kafka) -> None:
    name = await topic(kafka, [], [at(0)], [at(m) for m in range(3, 6)])
    seen, _ = await everything(kafka, name, start=at(2))
    assert sorted(places(seen)) == [(name, 2, n) for n in range(3)]


async def test_nothing_at_all_ends_at_once(kafka: local.Kafka) -> None:
    name = await topic(kafka, [], [])
    seen, replay = await everything(kafka, name)
    assert seen == []
    assert replay.summary.records == replay.summary.periods == 0


async def test_idle_by_offsets_lets_the_others_go_on(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0)], [])
    async with Following(kafka, name, end=None) as follower:
        await follower.seen.reach(1)
        await append(kafka, name, 0, [at(m) for m in range(1, 20)], first=1)
        await follower.seen.reach(20)
    assert in_step(r.timestamp for r in follower.seen)


# -- gaps in the offsets, transactions ---------------------------------------------------------------------------------


async def test_compaction_leaves_gaps(kafka: local.Kafka) -> None:
    name = await kafka_topics.create_fresh(
        kafka.bootstrap,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0.001",
        segment_bytes=1_048_576,
        segment_ms=100,
        max_compaction_lag_ms=100,
    )
    rows = [Row(0, at(0, n), b"x", key=b"same") for n in range(100)]
    await kafka_topics.write(kafka.bootstrap, name, rows)
    await asyncio.sleep(0.2)  # the segment must be old enough to be closed by the next record
    await kafka_topics.write(kafka.bootstrap, name, [Row(0, at(3), b"y", key=b"other")])

    async with asyncio.timeout(30):
        while True:  # the cleaner tells nobody when it has been there
            seen, replay = await everything(kafka, name)
            if len(seen) < 101:
                break
    assert seen[-1].offset == 100
    assert replay.summary.records == len(seen)


async def test_transaction_markers_and_aborted_records(kafka: local.Kafka) -> None:
    name = await topic(kafka, [])
    await kafka_topics.write_transaction(kafka.bootstrap, name, [Row(0, at(0)), Row(0, at(1))])
    await kafka_topics.write_transaction(kafka.bootstrap, name, [Row(0, at(2)), Row(0, at(2))], abort=True)
    seen, _ = await everything(kafka, name)
    assert [r.offset for r in seen] == [0, 1], "the log ends in a marker, behind records that do not count"
    seen, _ = await everything(kafka, name, isolation_level="read_uncommitted")
    assert [r.offset for r in seen] == [0, 1, 3, 4]


@pytest.mark.parametrize("end", [3.5, 5, 100])
async def test_markers_do_not_end_a_run_before_its_end(kafka: local.Kafka, end: float) -> None:
    """A marker carries the time of its writing, so the time index returns the first one for any end that is long over."""
    name = await topic(kafka, [])
    for n in range(6):
        await kafka_topics.write_transaction(kafka.bootstrap, name, [Row(0, at(n)), Row(0, at(n, 5))], abort=n == 2)
    await kafka_topics.write(kafka.bootstrap, name, [Row(0, at(5, 7)), Row(0, at(6))])
    seen, replay = await everything(kafka, name, end=at(end))
    times = [at(n, ms) for n in (0, 1, 3, 4, 5) for ms in (0, 5)] + [at(5, 7), at(6)]
    assert [r.timestamp for r in seen] == [ts for ts in times if ts < at(end)]
    assert replay.group.ended


async def test_a_marker_behind_the_records_of_another_transaction(kafka: local.Kafka) -> None:
    """Markers are written some time after the commit: 2 and 3 are aborted at 4, 0 and 1 committed at 5."""
    name = await topic(kafka, [])
    async with kafka_topics.open_transaction(kafka.bootstrap, name, [Row(0, at(0)), Row(0, at(1))]):
        async with kafka_topics.open_transaction(kafka.bootstrap, name, [Row(0, at(2)), Row(0, at(2))], abort=True):
            seen, _ = await everything(kafka, name)
            assert seen == [], "the end is where the first of them began"
    seen, _ = await everything(kafka, name)
    assert [r.offset for r in seen] == [0, 1]
    seen, _ = await everything(kafka, name, isolation_level="read_uncommitted")
    assert [r.offset for r in seen] == [0, 1, 2, 3]


async def test_records_that_the_tests_write_in_a_transaction_count_at_once(kafka: local.Kafka) -> None:
    """With a commit that was answered and a marker that was not written, the tests around this one fail now and then."""
    name = await topic(kafka, [])
    ends = []
    async with asking(kafka) as consumer:
        for n in range(20):
            await kafka_topics.write_transaction(kafka.bootstrap, name, [Row(0, at(n))], abort=n % 2 == 0)
            ends += (await consumer.end_offsets([TopicPartition(name, 0)])).values()
    assert ends == [2 * n for n in range(1, 21)]


@asynccontextmanager
async def asking(kafka: local.Kafka) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, isolation_level="read_committed")
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def test_an_open_transaction_is_beyond_the_end(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0)], [at(0), at(5)])
    async with kafka_topics.open_transaction(kafka.bootstrap, name, [Row(0, at(1)), Row(0, at(2))]):
        seen, _ = await everything(kafka, name)
        assert sorted(places(seen)) == [(name, 0, 0), (name, 1, 0), (name, 1, 1)]
    seen, _ = await everything(kafka, name)
    assert len(seen) == 5


async def test_following_an_open_transaction_waits_idle(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0)], [at(0)])
    async with Following(kafka, name, end=None) as follower:
        await follower.seen.reach(2)
        async with kafka_topics.open_transaction(kafka.bootstrap, name, [Row(0, at(2)), Row(0, at(2))]):
            await append(kafka, name, 1, [at(1)])
            await follower.seen.reach(3)
        await append(kafka, name, 1, [at(3)])
        await follower.seen.reach(6)
    assert follower.replay.summary.records == 6


# -- the end of a run --------------------------------------------------------------------------------------------------


async def test_a_bounded_replay_ends_where_the_log_ended_in_every_process(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(0), at(1)], [at(0), at(4)])
    seen: list[Any] = []

    async def work(number: int) -> Replay:
        async with replaying(kafka, name, store=zk_root, partitions=[(name, number)]) as replay:
            joined[number].set()
            await both_joined()
            await replay.run(seen.append)
            return replay

    joined = [asyncio.Event(), asyncio.Event()]

    async def both_joined() -> None:
        for event in joined:
            await event.wait()
        if not appended:
            appended.append(True)
            await append(kafka, name, 0, [at(2)])  # after the start: not part of it
            await append(kafka, name, 1, [at(2)])

    appended: list[bool] = []
    async with asyncio.timeout(30):
        replays = await asyncio.gather(work(0), work(1))
    assert sorted(places(seen)) == all_places(name, 2, 2)
    assert [r.summary.records for r in replays] == [2, 2]
    async with replaying(kafka, name) as status_of_nothing:
        assert not status_of_nothing.group.ended
    last = (await cuts(zk_root))[max(await cuts(zk_root))]
    for number in (0, 1):
        mark = last.find(partition(name, number))
        assert mark is not None
        assert (mark.offset, mark.finished) == (2, True)


async def test_a_past_time_ends_a_replay(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(m) for m in range(10)], [at(m, 1) for m in range(0, 10, 4)])
    seen, _ = await everything(kafka, name, start=at(2), end=at(5))
    assert sorted(r.timestamp for r in seen) == [at(2), at(3), at(4), at(4, 1)]


async def test_a_time_to_come_ends_it_when_it_has_been_reached(kafka: local.Kafka) -> None:
    now = int(time.time() * 1000)
    end = now + MINUTE
    name = await topic(kafka, [now - 5 * MINUTE, end - 1, end + 5], [now - MINUTE, end, end + 1])
    seen, _ = await everything(kafka, name, end=end)
    assert sorted(places(seen)) == [(name, 0, 0), (name, 0, 1), (name, 1, 0)]


async def test_a_time_to_come_ends_it_also_where_nothing_comes_any_more(kafka: local.Kafka) -> None:
    now = int(time.time() * 1000)
    name = await topic(kafka, [now - 5 * MINUTE], [now - MINUTE, now], [])
    end = int(time.time() * 1000) + 2000
    seen, replay = await everything(kafka, name, end=end)
    assert sorted(places(seen)) == all_places(name, 1, 2, 0)
    assert time.time() * 1000 >= end
    assert replay.summary.records == 3


# -- an idle partition that wakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", ["deliver", "drop"])
async def test_an_idle_partition_that_wakes_is_late_and_moves_nothing_back(kafka: local.Kafka, late: str) -> None:
    name = await topic(kafka, [at(0), at(5), at(6)], [at(0)])
    async with Following(kafka, name, end=None, late=late) as follower:
        await follower.seen.reach(4)
        await append(kafka, name, 1, [at(1), at(2), at(7)], first=1)
        await follower.seen.reach(7 if late == "deliver" else 5)
        assert follower.replay.group.limit == at(8)
        assert follower.replay.summary.late == 2
    assert follower.seen[-1].timestamp == at(7)


# -- lateness ----------------------------------------------------------------------------------------------------------

MIXED = [at(0), at(2), at(1, 59_000), at(0, 30_000), at(4), at(2, 1), at(9)]
"""Out of order by a minute at most, but for the fourth, ninety seconds late, and the sixth, two minutes late."""


async def test_out_of_order_within_the_bound_comes_in_its_period(kafka: local.Kafka) -> None:
    name = await topic(kafka, MIXED, [at(m) for m in range(10)])
    other = await topic(kafka, [at(3), at(1), at(4)])
    seen: list[Any] = []
    async with replaying(kafka, name, other, lateness={name: "2m"}) as replay:
        async for period in replay.periods():
            mine = [r for rs in period.records.values() for r in rs]
            seen += mine
            for r in mine:
                if r.topic == name:
                    assert period.start <= r.timestamp < period.end, (r.offset, period.start, period.end)
    assert sorted(places(seen)) == sorted(all_places(name, 7, 10) + all_places(other, 3))
    assert replay.summary.late == 1, "the other topic has no bound: its second record is late"


async def test_the_first_late_record_is_told_and_the_end_says_how_many(
    kafka: local.Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    name = await topic(kafka, [at(0), at(3), at(1), at(1, 1)], [at(m) for m in range(4)])
    await everything(kafka, name)
    told = [r.getMessage() for r in caplog.records if " late" in r.getMessage()]
    assert len(told) == 2
    assert told[0].startswith(
        f"{name}.0: the record at offset 2, of {format_time(at(1))}, is 2m late: its period has closed"
    )
    assert "lateness=" in told[0]
    assert told[1].endswith(": 2 records came late in this replay")


async def test_later_than_the_bound_is_counted_and_goes_where_the_policy_says(kafka: local.Kafka) -> None:
    name = await topic(kafka, MIXED, [at(m) for m in range(10)])
    seen, replay = await everything(kafka, name, lateness="1m")
    assert len(seen) == 17
    assert replay.summary.late == 2
    seen, replay = await everything(kafka, name, lateness="1m", late="drop")
    assert sorted(r.offset for r in seen if r.partition == 0) == [0, 1, 2, 4, 6]
    assert (replay.summary.late, replay.summary.skipped, replay.summary.records) == (2, 2, 15)
    buried: list[tuple[int, str]] = []
    seen, replay = await everything(
        kafka, name, lateness="1m", late="dead-letter", dead_letter=lambda r, why: buried.append((r.offset, why))
    )
    assert sorted(offset for offset, _ in buried) == [3, 5]
    assert {why for _, why in buried} == {"its period had closed"}
    assert (replay.summary.dead_lettered, replay.summary.skipped, replay.summary.records) == (2, 0, 15)


async def test_without_a_bound_an_earlier_record_behind_a_later_one_is_late(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0), at(3), at(1), at(3, 1)], [at(m) for m in range(4)])
    seen, replay = await everything(kafka, name)
    assert [r.offset for r in seen if r.partition == 0] == [0, 1, 2, 3]
    assert replay.summary.late == 1


async def test_held_back_records_come_when_the_log_is_quiet(kafka: local.Kafka) -> None:
    """Following a log of old records, what is held back waits for nothing that could still come."""
    name = await topic(kafka, [at(0), at(2), at(1)], [at(0)])
    async with Following(kafka, name, end=None, lateness="5m") as follower:
        await follower.seen.reach(4)
    assert [r.timestamp for r in follower.seen if r.partition == 0] == [at(0), at(1), at(2)]
    assert follower.replay.summary.late == 0


async def test_following_the_present_a_record_waits_for_earlier_ones(kafka: local.Kafka) -> None:
    now = int(time.time() * 1000)
    period = 200
    name = await topic(kafka, [now])
    async with Following(kafka, name, end=None, lateness="2s", period=period) as follower:
        await append(kafka, name, 0, [now - 1500], first=1)
        await follower.seen.reach(2)
    assert [r.timestamp for r in follower.seen] == [now - 1500, now]
    assert follower.replay.summary.late == 0
    assert time.time() * 1000 >= now + 2000 - period, "not before the bound had passed by the clock"


# -- unusable timestamps -----------------------------------------------------------------------------------------------

FAR = 4_000_000_000_000
"""The year 2096."""


@pytest.mark.parametrize("poison", [-1, -5, FAR])
async def test_a_poison_timestamp_raises_with_its_place(kafka: local.Kafka, poison: int) -> None:
    name = await topic(kafka, [at(0)], [at(0), poison, at(1)])
    with pytest.raises(aiokcc.PoisonTimestampError, match=f"{name}.1 at offset 1: .*poison=") as caught:
        await everything(kafka, name)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == (name, 1, 1)


@pytest.mark.parametrize("poison", [-1, -5, FAR])
@pytest.mark.parametrize("policy", ["skip", "cap", "dead-letter"])
@pytest.mark.parametrize("lateness", [None, "1m"])
async def test_a_poison_timestamp_goes_where_the_policy_says(
    kafka: local.Kafka, poison: int, policy: str, lateness: str | None
) -> None:
    name = await topic(kafka, [at(0), at(1)], [at(0), poison, at(1)])
    buried: list[Any] = []
    seen, replay = await everything(
        kafka, name, poison=policy, lateness=lateness, dead_letter=lambda record, _: buried.append(record)
    )
    assert replay.summary.poisoned == 1
    assert [r.offset for r in seen if r.partition == 1] == ([0, 1, 2] if policy == "cap" else [0, 2])
    assert places(buried) == ([(name, 1, 1)] if policy == "dead-letter" else [])
    assert replay.summary.records == len(seen)
    assert replay.summary.skipped == (1 if policy == "skip" else 0)


# -- event time by a function ------------------------------------------------------------------------------------------


async def test_event_time_by_a_function(kafka: local.Kafka) -> None:
    """The log's own timestamps, all of them of today, mean nothing here."""
    today = int(time.time() * 1000)
    name = await kafka_topics.create_fresh(kafka.bootstrap, partitions=2)
    rows = [Row(p, today, str(at(m)).encode()) for p in range(2) for m in range(6)]
    await kafka_topics.write(kafka.bootstrap, name, rows)
    seen, replay = await everything(kafka, name, timestamp=lambda r: int(r.value))
    assert len(seen) == 12
    assert in_step(int(r.value) for r in seen)
    assert replay.summary.periods == 6


async def test_start_and_end_go_by_the_function_too(kafka: local.Kafka) -> None:
    name = await kafka_topics.create_fresh(kafka.bootstrap)
    await kafka_topics.write(kafka.bootstrap, name, [Row(0, -1, str(at(m)).encode()) for m in range(10)])
    seen, replay = await everything(kafka, name, timestamp=lambda r: int(r.value), start=at(3), end=at(7))
    assert [r.offset for r in seen] == [3, 4, 5, 6]
    assert replay.summary.outside == 3


async def test_a_function_that_raises_has_found_no_timestamp(kafka: local.Kafka) -> None:
    name = await kafka_topics.create_fresh(kafka.bootstrap)
    await kafka_topics.write(kafka.bootstrap, name, [Row(0, at(0), b"12"), Row(0, at(0), b"twelve")])
    with pytest.raises(
        aiokcc.PoisonTimestampError, match="offset 1: the timestamp function raised ValueError"
    ) as caught:
        await everything(kafka, name, timestamp=lambda r: int(r.value))
    assert isinstance(caught.value.__cause__, ValueError)
    seen, replay = await everything(kafka, name, timestamp=lambda r: int(r.value), poison="skip")
    assert [r.offset for r in seen] == [0]
    assert replay.summary.poisoned == 1


# -- gaps in time ------------------------------------------------------------------------------------------------------


async def test_a_gap_is_one_step(kafka: local.Kafka) -> None:
    year = 365 * 24 * 60
    name = await topic(kafka, [at(0), at(year / 2)], [at(0), at(year / 2, 30_000)])
    seen, replay = await everything(kafka, name)
    assert len(seen) == 4
    assert replay.summary.periods == 2


# -- bounded buffers ---------------------------------------------------------------------------------------------------


async def test_the_fast_partition_is_bounded_and_the_awaited_one_never_starved(kafka: local.Kafka) -> None:
    value = b"x" * 1000
    name = await kafka_topics.create_fresh(kafka.bootstrap, partitions=2)
    fast = [Row(0, at(0), value)] + [Row(0, at(60, n), value) for n in range(30_000)]
    await kafka_topics.write(kafka.bootstrap, name, [*fast, *(Row(1, at(m), value) for m in range(60))])
    async with replaying(kafka, name, buffer_records=300) as replay:
        most = 0

        def handle(record: Any) -> None:
            nonlocal most
            if record.partition == 1:
                most = max(most, sum(r.topic == name and r.partition == 0 for r in alive(ConsumerRecord)))

        await replay.run(handle)
    assert replay.summary.records == 30_061
    assert 0 < most <= 300


async def test_bounded_in_bytes(kafka: local.Kafka) -> None:
    value = b"x" * 50_000
    name = await kafka_topics.create_fresh(kafka.bootstrap, partitions=2)
    rows = [*(Row(0, at(60), value) for _ in range(200)), *(Row(1, at(m), b"") for m in range(60))]
    for n in range(0, len(rows), 5):  # small batches: a batch is fetched whole
        await kafka_topics.write(kafka.bootstrap, name, rows[n : n + 5])
    async with replaying(kafka, name, buffer_records=1, buffer_bytes=600_000) as replay:
        most = 0

        def handle(record: Any) -> None:
            nonlocal most
            if record.partition == 1:
                fetched = [f for f in alive(PartitionRecords) if f._tp == TopicPartition(name, 0)]
                most = max(most, sum(f._records.size_in_bytes() for f in fetched))

        await replay.run(handle)
    assert replay.summary.records == 260
    assert 0 < most <= 600_000


# -- control at run time -----------------------------------------------------------------------------------------------


async def test_period_hold_and_release_at_run_time(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(m) for m in range(60)], [at(m) for m in range(60)])
    limits: list[tuple[int, int]] = []
    held, far, released = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with replaying(kafka, name, store=zk_root) as replay:
        group = replay.group

        async def handle(record: Any) -> None:
            limits.append((record.timestamp, group.limit))
            if (record.partition, record.offset) == (0, 2):
                await group.hold()
                held.set()
            elif (record.partition, record.offset) == (0, 25):
                far.set()
                await released.wait()

        running = asyncio.ensure_future(replay.run(handle))
        async with asyncio.timeout(30):
            await held.wait()
            status = await group.status()
            assert status.state == "held"
            assert status.limit == at(3)
            await group.set_period("10m")
            await far.wait()
            assert group.limit % (10 * MINUTE) == 0
            await group.release()
            while not group.released:  # noqa: ASYNC110 - nothing tells a user of it but the limit
                await asyncio.sleep(0.01)
            released.set()
            await running
    assert len(limits) == 120
    assert {limit for ts, limit in limits if ts < at(3)} == {at(1), at(2), at(3)}
    gated = {limit for ts, limit in limits if at(3) <= ts < at(26)} - {MAX_LIMIT}
    assert gated
    assert all(limit % (10 * MINUTE) == 0 for limit in gated)
    assert {limit for ts, limit in limits if ts > at(30)} == {MAX_LIMIT}


# -- caught up with the present ----------------------------------------------------------------------------------------


def present(minutes: float, ms: int = 0) -> int:
    """A time near the clock of a replay that thinks it is ten minutes after the first boundary."""
    return at(10 + minutes, ms)


async def test_caught_up_follow(kafka: local.Kafka) -> None:
    name = await topic(kafka, [present(-1), present(0, 1)], [present(-2)])
    async with Following(kafka, name, end=None, clock=lambda: present(0)) as follower:
        await follower.seen.reach(3)
        assert follower.replay.group.limit == present(1)
        await append(kafka, name, 1, [present(1)])
        await follower.seen.reach(4)
        assert follower.replay.group.limit == present(2)


async def test_caught_up_release(kafka: local.Kafka) -> None:
    name = await topic(kafka, [present(-1), present(0, 1)], [present(-2)])
    async with Following(kafka, name, end=None, clock=lambda: present(0), caught_up="release") as follower:
        await follower.seen.reach(3)
        assert follower.replay.group.released
        await append(kafka, name, 1, [present(-5), present(9)])
        await follower.seen.reach(5)


async def test_caught_up_longer_period(kafka: local.Kafka) -> None:
    name = await topic(kafka, [present(-1), present(0, 1)], [present(-2)])
    async with Following(kafka, name, end=None, clock=lambda: present(0), caught_up="1h") as follower:
        await follower.seen.reach(3)
        assert follower.replay.group.limit % 3_600_000 == 0
        assert (await follower.replay.group.status()).period == 3_600_000


async def test_periods_go_on_after_a_release(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(m) for m in range(5)])
    found = []
    async with asyncio.timeout(20), replaying(kafka, name, end=None) as replay:
        async for period in replay.periods():
            found += [r.offset for rs in period.records.values() for r in rs]
            if found == [0, 1]:
                await replay.group.release()
            if len(found) == 5:
                break
    assert found == [0, 1, 2, 3, 4]


# -- status ------------------------------------------------------------------------------------------------------------


async def test_status_tells_who_blocks(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(0), at(1)], [at(0), at(1)])
    stuck, go_on = asyncio.Event(), asyncio.Event()

    async def slow(record: Any) -> None:
        if record.offset == 1:
            stuck.set()
            await go_on.wait()

    async def work(number: int, handler: Callable[[Any], Any]) -> None:
        settings: dict[str, Any] = {"store": zk_root, "partitions": {name: [number]}, "member": f"worker{number}"}
        async with replaying(kafka, name, **settings) as replay:
            replays[number] = replay
            await replay.run(handler)

    replays: dict[int, Replay] = {}
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(work(0, lambda _: None))
        tasks.create_task(work(1, slow))
        await stuck.wait()
        while True:
            status = await replays[0].group.status()
            if [b.state for b in status.blocking] == ["running"] and status.waiting_seconds > 0.2:
                break
            await asyncio.sleep(0.02)
        (blocking,) = status.blocking
        assert blocking.partition == f"{name}.1"
        assert blocking.member is not None
        assert blocking.member.startswith("worker1-")
        go_on.set()


# -- settings that only the cluster can check; tests/unit/kafka/test_settings.py has the others ---------------------------


async def test_an_unknown_topic_is_named_with_what_there_is(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0)], stem="0orders")
    with pytest.raises(aiokcc.UsageError, match=r"no topic 'ordres'; it has .*0orders"):
        async with replaying(kafka, name, "ordres"):
            pass


async def test_a_partition_out_of_range(kafka: local.Kafka) -> None:
    name = await topic(kafka, [at(0)], [])
    with pytest.raises(aiokcc.PartitionError, match=f"{name}.7 does not exist; {name} has 2 partitions"):
        async with replaying(kafka, name, partitions={name: [0, 7]}):
            pass


async def test_other_settings_than_the_group_has(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(0)])
    async with replaying(kafka, name, store=zk_root):
        with pytest.raises(aiokcc.GroupMismatchError, match="lateness"):
            async with replaying(kafka, name, store=zk_root, lateness="1m"):
                pass


# What the user's functions return


def _generate(record: Any) -> Any:
    yield record


async def _generate_async(record: Any) -> AsyncIterator[Any]:
    yield record


def _return_a_generator(record: Any) -> Any:
    return _generate(record)


def _return_an_async_generator(record: Any) -> Any:
    return _generate_async(record)


async def _await_and_return_a_generator(record: Any) -> Any:
    return _generate(record)


@pytest.mark.parametrize("settings", [{}, {"lateness": "1m"}, {"retries": 2}])
@pytest.mark.parametrize("method", ["run", "run_batches"])
@pytest.mark.parametrize("handler", [_return_a_generator, _return_an_async_generator, _await_and_return_a_generator])
async def test_a_handler_that_returns_a_generator_has_done_nothing(
    kafka: local.Kafka, handler: Callable[[Any], Any], method: str, settings: dict[str, Any]
) -> None:
    name = await topic(kafka, [at(0), at(1)])
    async with asyncio.timeout(20), replaying(kafka, name, **settings) as replay:
        with pytest.raises(
            aiokcc.HandlerError, match=rf"{name}.0.*has returned a generator, _generate.*leave out the yield"
        ):
            await getattr(replay, method)(handler)
        assert replay.summary.records == replay.summary.retried == 0


async def test_a_timestamp_in_seconds_before_the_start_is_told_once_and_counted(
    kafka: local.Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "aiokcc.kafka")
    name = await topic(kafka, [at(m) for m in range(5)], [at(m) for m in range(5)])
    seen: list[Any] = []
    async with (
        asyncio.timeout(20),
        replaying(kafka, name, start=at(0), timestamp=lambda record: record.timestamp // 1000) as replay,
    ):
        summary = await replay.run(seen.append)
    assert (seen, summary.outside) == ([], 10)
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING" and r.name == "aiokcc.kafka"]
    assert len(warned) == 1
    assert "it looks like seconds, 2023-11-14" in warned[0]
    assert "timestamp= multiply it by 1000" in warned[0]
    assert "10 records lay before the start of this replay and were left out" in caplog.text
