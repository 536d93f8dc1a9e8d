"""A replay is killed in the middle and started again: nothing is lost, and only the open period is handled twice.

In a checkout of the repository::

    python -m examples.after_a_kill                                       # starts a Kafka and a ZooKeeper itself
    python -m examples.after_a_kill 127.0.0.1:9092 zk://127.0.0.1:2181/kill

The replay runs in a process of its own, which is killed (SIGKILL) and started again with the same settings. It needs
no option for that: under the same root it finds where the last period closed.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import Any

import aiokcc
from examples.stack import Event, create, run, services, write

START = 1_767_225_600_000  # 2026-01-01T00:00Z
MINUTE = 60_000
RECORDS = 6000
PARTITIONS = 3


async def replay(servers: str, store: str, topic: str) -> None:
    """Replay the topic and print each record. This runs in the process that is killed."""

    async def handle(record: Any) -> None:
        print(f"{record.partition} {record.offset} {record.timestamp}\n", end="", flush=True)
        await asyncio.sleep(0.0005)  # the work

    async with aiokcc.replay(
        topic,
        bootstrap_servers=servers,
        store=store,
        start=START,
        end="now",
        period="1m",
        session_timeout=2,  # how soon the dead process's partitions can be claimed again
    ) as it:
        await it.run(handle)


async def main(given: list[str]) -> None:
    async with services(given) as (servers, store):
        topic = await create(servers, "readings", PARTITIONS)
        events = [Event(n % PARTITIONS, START + n * 1000, f"{n}") for n in range(RECORDS)]  # 20 a minute and partition
        await write(servers, topic, events)
        command = (sys.executable, "-m", "examples.after_a_kill", "--process", servers, store, topic)

        handled: Counter[tuple[str, ...]] = Counter()
        first = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert first.stdout is not None
        async for line in first.stdout:
            handled[tuple(line.decode().split())] += 1
            if handled.total() == RECORDS // 2 + 25:  # in the middle of a period
                first.kill()
        print(f"killed after {handled.total():,} of {RECORDS:,} records")

        second = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert second.stdout is not None
        again = [tuple(line.decode().split()) async for line in second.stdout]
        handled.update(again)
        print(f"the second process handled {len(again):,} and {'ended' if await second.wait() == 0 else 'FAILED'}")

        twice = [int(record[2]) for record, times in handled.items() if times > 1]
        periods = len({(ts - START) // MINUTE for ts in twice})
        print(f"lost: {RECORDS - len(handled)}; handled twice: {len(twice)}, within {periods} period")


if __name__ == "__main__":
    run(replay(*sys.argv[2:]) if sys.argv[1:2] == ["--process"] else main(sys.argv[1:]))
