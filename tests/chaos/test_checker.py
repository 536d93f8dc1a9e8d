"""The check of histories finds each kind of broken history."""

from __future__ import annotations

import pytest

from aiokcc.core.limit import Limit
from aiokcc.core.marks import Mark
from aiokcc.core.partitions import Partition
from aiokcc.core.report import Cut
from tests.chaos.group import Observer, check_history
from tests.chaos.worker import PERIOD, TOPIC

RECORDS = 4


def aligned() -> list[tuple[str, int, int, int]]:
    """Return a right history of two partitions, period by period."""
    history, now = [], 0
    for offset in range(RECORDS):
        for partition in range(2):
            history += [("start", now, partition, offset), ("done", now + 1, partition, offset)]
            now += 10
    return history


def test_an_aligned_history_passes() -> None:
    check_history(aligned(), 2)


def test_a_record_started_too_early_is_found() -> None:
    history = [(w, 5 if (w, p, o) == ("start", 0, 2) else t, p, o) for w, t, p, o in aligned()]
    with pytest.raises(AssertionError, match="done after a later period had started"):
        check_history(history, 2)


def test_a_record_that_was_skipped_is_found() -> None:
    history = [record for record in aligned() if record[2:] != (1, 1)]
    with pytest.raises(AssertionError, match="never done"):
        check_history(history, 2)


def test_a_record_that_was_started_and_never_done_is_found() -> None:
    history = [record for record in aligned() if record[0] == "start" or record[2:] != (1, 1)]
    with pytest.raises(AssertionError, match="never done"):
        check_history(history, 2)


def test_a_record_that_comes_again_behind_a_cut_is_found() -> None:
    history = [*aligned(), ("start", 1000, 0, 0), ("done", 1001, 0, 0)]
    with pytest.raises(AssertionError, match="came again"):
        check_history(history, 2)


def test_an_empty_history_is_found() -> None:
    with pytest.raises(AssertionError, match="nobody"):
        check_history([], 2)


def observed(*cuts: Cut) -> Observer:
    observer = Observer()
    observer.cuts = {cut.number: cut for cut in cuts}
    return observer


def cut(number: int, offset: int, *, previous: int | None = None, generation: int = 1) -> Cut:
    before = (number - 1) * PERIOD if previous is None else previous
    return Cut(number, before, number * PERIOD, generation, {"worker": {Partition(TOPIC, 0): Mark(offset)}})


def test_cuts_that_tile_pass() -> None:
    observed(cut(1, 1), cut(2, 2)).check(1)


@pytest.mark.parametrize(
    "second",
    [cut(2, 3), cut(2, 1), cut(2, 2, previous=0), cut(2, 2, generation=0)],
    ids=["too far", "not far enough", "gap between the cuts", "written by a deposed leader"],
)
def test_cuts_that_do_not_tile_are_found(second: Cut) -> None:
    with pytest.raises(AssertionError):
        observed(cut(1, 1), second).check(1)


def test_a_limit_that_goes_back_is_found() -> None:
    observer = observed()
    observer.seen = [(1, Limit((2000,))), (2, Limit((1000,)))]
    with pytest.raises(AssertionError, match="went from"):
        observer.check(1)
