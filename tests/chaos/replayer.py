"""One process of a replay: ``python -m tests.chaos.replayer SPEC`` (JSON). It writes a history, as `worker` does."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from dataclasses import dataclass
from typing import Any

import aiokcc
from tests.chaos.worker import PERIOD, History
from tests.loops import run


@dataclass(frozen=True)
class Spec:
    """The arguments of a process."""

    url: str
    bootstrap: str
    name: str
    topic: str
    partitions: list[int]
    history: str
    way: str
    """``run``, ``batches``, ``iteration`` or ``periods``."""
    lateness: int = 0
    offsets: str = ""
    """The place where they are committed: ``kafka``, ``zookeeper`` or nowhere."""
    lookahead: int = 0
    """A negative number stands for ``auto``, with partitions up to so many periods apart."""
    session_timeout: float = 1.0
    claim_timeout: float = 60.0
    share_host: bool = False


async def work(spec: Spec) -> None:
    history = History(spec.history)

    async def handle(record: Any) -> None:
        history.write("start", record.partition, record.offset)
        await asyncio.sleep(0)
        history.write("done", record.partition, record.offset)

    async def handle_all(records: list[Any]) -> None:
        for record in records:
            await handle(record)

    async with aiokcc.replay(
        spec.topic,
        bootstrap_servers=spec.bootstrap,
        store=spec.url,
        period=PERIOD,
        end="now",
        partitions={spec.topic: spec.partitions},
        lateness=spec.lateness,
        lookahead=spec.lookahead if spec.lookahead >= 0 else "auto",
        max_apart=None if spec.lookahead >= 0 else -spec.lookahead * PERIOD,
        share_host=spec.share_host,
        member=spec.name,
        session_timeout=spec.session_timeout,
        connect_timeout=60,
        claim_timeout=spec.claim_timeout,
        buffer_records=200,
        group_id=f"group-{spec.topic}" if spec.offsets == "kafka" else None,
        offset_storage="store" if spec.offsets == "store" else "kafka",
    ) as replay:
        if spec.way == "run":
            await replay.run(handle)
        elif spec.way == "batches":
            await replay.run_batches(handle_all)
        elif spec.way == "iteration":
            async for record in replay:
                await handle(record)
        else:
            async for period in replay.periods():
                for records in period.records.values():
                    await handle_all(records)


async def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    try:
        await work(Spec(**json.loads(sys.argv[1])))
    except aiokcc.RunEnded:  # while we were away, and nobody needed us any more
        return


if __name__ == "__main__":
    run(main())
