"""The question before a verb that cannot be undone."""

from __future__ import annotations

import argparse
import io

import pytest

from aiokcc.cli.confirm import ask
from aiokcc.errors import UsageError

TYPED = argparse.Namespace(yes=False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_with_yes_nothing_is_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert ask(argparse.Namespace(yes=True), "delete", "This deletes all.")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("answer", "agrees"), [("y\n", True), (" YES \n", True), ("\n", False), ("no\n", False), ("", False)]
)
def test_only_yes_agrees(
    answer: str, agrees: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert ask(TYPED, "prune", "This deletes some.") is agrees
    assert capsys.readouterr().out == "This deletes some.\nPrune? [y/N] "


def test_without_a_terminal_the_error_says_why_a_question_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError, match="^delete cannot be undone; add --yes to confirm$"):
        ask(TYPED, "delete", "This deletes all.")
    with pytest.raises(UsageError, match="^release is final for the run; add --yes to confirm$"):
        ask(TYPED, "release", "This opens the gate.", why="is final for the run")
