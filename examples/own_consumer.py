"""Your own consumer: what a client for any log has to do to take part, also while it has nothing to read.

In a checkout of the repository::

    python -m examples.own_consumer

It starts a real ZooKeeper and three processes. Each reads one partition with a `Client` that stands for yours: an async
iterator over a log that may still be written while it is read. ``refunds`` is at its end most of the time. It must not stop
the others; `gate.idle` is for that. The refund that is written later is still handled at its event time.
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
    """A record, as any client returns it."""

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
        """Return True if the position is the end of the log *now*."""
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
        """Fill the log with ten minutes of orders and payments, and two refunds."""
        for second in {"orders": range(0, 600, 20), "payments": range(10, 600, 20), "refunds": (60, 160)}[self.topic]:
            self._append(second)
        self.complete = self.topic != "refunds"

    async def be_written(self) -> None:
        """Write a third refund, in place of another program that still writes to the log."""
        if not self.complete:
            await asyncio.sleep(0.5)
            self._append(630)
            self.complete = True
            self._grown.set()

    def _append(self, second: int) -> None:
        self._log.append(Record(len(self._log), START + second * 1000))
        self._grown.set()


async def aligned(client: Client, gate: aiokcc.Gate) -> AsyncIterator[Record]:
    """Yield the client's records, each when the gate is open for it. You write this and the next two functions, and no more."""
    client.position = gate.resume_offset or 0
    while True:
        try:
            record = await next_in_step(client, gate)
        except aiokcc.PositionLostError as lost:
            # This process was frozen for long and another member has run the partition: resume where that one stopped.
            client.position = lost.offset or 0
            continue
        if record is None:
            return
        yield record


async def next_in_step(client: Client, gate: aiokcc.Gate) -> Record | None:
    """Return the next record when the gate is open for it; None if there are no more."""
    while client.at_end():
        if client.complete:
            gate.finish(client.position)  # the others no longer wait for this partition
            return None
        await idle_until_more(client, gate)  # then look again
    record = await anext(client)
    await gate.wait_until(record.timestamp, record.offset)
    return record


async def idle_until_more(client: Client, gate: aiokcc.Gate) -> None:
    """Declare the partition idle until there is a record or the limit has moved, whichever comes first."""
    idle = asyncio.ensure_future(gate.idle(offset=client.position))
    more = asyncio.ensure_future(client.more())
    try:
        await asyncio.wait({idle, more}, return_when=asyncio.FIRST_COMPLETED)
        if idle.done():
            idle.result()  # raises if the run has ended meanwhile, or the group cannot continue
    finally:
        for task in (idle, more):
            task.cancel()  # for the gate the partition is running again
        await asyncio.gather(idle, more, return_exceptions=True)


async def member(store: str, topic: str) -> None:
    """Run one of the three processes."""
    client = Client(topic)
    async with (
        aiokcc.connect(store, topics=TOPICS, start=START, period="1m", member=f"reader-of-{topic}") as group,
        group.gate(topic, 0) as gate,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(client.be_written())
        async for record in aligned(client, gate):
            line = f"{clock(record.timestamp)}  {topic:<9} offset {record.offset:<3} limit {clock(gate.limit)}\n"
            print(line, end="", flush=True)  # one write: three processes share the terminal
            await asyncio.sleep(0.03 if topic == "payments" else 0)  # the work; payments take long


async def main() -> None:
    """Start ZooKeeper and the members, and print the status at the end."""
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
