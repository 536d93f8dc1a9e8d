"""The member of a host says of the partitions of its processes what one process with all of them would say."""

from __future__ import annotations

import random

import pytest

from aiokcc.core.limit import Limit
from aiokcc.core.member_progress import MemberProgress
from aiokcc.core.partition_progress import PartitionState
from aiokcc.core.partitions import Partition
from aiokcc.core.report import Report

PERIOD = 10
PARTITIONS = [Partition("orders", n) for n in range(4)]


def member(partitions: list[Partition], limit: Limit) -> MemberProgress:
    result = MemberProgress()
    result.generation = 1
    result.see(limit)
    for partition in partitions:
        result.add(partition)
    result.claim(partitions)
    return result


class Host:
    """One process with all partitions, two processes with half of them each, and the member that mirrors these two."""

    def __init__(self, lookahead: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lookahead = lookahead
        self.limit = Limit.first(0, PERIOD, lookahead, None)
        self.one = member(PARTITIONS, self.limit)
        self.processes = [member(PARTITIONS[:2], self.limit), member(PARTITIONS[2:], self.limit)]
        self.shared = member(PARTITIONS, self.limit)
        self.written: list[Report | None] = [None, None]
        self.unsent: list[Report] = []
        self.position = dict.fromkeys(PARTITIONS, 0)
        self.stamp = dict.fromkeys(PARTITIONS, 0)

    def both(self, partition: Partition) -> list[MemberProgress]:
        return [self.one, self.processes[partition.number // 2]]

    def act(self) -> None:
        """Let something happen on one partition that is not at the limit."""
        partition = self.rng.choice(PARTITIONS)
        progress = self.one.partitions[partition]
        if progress.state in {PartitionState.FINISHED, PartitionState.BLOCKED}:
            return
        choice = self.rng.random()
        for which in self.both(partition):
            mine = which.partitions[partition]
            if choice < 0.03:
                which.finish(mine, self.position[partition])
            elif choice < 0.2:
                which.idle(mine, which.limit, self.position[partition])
            else:
                which.resume(mine)
                which.approach(mine, self.stamp[partition], self.position[partition])
        if choice >= 0.2 and progress.state is PartitionState.RUNNING:  # it was processed
            self.position[partition] += 1
            self.stamp[partition] += self.rng.randrange(0, 2 * PERIOD)

    def send(self, *, late: bool) -> None:
        """Let the processes report; what they say may arrive late, also after the limit has moved."""
        for n, process in enumerate(self.processes):
            report = process.report()
            if report is not None and report.supersedes(self.written[n]):
                self.written[n] = report
                self.unsent.append(report)
        while self.unsent and not (late and self.rng.random() < 0.5):
            report = Report.decode("", self.unsent.pop(0).encode())
            assert report is not None
            self.shared.mirror(report, PARTITIONS)

    def advance(self) -> None:
        report = self.shared.report()
        if report is None or report.minimum is None:
            return
        self.limit = self.limit.after(report.minimum, PERIOD, self.lookahead, None)
        for which in (self.one, *self.processes, self.shared):
            which.see(self.limit)


@pytest.mark.parametrize("lookahead", [0, 1, 5])
@pytest.mark.parametrize("seed", range(40))
def test_the_report_of_the_host_is_that_of_one_process(seed: int, lookahead: int) -> None:
    host = Host(lookahead, seed)
    compared = 0
    for _ in range(600):
        host.act()
        host.send(late=host.rng.random() < 0.5)
        said, true = host.shared.report(), host.one.report()
        if true is not None and not host.unsent:
            assert said is not None, "the processes have arrived, and the host does not say so"
        if said is not None and true is not None:
            floor = (said.limit, said.partitions, said.minimum, said.marks)
            assert floor == (true.limit, true.partitions, true.minimum, true.marks) or said.idle or true.idle
            assert said.further == true.further[: len(said.further)]
            compared += 1
        if host.rng.random() < 0.3:
            host.advance()
    assert compared


def test_a_partition_that_was_idle_under_an_earlier_floor_runs() -> None:
    limit = Limit.first(0, PERIOD, 0, None)
    process, shared = member(PARTITIONS[:1], limit), member(PARTITIONS[:1], limit)
    process.idle(process.partitions[PARTITIONS[0]], limit, 7)
    report = process.report()
    assert report is not None
    shared.see(Limit((20,)))
    shared.mirror(report, PARTITIONS)
    assert shared.report() is None


def test_a_partition_that_was_not_opened_by_the_process_is_left_alone() -> None:
    limit = Limit.first(0, PERIOD, 0, None)
    process, shared = member(PARTITIONS[:2], limit), member(PARTITIONS[:2], limit)
    for n, partition in enumerate(PARTITIONS[:2]):
        process.approach(process.partitions[partition], 15 + n, n)
    report = process.report()
    assert report is not None
    shared.mirror(report, PARTITIONS[:1])
    assert [p.state for p in shared.partitions.values()] == [PartitionState.BLOCKED, PartitionState.RUNNING]
