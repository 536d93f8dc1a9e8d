"""Hands the records of one partition to the handler: in one task, in the order of the log, and none past the limit.

The inner loop of :meth:`PartitionConsumer._run_in_order` runs once per record, so it holds only the test of an open gate. Every
other case (the limit, a late record, an unusable timestamp, the session's deadline) goes through
:meth:`PartitionConsumer._admit`, and from there to :mod:`aiokcc.kafka.exceptional_records` where a policy decides.

With a bound on lateness the partition is read past the next boundary, and :mod:`aiokcc.kafka.lateness_buffer` holds the records
behind it back until no earlier one can come; under lookahead too, so each period of a partition is processed whole before its
next one begins. At the end of the log no further record shows how far time has come, so the clock is used there: the partition
no longer waits for a record that would be older than the bound by the clock.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from operator import length_hint
from typing import TYPE_CHECKING, Any

from aiokcc.core.limit import Mode
from aiokcc.core.marks import Span
from aiokcc.errors import HandlerError
from aiokcc.kafka.exceptional_records import ExceptionalRecords, catching, wait_until_owned
from aiokcc.kafka.handlers import check_result
from aiokcc.kafka.lateness_buffer import LatenessBuffer
from aiokcc.kafka.partition_feed import PartitionFeed
from aiokcc.runtime.timer import Timeout, timers
from aiokcc.stores.port import boottime

if TYPE_CHECKING:
    from aiokcc.core.limit import Limit
    from aiokcc.core.run import Bounds
    from aiokcc.kafka.consumer_policy import ConsumerPolicy
    from aiokcc.kafka.fetch_loop import FetchLoop
    from aiokcc.kafka.source_options import SourceOptions
    from aiokcc.kafka.summary import Summary
    from aiokcc.kafka.telemetry import PartitionTelemetry
    from aiokcc.runtime.gate import Gate
    from aiokcc.runtime.member import Member

__all__ = ["Handler", "PartitionConsumer"]

Handler = Callable[[Any], Awaitable[Any]]


class PartitionConsumer:
    """One partition of a replay, from the lists that were fetched to the handler."""

    def __init__(
        self,
        source: SourceOptions,
        policy: ConsumerPolicy,
        gate: Gate,
        bounds: Bounds,
        member: Member,
        summary: Summary,
        committed: int = 0,
    ) -> None:
        self.gate = gate
        self.partition = gate.partition
        self._member = member
        self._summary = summary
        self._timestamp_of = None if policy.timestamp is None else catching(policy.timestamp)
        self._lateness = policy.lateness.get(gate.partition.topic, 0)
        self._start = source.start if isinstance(source.start, int) else 0
        self.next_offset = int(max(bounds.start, gate.resume_offset or 0, committed))
        """The next offset to process: every record before it is done."""
        until = None
        if bounds.end is None and isinstance(source.end, int):  # the end lay in the future when the run was founded
            until = source.end + self._lateness
        self.feed = PartitionFeed(gate, member, self.next_offset, bounds.end, until)
        """The source of the records, filled by the fetch loop."""
        self._greatest = -1
        """The greatest usable timestamp seen."""
        self._exceptional = ExceptionalRecords(policy, gate, member, summary)
        self._buffer = LatenessBuffer(self._lateness, self.next_offset)
        """The records past the limit; empty without a bound on lateness."""
        self._wake_timer: Timeout | None = None
        self._handle_batch: Callable[[], Awaitable[None]] | None = None
        """Hands the gathered batch to the handler; called before this task waits for anything."""
        self._batch: list[Any] | None = None
        """The gathered batch; None if records are handled one by one."""
        self.fetch_loop: FetchLoop
        """Fills :attr:`feed`; set before :meth:`run`."""
        self.telemetry: PartitionTelemetry | None = None
        """Measures the lists of records, and has the span of the batch that is handled; None: nothing is measured."""

    # -- waiting for records --------------------------------------------------------------------------------------------

    async def _next_records(self) -> list[Any] | None:
        """Wait for the next records and return them; None when there are no more.

        Returns an empty list when records in the buffer need not wait for earlier ones any more.
        """
        feed, telemetry = self.feed, self.telemetry
        await self._end_batch()
        if telemetry is not None:
            telemetry.end_list()
        if not (feed.has_records or feed.complete or await self.fetch_loop.fetch_now(feed)):
            feed.waiting = True
            self.fetch_loop.wake()
            try:
                await self.gate.rest(self._can_continue, self._idle_position)
            finally:
                feed.waiting = False
        if feed.complete and not feed.has_records:
            return None
        if telemetry is not None:
            telemetry.begin_list()
        return feed.take()

    async def _end_batch(self) -> None:
        """End the batch of the handler; called before this task waits for anything."""
        if self._handle_batch is not None:
            await self._handle_batch()
        elif self.telemetry is not None and self.telemetry.span is not None:
            self.telemetry.span.end()

    def _can_continue(self) -> bool:
        feed = self.feed
        return feed.has_records or feed.complete or (bool(self._buffer) and self._expects_nothing_earlier())

    def _expects_nothing_earlier(self) -> bool:
        """True when the log holds no earlier record, and by the clock none should come."""
        limit = self._member.progress.limit
        return limit.mode is not Mode.GATED or (
            self.feed.end_seen == limit and self._buffer.watermark(self._now()) >= self.gate.progress.open_below
        )

    def _now(self) -> int:
        return max(self._greatest, self._member.clock())

    def _idle_position(self) -> tuple[Limit | None, int]:
        """Return the limit under which the partition is idle, None if it is not, and its position."""
        feed = self.feed
        if feed.until is not None:
            if feed.is_time_up(self._member.clock()):
                feed.end_seen = None  # it was seen before the end of the run: records may have come since
            elif not self._buffer:
                self._wake_at(feed.until)
        if feed.end_seen != self._member.progress.limit:
            self.fetch_loop.wake()
            return None, feed.position
        if self._buffer:  # not idle: the records in the buffer are due, at the latest when the clock says so
            self._wake_at(self.gate.progress.open_below + self._lateness)
            return None, feed.position
        return feed.end_seen, feed.position

    def _wake_at(self, ts: int) -> None:
        """Check the conditions again when the clock shows this time."""
        if self._wake_timer is not None:
            self._wake_timer.cancel()
        seconds = (ts - self._member.clock()) / 1000
        self._wake_timer = timers().call_later(max(0.001, seconds), self.gate.signal.set)

    # -- the loop that calls the handler --------------------------------------------------------------------------------

    async def run(self, handler: Callable[[Any], Any]) -> None:
        """Hand every record to the handler when it may be processed, until there are no more.

        Raises HandlerError or PoisonTimestampError as the policies say, and what the gate raises. If it is cancelled, the
        record or batch that was being handled counts as not processed.
        """
        handle: Handler = handler if inspect.iscoroutinefunction(handler) else _as_coroutine(handler)
        span = None if self.telemetry is None else self.telemetry.span
        if span is not None and self._handle_batch is None:
            handle = span.around_each(handle)
        try:
            if self._lateness:
                await self._run_with_lateness(handle)
            elif self._batch is not None:
                await self._gather_in_order(self._batch)
            else:
                await self._run_in_order(handle)
            await self._end_batch()
        finally:
            if span is not None:
                span.end()
            if self._wake_timer is not None:
                self._wake_timer.cancel()
        self.gate.finish(self.feed.position)

    async def run_batches(self, handler: Callable[[list[Any]], Any], *, internal: bool = False) -> None:
        """Hand the records to the handler in lists: each of this partition and one period, in the order of the log.

        ``internal``: the handler is part of this package. Its errors are not wrapped, and it counts the records itself.
        """
        batch: list[Any] = []
        if internal:
            self.telemetry = None  # the records are handled elsewhere
        span = None if self.telemetry is None else self.telemetry.span

        async def gather(record: Any) -> None:
            batch.append(record)

        async def handle_batch() -> None:
            if not batch:
                return
            records = batch.copy()
            done = self.next_offset
            if self._lateness:
                self.next_offset = min(done, *(record.offset for record in records))
            await wait_until_owned(self.gate, self.next_offset)
            batch.clear()
            try:
                with nullcontext() if span is None else span.around(records):
                    result = handler(records)
                    if inspect.isawaitable(result):
                        result = await result
            except Exception as error:
                if internal:
                    raise
                first = records[0]
                raise HandlerError(
                    f"the handler raised {error!r} on a batch of {len(records)} records from here",
                    first.topic,
                    first.partition,
                    first.offset,
                ) from error
            if not internal:
                check_result(result, records[0])
                self._summary.records += len(records)
            self.next_offset = done if self._lateness else records[-1].offset + 1

        self._handle_batch = handle_batch
        self._batch = batch
        await self.run(gather)

    async def may_start(self, record: Any) -> bool:
        """Return whether a record that passed the gate earlier may start now; waits while the lock is not safely ours."""
        if boottime() >= self.gate.session.stop_at:
            await wait_until_owned(self.gate, record.offset)
        return bool(record.offset >= (self.gate.resume_offset or 0))

    async def _run_in_order(self, handle: Handler) -> None:
        gate, progress, timestamp_of, summary = self.gate, self.gate.progress, self._timestamp_of, self._summary
        while (chunk := await self._next_records()) is not None:
            records, left_out = iter(chunk), 0
            try:
                for record in records:
                    ts = record.timestamp if timestamp_of is None else timestamp_of(record)
                    if not (
                        type(ts) is int
                        and progress.late_below <= ts < progress.open_below
                        and boottime() < gate.session.stop_at
                    ) and not await self._admit(record, ts):
                        left_out += 1
                        continue
                    try:
                        result = await handle(record)
                    except Exception as error:  # noqa: BLE001 - a handler may raise anything
                        if not await self._exceptional.retry(record, error, handle):
                            left_out += 1
                    else:
                        if result is not None:
                            check_result(result, record)
            except BaseException:
                summary.records += len(chunk) - length_hint(records) - 1 - left_out
                self.next_offset = record.offset
                raise
            if chunk:
                summary.records += len(chunk) - left_out
                self.next_offset = chunk[-1].offset + 1
            del chunk, records  # before the next list is made: its memory is still in the cache, and does not pile up

    async def _gather_in_order(self, batch: list[Any]) -> None:
        """Gather the records of each period in ``batch``. They start when it is handled, so the clock is read there."""
        progress, timestamp_of, gather = self.gate.progress, self._timestamp_of, batch.append
        while (chunk := await self._next_records()) is not None:
            for record in chunk:
                ts = record.timestamp if timestamp_of is None else timestamp_of(record)
                if (type(ts) is int and progress.late_below <= ts < progress.open_below) or await self._admit(
                    record, ts
                ):
                    gather(record)
            del chunk

    async def _run_with_lateness(self, handle: Handler) -> None:
        buffer, timestamp_of = self._buffer, self._timestamp_of
        while (chunk := await self._next_records()) is not None:
            for record in chunk:
                ts = await self._check_timestamp(
                    record, record.timestamp if timestamp_of is None else timestamp_of(record)
                )
                if ts is None or self._is_in_cut(ts, record.offset):
                    buffer.skip(record.offset)
                    self.next_offset = buffer.next_offset
                    continue
                self._greatest = max(self._greatest, ts)
                buffer.add(ts, record.offset, record)
                self.next_offset = buffer.next_offset
                await self._process_open(handle)
                await self._process_to_watermark(self._greatest, handle)
            if not self.feed.has_records:
                buffer.read_to = self.feed.position
            if not chunk:
                await self._process_to_watermark(self._now(), handle)
        while buffer:
            await self._wait_at_gate(buffer.oldest)
            await self._process_open(handle)

    async def _process_to_watermark(self, greatest: int, handle: Handler) -> None:
        """Cross boundary after boundary and process, as long as no record before the next one can come any more."""
        buffer, progress = self._buffer, self.gate.progress
        while buffer and (buffer.watermark(greatest) >= progress.open_below or buffer.oldest < progress.open_below):
            if buffer.oldest >= progress.open_below:
                await self._wait_at_gate(buffer.watermark(greatest))
            await self._process_open(handle)

    async def _wait_at_gate(self, ts: int) -> None:
        await self._end_batch()
        await self.gate.wait_until(ts, Span.of(self.next_offset, self._buffer.read_to))

    async def _process_open(self, handle: Handler) -> None:
        """Process the records in the buffer that lie before the next boundary, in the order of the log."""
        while taken := self._buffer.take_below(self.gate.progress.open_below):
            for ts, offset, record in taken:
                await self._process(ts, record, handle)
                self._buffer.mark_processed(offset)
                self.next_offset = self._buffer.next_offset

    async def _process(self, ts: int, record: Any, handle: Handler) -> None:
        gate, progress = self.gate, self.gate.progress
        self._raise_failure()
        if (
            ts < progress.late_below
            and self._member.progress.limit.mode is Mode.GATED
            and not await self._exceptional.admit_late(record, ts)
        ):
            return
        if not (progress.late_below <= ts < progress.open_below and boottime() < gate.session.stop_at):
            await self._wait_at_gate(ts)
            if self._is_in_cut(ts, record.offset):
                return
        handled = True
        try:
            result = await handle(record)
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            handled = await self._exceptional.retry(record, error, handle)
        else:
            check_result(result, record)
        if handled and self._handle_batch is None:
            self._summary.records += 1

    def _raise_failure(self) -> None:
        """Raise what the gate failed with, such as PartitionRevoked: the policies are then for the next owner to carry out."""
        if self.gate.failure is not None:
            raise self.gate.failure

    def _is_in_cut(self, ts: int, offset: int) -> bool:
        """Return whether the cut at which we resume holds the record already; see [resume at cut] in the protocol."""
        resume = self.gate.resume_offset
        return resume is not None and (
            offset < resume
            or (isinstance(resume, Span) and offset < resume.high and ts < self.gate.progress.late_below)
        )

    # -- the cases that the inner loop leaves out -----------------------------------------------------------------------

    async def _admit(self, record: Any, ts: Any) -> bool:
        """Wait until the record may be processed and return True. Returns False if it is not to be processed."""
        checked = await self._check_timestamp(record, ts)
        if checked is None:
            return False
        gate = self.gate
        gate.progress.offset = record.offset
        await self._end_batch()
        late = checked < gate.progress.late_below and self._member.progress.limit.mode is Mode.GATED
        if late and (
            self._is_in_cut(checked, record.offset) or not await self._exceptional.admit_late(record, checked)
        ):
            return False
        await gate.wait_until(checked, record.offset)
        return not self._is_in_cut(checked, record.offset)

    async def _check_timestamp(self, record: Any, ts: Any) -> int | None:
        """Return the record's timestamp if it is usable, or the one that the policy gives it; None: leave the record out.

        Raises PoisonTimestampError for an unusable one if the policy is ``"raise"``, and what the gate failed with.
        """
        self._raise_failure()
        ceiling = self._member.clock() + self._member.settings.ahead
        if type(ts) is int and 0 <= ts <= ceiling:
            if ts < self._start:
                self._exceptional.leave_out_before_start(record, ts)
                return None
            self._greatest = max(self._greatest, ts)
            return ts
        capped = max(self._greatest, self.gate.progress.late_below, 0)
        return await self._exceptional.replace_timestamp(record, ts, ceiling, capped)


def _as_coroutine(handler: Callable[[Any], Any]) -> Handler:
    async def handle(record: Any) -> Any:
        result = handler(record)
        return await result if inspect.isawaitable(result) else result

    return handle
