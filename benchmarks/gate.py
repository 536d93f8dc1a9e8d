"""Measures the cost of an open gate per record, against awaiting a coroutine function that does nothing.

Three ways to ask: ``await gate.wait_until(ts)``, ``gate.is_open(ts)`` alone, and what a hot loop does,
``if not gate.is_open(ts): await gate.wait_until(ts)``.

Short rounds of both, alternating, in the same loop shape; the ratio is the median of the rounds' ratios, so that
a disturbance of the machine that lasts longer than a round affects both.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable
from typing import Final

import aiokcc
from benchmarks.harness import Goal, Outcome, Result, note, percentile, summary
from benchmarks.server import server

SUMMARY: Final = "the cost of an open gate per record, against awaiting an empty coroutine"
EXAMPLES: Final = ("python -m benchmarks gate", "python -m benchmarks gate --quick --json gate.json")

HOT_LOOP_GOAL: Final = 1.6
_PERIOD: Final = 60_000

Loop = Callable[[], Awaitable[int]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only this benchmark has."""
    parser.add_argument("--url", help="the session is with this ensemble (zk://host:port[,host:port…][/root])")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of each (default 1000; quick: 50)")


async def empty() -> None:
    """Do nothing."""


def nothing(_: int) -> None:
    """Do nothing, without a coroutine."""


async def run(options: argparse.Namespace) -> Outcome:
    """Measure one open gate, in a session with a real server."""
    rounds = options.rounds or (50 if options.quick else 1000)
    async with server(options.url) as running:
        note("an open gate")
        async with (
            aiokcc.connect(running.url("gate"), topics={"bench": 1}, start=0, period=_PERIOD) as group,
            group.gate("bench", 0) as gate,
        ):
            stamps = [n % _PERIOD for n in range(1000)]
            assert all(map(gate.is_open, stamps))
            results = [
                await _compare("wait_until", _waiting(gate, stamps), {"empty-coroutine": _empty(stamps)}, rounds),
                await _compare(
                    "is_open",
                    _asking(gate, stamps),
                    {"empty-coroutine": _empty(stamps), "empty-function": _calling(stamps)},
                    rounds,
                ),
            ]
            results.append(
                await _compare(
                    "is_open, then wait_until", _asking_first(gate, stamps), {"empty-coroutine": _empty(stamps)}, rounds
                )
            )
            gate.finish()
    hot = results[-1]
    goal = Goal(f"an open gate, {hot.label} / empty coroutine", hot.ratios["empty-coroutine"], HOT_LOOP_GOAL)
    return Outcome("gate", "An open gate, per record", results, [goal])


def _waiting(gate: aiokcc.Gate, stamps: list[int]) -> Loop:
    async def loop() -> int:
        start = time.perf_counter_ns()
        for ts in stamps:
            await gate.wait_until(ts)
        return time.perf_counter_ns() - start

    return loop


def _empty(stamps: list[int]) -> Loop:
    async def loop() -> int:
        start = time.perf_counter_ns()
        for _ts in stamps:
            await empty()
        return time.perf_counter_ns() - start

    return loop


def _asking(gate: aiokcc.Gate, stamps: list[int]) -> Loop:
    async def loop() -> int:
        start = time.perf_counter_ns()
        for ts in stamps:
            gate.is_open(ts)
        return time.perf_counter_ns() - start

    return loop


def _asking_first(gate: aiokcc.Gate, stamps: list[int]) -> Loop:
    async def loop() -> int:
        start = time.perf_counter_ns()
        for ts in stamps:
            if not gate.is_open(ts):
                await gate.wait_until(ts)
        return time.perf_counter_ns() - start

    return loop


def _calling(stamps: list[int]) -> Loop:
    async def loop() -> int:
        start = time.perf_counter_ns()
        for ts in stamps:
            nothing(ts)
        return time.perf_counter_ns() - start

    return loop


async def _compare(call: str, ours: Loop, anchors: dict[str, Loop], rounds: int) -> Result:
    loops = {"": ours, **anchors}
    times: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(rounds + rounds // 10 + 1):
        for name, loop in loops.items():
            taken = await loop()
            if number > rounds // 10:  # the first ones warm up
                times[name].append(taken / 1000)
    ratios = {name: percentile([a / b for a, b in zip(times[""], times[name], strict=True)], 0.5) for name in anchors}
    return Result(
        call, {"call": call}, "ns", summary(times[""]), {name: summary(times[name]) for name in anchors}, ratios
    )
