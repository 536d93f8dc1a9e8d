"""One of the three processes. It waits for a line on its standard input, reads its partitions once, and waits again.

What it has processed goes to its standard output, one line a record. The three share one pipe, so that the order in which
they processed is the order in which the join gets it.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from typing import Final

import aiokcc
from examples.demo.data import END, PERIOD, START, TOPICS, WORKERS, make_log

RECORDS_PER_SECOND: Final = 1000
"""How fast any partition can be read: one that holds six times as many records takes six times as long."""


def say(line: str) -> None:
    """Into the shared pipe: so short a line is written whole."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


async def read(topic: str, number: int, gate: aiokcc.Gate | None) -> None:
    """Read one partition to its end. The gate is the one line that makes the difference."""
    owed = 0.0
    for offset, record in enumerate(make_log().records[topic, number]):
        if gate is not None:
            await gate.wait_until(record.ts, offset)
        say(f"{topic} {number} {record.ts} {record.order}")
        owed += random.uniform(0.5, 1.5) / RECORDS_PER_SECOND  # no two runs take the same time, as in life
        if owed > 0.01:
            await asyncio.sleep(owed)
            owed = 0.0
    if gate is not None:
        gate.finish()
    say(f"{topic} {number} finished")


async def read_gated(coordinator: aiokcc.Coordinator, topic: str, number: int) -> None:
    """The same behind the gate."""
    async with coordinator.gate(topic, number) as gate:
        await read(topic, number, gate)


async def work(worker: int, store: str) -> None:
    """Read this process's partitions, one task each."""
    if store == "-":
        async with asyncio.TaskGroup() as tasks:
            for topic, number in WORKERS[worker]:
                tasks.create_task(read(topic, number, None))
        return
    async with (
        aiokcc.connect(store, topics=TOPICS, start=START, end=END, period=PERIOD, member=f"worker-{worker}") as group,
        asyncio.TaskGroup() as tasks,
    ):
        for topic, number in WORKERS[worker]:
            tasks.create_task(read_gated(group, topic, number))


async def main(worker: int) -> None:
    """One round for each line of input."""
    make_log()
    aiokcc.open_store("zk://127.0.0.1/demo")  # loads what it needs; nothing is connected
    say("ready")
    while store := (await asyncio.to_thread(sys.stdin.readline)).strip():
        await work(worker, store)
        say("done")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
