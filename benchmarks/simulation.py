"""Simulates a group of thousands of processes in this process, on virtual time over a store in memory.

The processes of a host share one member, so the store sees hosts: a member has the partitions of all processes of its host. The
leader is a host of its own with one partition. The simulation counts the store operations and watch events of a period, the
bytes of the largest write (ZooKeeper's limit for a request is 1 MB unless it is raised), and the CPU time of the leader. The
CPU time of a member is that of all callbacks that run in its context. There are no sockets, so what a real client spends on
them is not in it; ``members`` measures that.
"""

from __future__ import annotations

import argparse
import asyncio
import contextvars
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiokcc
from aiokcc.stores.memory import Call, MemoryStore
from benchmarks.harness import BenchmarkError, Goal, Outcome, Result, note, percentile, summary
from tests.virtual import VirtualLoop

SUMMARY: Final = (
    "thousands of processes on some hosts, simulated: store operations, bytes and the leader's CPU per period"
)
EXAMPLES: Final = (
    "python -m benchmarks simulation",
    "python -m benchmarks simulation --hosts 100 --processes 100 --partitions 1 --json simulation.json",
)
CASES: Final = ((10, 100), (100, 10), (100, 100))
"""Pairs of a number of hosts and of processes on each."""
QUICK: Final = ((3, 4),)
REQUEST_LIMIT: Final = 1_000_000
"""The bytes that ZooKeeper takes in a request by default, rounded down."""
LEADER_GOAL: Final = 0.03
"""The leader's CPU time in ms per process and period."""
_PERIOD: Final = 60_000
_TOPIC: Final = "bench"

REMARKS: Final = (
    "operations: calls of all members in a period, writes and reads; events: what their watches reported.",
    "largest write: the bytes of data in the largest write or transaction of a period, without paths and headers.",
    "leader: CPU time of the leader's callbacks; all: of all members, in this one process. Virtual time, no sockets.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only this benchmark has."""
    parser.add_argument("--hosts", type=int, metavar="N", help="a case of your own: hosts besides the leader's")
    parser.add_argument("--processes", type=int, default=100, metavar="N", help="on each host (default 100)")
    parser.add_argument("--partitions", type=int, default=1, metavar="N", help="of each process (default 1)")
    parser.add_argument("--periods", type=int, metavar="N", help="default 10; quick: 3")


async def run(options: argparse.Namespace) -> Outcome:
    """Simulate all cases, each on a loop of its own in a thread, because this loop has real time."""
    if min(options.hosts or 1, options.processes, options.partitions, options.periods or 2) < 1:
        raise BenchmarkError("--hosts, --processes, --partitions and --periods are whole numbers from 1 up")
    periods = max(2, options.periods or (3 if options.quick else 10))
    usual = QUICK if options.quick else CASES
    cases = ((options.hosts, options.processes),) if options.hosts else usual
    results: list[Result] = []
    for hosts, processes in cases:
        note(f"{hosts} hosts × {processes} processes × {options.partitions} partitions")
        simulation = Simulation(hosts, processes * options.partitions, periods)
        await asyncio.to_thread(simulation.run)
        results += simulation.results(hosts, processes, options.partitions)
    return Outcome("simulation", "A period of many processes, simulated", results, goals(results), REMARKS)


# -- the loop ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Spent:
    """The CPU time of one member, in ns."""

    cpu: int = 0


_owner: contextvars.ContextVar[Spent] = contextvars.ContextVar("owner")


class MeasuringLoop(VirtualLoop):
    """Adds the time of each callback to the member in whose context it runs. Steps of tasks are callbacks too."""

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        context = contextvars.copy_context() if context is None else context
        spent = context.get(_owner)
        if spent is None:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(_timed, spent, callback, args, context=context)


def _timed(spent: Spent, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
    began = time.perf_counter_ns()
    callback(*args)
    spent.cpu += time.perf_counter_ns() - began


# -- the group ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Counts:
    """The events of one period, counted."""

    operations: int = 0
    events: int = 0
    largest: int = 0


@dataclass
class Simulation:
    """A group of ``hosts`` members with ``share`` partitions each, and a leader with one."""

    hosts: int
    share: int
    periods: int
    leader: Spent = field(default_factory=Spent)
    counts: list[Counts] = field(default_factory=list)
    leader_ms: list[float] = field(default_factory=list)
    all_ms: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Run all periods to the end."""
        with asyncio.Runner(loop_factory=MeasuringLoop) as runner:
            runner.run(self._group())

    async def _group(self) -> None:
        store = MemoryStore(f"simulation-{secrets.token_hex(4)}", "/group")
        now = Counts()

        def count(call: Call) -> None:
            if call.verb == "watch":
                now.events += 1
            else:
                now.operations += 1
                now.largest = max(now.largest, sum(len(getattr(op, "data", b"")) for op in call.ops))

        arrivals = Arrivals(self.hosts * self.share + 1)
        async with asyncio.TaskGroup() as tasks:
            led = asyncio.Event()
            everybody = range(self.hosts * self.share)
            shares = [everybody[n * self.share : (n + 1) * self.share] for n in range(self.hosts)]
            own = range(self.hosts * self.share, self.hosts * self.share + 1)
            first = tasks.create_task(self._member(store, "leader", own, arrivals, led, self.leader))
            await led.wait()
            for n, share in enumerate(shares):
                tasks.create_task(self._member(store, f"host-{n}", share, arrivals, asyncio.Event(), Spent()))
            await arrivals.period()  # all have joined, and the first period warms up
            with store.server.intercept(before=count):
                for _ in range(self.periods):
                    now.operations = now.events = now.largest = 0
                    cpu, leader = time.thread_time_ns(), self.leader.cpu
                    await arrivals.period()
                    self.all_ms.append((time.thread_time_ns() - cpu) / 1e6)
                    self.leader_ms.append((self.leader.cpu - leader) / 1e6)
                    self.counts.append(Counts(now.operations, now.events, now.largest))
            arrivals.end()
            await first

    async def _member(
        self, store: MemoryStore, name: str, partitions: range, arrivals: Arrivals, led: asyncio.Event, spent: Spent
    ) -> None:
        _owner.set(spent)
        total = self.hosts * self.share + 1
        async with aiokcc.connect(store, topics={_TOPIC: total}, start=0, period=_PERIOD, member=name) as group:

            async def run(number: int) -> None:
                async with group.gate(_TOPIC, number) as gate:
                    led.set()
                    await arrivals.pass_all(gate)
                    gate.finish()

            async with asyncio.TaskGroup() as tasks:
                for number in partitions:
                    tasks.create_task(run(number))

    def results(self, hosts: int, processes: int, partitions: int) -> list[Result]:
        """Return the results of the simulation."""
        label = f"{hosts} × {processes}" + (f" × {partitions}" if partitions > 1 else "")
        case = {"hosts": hosts, "processes": processes, "partitions": partitions}
        operations = summary([counts.operations for counts in self.counts])
        events = percentile([counts.events for counts in self.counts], 0.5)
        leader = summary(self.leader_ms)
        per_process = percentile(self.leader_ms, 0.5) / (hosts * processes)
        return [
            Result(label, case, "store operations", {**operations, "events": events}, {}),
            Result(label, case, "bytes of the largest write", summary([c.largest for c in self.counts]), {}),
            Result(label, case, "ms CPU", {**leader, "ms_per_process": per_process}, {"all": summary(self.all_ms)}),
        ]


class Arrivals:
    """Lets all partitions bring a record of the next period, and tells when all have passed it."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._number = 0
        self._left = partitions
        self._begin = asyncio.get_running_loop().create_future()
        self._ready = asyncio.Event()
        """Set while all partitions wait for the next period."""

    async def period(self) -> None:
        """Run one period, once all partitions are there: returns when the last one has passed."""
        await self._ready.wait()
        begin, self._begin = self._begin, asyncio.get_running_loop().create_future()
        self._left = self._partitions
        self._ready.clear()
        self._number += 1
        begin.set_result(self._number * _PERIOD)
        await self._ready.wait()

    def end(self) -> None:
        """Let all partitions finish."""
        self._begin.set_result(None)

    async def pass_all(self, gate: aiokcc.Gate) -> None:
        """Bring one record in each period, until the end."""
        self._count()
        while (ts := await asyncio.shield(self._begin)) is not None:
            await gate.wait_until(ts)
            self._count()

    def _count(self) -> None:
        self._left -= 1
        if not self._left:
            self._ready.set()


# -- goals -------------------------------------------------------------------------------------------------------------


def goals(results: Sequence[Result]) -> list[Goal]:
    """Return the goals for what was simulated."""
    wanted = []
    for result in results:
        if result.unit.startswith("bytes"):
            largest = float(result.ours["p50"] or 0)
            wanted.append(Goal(f"{result.label}: bytes of the largest write", largest, REQUEST_LIMIT))
        if result.unit == "ms CPU":
            spent = float(result.ours["ms_per_process"] or 0)
            wanted.append(Goal(f"{result.label}: leader's CPU, ms per process", spent, LEADER_GOAL))
    return wanted
