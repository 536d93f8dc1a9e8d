"""A pipeline that is started after its run has ended: complete, unless records are left or it starts from scratch. No Spark."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

import aiokcc
from aiokcc.core import paths
from aiokcc.core.marks import Mark
from aiokcc.core.partitions import Partition, encode_partitions
from aiokcc.core.report import Cut
from aiokcc.core.run import CUT_SLOTS, Bounds, Run, Settings
from aiokcc.core.subscriptions import Subscription
from aiokcc.errors import PipelineMismatchError, RunEnded
from aiokcc.kafka.consumer_policy import ConsumerPolicy
from aiokcc.kafka.source_options import SourceOptions
from aiokcc.runtime.options import GroupOptions
from aiokcc.spark.checkpoint import Checkpoint
from aiokcc.spark.driver import AsyncReplay
from aiokcc.spark.pipeline_options import PipelineOptions
from aiokcc.spark.plan import Intent, Place
from aiokcc.spark.preflight import forget_group
from aiokcc.spark.sinks import FunctionSink
from aiokcc.stores import Session, Store, open_store

INTENT = Intent(0, (), ((0, 10),), {Partition("t", 0): (Place(0, 0), Place(5, 5))})


def driver(store: Store, *, from_scratch: bool = False, subscription: Subscription | None = None) -> AsyncReplay:
    options = PipelineOptions(
        spark=None,
        name="p",
        source=SourceOptions(topics=("t",), bootstrap_servers="h:1"),
        policy=ConsumerPolicy(),
        group=GroupOptions.check(period=10),
        timestamp=None,
        kafka_options={},
        max_periods=1,
        target_seconds=10.0,
        max_bytes=10**6,
        retries=0,
        from_scratch=from_scratch,
        accept_deleted=False,
        progress=False,
        keeps_periods=True,
        version=None,
        available_now=False,
        store=store,
        store_timeout=10.0,
        subscription=subscription,
    )
    cluster: Any = None
    return AsyncReplay(options, cluster, None, RunEnded("over"))


async def written(
    store: Store, replay: AsyncReplay, sink: FunctionSink, *, checkpointed: bool, intent: Intent | None = INTENT
) -> None:
    async with store.session(timeout=10) as session:

        async def present() -> Session:
            return session

        checkpoint = Checkpoint(store, "p", present)
        await checkpoint.begin(replay._definition(sink), "one")
        if intent is not None:
            await checkpoint.record_intent(intent)
        if checkpointed:
            await checkpoint.record_published(0)


def nothing(*_: Any) -> None:
    pytest.fail("nothing is left to be computed")


@pytest.mark.parametrize("from_scratch", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
async def test_an_ended_run_is_complete_only_if_the_pipeline_has_published_it(
    from_scratch: bool, checkpointed: bool
) -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}")
    sink = FunctionSink(nothing)
    replay = driver(store, from_scratch=from_scratch)
    await over(store, 5)
    await written(store, replay, sink, checkpointed=checkpointed)
    if checkpointed and not from_scratch:
        summary = await replay.for_each_period(nothing, sink)
        assert (summary.jobs, summary.event_time) == (0, 10)
    else:
        with pytest.raises(RunEnded):
            await replay.for_each_period(nothing, sink)


class Emptied(FunctionSink):
    """A sink whose results were deleted."""

    def check_published(self, pipeline: str, number: int) -> None:
        raise PipelineMismatchError(f"batch {number} of {pipeline} is not there")


async def test_an_ended_run_whose_results_are_gone_is_refused() -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}")
    sink, replay = Emptied(nothing), driver(store)
    await over(store, 5)
    await written(store, replay, sink, checkpointed=True)
    with pytest.raises(PipelineMismatchError, match="batch 0 of p is not there"):
        await replay.for_each_period(nothing, sink)


@pytest.mark.parametrize("subscription", [None, Subscription.check(pipeline="p")], ids=["static", "managed"])
@pytest.mark.parametrize(("marks", "left"), [([0, 0], None), ([0, 3], r"t\.1 up to 0 of 3")], ids=["none", "some"])
async def test_a_pipeline_that_decided_no_batch_is_complete_only_if_there_were_no_records(
    marks: list[int], left: str | None, subscription: Subscription | None
) -> None:
    """It is complete if there were no records. If others have processed records, its driver died before the first batch."""
    store = open_store(f"memory://{uuid.uuid4().hex}")
    sink, replay = FunctionSink(nothing), driver(store, subscription=subscription)
    await over(store, *marks)
    await written(store, replay, sink, checkpointed=False, intent=None)
    if left is None:
        assert (await replay.for_each_period(nothing, sink)).periods == 0
    else:
        with pytest.raises(RunEnded, match=f"pipeline 'p' has not published all of it: {left}"):
            await replay.for_each_period(nothing, sink)


async def test_a_pipeline_that_never_began_is_not_complete() -> None:
    """Nothing is known about it, so it may have had records."""
    store = open_store(f"memory://{uuid.uuid4().hex}")
    await over(store, 0)
    with pytest.raises(RunEnded, match="over"):
        await driver(store).for_each_period(nothing, FunctionSink(nothing))


async def over(store: Store, *marks: int) -> None:
    """Write a run that has ended, with a cut that says how far each partition was processed."""
    partitions = frozenset(Partition("t", number) for number in range(len(marks)))
    settings = Settings.check(topics={"t": len(marks)}, period=10)
    cut = Cut(1, 0, 10, 1, {"somebody": {p: Mark(marks[p.number], finished=True) for p in partitions}})
    async with store.session(timeout=10) as session:
        await session.ensure(paths.CUTS)
        for path, data in {
            paths.COORDINATOR: b"0",
            paths.TOPIC_PARTITIONS: encode_partitions(partitions),
            paths.RUN: Run(settings, ended=True, bounds={p: Bounds(0, 9) for p in partitions}).encode(),
            paths.cut(1, CUT_SLOTS): cut.encode(),
        }.items():
            await session.create(path, data)
        await session.set(paths.COORDINATOR, b"end", 0)


@pytest.mark.parametrize(
    ("marks", "checkpointed", "left"),
    [
        ([5], True, None),
        ([6], True, r"t\.0 up to 5 of 6"),
        ([5], False, r"t\.0 up to 0 of 5"),
        ([5, 0], True, None),
        ([5, 3], True, r"t\.1 up to 0 of 3"),
    ],
    ids=["all", "more", "decided-only", "an-empty-one", "one-it-never-saw"],
)
async def test_an_ended_managed_run_is_complete_only_if_the_pipeline_has_published_all(
    marks: list[int], checkpointed: bool, left: str | None
) -> None:
    """Other members may have processed its partitions to the end."""
    store = open_store(f"memory://{uuid.uuid4().hex}")
    sink = FunctionSink(nothing)
    replay = driver(store, subscription=Subscription.check(pipeline="p"))
    await over(store, *marks)
    await written(store, replay, sink, checkpointed=checkpointed)
    if left is None:
        assert (await replay.for_each_period(nothing, sink)).event_time == 10
    else:
        with pytest.raises(RunEnded, match=f"pipeline 'p' has not published all of it: {left}"):
            await replay.for_each_period(nothing, sink)


async def test_a_group_that_is_forgotten_leaves_no_announced_limit() -> None:
    """The versions of the next group's limits begin at 0 again. Its leader would take the old ones for its own."""
    store = open_store(f"memory://{uuid.uuid4().hex}")
    settings: dict[str, Any] = {
        "topics": {"t": 2},
        "start": 0,
        "end": 30_000,
        "period": 10_000,
        "clock": lambda: 10**13,
    }

    async def member(number: int) -> None:
        async with aiokcc.connect(store, **settings) as group, group.gate("t", number) as gate:
            for offset, ts in enumerate((5_000, 15_000, 25_000)):
                await gate.wait_until(ts, offset)
            gate.finish()

    await asyncio.gather(member(0), member(1))
    async with store.session(timeout=10) as session:
        assert await session.children(paths.LIMITS)
        await forget_group(store, session, 10)
        assert await session.children(paths.LIMITS) == ()
        assert await session.find(paths.RUN) is None
    await asyncio.gather(member(0), member(1))
