"""Lookahead with lateness and with whole periods, on the memory store and virtual time, with lists instead of a broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

import aiokcc
from aiokcc.core.report import Cut
from aiokcc.core.run import Bounds
from aiokcc.errors import HandlerError, PartitionRevoked
from aiokcc.kafka.consumer_policy import ConsumerPolicy
from aiokcc.kafka.fetch_loop import FetchLoop
from aiokcc.kafka.handoff import Handoff
from aiokcc.kafka.partition_consumer import PartitionConsumer
from aiokcc.kafka.partition_feed import PartitionFeed
from aiokcc.kafka.period_collector import PeriodCollector
from aiokcc.kafka.source_options import SourceOptions
from aiokcc.kafka.summary import Period, Summary
from tests.unit.world import PERIOD, World
from tests.virtual import settle

Logs = Mapping[int, Sequence[int]]


@pytest.fixture(autouse=True)
def virtual_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("partition_consumer", "exceptional_records"):
        monkeypatch.setattr(f"aiokcc.kafka.{module}.boottime", world.time)


class Lists(FetchLoop):
    """Hands out the records of one partition in lists of three, from the position of its feed on."""

    def __init__(self, number: int, stamps: Sequence[int]) -> None:
        self._records = [
            SimpleNamespace(topic="orders", partition=number, offset=n, timestamp=ts) for n, ts in enumerate(stamps)
        ]

    async def fetch_now(self, feed: PartitionFeed) -> bool:
        found = self._records[feed.position : feed.position + 3]
        if found:
            feed.add_records(list(found))
            await asyncio.sleep(0)
        return bool(found)

    def wake(self) -> None:
        pass


class Lives:
    """Reads two partitions in one member after the other: each one resumes at the last cut of the one before."""

    def __init__(self, world: World, logs: Logs, lookahead: int, lateness: int = 0, late: str = "deliver") -> None:
        self.world, self.logs = world, logs
        self._settings = {"topics": {"orders": len(logs)}, "start": 0, "lookahead": lookahead}
        self._policy = ConsumerPolicy(lateness={"orders": lateness}, late=late)
        self.group: aiokcc.Group
        self.summary = Summary()

    def consumer(self, gate: aiokcc.Gate) -> PartitionConsumer:
        stamps = self.logs[gate.partition.number]
        source = SourceOptions(topics=("orders",), bootstrap_servers="")
        found = PartitionConsumer(
            source, self._policy, gate, Bounds(0, len(stamps)), self.group.membership, self.summary
        )
        found.fetch_loop = Lists(gate.partition.number, stamps)
        return found

    async def read(self, work: Callable[[PartitionConsumer], Awaitable[None]]) -> None:
        """Do this work on all partitions of the present member until they have ended."""

        async def one(number: int) -> None:
            gate = self.group.gate("orders", number)
            gate.skips_closed = True
            async with gate:
                await work(self.consumer(gate))

        member = self.group.membership
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in self.logs:
                    tasks.create_task(one(number))
        except BaseException:
            for number in self.logs:  # also what has finished: without the others no cut holds it
                await member.release_partition(World.partition(number))
            raise
        await member.settled()

    async def live(self, handler: Callable[[Any], Any], *, batches: bool = False) -> None:
        """Read everything with this handler, as one member."""
        async with self.world.connect(**self._settings) as self.group:
            await self.read(lambda c: c.run_batches(handler) if batches else c.run(handler))


def cut_at(cut: Cut, number: int) -> tuple[int, int]:
    mark = cut.find(World.partition(number))
    assert mark is not None
    assert mark.offset is not None
    return int(mark.offset), getattr(mark.offset, "high", int(mark.offset))


def disordered(chance: random.Random, lateness: int, count: int = 40) -> list[int]:
    """Return timestamps that are out of order by less than the bound; some periods are empty."""
    stamps = [chance.randrange(12 * PERIOD) for _ in range(count)]
    return sorted(stamps, key=lambda ts: ts + chance.randrange(max(1, lateness)))


# -- lateness ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("lookahead", [0, 1, 4, 15])
async def test_every_crash_resumes_where_the_cut_is_exact(world: World, lookahead: int, seed: int) -> None:
    """The process dies again and again at a random record. No record is lost, and none behind the last cut comes again.

    Each cut lies at the first record behind its boundary, and each partition is processed period by period.
    """
    chance = random.Random(seed * 100 + lookahead)
    lateness = chance.choice([PERIOD // 2, 3 * PERIOD])
    logs = {0: disordered(chance, lateness), 1: disordered(chance, lateness, 25)}
    lives = Lives(world, logs, lookahead, lateness)
    handled: set[tuple[int, int]] = set()
    ended = False
    while not ended:
        left = chance.randrange(10, 70)
        period = {0: -1, 1: -1}
        before = world.cuts()[-1] if world.node("coordinator") is not None and world.cuts() else None

        async def handle(record: Any, before: Cut | None = before, period: dict[int, int] = period) -> None:
            nonlocal left
            number, ts = record.partition, record.timestamp
            if before is not None:
                low, high = cut_at(before, number)
                assert record.offset >= low
                assert not (record.offset < high and ts < before.limit), "it comes again behind the cut"
            assert ts // PERIOD >= period[number], "a period began before the one before it was whole"
            period[number] = ts // PERIOD
            assert ts < world.limit.value
            left -= 1
            if not left:
                raise ValueError("killed")
            await asyncio.sleep(0)
            handled.add((number, record.offset))

        try:
            await lives.live(handle)
            ended = True
        except* HandlerError:
            pass
        except* aiokcc.PartitionRevoked:
            pass
        for cut in world.cuts():
            for number, stamps in logs.items():
                low, high = cut_at(cut, number)
                assert low == next((n for n, ts in enumerate(stamps) if ts >= cut.limit), len(stamps))
                assert max((n for n, ts in enumerate(stamps) if ts < cut.limit), default=-1) < high
    assert handled == {(number, offset) for number, stamps in logs.items() for offset in range(len(stamps))}
    assert lives.summary.late == 0


@pytest.mark.parametrize("lookahead", [0, 3])
@pytest.mark.parametrize("lateness", [0, PERIOD // 2])
async def test_the_same_records_are_late_however_far_ahead_a_partition_is(
    world: World, lookahead: int, lateness: int
) -> None:
    seen: list[int] = []
    logs = {0: [0, 3 * PERIOD, 10, 3 * PERIOD + 1, PERIOD, 5 * PERIOD], 1: [n * PERIOD for n in range(8)]}
    lives = Lives(world, logs, lookahead, lateness, "drop")
    await lives.live(lambda record: seen.append(record.timestamp) if record.partition == 0 else None)
    assert seen == [0, 3 * PERIOD, 3 * PERIOD + 1, 5 * PERIOD]
    assert lives.summary.late == 2


async def test_a_commit_does_not_pass_the_crossing_of_the_floor(world: World) -> None:
    """Partition 0 is far ahead of partition 1, with records held back. What it may commit is the low end of its crossing."""
    logs = {0: [0, PERIOD + 1, 500, 2 * PERIOD, PERIOD + 2, 4 * PERIOD, 9 * PERIOD], 1: [1]}
    lives = Lives(world, logs, 5, PERIOD // 2)
    gone = asyncio.Event()

    async def handle(record: Any) -> None:
        if record.partition == 1:
            await gone.wait()

    task = asyncio.ensure_future(lives.live(handle))
    await settle()
    progress = lives.group.membership.progress.partitions[World.partition(0)]
    assert world.limit.floor == PERIOD
    assert {b: str(offset) for b, (_, offset) in progress.crossings.items() if b <= 2 * PERIOD} == {
        PERIOD: "1-4",  # record 2 lies behind record 1 and belongs before it
        2 * PERIOD: "3-6",
    }
    gone.set()
    await task
    assert [cut_at(cut, 0) for cut in world.cuts() if cut.limit <= 2 * PERIOD] == [(1, 4), (3, 6)]


# -- whole periods -----------------------------------------------------------------------------------------------------


class Reads:
    """Stands in for a reader, over lists, as far as a collector needs it."""

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self.group = lives.group
        self.period_lock = anyio.Lock()
        self.stopped = False

    async def read(self, work: Callable[[PartitionConsumer], Awaitable[None]], listener: Any) -> None:
        member = self.group.membership
        member.add_listener(listener)
        try:
            await self._lives.read(work)
        finally:
            member.remove_listener(listener)


async def periods(lives: Lives, use: Callable[[Period], Awaitable[None]]) -> None:
    """Hand over all periods of the present member."""
    handoff = Handoff[Period]()
    reads: Any = Reads(lives)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(handoff.run_producer(PeriodCollector(reads, handoff).run))
        try:
            while (period := await handoff.get()) is not None:
                await use(period)
                handoff.item_done()
        finally:
            await handoff.close()


@pytest.mark.parametrize("lookahead", [0, 2, 7])
@pytest.mark.parametrize("lateness", [0, PERIOD // 2])
async def test_periods_come_whole_and_in_order(world: World, lookahead: int, lateness: int) -> None:
    chance = random.Random(lookahead)
    logs = {0: disordered(chance, lateness), 1: [1, 5 * PERIOD + 1, 5 * PERIOD + 2, 11 * PERIOD], 2: []}
    lives = Lives(world, logs, lookahead, lateness)
    found: list[Period] = []

    async def use(period: Period) -> None:
        await asyncio.sleep(0.5)  # so long that the partitions are as far ahead as they may be
        assert world.limit.floor <= period.end, "it closes only when it is processed"
        found.append(period)

    async with world.connect(**lives._settings) as lives.group:
        await periods(lives, use)
    assert [p.end for p in found] == sorted({(ts // PERIOD + 1) * PERIOD for stamps in logs.values() for ts in stamps})
    for period in found:
        assert {p.number: sorted(r.timestamp for r in rs) for p, rs in period.records.items()} == {
            number: sorted(ts for ts in stamps if period.end - PERIOD <= ts < period.end)
            for number, stamps in logs.items()
            if any(period.end - PERIOD <= ts < period.end for ts in stamps)
        }
        for number, stamps in logs.items():
            right = next((n for n, ts in enumerate(stamps) if ts >= period.end), len(stamps))
            assert period.cut.get(World.partition(number), 0) == right


@pytest.mark.parametrize("lookahead", [1, 7])
async def test_the_next_periods_are_gathered_while_one_is_processed(world: World, lookahead: int) -> None:
    logs = {0: [n * PERIOD for n in range(40)], 1: [n * PERIOD + 1 for n in range(40)]}
    lives = Lives(world, logs, lookahead)
    ahead: list[int] = []

    async def use(period: Period) -> None:
        await asyncio.sleep(0.2)
        progress = lives.group.membership.progress
        ahead.append(min(p.ts for p in progress.partitions.values()) // PERIOD - (period.end - PERIOD) // PERIOD)

    async with world.connect(**lives._settings) as lives.group:
        await periods(lives, use)
    assert len(ahead) == 40
    assert max(ahead) == lookahead + 1, "blocked at the limit"
    assert sorted(ahead)[10] >= (lookahead + 1) // 2


@pytest.mark.parametrize("lookahead", [0, 4])
async def test_a_period_that_was_not_processed_comes_again_whole(world: World, lookahead: int) -> None:
    """The user's code fails in every second period that it gets. The next member begins with that period."""
    logs = {0: [n * 400 for n in range(60)], 1: [n * 700 + 1 for n in range(40)]}
    lives = Lives(world, logs, lookahead)
    done: list[int] = []
    left = 0

    async def use(period: Period) -> None:
        nonlocal left
        assert all(rs[0].timestamp >= period.end - PERIOD for rs in period.records.values())
        count = sum(map(len, period.records.values()))
        assert count == sum(period.end - PERIOD <= ts < period.end for stamps in logs.values() for ts in stamps)
        left -= 1
        if left < 0:
            raise ValueError("killed")
        done.append(period.end)

    while not done or done[-1] < 28 * PERIOD:
        left = 2
        try:
            async with world.connect(**lives._settings) as lives.group:
                await periods(lives, use)
        except* ValueError:
            pass
        except* PartitionRevoked:
            pass
    assert sorted(set(done)) == [n * PERIOD for n in range(1, 29)], "none is lost"
    again = len(done) - len(set(done))
    assert again <= len(done) // 2 * lookahead, "without lookahead none that was processed comes again"
