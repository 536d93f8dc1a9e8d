"""``lookahead="auto"``: the settings, the choice of the leader, and the limits that follow from it."""

from __future__ import annotations

import pytest

from aiokcc.core.leader import Advance, Leader
from aiokcc.core.limit import Limit, Request
from aiokcc.core.lookahead_choice import LookaheadChoice, lookahead_for
from aiokcc.core.partitions import Partition
from aiokcc.core.run import Run, Settings
from aiokcc.errors import GroupMismatchError, UsageError
from tests.unit.core.reports import report_of

P0 = Partition("orders", 0)


@pytest.mark.parametrize(
    ("round_trip", "work", "lookahead"),
    [
        (0.001, 1.0, 0),  # a thousandth of the time: in step
        (0.001, 0.05, 1),  # the work goes on during the round trip
        (0.001, 0.01, 3),
        (0.002, 0.01, 7),
        (0.003, 0.001, 15),
        (10.0, 0.001, 15),
    ],
)
def test_the_lookahead_is_as_large_as_saves_time(round_trip: float, work: float, lookahead: int) -> None:
    assert lookahead_for(round_trip, work) == lookahead


def test_it_needs_some_advances_and_does_not_see_a_pause() -> None:
    choice, now = LookaheadChoice(), 100.0
    for n in range(12):
        now += 600.0 if n == 8 else 0.01  # an operator has held the group
        choice.advanced(now, now + 0.002, 1, 1, in_step=True)
        now += 0.002
        assert choice.lookahead == (0 if n < 5 else 7)


def test_ahead_the_time_of_an_advance_is_not_work_that_waits() -> None:
    choice, now = LookaheadChoice(), 100.0
    for _ in range(8):
        now += 0.08
        choice.advanced(now - 0.002, now, 8, 1, in_step=False)
    assert choice.lookahead == 7
    for _ in range(8):
        now += 80
        choice.advanced(now - 0.002, now, 8, 3, in_step=False)
    assert choice.lookahead == 0, "it follows the clock now"


def test_the_bound_in_event_time_is_a_number_of_periods() -> None:
    settings = Settings.check(period="1m", lookahead="auto", max_apart="15m")
    assert (settings.lookahead, settings.max_apart, settings.first_lookahead) == (14, 900_000, 0)
    run = Run(settings)
    assert Run.decode("/run", run.encode(), frozenset()) == run
    with pytest.raises(
        GroupMismatchError, match=r"lookahead is 14 there and 0 here; max_apart is 15m there and None here"
    ):
        run.require(Settings.check(period="1m"), "zk")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lookahead": "auto"}, 'max_apart="15m"'),
        ({"lookahead": "auto", "max_apart": "1m59s"}, "at least 2m"),
        ({"lookahead": "auto", "max_apart": "far"}, "max_apart 'far' cannot be read"),
        ({"lookahead": 3, "max_apart": "5m"}, 'goes with lookahead="auto"'),
        ({"lookahead": "some"}, 'nor "auto"'),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Settings.check(period="1m", **settings)


def leader_at(limit: Limit, *, chosen: int, period: int = 10, max_apart: int = 50) -> Leader:
    settings = Settings(frozenset({P0}), 10, lookahead=max_apart // 10 - 1, max_apart=max_apart)
    leader = Leader(settings, 1, limit, 1, Request.every(period), chosen=chosen)
    leader.reports["x"] = report_of(1, limit.floor, {"orders.0": f"{limit.floor + 1}@5"})
    return leader


def moved(leader: Leader) -> Limit:
    decision = leader.decide(10**9)
    assert isinstance(decision, Advance)
    leader.advanced(decision)
    return decision.limit


def test_the_choice_opens_boundaries_and_closes_none() -> None:
    assert moved(leader_at(Limit((10,)), chosen=2)).boundaries == (20, 30, 40)
    assert moved(leader_at(Limit((10,)), chosen=15)).boundaries == (20, 30, 40, 50, 60), "within the bound"
    assert moved(leader_at(Limit((10, 20, 30, 40)), chosen=0)).boundaries == (20, 30, 40)
    assert moved(leader_at(Limit((30, 40)), chosen=0)).boundaries == (40,)


def test_the_bound_holds_with_another_period_too() -> None:
    assert moved(leader_at(Limit((10,)), chosen=4, period=20)).boundaries == (20, 40, 60), "60 is 50 behind 10"
    assert moved(leader_at(Limit((10,)), chosen=4, period=100)).boundaries == (100,)
