"""The choice of the event loop: what it is without uvloop, with it, and what a wrong choice is told."""

from __future__ import annotations

import argparse
import asyncio
import sys

import pytest

from aiokcc.cli import loops
from aiokcc.cli.arguments import parse
from aiokcc.cli.loops import choose_loop, run_on
from aiokcc.errors import UsageError


@pytest.fixture(params=["installed", "missing"])
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    there = bool(request.param == "installed")
    monkeypatch.setattr(loops, "find_spec", lambda name: name if there else None)
    return there


async def module_of_the_loop() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


def replay(*more: str, **environment: str) -> argparse.Namespace:
    given = {"AIOKCC_STORE": "zk://h/replay", **environment}
    return parse(["replay", "handlers:handle", "--topic", "orders", "--period", "1m", *more], given)


def test_auto_is_uvloop_where_it_is_installed(installed: bool) -> None:
    assert choose_loop("auto") == ("uvloop" if installed else "asyncio")
    assert choose_loop("asyncio") == "asyncio"


def test_uvloop_by_name_has_to_be_installed(installed: bool) -> None:
    if installed:
        assert choose_loop("uvloop") == "uvloop"
    else:
        with pytest.raises(UsageError, match=r"pip install 'aiokcc\[uvloop\]'"):
            choose_loop("uvloop")


def test_another_name_is_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match="'gevent' is no event loop; expected auto, asyncio, uvloop"):
        run_on("gevent", module_of_the_loop())


def test_the_work_runs_on_the_loop_that_was_chosen() -> None:
    assert run_on("asyncio", module_of_the_loop()) == "asyncio"


def test_the_work_runs_on_uvloop() -> None:
    pytest.importorskip("uvloop")
    assert run_on("uvloop", module_of_the_loop()) == "uvloop"
    assert run_on("auto", module_of_the_loop()) == "uvloop"


def test_the_option_goes_before_the_variable_and_both_before_the_default() -> None:
    assert replay().loop == "auto"
    assert replay(AIOKCC_LOOP="asyncio").loop == "asyncio"
    assert replay("--loop", "uvloop", AIOKCC_LOOP="asyncio").loop == "uvloop"


def test_the_package_does_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    monkeypatch.setattr(loops, "find_spec", lambda name: None)
    assert run_on("auto", module_of_the_loop()) == "asyncio"
