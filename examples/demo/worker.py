"""One of the three processes. It waits for a line on its standard input, reads its partitions once, and waits again.

It writes one line for each record that it has processed to its standard output. The three share one pipe, so the join gets the
records in the order in which they were processed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

import aiokcc
from examples.demo.data import END, PERIOD, START, TOPICS, WORKERS, make_log

RECORDS_PER_SECOND: Final = 1000
"""The speed of the handler in each partition: a partition with six times as many records takes six times as long."""


def say(line: str) -> None:
    """Write a line to the shared pipe. A line as short as this is written in one piece."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


class Handler:
    """Handles a record, with the gate and without: prints it, and takes about a millisecond."""

    def __init__(self) -> None:
        self._owed: dict[tuple[str, int], float] = {}

    async def __call__(self, record: Any) -> None:
        """Handle one record."""
        where = record.topic, record.partition
        say(f"{record.topic} {record.partition} {record.timestamp} {record.value.decode()}")
        owed = self._owed.get(where, 0.0) + random.uniform(0.5, 1.5) / RECORDS_PER_SECOND  # no two runs are the same
        if owed > 0.01:
            await asyncio.sleep(owed)
            owed = 0.0
        self._owed[where] = owed
        if record.offset + 1 == len(make_log().records[where]):
            say(f"{record.topic} {record.partition} finished")


async def read_plainly(servers: str, topic: str, number: int) -> None:
    """Read one partition with plain aiokafka, to its end."""
    partition = TopicPartition(topic, number)
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        end = (await consumer.end_offsets([partition]))[partition]
        handle = Handler()
        async for record in consumer:
            await handle(record)
            if record.offset + 1 == end:
                return
    finally:
        await consumer.stop()


async def work(worker: int, servers: str, store: str) -> None:
    """Read this process's partitions, one task each: with plain aiokafka if there is no store, otherwise in step."""
    mine = WORKERS[worker]
    if not store:
        async with asyncio.TaskGroup() as tasks:
            for topic, number in mine:
                tasks.create_task(read_plainly(servers, topic, number))
        return
    async with aiokcc.replay(
        *TOPICS,
        bootstrap_servers=servers,
        store=store,
        start=START,
        end=END,
        period=PERIOD,
        partitions=list(mine),
        member=f"worker-{worker + 1}",
    ) as replay:
        await replay.run(Handler())


async def main(worker: int) -> None:
    """Run one round for each line of input."""
    make_log()
    aiokcc.open_store("zk://127.0.0.1/demo")  # imports the modules it needs; nothing is connected
    say("ready")
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        servers, _, store = line.partition(" ")
        await work(worker, servers, store)
        say("done")


if __name__ == "__main__":
    try:
        asyncio.run(main(int(sys.argv[1])))
    except aiokcc.AiokccError as error:
        sys.exit(f"{error}")
