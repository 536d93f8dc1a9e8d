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
from typing import TYPE_CHECKING, Final

from aiokcc.core.partitions import Partition
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
    NoGroupError,
    NoNodeError,
    NotEmptyError,
    OtherFormatError,
    OutcomeUnknownError,
    PartitionError,
    PartitionOwnedError,
    PartitionRevoked,
    PipelineBusyError,
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
from aiokcc.runtime.status import GroupState, Status
from aiokcc.stores import Store, open_store

if TYPE_CHECKING:
    from typing import TypeAlias

    from aiokafka import ConsumerRecord

    from aiokcc import spark
    from aiokcc.kafka import Period, Replay, Summary, replay

    Record: TypeAlias = ConsumerRecord[bytes, bytes]

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
    "GroupState",
    "HandlerError",
    "KafkaError",
    "KafkaRefusedError",
    "LocalServiceError",
    "MemberExistsError",
    "MissingNodeError",
    "NoAuthError",
    "NoGroupError",
    "NoNodeError",
    "NodeExistsError",
    "NotEmptyError",
    "OtherFormatError",
    "OutcomeUnknownError",
    "Partition",
    "PartitionError",
    "PartitionOwnedError",
    "PartitionRevoked",
    "Period",
    "PipelineBusyError",
    "PipelineMismatchError",
    "PoisonTimestampError",
    "PositionLostError",
    "Record",
    "RecordError",
    "Replay",
    "RunEnded",
    "SessionLostError",
    "SparkJobError",
    "Status",
    "Store",
    "StoreError",
    "StoreUnreachableError",
    "Summary",
    "TooLargeError",
    "UsageError",
    "connect",
    "open_store",
    "replay",
    "spark",
]


_OF_KAFKA: Final = frozenset({"Period", "Record", "Replay", "Summary", "replay"})


def __getattr__(name: str) -> object:
    """Imports ``aiokcc.spark`` and the names of ``aiokcc.kafka`` on first use: they need packages that the gate does not."""
    if name not in _OF_KAFKA and name != "spark":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module("aiokcc.kafka" if name in _OF_KAFKA else "aiokcc.spark")
    except ModuleNotFoundError as error:
        if error.name != "aiokafka":
            raise
        extra = "kafka" if name in _OF_KAFKA else "spark"
        raise UsageError(f"aiokcc.{name} reads Kafka through aiokafka: pip install 'aiokcc[{extra}]'") from error
    if name == "Record":
        from aiokafka import ConsumerRecord

        return ConsumerRecord[bytes, bytes]
    return getattr(module, name) if name in _OF_KAFKA else module
