"""Boundaries found through an index of times like Kafka's equal those found by looking at each record. Without Kafka."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from aiokcc.core.partitions import Partition
from aiokcc.spark.finder import Finder, Found


class ScanIndex(Finder):
    """An index over lists of timestamps. It counts the lookups."""

    def __init__(self, logs: Mapping[Partition, list[int]]) -> None:
        self._logs = logs
        self.questions = 0

    async def _ask(self, times: Mapping[Partition, int]) -> dict[Partition, Found | None]:
        self.questions += 1
        return {p: self.first(p, ts) for p, ts in times.items()}

    def first(self, partition: Partition, ts: int) -> Found | None:
        return next((Found(n, t) for n, t in enumerate(self._logs[partition]) if t >= ts), None)


@pytest.mark.parametrize("seed", range(20))
async def test_boundaries_found_together_equal_those_found_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    logs = {
        Partition("t", n): [chance.randrange(0, chance.choice([50, 500, 5000])) for _ in range(chance.randrange(60))]
        for n in range(4)
    }
    index = ScanIndex(logs)
    published = chance.randrange(0, 100)
    known: dict[Partition, Any] = {p: index.first(p, published) for p in logs}
    boundaries = list(range(published + 10, published + 10 + 10 * chance.randrange(1, 80), 10))
    found = await index.across(known, boundaries)
    assert found == {p: [index.first(p, b) for b in boundaries] for p in logs}


async def test_a_gap_in_time_costs_one_lookup() -> None:
    partition = Partition("t", 0)
    index = ScanIndex({partition: [0, 5, 90_000, 90_001]})
    await index.across({partition: Found(0, 0)}, list(range(10, 100_000, 10)))
    assert index.questions <= 4


async def test_each_period_with_records_costs_one_lookup() -> None:
    partition = Partition("t", 0)
    index = ScanIndex({partition: list(range(0, 1000, 5))})
    await index.across({partition: Found(0, 0)}, list(range(10, 1000, 10)))
    assert index.questions == 99
    assert await index.across({partition: None}, []) == {partition: []}
