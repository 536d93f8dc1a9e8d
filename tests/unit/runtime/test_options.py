"""The options with which a member joins are checked once, where they enter, and do not change afterwards."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import aiokcc
from aiokcc.core.run import MANAGED
from aiokcc.errors import UsageError
from aiokcc.runtime.options import GroupOptions, wall_clock


def test_the_defaults() -> None:
    options = GroupOptions.check(period="1m")
    assert options.settings.period == 60_000
    assert options.settings.partitions == frozenset()
    assert (options.managed, options.member, options.claim_timeout) == (None, None, None)
    assert options.clock is wall_clock


def test_they_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        GroupOptions.check(period="1m").member = "other"  # type: ignore[misc]


def test_a_managed_group_says_so_in_the_agreement() -> None:
    options = GroupOptions.check(period="1m", source="kafka", assignment="managed", expect=3)
    assert options.managed is not None
    assert options.managed.expect == 3
    assert options.settings.source == f"kafka {MANAGED}"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"period": "0s"}, "period"),
        ({"clock": 5}, "clock is 5; expected a function"),
        ({"member": "a/b"}, "a/b"),
        ({"session_timeout": 0}, "session_timeout 0 is not a number of seconds"),
        ({"connect_timeout": True}, "connect_timeout True"),
        ({"claim_timeout": -1}, "math.inf waits"),
        ({"expect": 3}, 'expect only mean something with assignment="managed"'),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_invalid_option_is_refused_at_once(wrong: dict[str, Any], words: str) -> None:
    given = {"period": "1m", **wrong}
    for call in (
        GroupOptions.check,
        lambda **more: aiokcc.connect("memory://checked", topics={"orders": 1}, **more),
        lambda **more: aiokcc.replay(
            "orders", bootstrap_servers="h:1", store="memory://c", **{"assignment": None, **more}
        ),
    ):
        with pytest.raises(UsageError, match=words):
            call(**given)
