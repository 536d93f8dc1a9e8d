"""A feed while nothing changes and only time passes."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace
from typing import Any

import pytest

import aiokcc
from aiokcc.dashboard import feed
from aiokcc.dashboard.feed import GroupFeed
from aiokcc.runtime.status import MemberStatus
from tests.unit.dashboard.statuses import START, status_of

HOUR = 3600.0


class Clock:
    """Time that a test moves: that of the feed, and the one by which it measures."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = START / 1000
        monkeypatch.setattr(feed, "time", SimpleNamespace(monotonic=self.time))

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def feed_of(clock: Clock) -> GroupFeed:
    """Return a feed that has read one status of a blocked group, with a member that has just joined."""
    store = aiokcc.open_store("memory://feed/replay")
    made = GroupFeed(store, keep=60.0, stuck_after=30.0, clock=clock.time)
    member = MemberStatus("one-1", "host", 1, START, 1, False)
    made._on_connection(True)
    made._on_status(status_of({"a.0": "running", "a.1": "waiting"}, members=(member,)))
    return made


async def first_events(of: GroupFeed) -> dict[str, Any]:
    """Return what a page gets before anything happens, by the kind of the event."""
    async with contextlib.aclosing(of.channel.read(lambda: of.begin(0))) as page:
        parts = (await anext(page)) + (await anext(page))
    events = [part.split("\n") for part in parts.decode().split("\n\n") if part.startswith("event: ")]
    return {kind.removeprefix("event: "): json.loads(data.removeprefix("data: ")) for kind, data in events}


async def test_a_page_that_is_opened_after_an_hour_is_not_told_the_old_age(clock: Clock) -> None:
    """No page was open, so nobody has published the time that has passed."""
    opened = feed_of(clock)
    clock.now += HOUR
    events = await first_events(opened)
    assert events["view"]["why"].startswith("Blocked for 1h")
    assert events["view"]["stuck"]


async def test_the_age_of_a_member_goes_on_while_the_group_stands(clock: Clock) -> None:
    opened = feed_of(clock)
    for passed, joined in ((0.0, "0.0s ago"), (9.0, "0.0s ago"), (10.0, "10s ago"), (HOUR, "1h ago")):
        clock.now = START / 1000 + passed
        events = await first_events(opened)
        members = next(table for table in events["tables"] if table["title"] == "Members (1)")
        assert members["rows"][0][members["columns"].index("joined")] == joined
