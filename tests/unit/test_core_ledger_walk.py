"""A lane that crosses many boundaries at once: the same as one after the other, and the limit may pass over them."""

from __future__ import annotations

import random

import pytest

from aiokcc.core.lane import Lane
from aiokcc.core.ledger import Ledger
from aiokcc.core.limit import Limit
from aiokcc.core.partitions import Partition
from aiokcc.errors import UsageError

P0, P1 = Partition("t", 0), Partition("t", 1)


def ledger_at(*boundaries: int) -> tuple[Ledger, Lane]:
    ledger = Ledger()
    lane, _ = ledger.add(P0), ledger.add(P1)
    ledger.claim([P0, P1])
    ledger.generation = 1
    ledger.see(Limit(boundaries))
    return ledger, lane


@pytest.mark.parametrize("seed", range(20))
def test_many_steps_in_one_go_are_the_same_as_one_after_the_other(seed: int) -> None:
    chance = random.Random(seed)
    boundaries = [10 * n for n in range(1, chance.randrange(2, 20))]
    times = sorted(chance.sample(range(5, 250), chance.randrange(1, 15)))
    steps = [(ts, 100 + n) for n, ts in enumerate(times)]
    (one, lane), (other, same) = ledger_at(*boundaries), ledger_at(*boundaries)
    for ts, offset in steps:
        one.approach(lane, ts, offset)
    other.walk(same, steps)
    for name in ("state", "ts", "offset", "crossings", "open_below"):
        assert getattr(lane, name) == getattr(same, name), name
    assert one.complete == other.complete
    assert one.report(even_running=True) == other.report(even_running=True)


def test_the_limit_need_not_stop_before_what_was_reached_and_finds_the_right_offsets_where_it_does() -> None:
    ledger, lane = ledger_at(10, 20, 30, 40)
    ledger.walk(lane, [(10, 1), (20, 2), (30, 3), (40, 4)], reached=30)
    assert lane.crossings == {10: (30, 1), 20: (30, 2), 30: (30, 3), 40: (40, 4)}
    ledger.approach(ledger.lanes[P1], 25, 7)
    report = ledger.report()
    assert report is not None
    assert (report.minimum, dict(report.entries)) == (25, {"t.0": "30@1", "t.1": "25@7"})


def test_who_has_finished_walks_no_further() -> None:
    ledger, lane = ledger_at(10)
    ledger.walk(lane, [])
    ledger.finish(lane, 5)
    with pytest.raises(UsageError, match="declared finished"):
        ledger.walk(lane, [(10, 6)])
