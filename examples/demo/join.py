"""Two ways to join orders with their payments, and how each of them suffers when partitions drift apart.

Stream processors do both. The *forgetful* join keeps a record for ten minutes of event time, measured by the latest time it has
seen in any partition: its memory is bounded, and a record that comes later finds nothing. The *patient* join keeps a record
until the slowest partition has passed it: its answer is right, and it holds all records of the fast partitions meanwhile.
"""

from __future__ import annotations

import hashlib
import heapq
from dataclasses import dataclass, field
from typing import Final

from examples.demo.data import END, MINUTE, PAID_WITHIN, PARTITIONS, START, Log

KEEP: Final = 10 * MINUTE


@dataclass
class Join:
    """Orders and payments that wait for each other, until ``keep`` after they happened."""

    keep: int
    paid: dict[int, bool] = field(default_factory=dict)
    """The result: for each order, True if its payment was found."""
    most: int = 0
    """The most records that were held at a time."""
    _orders: dict[int, int] = field(default_factory=dict)
    _payments: dict[int, int] = field(default_factory=dict)
    _age: list[tuple[int, int]] = field(default_factory=list)

    def take(self, topic: str, ts: int, order: int) -> None:
        """Take one record."""
        mine, other = (self._orders, self._payments) if topic == "orders" else (self._payments, self._orders)
        if other.pop(order, None) is not None:
            self.paid[order] = True
            return
        mine[order] = ts
        heapq.heappush(self._age, (ts, order))
        self.most = max(self.most, self.held)

    @property
    def held(self) -> int:
        """Records that are waiting for their counterpart now."""
        return len(self._orders) + len(self._payments)

    def forget(self, now: int) -> None:
        """Drop the records that are too old at this event time. An order without a payment is then unpaid."""
        while self._age and self._age[0][0] + self.keep <= now:
            _, order = heapq.heappop(self._age)
            if self._orders.pop(order, None) is not None:
                self.paid[order] = False
            self._payments.pop(order, None)


@dataclass
class Outcome:
    """One round: both joins, fed in the order of processing, and the progress of each partition over time."""

    log: Log
    forgetful: Join = field(default_factory=lambda: Join(KEEP))
    patient: Join = field(default_factory=lambda: Join(PAID_WITHIN))
    reached: dict[tuple[str, int], int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, START))
    finished: set[tuple[str, int]] = field(default_factory=set)
    history: dict[tuple[str, int], list[tuple[float, int]]] = field(
        default_factory=lambda: {p: [(0.0, START)] for p in PARTITIONS}
    )
    spread: int = 0
    """The greatest difference of event time between the first and the last partition."""
    seconds: float = 0.0
    latest: int = START

    def take(self, partition: tuple[str, int], ts: int, order: int, at: float) -> None:
        """Take a record that was processed ``at`` seconds after the start."""
        self.reached[partition] = ts
        self.history[partition].append((at, ts))
        self.latest = max(self.latest, ts)
        self.spread = max(self.spread, self.latest - min(self.reached.values()))
        self.forgetful.take(partition[0], ts, order)
        self.forgetful.forget(self.latest)
        self.patient.take(partition[0], ts, order)
        self.patient.forget(min(self.reached.values()))

    def finish(self, partition: tuple[str, int], at: float) -> None:
        """Record that a partition has been read to its end."""
        self.finished.add(partition)
        self.reached[partition] = END
        self.history[partition].append((at, END))
        self.seconds = at
        self.patient.forget(min(self.reached.values()))
        if len(self.finished) == len(PARTITIONS):
            for join in (self.forgetful, self.patient):
                join.forget(END + KEEP)

    def wrong(self, join: Join) -> int:
        """Return the number of orders that the join has wrong so far."""
        return sum(self.log.paid[order] is not paid for order, paid in join.paid.items())

    def digest(self) -> str:
        """Return a short digest of the forgetful join's result."""
        return hashlib.sha256(repr(sorted(self.forgetful.paid.items())).encode()).hexdigest()[:8]
