"""The partitions that a process reads at present, with their locks and tasks.

A partition is stopped in this order: it is revoked, so that no further record starts; the running handler ends, also after
its retries; the offset is committed, if offsets are committed at all (otherwise the next owner repeats from the last cut); the
lock is released. From then until its next owner has claimed the lock the partition is unowned. The limit waits until that
owner has reported.

There are three ways to assign partitions. *Fixed*: the process claims all partitions, or an explicit list, once. *Managed*: the
group's own leader assigns them, through the store. *By a Kafka consumer group*: Kafka assigns and revokes partitions while the
replay runs; that is :mod:`aiokcc.kafka.kafka_group`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from aiokcc.core.limit import Mode
from aiokcc.core.partition_progress import PartitionState
from aiokcc.core.partitions import Partition
from aiokcc.errors import PartitionRevoked, RunEnded
from aiokcc.exception_groups import unwrapped
from aiokcc.kafka.partition_consumer import PartitionConsumer
from aiokcc.runtime.assignment_follower import follow_assignment
from aiokcc.runtime.signal import Signal

if TYPE_CHECKING:
    from aiokcc.kafka.consumer_policy import ConsumerPolicy
    from aiokcc.kafka.fetch_loop import FetchLoop
    from aiokcc.kafka.offset_committer import Committer
    from aiokcc.kafka.source_options import SourceOptions
    from aiokcc.kafka.summary import Summary
    from aiokcc.kafka.telemetry import Telemetry
    from aiokcc.runtime.gate import Gate
    from aiokcc.runtime.group import Group
    from aiokcc.runtime.member import Member

__all__ = ["PartitionTasks", "Work", "commit_after_release", "run_fixed", "run_managed"]

log = logging.getLogger("aiokcc.kafka")

_CLOSE_SECONDS: Final = 2.0
_COMMIT_SECONDS: Final = 1.0

Work = Callable[[PartitionConsumer], Awaitable[None]]


@dataclass(slots=True)
class _Running:
    gate: Gate
    consumer: PartitionConsumer
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class PartitionTasks:
    """The partitions that are being read, one task each. All tasks belong to the task group that is passed in."""

    def __init__(
        self,
        source: SourceOptions,
        policy: ConsumerPolicy,
        group: Group,
        fetch_loop: FetchLoop,
        committer: Committer,
        summary: Summary,
        work: Work,
        tasks: anyio.abc.TaskGroup,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._telemetry = telemetry
        self._source = source
        self._policy = policy
        self._group = group
        self._member = group.membership
        self._fetch_loop = fetch_loop
        self._committer = committer
        self._summary = summary
        self._work = work
        self._tasks = tasks
        self._running: dict[Partition, _Running] = {}
        self.at_close: Callable[[], None] | None = None
        """Called when :meth:`close` has closed all gates, or has failed to."""
        self._done = Signal()

    async def start(self, partitions: Iterable[Partition]) -> None:
        """Claim the locks side by side, and start to read when all are ours.

        If it fails or is cancelled, it releases the locks that it has claimed.
        """
        gates = self._gates(partitions)
        opened: dict[Partition, Gate] = {}

        async def open_one(partition: Partition, gate: Gate) -> None:
            opened[partition] = await gate.__aenter__()

        try:
            async with unwrapped() as opening:
                for partition, gate in gates.items():
                    opening.start_soon(open_one, partition, gate)
            await self._start_consumers(gates)
        except BaseException:
            await _close(opened.values())
            raise

    async def start_each(self, partitions: Iterable[Partition]) -> None:
        """Claim the locks, and start to read each partition as soon as its lock is ours. Returns when all are being read.

        So a standby for the partitions of several members takes over from each of them. If it fails or is cancelled, the locks
        of partitions that are not being read yet are released.
        """
        opened: dict[Partition, Gate] = {}
        claimed = Signal()

        async def open_one(partition: Partition, gate: Gate) -> None:
            opened[partition] = await gate.__aenter__()
            claimed.set()

        try:
            async with unwrapped() as opening:
                gates = self._gates(partitions)
                for partition, gate in gates.items():
                    opening.start_soon(open_one, partition, gate)
                while gates.keys() - self._running.keys():
                    await claimed.wait()
                    ready = dict(opened)  # locks that are claimed in one transaction arrive together
                    await self._start_consumers(ready)
                    for partition in ready:
                        del opened[partition]
        except BaseException:
            await _close(opened.values())
            raise

    def _gates(self, partitions: Iterable[Partition]) -> dict[Partition, Gate]:
        gates = {p: self._group.gate(p.topic, p.number) for p in sorted(partitions)}
        for gate in gates.values():
            gate.skips_closed = True
        return gates

    async def _start_consumers(self, gates: Mapping[Partition, Gate]) -> None:
        """Start to read each partition at the last cut, or at what was committed since."""
        committed = await self._committer.committed(gates)
        feeds = {}
        for partition, gate in gates.items():
            bounds = self._member.bounds[partition]
            consumer = PartitionConsumer(
                self._source, self._policy, gate, bounds, self._member, self._summary, committed.get(partition, 0)
            )
            consumer.fetch_loop = self._fetch_loop
            if self._telemetry is not None:
                consumer.telemetry = self._telemetry.partition(gate)
            gate.mark = partial(getattr, consumer, "next_offset")
            feeds[partition] = consumer.feed
            self._running[partition] = _Running(gate, consumer)
        self._fetch_loop.add(feeds)
        if self._source.group_id is not None and not self._source.by_group:
            await self._fetch_loop.find_coordinator()
        for partition in feeds:
            self._tasks.start_soon(self._run, self._running[partition])

    async def _run(self, running: _Running) -> None:
        try:
            await self._work(running.consumer)
        except (RunEnded, PartitionRevoked):
            pass
        finally:
            running.ended.set()
            self._done.set()
            self._member.moved.set()

    def revoke(self) -> None:
        """Start no further record of any partition; :meth:`stop` does the rest."""
        for running in self._running.values():
            self._member.revoke(running.gate)

    async def stop(self, partitions: Iterable[Partition]) -> None:
        """Revoke partitions, wait until their running handlers end, commit, and release the locks.

        If it is cancelled on the way, the partitions are still there for :meth:`close`.
        """
        leaving = {p: self._running[p] for p in partitions if p in self._running}
        for running in leaving.values():
            self._member.revoke(running.gate)
        self._fetch_loop.remove(leaving)
        for running in leaving.values():
            await running.ended.wait()
        if not self._member.progress.withheld:  # else a period was gathered and is not processed yet
            await self._committer.commit_now({p: self._committable(running) for p, running in leaving.items()})
        async with unwrapped() as tasks:  # side by side: their locks are released in one transaction
            for running in leaving.values():
                tasks.start_soon(self._member.release_gate, running.gate)
        for partition in leaving:  # only now: if we are cancelled before, close() closes them
            self._running.pop(partition, None)

    async def leave(self) -> None:
        """Stop all partitions for good. In a managed group it returns when they are assigned to others, or after some time."""
        self._member.leave()
        await self.stop(self.partitions)
        await self._member.handed_over()

    @property
    def done(self) -> bool:
        """True when every partition has ended."""
        return all(running.ended.is_set() for running in self._running.values())

    async def wait_done(self, *, at_least: int = 0) -> None:
        """Wait until there are at least so many partitions and every one of them has ended."""
        while len(self._running) < at_least or not self.done:
            await self._done.wait()

    async def close(self) -> None:
        """Close all gates, also while we are being cancelled.

        If all partitions have finished, their reports stay. Otherwise we leave early, and release all locks.
        """
        if self._source.managed and not self._member.progress.withheld:  # the next owner resumes there
            with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                await self._committer.commit_now(self.positions())
        running, self._running = self._running, {}
        gates = [one.gate for one in running.values()]
        early = any(gate.progress.state is not PartitionState.FINISHED for gate in gates)
        try:
            await _close(gates, self._member if early and self._member.progress.limit.mode is Mode.GATED else None)
        finally:
            if self.at_close is not None:
                self.at_close()

    @property
    def partitions(self) -> frozenset[Partition]:
        """The partitions that are being read."""
        return frozenset(self._running)

    def positions(self) -> dict[Partition, int]:
        """Return the offset of each partition that may be committed."""
        return {p: self._committable(running) for p, running in self._running.items()}

    def _committable(self, running: _Running) -> int:
        """Return the offset at which another member may resume.

        Under lookahead it does not lie behind the place where the partition crossed a boundary that is still open: that place
        is the cut to come, and a member that starts behind it could not report it; see [clamp] in docs/explanation/protocol.md.
        It does not lie before the last cut either: there another member was further than this one.
        """
        reached = running.consumer.next_offset
        if self._member.progress.limit.mode is Mode.GATED:
            crossed = [int(offset) for _, offset in running.gate.progress.crossings.values() if offset is not None]
            reached = min([reached, *crossed])
        return max(reached, int(running.gate.resume_offset or 0))


async def _close(gates: Iterable[Gate], release_by: Member | None = None) -> None:
    """Close gates side by side, also while we are being cancelled; waits at most _CLOSE_SECONDS for the store.

    ``release_by``: this member releases the locks of finished partitions as well: without the others no cut would hold them.
    """

    async def close_one(gate: Gate) -> None:
        await gate.__aexit__(None, None, None)
        if release_by is not None:
            await release_by.release_partition(gate.partition)

    with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
        async with anyio.create_task_group() as tasks:
            for gate in gates:
                tasks.start_soon(close_one, gate)


async def run_fixed(partition_tasks: PartitionTasks, mine: Iterable[Partition], group: Group) -> None:
    """Read these partitions to their end."""
    await partition_tasks.start_each(mine)
    await partition_tasks.wait_done()
    await group.membership.settled()


async def run_managed(partition_tasks: PartitionTasks, group: Group) -> None:
    """Read the partitions that the group's leader assigns to us, until the run has ended for all.

    After a release no end is written to the store. Then it returns when all assigned partitions have ended.
    """
    member = group.membership

    def over() -> bool:
        released = member.progress.limit.mode is Mode.OPEN and bool(partition_tasks.partitions)
        return released and partition_tasks.partitions == member.assigned and partition_tasks.done

    await follow_assignment(member, partition_tasks.start, partition_tasks.stop, over)


async def commit_after_release(
    partition_tasks: PartitionTasks, committer: Committer, member: Member, released: asyncio.Event
) -> None:
    """Commit at intervals after a release: no period closes any more, and no cut is written. Runs until cancelled."""
    await released.wait()
    before: dict[Partition, int] = {}
    while True:
        if not member.progress.withheld and before != (now := partition_tasks.positions()):
            before = now
            committer.note(now)
        await anyio.sleep(_COMMIT_SECONDS)  # time is the event: no period closes that would call for a commit
