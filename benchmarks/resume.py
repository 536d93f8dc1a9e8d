"""Measures a replay that is killed in the middle and started again, against a plain aiokafka consumer group.

Both read the same topics at the same rate, are killed by SIGKILL at the same record, and are started again at once. That
record is another one in every round, drawn from a second's worth in the middle: so neither is always killed just before, or
always just after, it has recorded its progress. The time is measured from the kill to the first record that had not been
handled before; it includes the start of the new process and the end of the dead one's session, which both have to wait for. The
records that are handled again are counted. Afterwards every record must have been handled.
"""

from __future__ import annotations

import argparse
import random
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.broker import broker, evenly
from benchmarks.harness import BenchmarkError, Figures, Outcome, Result, note, percentile, summary
from benchmarks.server import server
from benchmarks.worker_pool import worker_pool

SUMMARY: Final = "killed in the middle and started again, against a plain consumer group"
EXAMPLES: Final = ("python -m benchmarks resume", "python -m benchmarks resume --quick --json resume.json")
SESSION_SECONDS: Final = 6
"""The shortest session that a broker allows a consumer group by default; ours has the same."""
COMMIT_MS: Final = 1000
_MINUTES: Final = 60

REMARKS: Final = (
    f"from the kill to the first new record; sessions of {SESSION_SECONDS} s with ZooKeeper and with the consumer group.",
    f"group: plain aiokafka that commits by itself every {COMMIT_MS} ms (its default is 5000); ours resumes at the last cut.",
    "records again: handled before the kill, and once more after it; a period of ours has records per period.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only this benchmark has."""
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="the Kafka to read from; by default one is started")
    parser.add_argument(
        "--url", help="the ensemble, zk://host:port[,host:port…][/root]; by default a server is started"
    )
    parser.add_argument("--records", type=int, metavar="N", help="records (default 120000; quick: 12000)")
    parser.add_argument("--rounds", type=int, metavar="N", help="kills of each (default 7; quick: 1)")


async def run(options: argparse.Namespace) -> Outcome:
    """Kill and start again, ours and the group alternating."""
    records = (options.records or (12_000 if options.quick else 120_000)) // 12 * 12
    rounds = options.rounds or (1 if options.quick else 7)
    times: dict[str, list[float]] = {"ours": [], "group": []}
    again: dict[str, list[float]] = {"ours": [], "group": []}
    async with server(options.url) as store, broker(options.bootstrap) as kafka:
        note(f"writing {records:,} records")
        logs = [evenly(records // 12, _MINUTES) for _ in range(6)]
        topics = (await kafka.topic("orders", logs), await kafka.topic("payments", logs))
        plan = {
            "bootstrap": kafka.bootstrap,
            "topics": topics,
            "partitions": [(topic, number) for topic in topics for number in range(6)],
            "records": records,
            "period": "1m",
            "session_timeout": SESSION_SECONDS,
            "commit_ms": COMMIT_MS,
        }
        pace = records / 6
        for number in range(rounds):
            # The same records in every run; each round has its own part of a commit interval.
            place = records // 2 + int((number + random.Random(number).random()) / rounds * pace * COMMIT_MS / 1000)
            ways = {
                "ours": {"way": "resumed-replay", "store": store.url(f"resume-{number}")},
                "group": {"way": "resumed-group", "group": f"bench-{secrets.token_hex(4)}"},
            }
            for name, way in ways.items():
                note(f"round {number + 1} of {rounds}: {name}")
                taken, repeated = await _kill_and_resume(name, {**plan, **way}, pace, place)
                times[name].append(taken)
                again[name].append(repeated)

    def figures(name: str) -> Figures:
        return {**summary(times[name]), "records_again": percentile(again[name], 0.5), "most_again": max(again[name])}

    ours: Figures = {**figures("ours"), "records_per_period": records // _MINUTES}
    case = {"partitions": 12, "records": records, "period": "1m", "session_seconds": SESSION_SECONDS}
    result = Result("killed in the middle", case, "s", ours, {"group": figures("group")})
    return Outcome("resume", "A replay killed and started again: to the first new record", [result], [], REMARKS)


async def _kill_and_resume(name: str, plan: dict[str, Any], pace: float, place: int) -> tuple[float, int]:
    """Return the seconds from the kill to the first new record, and how many records came again."""
    with tempfile.TemporaryDirectory() as directory:
        marks = Path(directory) / "marks"
        marks.write_bytes(bytes(8 * len(plan["partitions"])))
        plan = {**plan, "marks": str(marks)}
        first = {**plan, "pace": pace, "tell_at": place}
        async with worker_pool(name, [first], module="benchmarks.reader") as workers:
            await workers.request(go=True)
            await workers.kill()
            killed = time.monotonic_ns()
        async with worker_pool(
            f"{name} again", [{**plan, "pace": 0, "tell_at": -1}], module="benchmarks.reader"
        ) as workers:
            (answer,) = await workers.request(go=True)
    if answer["left"]:
        raise BenchmarkError(f"{name}: {answer['left']} records were never handled")
    return (answer["first_new"] - killed) / 1e9, answer["again"]
