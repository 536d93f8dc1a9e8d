"""What a command makes of what its workers say: nothing is started, the reports are written here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from aiokcc.cli.arguments import parse
from aiokcc.cli.monitor import Monitor
from aiokcc.cli.previous_run import Before
from aiokcc.cli.worker_pool import Report

ENVIRONMENT = {"AIOKCC_STORE": "zk://h/replay", "AIOKCC_BOOTSTRAP_SERVERS": "h:9092"}
T = 1_767_225_600_000
DONE = {"released": False, "stopped": False}
STOPPED = {"released": False, "stopped": True}


class Team:
    """An account, and its workers."""

    def __init__(self, *more: str, processes: int = 2) -> None:
        words = ["replay", "handlers:handle", "--topic", "orders", "--period", "1m", "--processes", str(processes)]
        self.account = Monitor(parse([*words, *more], ENVIRONMENT), Before())
        for worker in range(processes):
            self.say(worker, "joined", total=100)

    def say(self, worker: int, kind: str, **facts: Any) -> None:
        self.account.hear(Report(worker, kind, facts))

    def handle(self, worker: int, records: int, *, last: bool = True, busy: Sequence[str] = (), **rare: int) -> None:
        where = {"partitions": 2, "busy": list(busy)}
        none = dict.fromkeys(("late", "outside", "poisoned", "retried", "dead_lettered", "skipped"), 0)
        self.say(worker, "counts", records=records, periods=3, limit=T, last=last, **where, **{**none, **rare})

    def note(self) -> str:
        return self.account._view(self.account._heard[0]).note


def left(run: bool = True, closed: int | None = T, *, others: bool = False, known: bool = True) -> Before:
    """What the store says afterwards."""
    before = Before(others=others, known=known)
    before.exists, before.closed = run, closed
    return before


class TestGoingOn:
    def how(self, *more: str, last: Before | None = None, in_order: bool = True, processes: int = 2) -> str:
        team = Team(*more, processes=processes)
        team.handle(0, 7)
        return team.account.going_on(last or left(), in_order=in_order).splitlines()[0]

    def test_in_good_order(self) -> None:
        exactly = "The same command goes on with the next record:"
        assert self.how("--group-id", "g") == exactly
        assert self.how("--offset-storage", "store") == exactly

    @pytest.mark.parametrize("more", [("--lookahead", "2"), ("--lateness", "30s")])
    def test_records_are_handled_ahead_of_what_may_be_committed(self, more: tuple[str, ...]) -> None:
        assert self.how("--group-id", "g", *more) == "The same command goes on at 2026-01-01T00:00:00Z:"

    def test_nothing_is_committed(self) -> None:
        assert self.how() == (
            "The same command goes on at 2026-01-01T00:00:00Z; "
            "what was handled since comes again, for no offsets are committed:"
        )

    def test_at_once(self) -> None:
        assert self.how("--group-id", "g", in_order=False) == "The same command goes on at 2026-01-01T00:00:00Z:"
        assert self.how("--group-id", "g", in_order=False, last=left(closed=None)) == (
            "The same command goes on from the beginning:"
        )

    def test_the_store_cannot_be_asked(self) -> None:
        unknown = left(run=False, closed=None, known=False)
        assert self.how("--group-id", "g", last=unknown) == "The same command goes on where the last period closed:"

    def test_nothing_was_begun(self) -> None:
        assert self.how(last=left(run=False, closed=None)) == "Nothing was begun. The same command starts it:"

    def test_others_go_on(self) -> None:
        others = "The others of the group go on. The same command takes part again:"
        assert self.how("--assignment", "managed", last=left(others=True)) == others
        assert self.how(last=left(others=True)) != others, "who has what is fixed: nobody takes it over"

    def test_what_could_not_be_committed_is_not_promised(self, capsys: pytest.CaptureFixture[str]) -> None:
        team = Team("--group-id", "g")
        for _ in range(2):
            team.say(1, "trouble", text="could not commit offsets")
        assert capsys.readouterr().err == "worker-2: could not commit offsets\n"
        assert team.account.going_on(left(), in_order=True).startswith("The same command goes on at 2026-")

    def test_in_memory(self) -> None:
        store = ("memory://once",)
        assert self.how(*store, processes=1).startswith("memory:// remembers nothing")
        assert self.how(*store, "--group-id", "g", processes=1).endswith("the same command with --from committed.")
        committed = (*store, "--group-id", "g", "--from", "committed")
        assert self.how(*committed, processes=1) == "The same command goes on by the committed offsets:"


class TestWhoIsGone:
    def test_all_are_done(self) -> None:
        team = Team()
        for worker in range(2):
            team.handle(worker, 50)
            team.say(worker, "done", **DONE)
            team.say(worker, "ended", code=0)
        assert (team.account.failure, team.account.stopped) == (None, False)
        assert team.account.summary().startswith("Done: 100 records in 3 periods")

    def test_one_is_killed(self, capsys: pytest.CaptureFixture[str]) -> None:
        fixed, managed = Team(), Team("--assignment", "managed", "--member", "m")
        for team in (fixed, managed):
            team.say(0, "ended", code=-9)
        assert fixed.account.failure == "worker-1 was killed by SIGKILL (was the machine out of memory?)"
        assert managed.account.failure is None
        assert capsys.readouterr().err.endswith("; the others take over what it had.\n")
        managed.account.stop()
        managed.say(1, "ended", code=-9)
        assert managed.account.failure == "m-2 was killed by SIGKILL (was the machine out of memory?)"

    def test_one_that_had_not_begun_is_killed_while_all_stop(self) -> None:
        team = Team()
        team.account._there.remove(1)
        team.account.stop()
        team.say(1, "ended", code=-15)
        team.say(0, "done", **STOPPED)
        assert (team.account.failure, team.account.stopped) == (None, True)

    def test_one_is_told_to_stop_by_somebody_else(self, capsys: pytest.CaptureFixture[str]) -> None:
        managed = Team("--assignment", "managed", "--member", "m")
        managed.say(0, "done", **STOPPED)
        assert capsys.readouterr().err == "m-1 was told to stop; the others take over what it had.\n"
        assert managed.note() == ""
        fixed = Team()
        fixed.say(0, "done", **STOPPED)
        assert "all stop." in capsys.readouterr().err
        assert fixed.note() == "stopping"
        alone = Team(processes=1)
        alone.say(0, "done", **STOPPED)
        assert capsys.readouterr().err == ""
        assert alone.account.stopped

    def test_how_they_took_their_end_is_no_failure(self) -> None:
        team = Team("--assignment", "managed")
        team.handle(0, 5)
        ends = [Report(n, "ended", {"code": code}) for n, code in enumerate((0, -9))]
        team.account.hear_out([Report(1, "failed", {"text": "x", "where": "", "refused": False}), *ends])
        assert team.account.failure is None

    def test_one_that_is_killed_has_not_said_how_far_it_had_come(self) -> None:
        team = Team()
        for worker in range(2):
            team.handle(worker, 5, last=worker == 0)
        assert team.account.result("Stopped").startswith("Stopped: at least 10 records in 3 periods")
        team.handle(1, 6)
        assert team.account.result("Stopped").startswith("Stopped: 11 records in 3 periods")


@pytest.mark.parametrize("how", ["Done", "Stopped"])
def test_what_became_of_records_that_were_not_handled_is_told(how: str) -> None:
    team = Team()
    team.handle(0, 10, late=2, dead_lettered=3)
    team.handle(1, 5, skipped=1, late=1)
    text = team.account.summary() if how == "Done" else team.account.result(how)
    first, *rest = text.splitlines()
    assert first.startswith(f"{how}: 15 records in 3 periods")
    assert rest == [
        "  3 came after their period had closed",
        "  3 went to the dead-letter function",
        "  1 were skipped (--late drop, --poison skip)",
    ]


def test_who_is_waited_for_is_shown() -> None:
    team = Team(processes=3)
    team.account.stop()
    assert team.note() == "stopping"
    team.say(1, "done", **STOPPED)
    team.say(1, "ended", code=0)
    team.say(0, "status", state="away")
    assert team.account._view(team.account._heard[0] + 5).note == (
        "stopping: waits for worker-1 and worker-3 for 5.0s; the store does not answer"
    )


class TestWhoIsSlow:
    """The partition that the others really wait for is named, or nobody is."""

    STATUS: ClassVar[dict[str, Any]] = {"state": "running", "waiting_seconds": 0.1, "blocking": [], "done": 0}

    def test_the_partition_that_is_busy_whenever_one_looks(self) -> None:
        team = Team()
        for look in range(8):
            team.handle(0, look, busy=["orders.0"] if look == 3 else [])
            team.handle(1, look, busy=["orders.2", "orders.3"] if look % 3 else ["orders.3"])
        assert team.note() == "waits for orders.3 on worker-2"

    def test_nobody_while_there_are_few_looks(self) -> None:
        team = Team()
        for look in range(3):
            team.handle(1, look, busy=["orders.3"])
        assert team.note() == ""

    def test_nobody_where_all_are_equally_busy(self) -> None:
        team = Team()
        for look in range(8):
            team.handle(0, look, busy=["orders.0", "orders.1"])
            team.handle(1, look, busy=["orders.2", "orders.3"])
        assert team.note() == ""

    def test_of_another_command_if_its_member_says_so(self) -> None:
        team = Team("--assignment", "managed", "--member", "m")
        team.account._all_there -= 10
        team.say(0, "status", **{**self.STATUS, "waiting_seconds": 3.0, "blocking": [("orders.7", "other-1-ab12")]})
        assert team.note() == "waits for orders.7 on other-1 for 3.0s"

    def test_a_partition_that_nobody_runs_only_if_that_lasts(self) -> None:
        team = Team()
        team.account._all_there -= 10
        team.say(0, "status", **{**self.STATUS, "blocking": [("orders.0", None)]})
        assert team.note() == ""
        team.say(0, "status", **{**self.STATUS, "waiting_seconds": 4.0, "blocking": [("orders.0", None)]})
        assert team.note() == "waits for orders.0, which nobody runs for 4.0s"

    def test_what_was_seen_before_all_were_there_is_not_shown(self) -> None:
        """The limit may have stood for hours when the run is started again, and for its first status nobody ran anything."""
        words = ["replay", "handlers:handle", "--topic", "orders", "--period", "1m", "--processes", "2"]
        account = Monitor(parse(words, ENVIRONMENT), Before())
        account.hear(Report(0, "joined", {"total": 100}))
        status = {**self.STATUS, "waiting_seconds": 7200.0, "blocking": [("orders.0", None)]}
        account.hear(Report(0, "status", status))
        account.hear(Report(1, "joined", {"total": 100}))
        assert account._view(time.monotonic()).note == ""
        account.hear(Report(0, "status", status))
        assert account._view(time.monotonic()).note == ""

    def test_an_end_to_come_waits_for_the_clock(self) -> None:
        team = Team("--to", "2100-01-01T00:00Z")
        team.say(0, "status", **{**self.STATUS, "clock": True})
        assert team.note() == "waits for the clock: ends at 2100-01-01T00:00:00Z"
        team.account._clock = lambda: 4_102_444_801.0
        assert team.note() == ""


def test_a_changed_period_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    team = Team()
    for period in (60_000, 300_000, None, 300_000):
        team.say(0, "status", state="running", period=period)
    assert capsys.readouterr().err == "The period is 5m now; it was 1m.\n"


class TestHowMuchIsDone:
    def test_by_what_its_workers_have_handled(self) -> None:
        team = Team()
        team.handle(0, 20)
        team.handle(1, 5)
        assert team.account._view(0.0).share == 0.25
        team.handle(0, 20, dead_lettered=5, skipped=10, outside=1)
        assert team.account._view(0.0).share == 0.41, "records that were left out are done, too"

    def test_in_a_managed_group_other_commands_have_done_their_part(self) -> None:
        team = Team("--assignment", "managed")
        team.handle(0, 20)
        team.say(0, "status", state="running", done=60)
        team.say(1, "status", state="running", done=50)  # an older look
        view = team.account._view(0.0)
        assert view.share == 0.6
        assert view.records == 20
