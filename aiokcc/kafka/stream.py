"""A partition's records on their way to the handler: one task, in the order of the log, up to the limit and no further.

The inner loop is the price of a record, so it holds nothing but the test of an open gate. Whatever is out of the ordinary
(the limit, a late record, a timestamp that cannot be one, the deadline) goes through :meth:`Stream._admit`.

With a bound on lateness the stream reads on past the limit until nothing earlier can come, and holds back what lies past it. It
stands at its *watermark*: the oldest record held back, or the greatest timestamp seen less the bound, whichever is smaller.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from aiokcc.core.limit import Mode
from aiokcc.core.periods import MAX_TIMESTAMP, format_time
from aiokcc.errors import AiokccError, HandlerError, PoisonTimestampError
from aiokcc.stores.port import boottime

if TYPE_CHECKING:
    from aiokcc.core.limit import Limit
    from aiokcc.core.run import Bounds
    from aiokcc.kafka.pump import Pump
    from aiokcc.kafka.replay import Summary
    from aiokcc.kafka.settings import ReplaySettings
    from aiokcc.runtime.gate import Gate
    from aiokcc.runtime.member import Member

__all__ = ["Handler", "Stream"]

Handler = Callable[[Any], Awaitable[None]]

_size: Final = attrgetter("serialized_value_size")


class Stream:
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
        self._settings = settings
        self._member = member
        self._summary = summary
        self._stamp = None if settings.timestamp is None else _guarded(settings.timestamp)
        self._lateness = settings.lateness.get(gate.partition.topic, 0)
        self._end = bounds.end
        self.position = max(bounds.start, gate.resume_offset or 0, committed)
        """The next offset to fetch."""
        self.next_offset = self.position
        """The next offset to process: everything before it is done."""
        self._chunks: deque[list[Any]] = deque()
        self._records = 0
        self._bytes = 0
        self._end_seen: Limit | None = None
        self._greatest = -1
        self._held: list[tuple[int, int, Any]] = []
        """Records past the limit, with timestamp and offset, in the order of the log; only under a bound on lateness."""
        self._flush: Callable[[], Awaitable[None]] | None = None
        """Hands on what a batch has gathered; called before the stream waits for anything."""
        self.pump: Pump | None = None

    # -- the pump's side ------------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """Whether everything up to the run's end has been fetched."""
        return self._end is not None and self.position >= self._end

    @property
    def has_room(self) -> bool:
        """Whether more may be fetched."""
        settings = self._settings
        return not self.complete and self._records < settings.buffer_records and self._bytes < settings.buffer_bytes

    @property
    def hungry(self) -> bool:
        """Whether nothing fetched is left."""
        return not self._chunks and not self.complete

    @property
    def wants_end(self) -> bool:
        """Whether it would help to know if the log holds nothing more, under the present limit."""
        return self.hungry and self._end_seen != self._member.ledger.limit

    def feed(self, records: list[Any]) -> None:
        """Fetched records, in the order of the log."""
        self.position = records[-1].offset + 1
        if self._end is not None and self.position > self._end:
            records = [record for record in records if record.offset < self._end]
            self.position = self._end
        if records:
            self._chunks.append(records)
            self._records += len(records)
            self._bytes += sum(map(_size, records))
        self.gate.signal.set()

    def moved_to(self, position: int) -> None:
        """The consumer's position, which passes gaps in the offsets that no record tells of."""
        if position > self.position and not self._chunks:
            self.position = position
            self.gate.signal.set()

    def at_end(self, as_of: object) -> None:
        """The log held nothing more, looked up after this limit was seen."""
        self._end_seen = as_of  # type: ignore[assignment]
        self.gate.signal.set()

    async def _take(self) -> list[Any] | None:
        """The next records; None when there will be none."""
        if self._flush is not None:
            await self._flush()
        if not self._chunks:
            if not self.complete:
                if self.wants_end and self.pump is not None:
                    self.pump.wake()
                await self.gate.rest(self._is_fed, self._where_it_ends)
            if not self._chunks:
                return None
        full = not self.has_room
        chunk = self._chunks.popleft()
        self._records -= len(chunk)
        self._bytes -= sum(map(_size, chunk))
        if full and self.pump is not None:
            self.pump.wake()
        return chunk

    def _is_fed(self) -> bool:
        return bool(self._chunks) or self.complete

    def _where_it_ends(self) -> tuple[Limit | None, int]:
        if self._end_seen != self._member.ledger.limit:
            if self.pump is not None:
                self.pump.wake()
            return None, self.position
        return self._end_seen, self.position

    # -- the handler's side ---------------------------------------------------------------------------------------------

    async def run(self, handler: Callable[[Any], Any]) -> None:
        """Hand every record to the handler when it may be processed, until there are no more."""
        handle: Handler = handler if inspect.iscoroutinefunction(handler) else _awaited(handler)
        if self._lateness:
            await self._run_holding(handle)
        else:
            await self._run_in_order(handle)
        self.gate.finish(self.position)

    async def run_batches(self, handler: Callable[[list[Any]], Any]) -> None:
        """Hand the records on in lists: each of this partition and one period, in the order of the log."""
        batch: list[Any] = []

        async def gather(record: Any) -> None:
            batch.append(record)

        async def flush() -> None:
            if batch:
                records = batch.copy()
                batch.clear()
                try:
                    result = handler(records)
                    if inspect.isawaitable(result):
                        await result
                except AiokccError:
                    raise
                except Exception as error:
                    first = records[0]
                    raise HandlerError(
                        f"the handler raised {error!r} on a batch of {len(records)} records from here",
                        first.topic,
                        first.partition,
                        first.offset,
                    ) from error

        self._flush = flush
        await self.run(gather)

    async def _run_in_order(self, handle: Handler) -> None:
        gate, lane, stamp, summary = self.gate, self.gate.lane, self._stamp, self._summary
        while (chunk := await self._take()) is not None:
            records = iter(chunk)
            done = False
            while not done:
                record = None
                try:
                    for record in records:
                        ts = record.timestamp if stamp is None else stamp(record)
                        if not (
                            type(ts) is int
                            and lane.late_below <= ts < lane.open_below
                            and boottime() < gate.session.stop_at
                        ) and not await self._admit(record, ts):
                            continue
                        await handle(record)
                    done = True
                except AiokccError:
                    self.next_offset = self.next_offset if record is None else record.offset
                    raise
                except Exception as error:  # noqa: BLE001 - a handler may raise anything
                    await self._failed(record, error, handle)
            self.next_offset = chunk[-1].offset + 1
            summary.records += len(chunk)

    async def _run_holding(self, handle: Handler) -> None:
        stamp = self._stamp
        while (chunk := await self._take()) is not None:
            for record in chunk:
                ts = record.timestamp if stamp is None else stamp(record)
                ts = await self._sound(record, ts)
                if ts is None:
                    continue
                self._greatest = max(self._greatest, ts)
                self._held.append((ts, record.offset, record))
                await self._let_pass(handle)
                while self._watermark() >= self.gate.limit and self._held:
                    await self._wait_at(self._watermark())
                    await self._let_pass(handle)
            self._summary.records += len(chunk)
        while self._held:  # nothing earlier can come any more
            await self._wait_at(min(ts for ts, _, _ in self._held))
            await self._let_pass(handle)

    def _watermark(self) -> int:
        oldest = min((ts for ts, _, _ in self._held), default=MAX_TIMESTAMP)
        return max(0, min(oldest, self._greatest - self._lateness))

    async def _wait_at(self, ts: int) -> None:
        if self._flush is not None:
            await self._flush()
        low = min((offset for _, offset, _ in self._held), default=self.position)
        await self.gate.wait_until(ts, low)

    async def _let_pass(self, handle: Handler) -> None:
        """Hand on what lies below the limit, in the order of the log."""
        limit, late_below = self.gate.limit, self.gate.lane.late_below
        passing = [item for item in self._held if item[0] < limit]
        if not passing:
            return
        self._held = [item for item in self._held if item[0] >= limit]
        for ts, _, record in passing:
            if ts < late_below and not await self._late(record):
                continue
            try:
                await handle(record)
            except AiokccError:
                raise
            except Exception as error:  # noqa: BLE001 - a handler may raise anything
                await self._failed(record, error, handle)

    # -- out of the ordinary --------------------------------------------------------------------------------------------

    async def _admit(self, record: Any, ts: Any) -> bool:
        """Wait until the record may be processed. False: it is not to be processed."""
        sound = await self._sound(record, ts)
        if sound is None:
            return False
        gate = self.gate
        gate.lane.offset = record.offset
        if sound < gate.lane.late_below and self._member.ledger.limit.mode is Mode.GATED:
            return await self._late(record)
        if self._flush is not None:
            await self._flush()
        await gate.wait_until(sound, record.offset)
        return True

    async def _sound(self, record: Any, ts: Any) -> int | None:
        """The record's timestamp if it can be one, or what the policy makes of it; None: leave the record out."""
        ceiling = self._member.clock() + self._member.settings.ahead
        if type(ts) is int and 0 <= ts <= ceiling:
            self._greatest = max(self._greatest, ts)
            return ts
        if type(ts) is int and ts > ceiling:
            wrong = f"the timestamp {ts} ({format_time(ts)}) lies further ahead of the clock than ahead= allows"
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
            )
        if policy == "cap":
            return max(self._greatest, self.gate.lane.late_below, 0)
        if policy == "dead-letter":
            await self._bury(record, wrong)
        return None

    async def _late(self, record: Any) -> bool:
        self._summary.late += 1
        policy = self._settings.late
        if policy == "dead-letter":
            await self._bury(record, "its period had closed")
        return policy == "deliver"

    async def _failed(self, record: Any, error: Exception, handle: Handler) -> None:
        """The handler raised: again as often as is allowed, then what the policy says."""
        for _ in range(self._settings.retries):
            self._summary.retried += 1
            try:
                await handle(record)
            except AiokccError:
                raise
            except Exception as again:  # noqa: BLE001
                error = again
            else:
                return
        if self._settings.on_error == "dead-letter":
            await self._bury(record, repr(error))
            return
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
