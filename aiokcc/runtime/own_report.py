"""The report node of one member session.

:class:`~aiokcc.core.member_progress.MemberProgress` decides what to report and when (``report_time``). Here are the two timers
that it cannot have, and the write. While this member leads, the leader term writes the report together with the advance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiokcc.core import paths
from aiokcc.core.limit import Limit
from aiokcc.core.member_progress import MemberProgress, ReportTime
from aiokcc.core.report import Report
from aiokcc.errors import AiokccError, NodeExistsError, NoNodeError
from aiokcc.runtime.sending import discard
from aiokcc.runtime.signal import Signal
from aiokcc.runtime.timer import Timeout, timers
from aiokcc.stores.port import ANY_VERSION, Session

__all__ = ["OwnReport"]

LATE: Final = 1.0
"""Seconds after which a member whose partitions still run reports that, so that the status shows which are slow."""
LINGER: Final = 0.05
"""Under lookahead a report is delayed by this many seconds, so that it has more boundaries.

If the limit moves meanwhile, the delay begins anew: a report waits for less than twice this time.
"""


class OwnReport:
    """Writes the report of one member session when it is time."""

    def __init__(self, session: Session, name: str, progress: MemberProgress) -> None:
        self.name = name
        self._session = session
        self._path = paths.progress(name)
        self._progress = progress
        self.written: Report | None = None
        """The report that our node holds, as far as we know."""
        self.needed = Signal()
        """Set when there may be something to write, or to release, which is written with it."""
        self.wake_leader: Callable[[], None] | None = None
        """Has the leader term look at our report; None while we do not lead."""
        self._rests = False
        """True while nothing of ours is being written or released."""
        self._sent: tuple[Report, asyncio.Future[int]] | None = None
        """A report that was sent and not answered yet, and its answer."""
        self._late_timer: Timeout | None = None
        self._moved_at = 0.0
        self._linger_timer: Timeout | None = None
        self._lingers_under: Limit | None = None

    def update(self) -> None:
        """Has the report written now or soon, if it is time. Called whenever the progress has changed."""
        time = self._progress.report_time
        if time is ReportTime.NOW:
            if self.wake_leader is not None:
                self.wake_leader()
            if self._writes_alone and not self._send():
                self.needed.set()
        elif time is ReportTime.SOON:
            self.delay()

    def leave_to_task(self) -> None:
        """Has the task look next, and sends nothing at once before that."""
        if self._rests:
            self._rests = False
            self.needed.set()

    @property
    def _writes_alone(self) -> bool:
        """True if the report is not left to the leader term: we do not lead, or no advance comes that it could go with."""
        return self.wake_leader is None or self._progress.overdue

    def limit_moved(self, now: float) -> None:
        """Restarts the timer for a slow period, at this time of the event loop."""
        self._progress.overdue = False
        self._moved_at = now
        if self._late_timer is None:
            self._late_timer = timers().call_later(LATE, self._check_late)

    def _check_late(self) -> None:
        """Checks how old the present limit is. One timer serves all periods; it is not set again for each."""
        left = self._moved_at + LATE - asyncio.get_running_loop().time()
        if left > 0:
            self._late_timer = timers().call_later(left, self._check_late)
            return
        self._late_timer = None
        self._progress.overdue = True
        self.update()

    def delay(self) -> None:
        """Delays the report by LINGER, so that it has more boundaries. Does nothing while a delay runs."""
        if self._linger_timer is None:
            self._lingers_under = self._progress.limit
            self._linger_timer = timers().call_later(LINGER, self._linger_over)

    def _linger_over(self) -> None:
        """Ends the delay. One timer serves all periods here, too."""
        self._linger_timer = None
        if self._progress.limit == self._lingers_under:
            self._progress.delay_over = True
        self.update()

    def end(self) -> None:
        """Cancels the timers: the session is over."""
        for timer in (self._late_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        if self._sent is not None:
            discard(self._sent[1])

    async def wait(self) -> None:
        """Waits until there may be something to write or to release, and for the answer to what was sent at once."""
        self._rests = True
        try:
            await self.needed.wait()
        finally:
            self._rests = False
        sent, self._sent = self._sent, None
        if sent is not None:
            await self._finish(*sent)

    async def write_if_changed(self) -> None:
        """Writes the report if it differs from the content of the node; while we lead, only if it is overdue."""
        report = self._to_write()
        if report is not None:
            await self._write(report)

    def _to_write(self) -> Report | None:
        if self._writes_alone:
            report = self._progress.report(even_running=self._progress.overdue)
            if report is not None and report.supersedes(self.written):
                return report
        return None

    def _send(self) -> bool:
        """Sends the report where the last partition arrives, if it has to be written. Returns False if the task has to look."""
        if not self._rests:
            return False
        if self._sent is not None:
            return True  # it is looked at again after the answer
        report = self._to_write()
        if report is None:
            return True
        try:
            answer = self._session.send_set(self._path, report.encode(), ANY_VERSION)
        except AiokccError:
            return False  # the task sends it again, and gets the error
        if answer is None:
            return False
        self._sent = report, answer
        answer.add_done_callback(self._answered)
        return True

    def _answered(self, answer: asyncio.Future[int]) -> None:
        """Takes the answer to a report that was sent at once, unless the task waits for it or it was refused."""
        sent = self._sent
        if sent is None or sent[1] is not answer:
            return
        if answer.cancelled() or answer.exception() is not None:
            self.needed.set()
            return
        self._sent, self.written = None, sent[0]
        self.update()

    async def _write(self, report: Report) -> None:
        await self._finish(report, self._session.set(self._path, report.encode(), ANY_VERSION))

    async def _finish(self, report: Report, answer: Awaitable[int]) -> None:
        """Waits for the answer to a write. Nobody else writes this node, so it has no condition."""
        try:
            await answer
        except NoNodeError:
            await self.restore()
            self.needed.set()
        else:
            self.written = report

    async def restore(self) -> None:
        """Creates our report node again, empty, if it was deleted."""
        try:
            await self._session.create(self._path, b"", ephemeral=True)
        except NodeExistsError:
            return
        self.written = None
