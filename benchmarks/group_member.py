"""A worker process of the rebalance benchmark: one member of a group, ours or Kafka's, that reads a topic.

The first line on standard input is the plan. The request ``go`` makes it join and read, ``count`` asks how many partitions
it has, ``leave`` makes it leave normally. It writes its progress into a file that survives the process: for each
partition the next offset and the time of the last record, in nanoseconds of the monotonic clock.

Both kinds of members handle the records of a partition one after the other, at the same rate, and the partitions
concurrently.
"""

from __future__ import annotations

import asyncio
import mmap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer

import aiokcc
from benchmarks.worker import Requests

_clock = time.monotonic_ns


class Marks:
    """Writes the progress of this process in each partition."""

    def __init__(self, plan: dict[str, Any]) -> None:
        with Path(plan["marks"]).open("r+b") as file:
            self._cells = memoryview(mmap.mmap(file.fileno(), 16 * plan["partitions"])).cast("q")
        self._pause = plan["pause"]

    async def handle(self, record: Any) -> None:
        """Handle one record."""
        await asyncio.sleep(self._pause)
        self._cells[2 * record.partition] = record.offset + 1
        self._cells[2 * record.partition + 1] = _clock()


class Membership:
    """The interface between the harness and a member: leaving, and the number of its partitions."""

    def __init__(self) -> None:
        self.leaving = asyncio.Event()
        self.count: Callable[[], int] = lambda: 0


async def managed(plan: dict[str, Any], membership: Membership) -> None:
    """Read as a member of our managed group."""
    marks = Marks(plan)
    async with aiokcc.replay(
        plan["topic"],
        bootstrap_servers=plan["bootstrap"],
        store=plan["store"],
        period=plan["period"],
        start=plan["start"],
        end=plan["end"],
        assignment="managed",
        expect=plan["members"],
        offset_storage="store",
        session_timeout=plan["session_timeout"],
        metadata_max_age_ms=plan["metadata_ms"],
    ) as replay:
        membership.count = lambda: len(replay.partitions)

        async def leave() -> None:
            await membership.leaving.wait()
            replay.stop()

        waiting = asyncio.ensure_future(leave())
        try:
            await replay.run(marks.handle)
        finally:
            waiting.cancel()


async def group(plan: dict[str, Any], membership: Membership) -> None:
    """Read as a member of a Kafka consumer group, through aiokafka."""
    marks = Marks(plan)
    consumer = AIOKafkaConsumer(
        plan["topic"],
        bootstrap_servers=plan["bootstrap"],
        group_id=plan["group"],
        auto_offset_reset="earliest",
        session_timeout_ms=plan["session_timeout"] * 1000,
        heartbeat_interval_ms=plan["heartbeat_ms"],
        auto_commit_interval_ms=1000,
        metadata_max_age_ms=plan["metadata_ms"],
        max_partition_fetch_bytes=8 * 1024,
    )

    async def each(records: list[Any]) -> None:
        for record in records:
            await marks.handle(record)

    await consumer.start()
    membership.count = lambda: len(consumer.assignment())
    try:
        while not membership.leaving.is_set():
            fetched = await consumer.getmany(timeout_ms=100)
            await asyncio.gather(*map(each, fetched.values()))
    finally:
        await consumer.stop()


WAYS: dict[str, Callable[[dict[str, Any], Membership], Awaitable[None]]] = {"managed": managed, "group": group}


async def serve(requests: Requests) -> None:
    """Join at the first request, count at the next ones, leave when asked."""
    plan = requests.plan
    requests.answer(ready=True)
    if await requests.wait() is None:
        return
    membership = Membership()
    reading = asyncio.ensure_future(WAYS[plan["way"]](plan, membership))  # type: ignore[arg-type]
    requests.answer(going=True)
    while (request := await requests.wait()) is not None:
        if "count" in request:
            if reading.done():
                reading.result()  # raises what has ended it
            requests.answer(partitions=membership.count())
        else:
            began = _clock()
            membership.leaving.set()
            await reading
            requests.answer(began=began, ended=_clock())
    reading.cancel()
    await asyncio.wait([reading])


def main() -> None:
    """Run the plan."""
    asyncio.run(serve(Requests()))


if __name__ == "__main__":
    main()
