"""One process of a managed replay: ``python -m tests.chaos.sharer SPEC`` (JSON). SIGTERM leaves in good order.

Its history has a line for each record that a handler starts and ends, with the generation that the process believed in and
the record's value.
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
from typing import Any

import aiokcc
from tests.chaos.worker import PERIOD
from tests.loops import run


@dataclass(frozen=True)
class Spec:
    """The arguments of a process."""

    url: str
    bootstrap: str
    name: str
    topic: str
    history: str
    session_timeout: float = 2.0
    takes: float = 0.0005
    join_window: float = 0.3
    offset_storage: str = "kafka"
    group_id: str | None = None
    expect: int | None = None


async def work(spec: Spec) -> None:
    descriptor = os.open(spec.history, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    me = f"{spec.name}-{os.getpid()}"

    def write(what: str, record: Any, generation: int) -> None:
        value = record.value.decode()
        line = f"{what} {time.monotonic_ns()} {me} {record.partition} {record.offset} {generation} {value}\n"
        os.write(descriptor, line.encode())

    async with aiokcc.replay(
        spec.topic,
        bootstrap_servers=spec.bootstrap,
        store=spec.url,
        period=PERIOD,
        end="now",
        assignment="managed",
        member=spec.name,
        join_window=spec.join_window,
        expect=spec.expect,
        offset_storage=spec.offset_storage,  # type: ignore[arg-type]
        group_id=spec.group_id,
        session_timeout=spec.session_timeout,
        connect_timeout=60,
        buffer_records=200,
    ) as replay:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, replay.stop)

        async def handle(record: Any) -> None:
            member_session = replay.group.membership.member_session
            generation = 0 if member_session is None else member_session.generation.number
            write("start", record, generation)
            await asyncio.sleep(spec.takes)
            write("done", record, generation)

        await replay.run(handle)


async def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    try:
        await work(Spec(**json.loads(sys.argv[1])))
    except aiokcc.RunEnded:  # while we were away, and nobody needed us any more
        return


if __name__ == "__main__":
    run(main())
