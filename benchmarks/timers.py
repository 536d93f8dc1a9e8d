"""Measures making and cancelling a timer while many others are pending, against the event loop's own call_later.

Two patterns are measured. *soon*: a timer is cancelled right after it was made, as the timeout of a call that returns.
*oldest*: the one that has waited longest is cancelled and a new one is made, as for idle limits that are extended; its
memory has left the processor's caches. All deadlines are an hour or more ahead, so no timer fires while it is measured.

Short rounds of ours and of the loop's, alternating, each in a loop of its own that runs once after every round, so that
its cleaning up belongs to the round. It is CPU time, with the garbage collector off. The ratio is the median of the
rounds' ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import time
from collections.abc import Callable
from typing import Final, Protocol

from aiokcc.runtime.timer import Timers
from benchmarks.harness import Goal, Outcome, Result, note, percentile, summary

SUMMARY: Final = "a timer made and cancelled, with up to a million pending, against loop.call_later"
EXAMPLES: Final = ("python -m benchmarks timers", "python -m benchmarks timers --quick --json timers.json")

ANCHOR: Final = "call_later"
_BATCH: Final = 500
_HOUR: Final = 3600.0


class Cancellable(Protocol):
    """The handle that both return."""

    def cancel(self) -> object: ...


Make = Callable[[float, Callable[[], None]], Cancellable]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only this benchmark has."""
    parser.add_argument(
        "--pending", type=int, nargs="+", metavar="N", help="how many are pending (default 10k 100k 1M)"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help=f"rounds of {_BATCH} each (default 400; quick: 40)")


def nothing() -> None:
    """Never called."""


async def run(options: argparse.Namespace) -> Outcome:
    """Measure each number of pending timers, the smallest first."""
    sizes = sorted(set(options.pending or ([10_000, 100_000] if options.quick else [10_000, 100_000, 1_000_000])))
    rounds = options.rounds or (40 if options.quick else 400)
    results: list[Result] = []
    for pending in sizes:
        note(f"{pending:,} pending")
        # In a thread, where no other loop is running.
        results += await asyncio.to_thread(_measure, pending, rounds)
    few, many = sizes[0], sizes[-1]
    soon = {result.case["pending"]: result for result in results if result.case["cancelled"] == "soon"}
    oldest = {result.case["pending"]: result for result in results if result.case["cancelled"] == "oldest"}
    goals = [
        Goal(f"made and cancelled soon, {many:,} pending / {ANCHOR}", soon[many].ratios[ANCHOR], 0.5),
        Goal(f"the oldest cancelled, {many:,} pending / {ANCHOR}", oldest[many].ratios[ANCHOR], 0.5),
    ]
    if few < many:
        growth = (soon[many].ours["p50"] or 0) / (soon[few].ours["p50"] or 1)
        goals.append(Goal(f"made and cancelled soon, {many:,} pending / {few:,} pending", growth, 1.25))
    return Outcome("timers", "A timer made and a timer cancelled", results, goals)


class Way:
    """A loop, the way to make timers in it, and the pending timers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Make, pending: int) -> None:
        self.loop, self.make = loop, make
        chance = random.Random(pending)  # the same for both
        self._delays = [_HOUR + chance.random() * _HOUR for _ in range(10_000)]
        self._at = 0
        self.pending = [make(self._delays[n % len(self._delays)], nothing) for n in range(pending)]

    def soon(self) -> float:
        """Return the nanoseconds for one timer made and cancelled."""
        make = self.make
        delays = self._some()
        start = time.thread_time_ns()
        for delay in delays:
            make(delay, nothing).cancel()
        self._turn()
        return (time.thread_time_ns() - start) / _BATCH

    def oldest(self) -> float:
        """Return the nanoseconds for cancelling the oldest timer and making one."""
        make, pending = self.make, self.pending
        delays = self._some()
        at = self._at
        if at + _BATCH > len(pending):
            at = 0
        self._at = at + _BATCH
        start = time.thread_time_ns()
        for delay in delays:
            pending[at].cancel()
            pending[at] = make(delay, nothing)
            at += 1
        self._turn()
        return (time.thread_time_ns() - start) / _BATCH

    def _some(self) -> list[float]:
        first = self._at % (len(self._delays) - _BATCH)
        return self._delays[first : first + _BATCH]

    def _turn(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()


def _measure(pending: int, rounds: int) -> list[Result]:
    pending = max(pending, _BATCH)
    ours, theirs = asyncio.new_event_loop(), asyncio.new_event_loop()
    gc.disable()
    try:
        ways = {
            "": Way(ours, Timers(ours).call_later, pending),
            ANCHOR: Way(theirs, theirs.call_later, pending),
        }
        return [_compare(habit, pending, ways, rounds) for habit in ("soon", "oldest")]
    finally:
        ours.close()
        theirs.close()
        gc.enable()
        gc.collect()


def _compare(habit: str, pending: int, ways: dict[str, Way], rounds: int) -> Result:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + rounds // 10 + 1):
        for name, way in ways.items():
            taken: float = getattr(way, habit)()
            if number > rounds // 10:  # the first ones warm up
                times[name].append(taken)
    ratio = percentile([a / b for a, b in zip(times[""], times[ANCHOR], strict=True)], 0.5)
    return Result(
        f"{habit}, {pending:,} pending",
        {"pending": pending, "cancelled": habit},
        "ns",
        summary(times[""]),
        {ANCHOR: summary(times[ANCHOR])},
        {ANCHOR: ratio},
    )
