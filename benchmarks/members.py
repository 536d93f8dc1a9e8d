"""Measures a period by the number of members: its length, and the CPU time of the leader, the server and the other members.

The leader is a process of its own. The other members are spread over a few processes, each member with a session of its own and
some partitions. Nobody works between two records, so a period is as short as the group can make it: it is measured from one
wake-up of the last task to the next one. Rounds of the same group follow one another; with ``--against``, rounds of this
checkout and of another one alternate in the same run.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from aiokcc import open_store
from aiokcc.runtime.status_reader import read_status
from benchmarks.floors import anchored
from benchmarks.harness import BenchmarkError, Figures, Goal, Outcome, Result, note, percentile, summary
from benchmarks.period_latency import at_least_one, checkout, installed_loops
from benchmarks.server import Counted, Server, server
from benchmarks.worker_pool import WorkerPool, worker_pool

SUMMARY: Final = "a period by the number of members, up to 1,000: its length and who spends the CPU time"
EXAMPLES: Final = (
    "python -m benchmarks members --members 16,100,300,1000 --plot members.svg",
    "python -m benchmarks members --quick",
    "python -m benchmarks members --members 300 --against ../the-code-before",
)
MEMBERS: Final = (16, 100, 300, 1000)
QUICK: Final = (4, 12)
PERIOD_GOALS: Final = {300: 80.0, 1000: 300.0}
"""In ms."""
LEADER_GOAL: Final = 0.03
"""The leader's CPU time in ms per member and period, where there are at least so many members that its fixed part is small."""
LEADER_GOAL_FROM: Final = 100
_PERIOD: Final = 60_000
_WARM_UP: Final = 5

REMARKS: Final = (
    "period: from one wake-up of the last task to the next one; write and floor: one client alone, as in period-latency.",
    "CPU: per period, median of the rounds; ours is the process of the leader, clients are all other members together.",
    "before: the other checkout, in alternating rounds of the same run; the ratio is the median of the rounds' ratios.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only this benchmark has."""
    parser.add_argument(
        "--url", help="measure this ensemble, zk://host:port[,host:port…][/root]; by default a server is started"
    )
    parser.add_argument(
        "--members", type=_counts, metavar="N,N,…", help=f"default {','.join(map(str, MEMBERS))}; at least 2 each"
    )
    parser.add_argument("--partitions", type=at_least_one, default=4, metavar="N", help="of each member (default 4)")
    parser.add_argument(
        "--processes", type=at_least_one, default=3, metavar="P", help="that the other members share (default 3)"
    )
    parser.add_argument("--rounds", type=at_least_one, metavar="N", help="default 5; quick: 2")
    parser.add_argument("--loop", choices=installed_loops(), default="asyncio", help="default asyncio")
    parser.add_argument(
        "--against", type=checkout, metavar="PATH", help="another checkout, measured in turns with this one"
    )


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(word) for word in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers from 2 up, such as 16,100,300,1000")
    return counts


async def run(options: argparse.Namespace) -> Outcome:
    """Measure each number of members."""
    results: list[Result] = []
    async with server(options.url, warm=not options.quick) as running:
        for count in options.members or (QUICK if options.quick else MEMBERS):
            results += await _measure(running, count, options)
    results.sort(key=lambda result: result.unit == "ms CPU")  # stable: periods first
    return Outcome("members", "A period by the number of members", results, goals(results), (*REMARKS, *_bars(results)))


# -- a group -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """The measurements: the length of each period, and for each round the median and the costs per period."""

    lengths: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    leader: list[float] = field(default_factory=list)
    clients: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)

    def add(self, answers: Sequence[dict[str, Any]], counted: Counted | None) -> None:
        """Add one round. The first answer is the leader's."""
        woken = [max(times) for times in zip(*(answer["woken"] for answer in answers), strict=True)]
        lengths = [(after - before) / 1e6 for before, after in pairwise(woken)]
        self.lengths += lengths
        self.medians.append(percentile(lengths, 0.5))
        self.leader.append(answers[0]["cpu"] / 1e6 / len(woken))
        self.clients.append(sum(answer["cpu"] for answer in answers[1:]) / 1e6 / len(woken))
        if counted is not None:
            self.requests.append(counted.received / len(woken))
            if counted.cpu is not None:
                self.server.append(counted.cpu / 1e6 / len(woken))

    def period(self) -> Figures:
        """Return the length of a period."""
        requests = {"requests_per_period": percentile(self.requests, 0.5)} if self.requests else {}
        return {**summary(self.lengths), **requests}

    def ratio(self, other: Tally) -> float:
        """Return the median of the rounds' ratios."""
        return percentile([a / b for a, b in zip(self.medians, other.medians, strict=True)], 0.5)


class MemberGroup:
    """A group that rests between its rounds."""

    def __init__(self, running: Server, workers: WorkerPool) -> None:
        self._running, self._workers = running, workers
        self._next = _PERIOD

    async def round(self, periods: int, tally: Tally | None = None) -> None:
        """Run this many periods; without a tally they only warm up."""
        overhead = await self._running.asking()
        before = await self._running.counted()
        answers = await self._workers.request(periods=periods, first=self._next, step=_PERIOD)
        after = await self._running.counted()
        self._next += periods * _PERIOD
        if tally is not None:
            tally.add(answers, None if before is None or after is None else after - before - overhead)


@contextlib.asynccontextmanager
async def member_group(
    running: Server, count: int, options: argparse.Namespace, before: Path | None
) -> AsyncIterator[MemberGroup]:
    """Start the leader, then all others, and wait until all have joined."""
    name = f"{count}-members" + ("-before" if before else "")
    plan = {
        "way": "members",
        "url": running.url(name),
        "loop": options.loop,
        "period": _PERIOD,
        "partitions": options.partitions,
        "total": count,
    }
    processes = min(options.processes, count - 1)
    shares = [[0], *(list(range(1 + n, count, processes)) for n in range(processes))]
    plans = [{**plan, "members": share} for share in shares]
    async with worker_pool(name, plans, checkout=before, timeout=300, first_alone=True) as workers:
        store = open_store(running.url(name))
        async with store.session() as session:
            leads = (await read_status(store, session)).leader
        if not (leads or "").startswith("member-0-"):
            raise BenchmarkError(f"{leads} leads, and not the first member, whose CPU time is measured; try again")
        yield MemberGroup(running, workers)


async def _measure(running: Server, count: int, options: argparse.Namespace) -> list[Result]:
    note(f"{count:,} members")
    rounds = options.rounds or (2 if options.quick else 5)
    periods = 4 if options.quick else max(10, min(100, 10_000 // count))
    checkouts = [None] if options.against is None else [None, options.against]
    tallies = {before: Tally() for before in checkouts}
    async with contextlib.AsyncExitStack() as stack:
        floors = await stack.enter_async_context(anchored(running))
        groups = {
            before: await stack.enter_async_context(member_group(running, count, options, before))
            for before in checkouts
        }
        for group in groups.values():
            await group.round(_WARM_UP)
        for number in range(rounds):
            note(f"{count:,} members: round {number + 1} of {rounds}")
            await floors.measure(20)
            for before in checkouts[:: -1 if number % 2 else 1]:
                await groups[before].round(periods, tallies[before])
        samples = floors.forget()
    ours, theirs = tallies[None], tallies.get(options.against) if options.against else None
    label = f"{count:,} members" if options.loop == "asyncio" else f"{count:,} members, {options.loop}"
    case = {"members": count, "partitions": options.partitions, "loop": options.loop}
    anchors: dict[str, Figures] = {name: summary(values) for name, values in samples.items()}
    ratios = {}
    if theirs is not None:
        anchors["before"], ratios["before"] = theirs.period(), ours.ratio(theirs)
    per_member = percentile(ours.leader, 0.5) / count
    leader: Figures = {**summary(ours.leader), "ms_per_member": per_member}
    spent: dict[str, Figures] = {"clients": summary(ours.clients)}
    if ours.server:
        spent["server"] = summary(ours.server)
    if theirs is not None:
        spent["leader before"] = summary(theirs.leader)
        if theirs.server:
            spent["server before"] = summary(theirs.server)
    return [
        Result(label, case, "ms", ours.period(), anchors, ratios),
        Result(label, {**case, "what": "cpu"}, "ms CPU", leader, spent),
    ]


# -- goals and the picture ---------------------------------------------------------------------------------------------


def goals(results: Sequence[Result]) -> list[Goal]:
    """Return the goals for the numbers of members that were measured."""
    wanted = []
    for result in results:
        count = result.case["members"]
        if result.unit == "ms" and count in PERIOD_GOALS:
            wanted.append(Goal(f"{result.label}: ms per period", float(result.ours["p50"] or 0), PERIOD_GOALS[count]))
        if result.unit == "ms CPU" and count >= LEADER_GOAL_FROM:
            spent = float(result.ours["ms_per_member"] or 0)
            wanted.append(Goal(f"{result.label}: leader's CPU, ms per member", spent, LEADER_GOAL))
    return wanted


def _bars(results: Sequence[Result]) -> list[str]:
    """Draw the medians as text: one bar for each figure, all to the same scale."""
    rows = []
    for result in results:
        if result.unit == "ms":
            rows.append((result.label, "period", result.ours["p50"]))
        else:
            rows.append((result.label, "leader's CPU", result.ours["p50"]))
            rows += [
                (result.label, f"{name}' CPU" if name[-1] == "s" else f"{name}'s CPU", figures["p50"])
                for name, figures in result.anchors.items()
                if "before" not in name
            ]
    most = max(value or 0.0 for _, _, value in rows)
    return [
        f"{label:>20}  {what:<14} {value or 0:8.3g} ms {'█' * round(60 * (value or 0) / most)}"
        for label, what, value in rows
    ]
