"""Measures one assignment of 1,000 partitions to 20 members: CPU time, and how many partitions move.

It measures the CPU time of one decision of the sticky assignor when a group starts, stays as it is, and gains or loses a
member. Members subscribe to everything, to two topics of three, or to a limited number of partitions of each topic. The
anchor is the sticky assignor of aiokafka, which a Kafka consumer group can use; it has no such limits. Both start from
the same assignment, and the moves are counted.

The fewest possible moves are known if all members subscribe to everything: a member that joins takes its share, and a
member that leaves moves nothing of the others. For other subscriptions, tests compare with all possible assignments
(tests/property/test_assignors.py).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from aiokcc.core.assignors import assign
from aiokcc.core.partitions import Partition
from aiokcc.core.subscriptions import EVERYTHING, Subscription
from benchmarks.harness import Figures, Goal, Outcome, Result, note, summary

SUMMARY: Final = "deciding who runs what: CPU and moves, against aiokafka's sticky assignor"
EXAMPLES: Final = ("python -m benchmarks assignment", "python -m benchmarks assignment --quick --json assignment.json")

T = TypeVar("T")

_TOPICS: Final = 10

Assignment = Mapping[Partition, str]
Members = dict[str, Subscription]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only this benchmark has."""
    parser.add_argument("--partitions", type=int, default=1000, metavar="N", help="over ten topics (default 1000)")
    parser.add_argument("--members", type=int, default=20, metavar="N", help="before one joins or leaves (default 20)")
    parser.add_argument("--rounds", type=int, metavar="N", help="decisions of each kind (default 50; quick: 5)")


async def run(options: argparse.Namespace) -> Outcome:
    """Measure each change for each kind of subscription."""
    rounds = options.rounds or (5 if options.quick else 50)
    partitions = [Partition(f"topic-{n % _TOPICS}", n // _TOPICS) for n in range(options.partitions)]
    names = [f"member-{n:03}" for n in range(max(2, options.members))]
    each = -(-len(partitions) // len(names))
    kinds: dict[str, list[Subscription]] = {
        "everything": [EVERYTHING] * (len(names) + 1),
        "two thirds": [
            Subscription({f"topic-{t}": None for t in range(_TOPICS) if (n + t) % 3}) for n in range(len(names) + 1)
        ],
        "limited": [Subscription({f"topic-{t}": max(1, each // 8) for t in range(_TOPICS)})] * (len(names) + 1),
    }
    results: list[Result] = []
    ratios: list[float] = []
    for kind, subscriptions in kinds.items():
        note(f"members subscribe to {kind}")
        members: Members = dict(zip(names, subscriptions, strict=False))
        settled = assign("sticky", members, partitions, {})
        changes: dict[str, tuple[Members, Assignment]] = {
            "start": (members, {}),
            "stay": (members, settled),
            "join": ({**members, "newcomer": subscriptions[-1]}, settled),
            "leave": ({name: members[name] for name in names[1:]}, settled),
        }
        for change, (present, current) in changes.items():
            ours, after = _timed(lambda p=present, c=current: assign("sticky", p, partitions, c), rounds)  # type: ignore[misc]
            figures: Figures = {**summary(ours), "moves": _moves(present, current, after)}
            anchors: dict[str, Figures] = {}
            if kind == "everything" and change in {"join", "leave"}:
                fewest = len(partitions) // len(present) if change == "join" else 0
                figures["fewest_moves"] = fewest
                ratios.append((figures["moves"] or 0) / fewest if fewest else 1.0 + (figures["moves"] or 0))
            if kind != "limited":
                theirs, answer = _timed(_kafka(present, partitions, current), rounds)
                anchors["aiokafka-sticky"] = {**summary(theirs), "moves": _moves(present, current, _read(answer))}
            results.append(
                Result(
                    f"{kind}, {change}",
                    {"partitions": len(partitions), "members": len(present), "subscription": kind, "change": change},
                    "ms",
                    figures,
                    anchors,
                )
            )
    size = f"{len(partitions):,} partitions over {len(names)} members"
    goals = [Goal(f"{size}, {kind}: ms of CPU", _slowest(results, kind), 10) for kind in kinds]
    goals.append(Goal("sticky moves / the fewest possible", max(ratios), 1.1))
    return Outcome("assignment", "One decision who runs what", results, goals)


def _slowest(results: list[Result], kind: str) -> float:
    return max(result.ours["p50"] or 0 for result in results if result.case["subscription"] == kind)


def _timed(decide: Callable[[], T], rounds: int) -> tuple[list[float], T]:
    times = []
    decide()  # to warm up
    for _ in range(rounds):
        start = time.process_time_ns()
        answer = decide()
        times.append((time.process_time_ns() - start) / 1e6)
    return times, answer


def _moves(members: Members, before: Assignment, after: Assignment) -> int:
    """Count the partitions that moved away from members that are still there."""
    return sum(owner in members and after.get(partition) != owner for partition, owner in before.items())


class _Cluster:
    """The part of aiokafka's cluster metadata that an assignor uses."""

    def __init__(self, partitions: Iterable[Partition]) -> None:
        self._numbers: dict[str, set[int]] = {}
        for topic, number in partitions:
            self._numbers.setdefault(topic, set()).add(number)

    def topics(self) -> set[str]:
        return set(self._numbers)

    def partitions_for_topic(self, topic: str) -> set[int]:
        return self._numbers[topic]


def _kafka(members: Members, partitions: list[Partition], current: Assignment) -> Callable[[], dict[str, Any]]:
    """Return a function that makes the same decision with aiokafka."""
    from aiokafka import TopicPartition
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    cluster = _Cluster(partitions)
    metadata = {}
    for name, subscription in members.items():
        mine = [TopicPartition(*partition) for partition, owner in current.items() if owner == name]
        topics = sorted(topic for topic in cluster.topics() if subscription.covers_topic(topic))
        metadata[name] = StickyPartitionAssignor._metadata(topics, mine, 1)
    return lambda: StickyPartitionAssignor.assign(cluster, metadata)


def _read(answer: dict[str, Any]) -> Assignment:
    return {
        Partition(topic, number): name
        for name, assigned in answer.items()
        for topic, numbers in assigned.assignment
        for number in numbers
    }
