"""Reads the partitions that Kafka assigns to this process as a member of a consumer group.

Kafka assigns and revokes partitions while the replay runs. A partition is read when its lock in the store is ours as well. A
revocation is answered when the lock has been released: until then Kafka gives the partition to nobody else.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition

from aiokcc.core.limit import Mode
from aiokcc.core.partitions import Partition
from aiokcc.exception_groups import unwrapped
from aiokcc.kafka.partition_tasks import PartitionTasks

if TYPE_CHECKING:
    from aiokcc.kafka.source_options import SourceOptions
    from aiokcc.runtime.group import Group

__all__ = ["run_kafka_group"]


async def run_kafka_group(
    partition_tasks: PartitionTasks, consumer: AIOKafkaConsumer, source: SourceOptions, group: Group
) -> None:
    """Read the partitions that Kafka assigns to us, until the run has ended for all."""
    member = group.membership
    sender, changes = anyio.create_memory_object_stream[_Change](100)
    starts = {TopicPartition(*p): bounds.start for p, bounds in member.bounds.items()}
    listener = _Listener(consumer, sender, starts, grows=source.end is None)
    if source.pattern is None:
        consumer.subscribe(list(source.topics), listener=listener)
    else:
        consumer.subscribe(pattern=f"^(?:{source.pattern.pattern})$", listener=listener)
    # Not before: offsets of partitions that Kafka has taken away cannot be committed.
    partition_tasks.at_close = listener.close
    with changes, sender:
        async with unwrapped() as tasks:
            tasks.start_soon(_apply_changes, partition_tasks, changes)
            while member.progress.limit.mode is not Mode.END and member.failure is None:
                await member.moved.wait()
            tasks.cancel_scope.cancel()


@dataclass(slots=True)
class _Change:
    """An assignment or a revocation by Kafka. ``done`` is set when it has been carried out."""

    partitions: frozenset[Partition]
    assigned: bool
    done: asyncio.Event = field(default_factory=asyncio.Event)


async def _apply_changes(partition_tasks: PartitionTasks, changes: anyio.abc.ObjectReceiveStream[_Change]) -> None:
    """Carry out assignments and revocations one after the other; a change cancels an assignment that still waits for locks."""
    async for change in changes:
        if change.assigned:
            await _start_unless_revoked(partition_tasks, change, changes)
        else:
            await partition_tasks.stop(change.partitions)
            change.done.set()


async def _start_unless_revoked(
    partition_tasks: PartitionTasks, change: _Change, changes: anyio.abc.ObjectReceiveStream[_Change]
) -> None:
    """Start to read, or stop waiting for the locks when the next change comes: a lock may take as long as a session lasts."""
    next_change: _Change | None = None
    async with unwrapped() as tasks:

        async def start() -> None:
            await partition_tasks.start(change.partitions)
            tasks.cancel_scope.cancel()

        tasks.start_soon(start)
        next_change = await changes.receive()
        tasks.cancel_scope.cancel()
    if next_change is not None:
        await partition_tasks.stop(next_change.partitions if not next_change.assigned else ())
        next_change.done.set()
        if next_change.assigned:
            await _start_unless_revoked(partition_tasks, next_change, changes)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Passes on what Kafka assigns and revokes. It answers a revocation when the locks have been released, and not before."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        sender: anyio.abc.ObjectSendStream[_Change],
        starts: dict[TopicPartition, int],
        *,
        grows: bool,
    ) -> None:
        self._consumer = consumer
        self._sender = sender
        self._starts = starts
        self._grows = grows
        self._waiting: set[asyncio.Event] = set()
        self._closed = False

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        for tp in assigned:
            # aiokafka needs a valid position before it fetches; the right one is set when the lock is ours.
            self._consumer.seek(tp, self._starts.get(tp, 0))
        # A run with an end keeps the partitions it was founded with; Kafka also assigns those that were created since.
        ours = assigned if self._grows else assigned & self._starts.keys()
        if ours:
            await self._send(_Change(frozenset(Partition(*tp) for tp in ours), assigned=True), wait=False)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        if revoked:
            await self._send(_Change(frozenset(Partition(*tp) for tp in revoked), assigned=False), wait=True)

    async def _send(self, change: _Change, *, wait: bool) -> None:
        if self._closed:
            return
        self._waiting.add(change.done)
        try:
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # all are being stopped already
                await self._sender.send(change)
            if wait:
                await change.done.wait()
        finally:
            self._waiting.discard(change.done)

    def close(self) -> None:
        """End every wait for a change to be carried out, and pass on no further one."""
        self._closed = True
        for event in self._waiting:
            event.set()
