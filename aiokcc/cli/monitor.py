"""What the workers of ``aiokcc replay`` have said so far, and what that comes to, for people.

They are left alone until all are done. If one fails, the others are stopped where they are. If they are asked to stop, each of
them is given the time it takes, also if one of them fails on the way.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from aiokcc.cli.bar import Bar, BarState, RateMeter, on_terminal, print_message
from aiokcc.cli.formatting import count, format_elapsed, join_names, short_names
from aiokcc.cli.previous_run import PreviousRun
from aiokcc.cli.replay_arguments import member_name
from aiokcc.cli.slowest import Slowest
from aiokcc.cli.worker_pool import WorkerPool, WorkerReport, describe_exit
from aiokcc.core.masking import mask_command
from aiokcc.core.periods import MAX_LIMIT, format_duration, format_time

__all__ = ["Monitor"]

_REDRAW_SECONDS: Final = 0.1
_SILENT_SECONDS: Final = 3.0
_SLOW_SECONDS: Final = 1.0
_RARE: Final = {
    "late": "came after their period had closed",
    "outside": "lay before the start and were left out",
    "poisoned": "had no usable timestamp",
    "retried": "were tried again",
    "dead_lettered": "went to the dead-letter function",
    "skipped": "were skipped (--late drop, --poison skip)",
}


class Monitor:
    """What the workers have said so far, and what that comes to."""

    def __init__(
        self, options: argparse.Namespace, previous: PreviousRun, clock: Callable[[], float] = time.time
    ) -> None:
        self._options, self._previous, self._clock = options, previous, clock
        self._first_joined_at: float | None = None
        """When the first worker had joined the group."""
        self._last_record_at = 0.0
        """When a record was last handled."""
        self._limit: int | None = None
        self._joined: set[int] = set()
        self._counts: dict[int, dict[str, Any]] = {}
        self._status: dict[str, Any] = {}
        self._period = previous.period or options.period
        self._last_joined_at = 0.0
        """When the last worker had joined: what the store tells of the time before says nothing about them."""
        self._slowest = [Slowest() for _ in range(options.processes)]
        self._last_report_at = [time.monotonic()] * options.processes
        self._done: set[int] = set()
        self._exited: set[int] = set()
        self._replaced: set[int] = set()
        """Those who left alone, and whose part others have taken."""
        self._total: int | None = None
        self._released = False
        self._record_rate, self._limit_rate, self._group_rate = RateMeter(), RateMeter(), RateMeter()
        self._group_done = 0
        """How many records all members have done, other commands' too, as far as they have reported."""
        self._pool: WorkerPool | None = None
        self._print: Callable[[str], None] = print_message
        self._stop_asked_at: float | None = None
        """When all were asked to stop."""
        self._final_counts: set[int] = set()
        """Who has said how far it has come in all; one that is killed does not."""
        self._commit_failed: set[int] = set()
        """Who could not commit its offsets when it stopped."""
        self.failure: str | None = None
        self.refused = False
        """Whether the failure is that it was not let in, as it is: the same command would not be either."""
        self.stopped = False
        """Whether a worker has stopped before the run was over, because it was told to."""

    def stop(self) -> None:
        """Ask all workers to end in good order; those that are still to be started, too."""
        self._stop_asked_at = self._stop_asked_at or time.monotonic()
        if self._pool is not None:
            self._pool.request_stop()

    def warn(self, what: str) -> None:
        """Say that they have been asked, since that takes a while, and what ends it."""
        if self._pool is not None:
            when = " when the handlers that run have returned" if self._joined else ""
            self._print(f"Stopping{when}; a second {what} stops at once.")

    async def run(self, pool: WorkerPool, bar: Bar) -> None:
        """Listen and show until all are done, or one has failed."""
        self._pool, self._print = pool, bar.write if on_terminal() else print_message
        if self._stop_asked_at is not None:
            pool.request_stop()
        drawn = 0.0
        try:
            while len(self._exited) < len(pool.processes) and (self.failure is None or self._stop_asked_at is not None):
                report = await pool.next_report(_SLOW_SECONDS)
                if report is not None:
                    self.receive(report)
                now = time.monotonic()
                if now - drawn >= _REDRAW_SECONDS:
                    drawn = now
                    bar.show(self._bar_state(now))
        except asyncio.CancelledError:
            self._print("Stopping at once.")
            raise
        finally:
            self._pool, self._print = None, print_message

    def receive_last_counts(self, left: Iterable[WorkerReport]) -> None:
        """What was said while they were ended: how far they had come. How they took it is no news."""
        for report in left:
            if report.kind == "counts":
                self.receive(report)

    def receive(self, report: WorkerReport) -> None:
        """Take note of it."""
        self._last_report_at[report.worker] = now = time.monotonic()
        facts = report.facts
        match report.kind:
            case "joined":
                self._first_joined_at = self._first_joined_at or now
                self._joined.add(report.worker)
                self._total = facts["total"]
                self._last_joined_at = now
                self._status = {}  # it is from before
            case "counts":
                if self._counts.get(report.worker, {}).get("records") != facts["records"]:
                    self._last_record_at = now
                self._counts[report.worker] = facts
                self._slowest[report.worker].add(facts["busy"], now)
                if facts["last"]:
                    self._final_counts.add(report.worker)
                self._record_rate.add(self._sum("records"), now)
                if 0 < facts["limit"] < MAX_LIMIT:
                    self._limit = max(self._limit or 0, facts["limit"])
                    self._limit_rate.add(self._limit, now)
            case "status":
                if len(self._joined) == self._options.processes:
                    self._status = facts
                    self._receive_period(facts.get("period"))
                if facts.get("done", 0) > self._group_done:
                    self._group_done = facts["done"]
                    self._group_rate.add(self._group_done, now)
            case "trouble" if report.worker not in self._commit_failed:
                self._commit_failed.add(report.worker)
                self._print(f"{self._name(report.worker)}: {facts['text']}")
            case "failed" if self.failure is None:
                self.failure = facts["text"] + (f"\n  {facts['where']}" if facts["where"] else "")
                self.refused = facts["refused"] and not self._joined
            case "done":
                self._done.add(report.worker)
                self._released |= facts["released"]
                if facts["stopped"]:
                    self._worker_stopped(report.worker)
            case "ended":
                self._exited.add(report.worker)
                if report.worker not in self._done and self.failure is None:
                    self._worker_died(report.worker, facts["code"])

    def _receive_period(self, period: int | None) -> None:
        """Tell that the period has changed; None: there is none at present."""
        if period is not None and period != self._period:
            self._print(f"The period is {format_duration(period)} now; it was {format_duration(self._period)}.")
            self._period = period

    def _worker_stopped(self, worker: int) -> None:
        """A worker has stopped in good order. If nobody has asked all of them, somebody has told this one: by SIGTERM."""
        self.stopped = True
        others = len(self._done) < self._options.processes
        if self._stop_asked_at is None and others and self._managed:
            self._replaced.add(worker)
            self._print(f"{self._name(worker)} was told to stop; the others take over what it had.")
        elif self._stop_asked_at is None and others:
            self._print(f"{self._name(worker)} was told to stop, and the others cannot go on without it: all stop.")
            self.stop()

    def _worker_died(self, worker: int, code: int) -> None:
        """A worker is gone before its time. In a managed group the others take over what it had, while there are others."""
        how = f"{self._name(worker)} {describe_exit(code)}"
        if self._stop_asked_at is not None and worker not in self._joined:
            self._done.add(worker)  # it was to stop, and had not begun anything
            self.stopped = True
        elif self._managed and code < 0 and self._stop_asked_at is None and len(self._exited) < self._options.processes:
            self._print(f"{how}; the others take over what it had.")
        else:
            self.failure = how

    def result(self, how: str) -> str:
        """Say what was done, after a word such as ``Stopped``: the records that were handled, and what became of others."""
        number = self._options.processes
        lines = [f"{how}: {self._result_text()}{f', by {number} processes' if number > 1 else ''}."]
        lines += [f"  {self._sum(name):,} {what}" for name, what in _RARE.items() if self._sum(name)]
        return "\n".join(lines)

    def _result_text(self) -> str:
        seconds = max(0.0, self._last_record_at - (self._first_joined_at or self._last_record_at))
        records, periods = self._sum("records"), max((c["periods"] for c in self._counts.values()), default=0)
        text = f"{count(records, 'record')} in {count(periods, 'period')} and {format_elapsed(seconds)}"
        if self._joined - self._final_counts:
            text = f"at least {text}"
        return f"{text} ({records / seconds:,.0f} records/s)" if records and seconds else text

    def summary(self) -> str:
        """The last words of a run that has come to its end."""
        released = "\nThe gate was released on the way: from there on the partitions were not kept in step."
        return self.result("Done") + (released if self._released else "")

    def how_to_resume(self, last: PreviousRun, *, in_order: bool = False) -> str:
        """How to go on after a stop; one in good order has committed what was handled, if anything is committed."""
        options = self._options
        again = f"\n    {_same_command(options)}"
        if not options.store.startswith("memory://"):
            if self._managed and last.others:
                return f"The others of the group go on. The same command takes part again:{again}"
            if last.known and not last.exists:
                return f"Nothing was begun. The same command starts it:{again}"
            if in_order and last.known and not self._commit_failed and self._commits and not self._runs_ahead:
                return f"The same command goes on with the next record:{again}"
            where = "where the last period closed"
            if last.known:
                where = "from the beginning" if last.closed is None else f"at {format_time(last.closed)}"
            if in_order and not self._commits and self._sum("records"):
                where += "; what was handled since comes again, for no offsets are committed"
            return f"The same command goes on {where}:{again}"
        if options.group_id is None:
            return (
                "memory:// remembers nothing: the same command starts from the beginning; with a zk:// it would go on."
            )
        if options.start != "committed":
            return f"To go on by what was committed for {options.group_id}: the same command with --from committed."
        return f"The same command goes on by the committed offsets:{again}"

    @property
    def _commits(self) -> bool:
        return self._options.group_id is not None or self._options.offset_storage == "store"

    @property
    def _runs_ahead(self) -> bool:
        """Whether records are handled that lie past the offset which may be committed."""
        return bool(self._options.lookahead or self._options.lateness)

    @property
    def _managed(self) -> bool:
        return bool(self._options.assignment == "managed")

    def _name(self, worker: int) -> str:
        return member_name(self._options, worker + 1)

    # -- what is shown --------------------------------------------------------------------------------------------------

    def _bar_state(self, now: float) -> BarState:
        records = self._sum("records")
        reached = self._limit
        start, end = self._options.start, self._options.end
        share = left = None
        per_second = self._record_rate.per_second()
        if self._total:
            read = records + sum(map(self._sum, ("dead_lettered", "skipped", "outside")))
            done, pace = self._previous.offsets_done + read, per_second
            if self._options.assignment == "managed":  # others do their part of it
                done, pace = self._group_done, self._group_rate.per_second()
            share = min(0.99, done / self._total)
            if pace:
                left = max(0, self._total - done) / pace
        elif not self._options.follow and isinstance(end, int) and reached is not None:
            begun = start if isinstance(start, int) else reached
            share = min(0.99, max(0.0, (reached - begun) / (end - begun))) if end > begun else None
            pace = self._limit_rate.per_second()
            if pace:
                left = max(0, end - reached) / pace
        if self._stop_asked_at is not None:
            left = None
        return BarState(reached, share, records, per_second, left, self._note(now))

    def _note(self, now: float) -> str:
        if self._stop_asked_at is not None:
            seconds = now - self._stop_asked_at
            late = [self._name(n) for n in range(self._options.processes) if n not in self._exited]
            who = f": waits for {join_names(late)}" if len(late) < self._options.processes else ""
            away = "; the store does not answer" if self._status.get("state") == "away" else ""
            return f"stopping{who}" + (f" for {format_elapsed(seconds)}" if seconds >= _SILENT_SECONDS else "") + away
        if self._done - self._replaced:
            return "ending"
        if len(self._joined) < self._options.processes:
            return f"{len(self._joined)} of {count(self._options.processes, 'worker')} there"
        silent = [
            n for n, heard in enumerate(self._last_report_at) if now - heard > _SILENT_SECONDS and n not in self._exited
        ]
        if silent:
            who, how_long = join_names(map(self._name, silent)), format_elapsed(now - self._last_report_at[silent[0]])
            return f"no word from {who} for {how_long}: a handler that does not return?"
        match self._status.get("state"):
            case "away":
                return "the store does not answer"
            case "held":
                return "on hold"
            case "released":
                return "released: not kept in step"
        end = self._options.end
        if (
            self._status.get("clock")
            and not self._options.follow
            and isinstance(end, int)
            and end > self._clock() * 1000
        ):
            return f"waits for the clock: ends at {format_time(end)}"
        if self._status.get("idle") and self._options.follow:
            return "at the end of the topics"
        return self._slowest_text(now)

    def _slowest_text(self, now: float) -> str:
        """Name the partition that the others wait for, if it is known: by our own workers, or by the store's status."""
        slow = [(p, worker) for worker, slowest in enumerate(self._slowest) for p in slowest.mostly_busy()]
        stood = min(self._status.get("waiting_seconds", 0.0), now - self._last_joined_at)
        how_long = f" for {format_elapsed(stood)}" if stood >= _SLOW_SECONDS else ""
        if slow and 2 * len(slow) <= self._sum("partitions"):
            partition, worker = slow[0]
            return f"waits for {partition} on {self._name(worker)}{how_long}"
        blocking = self._status.get("blocking")
        if not blocking or not how_long:
            return ""
        partition, member = blocking[0]
        if member is None:
            return f"waits for {partition}, which nobody runs{how_long}"
        return f"waits for {partition} on {short_names([member])[member]}{how_long}"

    def _sum(self, name: str) -> int:
        return sum(counts[name] for counts in self._counts.values())


def _same_command(options: argparse.Namespace) -> str:
    """Returns the command as it was typed, with placeholders for the secrets that stood in it."""
    return shlex.join(["aiokcc", *mask_command(options.words)])
