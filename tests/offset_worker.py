"""A process that replays one topic and commits: ``python -m tests.offset_worker SPEC`` (JSON), to be stopped and killed.

It prints ``handled PARTITION OFFSET`` for each record. Before the record at ``stop_at`` it prints ``waiting``, and continues
when it is sent a line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

import aiokcc
from tests.loops import run


async def main(spec: dict[str, Any]) -> None:
    stop_at = tuple(spec.pop("stop_at"))

    async def handle(record: Any) -> None:
        if (record.partition, record.offset) == stop_at:
            print("waiting", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
        print("handled", record.partition, record.offset, flush=True)

    topic = spec.pop("topic")
    async with aiokcc.replay(topic, **spec) as replay:
        await replay.run(handle)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    run(main(json.loads(sys.argv[1])))
