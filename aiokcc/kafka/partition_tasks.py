"""The partitions a process reads at present: their locks, streams and tasks; and who says which they are.

*Fixed*: all partitions, or an explicit list, taken once. *By a Kafka consumer group*: Kafka assigns and revokes them while
the replay runs. *Managed*: the group's own leader does, through the store. A revoked partition is given up in this order: its
stream starts no further record, the handler ends, the offset is committed, the lock goes back. Until its next owner has taken
the lock and reported, the partition is in nobody's hands, and the limit waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition

from aiokcc.core.limit import Mode
from aiokcc.core.partition_progress import PartitionState
from aiokcc.core.partitions import Partition
from aiokcc.errors import PartitionRevoked, RunEnded
from aiokcc.kafka.partition_consumer import PartitionConsumer
from aiokcc.runtime.assignment_follower import follow_assignment
from aiokcc.runtime.signal import Signal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiokcc.kafka.fetch_loop import FetchLoop
    from aiokcc.kafka.offset_committer import Committer
    from aiokcc.kafka.replay import Summary
    from aiokcc.kafka.settings import ReplaySettings
    from aiokcc.runtime.gate import Gate
    from aiokcc.runtime.group import Group
    from aiokcc.runtime.member import Member

__all__ = ["PartitionTasks", "by_group", "commit_released", "fixed", "managed", "unwrapped"]

log = logging.getLogger("aiokcc.kafka")

_CLOSE_SECONDS: Final = 2.0
_COMMIT_SECONDS: Final = 1.0

Work = Callable[[PartitionConsumer], Awaitable[None]]


@dataclass(slots=True)
class _Running:
    gate: Gate
    stream: PartitionConsumer
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class PartitionTasks:
    """What is being read. Every task of it belongs to one task group, whose end is the end of all."""

    def __init__(
        self,
        settings: ReplaySettings,
        group: Group,
        pump: FetchLoop,
        committer: Committer,
        summary: Summary,
        work: Work,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        self._settings = settings
        self._coordinator = group
        self._member = group._member
        self._pump = pump
        self._committer = committer
        self._summary = summary
        self._work = work
        self._tasks = tasks
        self._running: dict[Partition, _Running] = {}
        self.at_close: Callable[[], None] | None = None
        """Called when everything was given up, in whatever way."""
        self._done = Signal()

    async def begin(self, partitions: Iterable[Partition]) -> None:
        """Take the locks, side by side; when all are ours, read. Cancelled or failed before that, it leaves nothing behind."""
        gates = self._gates(partitions)
        opened: dict[Partition, Gate] = {}

        async def open_one(partition: Partition, gate: Gate) -> None:
            opened[partition] = await gate.__aenter__()

        try:
            async with unwrapped() as opening:
                for partition, gate in gates.items():
                    opening.start_soon(open_one, partition, gate)
            await self._start(gates)
        except BaseException:
            await _close(opened.values())
            raise

    async def begin_as_they_come(self, partitions: Iterable[Partition]) -> None:
        """Take the locks, and read each partition as soon as its lock is ours. Returns when the last of them is being read.

        So a member that stands by for the partitions of several others takes over from each of them.
        """
        opened: dict[Partition, Gate] = {}
        some = Signal()

        async def open_one(partition: Partition, gate: Gate) -> None:
            opened[partition] = await gate.__aenter__()
            some.set()

        try:
            async with unwrapped() as opening:
                gates = self._gates(partitions)
                for partition, gate in gates.items():
                    opening.start_soon(open_one, partition, gate)
                while gates.keys() - self._running.keys():
                    await some.wait()
                    ready = dict(opened)  # those of one transaction come together
                    await self._start(ready)
                    for partition in ready:
                        del opened[partition]
        except BaseException:
            await _close(opened.values())
            raise

    def _gates(self, partitions: Iterable[Partition]) -> dict[Partition, Gate]:
        gates = {p: self._coordinator.gate(p.topic, p.number) for p in sorted(partitions)}
        for gate in gates.values():
            gate.skips_closed = True
        return gates

    async def _start(self, gates: Mapping[Partition, Gate]) -> None:
        """Read each partition from where it was left: the last cut, or what was committed since."""
        committed = await self._committer.committed(gates)
        streams = {}
        for partition, gate in gates.items():
            bounds = self._member.bounds[partition]
            stream = PartitionConsumer(
                self._settings, gate, bounds, self._member, self._summary, committed.get(partition, 0)
            )
            stream.pump = self._pump
            gate.mark = partial(getattr, stream, "next_offset")
            streams[partition] = stream
            self._running[partition] = _Running(gate, stream)
        self._pump.add(streams)
        for partition in streams:
            self._tasks.start_soon(self._run, self._running[partition])

    async def _run(self, running: _Running) -> None:
        try:
            await self._work(running.stream)
        except (RunEnded, PartitionRevoked):
            pass
        finally:
            running.ended.set()
            self._done.set()
            self._member.moved.set()

    def halt(self) -> None:
        """Start no further record, from now on; :meth:`end` does the rest."""
        for running in self._running.values():
            self._member.revoke(running.gate)

    async def end(self, partitions: Iterable[Partition]) -> None:
        """Give partitions up: no further record starts, the running handler ends, commit, give the lock back."""
        leaving = {p: self._running[p] for p in partitions if p in self._running}
        for running in leaving.values():
            self._member.revoke(running.gate)
        self._pump.remove(leaving)
        for running in leaving.values():
            await running.ended.wait()
        if not self._member.progress.withheld:  # else somebody has gathered it and not processed it yet
            await self._committer.flush({p: self._reached(running) for p, running in leaving.items()})
        async with unwrapped() as tasks:  # side by side: their locks go back in one transaction
            for running in leaving.values():
                tasks.start_soon(self._member.release_gate, running.gate)
        for partition in leaving:  # only now: who is cancelled on the way has still to be closed
            self._running.pop(partition, None)

    @property
    def done(self) -> bool:
        """Whether every stream has ended."""
        return all(running.ended.is_set() for running in self._running.values())

    async def all_done(self, *, at_least: int = 0) -> None:
        """Wait until there are so many streams and every one of them has ended."""
        while len(self._running) < at_least or not all(running.ended.is_set() for running in self._running.values()):
            await self._done.wait()

    async def close(self) -> None:
        """Close all gates. If all have finished, their word stands; else we leave early, and all of them are given up."""
        if self._settings.managed and not self._member.progress.withheld:  # whoever is given them goes on from here
            with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                await self._committer.flush(self.positions())
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
        """What is being read."""
        return frozenset(self._running)

    def positions(self) -> dict[Partition, int]:
        """The next offset of each partition, as it may be committed."""
        return {p: self._reached(running) for p, running in self._running.items()}

    def _reached(self, running: _Running) -> int:
        """Where somebody else may go on.

        Under lookahead no further than where the stream crossed a boundary that is still open: that crossing is the cut to
        come, and who starts behind it could not tell it. And not before the last cut: there others were further than we.
        """
        reached = running.stream.next_offset
        if self._member.progress.limit.mode is Mode.GATED:
            crossed = [int(offset) for _, offset in running.gate.progress.crossings.values() if offset is not None]
            reached = min([reached, *crossed])
        return max(reached, int(running.gate.resume_offset or 0))


async def _close(gates: Iterable[Gate], gives_up: Member | None = None) -> None:
    """Close gates side by side, also where we are being cancelled; a store that is away does not keep us.

    ``gives_up``: of this member finished ones are given up as well. No cut that holds them would come without the others.
    """

    async def close_one(gate: Gate) -> None:
        await gate.__aexit__(None, None, None)
        if gives_up is not None:
            await gives_up.release_partition(gate.partition)

    with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
        async with anyio.create_task_group() as tasks:
            for gate in gates:
                tasks.start_soon(close_one, gate)


async def fixed(reading: PartitionTasks, mine: Iterable[Partition], group: Group) -> None:
    """Read these partitions to their end."""
    await reading.begin_as_they_come(mine)
    await reading.all_done()
    await group._member.settled()


async def managed(reading: PartitionTasks, group: Group) -> None:
    """Read what the group's leader assigns to us, until the run has ended for all.

    After a release no end is written: then we are done with the last of what is ours, and what we leave goes to whoever stays.
    """
    member = group._member

    def over() -> bool:
        released = member.progress.limit.mode is Mode.OPEN and bool(reading.partitions)
        return released and reading.partitions == member.assigned and reading.done

    await follow_assignment(member, reading.begin, reading.end, over)


async def commit_released(
    reading: PartitionTasks, committer: Committer, member: Member, released: asyncio.Event
) -> None:
    """After a release no period closes any more, and no cut is written: commit what is done as time goes by instead."""
    await released.wait()
    before: dict[Partition, int] = {}
    while True:
        if not member.progress.withheld and before != (now := reading.positions()):
            before = now
            committer.note(now)
        await anyio.sleep(_COMMIT_SECONDS)  # time is the event: nothing else says that it is worth a commit


async def by_group(reading: PartitionTasks, consumer: AIOKafkaConsumer, settings: ReplaySettings, group: Group) -> None:
    """Read what Kafka assigns to us, until the run has ended for all."""
    member = group._member
    orders, desk = anyio.create_memory_object_stream[_Order](100)
    starts = {TopicPartition(*p): bounds.start for p, bounds in member.bounds.items()}
    listener = _Listener(consumer, orders, starts, grows=settings.end is None)
    if settings.pattern is None:
        consumer.subscribe(list(settings.topics), listener=listener)
    else:
        consumer.subscribe(pattern=f"^(?:{settings.pattern.pattern})$", listener=listener)
    reading.at_close = listener.dismiss  # not before: what Kafka takes away can no longer be committed
    with desk, orders:
        async with unwrapped() as tasks:
            tasks.start_soon(_obey, reading, desk)
            while member.progress.limit.mode is not Mode.END and member.failure is None:
                await member.moved.wait()
            tasks.cancel_scope.cancel()


@dataclass(slots=True)
class _Order:
    partitions: frozenset[Partition]
    ours: bool
    done: asyncio.Event = field(default_factory=asyncio.Event)


async def _obey(reading: PartitionTasks, desk: anyio.abc.ObjectReceiveStream[_Order]) -> None:
    """Carry out assignments and revocations one after the other; a revocation ends an assignment that still waits for locks."""
    async for order in desk:
        if order.ours:
            await _begin_unless_revoked(reading, order, desk)
        else:
            await reading.end(order.partitions)
            order.done.set()


async def _begin_unless_revoked(
    reading: PartitionTasks, order: _Order, desk: anyio.abc.ObjectReceiveStream[_Order]
) -> None:
    """A lock may take as long as its last owner's session; meanwhile Kafka may have changed its mind."""
    next_order: _Order | None = None
    async with unwrapped() as tasks:

        async def begin() -> None:
            await reading.begin(order.partitions)
            tasks.cancel_scope.cancel()

        tasks.start_soon(begin)
        next_order = await desk.receive()
        tasks.cancel_scope.cancel()
    if next_order is not None:
        await reading.end(next_order.partitions if not next_order.ours else ())
        next_order.done.set()
        if next_order.ours:
            await _begin_unless_revoked(reading, next_order, desk)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Passes on what Kafka says. A revocation is answered when the partitions have been given up, and not before."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        orders: anyio.abc.ObjectSendStream[_Order],
        starts: dict[TopicPartition, int],
        *,
        grows: bool,
    ) -> None:
        self._consumer = consumer
        self._orders = orders
        self._starts = starts
        self._grows = grows
        self._waiting: set[asyncio.Event] = set()
        self._dismissed = False

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        for tp in assigned:
            # Somewhere valid, so that nothing is fetched from nowhere; the true place follows with the lock.
            self._consumer.seek(tp, self._starts.get(tp, 0))
        # A run with an end keeps the partitions it was founded with; Kafka assigns those that have come since as well.
        ours = assigned if self._grows else assigned & self._starts.keys()
        if ours:
            await self._say(_Order(frozenset(Partition(*tp) for tp in ours), ours=True), wait=False)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        if revoked:
            await self._say(_Order(frozenset(Partition(*tp) for tp in revoked), ours=False), wait=True)

    async def _say(self, order: _Order, *, wait: bool) -> None:
        if self._dismissed:
            return
        self._waiting.add(order.done)
        try:
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # all are being given up already
                await self._orders.send(order)
            if wait:
                await order.done.wait()
        finally:
            self._waiting.discard(order.done)

    def dismiss(self) -> None:
        """Nobody carries anything out any more: do not wait for it."""
        self._dismissed = True
        for event in self._waiting:
            event.set()


@asynccontextmanager
async def unwrapped() -> AsyncIterator[anyio.abc.TaskGroup]:
    """A task group whose first error comes out bare, as a caller would expect it from a plain call."""
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            real = (e for e in error.exceptions if not isinstance(e, asyncio.CancelledError))
            error = next(real, error.exceptions[0])
        raise error from error.__cause__
