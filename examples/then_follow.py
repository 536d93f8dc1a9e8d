"""Replay the last hour in step, then follow new records as they are written.

In a checkout of the repository::

    python -m examples.then_follow                                        # starts a Kafka and a ZooKeeper itself
    python -m examples.then_follow 127.0.0.1:9092 zk://127.0.0.1:2181/live

A replay without an end continues when it has caught up. ``caught_up`` says how: here ``"release"`` opens the
gate, so that new records pass at once. (``"follow"`` keeps the partitions in step with each other and the clock; a duration
does so with longer periods.)
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import aiokcc
from examples.stack import Event, create, run, services, write

HISTORY = 1000
LIVE = 20


async def main(given: list[str]) -> None:
    async with services(given) as (servers, store):
        clicks, views = await create(servers, "clicks", 2), await create(servers, "views", 1)
        begun = now()
        for topic, partitions in ((clicks, 2), (views, 1)):
            hour = range(begun - 3_600_000, begun, 3_600_000 // HISTORY)
            await write(servers, topic, [Event(n % partitions, ts, "old") for n, ts in enumerate(hour)])
        caught_up, enough = asyncio.Event(), asyncio.Event()
        seen = {"old": 0, "new": 0}

        async def handle(record: Any) -> None:
            kind = record.key.decode()
            seen[kind] += 1
            if kind == "new":
                print(f"new: {record.topic}.{record.partition} at offset {record.offset}")
            if seen["old"] == 2 * HISTORY and not caught_up.is_set():
                print(f"the last hour, {seen['old']:,} records, is done")
                caught_up.set()
            if seen["new"] == LIVE:
                enough.set()

        async def write_on() -> None:
            """Write to the topics, in place of a program that does so all the time."""
            await caught_up.wait()
            for n in range(LIVE):
                await write(servers, (clicks, views)[n % 2], [Event(0, now(), "new")])

        async with aiokcc.replay(
            clicks,
            views,
            bootstrap_servers=servers,
            store=store,
            period="1m",
            end=None,  # follow what is written; without it the replay ends where the topics end now
            caught_up="release",
        ) as replay:
            reading, writing = asyncio.ensure_future(replay.run(handle)), asyncio.ensure_future(write_on())
            done = asyncio.ensure_future(enough.wait())
            await asyncio.wait([reading, done], return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, writing, done):
                task.cancel()
            await asyncio.gather(reading, writing, done, return_exceptions=True)
        print(f"{seen['old']:,} of the last hour and {seen['new']} new ones were handled; that is enough")


def now() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    run(main(sys.argv[1:]))
