"""The order of the steps of a batch and of what is recorded. Without Spark and Kafka."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from aiokcc.core.partitions import Partition
from aiokcc.errors import FencedError, SparkJobError
from aiokcc.spark.batch import Batch
from aiokcc.spark.batch_sizer import BatchSizer
from aiokcc.spark.checkpoint import Checkpoint
from aiokcc.spark.pipeline import BatchStep, Pipeline
from aiokcc.spark.plan import Intent, Place
from aiokcc.spark.progress import Summary
from aiokcc.spark.sinks import Sink
from aiokcc.spark.spark_thread import SparkThread
from aiokcc.stores import Session, Store, open_store

P = Partition("t", 0)
INTENT = Intent(0, (), ((0, 10),), {P: (Place(0, 0), Place(5, 5))})
EMPTY = Intent(0, (), ((0, 10),), {P: (Place(0, 0), Place(0, 0))})


class Context:
    """Replaces Spark. It lists the groups of jobs that were stopped."""

    def __init__(self) -> None:
        self.stopped: list[str] = []
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(cancelJobGroupAndFutureJobs=self.stop))
        self.on_stop: Callable[[], None] = lambda: None

    def setJobGroup(self, *_: Any) -> None:  # noqa: N802
        pass

    def setLocalProperty(self, *_: Any) -> None:  # noqa: N802
        pass

    def stop(self, group: str) -> None:
        self.stopped.append(group)
        self.on_stop()


class ListedSink(Sink):
    """Lists the calls that it gets."""

    exactly_once: ClassVar[bool] = True

    def __init__(self, stage: Callable[[], object] = lambda: 0) -> None:
        self.told: list[str] = []
        self._stage = stage

    def describe(self) -> str:
        return "a list"

    def begin(self, pipeline: str, attempt: int) -> None:
        pass

    def is_published(self, batch: Batch) -> bool:
        return False

    def stage(self, frame: Any, batch: Batch) -> object:
        self.told.append("stage")
        return self._stage()

    def publish(self, batch: Batch, staged: object | None) -> None:
        self.told.append("publish")


class OnceOrMore(ListedSink):
    exactly_once: ClassVar[bool] = False


class Begins:
    """Replaces the finder: no record was deleted."""

    async def begins(self, partitions: Any) -> dict[Partition, int]:
        return {}


@pytest.fixture
def store() -> Store:
    return open_store(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
async def session(store: Store) -> AsyncIterator[Session]:
    async with store.session(timeout=10) as session:
        yield session


class World:
    """A pipeline with everything that one batch needs."""

    def __init__(self, store: Store, session: Session, sink: ListedSink, retries: int = 0) -> None:
        self.sink, self.context = sink, Context()
        self.steps: list[str] = []

        async def present() -> Session:
            return session

        self.checkpoint = Checkpoint(store, "p", present)
        self.spark_thread = SparkThread(SimpleNamespace(sparkContext=self.context))
        computation = SimpleNamespace(stage=lambda sink, batch: sink.stage(None, batch), one_by_one=False)
        nothing: Any = None
        self.pipeline = Pipeline(
            nothing,
            nothing,
            self.checkpoint,
            Begins(),  # type: ignore[arg-type]
            self.spark_thread,
            computation,  # type: ignore[arg-type]
            sink,
            BatchSizer(1, 1.0, 1000),
            Summary(),
            grows=False,
            retries=retries,
            sample=nothing,
            on_progress=nothing,
            after=lambda step, _: self.steps.append(step.value),
        )

    async def carry_out(self, intent: Intent = INTENT) -> None:
        try:
            await self.pipeline._carry_out(intent.batch("p"), intent)
        finally:
            self.spark_thread.close()


def hold_commits(checkpoint: Checkpoint, session: Session) -> tuple[asyncio.Event, asyncio.Event]:
    """Make transactions wait. The first event is set when one waits; setting the second lets it continue."""
    waiting, go_on = asyncio.Event(), asyncio.Event()
    commit = session.commit

    async def held(*ops: Any) -> Any:
        waiting.set()
        await go_on.wait()
        return await commit(*ops)

    session.commit = held  # type: ignore[method-assign]
    return waiting, go_on


async def test_a_job_runs_while_its_intent_is_recorded_and_publishes_after_that(store: Store, session: Session) -> None:
    loop, staged = asyncio.get_running_loop(), asyncio.Event()
    world = World(store, session, ListedSink(lambda: loop.call_soon_threadsafe(staged.set)))
    await world.checkpoint.begin({}, "one")
    waiting, go_on = hold_commits(world.checkpoint, session)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(world.carry_out())
        await waiting.wait()
        await staged.wait()
        await asyncio.get_running_loop().run_in_executor(world.spark_thread._executor, lambda: None)  # the job is over
        await asyncio.sleep(0)
        assert (world.sink.told, world.steps) == (["stage"], [])
        go_on.set()
        await running
    assert world.sink.told == ["stage", "publish"]
    assert world.steps == [BatchStep.INTENDED.value, BatchStep.STAGED.value, BatchStep.PUBLISHED.value]
    assert (await session.get("pipelines/p/intent")).data == INTENT.encode()


@pytest.mark.parametrize(("sink", "intent"), [(OnceOrMore, INTENT), (ListedSink, EMPTY)])
async def test_if_a_job_is_visible_at_once_its_intent_is_recorded_first(
    store: Store, session: Session, sink: type[ListedSink], intent: Intent
) -> None:
    world = World(store, session, sink())
    await world.checkpoint.begin({}, "one")
    waiting, go_on = hold_commits(world.checkpoint, session)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(world.carry_out(intent))
        await waiting.wait()
        await asyncio.get_running_loop().run_in_executor(world.spark_thread._executor, lambda: None)
        await asyncio.sleep(0)
        assert (world.sink.told, world.steps) == ([], [])
        go_on.set()
        await running
    assert world.sink.told[-1] == "publish"


async def test_a_driver_that_cannot_record_its_intent_stops_the_job_and_publishes_nothing(
    store: Store, session: Session
) -> None:
    stopped = threading.Event()
    world = World(store, session, ListedSink(stopped.wait))
    world.context.on_stop = stopped.set
    await world.checkpoint.begin({}, "one")
    async with store.session(timeout=10) as other:

        async def present() -> Session:
            return other

        await Checkpoint(store, "p", present).begin({}, "two")
        with pytest.raises(FencedError, match="taken over by two"):
            await world.carry_out()
    assert len(world.context.stopped) == 1
    assert world.sink.told == ["stage"]


async def test_a_job_that_fails_early_has_its_intent_recorded_and_is_tried_again(
    store: Store, session: Session
) -> None:
    def fails() -> object:
        raise ValueError("no good")

    world = World(store, session, ListedSink(fails), retries=1)
    await world.checkpoint.begin({}, "one")
    with pytest.raises(SparkJobError, match="failed 2 times.*no good"):
        await world.carry_out()
    assert world.sink.told == ["stage", "stage"]
    assert world.steps == [BatchStep.INTENDED.value]
    assert world.checkpoint.pending == INTENT
