"""A Spark pipeline and asynchronous consumers in one group stay in step in event time."""

from __future__ import annotations

import asyncio
import random
import re
from typing import TYPE_CHECKING, Any

import pytest

import aiokcc
from aiokcc import local
from aiokcc.runtime.options import wall_clock
from aiokcc.spark import Batch, Periods
from aiokcc.spark.pipeline import BatchStep
from tests import kafka_topics, pipelines, replays
from tests.kafka_topics import Row
from tests.pipelines import MemorySink, check_tiling, millis, some_records, totals, totals_in_python, totals_of
from tests.replays import BASE, MINUTE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(180)

MINUTES = 8


class History:
    """The periods that both sides have started and completed, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, int]] = []

    def note(self, who: str, what: str, period: int) -> None:
        self.events.append((who, what, period))

    def check(self, lookahead: int, last: dict[str, int]) -> None:
        """Check that neither side is more than ``lookahead`` periods ahead of what the other has completed."""
        done = dict.fromkeys(last, -1)
        started = dict.fromkeys(last, -1)
        for who, what, period in self.events:
            if what == "done":
                done[who] = max(done[who], period)
            else:
                started[who] = max(started[who], period)
                for other in done.keys() - {who}:
                    needed = max((n for n in self.periods(other) if n < period - lookahead), default=-1)
                    assert done[other] >= needed, (
                        f"{who} started period {period} when {other} was done with {done[other]}, not with {needed}"
                    )
        assert done == last

    def periods(self, who: str) -> set[int]:
        return {period for name, _, period in self.events if name == who}


@pytest.mark.parametrize("lookahead", [0, 2])
async def test_spark_and_async_consumers_never_come_further_apart_than_lookahead(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, lookahead: int
) -> None:
    chance = random.Random(10)
    orders = await pipelines.write(kafka, "orders", [some_records(chance, 60, minutes=MINUTES) for _ in range(2)])
    payments = await pipelines.write(kafka, "payments", [some_records(chance, 60, minutes=MINUTES) for _ in range(2)])
    topics = (orders.name, payments.name)
    common: dict[str, Any] = {
        "bootstrap_servers": kafka.bootstrap,
        "store": zk_root,
        "period": "1m",
        "end": "now",
        "lookahead": lookahead,
    }
    history = History()
    sink = MemorySink()
    read: list[Any] = []

    async def consume(partition: int) -> None:
        mine = {payments.name: [partition]}
        async with aiokcc.replay(*topics, partitions=mine, member=f"async-{partition}", **common) as replay:

            async def handle(record: Any) -> None:
                period = (record.timestamp - BASE) // MINUTE
                history.note(f"async-{partition}", "start", period)
                read.append((record.partition, record.offset))
                await asyncio.sleep(0)
                history.note(f"async-{partition}", "done", period)

            await replay.run(handle)

    def after(step: BatchStep, batch: Batch) -> None:
        for period in batch.periods:
            if period.ranges and step in {BatchStep.PLANNED, BatchStep.PUBLISHED}:
                what = "start" if step is BatchStep.PLANNED else "done"
                history.note("spark", what, (period.start - BASE) // MINUTE)

    async def compute() -> None:
        async with aiokcc.spark.replay(
            spark,
            *topics,
            name="mixed",
            partitions={orders.name: [0, 1]},
            progress=False,
            member="spark",
            keeps_periods=True,
            **common,
        ) as replay:
            replay.after_step = after
            await replay.for_each_period(totals, sink)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(consume(0))
        tasks.create_task(consume(1))
        tasks.create_task(compute())
    assert totals_of(sink.rows) == totals_in_python([orders])
    assert sorted(read) == [(p, n) for p in range(2) for n in range(60)]
    last = {"spark": orders, "async-0": payments, "async-1": payments}
    history.check(lookahead, {who: max(history.periods(who)) for who in last})
    if lookahead == 0:
        assert set(sink.full) == {1}
    cuts = (await replays.cuts(zk_root)).values()
    for cut in cuts:
        for log in (orders, payments):
            for number, records in enumerate(log.partitions):
                right = next((n for n, (ts, _) in enumerate(records) if ts >= cut.limit), len(records))
                mark = cut.find(replays.partition(log.name, number))
                assert mark is not None
                assert mark.offset == right, f"the cut at {cut.limit} lies at {mark.offset} in {log.name}.{number}"


async def test_settings_that_differ_from_the_groups_are_refused(
    spark: SparkSession, kafka: local.Kafka, zk_root: str
) -> None:
    name = await replays.topic(kafka, [BASE], [BASE])
    common: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap, "store": zk_root, "period": "1m", "end": "now"}
    async with aiokcc.replay(name, partitions={name: [0]}, **common):
        with pytest.raises(aiokcc.GroupMismatchError, match="lookahead is 0 there and 3 here"):
            async with aiokcc.spark.replay(spark, name, name="p", partitions={name: [1]}, lookahead=3, **common):
                pytest.fail("it was let in")


async def test_a_released_group_goes_on_in_periods(spark: SparkSession, kafka: local.Kafka, zk_root: str) -> None:
    name = await replays.topic(kafka, [replays.at(n / 2) for n in range(8)])
    sink = MemorySink()

    def count(frame: DataFrame, periods: Any) -> DataFrame:
        return frame.groupBy("period").count()

    async with aiokcc.spark.replay(
        spark,
        name,
        bootstrap_servers=kafka.bootstrap,
        store=zk_root,
        name="p",
        period="1m",
        end="now",
        progress=False,
        max_periods=2,
        keeps_periods=True,
    ) as replay:
        assert replay.group is not None
        await replay.group.release()
        await replay.for_each_period(count, sink)
    assert {millis(r["period"]): r["count"] for r in sink.rows} == {replays.at(n): 2 for n in range(4)}
    assert sink.full == [2, 2]


# -- topics by pattern --------------------------------------------------------------------------------------------------


def count(frame: DataFrame, periods: Periods) -> DataFrame:
    return frame.groupBy("period").count()


async def topics_of(kafka: local.Kafka, **logs: list[int]) -> str:
    """Create topics whose names have a stem in common, with records of these times; return the stem."""
    stem = kafka_topics.fresh_name("wild")
    for name, stamps in logs.items():
        await kafka_topics.create(kafka.bootstrap, f"{stem}-{name}")
        await kafka_topics.write(kafka.bootstrap, f"{stem}-{name}", [Row(0, ts) for ts in stamps])
    return stem


async def test_new_topics_that_match_a_pattern_join_a_pipeline_and_the_consumers_beside_it(
    spark: SparkSession, kafka: local.Kafka, zk_root: str
) -> None:
    """The groups are static. A pipeline alone takes all that matches; beside consumers it takes what it lists."""
    stem = await topics_of(kafka, one=[replays.at(0), replays.at(1)], two=[replays.at(0)])
    common: dict[str, Any] = {
        "pattern": f"{stem}-.*",
        "bootstrap_servers": kafka.bootstrap,
        "period": "1s",
        "end": None,
        "metadata_max_age_ms": 200,
    }
    alone, beside, changed = MemorySink(), MemorySink(), asyncio.Event()
    read: list[Any] = []

    async def until(of_alone: int, of_beside: int, of_read: int) -> None:
        while (
            sum(row["count"] for row in alone.rows) < of_alone
            or sum(row["count"] for row in beside.rows) < of_beside
            or len(read) < of_read
        ):
            changed.clear()
            await changed.wait()

    async def compute(sink: MemorySink, store: str, **more: Any) -> None:
        async with aiokcc.spark.replay(
            spark, name="p", store=store, keeps_periods=True, progress=lambda _: changed.set(), **common, **more
        ) as replay:
            await replay.for_each_period(count, sink)

    async def consume(store: str) -> None:
        def mine(topic: str, number: int) -> bool:
            return topic != f"{stem}-one"

        async with aiokcc.replay(store=store, partitions=mine, **common) as replay:

            async def handle(record: Any) -> None:
                read.append((record.topic, record.offset))
                changed.set()

            await replay.run(handle)

    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(compute(alone, f"{zk_root}/alone")),
            tasks.create_task(compute(beside, f"{zk_root}/beside", partitions={f"{stem}-one": [0]})),
            tasks.create_task(consume(f"{zk_root}/beside")),
        ]
        await until(3, 2, 1)
        await kafka_topics.create(kafka.bootstrap, f"{stem}-three")
        now = wall_clock()
        for name in ("one", "three"):
            await kafka_topics.write(kafka.bootstrap, f"{stem}-{name}", [Row(0, now)])
        await until(5, 3, 2)
        for task in running:
            task.cancel()
    logs = {
        name: pipelines.Log(f"{stem}-{name}", [[(0, {})] * n]) for name, n in (("one", 3), ("two", 1), ("three", 1))
    }
    check_tiling([batch for batch, _ in alone.batches.values()], logs.values())
    check_tiling([batch for batch, _ in beside.batches.values()], [logs["one"]])
    assert sorted(read) == [(f"{stem}-three", 0), (f"{stem}-two", 0)]


@pytest.mark.parametrize("assignment", [None, "managed"])
async def test_a_run_with_an_end_has_only_the_topics_that_matched_when_it_was_founded(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, assignment: Any
) -> None:
    """A driver that continues the run finds more topics that match. They do not belong to this run."""
    stem = await topics_of(kafka, one=[replays.at(n) for n in range(4)])
    common: dict[str, Any] = {
        "pattern": f"{stem}-.*",
        "bootstrap_servers": kafka.bootstrap,
        "store": zk_root,
        "period": "1m",
        "end": "now",
        "name": "p",
        "assignment": assignment,
        "max_periods": 1,
        "progress": False,
        "retries": 0,
    }
    sink = MemorySink()

    def fails(frame: DataFrame, periods: Periods) -> DataFrame:
        if periods.start >= replays.at(2):
            raise LookupError("no such customer")
        return count(frame, periods)

    with pytest.raises(aiokcc.SparkJobError, match="no such customer"):
        async with aiokcc.spark.replay(spark, **common) as replay:
            await replay.for_each_period(fails, sink)
    await kafka_topics.create(kafka.bootstrap, f"{stem}-two")
    await kafka_topics.write(kafka.bootstrap, f"{stem}-two", [Row(0, replays.at(3))])
    if assignment is not None:
        with pytest.raises(aiokcc.UsageError, match=f"was founded with {stem}-one, and none of it .* takes {stem}-two"):
            async with aiokcc.spark.replay(spark, **{**common, "name": "q", "subscription": [f"{stem}-two"]}) as replay:
                await replay.for_each_period(count, MemorySink())
    async with aiokcc.spark.replay(spark, **common) as replay:
        await replay.for_each_period(count, sink)
    check_tiling([batch for batch, _ in sink.batches.values()], [pipelines.Log(f"{stem}-one", [[(0, {})] * 4])])


async def test_topics_and_partitions_that_do_not_exist_are_refused(
    spark: SparkSession, kafka: local.Kafka, zk_root: str
) -> None:
    stem = await topics_of(kafka, one=[replays.at(0)])
    common: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap, "store": zk_root, "period": "1m", "name": "p"}
    wild = {"pattern": f"{stem}-.*", "assignment": "managed"}
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"pattern": f"{stem}x.*"}, aiokcc.UsageError, f"no topic of Kafka matches the pattern '{stem}x.*'; it has "),
        ({"pattern": stem}, aiokcc.UsageError, "no topic of Kafka matches"),
        ({**wild, "pattern": f"{stem}x.*"}, aiokcc.UsageError, f"no topic of Kafka matches the pattern '{stem}x.*'"),
        ({**wild, "subscription": [f"{stem}-two"]}, aiokcc.UsageError, f"no topic '{stem}-two'; the group replays {stem}-one"),
        ({**wild, "subscription": re.compile(f"{stem}-t.*")}, aiokcc.UsageError, "which no topic matches; the group replays"),
        ({**wild, "partitions": {f"{stem}-two": [0]}}, aiokcc.UsageError, f"Kafka has no topic '{stem}-two'"),
        ({**wild, "partitions": {f"{stem}-one": [1]}}, aiokcc.PartitionError, f"{stem}-one.1 does not exist; {stem}-one has 1"),
    ]  # fmt: skip
    for more, error, words in wrong:
        with pytest.raises(error, match=words):
            async with aiokcc.spark.replay(spark, **common, **more):
                pytest.fail("it was let in")
