"""Compute an aggregate over a month again: the revenue of each day, from sales and refunds.

In a checkout of the repository::

    python -m examples.month_again                                        # starts a Kafka and a ZooKeeper itself
    python -m examples.month_again 127.0.0.1:9092 zk://127.0.0.1:2181/january

Two topics, five partitions, one stream: ``async for record in replay`` gives the records day by day. As soon as the first
record of the next day comes, the day before is complete in all partitions: its sum is final, and can be stored and forgotten.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from datetime import UTC, datetime

import aiokcc
from examples.stack import Event, create, run, services, write

START = 1_767_225_600_000  # 2026-01-01T00:00Z
DAY = 86_400_000


async def main(given: list[str]) -> None:
    async with services(given) as (servers, store):
        sales, refunds, right = await write_january(servers)
        revenue: dict[int, int] = {}
        async with aiokcc.replay(
            sales,
            refunds,
            bootstrap_servers=servers,
            store=store,
            start="2026-01-01T00:00Z",
            end="2026-02-01T00:00Z",
            period="1d",
        ) as replay:
            today, total = START, 0
            async for record in replay:
                if record.timestamp >= today + DAY:  # so yesterday is complete, in every partition
                    revenue[today] = total
                    print(f"{day(today)}  {total / 100:10,.2f}")
                    today, total = record.timestamp // DAY * DAY, 0
                total += int(record.value) if record.topic == sales else -int(record.value)
            revenue[today] = total
            print(f"{day(today)}  {total / 100:10,.2f}")
        verdict = "all of them right" if revenue == right else "WRONG"
        print(f"{replay.summary.records:,} records, {len(revenue)} days, {verdict}, in {replay.summary.seconds:.1f} s")


async def write_january(servers: str) -> tuple[str, str, dict[int, int]]:
    """Write a month of sales and refunds; return the topics, and the right answer for each day."""
    chance = random.Random(1)
    sales, refunds = await create(servers, "sales", 3), await create(servers, "refunds", 2)
    sold: list[Event] = []
    returned: list[Event] = []
    right: Counter[int] = Counter()
    for n in range(20_000):
        ts, cents = START + n * 31 * DAY // 20_000, chance.randrange(100, 20_000)
        refund = chance.random() < 0.1
        (returned if refund else sold).append(Event(chance.choices((0, 1), (1, 9))[0], ts, f"{n}", f"{cents}"))
        right[ts // DAY * DAY] += -cents if refund else cents
    await write(servers, sales, sold)
    await write(servers, refunds, returned)
    return sales, refunds, dict(right)


def day(ts: int) -> str:
    return f"{datetime.fromtimestamp(ts / 1000, UTC):%a %d %b}"


if __name__ == "__main__":
    run(main(sys.argv[1:]))
