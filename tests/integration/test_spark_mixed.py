"""A Spark pipeline and asynchronous consumers in one group walk through event time together."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

import aiokcc
from aiokcc import local
from aiokcc.spark import Batch
from aiokcc.spark.pipeline import Step
from tests import pipelines, replays
from tests.pipelines import MemorySink, millis, some_records, totals, totals_in_python, totals_of
from tests.replays import BASE, MINUTE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(180)

MINUTES = 8


class History:
    """What both sides did, in the order in which it happened: each side tells before it starts and after it is done."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, int]] = []

    def note(self, who: str, what: str, period: int) -> None:
        self.events.append((who, what, period))

    def check(self, lookahead: int, last: dict[str, int]) -> None:
        """Nobody starts a period before the other is done with everything up to ``lookahead`` periods before it."""
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

    def after(step: Step, batch: Batch) -> None:
        for period in batch.periods:
            if period.ranges and step in {Step.PLANNED, Step.PUBLISHED}:
                what = "start" if step is Step.PLANNED else "done"
                history.note("spark", what, (period.start - BASE) // MINUTE)

    async def compute() -> None:
        async with aiokcc.spark.replay(
            spark,
            *topics,
            name="mixed",
            partitions={orders.name: [0, 1]},
            progress=False,
            member="spark",
            check=False,
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


async def test_other_settings_than_the_groups_are_refused(
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
        check=False,
    ) as replay:
        assert replay.coordinator is not None
        await replay.coordinator.release()
        await replay.for_each_period(count, sink)
    assert {millis(r["period"]): r["count"] for r in sink.rows} == {replays.at(n): 2 for n in range(4)}
    assert sink.full == [2, 2]
