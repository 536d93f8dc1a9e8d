"""The monitor turns reports of workers into notes, messages and a result; no process is started."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from aiokcc.cli.arguments import parse
from aiokcc.cli.monitor import Monitor
from aiokcc.cli.previous_run import PreviousRun
from aiokcc.cli.probe_server import Probes
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
    """Return the state of the run in the store after the command has stopped."""
    before = PreviousRun(others=others, known=known)
    before.exists, before.closed = run, closed
    return before


def test_the_probes_forget_a_worker_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers("--assignment", "managed", "--metrics", "127.0.0.1:9464")
    workers.monitor.probes = probes = Probes(2)
    clock = [1000.0]
    monkeypatch.setattr("aiokcc.cli.probe_server.time.monotonic", lambda: clock[0])
    fine = {"live": True, "ready": True, "stuck": False}
    workers.report(0, "probe", health=fine, metrics=[["aiokcc.periods", 7, {"member": "one"}]])
    workers.report(1, "probe", health=fine, metrics=[["aiokcc.periods", 8, {"member": "two"}]])
    workers.report(0, "ended", code=-9)  # the other takes over its partitions
    clock[0] += 60
    workers.report(1, "probe", health=fine, metrics=[["aiokcc.periods", 9, {"member": "two"}]])
    health = probes.health()
    assert (health["live"], health["ready"], health["silent"], len(health["workers"])) == (True, True, [], 1)
    assert b'member="one"' not in probes.metrics()
    workers.handle(1, 7)  # its last report: it has left the run, and may take its time to exit
    assert (probes.health()["live"], probes.health()["ready"]) == (True, False)


class TestHowToResume:
    def how(self, *more: str, last: PreviousRun | None = None, in_order: bool = True, processes: int = 2) -> str:
        workers = Workers(*more, processes=processes)
        workers.handle(0, 7)
        return workers.monitor.how_to_resume(last or left(), in_order=in_order).splitlines()[0]

    def test_after_a_graceful_stop_with_commits_it_resumes_with_the_next_record(self) -> None:
        exactly = "The same command resumes with the next record:"
        assert self.how("--group-id", "g") == exactly
        assert self.how("--offset-storage", "store") == exactly

    @pytest.mark.parametrize("more", [("--lookahead", "2"), ("--lateness", "30s")])
    def test_with_lookahead_or_lateness_it_resumes_at_the_last_boundary(self, more: tuple[str, ...]) -> None:
        assert self.how("--group-id", "g", *more) == "The same command resumes at 2026-01-01T00:00:00Z:"

    def test_without_commits_handled_records_come_again(self) -> None:
        assert self.how() == (
            "The same command resumes at 2026-01-01T00:00:00Z; "
            "records handled since then come again, because no offsets are committed:"
        )

    def test_after_a_stop_at_once_it_resumes_at_the_last_boundary(self) -> None:
        assert self.how("--group-id", "g", in_order=False) == "The same command resumes at 2026-01-01T00:00:00Z:"
        assert self.how("--group-id", "g", in_order=False, last=left(closed=None)) == (
            "The same command resumes from the beginning:"
        )

    def test_if_the_store_does_not_answer_the_boundary_is_not_named(self) -> None:
        unknown = left(run=False, closed=None, known=False)
        assert self.how("--group-id", "g", last=unknown) == "The same command resumes where the last period closed:"

    def test_if_no_run_was_founded_the_same_command_starts_it(self) -> None:
        assert self.how(last=left(run=False, closed=None)) == "Nothing was started. The same command starts it:"

    def test_in_a_managed_group_the_other_members_go_on(self) -> None:
        others = "The other members go on. The same command joins again:"
        assert self.how("--assignment", "managed", last=left(others=True)) == others
        assert self.how(last=left(others=True)) != others, "the assignment is fixed: nobody takes the partitions over"

    def test_after_a_failed_commit_it_resumes_at_the_last_boundary(self, capsys: pytest.CaptureFixture[str]) -> None:
        workers = Workers("--group-id", "g")
        for _ in range(2):
            workers.report(1, "trouble", text="could not commit offsets")
        assert capsys.readouterr().err == "worker-2: could not commit offsets\n"
        assert workers.monitor.how_to_resume(left(), in_order=True).startswith("The same command resumes at 2026-")

    def test_a_run_in_memory_resumes_only_from_offsets_in_kafka(self) -> None:
        store = ("memory://once",)
        assert self.how(*store, processes=1).startswith("memory:// remembers nothing")
        assert self.how(*store, "--group-id", "g", processes=1).endswith("the same command with --from committed.")
        committed = (*store, "--group-id", "g", "--from", "committed")
        assert self.how(*committed, processes=1) == "The same command resumes from the committed offsets:"


class TestExitedWorkers:
    def test_the_run_is_done_when_all_workers_are_done(self) -> None:
        workers = Workers()
        for worker in range(2):
            workers.handle(worker, 50)
            workers.report(worker, "done", **DONE)
            workers.report(worker, "ended", code=0)
        assert (workers.monitor.failure, workers.monitor.stopped) == (None, False)
        assert workers.monitor.summary().startswith("Done: 100 records in 3 periods")

    def test_a_killed_worker_is_a_failure_unless_others_take_over(self, capsys: pytest.CaptureFixture[str]) -> None:
        fixed, managed = Workers(), Workers("--assignment", "managed", "--member", "m")
        for workers in (fixed, managed):
            workers.report(0, "ended", code=-9)
        assert fixed.monitor.failure == "worker-1 was killed by SIGKILL (was the machine out of memory?)"
        assert managed.monitor.failure is None
        assert capsys.readouterr().err.endswith("; the others take over its partitions.\n")
        managed.monitor.stop()
        managed.report(1, "ended", code=-9)
        assert managed.monitor.failure == "m-2 was killed by SIGKILL (was the machine out of memory?)"

    def test_a_worker_that_dies_before_it_joins_is_no_failure_during_a_stop(self) -> None:
        workers = Workers()
        workers.monitor._joined.remove(1)
        workers.monitor.stop()
        workers.report(1, "ended", code=-15)
        workers.report(0, "done", **STOPPED)
        assert (workers.monitor.failure, workers.monitor.stopped) == (None, True)

    def test_sigterm_to_one_worker_stops_all_unless_others_take_over(self, capsys: pytest.CaptureFixture[str]) -> None:
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

    def test_reports_that_arrive_after_the_end_are_no_failure(self) -> None:
        workers = Workers("--assignment", "managed")
        workers.handle(0, 5)
        ends = [WorkerReport(n, "ended", {"code": code}) for n, code in enumerate((0, -9))]
        workers.monitor.receive_last_counts(
            [WorkerReport(1, "failed", {"text": "x", "where": "", "refused": False}), *ends]
        )
        assert workers.monitor.failure is None

    def test_without_the_last_counts_of_a_worker_the_result_says_at_least(self) -> None:
        workers = Workers()
        for worker in range(2):
            workers.handle(worker, 5, last=worker == 0)
        assert workers.monitor.result("Stopped").startswith("Stopped: at least 10 records in 3 periods")
        workers.handle(1, 6)
        assert workers.monitor.result("Stopped").startswith("Stopped: 11 records in 3 periods")


@pytest.mark.parametrize("how", ["Done", "Stopped"])
def test_the_result_counts_late_dead_lettered_and_skipped_records(how: str) -> None:
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


def test_a_stop_names_the_workers_that_it_waits_for() -> None:
    workers = Workers(processes=3)
    workers.monitor.stop()
    assert workers.note() == "stopping"
    workers.report(1, "done", **STOPPED)
    workers.report(1, "ended", code=0)
    workers.report(0, "status", state="away")
    assert workers.monitor.progress(workers.monitor._last_report_at[0] + 5).note == (
        "stopping: waits for worker-1 and worker-3 for 5.0s; the store does not answer"
    )


class TestSlowestPartition:
    """The note names the partition that the others wait for, or none."""

    STATUS: ClassVar[dict[str, Any]] = {"state": "running", "waiting_seconds": 0.1, "blocking": [], "done": 0}

    def test_a_partition_that_is_busy_in_nearly_every_sample_is_named(self) -> None:
        workers = Workers()
        for sample in range(8):
            workers.handle(0, sample, busy=["orders.0"] if sample == 3 else [])
            workers.handle(1, sample, busy=["orders.2", "orders.3"] if sample % 3 else ["orders.3"])
        assert workers.note() == "waits for orders.3 on worker-2"

    def test_none_is_named_while_there_are_few_samples(self) -> None:
        workers = Workers()
        for sample in range(3):
            workers.handle(1, sample, busy=["orders.3"])
        assert workers.note() == ""

    def test_none_is_named_if_all_are_equally_busy(self) -> None:
        workers = Workers()
        for sample in range(8):
            workers.handle(0, sample, busy=["orders.0", "orders.1"])
            workers.handle(1, sample, busy=["orders.2", "orders.3"])
        assert workers.note() == ""

    def test_a_partition_of_another_command_is_named_from_the_status(self) -> None:
        workers = Workers("--assignment", "managed", "--member", "m")
        workers.monitor._last_joined_at -= 10
        workers.report(
            0, "status", **{**self.STATUS, "waiting_seconds": 3.0, "blocking": [("orders.7", "other-1-ab12")]}
        )
        assert workers.note() == "waits for orders.7 on other-1 for 3.0s"

    def test_an_unowned_partition_is_named_only_after_a_while(self) -> None:
        workers = Workers()
        workers.monitor._last_joined_at -= 10
        workers.report(0, "status", **{**self.STATUS, "blocking": [("orders.0", None)]})
        assert workers.note() == ""
        workers.report(0, "status", **{**self.STATUS, "waiting_seconds": 4.0, "blocking": [("orders.0", None)]})
        assert workers.note() == "waits for orders.0, which is unowned, for 4.0s"

    def test_waiting_times_from_before_all_workers_joined_are_ignored(self) -> None:
        """When a run is resumed, the limit may have stood for hours, and in the first status no partition has an owner."""
        words = ["replay", "handlers:handle", "--topic", "orders", "--period", "1m", "--processes", "2"]
        monitor = Monitor(parse(words, ENVIRONMENT), PreviousRun())
        monitor.receive(WorkerReport(0, "joined", {"total": 100}))
        status = {**self.STATUS, "waiting_seconds": 7200.0, "blocking": [("orders.0", None)]}
        monitor.receive(WorkerReport(0, "status", status))
        monitor.receive(WorkerReport(1, "joined", {"total": 100}))
        assert monitor.progress(time.monotonic()).note == ""
        monitor.receive(WorkerReport(0, "status", status))
        assert monitor.progress(time.monotonic()).note == ""

    def test_a_run_with_an_end_in_the_future_waits_for_the_clock(self) -> None:
        workers = Workers("--to", "2100-01-01T00:00Z")
        workers.report(0, "status", **{**self.STATUS, "clock": True})
        assert workers.note() == "waits for the clock: ends at 2100-01-01T00:00:00Z"
        workers.monitor._clock = lambda: 4_102_444_801.0
        assert workers.note() == ""


def test_a_changed_period_is_announced_once(capsys: pytest.CaptureFixture[str]) -> None:
    workers = Workers()
    for period in (60_000, 300_000, None, 300_000):
        workers.report(0, "status", state="running", period=period)
    assert capsys.readouterr().err == "The period is 5m now; it was 1m.\n"


class TestShare:
    def test_it_counts_the_records_that_the_workers_have_handled_or_left_out(self) -> None:
        workers = Workers()
        workers.handle(0, 20)
        workers.handle(1, 5)
        assert workers.monitor.progress(0.0).share == 0.25
        workers.handle(0, 20, dead_lettered=5, skipped=10, outside=1)
        assert workers.monitor.progress(0.0).share == 0.41, "records that were left out count as done"

    def test_in_a_managed_group_it_counts_the_offsets_of_all_members(self) -> None:
        workers = Workers("--assignment", "managed")
        workers.handle(0, 20)
        workers.report(0, "status", state="running", done=60)
        workers.report(1, "status", state="running", done=50)  # an older status
        view = workers.monitor.progress(0.0)
        assert view.share == 0.6
        assert view.records == 20


class TestWhatALookaheadWouldHaveSaved:
    def said(self, *more: str, **counts: float) -> str:
        workers = Workers(*more)
        now = workers.monitor._first_joined_at
        assert now is not None
        workers.handle(0, 7, **{"round_trips": 3.0, "waited": 9.0, **counts})  # type: ignore[arg-type]
        workers.handle(1, 7, round_trips=2.0, waited=9.0)  # type: ignore[arg-type]
        workers.monitor._last_record_at = now + 10
        return workers.monitor.summary()

    def test_it_is_what_every_worker_waited_for_at_least(self) -> None:
        assert "About 2.0 of 10.0 s were spent waiting for round trips to the store. --lookahead auto" in self.said()

    def test_it_is_not_said_where_it_is_little_or_a_lookahead_is_given(self) -> None:
        assert "round trips" not in self.said(round_trips=0.4)
        assert "round trips" not in self.said("--lookahead", "2")
