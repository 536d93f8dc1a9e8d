"""Measures what it costs the store that the processes of a host share one session and one report.

Three groups with the same partitions are alive all the time and are measured in turns: the processes with the shared session,
the same processes with a session each, and one process with all partitions. The requests and writes are those that the server
counts.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from benchmarks.harness import BenchmarkError, Figures, Goal, Outcome, Result, note
from benchmarks.period_latency import ProcessGroup, Tally, at_least_one, installed_loops
from benchmarks.server import Server, server
from benchmarks.worker_pool import worker_pool

SUMMARY: Final = "the processes of a host with one session, with a session each, and one process with all partitions"
EXAMPLES: Final = (
    "python -m benchmarks hosts",
    "python -m benchmarks hosts --processes 4 --partitions 16 --quick",
)
REMARKS: Final = (
    "latency: from the last partition's arrival to the last task's wake-up, as in period-latency.",
    "requests, writes: what the server counted in a period.",
)
_PERIOD: Final = 60_000
_SHARED: Final = "shared"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only this benchmark has."""
    parser.add_argument("--processes", type=at_least_one, default=16, metavar="P", help="processes (default 16)")
    parser.add_argument("--partitions", type=at_least_one, default=64, metavar="N", help="of each process (default 64)")
    parser.add_argument("--periods", type=at_least_one, metavar="K", help="periods (default 300; quick: 20)")
    parser.add_argument("--loop", choices=installed_loops(), default="asyncio", help="the event loop (default asyncio)")


async def run(options: argparse.Namespace) -> Outcome:
    """Measure the three groups in turns."""
    processes, partitions = options.processes, options.partitions
    periods = options.periods or (20 if options.quick else 300)
    rounds = min(periods, 2 if options.quick else 5)
    cases = {_SHARED: (processes, partitions), "single": (processes, partitions), "one": (1, processes * partitions)}
    tallies = {name: Tally() for name in cases}
    async with server(None) as running, contextlib.AsyncExitStack() as stack:
        groups = {}
        for name, (number, each) in cases.items():
            note(f"{name}: {number} × {each}")
            groups[name] = await stack.enter_async_context(_group(running, name, number, each, options.loop))
        for group in groups.values():
            await group.round(max(5, periods // 5))
        for n in range(rounds):
            for name, group in groups.items():
                await group.round(periods * (n + 1) // rounds - periods * n // rounds, tallies[name])
    figures = {name: tally.figures() for name, tally in tallies.items()}
    if any(found["requests_per_period"] is None for found in figures.values()):
        raise BenchmarkError("the server does not report its counters")
    result = Result(
        f"{processes} × {partitions}, shared",
        {"processes": processes, "partitions": partitions},
        "ms",
        figures[_SHARED],
        {"a session each": figures["single"], f"1 × {processes * partitions}": figures["one"]},
    )
    return Outcome("hosts", "Processes of one host", [result], _goals(figures), REMARKS)


@contextlib.asynccontextmanager
async def _group(running: Server, name: str, processes: int, partitions: int, loop: str) -> AsyncIterator[ProcessGroup]:
    plan = {
        "way": "gate",
        "url": running.url(name),
        "loop": loop,
        "period": _PERIOD,
        "processes": processes,
        "partitions": partitions,
        "share_host": name == _SHARED,
    }
    async with worker_pool(name, [{**plan, "index": index} for index in range(processes)]) as workers:
        yield ProcessGroup(running, workers, _PERIOD, _PERIOD)


def _goals(figures: dict[str, Figures]) -> list[Goal]:
    """Return the goal: shared, the processes cost the store what one process with all partitions costs."""
    shared, one = figures[_SHARED]["requests_per_period"], figures["one"]["requests_per_period"]
    assert shared is not None
    assert one is not None
    return [Goal("requests per period, shared / one process", shared / one, 1.5)]
