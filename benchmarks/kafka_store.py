"""Measures what the store on Kafka costs beside the periods themselves, on a broker that is started for it.

* *join*: from opening a session to its first read, in the log of a run of a million periods; against the same in a new log.
  Three members found the run and close the first periods. The records of the other periods are written by one session as fast
  as the store takes them, as many and as large as the members would write: the million periods themselves would take an hour.
  The log is trimmed to a snapshot as it grows, so its age should not matter.
* *bytes per period*: what three members with four partitions each add to the topic's files for each period, marks and snapshots
  included.
* *idle*: the CPU of the broker with 40 sessions that do nothing but beat, above what it uses without them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import aiokcc
from aiokcc import local
from aiokcc.stores import ANY_VERSION
from aiokcc.stores.kafka import KafkaStore
from benchmarks.harness import Goal, Outcome, Result, note, summary

SUMMARY: Final = "the store on Kafka: joining an old log, bytes per period, and idle members"
EXAMPLES: Final = ("python -m benchmarks kafka-store", "python -m benchmarks kafka-store --quick")

MEMBERS: Final = 40
JOIN_GOAL: Final = 100.0
"""Milliseconds more than in a new log."""
BYTES_GOAL: Final = 1024.0
IDLE_GOAL: Final = 10.0
"""Percent of a core."""
_AHEAD: Final = 500
_REAL_PERIODS: Final = 200
WRITES: Final = 3_200_000
"""So many records do 3 members with 4 partitions each write in 1,000,000 periods."""
_PERIOD: Final = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only this benchmark has."""
    parser.add_argument(
        "--writes", type=int, metavar="N", help=f"writes before the join (default {WRITES}; quick: 5000)"
    )


async def run(options: argparse.Namespace) -> Outcome:
    """Measure the three, one after the other, on one broker."""
    writes = options.writes or (5_000 if options.quick else WRITES)
    tries, periods, seconds = (5, 60, 1.0) if options.quick else (20, 2000, 30.0)
    with tempfile.TemporaryDirectory(prefix="aiokcc-bench-") as directory:
        async with local.kafka(data_dir=directory, progress=note) as kafka:
            results = [
                await _join(kafka, writes, tries),
                await _bytes(kafka, Path(directory), periods),
                await _idle(kafka, seconds),
            ]
    join, sizes, idle = results
    goals = [
        Goal("join: ms more than in a new log", _more(join, "new-log"), JOIN_GOAL),
        Goal("bytes per period, 3 × 4", sizes.ours["p50"] or 0.0, BYTES_GOAL),
        Goal(f"% of a core for {MEMBERS} idle members", _more(idle, "idle-broker"), IDLE_GOAL),
    ]
    return Outcome("kafka-store", "The store on Kafka", results, goals)


def _more(result: Result, anchor: str) -> float:
    """Return how much larger our median is than the anchor's."""
    ours, theirs = result.ours["p50"], result.anchors[anchor]["p50"]
    assert ours is not None
    assert theirs is not None
    return ours - theirs


def _store(kafka: local.Kafka, root: str) -> KafkaStore:
    store = aiokcc.open_store(f"kafka://{kafka.bootstrap}/{root}")
    assert isinstance(store, KafkaStore)
    return store


async def _join(kafka: local.Kafka, writes: int, tries: int) -> Result:
    note(f"join after {writes} writes")
    old, new = _store(kafka, "old"), _store(kafka, "new")
    async with asyncio.TaskGroup() as tasks:
        for number in range(3):
            tasks.create_task(_member(old, number, _REAL_PERIODS, 0))
    async with old.session() as writer, new.session() as founder:
        await founder.ensure("coordinator")
        await writer.ensure("written")
        begun = time.perf_counter()
        for _ in range(writes // _AHEAD):
            await asyncio.gather(*(writer.set("written", b"x" * 100, ANY_VERSION) for _ in range(_AHEAD)))
        note(f"{writes / (time.perf_counter() - begun):.0f} writes per second")
        found: dict[KafkaStore, list[float]] = {old: [], new: []}
        for _ in range(tries):
            for store, times in found.items():
                begun = time.perf_counter()
                async with store.session() as joining:
                    await joining.get("coordinator")
                    times.append((time.perf_counter() - begun) * 1000)
    case = {"measured": "join", "writes": writes}
    return Result(f"join after {writes} writes", case, "ms", summary(found[old]), {"new-log": summary(found[new])})


async def _bytes(kafka: local.Kafka, directory: Path, periods: int) -> Result:
    note(f"bytes per period, 3 × 4, {periods} periods")
    store = _store(kafka, "bytes")
    sizes: list[float] = []
    for count in (periods // 10, periods):  # the first is subtracted: it founds the run
        before = _size(directory, store.topic)
        async with asyncio.TaskGroup() as tasks:
            for number in range(3):
                tasks.create_task(_member(store, number, count, len(sizes) * periods))
        sizes.append((_size(directory, store.topic) - before) / count)
    case = {"measured": "bytes", "processes": 3, "partitions": 4}
    return Result("bytes per period, 3 × 4", case, "bytes", summary(sizes[1:]), {})


def _size(directory: Path, topic: str) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*.log") if file.parent.name == f"{topic}-0")


async def _member(store: KafkaStore, number: int, count: int, first: int) -> None:
    async with (
        aiokcc.connect(store.url, topics={"bench": 12}, start=0, period=_PERIOD, member=f"m{number}") as group,
        asyncio.TaskGroup() as tasks,
    ):
        for partition in range(number, 12, 3):
            tasks.create_task(_consume(group, partition, first, count))


async def _consume(group: aiokcc.Group, partition: int, first: int, count: int) -> None:
    async with group.gate("bench", partition) as gate:
        for offset in range(first, first + count):
            await gate.wait_until(offset * _PERIOD + partition, offset)


async def _idle(kafka: local.Kafka, seconds: float) -> Result:
    note(f"{MEMBERS} idle members, {seconds:g} s")
    alone = await _cpu_percent(kafka, seconds)
    async with _members(_store(kafka, "idle")):
        beside = await _cpu_percent(kafka, seconds)
    case = {"measured": "idle", "members": MEMBERS}
    anchors = {"idle-broker": summary([alone])}
    return Result(f"broker with {MEMBERS} idle members", case, "% of a core", summary([beside]), anchors)


@contextlib.asynccontextmanager
async def _members(store: KafkaStore) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(MEMBERS):
            await stack.enter_async_context(store.session(timeout=10))
        yield


async def _cpu_percent(kafka: local.Kafka, seconds: float) -> float:
    await asyncio.sleep(2)  # what came before settles
    begun, before = time.monotonic(), _cpu(kafka)
    await asyncio.sleep(seconds)
    return 100 * (_cpu(kafka) - before) / (time.monotonic() - begun)


def _cpu(kafka: local.Kafka) -> float:
    """Return the seconds of CPU that the broker has used."""
    fields = Path(f"/proc/{kafka.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
