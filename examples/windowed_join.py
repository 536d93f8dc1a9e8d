"""A windowed join of two topics: which orders of a morning were paid within half an hour?

In a checkout of the repository::

    python -m examples.windowed_join                                       # starts a Kafka and a ZooKeeper itself
    python -m examples.windowed_join 127.0.0.1:9092 zk://127.0.0.1:2181/join

The topics have three and two partitions of very different size. Because all of them are kept in step, the join needs to
remember only the orders of the last half hour. A payment that has not come by then does not come later.
"""

from __future__ import annotations

import random
import sys

import aiokcc
from examples.stack import Event, create, run, services, write

START = 1_767_254_400_000  # 2026-01-01T08:00Z
MINUTE = 60_000
HOURS = 4


async def main(given: list[str]) -> None:
    async with services(given) as (servers, store):
        orders, payments, right = await write_a_morning(servers)
        waiting: dict[bytes, int] = {}  # orders that are not paid yet, and when they were made
        paid = unpaid = most = 0
        async with aiokcc.replay(
            orders,
            payments,
            bootstrap_servers=servers,
            store=store,
            start=START,
            end=START + HOURS * 60 * MINUTE,
            period="30m",
        ) as replay:
            async for period in replay.periods():  # all records of half an hour, from all partitions
                records = [record for partition in period.records.values() for record in partition]
                waiting |= {record.key: record.timestamp for record in records if record.topic == orders}
                most = max(most, len(waiting))
                found = [waiting.pop(record.key, None) for record in records if record.topic == payments]
                old = [order for order, made in waiting.items() if made < period.start]  # half an hour has passed
                for order in old:
                    del waiting[order]
                paid, unpaid = paid + len(found) - found.count(None), unpaid + len(old)
                print(
                    f"up to {clock(period.end)}: {len(found):3} paid, {len(old):2} never, {len(waiting):2} still open"
                )
        unpaid += len(waiting)
        print(
            f"paid {paid}, not paid {unpaid}; right is {right[0]} and {right[1]}. At most {most} orders were remembered."
        )


async def write_a_morning(servers: str) -> tuple[str, str, tuple[int, int]]:
    """Write orders and payments, most of them in one partition; return the topics and the right answer."""
    chance = random.Random(8)
    orders, payments = await create(servers, "orders", 3), await create(servers, "payments", 2)
    made: list[Event] = []
    paid: list[Event] = []
    for n in range(1000):
        ts = START + n * (HOURS * 60 - 30) * MINUTE // 1000
        made.append(Event(chance.choices((0, 1, 2), (1, 9, 90))[0], ts, f"order-{n}"))
        if chance.random() < 0.9:
            later = ts + chance.randrange(1000, 30 * MINUTE)
            paid.append(Event(chance.choices((0, 1), (95, 5))[0], later, f"order-{n}"))
    await write(servers, orders, made)
    await write(servers, payments, sorted(paid, key=lambda event: event.timestamp))
    return orders, payments, (len(paid), len(made) - len(paid))


def clock(ts: int) -> str:
    minutes = (ts - START) // MINUTE + 8 * 60
    return f"{minutes // 60:02}:{minutes % 60:02}"


if __name__ == "__main__":
    run(main(sys.argv[1:]))
