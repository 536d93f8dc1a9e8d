"""A partition's records on their way to the handler: one task, in the order of the log, up to the limit and no further.

The inner loop is the price of a record, so it holds nothing but the test of an open gate. Whatever is out of the ordinary
(the limit, a late record, a timestamp that cannot be one, the deadline) goes through :meth:`Stream._admit`.

With a bound on lateness the stream reads on past the limit until nothing earlier can come, and holds back what lies past it. It
stands at its *watermark*: the oldest record held back, or the greatest timestamp seen less the bound, whichever is smaller.
At the end of the log there is no next record to tell the time, so there the clock does: what would be older than the bound by
the clock is not waited for any longer.
"""

from __future__ import annotations

import heapq
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from operator import itemgetter, length_hint
from typing import TYPE_CHECKING, Any

from aiokafka import TopicPartition

from aiokcc.core.limit import Mode
from aiokcc.core.periods import MAX_TIMESTAMP, format_duration, format_time
from aiokcc.core.report import Span
from aiokcc.errors import HandlerError, PoisonTimestampError
from aiokcc.runtime.timer import Timeout, timers
from aiokcc.stores.port import boottime

if TYPE_CHECKING:
    from aiokcc.core.limit import Limit
    from aiokcc.core.run import Bounds
    from aiokcc.kafka.fetch_loop import FetchLoop
    from aiokcc.kafka.replay import Summary
    from aiokcc.kafka.settings import ReplaySettings
    from aiokcc.runtime.gate import Gate
    from aiokcc.runtime.member import Member

__all__ = ["Handler", "PartitionConsumer"]

log = logging.getLogger("aiokcc.kafka")

Handler = Callable[[Any], Awaitable[None]]


class PartitionConsumer:
    """One partition of a replay."""

    def __init__(
        self,
        settings: ReplaySettings,
        gate: Gate,
        bounds: Bounds,
        member: Member,
        summary: Summary,
        committed: int = 0,
    ) -> None:
        self.gate = gate
        self.partition = gate.partition
        self.tp = TopicPartition(*gate.partition)
        self._settings = settings
        self._member = member
        self._summary = summary
        self._stamp = None if settings.timestamp is None else _guarded(settings.timestamp)
        self._lateness = settings.lateness.get(gate.partition.topic, 0)
        self._from = settings.start if isinstance(settings.start, int) else 0
        self._end = bounds.end
        self._until = settings.end if bounds.end is None and isinstance(settings.end, int) else None
        """The end, where it was still to come when the run was founded: the clock tells when it has."""
        self._log_end = bounds.end or 0
        """The log is known to reach this far: no need to ask before we are there."""
        self.position = int(max(bounds.start, gate.resume_offset or 0, committed))
        """The next offset to fetch."""
        self.next_offset = self.position
        """The next offset to process: everything before it is done."""
        self._fed: list[Any] = []
        """Fetched records that nobody has looked at yet. More are asked for when there are none."""
        self._waiting = False
        self._end_seen: Limit | None = None
        self._greatest = -1
        self._held: list[tuple[int, int, Any]] = []
        """A heap of records past the limit, with timestamp and offset; only under a bound on lateness."""
        self._open: deque[int] = deque()
        """The offsets of records read and not processed, in their order; some behind the first may be processed."""
        self._processed: set[int] = set()
        """Those."""
        self._read_to = self.position
        """The next offset to look at: what is before it was processed, is held back, or was left out."""
        self._alarm: Timeout | None = None
        self._flush: Callable[[], Awaitable[None]] | None = None
        """Hands on what a batch has gathered; called before the stream waits for anything."""
        self.pump: FetchLoop
        """Where records come from; set by whoever starts the stream."""

    # -- the pump's side ------------------------------------------------------------------------------------------------

    @property
    def end(self) -> int | None:
        """The offset behind the last record of the run, where it is known."""
        return self._end

    @property
    def complete(self) -> bool:
        """Whether everything up to the run's end has been fetched."""
        return self._end is not None and self.position >= self._end

    @property
    def hungry(self) -> bool:
        """Whether it waits for records."""
        return self._waiting and not self._fed and not self.complete

    @property
    def wants_end(self) -> bool:
        """Whether it would help to know if the log holds nothing more, under the present limit."""
        return self.hungry and self._end_seen != self._member.progress.limit and self.position >= self._log_end

    def feed(self, records: list[Any]) -> None:
        """Fetched records, in the order of the log."""
        self.position = records[-1].offset + 1
        if self._end is not None and self.position > self._end:
            records = [record for record in records if record.offset < self._end]
            self.position = self._end
        self._fed = [*self._fed, *records] if self._fed else records
        if self._waiting:
            self.gate.signal.set()

    def moved_to(self, position: int) -> None:
        """The consumer's position, which passes gaps in the offsets that no record tells of."""
        if self._end is not None:
            position = min(position, self._end)
        if position > self.position and not self._fed:
            self.position = position
            self.gate.signal.set()

    def log_ends_at(self, offset: int, as_of: object, asked_at: int) -> None:
        """Take note of where the log ended, looked up after this limit was seen and when the clock showed ``asked_at``.

        What comes between question and answer is not in the answer, so the clock as it was then decides about the run's end.
        """
        self._log_end = max(self._log_end, offset)
        if self.hungry and self.position >= offset:
            if self._is_time_up(asked_at):
                self._end = self.position
            self._end_seen = as_of  # type: ignore[assignment]
            self.gate.signal.set()

    async def _take(self) -> list[Any] | None:
        """The next records; none for now, where those held back need no longer wait for any; None when there will be none."""
        if self._flush is not None:
            await self._flush()
        if not (self._fed or self.complete or await self.pump.pull(self)):
            self._waiting = True
            self.pump.wake()
            try:
                await self.gate.rest(self._is_fed, self._where_it_ends)
            finally:
                self._waiting = False
        if not self._fed:
            return None if self.complete else []
        records, self._fed = self._fed, []
        return records

    def _is_fed(self) -> bool:
        return bool(self._fed) or self.complete or (bool(self._held) and self._is_ripe())

    def _is_ripe(self) -> bool:
        """Whether those held back need not wait for earlier ones: the log has none, and by the clock none should come."""
        limit = self._member.progress.limit
        return limit.mode is not Mode.GATED or (self._end_seen == limit and self._watermark(self._now()) >= limit.value)

    def _now(self) -> int:
        return max(self._greatest, self._member.clock())

    def _is_time_up(self, now: int) -> bool:
        return self._until is not None and now >= self._until + self._lateness

    def _where_it_ends(self) -> tuple[Limit | None, int]:
        if self._until is not None:
            if self._is_time_up(self._member.clock()):
                self._end_seen = None  # what was seen before does not tell what came until now
            elif not self._held:
                self._wake_at(self._until + self._lateness)
        if self._end_seen != self._member.progress.limit:
            self.pump.wake()
            return None, self.position
        if self._held:  # not idle: it has something to bring, at the latest when the clock says so
            self._wake_at(self.gate.limit + self._lateness)
            return None, self.position
        return self._end_seen, self.position

    def _wake_at(self, ts: int) -> None:
        """Look again when the clock shows this."""
        if self._alarm is not None:
            self._alarm.cancel()
        seconds = (ts - self._member.clock()) / 1000
        self._alarm = timers().call_later(max(0.001, seconds), self.gate.signal.set)

    # -- the handler's side ---------------------------------------------------------------------------------------------

    async def run(self, handler: Callable[[Any], Any]) -> None:
        """Hand every record to the handler when it may be processed, until there are no more."""
        handle: Handler = handler if inspect.iscoroutinefunction(handler) else _awaited(handler)
        try:
            if self._lateness:
                await self._run_holding(handle)
            else:
                await self._run_in_order(handle)
            if self._flush is not None:
                await self._flush()
        finally:
            if self._alarm is not None:
                self._alarm.cancel()
        self.gate.finish(self.position)

    async def run_batches(self, handler: Callable[[list[Any]], Any], *, bare: bool = False) -> None:
        """Hand the records on in lists: each of this partition and one period, in the order of the log.

        ``bare``: the handler is ours, and its errors are not the user's; it also counts the records that were handled.
        """
        batch: list[Any] = []

        async def gather(record: Any) -> None:
            batch.append(record)

        async def flush() -> None:
            if not batch:
                return
            records = batch.copy()
            done = self.next_offset
            if self._lateness:
                self.next_offset = min(done, *(record.offset for record in records))
            await self._still_ours(self.next_offset)
            batch.clear()
            try:
                result = handler(records)
                if inspect.isawaitable(result):
                    await result
            except Exception as error:
                if bare:
                    raise
                first = records[0]
                raise HandlerError(
                    f"the handler raised {error!r} on a batch of {len(records)} records from here",
                    first.topic,
                    first.partition,
                    first.offset,
                ) from error
            if not bare:
                self._summary.records += len(records)
            self.next_offset = done if self._lateness else records[-1].offset + 1

        self._flush = flush
        await self.run(gather)

    async def may_start(self, record: Any) -> bool:
        """Whether to start on a record that was let through some time ago; waits while the lock is not safely ours."""
        if boottime() >= self.gate.session.stop_at:
            await self._still_ours(record.offset)
        return bool(record.offset >= (self.gate.resume_offset or 0))

    async def _run_in_order(self, handle: Handler) -> None:
        gate, progress, stamp, summary = self.gate, self.gate.progress, self._stamp, self._summary
        while (chunk := await self._take()) is not None:
            records, left_out = iter(chunk), 0
            try:
                for record in records:
                    ts = record.timestamp if stamp is None else stamp(record)
                    if not (
                        type(ts) is int
                        and progress.late_below <= ts < progress.open_below
                        and boottime() < gate.session.stop_at
                    ) and not await self._admit(record, ts):
                        left_out += 1
                        continue
                    try:
                        await handle(record)
                    except Exception as error:  # noqa: BLE001 - a handler may raise anything
                        if not await self._failed(record, error, handle):
                            left_out += 1
            except BaseException:
                if self._flush is None:  # otherwise whoever gets the lists counts them
                    summary.records += len(chunk) - length_hint(records) - 1 - left_out
                    self.next_offset = record.offset
                raise
            if self._flush is None and chunk:
                summary.records += len(chunk) - left_out
                self.next_offset = chunk[-1].offset + 1
            del chunk, records  # before others are made: the memory is still in the cache, and nothing piles up

    async def _run_holding(self, handle: Handler) -> None:
        stamp = self._stamp
        while (chunk := await self._take()) is not None:
            for record in chunk:
                ts = await self._sound(record, record.timestamp if stamp is None else stamp(record))
                self._read_to = record.offset + 1
                if ts is None or self._is_behind_the_cut(ts, record.offset):
                    self.next_offset = self._open[0] if self._open else self._read_to
                    continue
                self._greatest = max(self._greatest, ts)
                heapq.heappush(self._held, (ts, record.offset, record))
                self._open.append(record.offset)
                self.next_offset = self._open[0]
                await self._let_pass(handle)
                await self._wait_while_nothing_earlier_can_come(self._greatest, handle)
            self._read_to = self.position if not self._fed else self._read_to
            if not chunk:
                await self._wait_while_nothing_earlier_can_come(self._now(), handle)
        while self._held:
            await self._wait_at(self._held[0][0])
            await self._let_pass(handle)

    async def _wait_while_nothing_earlier_can_come(self, greatest: int, handle: Handler) -> None:
        while self._held and (self._watermark(greatest) >= self.gate.limit or self._held[0][0] < self.gate.limit):
            if self._held[0][0] >= self.gate.limit:
                await self._wait_at(self._watermark(greatest))
            await self._let_pass(handle)

    def _watermark(self, greatest: int) -> int:
        oldest = self._held[0][0] if self._held else MAX_TIMESTAMP
        return max(0, min(oldest, greatest - self._lateness))

    async def _wait_at(self, ts: int) -> None:
        if self._flush is not None:
            await self._flush()
        await self.gate.wait_until(ts, Span.of(self.next_offset, self._read_to))

    async def _let_pass(self, handle: Handler) -> None:
        """Hand on what lies below the limit, in the order of the log."""
        while self._held and self._held[0][0] < self.gate.limit:
            limit = self.gate.limit
            passing: list[tuple[int, int, Any]] = []
            while self._held and self._held[0][0] < limit:
                passing.append(heapq.heappop(self._held))
            passing.sort(key=itemgetter(1))
            for ts, offset, record in passing:
                await self._pass(ts, record, handle)
                self._processed.add(offset)
                while self._open and self._open[0] in self._processed:
                    self._processed.discard(self._open.popleft())
                self.next_offset = self._open[0] if self._open else self._read_to

    async def _pass(self, ts: int, record: Any, handle: Handler) -> None:
        gate, progress = self.gate, self.gate.progress
        if (
            ts < progress.late_below
            and self._member.progress.limit.mode is Mode.GATED
            and not await self._late(record, ts)
        ):
            return
        if not (progress.late_below <= ts < progress.open_below and boottime() < gate.session.stop_at):
            if self._flush is not None:
                await self._flush()
            await gate.wait_until(ts, Span.of(self.next_offset, self._read_to))
            if self._is_behind_the_cut(ts, record.offset):
                return
        handled = True
        try:
            await handle(record)
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            handled = await self._failed(record, error, handle)
        if handled and self._flush is None:
            self._summary.records += 1

    def _is_behind_the_cut(self, ts: int, offset: int) -> bool:
        """Whether the cut from which we go on, or go on again, holds the record already."""
        resume = self.gate.resume_offset
        return resume is not None and (
            offset < resume
            or (isinstance(resume, Span) and offset < resume.high and ts < self.gate.progress.late_below)
        )

    # -- out of the ordinary --------------------------------------------------------------------------------------------

    async def _admit(self, record: Any, ts: Any) -> bool:
        """Wait until the record may be processed. False: it is not to be processed."""
        sound = await self._sound(record, ts)
        if sound is None:
            return False
        gate = self.gate
        gate.progress.offset = record.offset
        if self._flush is not None:
            await self._flush()
        late = sound < gate.progress.late_below and self._member.progress.limit.mode is Mode.GATED
        if late and (self._is_behind_the_cut(sound, record.offset) or not await self._late(record, sound)):
            return False
        await gate.wait_until(sound, record.offset)
        return not self._is_behind_the_cut(sound, record.offset)

    async def _still_ours(self, offset: int) -> None:
        """Return once work may start on records that were let through before: the lock may have been lost since."""
        if boottime() >= self.gate.session.stop_at:
            await self.gate.wait_until(self.gate.progress.late_below, offset)

    async def _sound(self, record: Any, ts: Any) -> int | None:
        """The record's timestamp if it can be one, or what the policy makes of it; None: leave the record out."""
        ceiling = self._member.clock() + self._member.settings.ahead
        if type(ts) is int and 0 <= ts <= ceiling:
            if ts < self._from:  # the index of the log goes by the first record at or past a time
                self._summary.outside += 1
                return None
            self._greatest = max(self._greatest, ts)
            return ts
        if type(ts) is int and ts > ceiling:
            wrong = f"the timestamp {ts} ({format_time(ts)}) lies further ahead of the clock than ahead= allows"
        elif isinstance(ts, Exception):
            wrong = f"the timestamp function raised {ts!r}"
        else:
            wrong = f"the timestamp {ts!r} is none: expected milliseconds since the Unix epoch"
        self._summary.poisoned += 1
        policy = self._settings.poison
        if policy == "raise":
            raise PoisonTimestampError(
                f'{wrong}; timestamp= can read it from the record, poison="skip", "cap" or "dead-letter" goes on without',
                record.topic,
                record.partition,
                record.offset,
            ) from (ts if isinstance(ts, Exception) else None)
        if policy == "cap":
            return max(self._greatest, self.gate.progress.late_below, 0)
        if policy == "dead-letter":
            await self._bury(record, wrong)
        else:
            self._summary.skipped += 1
        return None

    async def _late(self, record: Any, ts: int) -> bool:
        if not self._summary.late:  # the first in this process: the others are counted
            log.warning(
                "%s: the record at offset %d, of %s, is %s late: its period has closed. With lateness= a period waits for "
                "records that lie so far behind others of their partition; the end of the replay says how many came late",
                self.partition,
                record.offset,
                format_time(ts),
                format_duration(self.gate.progress.late_below - ts),
            )
        self._summary.late += 1
        policy = self._settings.late
        if policy == "dead-letter":
            await self._bury(record, "its period had closed")
        elif policy == "drop":
            self._summary.skipped += 1
        return policy == "deliver"

    async def _failed(self, record: Any, error: Exception, handle: Handler) -> bool:
        """Call the handler again as often as is allowed, then do what the policy says. Return whether it was handled."""
        for _ in range(self._settings.retries):
            self._summary.retried += 1
            await self._still_ours(record.offset)
            try:
                await handle(record)
            except Exception as again:  # noqa: BLE001
                error = again
            else:
                return True
        if self._settings.on_error == "dead-letter":
            await self._bury(record, repr(error))
            return False
        raise HandlerError(f"the handler raised {error!r}", record.topic, record.partition, record.offset) from error

    async def _bury(self, record: Any, reason: str) -> None:
        self._summary.dead_lettered += 1
        assert self._settings.dead_letter is not None
        try:
            result = self._settings.dead_letter(record, reason)
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            raise HandlerError(
                f"dead_letter raised {error!r}", record.topic, record.partition, record.offset
            ) from error


def _awaited(handler: Callable[[Any], Any]) -> Handler:
    async def handle(record: Any) -> None:
        result = handler(record)
        if inspect.isawaitable(result):
            await result

    return handle


def _guarded(stamp: Callable[[Any], int]) -> Callable[[Any], Any]:
    """A timestamp function that raises has found no timestamp: the policy for those decides."""

    def guarded(record: Any) -> Any:
        try:
            return stamp(record)
        except Exception as error:  # noqa: BLE001 - so may a timestamp function
            return error

    return guarded
