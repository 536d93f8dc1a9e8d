"""Logs when the limit stands still, for which partition it waits and why; and when it moves again.

A group that waits for ever looks like one that has nothing to do. Often the cause is a task that serves two gates and waits in
one of them, or a partition that is unowned. Each member logs its own partitions, because it knows whether records still pass
there; the leader also logs those that are unowned or not reported. A group that is held, that is idle as a whole or that
waits for the clock does not stand still in this sense: no partition blocks it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import anyio

from aiokcc.core.leader import BlockerState
from aiokcc.core.limit import Mode
from aiokcc.errors import AiokccError
from aiokcc.runtime.progress_log import log_facts
from aiokcc.runtime.signal import Signal
from aiokcc.runtime.status import STANDSTILL_SECONDS, GroupState, why_blocked
from aiokcc.runtime.status_reader import read_status
from aiokcc.runtime.timer import Timeout, timers

if TYPE_CHECKING:
    from aiokcc.core.partitions import Partition
    from aiokcc.runtime.member_session import MemberSession

__all__ = ["Standstill"]

log = logging.getLogger("aiokcc.runtime")

_SHOWN: Final = 5
_LAST_LOOK: Final = 7 * 24 * 3600.0
"""Seconds after which nothing more is logged."""


class Standstill:
    """Watches how long the limit of one member session has stood, with one timer for all periods."""

    def __init__(self, member_session: MemberSession) -> None:
        self._us = member_session
        self._timer: Timeout | None = None
        self._since = 0.0
        self._next = 0.0
        """Seconds until the next check. The first check, half way to the first warning, only notes the positions."""
        self._told = False
        self._due = Signal()
        self._to_tell: tuple[list[Partition], float] = [], 0.0
        """Our partitions that have not moved, and the seconds for which the limit has stood, at the last check."""
        self._telling = anyio.CancelScope()
        self._marks: dict[Partition, object] = {}

    def moved(self, now: float) -> None:
        """Notes that the limit has moved, at this time of the event loop."""
        if self._told:
            self._told = False
            stood = now - self._since
            facts = log_facts(self._us.member, stood_seconds=round(stood, 1))
            log.info("%s: the limit moves again, after it stood for %.0f s", self._us.name, stood, extra=facts)
        self._since, self._next = now, STANDSTILL_SECONDS / 2
        if self._timer is None:
            self._timer = timers().call_later(self._next, self._look)

    def end(self) -> None:
        """Cancels the timer: the session is over."""
        if self._timer is not None:
            self._timer.cancel()

    async def run(self) -> None:
        """Reads the status and logs whenever the limit has stood for long enough, until it is cancelled."""
        while True:
            await self._due.wait()
            with anyio.CancelScope() as self._telling:
                await self._tell(*self._to_tell)

    def _look(self) -> None:
        stood = asyncio.get_running_loop().time() - self._since
        if stood >= self._next:
            still = self._still()
            if self._next >= STANDSTILL_SECONDS and self._us.member.progress.limit.mode is Mode.GATED:
                self._telling.cancel()  # of the last check: the store has not answered since
                self._to_tell = still, stood
                self._due.set()
            self._next *= 2
        self._timer = None
        if self._next <= _LAST_LOOK:
            self._timer = timers().call_later(max(0.0, self._next - stood), self._look)

    def _still(self) -> list[Partition]:
        """Returns our partitions that have work before the limit and have not moved since the last check."""
        member = self._us.member
        limit, before = member.progress.limit, self._marks
        self._marks = {
            p: gate.activity()
            for p, gate in member.gates.items()
            if gate.progress.owned and not gate.progress.arrived(limit)
        }
        return [p for p, mark in sorted(self._marks.items()) if p in before and before[p] == mark]

    async def _tell(self, still: list[Partition], stood: float) -> None:
        member, limit = self._us.member, self._us.member.progress.limit
        waiting = any(gate.busy for gate in member.gates.values())
        hint = (
            "; a task that serves several gates waits in one of them: give each gate a task of its own"
            if waiting
            else ""
        )
        words = {
            str(
                p
            ): f"{p} on {self._us.name}: no record has passed its gate for {stood / 2:.0f} s or more, its task is still "
            f"at work or waits for something else{hint}"
            for p in still
        }
        elsewhere: dict[str, str] = {}
        term = self._us.term
        if term is not None and not term.is_blocked():
            return
        if term is not None:
            try:
                status = await read_status(member.store, self._us.session)
            except AiokccError as error:
                log.debug("%s: the status cannot be read: %s", self._us.name, error)
                return
            if status.state is not GroupState.RUNNING:
                return
            for blocking in status.blocking:
                if blocking.state is not BlockerState.RUNNING:
                    words.setdefault(blocking.partition, f"{blocking.partition}: {why_blocked(blocking)}")
                elif blocking.member != self._us.name:
                    elsewhere[blocking.partition] = f"{blocking.partition}: {why_blocked(blocking)}"
        if member.progress.limit != limit or not (words or elsewhere):
            return
        self._told = True
        every = {**words, **elsewhere}
        more = f"; and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
        log.log(
            logging.WARNING if words else logging.INFO,  # the member that runs it knows better whether it stands still
            "%s: the limit has stood for %.0f s. It waits for %s%s",
            self._us.name,
            stood,
            "; ".join([*every.values()][:_SHOWN]),
            more,
            extra=log_facts(member, stood_seconds=round(stood, 1), partitions=[*every][:_SHOWN]),
        )
