"""The pipeline computes batch after batch, in the order of event time, in step with the group.

The steps of a batch, by name:

``planned``       it is decided which periods it holds, and where their ends lie in the logs
``intended``      it is recorded in the store, and its offsets are never resolved again
``staged``        the Spark job has run. Readers do not see its result yet, so it may run while the intent is recorded
``published``     the sink has made it visible, all at once and idempotently
``checkpointed``  it is recorded as published
``reported``      the crossings of its boundaries are reported for all partitions: the limit may move

A driver may die after any step. Its successor takes a new attempt, which fences it out, and carries out the recorded batch
again unless the sink says that it is published. So a period is published once, from exactly the offsets that were recorded.
A batch without records needs no job, but is recorded like any other.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from aiokcc.core.limit import Mode
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import format_time
from aiokcc.errors import AiokccError, KafkaError, SparkJobError
from aiokcc.exception_groups import unwrapped
from aiokcc.spark.batch import Batch, LateRecords
from aiokcc.spark.batch_sizer import BatchSizer
from aiokcc.spark.checkpoint import Checkpoint
from aiokcc.spark.compute import Computation
from aiokcc.spark.finder import Finder
from aiokcc.spark.function_version import VersionedFunction
from aiokcc.spark.job_errors import first_line, is_permanent
from aiokcc.spark.job_metrics import JobMetrics
from aiokcc.spark.participant import Participant
from aiokcc.spark.plan import Intent
from aiokcc.spark.planner import Plan, Planner
from aiokcc.spark.preflight import check_not_deleted, check_start, deleted_error
from aiokcc.spark.progress import Progress, Summary
from aiokcc.spark.sinks import Sink
from aiokcc.spark.source import offsets_text, poison_in
from aiokcc.spark.spark_thread import SparkThread, is_stopped
from aiokcc.spark.state import StatefulComputation

__all__ = ["BatchStep", "Pipeline"]

log = logging.getLogger("aiokcc.spark")


class BatchStep(enum.Enum):
    """The last step that was completed for a batch."""

    PLANNED = "planned"
    INTENDED = "intended"
    STAGED = "staged"
    PUBLISHED = "published"
    CHECKPOINTED = "checkpointed"
    REPORTED = "reported"


class Pipeline:
    """Plans, computes and publishes batches until the run ends."""

    def __init__(
        self,
        participant: Participant,
        planner: Planner,
        checkpoint: Checkpoint,
        finder: Finder,
        spark_thread: SparkThread,
        computation: Computation | StatefulComputation,
        sink: Sink,
        sizer: BatchSizer,
        summary: Summary,
        *,
        grows: bool,
        retries: int,
        start: int | None = None,
        accept_deleted: bool = False,
        sample: Callable[[Mapping[Partition, tuple[int, int]]], Awaitable[float | None]],
        on_progress: Callable[[Progress], None],
        after: Callable[[BatchStep, Batch], None] | None,
        until: int | None = None,
        function: VersionedFunction | None = None,
        metrics: JobMetrics | None = None,
        find_late: Callable[[Batch], tuple[LateRecords, ...]] | None = None,
    ) -> None:
        self._participant = participant
        self._planner = planner
        self._checkpoint = checkpoint
        self._finder = finder
        self._spark_thread = spark_thread
        self._computation = computation
        self._sink = sink
        self._sizer = sizer
        self._summary = summary
        self._grows = grows
        self._retries = retries
        self._start = start
        """The time at which the run starts; None if it starts where the logs begin."""
        self._accept_deleted = accept_deleted
        self._sample = sample
        self._on_progress = on_progress
        self._after = after or _nothing
        """Called after each step; tests stop the driver there."""
        self._until = until
        """The clock at the start, if only periods that were closed by then are to be published; None to go on."""
        self._function = function
        """The function that the computation calls; None if nothing is to be recorded of it."""
        self._find_late = find_late
        """Finds the late records of a batch, if they are to be listed."""
        self._late: tuple[LateRecords, ...] = ()
        """The late records of the batch that was staged last."""
        self._began = time.monotonic()
        self._metrics = metrics

    async def run(self) -> None:
        """Continue after what is published, and return when the run has ended or all partitions are finished.

        Under ``until``, return when every period that was closed by then is published.
        """
        participant, planner, checkpoint = self._participant, self._planner, self._checkpoint
        participant.check()
        await self._resume()
        tracks = participant.tracks.values()
        await check_not_deleted(self._finder, tracks, checkpoint.name)
        if checkpoint.intent is None and self._start is not None:
            await check_start(self._finder, tracks, self._start, accept=self._accept_deleted)
        async with unwrapped() as tasks:
            tasks.start_soon(self._measure)
            await planner.find_next_records(participant.limit)
            await planner.look_ahead()
        while True:
            participant.check()
            await self._grow()
            limit = participant.limit
            if limit.mode is Mode.END:
                break
            await planner.find_next_records(limit)
            planner.report(limit)
            if all(track.is_finished for track in participant.tracks.values()):
                await participant.wait_until_settled()
                break
            if self._until is not None and planner.has_published_until(self._until):
                participant.leave_the_rest()
                break
            plan = await planner.plan(checkpoint.published + 1, limit)
            if plan is None:
                await participant.moved(planner.seconds_to_next_look())
                continue
            batch = plan.intent.batch(checkpoint.name)
            if await self._is_to_be_split(batch):
                continue  # planned again, with fewer periods
            self._after(BatchStep.PLANNED, batch)
            await participant.ready()
            async with unwrapped() as tasks:
                tasks.start_soon(planner.look_ahead, plan)
                await self._carry_out(batch, plan.intent)
                await self._conclude(plan, batch)
                if len(batch.periods) > 1:
                    await self._measure()
        participant.check()

    async def _resume(self) -> None:
        """Carry out the batch that our predecessor had recorded, unless it is published, and continue behind it."""
        intent = self._checkpoint.intent
        if intent is None:
            return
        batch = intent.batch(self._checkpoint.name)
        if self._checkpoint.pending is not None:
            await self._participant.ready()
            there = await self._spark_thread.call(self._sink.is_published, batch)
            log.info(
                "%s: batch %d was decided before and %s",
                batch.pipeline,
                batch.number,
                "is published" if there else "is done as it was recorded",
            )
            if there:
                self._after(BatchStep.PUBLISHED, batch)
            else:
                await self._carry_out(batch)
        await self._conclude(Plan(intent), batch, again=self._checkpoint.pending is None)

    async def _grow(self) -> None:
        """Open the partitions that have joined the set since."""
        if self._grows and (new := self._participant.unopened):
            await self._participant.open(new)

    async def _measure(self) -> None:
        """Measure the size of records where the next batch begins."""
        tracks = self._participant.tracks.values()
        rest = {t.partition: (t.place.low, t.place.low + 1 if t.bounds.end is None else t.bounds.end) for t in tracks}
        size = await self._sample(rest)
        if size is not None:
            self._sizer.record_size(size)

    async def _is_to_be_split(self, batch: Batch) -> bool:
        """Decide before the first batch is recorded whether jobs hold one period. Return whether this batch has too many."""
        if self._computation.is_decided:
            return False

        def prepare() -> None:
            try:
                self._computation.prepare(batch)
            except AiokccError:
                raise
            except Exception as error:  # noqa: BLE001 - a function of the user may raise anything
                log.debug("the function failed, and is called again for the job: %r", error)

        await self._spark_thread.job(self._describe(batch), prepare)
        if not self._computation.one_by_one or self._sizer.max_periods == 1:
            return False
        self._sizer.max_periods = 1
        return sum(1 for period in batch.periods if period.ranges) > 1

    # -- one batch ------------------------------------------------------------------------------------------------------

    async def _carry_out(self, batch: Batch, intent: Intent | None = None) -> None:
        """Compute and publish a batch; retry a failed job. Raise SparkJobError after too many failures, with nothing visible.

        ``intent`` is recorded before a reader can see anything of the batch. It is None if it was recorded before.
        """
        failures = 0
        while True:
            began = time.monotonic()
            staged, error = await self._intend_and_stage(batch, intent)
            intent = None
            if error is None:
                self._after(BatchStep.STAGED, batch)
                await self._record_function(batch)
                await self._checkpoint.confirm()
                try:
                    await self._spark_thread.call(self._sink.publish, replace(batch, late=self._late), staged)
                except Exception as raised:  # noqa: BLE001 - a sink may raise anything
                    error = raised
                else:
                    self._learn(batch, time.monotonic() - began)
                    self._after(BatchStep.PUBLISHED, batch)
                    return
            failures += 1
            await self._failed(batch, error, failures)

    async def _intend_and_stage(self, batch: Batch, intent: Intent | None) -> tuple[object | None, Exception | None]:
        """Return the staged result, or the error. If staging shows nothing to readers, record the intent meanwhile."""
        if intent is None:
            return await self._try_to_stage(batch)
        if batch.is_empty or not getattr(self._sink, "exactly_once", False):
            await self._intend(intent, batch)
            return await self._try_to_stage(batch)
        async with unwrapped() as tasks:
            tasks.start_soon(self._intend, intent, batch)
            staged = await self._try_to_stage(batch)
        return staged  # noqa: RET504 - not before the intent is recorded

    async def _intend(self, intent: Intent, batch: Batch) -> None:
        await self._checkpoint.record_intent(intent)
        self._after(BatchStep.INTENDED, batch)

    async def _try_to_stage(self, batch: Batch) -> tuple[object | None, Exception | None]:
        try:
            return await self._stage(batch), None
        except Exception as error:  # noqa: BLE001 - a function of the user may raise anything
            return None, error

    async def _record_function(self, batch: Batch) -> None:
        if self._function is not None:
            self._sink.computed_by(self._function.known)
            if not batch.is_empty:
                await self._checkpoint.record_function(self._function.known, batch.number)

    async def _failed(self, batch: Batch, error: Exception, failures: int) -> None:
        """Return if the job may be tried again; raise the error otherwise."""
        await self._checkpoint.record_error(batch.number, first_line(error))
        if isinstance(error, AiokccError):
            raise error
        periods = f"{format_time(batch.start)} to {format_time(batch.end)}"
        if is_stopped(self._spark_thread.spark):
            raise SparkJobError(
                f"the Spark session was stopped while the job for {periods} of pipeline {batch.pipeline!r} ran; the limit has "
                f"not passed it. Started again with another session, the pipeline continues there",
                batch.pipeline,
                batch.start,
                batch.end,
            ) from error
        await self._check_log(batch, error)
        if failures > self._retries or is_permanent(error):
            times = "failed" if failures == 1 else f"failed {failures} times, the last time"
            raise SparkJobError(
                f"the job for {periods} of pipeline {batch.pipeline!r} {times} with "
                f"{first_line(error)}; the limit has not passed it. Started again, the pipeline continues there. "
                f"{offsets_text(batch)}",
                batch.pipeline,
                batch.start,
                batch.end,
            ) from error
        self._summary.retried += 1
        log.warning("%s: the job for %s failed, trying again: %s", batch.pipeline, periods, first_line(error))

    async def _stage(self, batch: Batch) -> object | None:
        self._late = ()
        if batch.is_empty:
            return None

        def run() -> object:
            if self._find_late is not None:
                self._late = self._find_late(batch)
            return self._computation.stage(self._sink, batch)

        return await self._spark_thread.job(self._describe(batch), run)

    def _describe(self, batch: Batch) -> str:
        """Return what Spark's web page shows for the jobs of this batch."""
        return (
            f"{batch.pipeline} batch {batch.number}, {format_time(batch.start)} to {format_time(batch.end)}, "
            f"attempt {self._checkpoint.attempt}"
        )

    async def _check_log(self, batch: Batch, error: Exception) -> None:
        """Raise an error at once if the job failed because of a bad or a deleted record: it would always fail."""
        poison = poison_in(error)
        if poison is not None:
            raise poison from error
        wanted = {partition: start for partition, (start, _) in batch.ranges.items()}
        try:
            begins = await self._finder.begins(wanted)
        except KafkaError as gone:  # the likely reason; the job's own error is its cause
            raise gone from error
        for partition, begin in begins.items():
            if begin > wanted[partition]:
                what = f"{format_time(batch.start)} to {format_time(batch.end)} of pipeline {batch.pipeline!r}"
                raise deleted_error(partition, wanted[partition], begin, what) from error

    async def _conclude(self, plan: Plan, batch: Batch, *, again: bool = False) -> None:
        """Record that the batch is published, and only then report its crossings."""
        if not again:
            await self._checkpoint.record_published(batch.number, has_records=not batch.is_empty)
            self._after(BatchStep.CHECKPOINTED, batch)
        self._planner.record_published(plan)
        self._planner.report(self._participant.limit)
        if not again:
            self._after(BatchStep.REPORTED, batch)
            self._tell(plan.intent, batch)

    def _learn(self, batch: Batch, seconds: float) -> None:
        full = sum(1 for period in batch.periods if period.ranges)
        if full:
            self._summary.jobs += 1
            if self._metrics is not None:
                self._metrics.record_job(full, seconds)
            log.info(
                "%s batch %d: %s to %s, %d of %d periods with records, in %.2f s; %s",
                batch.pipeline,
                batch.number,
                format_time(batch.start),
                format_time(batch.end),
                full,
                len(batch.periods),
                seconds,
                offsets_text(batch),
            )
        if self._computation.one_by_one:
            self._sizer.max_periods = 1
        self._sizer.record_job(full, seconds)

    def _tell(self, intent: Intent, batch: Batch) -> None:
        summary = self._summary
        summary.periods += len(batch.periods)
        summary.records += intent.records
        summary.event_time = batch.end
        seconds = time.monotonic() - self._began
        rate = summary.records / seconds if seconds > 0 else 0.0
        tracks = self._participant.tracks.values()
        done = left = None
        if all(track.bounds.end is not None for track in tracks):
            whole = sum((track.bounds.end or 0) - track.bounds.start for track in tracks)
            rest = sum((track.bounds.end or 0) - track.place.high for track in tracks)
            done = 1.0 if whole <= 0 else (whole - rest) / whole
            left = rest / rate if rate > 0 else None
        self._on_progress(
            Progress(
                batch.pipeline,
                summary.periods,
                summary.jobs,
                summary.records,
                batch.end,
                seconds,
                rate,
                done,
                left,
                {str(track.partition): track.place.low for track in sorted(tracks, key=lambda track: track.partition)},
            )
        )


def _nothing(_step: BatchStep, _batch: Batch) -> None:
    pass
