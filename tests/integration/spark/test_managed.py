"""Spark pipelines in a managed group: beside asynchronous members, and with drivers that stand by."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

import aiokcc
from aiokcc import local
from aiokcc.core.partitions import Partition
from aiokcc.runtime.operator import isolate
from aiokcc.runtime.options import wall_clock
from aiokcc.runtime.status_reader import read_status
from aiokcc.runtime.store_offsets import find_offsets
from aiokcc.spark import Batch, Periods, Summary
from aiokcc.spark.pipeline import BatchStep
from aiokcc.stores import open_store
from tests import kafka_topics, pipelines, replays
from tests.integration.kafka.test_topic_discovery import add_partitions
from tests.integration.spark.test_mixed import History
from tests.kafka_topics import Row
from tests.pipelines import MemorySink, check_tiling, millis, some_records, totals, totals_in_python, totals_of
from tests.replays import BASE, MINUTE, at, topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(120)


def managed(kafka: local.Kafka, store: str, **settings: Any) -> dict[str, Any]:
    usual = {"period": "1m", "end": "now", "assignment": "managed", "session_timeout": 5}
    return {"bootstrap_servers": kafka.bootstrap, "store": store, **usual, **settings}


def count(frame: DataFrame, periods: Periods) -> DataFrame:
    return frame.groupBy("period").count()


async def test_a_pipeline_and_an_asynchronous_member_share_a_group(
    spark: SparkSession, kafka: local.Kafka, zk_root: str
) -> None:
    chance = random.Random(12)
    orders = await pipelines.write(kafka, "orders", [some_records(chance, 40, minutes=4) for _ in range(2)])
    payments = await pipelines.write(kafka, "payments", [some_records(chance, 40, minutes=4) for _ in range(2)])
    both = f"{orders.name}|{payments.name}"
    common = managed(kafka, zk_root, expect=2, pattern=both, offset_storage="store")
    history, sink = History(), MemorySink()
    read: list[tuple[str, int, int]] = []
    seen: list[aiokcc.Status] = []

    async def consume() -> None:
        async with aiokcc.replay(member="async", **common) as replay:

            async def handle(record: Any) -> None:
                period = (record.timestamp - BASE) // MINUTE
                history.note(f"async-{record.partition}", "start", period)
                read.append((record.topic, record.partition, record.offset))
                if period == 2 and not seen:
                    seen.append(await replay.group.status())
                history.note(f"async-{record.partition}", "done", period)

            await replay.run(handle)

    def after(step: BatchStep, batch: Batch) -> None:
        for period in batch.periods:
            if period.ranges and step in {BatchStep.PLANNED, BatchStep.PUBLISHED}:
                what = "start" if step is BatchStep.PLANNED else "done"
                history.note("spark", what, (period.start - BASE) // MINUTE)

    async def compute() -> None:
        only: dict[str, Any] = {
            "subscription": [orders.name],
            "name": "sums",
            "member": "spark",
            "progress": False,
            "keeps_periods": True,
        }
        async with aiokcc.spark.replay(spark, **only, **common) as replay:
            with pytest.raises(aiokcc.GroupMismatchError, match="offsets=zookeeper"):
                async with aiokcc.spark.replay(spark, **{**only, **common, "offset_storage": "kafka", "member": None}):
                    pytest.fail("it was let in")
            replay.after_step = after
            await replay.for_each_period(totals, sink)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(consume())
        tasks.create_task(compute())
    # Each record once, on one side: the other member may take everything, but what the pipeline runs is the pipeline's.
    assert totals_of(sink.rows) == totals_in_python([orders])
    check_tiling([batch for batch, _ in sink.batches.values()], [orders])
    assert sorted(read) == [(payments.name, p, n) for p in range(2) for n in range(40)]
    history.check(0, {who: max(history.periods(who)) for who in ("spark", "async-0", "async-1")})
    store = open_store(zk_root)
    async with store.session(timeout=10) as session:
        everything = {Partition(log.name, n) for log in (orders, payments) for n in range(2)}
        committed = await find_offsets(store, session, everything)
    assert {p: commit.offset for p, commit in committed.items()} == {Partition(payments.name, n): 40 for n in range(2)}
    status = seen[0]
    assert status.group is not None
    assert {w.name: (w.subscription, w.assigned, w.running) for w in status.group.workers} == {
        "async": ("everything", *2 * [tuple(f"{payments.name}.{n}" for n in range(2))]),
        "spark": (
            f"{orders.name}, all for the pipeline sums",
            *2 * [tuple(f"{orders.name}.{n}" for n in range(2))],
        ),
    }


async def test_an_isolated_driver_stops_its_job_and_the_standby_driver_runs_its_batch(
    spark: SparkSession, kafka: local.Kafka, zk_root: str
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    name = await topic(kafka, [at(n) for n in range(4)], [at(n) for n in range(4)])
    common = managed(kafka, zk_root, expect=2, name="p", progress=False, max_periods=1)
    sink = MemorySink()
    started, loop = asyncio.Event(), asyncio.get_running_loop()

    def endless(frame: DataFrame, periods: Periods) -> DataFrame:
        if periods.start < at(1):
            return count(frame, periods)
        rows = frame.sparkSession.range(10**13, numPartitions=1).agg(F.sum(F.hash("id")).alias("x"))
        loop.call_soon_threadsafe(started.set)
        return frame.select("period").crossJoin(rows)

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        first = await stack.enter_async_context(aiokcc.spark.replay(spark, name, member="a", **common))
        second = await stack.enter_async_context(aiokcc.spark.replay(spark, name, member="b", **common))
        stuck = tasks.create_task(first.for_each_period(endless, sink))
        stands_by = tasks.create_task(second.for_each_period(count, sink))
        await started.wait()
        for more, error, words in (
            ({"name": "q"}, aiokcc.PartitionError, f"{name}.0 belongs to the pipeline 'p', which a-"),
            ({"partitions": {name: [1]}}, aiokcc.PipelineMismatchError, "all drivers of a pipeline run the same"),
        ):
            with pytest.raises(error, match=words):
                async with aiokcc.spark.replay(spark, name, member="c", **{**common, **more}) as third:
                    await third.for_each_period(count, sink)
        with pytest.raises(aiokcc.GroupMismatchError, match="assignment=managed there"):
            async with aiokcc.spark.replay(spark, name, **{**common, "assignment": None, "expect": None}, lookahead=0):
                pytest.fail("it was let in")
        store = open_store(zk_root)
        async with store.session(timeout=10) as operator:
            status = await read_status(store, operator)
            assert status.group is not None
            assert [(w.name, len(w.running)) for w in status.group.workers if w.name < "c"] == [("a", 2), ("b", 0)]
            await isolate(store, operator, "a", by="a test", now=0)
        summaries: list[Summary] = [await stuck, await stands_by]
    assert {millis(row["period"]): row["count"] for row in sink.rows} == {at(n): 2 for n in range(4)}
    check_tiling([batch for batch, _ in sink.batches.values()], [pipelines.Log(name, [[(0, {})] * 4] * 2)])
    assert [summary.jobs for summary in summaries] == [1, 3]
    decided, done = (batch for batch in sink.staged if batch.number == 1)
    assert decided == done  # as it was recorded
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []


async def test_new_partitions_and_topics_are_assigned_to_the_driver(
    spark: SparkSession, kafka: local.Kafka, zk_root: str
) -> None:
    name = await topic(kafka, [at(0), at(1), at(2)])
    sink, changed = MemorySink(), asyncio.Event()
    common = managed(
        kafka, zk_root, end=None, period="1s", metadata_max_age_ms=200, expect=2, name="p", keeps_periods=True
    )
    common |= {"pattern": f"{name}.*", "offset_storage": "store"}

    async def until(records: int) -> None:
        while sum(row["count"] for row in sink.rows) < records:
            changed.clear()
            await changed.wait()

    async def drive(member: str) -> None:
        async with aiokcc.spark.replay(spark, member=member, progress=lambda _: changed.set(), **common) as replay:
            await replay.for_each_period(count, sink)

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(drive(member)) for member in "ab"]
        await until(3)
        await add_partitions(kafka.bootstrap, name, 2)
        await kafka_topics.write(kafka.bootstrap, name, [Row(1, wall_clock())])
        await until(4)
        assert [attempt for _, attempt in sink.began] == [1]
        running[0].cancel()  # it leaves, and gives all back
        await kafka_topics.write(kafka.bootstrap, name, [Row(0, wall_clock()), Row(1, wall_clock())])
        await until(6)
        assert [attempt for _, attempt in sink.began] == [1, 2]
        more = f"{name}-more"
        await kafka_topics.create(kafka.bootstrap, more)
        await kafka_topics.write(kafka.bootstrap, more, [Row(0, wall_clock())])
        await until(7)
        running[1].cancel()
    logs = [pipelines.Log(name, [[(0, {})] * 4, [(0, {})] * 2]), pipelines.Log(more, [[(0, {})]])]
    check_tiling([batch for batch, _ in sink.batches.values()], logs)


async def test_a_topic_that_is_deleted_leaves_the_pipeline(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka does not announce a deletion, and the driver notices it before the leader removes the topic from the set."""
    stem = kafka_topics.fresh_name("wild")
    for n, name in enumerate(("one", "two")):
        await kafka_topics.create(kafka.bootstrap, f"{stem}-{name}")
        await replays.append(kafka, f"{stem}-{name}", 0, [at(n)])
    sink, changed = MemorySink(), asyncio.Event()
    impatient = managed(kafka, zk_root, end=None, period="1s", metadata_max_age_ms=3000, connect_timeout=2)

    async def until(records: int) -> None:
        while sum(row["count"] for row in sink.rows) < records:
            changed.clear()
            await changed.wait()

    async def drive() -> None:
        settings: dict[str, Any] = {**impatient, "pattern": f"{stem}-.*", "name": "p", "keeps_periods": True}
        async with aiokcc.spark.replay(spark, progress=lambda _: changed.set(), **settings) as replay:
            await replay.for_each_period(count, sink)

    async with asyncio.TaskGroup() as tasks:
        driving = tasks.create_task(drive())
        await until(2)
        async with kafka_topics.admin(kafka.bootstrap) as client:
            await client.delete_topics([f"{stem}-two"])
        await replays.append(kafka, f"{stem}-one", 0, [wall_clock()])
        await until(3)
        driving.cancel()
    assert [attempt for _, attempt in sink.began] == [1, 2]
    assert f"{stem}-two was deleted; the leader takes it out of the set" in caplog.messages


@pytest.mark.parametrize("comes_back", [True, False])
async def test_records_that_others_run_without_a_driver_are_computed_later_or_are_an_error(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, comes_back: bool
) -> None:
    """The others continue from the last cut, perhaps to the end. The pipeline then publishes everything, or raises an error."""
    orders = await topic(kafka, *[[at(n) for n in range(6)]] * 2, stem="orders")
    payments = await topic(kafka, [at(n) for n in range(6)], stem="payments")
    common = managed(kafka, zk_root)
    sink, read = MemorySink(), list[tuple[str, int, int]]()
    far, again, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def consume() -> None:
        async with aiokcc.replay(orders, payments, member="async", expect=2, **common) as replay:

            async def handle(record: Any) -> None:
                read.append((record.topic, record.partition, record.offset))
                if (record.topic, record.offset) == (payments, 4):
                    far.set()
                    await go_on.wait()

            await replay.run(handle)

    async def drive(after: Any, **more: Any) -> None:
        only: dict[str, Any] = {"subscription": [orders], "name": "p", "progress": False, **common, **more}
        async with aiokcc.spark.replay(spark, orders, payments, **only) as replay:
            replay.after_step = after
            await replay.for_each_period(count, sink)

    def leave_after_two(step: BatchStep, batch: Batch) -> None:
        if (step, batch.number) == (BatchStep.REPORTED, 1):
            first.cancel()

    def tell_when_it_goes_on(step: BatchStep, batch: Batch) -> None:
        if (step, batch.number) == (BatchStep.REPORTED, 2):
            again.set()

    async with asyncio.TaskGroup() as tasks:
        consuming = tasks.create_task(consume())
        first = tasks.create_task(drive(leave_after_two, expect=2))
        await far.wait()  # with the pipeline's partitions, or it would not have come so far
        if comes_back:
            second = tasks.create_task(drive(tell_when_it_goes_on))
            await again.wait()
            go_on.set()
            await second
        go_on.set()
        await consuming
    if not comes_back:
        for name, done in (("p", 2), ("another", 0)):
            words = (
                rf"pipeline '{name}' has not published all of it: {orders}\.0 up to {done} of 6. Other members have run"
            )
            with pytest.raises(aiokcc.RunEnded, match=words):
                await drive(None, name=name)
    published = 6 if comes_back else 2
    assert {millis(row["period"]): row["count"] for row in sink.rows} == {at(n): 2 for n in range(published)}
    stood_in = sorted(place for place in read if place[0] == orders)
    begin = stood_in[0][2]
    assert begin in {1, 2}, "at the last cut, which the last report may have reached or not"
    if not comes_back:
        assert stood_in == [(orders, p, n) for p in range(2) for n in range(begin, 6)]
    assert sorted(set(read) - set(stood_in)) == [(payments, 0, n) for n in range(6)]
