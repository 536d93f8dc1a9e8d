"""A partition that crosses many boundaries at once: the same as one after the other, and the limit may pass over them."""

from __future__ import annotations

import random

import pytest

from aiokcc.core.limit import Limit
from aiokcc.core.member_progress import MemberProgress
from aiokcc.core.partition_progress import PartitionProgress
from aiokcc.core.partitions import Partition
from aiokcc.errors import UsageError
from tests.unit.core.reports import shown

P0, P1 = Partition("t", 0), Partition("t", 1)


def progress_at(*boundaries: int) -> tuple[MemberProgress, PartitionProgress]:
    member_progress = MemberProgress()
    progress, _ = member_progress.add(P0), member_progress.add(P1)
    member_progress.claim([P0, P1])
    member_progress.generation = 1
    member_progress.see(Limit(boundaries))
    return member_progress, progress


@pytest.mark.parametrize("seed", range(20))
def test_many_steps_in_one_go_are_the_same_as_one_after_the_other(seed: int) -> None:
    chance = random.Random(seed)
    boundaries = [10 * n for n in range(1, chance.randrange(2, 20))]
    times = sorted(chance.sample(range(5, 250), chance.randrange(1, 15)))
    steps = [(ts, 100 + n) for n, ts in enumerate(times)]
    (one, progress), (other, same) = progress_at(*boundaries), progress_at(*boundaries)
    for ts, offset in steps:
        one.approach(progress, ts, offset)
    other.walk(same, steps)
    for name in ("state", "ts", "offset", "crossings", "open_below"):
        assert getattr(progress, name) == getattr(same, name), name
    assert one.complete == other.complete
    assert one.report(even_running=True) == other.report(even_running=True)


def test_the_limit_need_not_stop_before_what_was_reached_and_finds_the_right_offsets_where_it_does() -> None:
    member_progress, progress = progress_at(10, 20, 30, 40)
    member_progress.walk(progress, [(10, 1), (20, 2), (30, 3), (40, 4)], reached=30)
    assert progress.crossings == {10: (30, 1), 20: (30, 2), 30: (30, 3), 40: (40, 4)}
    member_progress.approach(member_progress.partitions[P1], 25, 7)
    report = member_progress.report()
    assert report is not None
    assert (report.minimum, shown(report)) == (25, {"t.0": "30@1", "t.1": "25@7"})


def test_a_finished_partition_walks_no_further() -> None:
    member_progress, progress = progress_at(10)
    member_progress.walk(progress, [])
    member_progress.finish(progress, 5)
    with pytest.raises(UsageError, match="declared finished"):
        member_progress.walk(progress, [(10, 6)])
