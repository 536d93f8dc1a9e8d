"""Two hours of orders and payments, made up but always the same, spread unevenly over six partitions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Final, NamedTuple

MINUTE: Final = 60_000
START: Final = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1000
END: Final = START + 120 * MINUTE
PERIOD: Final = 5 * MINUTE
PAID_WITHIN: Final = 5 * MINUTE
"""A payment comes at most so long after its order."""

ORDERS: Final = 5000
SHARES: Final = {
    ("orders", 0): 0.10,
    ("orders", 1): 0.20,
    ("orders", 2): 0.40,
    ("orders", 3): 0.30,
    ("payments", 0): 0.67,
    ("payments", 1): 0.33,
}
"""Which part of its topic a partition holds: this is the skew."""

PARTITIONS: Final = tuple(SHARES)
TOPICS: Final = {"orders": 4, "payments": 2}
WORKERS: Final = (
    (("orders", 0), ("payments", 0)),
    (("orders", 1), ("orders", 2)),
    (("orders", 3), ("payments", 1)),
)
"""Which process reads which partitions."""


class Record(NamedTuple):
    """One record: when it happened, and the order it is about."""

    ts: int
    order: int


@dataclass(frozen=True)
class Log:
    """Everything there is, and the right answer."""

    records: dict[tuple[str, int], list[Record]]
    paid: dict[int, bool]
    """Of each order, whether there is a payment for it."""


@cache
def make_log() -> Log:
    """The same log in every process and every run."""
    chance = random.Random(2026)
    records: dict[tuple[str, int], list[Record]] = {partition: [] for partition in PARTITIONS}
    paid: dict[int, bool] = {}
    for order in range(ORDERS):
        ts = START + int((END - START - PAID_WITHIN) * order / ORDERS)
        records[_pick(chance, "orders")].append(Record(ts, order))
        paid[order] = chance.random() < 0.9
        if paid[order]:
            records[_pick(chance, "payments")].append(Record(ts + chance.randrange(5000, PAID_WITHIN), order))
    return Log({partition: sorted(found) for partition, found in records.items()}, paid)


def _pick(chance: random.Random, topic: str) -> tuple[str, int]:
    mine = [partition for partition in PARTITIONS if partition[0] == topic]
    return chance.choices(mine, [SHARES[partition] for partition in mine])[0]
