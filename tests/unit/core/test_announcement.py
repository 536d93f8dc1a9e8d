"""The name that announces a limit."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from aiokcc.core.announcement import Announcement, checksum
from aiokcc.core.limit import END, OPEN, Limit


@pytest.mark.parametrize(
    ("limit", "name"),
    [
        (Limit((60_000,)), "7:60000:XXX"),
        (Limit((60_000, 120_000, 180_000), closed=1), "7:180000,120000,60000,after,1:XXX"),
        (OPEN, "7:open:XXX"),
        (END, "7:end:XXX"),
        (None, "7"),
    ],
)
def test_a_name_is_read_as_it_was_written(limit: Limit | None, name: str) -> None:
    announcement = Announcement(7, limit)
    written = announcement.name("worker-1")
    assert re.sub(":[0-9a-f]{8}$", ":XXX", written) == name
    assert Announcement.parse(written, "worker-1") == announcement


def test_a_limit_that_is_too_long_is_left_out() -> None:
    assert Announcement(7, Limit(tuple(range(10**12, 10**12 + 100)))).name("worker-1") == "7"


@pytest.mark.parametrize("name", ["", ":", "x", "7:", "7:x", "-7:5", "7:5,", "7:5,6", "\u0663:5", "7" * 11])
def test_another_name_is_no_announcement(name: str) -> None:
    found = Announcement.parse(name, "worker-1")
    assert found is None or found.limit is None


@pytest.mark.parametrize(
    "changed",
    [
        lambda name: name.replace("7:", "8:"),
        lambda name: name.replace("60000", "60001"),
        lambda name: name[:-1],
        lambda name: name.rpartition(":")[0],
        lambda name: name.upper().replace("7:60000", "7:open"),
    ],
)
def test_a_name_that_the_leader_has_not_written_has_no_limit(changed: Callable[[str], str]) -> None:
    name = Announcement(7, Limit((60_000,))).name("worker-1")
    found = Announcement.parse(changed(name), "worker-1")
    assert found is not None
    assert found.limit is None
    assert Announcement.parse(name, "worker-2") == Announcement(7, None)


def test_a_checksum_does_not_make_a_limit_of_nonsense() -> None:
    for stated in ("7:x", "7:5,6"):
        assert Announcement.parse(f"{stated}:{checksum(stated, 'worker-1')}", "worker-1") is None
