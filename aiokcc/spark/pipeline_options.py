"""The options of a replay on Spark, checked, and the definition that the store records of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokcc.core.subscriptions import Subscription
from aiokcc.kafka.consumer_policy import ConsumerPolicy, describe_source
from aiokcc.kafka.source_options import SourceOptions
from aiokcc.runtime.options import GroupOptions
from aiokcc.spark.progress import Progress
from aiokcc.stores.port import Store

__all__ = ["PipelineOptions"]


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The checked arguments of a replay on Spark."""

    spark: Any
    name: str
    source: SourceOptions
    policy: ConsumerPolicy
    group: GroupOptions
    timestamp: Any
    kafka_options: Mapping[str, str] = field(repr=False)  # a password may be among them
    max_periods: int
    target_seconds: float
    max_bytes: int
    retries: int
    from_scratch: bool
    accept_deleted: bool
    progress: Callable[[Progress], None] | bool | None
    keeps_periods: bool
    version: str | None
    """The version of the function, as the user gave it."""
    available_now: bool
    """True if this start publishes what is closed by now and returns; the run itself has no end."""
    store: Store
    store_timeout: float
    subscription: Subscription | None
    """In a managed group, the partitions that the pipeline runs; else None."""
    restates_late: bool = False
    """True if late records are left out and listed, until their periods are restated."""

    def define(self) -> dict[str, Any]:
        """Return the definition of the pipeline without its sink. Every start under the same name has to have the same."""
        source, mine = self.source, self.source.partitions
        return {
            "topics": sorted(source.topics),
            "partitions": None if mine is None else [str(p) for p in sorted(mine)],
            "period": self.group.settings.period,
            "source": describe_source(source, self.policy),
            "timestamp": None if self.timestamp is None else str(self.timestamp),
            **({} if self.subscription is None else {"subscription": str(self.subscription)}),
            **({"late": "restate"} if self.restates_late else {}),
        }
