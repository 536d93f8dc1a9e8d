"""What the monitor makes of reports of workers; no process is started."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from aiokcc.cli.arguments import parse
from aiokcc.cli.monitor import Monitor
from aiokcc.cli.previous_run import PreviousRun
from aiokcc.cli.worker_pool import WorkerReport

ENVIRONMENT = {"AIOKCC_STORE": "zk://h/replay", "AIOKCC_BOOTSTRAP_SERVERS": "h:9092"}
T = 1_767_225_600_000
DONE = {"released": False, "stopped": False}
STOPPED = {"released": False, "stopped": True}


class Workers:
    """A monitor, and reports of workers that do not exist."""

    def __init__(self, *more: str, processes: int = 2) -> None:
        words = ["replay", "handlers:handle", "--topic", "orders", "--period", "1m", "--processes", str(processes)]
        self.monitor = Monitor(parse([*words, *more], ENVIRONMENT), PreviousRun())
        for worker in range(processes):
            self.report(worker, "joined", total=100)

    def report(self, worker: int, kind: str, **facts: Any) -> None:
        self.monitor.receive(WorkerReport(worker, kind, facts))

    def handle(self, worker: int, records: int, *, last: bool = True, busy: Sequence[str] = (), **rare: int) -> None:
        where = {"partitions": 2, "busy": list(busy)}
        none = dict.fromkeys(("late", "outside", "poisoned", "retried", "dead_lettered", "skipped"), 0)
        self.report(worker, "counts", records=records, periods=3, limit=T, last=last, **where, **{**none, **rare})

    def note(self) -> str:
        return self.monitor.progress(self.monitor._last_report_at[0]).note


def left(run: bool = True, closed: int | None = T, *, others: bool = False, known: bool = True) -> PreviousRun:
    """What the store says afterwards."""
    before = PreviousRun(others=others, known=known)
    before.exists, before.closed = run, closed
    return before


class TestHowToResume:
    def how(self, *more: str, last: PreviousRun | None = None, in_order: bool = True, processes: int = 2) -> str:
        workers = Workers(*more, processes=processes)
        workers.handle(0, 7)
        return workers.monitor.how_to_resume(last or left(), in_order=in_order).splitlines()[0]

    def test_in_good_order(self) -> None:
        exactly = "The same command resumes with the next record:"
        assert self.how("--group-id", "g") == exactly
        assert self.how("--offset-storage", "store") == exactly

    @pytest.mark.parametrize("more", [("--lookahead", "2"), ("--lateness", "30s")])
    def test_records_are_handled_ahead_of_what_may_be_committed(self, more: tuple[str, ...]) -> None:
        assert self.how("--group-id", "g", *more) == "The same command resumes at 2026-01-01T00:00:00Z:"

    def test_nothing_is_committed(self) -> None:
        assert self.how() == (
            "The same command resumes at 2026-01-01T00:00:00Z; "
            "records handled since then come again, because no offsets are committed:"
        )

    def test_at_once(self) -> None:
        assert self.how("--group-id", "g", in_order=False) == "The same command resumes at 2026-01-01T00:00:00Z:"
        assert self.how("--group-id", "g", in_order=False, last=left(closed=None)) == (
            "The same command resumes from the beginning:"
        )

    def test_the_store_cannot_be_asked(self) -> None:
        unknown = left(run=False, closed=None, known=False)
        assert self.how("--group-id", "g", last=unknown) == "The same command resumes where the last period closed:"

    def test_nothing_was_begun(self) -> None:
        assert self.how(last=left(run=False, closed=None)) == "Nothing was started. The same command starts it:"

    def test_others_go_on(self) -> None:
        others = "The other members go on. The same command joins again:"
        assert self.how("--assignment", "managed", last=left(others=True)) == others
        assert self.how(last=left(others=True)) != others, "who has what is fixed: nobody takes it over"

    def test_what_could_not_be_committed_is_not_promised(self, capsys: pytest.CaptureFixture[str]) -> None:
        workers = Workers("--group-id", "g")
        for _ in range(2):
            workers.report(1, "trouble", text="could not commit offsets")
        assert capsys.readouterr().err == "worker-2: could not commit offsets\n"
        assert workers.monitor.how_to_resume(left(), in_order=True).startswith("The same command resumes at 2026-")

    def test_in_memory(self) -> None:
        store = ("memory://once",)
        assert self.how(*store, processes=1).startswith("memory:// remembers nothing")
        assert self.how(*store, "--group-id", "g", processes=1).endswith("the same command with --from committed.")
        committed = (*store, "--group-id", "g", "--from", "committed")
        assert self.how(*committed, processes=1) == "The same command resumes from the committed offsets:"


class TestExitedWorkers:
    def test_all_are_done(self) -> None:
        workers = Workers()
        for worker in range(2):
            workers.handle(worker, 50)
            workers.report(worker, "done", **DONE)
            workers.report(worker, "ended", code=0)
        assert (workers.monitor.failure, workers.monitor.stopped) == (None, False)
        assert workers.monitor.summary().startswith("Done: 100 records in 3 periods")

    def test_one_is_killed(self, capsys: pytest.CaptureFixture[str]) -> None:
        fixed, managed = Workers(), Workers("--assignment", "managed", "--member", "m")
        for workers in (fixed, managed):
            workers.report(0, "ended", code=-9)
        assert fixed.monitor.failure == "worker-1 was killed by SIGKILL (was the machine out of memory?)"
        assert managed.monitor.failure is None
        assert capsys.readouterr().err.endswith("; the others take over its partitions.\n")
        managed.monitor.stop()
        managed.report(1, "ended", code=-9)
        assert managed.monitor.failure == "m-2 was killed by SIGKILL (was the machine out of memory?)"

    def test_one_that_had_not_begun_is_killed_while_all_stop(self) -> None:
        workers = Workers()
        workers.monitor._joined.remove(1)
        workers.monitor.stop()
        workers.report(1, "ended", code=-15)
        workers.report(0, "done", **STOPPED)
        assert (workers.monitor.failure, workers.monitor.stopped) == (None, True)

    def test_one_is_told_to_stop_by_somebody_else(self, capsys: pytest.CaptureFixture[str]) -> None:
        managed = Workers("--assignment", "managed", "--member", "m")
        managed.report(0, "done", **STOPPED)
        assert capsys.readouterr().err == "m-1 was told to stop; the others take over its partitions.\n"
        assert managed.note() == ""
        fixed = Workers()
        fixed.report(0, "done", **STOPPED)
        assert "all stop." in capsys.readouterr().err
        assert fixed.note() == "stopping"
        alone = Workers(processes=1)
        alone.report(0, "done", **STOPPED)
        assert capsys.readouterr().err == ""
        assert alone.monitor.stopped

    def test_how_they_took_their_end_is_no_failure(self) -> None:
        workers = Workers("--assignment", "managed")
        workers.handle(0, 5)
        ends = [WorkerReport(n, "ended", {"code": code}) for n, code in enumerate((0, -9))]
        workers.monitor.receive_last_counts(
            [WorkerReport(1, "failed", {"text": "x", "where": "", "refused": False}), *ends]
        )
        assert workers.monitor.failure is None

    def test_one_that_is_killed_has_not_said_how_far_it_had_come(self) -> None:
        workers = Workers()
        for worker in range(2):
            workers.handle(worker, 5, last=worker == 0)
        assert workers.monitor.result("Stopped").startswith("Stopped: at least 10 records in 3 periods")
        workers.handle(1, 6)
        assert workers.monitor.result("Stopped").startswith("Stopped: 11 records in 3 periods")


@pytest.mark.parametrize("how", ["Done", "Stopped"])
def test_what_became_of_records_that_were_not_handled_is_told(how: str) -> None:
    workers = Workers()
    workers.handle(0, 10, late=2, dead_lettered=3)
    workers.handle(1, 5, skipped=1, late=1)
    text = workers.monitor.summary() if how == "Done" else workers.monitor.result(how)
    first, *rest = text.splitlines()
    assert first.startswith(f"{how}: 15 records in 3 periods")
    assert rest == [
        "  3 came after their period had closed",
        "  3 went to the dead-letter function",
        "  1 were skipped (--late drop, --poison skip)",
    ]


def test_who_is_waited_for_is_shown() -> None:
    workers = Workers(processes=3)
    workers.monitor.stop()
    assert workers.note() == "stopping"
    workers.report(1, "done", **STOPPED)
    workers.report(1, "ended", code=0)
    workers.report(0, "status", state="away")
    assert workers.monitor.progress(workers.monitor._last_report_at[0] + 5).note == (
        "stopping: waits for worker-1 and worker-3 for 5.0s; the store does not answer"
    )


class TestWhoIsSlow:
    """The partition that the others really wait for is named, or nobody is."""

    STATUS: ClassVar[dict[str, Any]] = {"state": "running", "waiting_seconds": 0.1, "blocking": [], "done": 0}

    def test_the_partition_that_is_busy_whenever_one_looks(self) -> None:
        workers = Workers()
        for look in range(8):
            workers.handle(0, look, busy=["orders.0"] if look == 3 else [])
            workers.handle(1, look, busy=["orders.2", "orders.3"] if look % 3 else ["orders.3"])
        assert workers.note() == "waits for orders.3 on worker-2"

    def test_nobody_while_there_are_few_looks(self) -> None:
        workers = Workers()
        for look in range(3):
            workers.handle(1, look, busy=["orders.3"])
        assert workers.note() == ""

    def test_nobody_where_all_are_equally_busy(self) -> None:
        workers = Workers()
        for look in range(8):
            workers.handle(0, look, busy=["orders.0", "orders.1"])
            workers.handle(1, look, busy=["orders.2", "orders.3"])
        assert workers.note() == ""

    def test_of_another_command_if_its_member_says_so(self) -> None:
        workers = Workers("--assignment", "managed", "--member", "m")
        workers.monitor._last_joined_at -= 10
        workers.report(
            0, "status", **{**self.STATUS, "waiting_seconds": 3.0, "blocking": [("orders.7", "other-1-ab12")]}
        )
        assert workers.note() == "waits for orders.7 on other-1 for 3.0s"

    def test_a_partition_that_nobody_runs_only_if_that_lasts(self) -> None:
        workers = Workers()
        workers.monitor._last_joined_at -= 10
        workers.report(0, "status", **{**self.STATUS, "blocking": [("orders.0", None)]})
        assert workers.note() == ""
        workers.report(0, "status", **{**self.STATUS, "waiting_seconds": 4.0, "blocking": [("orders.0", None)]})
        assert workers.note() == "waits for orders.0, which is unowned, for 4.0s"

    def test_what_was_seen_before_all_were_there_is_not_shown(self) -> None:
        """The limit may have stood for hours when the run is started again, and for its first status nobody ran anything."""
        words = ["replay", "handlers:handle", "--topic", "orders", "--period", "1m", "--processes", "2"]
        monitor = Monitor(parse(words, ENVIRONMENT), PreviousRun())
        monitor.receive(WorkerReport(0, "joined", {"total": 100}))
        status = {**self.STATUS, "waiting_seconds": 7200.0, "blocking": [("orders.0", None)]}
        monitor.receive(WorkerReport(0, "status", status))
        monitor.receive(WorkerReport(1, "joined", {"total": 100}))
        assert monitor.progress(time.monotonic()).note == ""
        monitor.receive(WorkerReport(0, "status", status))
        assert monitor.progress(time.monotonic()).note == ""

    def test_an_end_to_come_waits_for_the_clock(self) -> None:
        workers = Workers("--to", "2100-01-01T00:00Z")
        workers.report(0, "status", **{**self.STATUS, "clock": True})
        assert workers.note() == "waits for the clock: ends at 2100-01-01T00:00:00Z"
        workers.monitor._clock = lambda: 4_102_444_801.0
        assert workers.note() == ""


def test_a_changed_period_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    workers = Workers()
    for period in (60_000, 300_000, None, 300_000):
        workers.report(0, "status", state="running", period=period)
    assert capsys.readouterr().err == "The period is 5m now; it was 1m.\n"


class TestHowMuchIsDone:
    def test_by_what_its_workers_have_handled(self) -> None:
        workers = Workers()
        workers.handle(0, 20)
        workers.handle(1, 5)
        assert workers.monitor.progress(0.0).share == 0.25
        workers.handle(0, 20, dead_lettered=5, skipped=10, outside=1)
        assert workers.monitor.progress(0.0).share == 0.41, "records that were left out are done, too"

    def test_in_a_managed_group_other_commands_have_done_their_part(self) -> None:
        workers = Workers("--assignment", "managed")
        workers.handle(0, 20)
        workers.report(0, "status", state="running", done=60)
        workers.report(1, "status", state="running", done=50)  # an older look
        view = workers.monitor.progress(0.0)
        assert view.share == 0.6
        assert view.records == 20
