"""A driver: a replay in an asyncio program, from joining the group to the end of the run.

This module puts the parts of a pipeline together. The order of three steps matters. The driver first claims the locks of the
partitions, so that it does not fence out another driver of the same pipeline that is alive. Then it takes a new attempt, which
fences out a driver that lost its locks. Then the sink begins, and the first job may run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from aiokcc.core.limit import Mode
from aiokcc.core.partitions import Partition
from aiokcc.core.run import Bounds
from aiokcc.core.subscriptions import Subscription
from aiokcc.errors import (
    FencedError,
    GroupMismatchError,
    KafkaError,
    PartitionRevoked,
    RunEnded,
    SessionLostError,
    UsageError,
)
from aiokcc.exception_groups import unwrapped
from aiokcc.kafka.cluster import Cluster
from aiokcc.kafka.topic_discovery import discover, include_present
from aiokcc.runtime.group import Group, join
from aiokcc.runtime.metrics import observing
from aiokcc.spark.batch import Batch
from aiokcc.spark.batch_sizer import BatchSizer
from aiokcc.spark.checkpoint import Checkpoint
from aiokcc.spark.compute import Computation, Periods
from aiokcc.spark.finder_choice import choose_finder
from aiokcc.spark.from_scratch import check_from_scratch
from aiokcc.spark.function_version import VersionedFunction
from aiokcc.spark.job_metrics import JobMetrics
from aiokcc.spark.participant import Participant
from aiokcc.spark.pipeline import BatchStep, Pipeline
from aiokcc.spark.pipeline_options import PipelineOptions
from aiokcc.spark.planner import Planner
from aiokcc.spark.preflight import (
    check_run_published,
    check_topics,
    explain_kafka_error,
    explain_mismatch,
    forget_group,
)
from aiokcc.spark.progress import Line, Progress, Summary
from aiokcc.spark.record_sampler import RecordSampler
from aiokcc.spark.restating import wait_until_restated
from aiokcc.spark.security import check_sink_security
from aiokcc.spark.sinks import FunctionSink, KafkaSink, Sink
from aiokcc.spark.source import check_timestamp, find_late, read
from aiokcc.spark.spark_thread import SparkThread
from aiokcc.spark.standby import check_other_pipelines, claim_all, drive_in_turn
from aiokcc.spark.state import StatefulComputation, StateOptions
from aiokcc.stores.port import Session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["AsyncReplay", "open_driver"]

log = logging.getLogger("aiokcc.spark")


@asynccontextmanager
async def open_driver(options: PipelineOptions) -> AsyncIterator[AsyncReplay]:
    """Join the group, or found it, and give the replay; leave the group at the end of the block.

    From scratch, the group is founded again when the function and the sink are known and not refused.
    """
    source = options.source
    await anyio.to_thread.run_sync(check_timestamp, options.spark, options.timestamp, options.kafka_options)
    cluster = Cluster(source, options.group.connect_timeout)
    async with cluster.connected():
        everything = await cluster.partitions(await cluster.topics())
        check_topics(everything, source.partitions, options.subscription)

        async def resolve() -> Mapping[Partition, Bounds]:
            return await cluster.bounds(everything, options.policy, options.group.clock())

        if options.from_scratch and source.partitions is None:
            join_anew = partial(join, options.store, options.group, frozenset(everything), resolve)
            yield AsyncReplay(options, cluster, None, join_anew=join_anew)
            return
        joined = join(options.store, options.group, frozenset(everything), resolve)
        try:
            group = await joined.__aenter__()
        except RunEnded as ended:
            yield AsyncReplay(options, cluster, None, ended)
            return
        except GroupMismatchError as mismatch:
            async with _session(options) as session:
                await explain_mismatch(mismatch, options.store, session, options.name, options.define())
            raise
        try:
            yield AsyncReplay(options, cluster, group)
        except BaseException as error:
            if not await joined.__aexit__(type(error), error, error.__traceback__):
                raise
        else:
            await joined.__aexit__(None, None, None)


def _session(options: PipelineOptions) -> AbstractAsyncContextManager[Session]:
    group = options.group
    return options.store.session(timeout=group.session_timeout, connect_timeout=group.connect_timeout)


class AsyncReplay:
    """A replay in an asyncio program. Spark's calls run in a thread of their own."""

    def __init__(
        self,
        options: PipelineOptions,
        cluster: Cluster,
        group: Group | None,
        ended: RunEnded | None = None,
        join_anew: Callable[[], AbstractAsyncContextManager[Group]] | None = None,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self.group = group
        """This driver as a member of the group; None if the run had ended before, or from scratch before it is run."""
        self._ended = ended
        self._join_anew = join_anew
        """Founds the group from scratch; None if it was joined."""
        self._used = False
        self._state: StateOptions | None = None
        self.summary = Summary()
        self.after_step: Callable[[BatchStep, Batch], None] | None = None
        """Called after each step of each batch, in the event loop. For tests, which stop the driver there."""

    async def for_each_period(
        self,
        function: Callable[..., Any],
        sink: Sink | Callable[[DataFrame, Any], Any] | None = None,
        *,
        state: DataFrame | StructType | str | None = None,
        chain: int | None = None,
        keep_states: int | None = None,
    ) -> Summary:
        """Compute each period and publish it to the sink, once; return when the replay has reached its end.

        The function gets a frame and :class:`Periods`, and returns a frame. The frame has the columns of Spark's Kafka source
        and ``period``, the start of the row's period. **In catch-up one frame holds several periods: keep ``period`` in every
        groupBy, join and window.** Without a sink, the function itself writes the result; it must be idempotent, because it
        may be called again for the same periods.

        With ``state`` the function is called as ``function(frame, periods, state)`` and returns a pair: the result, and the
        state after these periods, which the next call gets. The sink, a ParquetSink or a DeltaSink in a directory, publishes
        both at once. A frame then holds one period, unless ``chain`` says otherwise. Periods without records leave the state
        as it is.

        :param state: the state before the first period: a DataFrame, or the columns of an empty one, such as
            ``"customer string, total bigint"``. The state that the function returns has the same columns. Once something is
            published, the published state counts, and only the columns of this one
        :param chain: the most periods that the function can take in one frame, 1 by default. If it is more, the result has the
            column ``period``, and the state is the one after the last of them
        :param keep_states: how many of the published states are kept, 24 by default: see :func:`aiokcc.spark.read_state`

        Cancelling stops the running job and leaves no period half published; started again, the pipeline continues there.
        """
        if self._used:
            raise UsageError("this replay has been run already; open another one")
        self._used = True
        if state is not None or chain is not None or keep_states is not None:
            self._state = await anyio.to_thread.run_sync(
                StateOptions.check, self._options.spark, function, sink, state, chain, keep_states
            )
            if self._state is not None and self._options.restates_late:
                raise UsageError(
                    'late="restate" and state= do not go together: a pipeline with state cannot be restated, so its late '
                    "records would wait for ever; leave late= out"
                )
        if sink is None:
            function, target = _same, _as_sink(function)
        else:
            target = _as_sink(sink)
        if isinstance(target, KafkaSink):
            source = self._options.source
            servers = source.bootstrap_servers.split(",")
            check_sink_security(source.consumer, servers, target.servers, target.options, self._options.spark)
        if self._options.restates_late and type(target).published is Sink.published:
            raise UsageError(f'late="restate" needs a ParquetSink or a DeltaSink, and the sink is {target.describe()}')
        if self._options.from_scratch and self._ended is None:
            await self._check_from_scratch(function, target)
        if self._join_anew is not None:
            async with _session(self._options) as session:
                await forget_group(self._options.store, session, 2 * session.timeout)
            async with self._join_anew() as group:
                self.group = group
                return await self._run(group, function, target)
        if self.group is None:
            await self._confirm_end(target)
            return self.summary
        return await self._run(self.group, function, target)

    async def _check_from_scratch(self, function: Callable[..., Any], target: Sink) -> None:
        spark_thread = SparkThread(self._options.spark)
        try:
            what = f"{self._options.name}: checks before a start from scratch"
            await spark_thread.job(what, check_from_scratch, self._options, function, target, self._state)
        finally:
            spark_thread.close()

    async def _run(self, group: Group, function: Callable[..., Any], target: Sink) -> Summary:
        """Run the pipeline as a member of the group, to its end."""
        options, source = self._options, self._options.source
        member = group.membership
        began = time.monotonic()
        participant = Participant(group, options.store_timeout)
        spark_thread, line = SparkThread(options.spark), Line()
        drive = partial(self._drive, participant, spark_thread, function, target, line)
        try:
            async with unwrapped() as tasks:
                if source.end is None:
                    tasks.start_soon(discover, source, self._cluster, group)
                if options.available_now and source.partitions is None:
                    await include_present(source, self._cluster, group)
                if options.subscription is None:
                    await drive(source.partitions or group.partitions)
                else:
                    await self._check_group(participant, options.subscription, target)
                    await drive_in_turn(participant, drive)
                    if participant.limit.mode is Mode.END and not participant.is_done:
                        await self._confirm_end(target)
                tasks.cancel_scope.cancel()
        finally:
            line.end()
            member.leave()  # in a managed group the released partitions then go to a driver that stands by
            with anyio.CancelScope(shield=True):
                await participant.close()
            spark_thread.close()
            self.summary.seconds += time.monotonic() - began
        return self.summary

    async def _drive(
        self,
        participant: Participant,
        spark_thread: SparkThread,
        function: Callable[..., Any],
        sink: Sink,
        line: Line,
        mine: frozenset[Partition],
    ) -> None:
        """Claim these partitions, fence out the previous driver, and continue where it stopped, to the end of the run."""
        options, source = self._options, self._options.source
        is_managed = options.subscription is not None
        member = participant.member
        sampler = RecordSampler(source)
        finder = choose_finder(options, self._cluster, spark_thread, participant, sampler)
        checkpoint = Checkpoint(member.store, options.name, participant.session)
        sizer = BatchSizer(options.max_periods, options.target_seconds, options.max_bytes)
        frames = partial(
            read,
            options.spark,
            bootstrap_servers=source.bootstrap_servers,
            options={"kafka.isolation.level": source.isolation_level, **options.kafka_options},
            timestamp=options.timestamp,
            lateness=options.policy.lateness or None,
            start=source.start if isinstance(source.start, int) else None,
            on_time=options.restates_late,
        )
        versioned = VersionedFunction(function, options.version)
        late = partial(find_late, *frames.args, period=options.group.settings.period, **frames.keywords)
        on_progress = options.progress if callable(options.progress) else line.show
        if options.progress is False:
            on_progress = _ignore
        planner = Planner(
            participant,
            finder,
            sizer,
            period=options.group.settings.period,
            start=source.start if isinstance(source.start, int) else 0,
            end=source.end if isinstance(source.end, int) else None,
            lateness=options.policy.lateness,
            alone=source.partitions is None and not is_managed,
            clock=options.group.clock,
        )
        computation: Computation | StatefulComputation
        if self._state is None:
            one_by_one = options.max_periods == 1
            computation = Computation(versioned, frames, keeps_periods=options.keeps_periods, one_by_one=one_by_one)
        else:
            computation = StatefulComputation(versioned, frames, self._state)
            sizer.max_periods = min(sizer.max_periods, self._state.chain)
        metrics = JobMetrics(member.measurements.labels, options.name, self.summary)
        pipeline = Pipeline(
            participant,
            planner,
            checkpoint,
            finder,
            spark_thread,
            computation,
            sink,
            sizer,
            self.summary,
            grows=source.end is None and (is_managed or source.partitions is None),
            retries=options.retries,
            start=source.start if isinstance(source.start, int) else None,
            accept_deleted=options.accept_deleted,
            sample=sampler.mean_size,
            on_progress=on_progress,
            after=self.after_step,
            until=options.group.clock() if options.available_now else None,
            function=versioned,
            metrics=metrics,
            find_late=late if options.restates_late else None,
        )
        async with sampler.open():
            # The locks first: a driver of this pipeline that is alive must not be fenced out.
            await (claim_all(participant, mine) if is_managed else participant.open(mine))
            definition = self._definition(sink)
            past = await spark_thread.call(sink.last_attempt, options.name) if options.from_scratch else 0
            await checkpoint.begin(
                definition,
                member.name,
                from_scratch=options.from_scratch,
                past=past,
                ready=partial(_ready, participant, options.name),
            )
            try:
                sink.identify(checkpoint.run, member.store.describe(""))
                if options.from_scratch:
                    await spark_thread.call(sink.reset, options.name, checkpoint.attempt)
                elif checkpoint.filled is not None:
                    await spark_thread.call(sink.check_published, options.name, checkpoint.filled)
                await spark_thread.call(sink.begin, options.name, checkpoint.attempt)
                with observing(metrics.observe):
                    await pipeline.run()
            except FencedError as fenced:
                if is_managed and await checkpoint.is_superseded():  # else the sink has refused us
                    raise PartitionRevoked(str(fenced)) from fenced
                raise
            except KafkaError as error:
                pending = checkpoint.pending
                needed = {} if pending is None else pending.batch(options.name).ranges
                is_followed = is_managed and source.end is None
                await explain_kafka_error(
                    error, self._cluster, participant, {p.topic for p in needed}, options.name, is_followed
                )
                raise

    async def _check_group(self, participant: Participant, subscription: Subscription, sink: Sink) -> None:
        """Raise an error if the pipeline conflicts with others of the group, or with the definition of its name."""
        member = participant.member
        checkpoint = Checkpoint(member.store, self._options.name, participant.session)
        while True:
            session = await participant.session()
            member_session = member.member_session
            if member_session is not None:
                try:
                    replays = self._options.source.replays
                    await check_other_pipelines(member.store, session, member_session.name, subscription, replays)
                    await checkpoint.check(session, self._definition(sink))
                except SessionLostError:
                    continue
                break
            await member.moved.wait()
        agreed = member.settings.partitions
        if self._options.source.end is not None and not participant.whole(agreed):
            raise UsageError(
                f"the group was founded with {', '.join(sorted({p.topic for p in agreed}))}, and none of it is for this "
                f"pipeline, which takes {subscription}"
            )

    async def _confirm_end(self, sink: Sink) -> None:
        """Return if the pipeline has published all of the ended run; raise RunEnded otherwise, or with from_scratch."""
        options = self._options
        if self._ended is not None and options.from_scratch:
            raise self._ended
        async with _session(options) as session:

            async def present() -> Session:
                return session

            checkpoint = Checkpoint(options.store, options.name, present)
            is_complete = await checkpoint.is_complete(self._definition(sink))
            if options.subscription is None and not is_complete:
                assert self._ended is not None
                raise self._ended
            await check_run_published(options.store, session, self._covers, checkpoint)
            sink.identify(checkpoint.run, options.store.describe(""))
            if checkpoint.filled is not None:
                await anyio.to_thread.run_sync(sink.check_published, options.name, checkpoint.filled)
            if checkpoint.intent is not None:
                self.summary.event_time = checkpoint.intent.periods[-1][1]
            log.info("%s: everything is published already", options.name)

    def _covers(self, partition: Partition) -> bool:
        """Return whether the pipeline runs this partition of the group."""
        options = self._options
        if options.subscription is not None:
            return options.subscription.covers(partition)
        return options.source.partitions is None or partition in options.source.partitions

    def _definition(self, sink: Sink) -> dict[str, Any]:
        """Return the definition that is recorded for the pipeline's name."""
        state = {} if self._state is None else {"state": self._state.columns}
        return {**self._options.define(), "sink": sink.describe(), **state}


async def _ready(participant: Participant, name: str) -> None:
    """Return when this driver may take over: it owns its partitions, and nobody restates the pipeline."""
    while True:
        await participant.ready()
        try:
            return await wait_until_restated(await participant.session(), name)
        except SessionLostError:
            continue


def _as_sink(sink: Sink | Callable[[DataFrame, Any], Any]) -> Sink:
    if isinstance(sink, Sink):
        return sink
    return FunctionSink(sink)


def _same(frame: DataFrame, _periods: Periods) -> DataFrame:
    return frame


def _ignore(_progress: Progress) -> None:
    pass
