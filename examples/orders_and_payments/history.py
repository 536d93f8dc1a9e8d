"""A day of orders and payments, made up but always the same, and the result that the pipeline must have.

Most orders are paid within minutes, some after hours, some never. A payment contains the time of its order, and that time is
its event time: it belongs to the hour of its order. So payments are out of order in their log.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from examples.stack import Event

HOUR: Final = 3_600_000
MINUTE: Final = 60_000
START: Final = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp()) * 1000
HOURS: Final = 24
LATENESS: Final = HOUR
"""The time after its order for which a payment still counts."""

ORDERS: Final = 6000
PARTITIONS: Final = {"orders": 3, "payments": 2}
COUNTRIES: Final = {"DE": 0.5, "FR": 0.3, "PL": 0.2}


@dataclass
class Figures:
    """A row of the result: an hour in a country. Amounts are in cents."""

    orders: int = 0
    ordered: int = 0
    paid_orders: int = 0
    paid: int = 0
    late_payments: int = 0
    late: int = 0


def make_history() -> dict[str, list[Event]]:
    """Return the records by topic; each partition is in the order of writing."""
    chance = random.Random(2026)
    events: dict[str, list[Event]] = {"orders": [], "payments": []}
    for number in range(ORDERS):
        ordered_at = START + int(_busy(chance) * HOUR)
        country = chance.choices(list(COUNTRIES), list(COUNTRIES.values()))[0]
        order = {"order": f"o-{number}", "country": country, "cents": chance.randrange(500, 20_000)}
        value = json.dumps({**order, "ordered_at": ordered_at})
        events["orders"].append(Event(chance.choice((0, 1, 2)), ordered_at, f"o-{number}", value))
        if chance.random() < 0.95:
            delay = chance.expovariate(1 / 10) if chance.random() < 0.9 else chance.expovariate(1 / 240)
            paid_at = ordered_at + int((0.2 + delay) * MINUTE)
            if paid_at < START + HOURS * HOUR:  # a payment of tomorrow is not in the log yet
                events["payments"].append(Event(chance.choice((0, 1)), paid_at, f"o-{number}", value))
    return {topic: sorted(found, key=lambda event: event.timestamp) for topic, found in events.items()}


def _busy(chance: random.Random) -> float:
    """Return a random hour of the day: the evening is busier than the night."""
    while True:
        hour = chance.random() * HOURS
        if chance.random() < (0.15 if hour < 7 else 0.6 if hour < 17 else 1.0):
            return hour


def right_answer(history: dict[str, list[Event]]) -> dict[tuple[int, str], Figures]:
    """Compute the result of the pipeline in plain Python, by hour and country, from the records as they are in the logs."""
    rows: dict[tuple[int, str], Figures] = defaultdict(Figures)
    hours: dict[str, int] = {}
    for event in history["orders"]:
        order = json.loads(event.value)
        hours[order["order"]] = hour = event.timestamp // HOUR * HOUR
        row = rows[hour, order["country"]]
        row.orders += 1
        row.ordered += order["cents"]
    newest: dict[int, int] = defaultdict(int)
    for event in history["payments"]:
        payment = json.loads(event.value)
        # An hour is closed once its partition has had an event time of more than `LATENESS` after its end.
        closed = (newest[event.partition] - LATENESS) // HOUR * HOUR
        newest[event.partition] = max(newest[event.partition], payment["ordered_at"])
        hour = max(payment["ordered_at"] // HOUR * HOUR, closed)
        row = rows[hour, payment["country"]]
        if hour == hours[payment["order"]]:
            row.paid_orders += 1
            row.paid += payment["cents"]
        else:
            row.late_payments += 1
            row.late += payment["cents"]
    return dict(rows)
