"""aiokcc keeps many Kafka partitions in step in event time, across topics and processes.

No partition processes a record at or past the limit ``T`` before all partitions have processed everything before ``T``; then an
elected leader moves ``T``. ::

    async with aiokcc.connect("zk://127.0.0.1:2181/replay", topics={"orders": 8, "payments": 4},
                              start="2026-01-01T00:00Z", period="1m") as group:
        async with group.gate("orders", 3) as gate:
            async for record in my_consumer:
                await gate.wait_until(record.timestamp)
                await handle(record)
            gate.finish()

    async with aiokcc.replay("orders", "payments", bootstrap_servers="127.0.0.1:9092",
                             store="zk://127.0.0.1:2181/replay", end="now", period="1m") as replay:
        await replay.run(handle)

    with aiokcc.spark.replay(spark, "orders", "payments", bootstrap_servers="127.0.0.1:9092",
                             store="zk://127.0.0.1:2181/replay", name="revenue", end="now", period="1h") as replay:
        replay.for_each_period(revenue, sink=aiokcc.spark.ParquetSink("out/revenue"))
"""

from __future__ import annotations

import importlib
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
    KafkaRefusedError,
    LocalServiceError,
    MemberExistsError,
    MissingNodeError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OtherFormatError,
    OutcomeUnknownError,
    PartitionError,
    PartitionOwnedError,
    PartitionRevoked,
    PipelineMismatchError,
    PoisonTimestampError,
    PositionLostError,
    RecordError,
    RunEnded,
    SessionLostError,
    SparkJobError,
    StoreError,
    StoreUnreachableError,
    TooLargeError,
    UsageError,
)
from aiokcc.runtime.gate import Gate
from aiokcc.runtime.group import Group, connect
from aiokcc.runtime.status import Status
from aiokcc.stores import Store, open_store

if TYPE_CHECKING:
    from aiokcc import spark
    from aiokcc.kafka import replay

__version__ = "0.1.0"

__all__ = [
    "AiokccError",
    "BadVersionError",
    "CoordinationError",
    "CorruptNodeError",
    "EphemeralParentError",
    "FencedError",
    "Gate",
    "Group",
    "GroupMismatchError",
    "HandlerError",
    "KafkaError",
    "KafkaRefusedError",
    "LocalServiceError",
    "MemberExistsError",
    "MissingNodeError",
    "NoAuthError",
    "NoNodeError",
    "NodeExistsError",
    "NotEmptyError",
    "OtherFormatError",
    "OutcomeUnknownError",
    "PartitionError",
    "PartitionOwnedError",
    "PartitionRevoked",
    "PipelineMismatchError",
    "PoisonTimestampError",
    "PositionLostError",
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
    "spark",
]


def __getattr__(name: str) -> object:
    """Imports ``aiokcc.replay`` and ``aiokcc.spark`` on first use: they need packages that the gate alone does not."""
    if name not in {"replay", "spark"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module("aiokcc.kafka" if name == "replay" else "aiokcc.spark")
    except ModuleNotFoundError as error:
        if error.name != "aiokafka":
            raise
        extra = "kafka" if name == "replay" else "spark"
        raise UsageError(f"aiokcc.{name} reads Kafka through aiokafka: pip install 'aiokcc[{extra}]'") from error
    return module.replay if name == "replay" else module
