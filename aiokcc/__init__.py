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

    async with aiokcc.replay("orders", "payments", bootstrap_servers="127.0.0.1:9092",
                             store="zk://127.0.0.1:2181/replay", end="now", period="1m") as replay:
        await replay.run(handle)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokcc.errors import (
    AiokccError,
    BadVersionError,
    CoordinationError,
    CorruptNodeError,
    EphemeralParentError,
    FencedError,
    GroupMismatchError,
    HandlerError,
    KafkaError,
    LocalServiceError,
    MissingNodeError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OutcomeUnknownError,
    PartitionError,
    PartitionOwnedError,
    PartitionRevoked,
    PipelineMismatchError,
    PoisonTimestampError,
    RecordError,
    RunEnded,
    SessionLostError,
    SparkJobError,
    StoreError,
    StoreUnreachableError,
    TooLargeError,
    UsageError,
)
from aiokcc.runtime.coordinator import Coordinator, connect
from aiokcc.runtime.gate import Gate
from aiokcc.runtime.status import Status
from aiokcc.stores import Store, open_store

if TYPE_CHECKING:
    from aiokcc.kafka import replay

__version__ = "0.1.0"

__all__ = [
    "AiokccError",
    "BadVersionError",
    "CoordinationError",
    "Coordinator",
    "CorruptNodeError",
    "EphemeralParentError",
    "FencedError",
    "Gate",
    "GroupMismatchError",
    "HandlerError",
    "KafkaError",
    "LocalServiceError",
    "MissingNodeError",
    "NoAuthError",
    "NoNodeError",
    "NodeExistsError",
    "NotEmptyError",
    "OutcomeUnknownError",
    "PartitionError",
    "PartitionOwnedError",
    "PartitionRevoked",
    "PipelineMismatchError",
    "PoisonTimestampError",
    "RecordError",
    "RunEnded",
    "SessionLostError",
    "SparkJobError",
    "Status",
    "Store",
    "StoreError",
    "StoreUnreachableError",
    "TooLargeError",
    "UsageError",
    "connect",
    "open_store",
    "replay",
]


def __getattr__(name: str) -> object:
    """``aiokcc.replay`` needs aiokafka, which the gate alone does not: it is looked for when it is asked for."""
    if name != "replay":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from aiokcc.kafka import replay
    except ModuleNotFoundError as error:
        if error.name != "aiokafka":
            raise
        raise UsageError("aiokcc.replay reads Kafka through aiokafka: pip install 'aiokcc[kafka]'") from error
    return replay
