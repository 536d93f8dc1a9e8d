"""Reads the partitions of one process: connects the consumer, starts the tasks, and shuts them down in good order.

The tasks of a reading: the fetch loop, the committer, one task for each partition, and the one that follows the assignment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
from aiokafka import AIOKafkaConsumer

from aiokcc.errors import UsageError
from aiokcc.exception_groups import unwrapped
from aiokcc.kafka.cluster import consumer_settings, stopping
from aiokcc.kafka.fetch_loop import FetchLoop
from aiokcc.kafka.kafka_group import run_kafka_group
from aiokcc.kafka.offset_committer import Committer, make_committer
from aiokcc.kafka.partition_tasks import (
    PartitionTasks,
    Work,
    commit_after_release,
    run_fixed,
    run_managed,
)
from aiokcc.kafka.summary import lookahead_gain
from aiokcc.kafka.telemetry import OPERATION, Telemetry
from aiokcc.kafka.topic_discovery import claim_new, discover
from aiokcc.kafka.tracing import Tracing
from aiokcc.runtime.listener import Listener
from aiokcc.runtime.metrics import Observed, observing

if TYPE_CHECKING:
    from aiokcc.core.partitions import Partition
    from aiokcc.kafka.cluster import Cluster
    from aiokcc.kafka.consumer_policy import ConsumerPolicy
    from aiokcc.kafka.source_options import SourceOptions
    from aiokcc.kafka.summary import Summary
    from aiokcc.runtime.group import Group

__all__ = ["Reader", "Steps"]

log = logging.getLogger("aiokcc.kafka")

_UNLIMITED_MS: Final = 2**31 - 1


class Reader:
    """Reads the partitions of this process once, until the run has ended or :meth:`stop` is called."""

    def __init__(
        self,
        source: SourceOptions,
        policy: ConsumerPolicy,
        cluster: Cluster,
        group: Group,
        mine: frozenset[Partition],
        summary: Summary,
    ) -> None:
        self._source = source
        self.group = group
        self._policy = policy
        self._cluster = cluster
        self._member = group.membership
        self._mine = mine
        self._summary = summary
        self._used = False
        self._partition_tasks: PartitionTasks | None = None
        self._until_stopped = anyio.CancelScope()
        self.period_lock = anyio.Lock()
        """Held while the user works on a period: no partition is stopped before that ends."""

    @property
    def partitions(self) -> frozenset[Partition]:
        """The partitions that this process owns while it reads, and those it will claim before that."""
        return self._mine if self._partition_tasks is None else self._partition_tasks.partitions

    @property
    def stopped(self) -> bool:
        """True once :meth:`stop` was called."""
        return self._until_stopped.cancel_called

    def stop(self) -> None:
        """Start no further record, and have :meth:`read` drain the partitions and return."""
        self._until_stopped.cancel()
        if self._partition_tasks is not None:
            self._partition_tasks.revoke()

    async def read(self, work: Work, listener: Listener | None = None) -> None:
        """Do this work on each partition until the run has ended or is stopped; then commit, and release what has not finished.

        ``listener`` is notified while partitions run, and not while they are released. Raises UsageError at the second call,
        and the first error of a task. If it is cancelled, it releases the locks and commits nothing, but in a managed group.
        """
        if self._used:
            raise UsageError("this replay has been read already; open another one, under another root to run it again")
        self._used = True
        began = time.monotonic()
        source, policy, member = self._source, self._policy, self._member
        if isinstance(source.start, int):
            member.progress.closed(source.start)
        fetch_ahead = policy.fast_fetch and source.can_fetch_ahead
        size = max(1, policy.buffer_bytes // 2) if fetch_ahead else policy.buffer_bytes
        bounded = {"max_partition_fetch_bytes": size, **consumer_settings(source)}
        # Nothing polls while all partitions wait at the gate or in a handler. aiokafka would leave Kafka's group then, and
        # would join again only when it is polled, which a process without partitions never does. The store's session shows
        # that we live.
        consumer = AIOKafkaConsumer(**bounded, group_id=source.group_id, max_poll_interval_ms=_UNLIMITED_MS)
        async with stopping(consumer), contextlib.AsyncExitStack() as watched:
            await self._cluster.ask(consumer.start(), "connect to")
            fetch_loop = FetchLoop(
                consumer,
                self._cluster,
                member,
                assigns=not source.by_group,
                fast=policy.fast_fetch,
                fetch_ahead=fetch_ahead,
                batch=policy.buffer_records,
            )
            commits = make_committer(source, consumer, self._cluster, member, self._summary)
            steps = Steps(self.group, commits, self._summary)
            steps.limit_moved({})  # the state before it listens
            member.add_listener(steps)
            if listener is not None:
                member.add_listener(listener)
            tracing = Tracing(source, member, self._summary) if policy.traces else None
            if tracing is not None:
                tracing.begin_period()
                member.add_listener(tracing)
            telemetry = Telemetry(member, tracing)
            partition_tasks: PartitionTasks | None = None
            try:
                async with unwrapped() as tasks:
                    watched.enter_context(observing(partial(self._observe, fetch_loop, telemetry)))
                    self._partition_tasks = partition_tasks = PartitionTasks(
                        source, policy, self.group, fetch_loop, commits, self._summary, work, tasks, telemetry
                    )
                    tasks.start_soon(commits.run)
                    tasks.start_soon(fetch_loop.run)
                    tasks.start_soon(commit_after_release, partition_tasks, commits, member, steps.released)
                    with self._until_stopped:
                        await self._follow_assignment(partition_tasks, consumer)
                    if self.stopped:
                        async with self.period_lock:
                            await partition_tasks.leave()
                    else:
                        await commits.commit_now(partition_tasks.positions())
                    tasks.cancel_scope.cancel()
            finally:
                member.leave()
                if listener is not None:
                    member.remove_listener(listener)  # a period is not complete because partitions are released
                if partition_tasks is not None:
                    await partition_tasks.close()  # only now: no task waits in a gate any more
                member.remove_listener(steps)
                if tracing is not None:
                    member.remove_listener(tracing)
                    tracing.end_period()
                self._log_summary()
                self._summary.seconds += time.monotonic() - began

    async def _follow_assignment(self, partition_tasks: PartitionTasks, consumer: AIOKafkaConsumer) -> None:
        """Read the partitions that are ours, in the way in which they are assigned, until all have ended."""
        source, group = self._source, self.group
        grows = source.end is None
        async with unwrapped() as tasks:
            if grows:
                tasks.start_soon(discover, source, self._cluster, group)
            if source.managed:
                await run_managed(partition_tasks, group)
            elif source.by_group:
                await run_kafka_group(partition_tasks, consumer, source, group)
            elif grows:
                tasks.start_soon(claim_new, partition_tasks, group, source.wants)
                await partition_tasks.wait_done(at_least=1)
            else:
                await run_fixed(partition_tasks, self._mine, group)
            tasks.cancel_scope.cancel()

    def _observe(self, fetch_loop: FetchLoop, telemetry: Telemetry) -> Iterator[Observed]:
        """Yield what metrics tell of this process: what the summary counts anyway."""
        who, summary = self._member.measurements.labels, self._summary
        yield Observed("messaging.client.consumed.messages", summary.records, {**OPERATION, **who})
        yield Observed("aiokcc.records.late", summary.late, who)
        yield Observed("aiokcc.records.skipped", summary.skipped, who)
        yield Observed("aiokcc.records.dead_lettered", summary.dead_lettered, who)
        yield Observed("aiokcc.records.retried", summary.retried, who)
        yield Observed("aiokcc.buffer.records", fetch_loop.buffered, who)
        if (size := fetch_loop.buffered_bytes) is not None:
            yield Observed("aiokcc.buffer.bytes", size, who)
        yield from telemetry.observe()

    def _log_summary(self) -> None:
        name, summary = self._member.name, self._summary
        if summary.late:
            log.warning("%s: %d records came late in this replay", name, summary.late, extra={"member": name})
        if summary.outside:
            text = "%s: %d records lay before the start of this replay and were left out"
            log.info(text, name, summary.outside, extra={"member": name})
        if summary.round_trips:
            gain = lookahead_gain(summary.round_trips, summary.waited)
            log.info("%s: %s", name, gain, extra={"member": name})


class Steps(Listener):
    """Follows the limit: counts the periods that closed, and has their offsets committed."""

    def __init__(self, group: Group, committer: Committer, summary: Summary) -> None:
        self._group = group
        self._committer = committer
        self._summary = summary
        self.released = asyncio.Event()
        """Set when the gate was opened for all."""

    def limit_moved(self, positions: dict[Partition, int]) -> None:
        member = self._group.membership
        self._summary.periods = member.closed
        self._summary.waited, self._summary.round_trips = member.waits.seconds, member.waits.round_trips
        self._committer.note(positions)
        if self._group.released:
            self.released.set()
