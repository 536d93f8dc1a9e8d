"""The gate of one partition: ``await gate.wait_until(ts)`` before each record.

An open gate costs two comparisons and one read of the clock. The clock detects a fault that nothing else shows: a process that
was stopped for longer than its session lasts must not start another record when it goes on.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from aiokcc.core.limit import Mode
from aiokcc.core.marks import Span
from aiokcc.core.partition_progress import PartitionProgress, PartitionState
from aiokcc.core.periods import MAX_TIMESTAMP, SECONDS_END, check_timestamp, format_time, looks_like_seconds
from aiokcc.errors import PositionLostError, RunEnded, SessionLostError, UsageError
from aiokcc.runtime.gate_signal import GateSignal
from aiokcc.runtime.progress_log import log_facts
from aiokcc.stores.port import boottime

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokcc.core.limit import Limit
    from aiokcc.core.partitions import Partition
    from aiokcc.runtime.member import Member

__all__ = ["Gate"]

log = logging.getLogger("aiokcc.runtime")

_NOTHING: Final = -1
"""Stands in :attr:`Gate.passed` while no record has passed."""


class Gate:
    """Holds records of one partition back at the limit, for one task. Open it with ``async with group.gate(topic, number)``.

    ::

        async with group.gate("orders", 3) as gate:
            async for record in my_consumer:
                await gate.wait_until(record.timestamp)
                await handle(record)
            gate.finish()

    A call for the next record means that the record before is done. Leaving without :meth:`finish` releases the
    partition: the limit then waits until a member opens it again. When the run ends, the block ends too: :class:`RunEnded` is
    swallowed at its edge, also where a task group in the block has wrapped it.

    A process that was stopped for longer than its session lasts loses its locks. Another member may then run the partition and
    close periods of it. When this gate has the lock again, it raises :class:`PositionLostError` once, before any record starts.
    Seek to its ``offset`` and go on in the same gate. A consumer that is to survive this handles it::

        async with group.gate("orders", 3) as gate:
            seek(gate.resume_offset or 0)
            while (record := await poll()) is not None:
                try:
                    await gate.wait_until(record.timestamp, record.offset)
                except aiokcc.PositionLostError as lost:
                    seek(lost.offset)
                    continue
                await handle(record)
            gate.finish()

    With ``offset`` given the error comes only to a task that stands before the last cut. Without it the gate does not know
    where the task stands, so the error comes whenever another member has closed a period.
    """

    __slots__ = (
        "_member",
        "_next",
        "_passages",
        "_seen",
        "busy",
        "failure",
        "keeps_lock",
        "late",
        "mark",
        "partition",
        "passed",
        "progress",
        "resume_offset",
        "session",
        "signal",
        "skips_closed",
        "waited",
    )

    def __init__(self, member: Member, partition: Partition) -> None:
        self._member = member
        self.progress = PartitionProgress(partition)
        """The partition's entry in the member's progress, once the gate is opened."""
        self._seen = member.progress.limit
        """The limit when a record last passed: what the caller knows of the log's end is not older than that."""
        self.busy = False
        """True while a task waits here."""
        self.partition = partition
        self.session = member.session
        self.signal = GateSignal()
        self.failure: Exception | None = None
        self.keeps_lock = False
        """True once the partition was revoked and its task still runs: then closing the gate does not release the lock."""
        self.passed: int | None = _NOTHING
        """The offset of the record that passed last, None if it was not given; ``_NOTHING`` if none has since the last look."""
        self._passages = 0
        """The number of looks at which a record had passed since the look before."""
        self._next: int | None = None
        """The offset after the last record that had passed at the last look, if it was given."""
        self.mark: Callable[[], object] | None = None
        """Returns the position of a reader that passes records without calling this gate for each."""
        self.waited = 0.0
        """The seconds that records have waited here."""
        self.late = 0
        """The number of records that came after their period had closed."""
        self.resume_offset: int | None = None
        """The offset to go on at: the first one that no closed period holds, if the last cut has it.

        A :class:`~aiokcc.core.marks.Span` where closed periods hold some records behind it as well.
        """
        self.skips_closed = False
        """True if the task itself skips records before ``resume_offset``. Then it gets no PositionLostError."""

    # -- used by the task --------------------------------------------------------------------------------------------

    async def wait_until(self, ts: int, offset: int | None = None) -> None:
        """Returns when a record with this timestamp may be processed: at once while its period is open.

        ``offset``, where given, makes the cuts exact. Raises RunEnded when the run is over, PartitionOwnedError if the
        lock was lost to another member, PositionLostError once if it was lost, is ours again, and another member has closed
        periods meanwhile; UsageError for an invalid timestamp. Cancelling leaves the partition where it was; the call can be
        cancelled only while it waits.
        """
        progress = self.progress
        if type(ts) is int and progress.late_below <= ts < progress.open_below and boottime() < self.session.stop_at:
            self.passed = offset
            return
        await self._wait(ts, offset)
        self.passed = offset

    def activity(self) -> object:
        """Returns a mark of what has passed: two calls return equal marks if no record has passed between them."""
        if self.mark is not None:
            return self.mark()
        if self.passed != _NOTHING:
            self._next, self.passed = self._position(), _NOTHING
            self._passages += 1
        return self._passages

    def _position(self) -> int | None:
        """Returns the first offset that is not processed: the one after the record that passed last; None if it is not known.

        Where no record has passed it is the offset of the last cut, because a cut does not go back.
        """
        if self.passed == _NOTHING:
            return self._next if self._next is not None else self.resume_offset
        return None if self.passed is None else self.passed + 1

    def is_open(self, ts: int, offset: int | None = None) -> bool:
        """Returns True if the task may process this record now. Then the record has passed, as after :meth:`wait_until`.

        If it returns False, await :meth:`wait_until`, which may return at once: a record that is late, or that crosses an open
        boundary, passes only there, because there is something to note. A loop over many records saves a coroutine for each::

            if not gate.is_open(record.timestamp, record.offset):
                await gate.wait_until(record.timestamp, record.offset)
        """
        progress = self.progress
        if type(ts) is int and progress.late_below <= ts < progress.open_below and boottime() < self.session.stop_at:
            self.passed = offset
            return True
        check_timestamp(ts)
        return False

    @property
    def limit(self) -> int:
        """Records below it may be processed. The greatest 64-bit number when released, 0 when the run is over."""
        return self._member.progress.limit.value

    async def idle(self, *, offset: int | None = None) -> int:
        """Says that the log holds nothing more, waits until the limit has moved, and returns the new limit.

        ::

            while (record := await poll()) is None:    # nothing there:
                await gate.idle()                      # wait for the limit to move, then look again

        The log must have been read under the present limit. If the limit has moved since this gate last waited, your read may
        be older: then this returns at once, and you read again. If a record may come while you wait, race the two: cancelling
        makes the partition running again. While all partitions are idle the limit does not move, and this call waits.
        ``offset`` is the position at the end of the log; by default the one after the record that passed last.
        """
        self._enter()
        member_progress = self._member.progress
        try:
            self._check_offset(offset)
            offset = self._position() if offset is None else offset
            while True:
                await self._usable(offset)
                if member_progress.limit != self._seen:
                    self._seen = member_progress.limit
                    return self.limit
                if member_progress.idle(self.progress, self._seen, offset):
                    self._member.report_if_due()
                await self.signal.wait()
        finally:
            self.busy = False
            member_progress.resume(self.progress)

    async def rest(self, ready: Callable[[], bool], end: Callable[[], tuple[Limit | None, int]]) -> None:
        """Waits until ``ready`` returns True; the partition is idle meanwhile if its log holds nothing more.

        ``end`` returns the limit under which the end of the log was last seen, and the position there. The caller sets
        ``gate.signal`` when the result of one of them changes. Cancelling makes the partition running again.
        """
        self._enter()
        member_progress = self._member.progress
        try:
            while not ready():
                await self._usable()
                as_of, offset = end()
                if as_of is not None and member_progress.idle(self.progress, as_of, offset):
                    self._member.report_if_due()
                if not ready():
                    await self.signal.wait()
        finally:
            self.busy = False
            member_progress.resume(self.progress)

    def finish(self, offset: int | None = None) -> None:
        """Declares that this partition brings nothing more before the run's end. The others no longer wait for it.

        ``offset`` is the position at the end; by default the one after the record that passed last.
        """
        if self.busy:
            raise UsageError(f"{self.partition} is waiting in another task; finish it in the task that reads it")
        self._check_offset(offset)
        offset = self._position() if offset is None else offset
        if self.failure is not None:
            raise self.failure
        if self.progress.state is not PartitionState.FINISHED:
            self._check_open()
            self._check_position(offset)
        self._member.progress.finish(self.progress, offset)
        self._member.report_if_due()

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _wait(self, ts: int, offset: int | None) -> None:
        member_progress, progress = self._member.progress, self.progress
        if type(ts) is int and ts < SECONDS_END and looks_like_seconds(ts) and not self._member.warned_of_seconds:
            self._member.warned_of_seconds = True
            log.warning(
                "%s: the timestamp %d is read as milliseconds, %s; it looks like seconds, %s: then multiply it by 1000",
                self.partition,
                ts,
                format_time(ts),
                format_time(ts * 1000),
                extra=log_facts(self._member, partition=str(self.partition)),
            )
        if (
            type(ts) is int
            and 0 <= ts <= MAX_TIMESTAMP
            and (offset is None or (type(offset) is int and 0 <= offset < 2**63))
            and progress.owned
            and progress.open_below >= 0  # neither the partition has finished nor the run has ended
            and self.failure is None
            and not self.busy
        ):
            self.busy = True  # all checks of the other branch, in one condition
        else:
            ts = check_timestamp(ts)
            self._check_offset(offset)
            self._enter()
        began = now = boottime()
        try:
            while True:
                if (
                    not progress.owned
                    or progress.open_below < 0
                    or self.failure is not None
                    or now >= self.session.stop_at
                ):
                    await self._usable(offset)
                    now = boottime()
                if member_progress.approach(progress, ts, offset):
                    self.late += ts < max(member_progress.late_below, 0, *progress.crossings)
                    self._seen = member_progress.limit
                    self._member.report_if_due()  # under lookahead it may have crossed the floor, as the last one
                    return
                self._member.report_if_due()
                await self.signal
                now = boottime()
                if (
                    progress.late_below <= ts < progress.open_below
                    and self.failure is None
                    and now < self.session.stop_at
                ):
                    self._seen = member_progress.limit
                    return
        except BaseException:
            now = boottime()
            member_progress.resume(progress)
            raise
        finally:
            self.busy = False
            self.waited += now - began

    async def _usable(self, offset: int | None = None) -> None:
        """Returns once we hold the lock in a live session and the task is not before the last cut."""
        while True:
            if self.failure is not None:
                raise self.failure
            self._check_open()
            if self._member.progress.limit.mode is Mode.END:
                raise RunEnded(f"the run has ended; {self.partition} gets nothing more")
            if self.progress.owned:
                if boottime() < self.session.stop_at:
                    self._check_position(offset)
                    return
                try:
                    await self._member.confirm()
                    continue
                except SessionLostError:
                    pass
            await self.signal.wait()

    def _check_position(self, offset: int | None) -> None:
        """Raises PositionLostError, once, if the task is before the position at which another member left the partition."""
        if self.progress.displaced and not self._member.progress.locate(self.progress, offset):
            self.passed, self._next = _NOTHING, None  # the caller goes on from the last cut
            raise PositionLostError(str(self.partition), self.resume_offset)

    def _enter(self) -> None:
        if self.busy:
            raise UsageError(f"{self.partition} is waiting in another task; a gate serves one task at a time")
        if self.progress.state is PartitionState.FINISHED:
            raise UsageError(f"{self.partition} was declared finished; it cannot bring another record")
        if self.failure is None:
            self._check_open()
        self.busy = True

    def _check_open(self) -> None:
        if self._member.gates.get(self.partition) is not self:
            raise UsageError(f"the gate of {self.partition} is not open; use it inside its 'async with'")

    def _check_offset(self, offset: int | None) -> None:
        if offset is not None and (type(offset) not in {int, Span} or not 0 <= offset < 2**63):
            raise UsageError(f"offset {offset!r} of {self.partition} is not a whole number from 0 up")

    async def __aenter__(self) -> Self:
        await self._member.open(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            await self._member.close(self)
        except asyncio.CancelledError:
            # The lock is released all the same. An error of the body has priority, as in asyncio's own task group; which, from
            # Python 3.13 on, cancels its task anew when it raises one in place of a cancellation.
            if error is None or isinstance(error, asyncio.CancelledError):
                raise
        if isinstance(error, ExceptionGroup):  # of a task group in the block
            return error.split(RunEnded)[1] is None
        return isinstance(error, RunEnded)
