"""Period latency: from the last partition's arrival to the last task's wake-up, over real processes.

Every partition is a task of its own that brings one record per period, so that each record waits for everybody. All
processes record times on the machine's monotonic clock; per period the latency is max(woken) - max(arrived) over all
partitions of all processes. Between two periods each process works for a random time (it waits for a timer), so that
members arrive one after the other. Ours is measured in rounds, and between two rounds, while the workers rest, the harness
measures the floors with our own store client on the same server: a disturbance of the machine affects both.

Where uvloop is installed, each case is measured on asyncio's loop and on uvloop, in alternating rounds of the same run. So is
another checkout of the repository, with ``--against``: then "before" is that checkout, and its ratio is the median of the
rounds' ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from aiokcc import open_store
from benchmarks.broker import broker
from benchmarks.floors import Anchors, anchored
from benchmarks.harness import BenchmarkError, Figures, Goal, Outcome, Result, note, percentile, summary
from benchmarks.server import Counted, Server, server
from benchmarks.worker_pool import WorkerPool, worker_pool

SUMMARY: Final = "from the last partition's arrival to the last task's wake-up, over real processes"
EXAMPLES: Final = (
    "python -m benchmarks period-latency",
    "python -m benchmarks period-latency --quick --plot latency.svg",
    "python -m benchmarks period-latency --against ../the-code-before",
    "python -m benchmarks period-latency --url zk://10.0.0.1:2181,10.0.0.2:2181/bench --processes 8 --partitions 32",
)
EMPTY: Final = 86_400
_PERIOD: Final = 60_000
_SECOND: Final = 1_000
_MANY: Final = 16
"""Above this many processes a period takes long, so fewer are measured."""
_QUIET: Final = 1.3
"""After this many seconds a group that rests has written its last reports, which must not be counted for another one."""

REMARKS: Final = (
    "write: one conditional write; floor: write, read, write, read; by one client of ours, between the rounds of ours,",
    "    after the same pauses as a process makes.",
    "polling: a write per member and period; members poll the limit every 10 ms, the leader polls progress every 50 ms.",
    "double-barrier: kazoo's recipe, one member per process; from the last call of enter() to the last return of enter();",
    "    its costs are those of leave() and enter().",
    "zookeeper: ours on ZooKeeper in the same rounds; the ratio is the median of the rounds' ratios.",
    "before: the other checkout, on the same loop; the ratio is the median of the rounds' ratios.",
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


CASES: Final = (Case(1, 1), Case(1, 64), Case(3, 4), Case(16, 1), Case(8, 8), Case(16, 64))
LARGE: Final = Case(64, 4)
GAP: Final = Case(3, 4, EMPTY)


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to run ours: the event loop, the checkout of the code before, and the brokers of a Kafka store."""

    loop: str
    before: Path | None = None
    brokers: str = ""

    @property
    def name(self) -> str:
        """The variant in names of nodes."""
        return "gate" + ("" if self.loop == "asyncio" else f"-{self.loop}") + ("-before" if self.before else "")

    def url(self, running: Server, name: str) -> str:
        """Return the URL of a root of its own for a group of processes."""
        return f"kafka://{self.brokers}{running.root}/{name}" if self.brokers else running.url(name)


@dataclass(frozen=True, slots=True)
class Effort:
    """The size of a measurement: all periods, the rounds they are divided into, and the periods for warming up."""

    periods: int
    rounds: int
    warm_up: int
    slow: int
    """Periods of the anchors that take tens of milliseconds each."""
    gaps: int
    given: bool
    """True if the user chose the number of periods."""

    def total(self, case: Case) -> int:
        """Return the number of periods for a case."""
        if case.empty:
            return self.gaps
        return self.periods if self.given else self.periods * _MANY // max(_MANY, case.processes)

    @classmethod
    def of(cls, options: argparse.Namespace) -> Effort:
        quick: bool = options.quick
        periods = options.periods or (60 if quick else 1000)
        return cls(
            periods=periods,
            rounds=min(10 if not quick else 5 if options.against else 3, periods),
            warm_up=20 if quick else 500,
            slow=min(periods, 5 if quick else 60),
            gaps=min(periods, 5 if quick else 60),
            given=options.periods is not None,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only this benchmark has."""
    parser.add_argument(
        "--url", help="measure this ensemble, zk://host:port[,host:port…][/root]; by default a server is started"
    )
    parser.add_argument(
        "--store",
        choices=("zookeeper", "kafka"),
        default="zookeeper",
        help="kafka: also ours on kafka://, in turns with ours on ZooKeeper",
    )
    parser.add_argument(
        "--bootstrap", metavar="HOST:PORT", help="with --store kafka: the Kafka; by default one is started"
    )
    own = parser.add_argument_group("a case of your own, instead of the usual ones")
    own.add_argument("--processes", type=at_least_one, metavar="P", help="processes (default 1)")
    own.add_argument("--partitions", type=at_least_one, metavar="N", help="partitions in each process (default 1)")
    parser.add_argument("--periods", type=at_least_one, metavar="K", help="periods per case (default 1000; quick: 60)")
    parser.add_argument(
        "--loop",
        choices=installed_loops(),
        help="one event loop only (default: asyncio, and uvloop where it is installed)",
    )
    parser.add_argument(
        "--against", type=checkout, metavar="PATH", help="another checkout, measured in turns with this one"
    )


def installed_loops() -> list[str]:
    """Return the event loops that can be measured."""
    return ["asyncio", "uvloop"] if find_spec("uvloop") is not None else ["asyncio"]


def at_least_one(text: str) -> int:
    """Return a whole number from 1 up. Raises ArgumentTypeError for anything else."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 up")
    return number


def checkout(text: str) -> Path:
    """Return the path of another checkout. Raises ArgumentTypeError for another directory."""
    path = Path(text).absolute()
    if not (path / "aiokcc" / "__init__.py").exists():
        raise argparse.ArgumentTypeError(f"{text} is no checkout of the repository: it has no package aiokcc")
    return path


async def run(options: argparse.Namespace) -> Outcome:
    """Measure all cases, one after the other."""
    effort = Effort.of(options)
    own = options.processes is not None or options.partitions is not None
    usual = (*CASES, GAP) if options.quick else (*CASES, LARGE, GAP)
    cases = (Case(options.processes or 1, options.partitions or 1),) if own else usual
    loops = [options.loop] if options.loop else installed_loops()
    checkouts = (None,) if options.against is None else (None, options.against)
    variants = [Variant(loop, before) for loop in loops for before in checkouts]
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(server(options.url, warm=True))
        anchors = await stack.enter_async_context(anchored(running))
        if options.store == "kafka":
            kafka = await stack.enter_async_context(broker(options.bootstrap))
            variants += [Variant(loop, brokers=kafka.bootstrap) for loop in loops]
        note("warming up the server")
        await anchors.measure(effort.warm_up)
        anchors.forget()
        results = [result for case in cases for result in await _measure(running, anchors, case, effort, variants)]
    return Outcome(
        "period-latency",
        "Period latency: last arrival to last wake-up (processes × partitions in each)",
        results,
        goals(results),
        REMARKS,
    )


async def _measure(
    running: Server, anchors: Anchors, case: Case, effort: Effort, variants: Sequence[Variant]
) -> list[Result]:
    """Return a result for each loop."""
    note(f"{case.label}: ours")
    tallies = await measure_ours(running, anchors, case, effort, variants)
    figures: dict[str, Figures] = {name: summary(values) for name, values in anchors.forget().items()}
    on_kafka = any(variant.brokers for variant in variants)
    if not case.empty and not on_kafka:
        note(f"{case.label}: polling")
        figures["polling"] = await _polling(running, case, effort)
        if case.processes > 1:
            note(f"{case.label}: double-barrier")
            figures["double-barrier"] = await _barrier(running, case, effort)
    results = []
    for variant, tally in tallies.items():
        if variant.before is None:
            plain = variant.loop == "asyncio"
            label = case.label if plain else f"{case.label}, {variant.loop}"
            whole = case.to_json() if plain else {**case.to_json(), "loop": variant.loop}
            anchored_by, ratios = dict(figures), {}
            if variant.brokers:
                label, whole = f"{label}, Kafka", {**whole, "store": "kafka"}
                zookeeper = tallies[Variant(variant.loop)]
                anchored_by["zookeeper"], ratios["zookeeper"] = zookeeper.figures(), tally.ratio(zookeeper)
            for other, theirs in tallies.items():
                if other.before is not None and other.loop == variant.loop:
                    anchored_by["before"], ratios["before"] = theirs.figures(), tally.ratio(theirs)
            results.append(Result(label, whole, "ms", tally.figures(), anchored_by, ratios))
    return results


# -- groups of processes -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """Latencies and costs over several rounds."""

    latencies: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    """The median of each round."""
    advances: int | None = None
    """The number of writes of the limit, if they were counted."""
    client_cpu: int = 0
    counted: Counted | None = field(default_factory=lambda: Counted(0, 0, 0, 0))

    def add(self, answers: Sequence[dict[str, Any]], counted: Counted | None) -> None:
        """Add one round: the times of the workers, and the server's counters meanwhile."""
        latencies = [
            (max(answer["woken"][n] for answer in answers) - max(answer["arrived"][n] for answer in answers)) / 1e6
            for n in range(len(answers[0]["arrived"]))
        ]
        self.latencies += latencies
        self.medians.append(percentile(latencies, 0.5))
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
            **({} if self.advances is None else {"limit_writes_per_period": self.advances / periods}),
        }

    def ratio(self, other: Tally) -> float:
        """Return the median of the rounds' ratios: both have measured in every round, one after the other."""
        return percentile([a / b for a, b in zip(self.medians, other.medians, strict=True)], 0.5)


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
async def process_group(running: Server, case: Case, variant: Variant | None) -> AsyncIterator[ProcessGroup]:
    """Start the processes of a case, ours or (None) those that poll, and wait until they have joined and are ready."""
    name = f"{case.name}-{variant.name if variant else 'polling'}"
    period = _SECOND if case.empty else _PERIOD
    plans = [
        {
            "way": "gate" if variant else "polling",
            "url": variant.url(running, name) if variant else running.url(name),
            "loop": variant.loop if variant else "asyncio",
            "period": period,
            "index": index,
            "processes": case.processes,
            "partitions": case.partitions,
        }
        for index in range(case.processes)
    ]
    async with worker_pool(name, plans, checkout=variant.before if variant else None) as workers:
        yield ProcessGroup(running, workers, period, period * (case.empty + 1))


async def measure_ours(
    running: Server, anchors: Anchors, case: Case, effort: Effort, variants: Sequence[Variant]
) -> dict[Variant, Tally]:
    """Measure all variants in turns, and the store alone before, between and after them."""
    total = effort.total(case)
    rounds = min(effort.rounds, total)
    tallies = {variant: Tally() for variant in variants}
    async with contextlib.AsyncExitStack() as stack:
        groups = {v: await stack.enter_async_context(process_group(running, case, v)) for v in variants}
        urls = {v: v.url(running, f"{case.name}-{v.name}") for v in variants}
        for group in groups.values():
            await group.round(min(effort.warm_up, total))
        versions = {v: await _count_advances(url) for v, url in urls.items()}
        for n in range(rounds):
            share = total * (n + 1) // rounds - total * n // rounds
            first = n % len(variants)  # no variant is always the first of a round
            for variant in (*variants[first:], *variants[:first]):
                began = time.monotonic()
                await anchors.measure(max(share // len(variants), 10))
                if len(variants) > 1:
                    await asyncio.sleep(began + _QUIET - time.monotonic())
                await groups[variant].round(share, tallies[variant])
                if variant.brokers:
                    tallies[variant].counted = None  # the counters are ZooKeeper's
        await anchors.measure(max(total // rounds, 10))
        for variant, url in urls.items():
            tallies[variant].advances = await _count_advances(url) - versions[variant]
    return tallies


async def _count_advances(url: str) -> int:
    """Return how often the limit was written. No session stays open: on Kafka it would read along with every member."""
    async with open_store(url).session() as session:
        return (await session.get("coordinator")).version


async def _polling(running: Server, case: Case, effort: Effort) -> Figures:
    tally = Tally()
    async with process_group(running, case, None) as classic:
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


LATENCY_GOALS: Final = {
    (Case(1, 64), "write"): {"asyncio": 1.8, "uvloop": 1.5},
    (Case(3, 4), "floor"): {"asyncio": 1.25, "uvloop": 1.1},
    (Case(16, 1), "double-barrier"): {"asyncio": 0.5, "uvloop": 0.4},
    (Case(16, 64), "floor"): {"asyncio": 5.0, "uvloop": 4.2},
}
"""Ours / anchor, on each loop."""
KAFKA_GOALS: Final = {Case(1, 64): 1.5, Case(3, 4): 1.5, Case(8, 8): 3.0}
"""Ours on Kafka / ours on ZooKeeper."""
POLLING_GOALS: Final = (Case(1, 1), Case(1, 64), Case(3, 4), Case(16, 64))
REQUESTS: Final = 32
"""Per period, with 16 members."""
WRITES: Final = 1.1
"""Per period and member: one, and what goes beside the periods, such as the deletion of old announcements."""


def goals(results: Sequence[Result]) -> list[Goal]:
    """Return the goals for the cases that were measured."""
    wanted: list[Goal] = []
    for result in results:
        case = Case(result.case["processes"], result.case["partitions"], result.case.get("empty_periods", 0))
        label, loop = result.label, result.case.get("loop", "asyncio")
        ratios, ours = result.ratios, result.ours
        if "store" in result.case:
            if loop == "asyncio" and case in KAFKA_GOALS:
                wanted.append(Goal(f"{label}: ours / ours on ZooKeeper", ratios["zookeeper"], KAFKA_GOALS[case]))
            continue
        for (goal_case, anchor), limits in LATENCY_GOALS.items():
            if case == goal_case and anchor in ratios:
                wanted.append(Goal(f"{label}: ours / {anchor}", ratios[anchor], limits[loop]))
        if loop != "asyncio":
            continue
        if case in POLLING_GOALS and "polling" in ratios:
            wanted.append(Goal(f"{label}: ours / polling", ratios["polling"], 1 / 20))
        writes, requests, moves = (ours[f"{what}_per_period"] for what in ("writes", "requests", "limit_writes"))
        if writes is not None:
            wanted.append(Goal(f"{label}: writes per period and member", writes / case.processes, WRITES))
        if requests is not None and case.processes == 16:
            wanted.append(Goal(f"{label}: requests per period", requests, REQUESTS))
        if case.empty:
            assert moves is not None
            wanted.append(Goal(f"{label}: advances for {case.empty:,} empty periods", moves, 1))
    return wanted
