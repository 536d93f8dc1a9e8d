"""Period latency: from the last partition's arrival to the last task's wake-up, over real processes.

Every partition is a task of its own that brings one record per period, so that each record waits for everybody. All
processes record times on the machine's monotonic clock; per period the latency is max(woken) - max(arrived) over all
partitions of all processes. Between two periods each process works for a random time (it waits for a timer), so that
members arrive one after the other. Ours is measured in rounds, and between two rounds, while the workers rest, the harness
measures the floors with our own store client on the same server: a disturbance of the machine affects both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiokcc import open_store
from aiokcc.stores import Session
from benchmarks.harness import BenchmarkError, Figures, Goal, Outcome, Result, note, summary
from benchmarks.server import Counted, Server, server
from benchmarks.worker import works
from benchmarks.worker_pool import WorkerPool, worker_pool

SUMMARY: Final = "from the last partition's arrival to the last task's wake-up, over real processes"
EXAMPLES: Final = (
    "python -m benchmarks period-latency",
    "python -m benchmarks period-latency --quick --plot latency.svg",
    "python -m benchmarks period-latency --url zk://10.0.0.1:2181,10.0.0.2:2181/bench --processes 8 --partitions 32",
)
EMPTY: Final = 86_400
_PERIOD: Final = 60_000
_SECOND: Final = 1_000

REMARKS: Final = (
    "write: one conditional write; floor: write, read, write, read; by one client of ours, between the rounds of ours,",
    "    after the same pauses as a process makes.",
    "polling: a write per member and period; members poll the limit every 10 ms, the leader polls progress every 50 ms.",
    "double-barrier: kazoo's recipe, one member per process; from the last call of enter() to the last return of enter();",
    "    its costs are those of leave() and enter().",
    "writes, requests and answers (with events): as the server counts them; CPU: of all workers, and of the server.",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A case: the number of processes, of partitions in each, and of empty periods between two records."""

    processes: int
    partitions: int
    empty: int = 0

    @property
    def label(self) -> str:
        """The case in the table."""
        return f"{self.processes} × {self.partitions}" + (f", {self.empty:,} empty" if self.empty else "")

    @property
    def name(self) -> str:
        """The case in names of nodes."""
        return f"{self.processes}x{self.partitions}" + (f"-{self.empty}" if self.empty else "")

    def to_json(self) -> dict[str, Any]:
        """Return the case as it is in the JSON."""
        whole = {"processes": self.processes, "partitions": self.partitions}
        return {**whole, "empty_periods": self.empty} if self.empty else whole


CASES: Final = (Case(1, 1), Case(1, 64), Case(3, 4), Case(16, 64))
GAP: Final = Case(3, 4, EMPTY)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured: all periods, the rounds they are divided into, and the periods for warming up."""

    periods: int
    rounds: int
    warm_up: int
    slow: int
    """Periods of the anchors that take tens of milliseconds each."""
    gaps: int

    @classmethod
    def of(cls, options: argparse.Namespace) -> Effort:
        quick: bool = options.quick
        periods = options.periods or (60 if quick else 1000)
        return cls(
            periods=periods,
            rounds=min(3 if quick else 10, periods),
            warm_up=20 if quick else 500,
            slow=min(periods, 5 if quick else 60),
            gaps=min(periods, 5 if quick else 60),
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only this benchmark has."""
    parser.add_argument(
        "--url", help="measure this ensemble, zk://host:port[,host:port…][/root]; by default a server is started"
    )
    own = parser.add_argument_group("a case of your own, instead of the usual ones")
    own.add_argument("--processes", type=_at_least_one, metavar="P", help="processes (default 1)")
    own.add_argument("--partitions", type=_at_least_one, metavar="N", help="partitions in each process (default 1)")
    parser.add_argument("--periods", type=_at_least_one, metavar="K", help="periods per case (default 1000; quick: 60)")


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 up")
    return number


async def run(options: argparse.Namespace) -> Outcome:
    """Measure all cases, one after the other."""
    effort = Effort.of(options)
    own = options.processes is not None or options.partitions is not None
    cases = (Case(options.processes or 1, options.partitions or 1),) if own else (*CASES, GAP)
    async with server(options.url) as running, anchored(running) as anchors:
        note("warming up the server")
        await anchors.measure(effort.warm_up)
        anchors.forget()
        results = [await _measure(running, anchors, case, effort) for case in cases]
    return Outcome(
        "period-latency",
        "Period latency: last arrival to last wake-up (processes × partitions in each)",
        results,
        goals(results),
        REMARKS,
    )


async def _measure(running: Server, anchors: Anchors, case: Case, effort: Effort) -> Result:
    note(f"{case.label}: ours")
    ours = await measure_ours(running, anchors, case, effort)
    figures = {name: summary(values) for name, values in anchors.forget().items()}
    if not case.empty:
        note(f"{case.label}: polling")
        figures["polling"] = await _polling(running, case, effort)
        if case.processes > 1:
            note(f"{case.label}: double-barrier")
            figures["double-barrier"] = await _barrier(running, case, effort)
    return Result(case.label, case.to_json(), "ms", ours, figures)


# -- the floors --------------------------------------------------------------------------------------------------------


class Anchors:
    """Measures the store alone, with our client."""

    def __init__(self, session: Session, path: str, version: int) -> None:
        self._session = session
        self._path = path
        self._version = version
        self._samples: dict[str, list[float]] = {"write": [], "floor": []}

    async def measure(self, count: int) -> None:
        """Measure ``count`` of each, after the same pauses as a process of the group: after a pause it wakes more slowly."""
        session, path, version = self._session, self._path, self._version
        pauses = works({"index": 0, "processes": 1}, version)
        clock = time.monotonic_ns
        write, floor = self._samples["write"], self._samples["floor"]
        for _ in range(count):
            data = str(version).encode()
            await asyncio.sleep(next(pauses))
            start = clock()
            version = await session.set(path, data, version)
            write.append((clock() - start) / 1e6)
        for _ in range(count):
            data = str(version).encode()
            await asyncio.sleep(next(pauses))
            start = clock()
            version = await session.set(path, data, version)
            await session.get(path)
            version = await session.set(path, data, version)
            await session.get(path)
            floor.append((clock() - start) / 1e6)
        self._version = version

    def forget(self) -> dict[str, list[float]]:
        """Return what was measured since the last call, in ms, and forget it."""
        samples, self._samples = self._samples, {"write": [], "floor": []}
        return samples


@contextlib.asynccontextmanager
async def anchored(running: Server) -> AsyncIterator[Anchors]:
    """Open the harness's own session with the server."""
    async with open_store(running.url("anchor")).session() as session:
        await session.ensure("node")
        yield Anchors(session, "node", (await session.get("node")).version)


# -- groups of processes -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """Latencies and costs over several rounds."""

    latencies: list[float] = field(default_factory=list)
    client_cpu: int = 0
    counted: Counted | None = field(default_factory=lambda: Counted(0, 0, 0, 0))

    def add(self, answers: Sequence[dict[str, Any]], counted: Counted | None) -> None:
        """Add one round: the times of the workers, and the server's counters meanwhile."""
        for n in range(len(answers[0]["arrived"])):
            arrived = max(answer["arrived"][n] for answer in answers)
            woken = max(answer["woken"][n] for answer in answers)
            self.latencies.append((woken - arrived) / 1e6)
        self.client_cpu += sum(answer["cpu"] for answer in answers)
        self.counted = None if self.counted is None or counted is None else self.counted + counted

    def figures(self) -> Figures:
        """Return latencies in ms and costs per period."""
        periods = len(self.latencies)
        costs = self.counted
        return {
            **summary(self.latencies),
            "writes_per_period": None if costs is None else costs.writes / periods,
            "requests_per_period": None if costs is None else costs.received / periods,
            "answers_per_period": None if costs is None else costs.sent / periods,
            "client_cpu_ms_per_period": self.client_cpu / 1e6 / periods,
            "server_cpu_ms_per_period": None if costs is None or costs.cpu is None else costs.cpu / 1e6 / periods,
        }


class ProcessGroup:
    """Workers whose partitions move through event time, round by round."""

    def __init__(self, running: Server, workers: WorkerPool, period: int, step: int) -> None:
        self._running = running
        self._workers = workers
        self._next = period
        self._step = step

    async def round(self, periods: int, tally: Tally | None = None) -> None:
        """Run this many periods; without a tally they only warm up."""
        if self._next + periods * self._step > time.time() * 1000:
            raise BenchmarkError(f"{periods} more periods would reach past the present; measure fewer")
        overhead = await self._running.asking()
        before = await self._running.counted()
        answers = await self._workers.request(periods=periods, first=self._next, step=self._step)
        after = await self._running.counted()
        self._next += periods * self._step
        if tally is not None:
            tally.add(answers, None if before is None or after is None else after - before - overhead)


@contextlib.asynccontextmanager
async def process_group(running: Server, case: Case, way: str) -> AsyncIterator[ProcessGroup]:
    """Start the processes of a case, and wait until they have joined and are ready."""
    period = _SECOND if case.empty else _PERIOD
    plans = [
        {
            "way": way,
            "url": running.url(f"{case.name}-{way}"),
            "period": period,
            "index": index,
            "processes": case.processes,
            "partitions": case.partitions,
        }
        for index in range(case.processes)
    ]
    async with worker_pool(f"{case.name}-{way}", plans) as workers:
        yield ProcessGroup(running, workers, period, period * (case.empty + 1))


async def measure_ours(running: Server, anchors: Anchors, case: Case, effort: Effort) -> Figures:
    """Measure rounds of ours, and the store alone before, between and after them."""
    tally = Tally()
    total = effort.gaps if case.empty else effort.periods
    rounds = min(effort.rounds, total)
    async with (
        process_group(running, case, "gate") as ours,
        open_store(running.url(f"{case.name}-gate")).session() as session,
    ):
        await ours.round(min(effort.warm_up, total))
        version = (await session.get("coordinator")).version
        for n in range(rounds):
            share = total * (n + 1) // rounds - total * n // rounds
            await anchors.measure(max(share, 10))
            await ours.round(share, tally)
        await anchors.measure(max(total // rounds, 10))
        moves = (await session.get("coordinator")).version - version
    return {**tally.figures(), "limit_writes_per_period": moves / total}


async def _polling(running: Server, case: Case, effort: Effort) -> Figures:
    tally = Tally()
    async with process_group(running, case, "polling") as classic:
        await classic.round(min(effort.slow, 5))
        await classic.round(effort.slow, tally)
    return tally.figures()


async def _barrier(running: Server, case: Case, effort: Effort) -> Figures:
    tally = Tally()
    warm_up = min(effort.slow, 5)
    plan = {
        "way": "barrier",
        "hosts": running.hosts,
        "root": f"{running.root}/{case.name}-barrier",
        "processes": case.processes,
    }
    plans = [{**plan, "index": index} for index in range(case.processes)]
    async with worker_pool(f"{case.name}-barrier", plans) as workers:
        await workers.request(make=warm_up + effort.slow)
        for n in range(warm_up + effort.slow):
            overhead = await running.asking()
            before = await running.counted()
            answers = await workers.request(enter=n)
            after = await running.counted()
            if n >= warm_up:
                tally.add(answers, None if before is None or after is None else after - before - overhead)
        await workers.request(leave=warm_up + effort.slow - 1)
    return tally.figures()


# -- goals -------------------------------------------------------------------------------------------------------------


def goals(results: Sequence[Result]) -> list[Goal]:
    """Return the goals for the cases that were measured."""
    wanted: list[Goal] = []
    for result in results:
        case = Case(result.case["processes"], result.case["partitions"], result.case.get("empty_periods", 0))
        ratios, ours = result.ratios, result.ours
        if case == Case(1, 64):
            wanted.append(Goal(f"{case.label}: ours / write", ratios["write"], 1.5))
        if case == Case(3, 4):
            wanted.append(Goal(f"{case.label}: ours / floor", ratios["floor"], 1.6))
        if case == Case(16, 64):
            wanted.append(Goal(f"{case.label}: ours / floor", ratios["floor"], 4.0))
        if "polling" in ratios:
            wanted.append(Goal(f"{case.label}: ours / polling", ratios["polling"], 1 / 20))
        if "double-barrier" in ratios:
            wanted.append(Goal(f"{case.label}: ours / double-barrier", ratios["double-barrier"], 1 / 5))
        writes = ours["writes_per_period"]
        if writes is not None:
            wanted.append(Goal(f"{case.label}: writes per period", writes, case.processes))
        if case.empty:
            moves = ours["limit_writes_per_period"]
            assert moves is not None
            wanted.append(Goal(f"{case.label}: advances for {case.empty:,} empty periods", moves, 1))
    return wanted
