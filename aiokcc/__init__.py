"""aiokcc keeps many Kafka partitions in step in event time, across topics and processes.

Nobody processes a record at or past the limit ``T`` before everybody has processed everything before ``T``; then an elected
leader moves ``T`` on. ::

    async with aiokcc.connect("zk://127.0.0.1:2181/replay", topics={"orders": 8, "payments": 4},
                              start="2026-01-01T00:00Z", period="1m") as coordinator:
        async with coordinator.gate("orders", 3) as gate:
            async for record in my_consumer:
                await gate.wait_until(record.timestamp)
                await handle(record)
            gate.finish()
"""

from __future__ import annotations

from aiokcc.errors import (
    AiokccError,
    BadVersionError,
    CoordinationError,
    CorruptNodeError,
    EphemeralParentError,
    GroupMismatchError,
    LocalServiceError,
    MissingNodeError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OutcomeUnknownError,
    PartitionError,
    PartitionOwnedError,
    RunEnded,
    SessionLostError,
    StoreError,
    StoreUnreachableError,
    TooLargeError,
    UsageError,
)
from aiokcc.runtime.coordinator import Coordinator, connect
from aiokcc.runtime.gate import Gate
from aiokcc.runtime.status import Status
from aiokcc.stores import Store, open_store

__version__ = "0.1.0"

__all__ = [
    "AiokccError",
    "BadVersionError",
    "CoordinationError",
    "Coordinator",
    "CorruptNodeError",
    "EphemeralParentError",
    "Gate",
    "GroupMismatchError",
    "LocalServiceError",
    "MissingNodeError",
    "NoAuthError",
    "NoNodeError",
    "NodeExistsError",
    "NotEmptyError",
    "OutcomeUnknownError",
    "PartitionError",
    "PartitionOwnedError",
    "RunEnded",
    "SessionLostError",
    "Status",
    "Store",
    "StoreError",
    "StoreUnreachableError",
    "TooLargeError",
    "UsageError",
    "connect",
    "open_store",
]
