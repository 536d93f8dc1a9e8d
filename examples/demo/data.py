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
"""The longest time from an order to its payment."""

ORDERS: Final = 5000
SHARES: Final = {
    ("orders", 0): 0.10,
    ("orders", 1): 0.20,
    ("orders", 2): 0.40,
    ("orders", 3): 0.30,
    ("payments", 0): 0.67,
    ("payments", 1): 0.33,
}
"""The part of its topic that each partition has: this is the skew."""

PARTITIONS: Final = tuple(SHARES)
TOPICS: Final = {"orders": 4, "payments": 2}
WORKERS: Final = (
    (("orders", 0), ("payments", 0)),
    (("orders", 1), ("orders", 2)),
    (("orders", 3), ("payments", 1)),
)
"""The partitions that each process reads."""


class Record(NamedTuple):
    """One record: its time, and the number of its order."""

    ts: int
    order: int


@dataclass(frozen=True)
class Log:
    """All records, and the right answer."""

    records: dict[tuple[str, int], list[Record]]
    paid: dict[int, bool]
    """For each order, True if there is a payment for it."""


@cache
def make_log() -> Log:
    """Return the log, which is the same in every process and every run."""
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
