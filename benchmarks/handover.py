"""Measures real processes that hand partitions over, in a managed group and in Kafka's own group through aiokafka.

A member leaves or is killed, and the others take its partitions; or the topic grows, and all members get more.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.broker import BASE, Broker, broker, evenly
from benchmarks.harness import BenchmarkError, Result, note, percentile, summary
from benchmarks.server import Server
from benchmarks.worker_pool import WorkerPool, worker_pool

__all__ = [
    "GROWTH",
    "HEARTBEAT_MS",
    "MEMBERS",
    "PARTITIONS",
    "PATIENCE",
    "PAUSE",
    "QUICK_GROWTH",
    "SESSION_SECONDS",
    "Growth",
    "measure_departures",
    "measure_growth",
]

SESSION_SECONDS: Final = 6
"""The shortest session that a broker allows a consumer group by default; ours has the same."""
HEARTBEAT_MS: Final = 1000
METADATA_MS: Final = 1000
"""The interval at which both look for new partitions when a topic grows."""
PARTITIONS: Final = 12
MEMBERS: Final = 3
PAUSE: Final = 0.002
PATIENCE: Final = 60.0
_LOOK: Final = 0.002
_GROWTH_PATIENCE: Final = 300.0
_GROWTH_LOOK: Final = 0.05


class Growth(NamedTuple):
    """A topic that grows: the members that share it, and its partitions before and after."""

    members: int
    before: int
    after: int


GROWTH: Final = Growth(10, 100, 1000)
QUICK_GROWTH: Final = Growth(2, 4, 12)


def _plan(kafka: Broker, store: Server, topic: str, way: str, members: int) -> dict[str, Any]:
    """Return the plan of a member of a new group."""
    name = secrets.token_hex(4)
    return {
        "way": way,
        "bootstrap": kafka.bootstrap,
        "topic": topic,
        "members": members,
        "store": store.url(f"rebalance-{name}"),
        "group": f"bench-{name}",
        "period": "10s",
        "start": BASE,
        "end": "now",
        "session_timeout": SESSION_SECONDS,
        "heartbeat_ms": HEARTBEAT_MS,
        "metadata_ms": 5000,
        "pause": PAUSE,
    }


@contextlib.contextmanager
def _marked(plan: dict[str, Any], members: int, partitions: int) -> Iterator[tuple[list[dict[str, Any]], list[Any]]]:
    """Give each member a file for its progress; yields the members' plans and the files' cells."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        files = [Path(directory) / f"marks-{n}" for n in range(members)]
        for file in files:
            file.write_bytes(bytes(16 * partitions))
        plans = [{**plan, "marks": str(file), "partitions": partitions} for file in files]
        yield plans, [stack.enter_context(_cells(file, partitions)) for file in files]


# -- a member goes -----------------------------------------------------------------------------------------------------


async def measure_departures(kafka: Broker, store: Server, rounds: int) -> list[Result]:
    """Measure how long it takes until all partitions flow again after a member has left, or was killed."""
    # In small batches: a consumer gets whole batches, and a large one would keep it busy with the first partition.
    topic = await kafka.topic("flow", [evenly(40_000, 200) for _ in range(PARTITIONS)], batch_bytes=8 * 1024)
    results = []
    for event in ("leaves", "killed"):
        times: dict[str, list[float]] = {"managed": [], "group": []}
        for number in range(rounds):
            for way, found in times.items():
                note(f"{event}: round {number + 1} of {rounds}, {way}")
                found.append(await _one_goes(kafka, store, topic, way, event))
        case = {"partitions": PARTITIONS, "members": MEMBERS, "session_seconds": SESSION_SECONDS}
        label = "one of three leaves" if event == "leaves" else "one of three is killed"
        anchors = {"kafka group": {**summary(times["group"]), "most": max(times["group"])}}
        ours = {**summary(times["managed"]), "most": max(times["managed"])}
        results.append(Result(label, case, "s", ours, anchors))
    return results


async def _one_goes(kafka: Broker, store: Server, topic: str, way: str, event: str) -> float:
    """Return the seconds until the members that stay have handled a new record of every partition."""
    plan = _plan(kafka, store, topic, way, MEMBERS)
    with _marked(plan, MEMBERS, PARTITIONS) as (plans, cells):
        async with _members(f"{way} stays", plans[1:]) as staying, _members(f"{way} goes", plans[:1]) as going:
            await asyncio.gather(staying.request(go=True), going.request(go=True))
            await _until(lambda: all(any(_next(c, p) for c in cells) for p in range(PARTITIONS)), "all flow")
            await _until(lambda: all(any(_next(c, p) for p in range(PARTITIONS)) for c in cells), "all take part")
            await asyncio.sleep(1)  # not at the beginning: no member has just joined
            before = [max(_next(c, p) for c in cells) for p in range(PARTITIONS)]
            began = time.monotonic_ns()
            if event == "killed":
                await going.kill()
            else:
                leaving = asyncio.ensure_future(going.request(leave=True))
            first: dict[int, int] = {}

            def flows() -> bool:
                for p in range(PARTITIONS):
                    news = [c[2 * p + 1] for c in cells[1:] if c[2 * p] > before[p] + 1 and c[2 * p + 1] > began]
                    if p not in first and news:
                        first[p] = min(news)
                return len(first) == PARTITIONS

            await _until(flows, f"every partition flows again after one {event}")
            if event != "killed":
                await leaving
            await staying.kill()
    return (max(first.values()) - began) / 1e9


# -- the topic grows ---------------------------------------------------------------------------------------------------


async def measure_growth(bootstrap: str | None, store: Server, rounds: int, growth: Growth) -> Result:
    """Measure how long it takes until every new partition of a topic has an owner, and until its first record is handled.

    Each growth has a broker of its own, unless one is given: the more partitions a broker has had, the slower it makes logs.
    """
    times: dict[str, list[tuple[float, float]]] = {"managed": [], "group": []}
    alone: list[float] = []
    for number in range(rounds):
        note(f"{growth.members} members, {growth.before:,} to {growth.after:,} partitions: round {number + 1}")
        for way in [*times, None] if number % 2 else [None, *reversed(times)]:
            async with broker(bootstrap) as kafka:
                if way is None:
                    alone.append(await _grow_alone(kafka, growth))
                else:
                    times[way].append(await _grow(kafka, store, way, growth))
    figures = {
        way: {**summary([flows for _, flows in found]), "assigned_s": percentile([owned for owned, _ in found], 0.5)}
        for way, found in times.items()
    }
    label = f"{growth.members} members gain {growth.after - growth.before:,} partitions"
    anchors = {"kafka group": figures["group"], "no members, only writing": summary(alone)}
    return Result(label, growth._asdict(), "s", figures["managed"], anchors)


async def _grow_alone(kafka: Broker, growth: Growth) -> float:
    """Return the seconds from the growth until a record is written to each new partition, while nobody reads."""
    topic = await kafka.topic("growth", [[BASE]] * growth.before)
    await kafka.grow(topic, growth.after)
    began = time.monotonic()
    await kafka.write(topic, range(growth.before, growth.after), BASE)
    seconds = time.monotonic() - began
    await kafka.delete(topic)
    return seconds


async def _grow(kafka: Broker, store: Server, way: str, growth: Growth) -> tuple[float, float]:
    """Return the seconds from the growth until all partitions are owned, and until each new one has handled a record."""
    topic = await kafka.topic("growth", [[BASE]] * growth.before)
    plan = {**_plan(kafka, store, topic, way, growth.members), "end": None, "metadata_ms": METADATA_MS}
    new = range(growth.before, growth.after)
    with _marked(plan, growth.members, growth.after) as (plans, cells):
        async with _members(way, plans) as members:
            await members.request(go=True)
            await _until_shared(members, growth.before)
            await kafka.grow(topic, growth.after)
            began = time.monotonic_ns()
            writing = asyncio.ensure_future(kafka.write(topic, new, BASE))
            try:
                await _until_shared(members, growth.after)
                owned = time.monotonic_ns()
                await writing
                await _until(
                    lambda: all(any(_next(c, p) for c in cells) for p in new),
                    "a record of each new partition",
                    _GROWTH_PATIENCE,
                )
            finally:
                writing.cancel()
            flows = max(max(c[2 * p + 1] for c in cells) for p in new)
            await members.kill()
    await kafka.delete(topic)
    return (owned - began) / 1e9, (flows - began) / 1e9


async def _until_shared(members: WorkerPool, partitions: int) -> None:
    """Wait until the members have this many partitions in all, and each has some."""
    end = time.monotonic() + _GROWTH_PATIENCE
    while True:
        counts = [answer["partitions"] for answer in await members.request(count=True)]
        if sum(counts) == partitions and min(counts) > 0:
            return
        if time.monotonic() > end:
            raise BenchmarkError(
                f"waited {_GROWTH_PATIENCE:g} s for {partitions} partitions; the members have {counts}"
            )
        await asyncio.sleep(_GROWTH_LOOK)


# ----------------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _members(name: str, plans: list[dict[str, Any]]) -> AsyncIterator[WorkerPool]:
    async with worker_pool(name, plans, module="benchmarks.group_member") as workers:
        yield workers


@contextlib.contextmanager
def _cells(file: Path, partitions: int) -> Iterator[Any]:
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 16 * partitions) as mapped:
        with memoryview(mapped) as view, view.cast("q") as cells:
            yield cells


def _next(cells: Any, partition: int) -> int:
    return int(cells[2 * partition])


async def _until(condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    """Wait for what other processes write into a file. A file has no events, so it is read every few milliseconds."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            raise BenchmarkError(f"waited {patience:g} s without: {what}")
        await asyncio.sleep(_LOOK)
