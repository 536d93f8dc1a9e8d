"""Random faults on virtual time for drivers of a pipeline in a managed group, beside asynchronous members.

Drivers come and go, fall asleep over a job, are killed and isolated; somebody restates the pipeline, and may die over it;
sessions end, the network stalls. Everything is theirs but
Spark, Kafka and the sink: a job takes time and can be stopped, a log is a list, and the sink refuses whoever it knows
to be followed, as the real ones do. What is published is checked, and the history of the group. Every choice comes from one
seed; SOAK_SEEDS sets how many.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from types import SimpleNamespace
from typing import Any, ClassVar

import anyio
import pytest

import aiokcc
from aiokcc.core.partitions import Partition
from aiokcc.core.run import Bounds
from aiokcc.core.subscriptions import EVERYTHING, Subscription
from aiokcc.errors import (
    AiokccError,
    FencedError,
    PipelineBusyError,
    SessionLostError,
    StoreUnreachableError,
    UsageError,
)
from aiokcc.kafka.consumer_policy import ConsumerPolicy
from aiokcc.kafka.source_options import SourceOptions
from aiokcc.kafka.topic_discovery import discover
from aiokcc.runtime.operator import isolate, rejoin
from aiokcc.runtime.options import GroupOptions
from aiokcc.spark import driver as drivers
from aiokcc.spark.batch import Batch
from aiokcc.spark.checkpoint import Checkpoint
from aiokcc.spark.driver import AsyncReplay
from aiokcc.spark.finder import Finder, Found
from aiokcc.spark.pipeline import BatchStep, Pipeline
from aiokcc.spark.pipeline_options import PipelineOptions
from aiokcc.spark.restating import alone_with
from aiokcc.spark.sinks import Sink
from aiokcc.stores.memory import Call
from aiokcc.stores.port import Session, SessionState
from tests.unit.world import FAR, PERIOD, World
from tests.virtual import settle

SEEDS = range(int(os.environ.get("SOAK_SEEDS", "8")))
DRIVERS, CONSUMERS = 3, 2
ORDERS, PAYMENTS = [Partition("orders", n) for n in range(3)], [Partition("payments", n) for n in range(2)]
LATER = [Partition("orders", 3), Partition("payments", 2)]
"""The partitions that are added while the topics are followed."""
RECORDS = 60
STORM = 150.0
"""Seconds of faults; then everything must come to its end."""
CALM = 1500.0
PIPELINE = Subscription.check("orders", pipeline="p")
FAULTS = ("expire", "suspend", "freeze", "away", "isolate", "end", "kill", "calm", "restate")


class Index(Finder):
    """Logs of timestamps, in order."""

    looks_ahead: ClassVar[bool] = True  # type: ignore[assignment]

    def __init__(self, logs: Mapping[Partition, list[int]]) -> None:
        self._logs = logs

    async def _ask(self, times: Mapping[Partition, int]) -> dict[Partition, Found | None]:
        await asyncio.sleep(0.001)
        return {p: next((Found(n, t) for n, t in enumerate(self._logs[p]) if t >= ts), None) for p, ts in times.items()}

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {p: len(self._logs[p]) for p in partitions}

    async def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 0)


class Cluster:
    """Stands for Kafka, where somebody looks for new partitions."""

    def __init__(self, soak: Soak) -> None:
        self._soak = soak

    async def topics(self) -> tuple[str, ...]:
        return self._soak.source.topics

    async def present(self, _: object) -> frozenset[Partition]:
        return frozenset(self._soak.there)

    async def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 0)


class SparkThread:
    """Stands for Spark's thread: a call is over before anybody goes on, and a job takes a while to stop."""

    spark = None

    def __init__(self, soak: Soak) -> None:
        self._soak = soak

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        with anyio.CancelScope(shield=True):
            await asyncio.sleep(self._soak.chance.choice([0, 0.01, 0.3]))
            result = function(*args)
        await anyio.lowlevel.checkpoint()
        return result

    async def job(self, _: str, function: Callable[..., Any]) -> Any:
        try:
            await asyncio.sleep(self._soak.chance.choice([0.1, 0.5, 2, 8]))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(self._soak.chance.choice([0, 0.5]))
            raise
        return function()

    def close(self) -> None:
        pass


class Table(Sink):
    """One driver's access to what is published: it is refused once another has begun with a greater attempt."""

    exactly_once: ClassVar[bool] = True

    def __init__(self, soak: Soak, who: str) -> None:
        self._soak, self._who, self._attempt = soak, who, 0

    def describe(self) -> str:
        return "a table"

    def begin(self, pipeline: str, attempt: int) -> None:
        self._attempt = attempt
        self._check()
        self._soak.attempt = attempt

    def is_published(self, batch: Batch) -> bool:
        return batch.number in self._soak.published

    def stage(self, frame: Any, batch: Batch) -> object:
        return frame

    def publish(self, batch: Batch, staged: object | None) -> None:
        self._check()
        before = self._soak.published.get(batch.number)
        if before is not None:
            self._soak.faults.append(f"{self._who} published batch {batch.number} again")
        if batch.number != len(self._soak.published):
            self._soak.faults.append(f"{self._who} published batch {batch.number} after {len(self._soak.published)}")
        self._soak.published[batch.number] = batch

    def _check(self) -> None:
        if self._attempt < self._soak.attempt:
            raise FencedError(f"attempt {self._soak.attempt} is there")


class Soak:
    """One run: who lives, and what happens to them."""

    def __init__(self, world: World, seed: int, *, follows: bool) -> None:
        self.world, self.chance, self.follows = world, random.Random(seed), follows
        self.stormy = True
        self.lookahead = self.chance.choice([0, 0, 1, 3, 8])
        self.stand_in = self.chance.random() < 0.3
        """True if the asynchronous members have subscribed to the pipeline's partitions as well."""
        self.there = [*ORDERS, *PAYMENTS]
        self.logs = {p: self._log() for p in (*self.there, *(LATER if follows else ()))}
        self.consumed: set[tuple[Partition, int]] = set()
        end = None if follows else "now"
        looks = {"metadata_max_age_ms": 2000}
        self.source = SourceOptions(
            topics=("orders", "payments"),
            bootstrap_servers="nowhere",
            end=end,  # type: ignore[arg-type]
            managed=True,
            consumer=looks,
        )
        self.live: dict[str, aiokcc.Group] = {}
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.published: dict[int, Batch] = {}
        self.attempt = 0
        self.processes: list[asyncio.Task[None]] = []
        self.killed: set[str] = set()
        self.restated = 0
        self.faults: list[str] = []
        self.told: list[str] = []
        world.server.intercept(before=self._delay, after=self._delay)

    def _log(self) -> list[int]:
        ts, stamps = self.chance.randrange(PERIOD), []
        for _ in range(self.chance.randrange(RECORDS)):
            ts += int(self.chance.expovariate(1 / 700)) + (50 * PERIOD if self.chance.random() < 0.03 else 0)
            stamps.append(ts)
        return stamps

    async def _delay(self, _: Call) -> None:
        if self.chance.random() < 0.2:
            await asyncio.sleep(self.chance.random() * (0.5 if self.stormy else 0.01))

    async def bounds(self) -> dict[Partition, Bounds]:
        return {p: Bounds(0, None if self.follows else len(self.logs[p])) for p in self.there}

    # -- who takes part ---------------------------------------------------------------------------------------------------

    async def process(self, name: str, subscription: Subscription, work: Callable[[aiokcc.Group], Any]) -> None:
        """One that is started again whenever it ends, until the run is over."""
        while True:
            try:
                async with self.world.connect(
                    topics={t: [p.number for p in self.there if p.topic == t] for t in ("orders", "payments")},
                    grows=self.follows,
                    member=name,
                    lookahead=self.lookahead,
                    session_timeout=6,
                    claim_timeout=500,
                    connect_timeout=10_000,
                    assignment="managed",
                    subscription=subscription,
                    offsets=self.bounds,
                ) as group:
                    self.live[name] = group
                    self.tasks[name] = asyncio.create_task(work(group))
                    try:
                        await asyncio.wait([self.tasks[name]])
                    finally:
                        work_task = self.tasks.pop(name)
                        work_task.cancel()
                        await asyncio.wait([work_task])
                        del self.live[name]
                    if not work_task.cancelled():
                        work_task.result()  # an error of another kind fails the test at once
                    if name in self.killed:
                        raise _KilledError
                    if group.ended:
                        return
            except aiokcc.RunEnded:
                return
            except _KilledError:
                self.killed.remove(name)
            except AiokccError as error:
                self.told.append(f"{name}: {error}")
            await asyncio.sleep(self.chance.random() * 5)

    async def consume(self, group: aiokcc.Group) -> None:
        who = group.member

        async def run(partition: Partition) -> None:
            records = self.logs[partition]
            async with group.gate(*partition) as gate:
                for offset in range(gate.resume_offset or 0, len(records)):
                    await gate.wait_until(records[offset], offset)
                    if offset < (gate.resume_offset or 0):
                        continue  # somebody else had it meanwhile, and it came back
                    self.world.history.start(who, str(partition), records[offset], offset)
                    try:
                        await asyncio.sleep(self.chance.choice([0, 0, 0.01, 0.2, 2]))
                    except BaseException:
                        self.world.history.gone(who, str(partition), records[offset], offset)
                        raise
                    self.world.history.done(who, str(partition), records[offset], offset)
                    self.consumed.add((partition, offset))
                while self.follows:
                    await gate.idle(offset=len(records))
                gate.finish(len(records))

        cluster: Any = Cluster(self)
        async with anyio.create_task_group() as tasks:
            if self.follows:
                tasks.start_soon(discover, self.source, cluster, group)
            await group.share(run)
            tasks.cancel_scope.cancel()

    async def drive(self, group: aiokcc.Group) -> None:
        options = PipelineOptions(
            spark=None,
            name="p",
            source=self.source,
            policy=ConsumerPolicy(),
            group=GroupOptions.check(period=PERIOD, session_timeout=6, connect_timeout=10_000, clock=lambda: FAR),
            timestamp=None,
            kafka_options={},
            max_periods=3,
            target_seconds=10.0,
            max_bytes=10**6,
            retries=0,
            from_scratch=False,
            accept_deleted=False,
            progress=False,
            keeps_periods=True,
            version=None,
            available_now=False,
            store=self.world.store,
            store_timeout=10_000,
            subscription=PIPELINE,
        )
        cluster: Any = Cluster(self)
        replay = AsyncReplay(options, cluster, group)
        replay.after_step = lambda step, batch: self._step(group.member, step, batch)
        try:
            await replay.for_each_period(lambda frame, _: frame, Table(self, group.member))
        except AiokccError as error:
            if not isinstance(error, aiokcc.RunEnded):
                self.told.append(f"{group.member}: {error!r}")

    def _step(self, who: str, step: BatchStep, batch: Batch) -> None:
        if step is BatchStep.PUBLISHED:
            self.note(self.world.history.done, who, batch)

    def note(self, what: Callable[..., None], who: str, batch: Batch) -> None:
        """The same of every record of a batch."""
        for period in batch.periods:
            for partition, (start, end) in period.ranges.items():
                for offset in range(start, end):
                    what(who, str(partition), self.logs[partition][offset], offset)

    # -- what happens to them -----------------------------------------------------------------------------------------------

    async def storm(self) -> None:
        server, over = self.world.server, self.world.time() + STORM
        async with self.world.store.session(timeout=15) as operator:
            while self.world.time() < over:
                await asyncio.sleep(self.chance.expovariate(1 / 3))
                name = self.chance.choice(sorted(self.live)) if self.live else None
                if name is None:
                    continue
                session: Any = self.live[name].membership.session
                fault = self.chance.choice(FAULTS)
                if fault == "end":
                    self.tasks[name].cancel()
                elif fault == "isolate":
                    with suppress(UsageError):  # it may have gone meanwhile, or the run may be over
                        await isolate(self.world.store, operator, name, by="chance", now=0)
                        await asyncio.sleep(self.chance.uniform(0, 9))
                        await rejoin(self.world.store, operator, name)
                elif fault == "restate":
                    await self._restate()
                elif session not in server.sessions:
                    continue
                elif fault == "expire":
                    server.expire(session)
                elif fault == "suspend":
                    server.suspend(session)
                    self._later(server.resume, session)
                elif fault == "freeze":
                    server.freeze(session)
                    self._later(server.thaw, session)
                elif fault == "kill":
                    server.freeze(session)  # so that nobody hears what it says when it ends
                    self.killed.add(name)
                    self.tasks[name].cancel()
                elif fault == "away":
                    server.suspend()
                    self._later(server.resume)
        self.stormy = False
        while self.follows and not self._is_done():  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(1)
        for task in self.processes if self.follows else ():
            task.cancel()

    async def _restate(self) -> None:
        """Take the pipeline's attempt as a restatement does; or die over it, or give up.

        Half of them were suspended after they had looked for a driver, and fence out the one that came meanwhile.
        """
        with suppress(PipelineBusyError, SessionLostError, StoreUnreachableError):
            async with self.world.store.session(timeout=6) as session:

                async def present() -> Session:
                    if session.state is SessionState.LOST:
                        raise StoreUnreachableError("lost")
                    return session

                alone = alone_with(session, "p", "somebody", self.chance.uniform(0, 20))
                async with alone if self.chance.random() < 0.5 else nullcontext():
                    node = await session.find("pipelines/p/definition")
                    if node is not None:
                        await Checkpoint(self.world.store, "p", present).begin(json.loads(node.data), "somebody")
                        self.restated += 1
                    if self.chance.random() < 0.5:
                        self.world.server.freeze(session)  # it dies: its node stays until the session is over
                    await asyncio.sleep(self.chance.uniform(0, 9))

    async def grow(self) -> None:
        for partition in LATER:
            await asyncio.sleep(self.chance.uniform(0, STORM / 2))
            self.there.append(partition)

    def _is_done(self) -> bool:
        of_pipeline = sum(
            end - start for b in self.published.values() for s in b.periods for start, end in s.ranges.values()
        )
        rest = {(p, n) for p, log in self.logs.items() if p.topic == "payments" for n in range(len(log))}
        return (
            of_pipeline == sum(len(log) for p, log in self.logs.items() if p.topic == "orders")
            and rest <= self.consumed
        )

    def _later(self, repair: object, *who: object) -> None:
        asyncio.get_running_loop().call_later(self.chance.uniform(0, 9), repair, *who)  # type: ignore[arg-type]

    async def reap(self) -> None:
        """The server's own clock."""
        while True:
            await asyncio.sleep(0.5)
            self.world.server.expire_overdue()

    # -- what came of it -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        assert self.faults == []
        orders = [p for p in self.logs if p.topic == "orders"]
        reached = dict.fromkeys(orders, 0)
        before = 0
        for number, batch in sorted(self.published.items()):
            for period in batch.periods:
                assert before <= period.start < period.end
                before = period.end
                for partition, (start, end) in period.ranges.items():
                    assert reached[partition] == start, f"{partition}: {reached[partition]}, then {start} in {number}"
                    stamps = self.logs[partition][start:end]
                    least = 0 if partition in LATER else period.start  # what is too late is in the next period
                    assert all(least <= ts < period.end for ts in stamps)
                    reached[partition] = end
        whole = {p: len(self.logs[p]) for p in orders}
        assert reached == whole or (self.stand_in and not self.follows)
        if not (self.stand_in or self.follows):  # else records of closed periods come once more, to the pipeline
            self.world.history.check({str(p): log for p, log in self.logs.items()}, one_owner=False)


class _KilledError(Exception):
    """A process ends in the middle of its work."""


class RecordSampler:
    """Stands for the one that measures records."""

    def __init__(self, _: object) -> None:
        pass

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        await asyncio.sleep(0.2)
        yield

    async def mean_size(self, _: object) -> None:
        return None


@pytest.mark.parametrize("follows", [False, True], ids=["bounded", "following"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_drivers_under_faults(
    world: World, seed: int, follows: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.CRITICAL)
    soak = Soak(world, seed, follows=follows)
    monkeypatch.setattr("aiokcc.spark.participant.boottime", world.time)
    monkeypatch.setattr(drivers, "SparkThread", lambda _: SparkThread(soak))
    monkeypatch.setattr(drivers, "RecordSampler", RecordSampler)
    monkeypatch.setattr(drivers, "choose_finder", lambda *_: Index(soak.logs))
    computation = SimpleNamespace(is_decided=True, stage=lambda sink, batch: sink.stage(batch, batch), one_by_one=False)
    monkeypatch.setattr(drivers, "Computation", lambda *_, **__: computation)
    stage = Pipeline._stage

    async def noted(pipeline: Pipeline, batch: Batch) -> object:
        soak.note(world.history.start, pipeline._participant.member.name, batch)
        return await stage(pipeline, batch)

    monkeypatch.setattr(Pipeline, "_stage", noted)
    others = EVERYTHING if soak.stand_in else Subscription.check("payments")
    reaper = asyncio.create_task(soak.reap())
    async with asyncio.timeout(STORM + CALM), asyncio.TaskGroup() as tasks:
        tasks.create_task(soak.storm())
        who = [(f"d{n}", PIPELINE, soak.drive) for n in range(DRIVERS)]
        who += [(f"c{n}", others, soak.consume) for n in range(CONSUMERS)]
        soak.processes = [tasks.create_task(soak.process(*one)) for one in who]
        if follows:
            tasks.create_task(soak.grow())
    await asyncio.sleep(20)  # until the sessions are over of which the server was not told
    reaper.cancel()
    await settle()
    assert follows or world.data("coordinator") == b"end"
    soak.check()
