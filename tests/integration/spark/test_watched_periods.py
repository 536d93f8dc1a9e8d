"""The second argument of a function notes that it was looked at, also where a UDF takes it to the workers."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import cloudpickle

from aiokcc.spark.compute import Periods, WatchedPeriods

LOOKS: dict[str, Callable[[WatchedPeriods], Any]] = {
    "a field": lambda periods: periods.start,
    "its text": str,
    "all fields": dataclasses.asdict,
    "its dictionary": vars,
    "a copy": copy.copy,
    "its hash": hash,
    "a UDF that uses it": lambda periods: cloudpickle.dumps(lambda row: row + periods.number),
    "a UDF that has it as a default": lambda periods: cloudpickle.dumps(lambda row, mine=periods: row + mine.number),
    "a pickle": pickle.dumps,
}


@pytest.mark.parametrize("how", LOOKS)
def test_looking_is_noted(how: str) -> None:
    periods = WatchedPeriods(0, 60_000, (60_000,), 7)
    assert isinstance(periods, Periods)
    assert not periods.was_read
    LOOKS[how](periods)
    assert periods.was_read


def test_a_copy_on_a_worker_has_the_content() -> None:
    periods = pickle.loads(pickle.dumps(WatchedPeriods(0, 60_000, (60_000,), 7)))
    assert (periods.start, periods.end, periods.boundaries, periods.number) == (0, 60_000, (60_000,), 7)
