"""Bring your own consumer: what a client for any log has to do to take part, also while it has nothing to read.

In a checkout of the repository::

    python -m examples.own_consumer

It starts a real ZooKeeper and three processes. Each reads one partition with a `Client` that stands for yours: an async
iterator over a log that may still be written while it is read. ``refunds`` is at its end most of the time: it must not stop
the others, which is what `gate.idle` is for; and the refund that comes late in the day still takes its place in event time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiokcc
from aiokcc import local

TOPICS = {"orders": 1, "payments": 1, "refunds": 1}
START = 1_767_225_600_000  # 2026-01-01T00:00Z
MINUTE = 60_000


@dataclass
class Record:
    """What any client gives you."""

    offset: int
    timestamp: int


@dataclass
class Client:
    """Your client. It needs three things: the next record, whether it is at the log's end, and a way to wait for more."""

    topic: str
    position: int = 0
    complete: bool = False
    _log: list[Record] = field(default_factory=list)
    _grown: asyncio.Event = field(default_factory=asyncio.Event)

    def at_end(self) -> bool:
        """Whether the position is the end of the log *now*."""
        return self.position >= len(self._log)

    async def more(self) -> None:
        """Wait until there is something to read, or nothing will ever come."""
        while self.at_end() and not self.complete:
            self._grown.clear()
            await self._grown.wait()

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        await self.more()
        if self.at_end():
            raise StopAsyncIteration
        self.position += 1
        return self._log[self.position - 1]

    def __post_init__(self) -> None:
        """What lies in the log when we come: ten minutes of orders and payments, and two refunds."""
        for second in {"orders": range(0, 600, 20), "payments": range(10, 600, 20), "refunds": (60, 160)}[self.topic]:
            self._append(second)
        self.complete = self.topic != "refunds"

    async def be_written(self) -> None:
        """Stands for whoever still writes to the log: a third refund."""
        if not self.complete:
            await asyncio.sleep(0.5)
            self._append(630)
            self.complete = True
            self._grown.set()

    def _append(self, second: int) -> None:
        self._log.append(Record(len(self._log), START + second * 1000))
        self._grown.set()


async def aligned(client: Client, gate: aiokcc.Gate) -> AsyncIterator[Record]:
    """The client's records, each when its time has come. This and the next two functions are all that you need to write."""
    client.position = gate.resume_offset or 0
    while True:
        try:
            record = await next_in_step(client, gate)
        except (
            aiokcc.PositionLostError
        ) as lost:  # we were away for long, and somebody else went on: seek, and go on there
            client.position = lost.offset or 0
            continue
        if record is None:
            return
        yield record


async def next_in_step(client: Client, gate: aiokcc.Gate) -> Record | None:
    """The next record, when its time has come; None when there will be none."""
    while client.at_end():
        if client.complete:
            gate.finish(client.position)  # for good: the others no longer wait for this partition
            return None
        await idle_until_more(client, gate)  # then look again
    record = await anext(client)
    await gate.wait_until(record.timestamp, record.offset)
    return record


async def idle_until_more(client: Client, gate: aiokcc.Gate) -> None:
    """Say "the log holds nothing more", until there is a record or the limit has moved, whichever comes first."""
    idle = asyncio.ensure_future(gate.idle(offset=client.position))
    more = asyncio.ensure_future(client.more())
    try:
        await asyncio.wait({idle, more}, return_when=asyncio.FIRST_COMPLETED)
        if idle.done():
            idle.result()  # raises if the run has ended meanwhile, or the group cannot go on
    finally:
        for task in (idle, more):
            task.cancel()  # to the gate this says: running again
        await asyncio.gather(idle, more, return_exceptions=True)


async def member(store: str, topic: str) -> None:
    """One of the three processes."""
    client = Client(topic)
    async with (
        aiokcc.connect(store, topics=TOPICS, start=START, period="1m", member=f"reader-of-{topic}") as group,
        group.gate(topic, 0) as gate,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(client.be_written())
        async for record in aligned(client, gate):
            line = f"{clock(record.timestamp)}  {topic:<9} offset {record.offset:<3} limit {clock(gate.limit)}\n"
            print(line, end="", flush=True)  # in one piece: three processes share the terminal
            await asyncio.sleep(0.03 if topic == "payments" else 0)  # the work; payments take long


async def main() -> None:
    """Start ZooKeeper and the members; in the end, ask how it went."""
    async with local.zookeeper() as zookeeper:
        store = zookeeper.url("own-consumer")
        module = (sys.executable, "-m", "examples.own_consumer")
        processes = [await asyncio.create_subprocess_exec(*module, store, topic) for topic in TOPICS]
        codes = await asyncio.gather(*(process.wait() for process in processes))
        if any(codes):
            sys.exit(f"a member has failed: exit codes {codes}")
        print(f"\n$ aiokcc status {store}", flush=True)
        await (await asyncio.create_subprocess_exec(sys.executable, "-m", "aiokcc", "status", store)).wait()


def clock(ts: int) -> str:
    """Minutes and seconds since the start."""
    seconds = (ts - START) // 1000
    return f"{seconds // 60:02}:{seconds % 60:02}"


if __name__ == "__main__":
    problems: list[str] = []
    try:
        asyncio.run(member(*sys.argv[1:]) if sys.argv[1:] else main())
    except* aiokcc.AiokccError as errors:  # a task group collects what its tasks raise
        problems = [str(error) for error in errors.exceptions]
    if problems:
        sys.exit("\n".join(problems))
