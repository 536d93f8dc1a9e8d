"""Measures the peak memory of a replay over skewed partitions, against balanced partitions with as many records.

Twelve partitions over two topics. *Skewed*: one partition has 100 times the records of the others, and one of the others
begins an hour after them. *Balanced*: the same number of records, the same in each, over the same time. Every reading
is a process of its own; the figure is the peak memory of that process.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.broker import Broker, broker, evenly
from benchmarks.harness import Figures, Goal, Outcome, Result, note, percentile, summary
from benchmarks.worker_pool import worker_pool

SUMMARY: Final = "peak memory with skewed partitions, against balanced ones"
EXAMPLES: Final = ("python -m benchmarks skew", "python -m benchmarks skew --quick --json skew.json")
REMARKS: Final = (
    "peak memory of a fresh process for each reading, interpreter and libraries included.",
    "held: peak memory minus that of a process that reads only twelve records.",
)
_MINUTES: Final = 120
_LATE: Final = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only this benchmark has."""
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="the Kafka to read from; by default one is started")
    parser.add_argument("--records", type=int, metavar="N", help="records to read (default 333000; quick: 11100)")
    parser.add_argument("--rounds", type=int, metavar="N", help="processes of each kind (default 5; quick: 1)")


async def run(options: argparse.Namespace) -> Outcome:
    """Measure both kinds, alternating."""
    each = max(1, (options.records or (11_100 if options.quick else 333_000)) // 111)
    rounds = options.rounds or (1 if options.quick else 5)
    total = 111 * each
    counts = [100 * each] + [each] * 11
    even = [total // 12 + (n < total % 12) for n in range(12)]
    async with broker(options.bootstrap) as kafka:
        note(f"writing twice {total:,} records")
        late = {7: _LATE}
        plans = {
            "skewed": await _plan(kafka, [_log(count, late.get(n, 0)) for n, count in enumerate(counts)]),
            "balanced": await _plan(kafka, [_log(count, 0) for count in even]),
            "unread": await _plan(kafka, [[stamp] for stamp in evenly(12, _MINUTES)]),
        }
        peaks: dict[str, list[float]] = {name: [] for name in plans}
        rates: dict[str, list[float]] = {name: [] for name in plans}
        for number in range(rounds):
            for name, plan in plans.items():
                note(f"round {number + 1} of {rounds}: {name}")
                answer = await _read(name, plan)
                peaks[name].append(answer["memory"] / 1e6)
                rates[name].append(answer["records"] / (answer["ended"] - answer["began"]) * 1e9)
    empty = percentile(peaks.pop("unread"), 0.5)

    def figures(name: str) -> Figures:
        peak = summary(peaks[name])
        assert peak["p50"] is not None
        return {**peak, "held_mb": peak["p50"] - empty, "records_per_s": percentile(rates[name], 0.5)}

    case = {"partitions": 12, "records": total, "largest": 100 * each, "others": each, "late_minutes": _LATE}
    result = Result("skewed", case, "MB", figures("skewed"), {"balanced": figures("balanced")})
    goal = Goal("peak memory, skewed / balanced", result.ratios["balanced"], 1.2)
    return Outcome("skew", "Peak memory of a replay over skewed partitions", [result], [goal], REMARKS)


def _log(records: int, after: float) -> list[int]:
    return evenly(records, _MINUTES - after, after=after)


async def _plan(kafka: Broker, logs: Sequence[list[int]]) -> dict[str, Any]:
    topics = (await kafka.topic("orders", logs[:6]), await kafka.topic("payments", logs[6:]))
    return {
        "way": "replay",
        "bootstrap": kafka.bootstrap,
        "topics": topics,
        "partitions": [(topic, number) for topic in topics for number in range(6)],
        "records": sum(map(len, logs)),
        "period": "1m",
    }


async def _read(name: str, plan: dict[str, Any]) -> dict[str, Any]:
    async with worker_pool(name, [plan], module="benchmarks.reader") as workers:
        await workers.request(prepare=True, store="memory://skew")
        (answer,) = await workers.request(go=True)
    return answer
