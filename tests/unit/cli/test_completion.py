"""The completion scripts, in a real bash; those for zsh and fish are made from the same parser."""

from __future__ import annotations

import subprocess

import pytest

from aiokcc.cli.app import main


def complete(script: str, *words: str) -> list[str]:
    quoted = " ".join(f"'{word}'" for word in words)
    asked = f'COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _aiokcc; printf "%s\\n" "${{COMPREPLY[@]}}"'
    ended = subprocess.run(["bash", "-c", f"{script}\n{asked}"], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    return ended.stdout.split()


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", "bash"]) == 0
    return capsys.readouterr().out


def test_bash_completes_verbs_options_and_choices(script: str) -> None:
    assert complete(script, "aiokcc", "sta") == ["status"]
    assert complete(script, "aiokcc", "offsets", "ex") == ["export"]
    assert complete(script, "aiokcc", "replay", "a:b", "--boot") == ["--bootstrap-servers"]
    assert complete(script, "aiokcc", "replay", "a:b", "--assignment", "m") == ["managed"]
    assert complete(script, "aiokcc", "offsets", "show", "--kafka") == ["--kafka-config"]
    assert complete(script, "aiokcc", "status", "--follow") == []
    assert complete(script, "aiokcc", "completion", "z") == ["zsh"]
    assert complete(script, "aiokcc", "replay", "--assignment", "=", "m") == ["managed"], "bash splits at the sign"
    assert complete(script, "aiokcc", "replay", "--assignment", "=") == ["fixed", "managed"]


def test_zsh_has_a_function_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """In zsh arrays begin at 1, and ``path`` is the search path: the function of bash does not run there."""
    assert main(["completion", "zsh"]) == 0
    zsh = capsys.readouterr().out
    assert zsh.startswith("#compdef aiokcc\n")
    assert '" replay:--assignment") compadd -- fixed managed && return; return ;;' in zsh
    assert '" completion") compadd -- bash zsh fish ' in zsh
    assert not {"COMP_WORDS", "compgen", " path="} & set(zsh.split())


def test_fish(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "complete -c aiokcc -f -n __fish_use_subcommand -a status" in lines
    (assignment,) = [line for line in lines if "-l assignment " in line]
    assert "__fish_seen_subcommand_from replay; and not __fish_seen_subcommand_from offsets" in assignment
    assert "-l assignment -r -f -a 'fixed managed'" in assignment
    (watch,) = [line for line in lines if "-l watch " in line]
    assert "__fish_seen_subcommand_from status; and not " in watch, "`pipeline status` has no such option"


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "expected bash, zsh, fish" in capsys.readouterr().err
