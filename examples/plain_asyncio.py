"""The gate in plain asyncio: one task for each partition, kept in step in event time.

In one process, in memory, in a checkout of the repository::

    python -m examples.plain_asyncio

In several processes, over ZooKeeper (``aiokcc local zookeeper`` starts one); each runs some of the partitions::

    python -m examples.plain_asyncio zk://127.0.0.1:2181/try orders.0 orders.1
    python -m examples.plain_asyncio zk://127.0.0.1:2181/try payments.0

Until the second process is started, the first one waits: a partition that has not been reported is never skipped.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator

import aiokcc

TOPICS = {"orders": 2, "payments": 1}
START = 1_767_225_600_000  # 2026-01-01T00:00Z in milliseconds, as Kafka's timestamps are
MINUTE = 60_000


async def records(partition: str) -> AsyncIterator[int]:
    """Yield the timestamps of made-up records, ten minutes of event time. Some partitions are read much faster than others."""
    chance = random.Random(partition)
    ts = START
    while (ts := ts + chance.randrange(20_000, 60_000)) < START + 10 * MINUTE:
        await asyncio.sleep(0.05 if partition == "payments.0" else 0.001)
        yield ts


async def consume(group: aiokcc.Group, partition: str) -> None:
    """Read one partition: your own loop, with one line before each record is handled."""
    topic, _, number = partition.rpartition(".")
    async with group.gate(topic, int(number)) as gate:
        async for ts in records(partition):
            await gate.wait_until(ts)
            print(f"  {clock(ts)}  {partition:<10}   (the limit is {clock(gate.limit)})\n", end="", flush=True)
        gate.finish()  # this partition has no more records: the others need not wait for it


async def main(store: str, partitions: list[str]) -> None:
    """Join the group, and run one task for each partition."""
    print(f"reading {', '.join(partitions)} in periods of 2 minutes", flush=True)
    async with (
        aiokcc.connect(store, topics=TOPICS, start=START, period="2m") as group,
        asyncio.TaskGroup() as tasks,
    ):
        for partition in partitions:
            tasks.create_task(consume(group, partition))
    print("done: every partition was read to its end", flush=True)


def clock(ts: int) -> str:
    """Minutes and seconds since the start."""
    seconds = (ts - START) // 1000
    return f"{seconds // 60:02}:{seconds % 60:02}"


if __name__ == "__main__":
    problems: list[str] = []
    everything = [f"{topic}.{number}" for topic, count in TOPICS.items() for number in range(count)]
    try:
        asyncio.run(main(sys.argv[1] if sys.argv[1:] else "memory://plain", sys.argv[2:] or everything))
    except* aiokcc.AiokccError as errors:  # a task group collects what its tasks raise
        problems = [str(error) for error in errors.exceptions]
    if problems:
        sys.exit("\n".join(problems))
