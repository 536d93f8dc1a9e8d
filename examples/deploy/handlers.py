"""The handler of the deployments: replace it by your own."""

from __future__ import annotations

import aiokcc


async def handle(record: aiokcc.Record) -> None:
    """Print where the record is from, as one line on stdout."""
    print(record.topic, record.partition, record.offset, record.timestamp)
