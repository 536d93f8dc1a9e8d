"""One member of a group, as a process of its own: ``python -m tests.chaos.worker SPEC`` (JSON).

It runs its partitions over synthetic logs and writes each record's start and end to a history file, unbuffered, so that the
history survives whatever happens to the process. Times are CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass

import aiokcc
from tests.loops import run

TOPIC = "orders"
PERIOD = 1000
"""Milliseconds of event time; every partition has about one record in each."""


def stamp(partition: int, offset: int) -> int:
    """Return the timestamp of a record. They are in order, with some gaps, and differ between partitions."""
    return offset * PERIOD + (offset * 7919 + partition * 104_729) % PERIOD + (offset // 50) * (3 * PERIOD)


@dataclass(frozen=True)
class Spec:
    """The arguments of a worker."""

    url: str
    name: str
    partitions: list[int]
    total: int
    """Partitions of the whole group."""
    history: str
    session_timeout: float = 3.0
    count: int = 1 << 40
    """Records in each partition."""
    claim_timeout: float = 60.0
    lookahead: int = 0
    share_host: bool = False


class History:
    """An append-only file of a worker's actions."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, what: str, partition: int, offset: int) -> None:
        os.write(self._fd, f"{what} {time.monotonic_ns()} {partition} {offset}\n".encode())


async def consume(spec: Spec, group: aiokcc.Group, partition: int, history: History) -> None:
    async with group.gate(TOPIC, partition) as gate:
        offset = gate.resume_offset or 0
        while offset < spec.count:
            try:
                await gate.wait_until(stamp(partition, offset), offset)
            except aiokcc.PositionLostError as lost:  # another member ran it while we were stopped
                assert lost.offset is not None
                offset = lost.offset
                continue
            history.write("start", partition, offset)
            await asyncio.sleep(0)  # a handler that gives the others a turn
            history.write("done", partition, offset)
            offset += 1
        gate.finish(offset)


async def work(spec: Spec) -> None:
    history = History(spec.history)
    async with (
        aiokcc.connect(
            spec.url,
            topics={TOPIC: spec.total},
            start=0,
            period=PERIOD,
            member=spec.name,
            session_timeout=spec.session_timeout,
            connect_timeout=60,
            claim_timeout=spec.claim_timeout,
            lookahead=spec.lookahead,
            share_host=spec.share_host,
        ) as group,
        asyncio.TaskGroup() as tasks,
    ):
        for partition in spec.partitions:
            tasks.create_task(consume(spec, group, partition, history))
        if not spec.partitions:
            await asyncio.Event().wait()  # leads, and does nothing else


async def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    spec = Spec(**json.loads(sys.argv[1]))
    task = asyncio.ensure_future(work(spec))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return
    logging.getLogger("worker").info("finished")


if __name__ == "__main__":
    run(main())
