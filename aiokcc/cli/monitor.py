"""Collects the reports of the workers of ``aiokcc replay``, and turns them into a bar, messages and a result.

If one worker fails, the others are stopped at once. After a graceful stop was requested, each worker gets the time that it
needs, even if another one fails meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from aiokcc.cli.previous_run import PreviousRun
from aiokcc.cli.render import Display, print_message
from aiokcc.cli.replay_options import member_name
from aiokcc.cli.worker_pool import WorkerPool, WorkerReport, describe_exit
from aiokcc.core.formatting import count, format_elapsed, join_names, short_names
from aiokcc.core.masking import mask_command
from aiokcc.core.periods import MAX_LIMIT, format_duration, format_time
from aiokcc.runtime.member_health import MemberState
from aiokcc.runtime.status import GroupState
from aiokcc.views.meters import BusyMeter, RateMeter
from aiokcc.views.model import ReplayProgress

if TYPE_CHECKING:
    from aiokcc.cli.probe_server import Probes

__all__ = ["Monitor"]

_REDRAW_SECONDS: Final = 0.1
_SILENT_SECONDS: Final = 3.0
_SLOW_SECONDS: Final = 1.0
_RARE: Final = {
    "late": "came after their period had closed",
    "outside": "lay before the start and were left out",
    "poisoned": "had no usable timestamp",
    "retried": "were retried",
    "dead_lettered": "went to the dead-letter function",
    "skipped": "were skipped (--late drop, --poison skip)",
}


class Monitor:
    """The state of all workers, as far as they have reported it."""

    def __init__(
        self, options: argparse.Namespace, previous: PreviousRun, clock: Callable[[], float] = time.time
    ) -> None:
        self._options, self._previous, self._clock = options, previous, clock
        self._first_joined_at: float | None = None
        """The time at which the first worker joined the group."""
        self._last_record_at = 0.0
        """The time at which a record was last handled."""
        self._limit: int | None = None
        self._joined: set[int] = set()
        self._counts: dict[int, dict[str, Any]] = {}
        self._status: dict[str, Any] = {}
        self._period = None if previous.held else previous.period or options.period
        """The last period in force that the user was told; None during a hold that was there before this command."""
        self._last_joined_at = 0.0
        """The time at which the last worker joined. Older waiting times in the status do not concern these workers."""
        self._busy = [BusyMeter() for _ in range(options.processes)]
        self._last_report_at = [time.monotonic()] * options.processes
        self._done: set[int] = set()
        self._exited: set[int] = set()
        self._replaced: set[int] = set()
        """The workers that stopped alone and whose partitions the others have taken over."""
        self._total: int | None = None
        self._released = False
        self._record_rate, self._limit_rate, self._group_rate = RateMeter(), RateMeter(), RateMeter()
        self._group_done = 0
        """The number of offsets that all members have processed, those of other commands included."""
        self._pool: WorkerPool | None = None
        self._print: Callable[[str], None] = print_message
        self._stop_asked_at: float | None = None
        """The time at which a graceful stop was requested."""
        self._final_counts: set[int] = set()
        """The workers that have sent their last counts; one that is killed sends none."""
        self._commit_failed: set[int] = set()
        """The workers that could not commit their offsets when they stopped."""
        self.failure: str | None = None
        self.refused = False
        """True if the group refused the command before any worker had joined: the same command would be refused again."""
        self.stopped = False
        """True if a worker was told to stop, and stopped before the run had ended."""
        self.probes: Probes | None = None
        """Takes the workers' metrics and health, if they are served."""

    def stop(self) -> None:
        """Request a graceful stop of all workers, also of those that are not started yet."""
        self._stop_asked_at = self._stop_asked_at or time.monotonic()
        if self._pool is not None:
            self._pool.request_stop()

    def warn(self, what: str) -> None:
        """Tell the user that the workers are stopping, and that a second signal (``what``) stops at once."""
        if self._pool is not None:
            when = " when the running handlers have returned" if self._joined else ""
            self._print(f"Stopping{when}; a second {what} stops at once.")

    def timed_out(self) -> None:
        """Tell the user that the handlers have not returned within ``--stop-timeout``."""
        how_long = format_elapsed(self._options.stop_timeout)
        self._print(f"Not all handlers have returned within {how_long} (--stop-timeout).")

    async def run(self, pool: WorkerPool, display: Display) -> None:
        """Receive reports and show the progress until all workers have exited, or one has failed. Cancelling only ends this."""
        self._pool, self._print = pool, display.write
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
                    display.show(self.progress(now))
        except asyncio.CancelledError:
            self._print("Stopping at once.")
            raise
        finally:
            self._pool, self._print = None, print_message

    def receive_last_counts(self, left: Iterable[WorkerReport]) -> None:
        """Receive the counts that arrived while the workers were being stopped; how they ended does not matter any more."""
        for report in left:
            if report.kind == "counts":
                self.receive(report)

    def receive(self, report: WorkerReport) -> None:
        """Update the state with one report."""
        self._last_report_at[report.worker] = now = time.monotonic()
        facts = report.facts
        match report.kind:
            case "joined":
                self._first_joined_at = self._first_joined_at or now
                self._joined.add(report.worker)
                if self.probes is not None:
                    self.probes.joined(report.worker)
                self._total = facts["total"]
                self._last_joined_at = now
                self._status = {}  # the last one is older than this worker
            case "counts":
                if self._counts.get(report.worker, {}).get("records") != facts["records"]:
                    self._last_record_at = now
                self._counts[report.worker] = facts
                self._busy[report.worker].add(facts["busy"], now)
                if facts["last"]:
                    self._final_counts.add(report.worker)
                    self._forget_probes(report.worker)
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
            case "leaving":  # it may serve the others: they have to stop while it does
                self._worker_stopped(report.worker)
            case "probe" if self.probes is not None:
                self.probes.receive(report.worker, facts)
            case "done":
                self._done.add(report.worker)
                self._released |= facts["released"]
                if facts["stopped"]:
                    self._worker_stopped(report.worker)
            case "ended":
                self._exited.add(report.worker)
                self._forget_probes(report.worker)
                if report.worker not in self._done and self.failure is None:
                    self._worker_died(report.worker, facts["code"])

    def _forget_probes(self, worker: int) -> None:
        """Drop the health of a worker that has left its run or died: it reports none any more, and its silence says nothing."""
        if self.probes is not None:
            self.probes.forget(worker)

    def _receive_period(self, period: int | None) -> None:
        """Tell the user if the period has changed. None means that none is in force, as during a hold."""
        if period is not None and period != self._period:
            before = "the hold is over" if self._period is None else f"it was {format_duration(self._period)}"
            self._print(f"The period is {format_duration(period)} now; {before}.")
            self._period = period

    def _worker_stopped(self, worker: int) -> None:
        """Note that a worker has stopped gracefully. If no stop of all was requested, it has got SIGTERM from somebody else."""
        self.stopped = True
        others = len(self._done) < self._options.processes
        if self._stop_asked_at is None and others and self._managed:
            self._replaced.add(worker)
            self._print(f"{self._name(worker)} was told to stop; the others take over its partitions.")
        elif self._stop_asked_at is None and others:
            self._print(f"{self._name(worker)} was told to stop, and the others cannot go on without it: all stop.")
            self.stop()

    def _worker_died(self, worker: int, code: int) -> None:
        """Note that a worker exited without a result. In a managed group the others, if any, take over its partitions."""
        how = f"{self._name(worker)} {describe_exit(code)}"
        if self._stop_asked_at is not None and worker not in self._joined:
            self._done.add(worker)  # it stopped before it had begun anything
            self.stopped = True
        elif self._managed and code < 0 and self._stop_asked_at is None and len(self._exited) < self._options.processes:
            self._print(f"{how}; the others take over its partitions.")
        else:
            self.failure = how

    def result(self, how: str) -> str:
        """Return the result after a word such as ``Stopped``: the records handled, and a line for each kind of exception."""
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
        """Return the message for a run that has ended."""
        released = "\nThe gate was released during the run: from then on the partitions were not kept in step."
        return self.result("Done") + self._gain() + (released if self._released else "")

    def _gain(self) -> str:
        """Return what a lookahead would have saved, where that is worth a line: a twentieth of the time, for all workers."""
        least = min((c.get("round_trips", 0.0) for c in self._counts.values()), default=0.0)
        seconds = self._last_record_at - (self._first_joined_at or self._last_record_at)
        if self._options.lookahead or least < 0.1 or least < seconds / 20:
            return ""
        return (
            f"\n  About {least:.1f} of {seconds:.1f} s were spent waiting for round trips to the store. "
            f"--lookahead auto --max-apart TIME would\n  save most of that, and lets partitions lie up to TIME apart."
        )

    def how_to_resume(self, last: PreviousRun, *, in_order: bool = False) -> str:
        """Return how to resume after a stop. ``in_order``: it was graceful, so handled records are committed, if any are."""
        options = self._options
        again = f"\n    {_same_command(options)}"
        if not options.store.startswith("memory://"):
            if self._managed and last.others:
                return f"The other members go on. The same command joins again:{again}"
            if last.known and not last.exists:
                return f"Nothing was started. The same command starts it:{again}"
            if in_order and last.known and not self._commit_failed and self._commits and not self._runs_ahead:
                return f"The same command resumes with the next record:{again}"
            where = "where the last period closed"
            if last.known:
                where = "from the beginning" if last.closed is None else f"at {format_time(last.closed)}"
            if in_order and not self._commits and self._sum("records"):
                where += "; records handled since then come again, because no offsets are committed"
            return f"The same command resumes {where}:{again}"
        if options.group_id is None:
            return (
                "memory:// remembers nothing: the same command starts from the beginning. With zk:// it would resume."
            )
        if options.start != "committed":
            return (
                f"To resume from the offsets committed for {options.group_id}: the same command with --from committed."
            )
        return f"The same command resumes from the committed offsets:{again}"

    @property
    def _commits(self) -> bool:
        return self._options.group_id is not None or self._options.offset_storage == "store"

    @property
    def _runs_ahead(self) -> bool:
        """Return whether records past the offset that may be committed are handled already."""
        return bool(self._options.lookahead or self._options.lateness)

    @property
    def _managed(self) -> bool:
        return bool(self._options.assignment == "managed")

    def _name(self, worker: int) -> str:
        return member_name(self._options, worker + 1)

    # -- the progress -----------------------------------------------------------------------------------------------------

    def progress(self, now: float) -> ReplayProgress:
        """Return the progress; ``now`` is the monotonic clock."""
        records = self._sum("records")
        reached = self._limit
        start, end = self._options.start, self._options.end
        share = left = None
        per_second = self._record_rate.per_second()
        if self._total:
            read = records + sum(map(self._sum, ("dead_lettered", "skipped", "outside")))
            done, pace = self._previous.offsets_done + read, per_second
            if self._options.assignment == "managed":  # other commands process a part of it
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
        return ReplayProgress(reached, share, records, per_second, left, self._note(now))

    def _note(self, now: float) -> str:
        if self._stop_asked_at is not None:
            seconds = now - self._stop_asked_at
            late = [self._name(n) for n in range(self._options.processes) if n not in self._exited]
            who = f": waits for {join_names(late)}" if len(late) < self._options.processes else ""
            away = "; the store does not answer" if self._status.get("state") == MemberState.AWAY else ""
            return f"stopping{who}" + (f" for {format_elapsed(seconds)}" if seconds >= _SILENT_SECONDS else "") + away
        if self._done - self._replaced:
            return "ending"
        if len(self._joined) < self._options.processes:
            return f"{len(self._joined)} of {count(self._options.processes, 'worker')} joined"
        silent = [
            n for n, heard in enumerate(self._last_report_at) if now - heard > _SILENT_SECONDS and n not in self._exited
        ]
        if silent:
            who, how_long = join_names(map(self._name, silent)), format_elapsed(now - self._last_report_at[silent[0]])
            return f"no report from {who} for {how_long}: does a handler not return?"
        match self._status.get("state"):
            case MemberState.AWAY:
                return "the store does not answer"
            case GroupState.HELD:
                return "on hold"
            case GroupState.RELEASED:
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
        """Name the partition that the others wait for, as seen by the workers or by the status; empty if none is known."""
        slow = [(p, worker) for worker, meter in enumerate(self._busy) for p in meter.mostly_busy()]
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
            return f"waits for {partition}, which is unowned,{how_long}"
        return f"waits for {partition} on {short_names([member])[member]}{how_long}"

    def _sum(self, name: str) -> int:
        return sum(counts[name] for counts in self._counts.values())


def _same_command(options: argparse.Namespace) -> str:
    """Return the command as it was typed, with its secrets masked."""
    return shlex.join(["aiokcc", *mask_command(options.words)])
