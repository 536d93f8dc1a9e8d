"""The name that announces a limit."""

from __future__ import annotations

import pytest

from aiokcc.core.announcement import Announcement
from aiokcc.core.limit import END, OPEN, Limit


@pytest.mark.parametrize(
    ("limit", "name"),
    [
        (Limit((60_000,)), "7:60000"),
        (Limit((60_000, 120_000, 180_000), closed=1), "7:180000,120000,60000,after,1"),
        (OPEN, "7:open"),
        (END, "7:end"),
        (None, "7"),
    ],
)
def test_a_name_is_read_as_it_was_written(limit: Limit | None, name: str) -> None:
    announcement = Announcement(7, limit)
    assert announcement.name == name
    assert Announcement.parse(name) == announcement


def test_a_limit_that_is_too_long_is_left_out() -> None:
    assert Announcement(7, Limit(tuple(range(10**12, 10**12 + 100)))).name == "7"


@pytest.mark.parametrize("name", ["", ":", "x", "7:", "7:x", "-7:5", "7:5,", "7:5,6", "\u0663:5", "7" * 11])
def test_another_name_is_no_announcement(name: str) -> None:
    found = Announcement.parse(name)
    assert found is None or found.name == name or found.limit == Limit((5,))


@pytest.mark.parametrize(
    ("version", "known", "expected"),
    [(5, 4, True), (12, 4, True), (13, 4, False), (4, 4, False), (3, 4, False), (5, None, False)],
)
def test_only_the_next_advance_follows(version: int, known: int | None, expected: bool) -> None:
    assert Announcement(version, Limit((10,))).follows(known) is expected
    assert not Announcement(version, None).follows(known)
