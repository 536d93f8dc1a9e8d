"""The pace of a group, measured from its statuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aiokcc.runtime.status import GroupState, PartitionCondition, PartitionStatus, Status
from aiokcc.views.pace import GroupPace
from tests.unit.dashboard.statuses import MINUTE, START, status_of


def moved(status: Status, periods: int, offset: int) -> Status:
    partition = PartitionStatus("orders.0", "one-1", PartitionCondition.WAITING, START, offset)
    return replace(
        status,
        limit=START + periods * MINUTE,
        periods_closed=periods,
        partitions=(partition,),
        offsets_done=offset,
        offsets_total=1000,
    )


def test_the_pace_has_periods_records_and_the_time_left() -> None:
    measured = GroupPace()
    status = status_of({"orders.0": "waiting"})
    for second in range(5):
        status = moved(status, 1 + 2 * second, 100 * second)
        measured.add(status, float(second))
    pace = measured.pace(status)
    assert pace.periods == pytest.approx(2.0)
    assert pace.event_time == pytest.approx(120.0)
    assert pace.records == pytest.approx(100.0)
    assert pace.share == pytest.approx(0.4)
    assert pace.seconds_left == pytest.approx(6.0)


def test_the_pace_of_a_group_that_stands_goes_down() -> None:
    measured = GroupPace()
    status = status_of({"orders.0": "waiting"})
    for second in range(5):
        status = moved(status, 1 + 2 * second, 100 * second)
        measured.add(status, float(second))
    for second in range(5, 16):
        measured.add(status, float(second))
    assert measured.pace(status).periods == 0
    assert measured.pace(status).seconds_left is None


def test_another_run_under_the_same_root_has_a_pace_of_its_own() -> None:
    measured = GroupPace()
    status = status_of({"orders.0": "waiting"})
    for second in range(3):
        measured.add(moved(status, 1 + 20 * second, 10_000 * second), float(second))
    for second in range(3, 6):
        status = moved(status, 1 + 2 * (second - 3), 100 * (second - 3))
        measured.add(status, float(second))
    pace = measured.pace(status)
    assert (pace.periods, pace.records) == (pytest.approx(2.0), pytest.approx(100.0))


def test_a_held_group_has_no_time_left() -> None:
    measured = GroupPace()
    for second in range(3):
        status = moved(status_of({"orders.0": "waiting"}), second, 10 * second)
        measured.add(status, float(second))
    assert measured.pace(replace(status, state=GroupState.HELD)).seconds_left is None


def test_nothing_is_known_at_first() -> None:
    measured = GroupPace()
    status = status_of({"orders.0": "waiting"})
    measured.add(status, 0.0)
    pace = measured.pace(status)
    assert pace.periods is None
    assert pace.seconds_left is None
