"""Measures how long a managed group takes to move partitions, against Kafka's own group protocol through aiokafka.

*Flows again*: three processes share a topic; one of them leaves normally, or is killed by SIGKILL. The time is measured
from there until another process has handled a new record of every partition. Both groups have the same session timeout on
the same machine, and handle records at the same rate.

*A topic grows*: ten processes share 100 partitions, and 900 are added. The time is measured until all have an owner, and
until a record of each new one was handled. Both groups look for new partitions every second.

*Round trips*: the members of one process share a topic over a store in memory with a delay in every call. The extra time
divided by the extra delay is the number of calls that follow one another. One member leaves normally, or its session
ends; it is the leader, or not; offsets are kept in Kafka, in the store, or not at all.

*Operations*: 1,000 partitions over 20 members, on a store in memory: the number of all calls when a member leaves and
when one joins, and the CPU time of the core's decision: if all members may take everything, if each takes a limited
number of partitions of each topic, and if partitions have weights.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import aiokcc
from aiokcc.core.assignments import TopicAssignment
from aiokcc.core.group_settings import JOIN_WINDOW, GroupSettings
from aiokcc.core.partitions import Partition
from aiokcc.core.rebalance import Reassign, RebalanceMachine
from aiokcc.core.subscriptions import EVERYTHING, Subscription
from aiokcc.stores.memory import Call, MemoryStore
from benchmarks.broker import BASE, Broker, broker, evenly
from benchmarks.handover import (
    GROWTH,
    HEARTBEAT_MS,
    MEMBERS,
    PARTITIONS,
    PATIENCE,
    PAUSE,
    QUICK_GROWTH,
    SESSION_SECONDS,
    measure_departures,
    measure_growth,
)
from benchmarks.harness import BenchmarkError, Figures, Goal, Outcome, Result, note, summary
from benchmarks.server import Server, server

SUMMARY: Final = "partitions handed over when a member leaves or dies, or a topic grows, against Kafka's group protocol"
EXAMPLES: Final = (
    "python -m benchmarks rebalance",
    "python -m benchmarks rebalance --quick --json rebalance.json",
    "python -m benchmarks rebalance --growth",
)
_TRIP: Final = 0.05
_FAR: Final = 10**12
"""A distance past the clock that the limit never reaches."""
_MANY: Final = (1000, 20)

GROWTH_ROUNDS: Final = 3
REMARKS: Final = (
    "a topic grows: from the broker's answer until each new partition has handled a record; assigned: until it has an owner;",
    "    only writing: until a record is in each new partition, with no group at all; the broker needs so long for the logs.",
    "    published by Karafka for 10 members that gain 900: 103 s with the classic protocol, 5 s with KIP-848.",
    f"flows again: {PARTITIONS} partitions, {MEMBERS} processes, one goes; a record takes {PAUSE * 1000:g} ms to handle.",
    f"sessions of {SESSION_SECONDS} s with both; the group's heartbeat is {HEARTBEAT_MS} ms (its default is 3000).",
    "killed: the session of the dead one has to end first, with both; ZooKeeper rounds it up to its tick.",
    f"round trips: how much longer it takes if each call takes {_TRIP * 1000:g} ms, divided by that.",
    "by weight: without what the user's function takes for all pairs, which is given apart as function_ms.",
    "operations: all calls of all members until all is quiet again, reads and watches among them; no anchor.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only this benchmark has."""
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="the Kafka to read from; by default one is started")
    parser.add_argument(
        "--url", help="the ensemble, zk://host:port[,host:port…][/root]; by default a server is started"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="of each case (default 5; quick: 1)")
    parser.add_argument("--growth", action="store_true", help="only the topic that grows")


async def run(options: argparse.Namespace) -> Outcome:
    """Measure all three parts."""
    rounds = options.rounds or (1 if options.quick else 5)
    title = "A member goes; from there until every partition flows again"
    if options.growth:
        async with server(options.url) as store:
            growth = await _growth(store, options, rounds)
        return Outcome("rebalance", title, [growth], remarks=REMARKS[:3])
    results: list[Result] = []
    goals: list[Goal] = []
    note("deciding: 1,000 partitions over 20 members")
    for label, way in _WAYS.items():
        core, moves = _decide(f"core: a decision{label}", way)
        results.append(core)
        what = f"CPU of a decision, 1,000 partitions over 20 members{label}, ms"
        goals.append(Goal(what, float(core.ours["p50"] or 0), 10))
        if way.weight is None:
            goals.append(Goal(f"sticky moves / the fewest possible{label}", moves, 1.1))
    note("counting store operations")
    for result, goal in await _operations():
        results.append(result)
        goals.append(goal)
    async with broker(options.bootstrap) as kafka:
        trips = await _round_trips(kafka, rounds)
        results += trips
        goals += [Goal(f"{t.label}: round trips", float(t.ours["p50"] or 0), 10) for t in trips]
        async with server(options.url) as store:
            results += await measure_departures(kafka, store, rounds)
            results.append(await _growth(store, options, rounds))
    return Outcome("rebalance", title, results, goals, REMARKS)


async def _growth(store: Server, options: argparse.Namespace, rounds: int) -> Result:
    growth = QUICK_GROWTH if options.quick else GROWTH
    return await measure_growth(options.bootstrap, store, min(rounds, GROWTH_ROUNDS), growth)


# -- the core ----------------------------------------------------------------------------------------------------------


class _Way(NamedTuple):
    """A way to assign 1,000 partitions."""

    topics: int = 1
    streams: int | None = None
    """The most partitions of a topic for a member."""
    weight: Callable[[Partition, str], float] | None = None


_LAGS: Final = {Partition("orders-0", n): 1 + n * 7919 % 1000 / 100 for n in range(_MANY[0])}
_RACKS: Final = {f"w{n}": n % 3 for n in range(2 * _MANY[1])}


def _by_lag(partition: Partition, member: str) -> float:
    return _LAGS[partition]


def _by_rack(partition: Partition, member: str) -> float:
    return 1.0 if partition.number % 3 == _RACKS[member] else 2.0


_WAYS: Final = {
    "": _Way(),
    ", streams limited": _Way(topics=10, streams=_MANY[0] // _MANY[1] // 10),
    ", weighed by lag": _Way(weight=_by_lag),
    ", weighed by rack": _Way(weight=_by_rack),
}


def _decide(label: str, way: _Way) -> tuple[Result, float]:
    """Measure the CPU time of a decision when members join and leave, and sticky moves against the fewest possible."""
    count, members = _MANY
    names = [f"orders-{n}" for n in range(way.topics)]
    partitions = frozenset(Partition(names[n % way.topics], n // way.topics) for n in range(count))
    settings = GroupSettings.check(join_window=0, weight=way.weight)
    group = RebalanceMachine(settings, partitions, topics={name: TopicAssignment() for name in names})
    wants = EVERYTHING if way.streams is None else Subscription.check(dict.fromkeys(names, way.streams))
    group.members = {f"w{n}": wants for n in range(members)}
    times: list[float] = []
    function: list[float] = []
    moved = fewest = 0

    def settle() -> int:
        moves = 0
        while True:
            began = time.process_time_ns()
            decision = group.decide(0.0)
            taken = (time.process_time_ns() - began) / 1e6
            if not isinstance(decision, Reassign):
                return moves
            if way.weight is not None:
                function.append(_all_weights(way.weight, partitions, group.members))
                taken -= function[-1]
            times.append(taken)
            moves += sum(len(topic.to_close) for topic in decision.topics.values())
            group.wrote(decision)
            for name, topic in group.topics.items():
                group.locked[name] = frozenset(
                    topic.assignment
                )  # what was to close is closed, what was to start is owned

    settle()
    for number in range(members, members + 10):
        group.members[f"w{number}"] = wants  # one joins: it needs its share, and nothing else has to move
        moved += settle()
        fewest += count // len(group.members)
    for number in range(10):
        del group.members[f"w{number}"]
        settle()
    case = {"partitions": count, "members": members, "topics": way.topics, "streams": way.streams}
    ours: Figures = summary(times)
    if function:
        ours = {**ours, "function_ms": summary(function)["p50"]}
    return Result(label, case, "ms CPU", ours, {}), moved / fewest


def _all_weights(
    weight: Callable[[Partition, str], float], partitions: Iterable[Partition], members: Iterable[str]
) -> float:
    """Return the CPU time in ms of the user's function for all pairs."""
    began = time.process_time_ns()
    for partition in partitions:
        for name in members:
            weight(partition, name)
    return (time.process_time_ns() - began) / 1e6


# -- operations --------------------------------------------------------------------------------------------------------


class _Member:
    """A member of a group in this process, which owns what it is assigned and does nothing."""

    def __init__(self, store: MemoryStore, name: str, partitions: int, expect: int) -> None:
        self._context = aiokcc.connect(
            store,
            topics={"orders": partitions},
            start=0,
            period=1000,
            assignment="managed",
            member=name,
            expect=expect,
            join_window=0.05,
            session_timeout=600,
            clock=lambda: 0,
        )
        self._leave = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        async with self._context as group:

            async def consume(partition: Partition) -> None:
                async with group.gate(*partition) as gate:
                    await gate.wait_until(_FAR)

            sharing = asyncio.ensure_future(group.share(consume))
            await self._leave.wait()
            sharing.cancel()
            await asyncio.wait([sharing])

    async def leave(self) -> None:
        self._leave.set()
        await self._task


async def _operations() -> list[tuple[Result, Goal]]:
    count, members = _MANY
    store = MemoryStore(f"bench-{secrets.token_hex(4)}", "/group")
    calls: list[Call] = []
    store.server.intercept(before=calls.append)
    everybody = [_Member(store, f"w{n:02}", count, members) for n in range(members)]
    results = []
    try:
        await _quiet(store, calls, count)
        for what, moved in (("a member leaves", count // members), ("a member joins", count // members)):
            calls.clear()
            if what == "a member leaves":
                await everybody.pop().leave()
            else:
                everybody.append(_Member(store, "new", count, members))
            await _quiet(store, calls, count)
            used = len(calls)
            ours: Figures = {**summary([used]), "per_member_and_moved": used / (members + moved)}
            case = {"partitions": count, "members": members, "moved": moved}
            goal = Goal(f"{what}: operations / (members + moved partitions)", used / (members + moved), 10)
            results.append((Result(f"{what}: {moved} of {count:,} move", case, "store operations", ours, {}), goal))
    finally:
        for one in everybody:
            await one.leave()
    return results


async def _quiet(store: MemoryStore, calls: list[Call], count: int) -> None:
    """Wait until all partitions are owned, and the store has had no calls for a while."""
    began = time.monotonic()
    while True:
        seen = len(calls)
        await asyncio.sleep(0.5)
        held = sum(path.startswith("/group/owners/orders/") for path in store.server.nodes())
        if held == count and len(calls) == seen:
            return
        if time.monotonic() - began > PATIENCE:
            raise BenchmarkError(f"after {PATIENCE:g} s only {held} of {count} partitions are owned")


# -- round trips -------------------------------------------------------------------------------------------------------


async def _round_trips(kafka: Broker, rounds: int) -> list[Result]:
    """Count the calls that follow one another when a member leaves, in one process over a slow store."""
    topic = await kafka.topic("trips", [evenly(20_000, 600) for _ in range(PARTITIONS)])
    results = []
    none, stored = {"commit": False}, {"offset_storage": "store"}
    for label, event, leader, settings in (
        ("a member leaves", "leaves", False, none),
        ("the leader leaves", "leaves", True, none),
        ("a member leaves, offsets in Kafka", "leaves", False, {"group_id": f"bench-{secrets.token_hex(4)}"}),
        ("a member leaves, offsets in the store", "leaves", False, stored),
        ("a member's session ends", "ends", False, stored),
        ("the leader's session ends", "ends", True, stored),
    ):
        trips = []
        for number in range(rounds):
            note(f"round trips, {label}: round {number + 1} of {rounds}")
            plain = await _goes_in_process(kafka, topic, 0.0, settings, event, leader=leader)
            slow = await _goes_in_process(kafka, topic, _TRIP, settings, event, leader=leader)
            trips.append((slow - plain) / _TRIP)
        case = {"partitions": PARTITIONS, "members": MEMBERS, "trip_ms": _TRIP * 1000}
        results.append(Result(label, case, "store round trips", summary(trips), {}))
    return results


async def _goes_in_process(
    kafka: Broker, topic: str, trip: float, settings: dict[str, Any], event: str, *, leader: bool
) -> float:
    """Return the seconds from the leave, or the end of the session, until each of its partitions had a record elsewhere."""
    store = MemoryStore(f"bench-{secrets.token_hex(4)}", "/group")
    handled: dict[int, tuple[str, int]] = {}
    changed = asyncio.Event()
    replays: dict[str, Any] = {}
    dead: set[str] = set()

    async def member(name: str) -> None:
        async with aiokcc.replay(
            topic,
            bootstrap_servers=kafka.bootstrap,
            store=store,
            period="1d",  # no limit in between: only the move is measured
            start=BASE,
            end="now",
            assignment="managed",
            member=name,
            expect=MEMBERS,
            session_timeout=60,
            **settings,
        ) as replay:
            replays[name] = replay

            async def handle(record: Any) -> None:
                await asyncio.sleep(PAUSE)
                if name in dead:
                    await asyncio.Event().wait()
                handled[record.partition] = (name, record.offset)
                changed.set()

            await replay.run(handle)

    async def until(condition: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                changed.clear()
                await changed.wait()

    tasks = [asyncio.ensure_future(member(f"m{n}")) for n in range(MEMBERS)]
    try:
        await until(lambda: len(handled) == PARTITIONS and len({who for who, _ in handled.values()}) == MEMBERS)
        await asyncio.sleep(JOIN_WINDOW)  # not at the beginning: a leader that has just joined waits for others
        with store.server.intercept(before=lambda _: asyncio.sleep(trip)) if trip else contextlib.nullcontext():
            goes = next(name for name, replay in replays.items() if (replay.group.epoch is not None) == leader)
            mine = [p for p, (who, _) in handled.items() if who == goes]
            session = replays[goes].group.membership.session
            began = time.monotonic()
            if event == "leaves":
                replays[goes].stop()
            else:  # a process that has ended receives nothing and does nothing
                dead.add(goes)
                store.server.freeze(session)
                store.server.expire(session)
            await until(lambda: all(handled[p][0] != goes for p in mine))
            return time.monotonic() - began
    finally:
        for task in tasks:
            task.cancel()
        if dead:
            store.server.thaw(session)
        await asyncio.wait(tasks)
