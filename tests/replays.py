"""Replays for tests: topics of known timestamps, settings that suit most tests, and what was seen."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiokcc
from aiokcc import local
from aiokcc.core import paths
from aiokcc.core.partitions import Partition
from aiokcc.core.report import Cut
from aiokcc.core.run import CUT_SLOTS
from aiokcc.kafka import Replay
from tests import kafka_topics
from tests.kafka_topics import Row

MINUTE = 60_000
BASE = 1_700_000_040_000
"""A boundary of minutes."""


def at(minutes: float, ms: int = 0) -> int:
    """Return the time so many minutes after the first boundary."""
    return BASE + int(minutes * MINUTE) + ms


def memory() -> str:
    """Return the URL of a store in memory that no other test uses."""
    return f"memory://{uuid.uuid4().hex}"


async def topic(kafka: local.Kafka, *logs: Iterable[int], stem: str = "topic", **configs: Any) -> str:
    """Create a topic with one partition for each list of timestamps; each value is ``partition:offset``."""
    filled = [list(stamps) for stamps in logs]
    name = await kafka_topics.create_fresh(kafka.bootstrap, stem, partitions=len(filled), **configs)
    for number, stamps in enumerate(filled):
        await append(kafka, name, number, stamps)
    return name


async def append(kafka: local.Kafka, name: str, partition: int, stamps: Iterable[int], first: int = 0) -> None:
    """Write records with these times."""
    rows = [Row(partition, ts, f"{partition}:{first + n}".encode()) for n, ts in enumerate(stamps)]
    if rows:
        await kafka_topics.write(kafka.bootstrap, name, rows)


def replaying(kafka: local.Kafka, *topics: str, **settings: Any) -> AbstractAsyncContextManager[Replay]:
    """Open a replay of one-minute periods up to the present ends of the logs, in a store of its own."""
    chosen = {"bootstrap_servers": kafka.bootstrap, "period": "1m", "end": "now", **settings}
    return aiokcc.replay(*topics, store=chosen.pop("store", None) or memory(), **chosen)


def places(records: Iterable[Any]) -> list[tuple[str, int, int]]:
    """Return the topic, partition and offset of records."""
    return [(r.topic, r.partition, r.offset) for r in records]


def all_places(name: str, *counts: int) -> list[tuple[str, int, int]]:
    """Return every place of a topic whose partitions have so many records."""
    return [(name, p, offset) for p, count in enumerate(counts) for offset in range(count)]


def in_step(stamps: Iterable[int], period: int = MINUTE) -> bool:
    """Return whether no record came after one of a later period."""
    periods = [ts // period for ts in stamps]
    return periods == sorted(periods)


async def cuts(url: str) -> dict[int, Cut]:
    """Return the cuts that a store still holds, by number."""
    async with aiokcc.open_store(url).session(timeout=10, connect_timeout=10) as session:
        slots = [paths.cut(number, CUT_SLOTS) for number in range(CUT_SLOTS)]
        found = [Cut.decode(slot, (await session.get(slot)).data) for slot in slots]
    return {cut.number: cut for cut in found if cut is not None}


def other_tasks() -> set[asyncio.Task[Any]]:
    """Return the tasks that run beside the test."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


def partition(name: str, number: int) -> Partition:
    return Partition(name, number)


def alive(kind: type) -> list[Any]:
    """Return all living objects of this type."""
    return [found for found in gc.get_objects() if isinstance(found, kind)]
