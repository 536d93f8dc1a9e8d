"""The rendering of views: redrawn with rich on a terminal, as lines of plain text elsewhere."""

from __future__ import annotations

import pytest
from rich.console import Console

from aiokcc.cli.render import LogLines, open_progress_display, open_status_display, print_status, write_line
from aiokcc.cli.render_rich import LiveDisplay, render
from aiokcc.runtime.health import Health, HealthKind
from aiokcc.views.model import ReplayProgress, StatusView, Table

T = 1_767_225_600_000
PROGRESS = ReplayProgress(T + 60_000, 0.426, 12_345, 3950.4, 80, "waits for orders.2 on worker-1")
NOT_BEGUN = ReplayProgress(None, None, 0, None, None, "")


def status(limit: str = "00:05", elapsed: str = "5s") -> StatusView:
    """A status of a group that is blocked by one partition."""
    columns = ("partition", "member", "for", "why")
    rows = (("orders.0", "alpha", elapsed, "still has records before the limit"),)
    blocking = Table("Blocking", columns, rows, marked=frozenset({0}))
    health = Health(HealthKind.BLOCKED, f"Blocked for {elapsed}.", False)
    return StatusView("zk://h/replay", health, blocking, (("limit", f"{limit}   300000"),), ())


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stdout and stderr look like a terminal."""
    monkeypatch.setenv("TERM", "xterm")
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)


class TestLine:
    def test_progress(self) -> None:
        assert write_line(PROGRESS) == (
            "2026-01-01T00:01:00Z  42%  12,345 records  3,950/s  1m20s left  waits for orders.2 on worker-1"
        )

    def test_a_replay_that_has_not_begun_has_none(self) -> None:
        assert write_line(NOT_BEGUN) == ""

    def test_status_is_the_limit_and_the_health(self) -> None:
        assert write_line(status()) == "00:05  Blocked for 5s."


class TestLogLines:
    def test_a_status_gets_a_line_when_something_changes_but_not_when_only_time_passes(self) -> None:
        lines: list[str] = []
        log = LogLines(lines.append)
        for view in (status(), status(elapsed="6s"), status(elapsed="7s"), status("00:06"), "the store is away"):
            log.show(view)
        assert lines == ["00:05  Blocked for 5s.", "00:06  Blocked for 5s.", "the store is away"]

    def test_progress_gets_a_line_after_one_second_and_then_every_five(self) -> None:
        now = 0.0
        lines: list[float] = []
        log = LogLines(lambda line: lines.append(now), every=5.0, clock=lambda: now)
        for second in range(13):
            now = float(second)
            log.show(PROGRESS)
        assert lines == [1.0, 6.0, 11.0]

    def test_progress_gets_no_line_before_it_has_begun(self) -> None:
        now = 0.0
        lines: list[str] = []
        log = LogLines(lines.append, every=5.0, clock=lambda: now)
        now = 7.0
        log.show(NOT_BEGUN)
        assert lines == []
        log.show(PROGRESS)
        assert len(lines) == 1


class TestChoice:
    def test_a_pipe_gets_lines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TERM", "xterm")
        for choose in (open_status_display, open_progress_display):
            with choose() as display:
                assert not display.live

    @pytest.mark.usefixtures("terminal")
    def test_a_terminal_is_redrawn(self) -> None:
        for choose in (open_status_display, open_progress_display):
            assert isinstance(choose(), LiveDisplay)

    @pytest.mark.usefixtures("terminal")
    @pytest.mark.parametrize("without", ["rich", "TERM"])
    def test_a_terminal_without_rich_or_a_dumb_one_gets_plain_lines(
        self, without: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        if without == "rich":
            monkeypatch.setitem(__import__("sys").modules, "rich", None)
        else:
            monkeypatch.setenv("TERM", "dumb")
        with open_status_display() as display:
            display.show(status())
        print_status(status())
        lines = capsys.readouterr().out.splitlines()
        assert lines[:3] == ["00:05  Blocked for 5s.", "zk://h/replay", "Blocked for 5s."]
        assert "\x1b" not in "".join(lines)

    @pytest.mark.usefixtures("terminal")
    def test_the_output_of_a_replay_that_goes_to_a_file_leaves_the_terminal_to_messages(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdout.isatty", lambda: False)
        with open_progress_display() as display:
            assert not display.live


class TestLiveDisplay:
    def test_the_last_status_stays_on_the_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        with LiveDisplay(full_screen=True) as display:
            display.show("no group yet")
            display.show(status(elapsed="5s"))
            display.show(status(elapsed="6s"))
        shown = capsys.readouterr().out.rpartition("\x1b[?1049l")[2]
        assert "Blocked for 6s." in shown
        assert "still has records before the limit" in shown

    @pytest.mark.parametrize("columns", [20, 50, 79, 80, 100, 200])
    @pytest.mark.parametrize("share", [None, 0.42])
    def test_progress_is_never_wider_than_the_terminal(self, columns: int, share: float | None) -> None:
        """A line that is too long would wrap, and could not be redrawn in place."""
        view = ReplayProgress(T, share, 123_456_789, 123_456.0, 80, "waits for orders.2 on worker-1 for 12s")
        console = Console(width=columns, force_terminal=True, color_system=None)
        with console.capture() as captured:
            console.print(render(view, columns))
        lines = captured.get().splitlines()
        assert max(map(len, lines)) <= columns
        if columns >= 80:
            assert "123,456,789 records  123,456/s  1m20s left" in lines[0]
            assert "waits for orders.2 on worker-1 for 12s" in captured.get()
