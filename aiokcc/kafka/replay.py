"""Level 2 of the API: ``aiokcc.replay`` reads Kafka topics in step, with any number of other processes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

import anyio.abc

from aiokcc.background import Background
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import format_time
from aiokcc.core.run import Bounds
from aiokcc.core.weighted import Weight
from aiokcc.credentials import KafkaConfig
from aiokcc.errors import PartitionError, UsageError
from aiokcc.kafka.cluster import Cluster
from aiokcc.kafka.consumer_policy import ConsumerPolicy, describe_source
from aiokcc.kafka.handlers import check_handler
from aiokcc.kafka.handoff import Handoff
from aiokcc.kafka.own_store import choose_store
from aiokcc.kafka.partition_consumer import PartitionConsumer
from aiokcc.kafka.period_collector import PeriodCollector
from aiokcc.kafka.reader import Reader
from aiokcc.kafka.source_options import SourceOptions, consumer_keywords
from aiokcc.kafka.summary import Period, Summary
from aiokcc.runtime.entry import Block, known_keywords
from aiokcc.runtime.group import Group, join
from aiokcc.runtime.member_health import MemberHealth
from aiokcc.runtime.options import GroupOptions
from aiokcc.runtime.status import STANDSTILL_SECONDS
from aiokcc.runtime.store_offsets import find_offsets
from aiokcc.stores.port import Store

__all__ = ["Period", "Replay", "Summary", "replay"]


@known_keywords("aiokcc.replay", consumer_keywords)
def replay(
    *topics: str,
    pattern: str | None = None,
    bootstrap_servers: str | list[str] | None = None,
    kafka: KafkaConfig = None,
    store: str | Store,
    period: str | int | timedelta,
    start: str | int | datetime = "earliest",
    end: str | int | datetime | None = "now",
    partitions: Mapping[str, list[int]] | list[tuple[str, int]] | Callable[[str, int], object] | None = None,
    group_id: str | None = None,
    assignment: Literal["managed", "group", "fixed"] | None = None,
    subscription: object = None,
    assignor: str = "sticky",
    weight: Weight | None = None,
    join_window: float | None = None,
    expect: int | None = None,
    commit: bool = True,
    offset_storage: Literal["kafka", "store"] = "kafka",
    timestamp: Callable[[Any], int] | None = None,
    lateness: str | int | timedelta | Mapping[str, str | int | timedelta] | None = None,
    late: Literal["deliver", "drop", "dead-letter"] = "deliver",
    poison: Literal["raise", "skip", "cap", "dead-letter"] = "raise",
    on_error: Literal["raise", "dead-letter"] = "raise",
    retries: int = 0,
    dead_letter: Callable[[Any, str], Any] | None = None,
    lookahead: int | Literal["auto"] = 0,
    max_apart: str | int | timedelta | None = None,
    caught_up: str | int | timedelta = "follow",
    ahead: str | int | timedelta = "1h",
    buffer_records: int = 200,
    buffer_bytes: int = 1024 * 1024,
    fast_fetch: bool = True,
    traces: bool = False,
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed",
    member: str | None = None,
    session_timeout: float = 10.0,
    connect_timeout: float = 10.0,
    claim_timeout: float | None = None,
    clock: Callable[[], int] | None = None,
    share_host: bool = False,
    store_options: Mapping[str, Any] | None = None,
    **consumer: Any,
) -> AbstractAsyncContextManager[Replay]:
    """Replay topics in step: ``async with aiokcc.replay("orders", "payments", ...) as replay: await replay.run(handler)``.

    Any number of processes with the same settings form one group under the store's root. The arguments are checked at once.

    :param pattern: instead of topics, a regular expression over the cluster's topics
    :param bootstrap_servers: ``"host:port"``, or several; by default ``bootstrap.servers`` of ``kafka``
    :param kafka: Kafka's client properties: a file such as ``"client.properties"``, or a mapping, with ``security.protocol``,
        ``ssl.*`` (PEM) and ``sasl.*``; a value may be ``env:NAME`` or ``file:PATH``
    :param store: ``zk://h1:2181,h2:2181/root``, ``zks://…`` (TLS), ``"kafka"`` (a topic of the Kafka that is read) or
        ``kafka://h1:9092/root``, ``memory://name`` (one process), or a store
    :param period: how far the limit moves at a time: ``"1m"``, a timedelta, or milliseconds
    :param start: a time, ``"earliest"``, or ``"committed"``: the offsets in ``offset_storage`` when the run is founded, whoever
        committed them; a partition without one starts at its earliest record
    :param end: a time, ``"now"`` (the default: the ends of the logs when the group is founded; a transaction whose marker has
        not been written by then, which may be a moment after its commit was answered, lies beyond it), or None to follow
        until :meth:`Replay.stop`: then new partitions, and new topics that match the pattern, join while the replay runs
    :param partitions: which partitions this process runs; by default all. A list, or a function of topic and number that
        returns whether this process runs it, as ``lambda topic, number: number % 3 == 0``: only such a rule, or the default,
        claims partitions that join later. A partition in no process's list blocks the group until a process is started that
        has it
    :param group_id: the Kafka consumer group that offsets are committed for as periods close. Without ``partitions`` Kafka
        also assigns the partitions, and may move them while the replay runs
    :param assignment: ``"managed"``: the group's own leader assigns the partitions to the processes that are there, and moves
        them as processes come and go; ``"group"``: Kafka's consumer group does; ``"fixed"``: ``partitions`` lists them. By
        default ``"group"`` if there is a ``group_id`` and no ``partitions``, otherwise ``"fixed"``
    :param subscription: managed: the partitions that may be assigned to this process; see :func:`aiokcc.connect`, also for
        ``assignor``, ``weight``, ``join_window`` and ``expect``
    :param commit: whether offsets are committed at all
    :param offset_storage: where offsets are committed: ``"kafka"``, under ``group_id`` if there is one, or ``"store"``: in the
        store, below its root as ``offsets/<topic>/<partition>``. Either way a run resumes at its last cut, or at what it has
        committed past it
    :param timestamp: event time from a record, in milliseconds; Kafka's own timestamp by default
    :param lateness: how far a record may lie behind an earlier one of its partition, for all topics or by topic
    :param late: what is done with a record whose period has closed
    :param poison: what is done with a record without a usable timestamp. ``"cap"`` gives it the greatest one of its partition
        so far, or the start of the open period; after a restart that is the same period. But the clock decides what is too far
        ahead: a timestamp that is too far ahead now may be usable after a restart
    :param on_error: what is done with a record whose handler raised, after ``retries`` more tries
    :param dead_letter: a function of (record, reason), for the policies ``"dead-letter"``
    :param buffer_records: how many records of a partition are unpacked at a time, and held at most while it waits
    :param buffer_bytes: how much of a partition is held at most beside them, as the broker has sent it, a single larger batch
        excepted. In a run with an end half of it is used up while the other half is fetched, so it sets aiokafka's
        ``max_partition_fetch_bytes`` to half of it; elsewhere, with deserializers, in a Kafka group and with
        ``fast_fetch=False``, to all of it
    :param fast_fetch: whether records are taken out of aiokafka's fetcher directly, which is faster and relies on its insides.
        Where the fetcher is not built as this version of aiokcc knows it, and with False, aiokafka's ``getmany`` is used. The
        records are the same
    :param traces: whether there is an OpenTelemetry span for each period, and in :meth:`Replay.run` and
        :meth:`Replay.run_batches` one for each batch of records, linked to the spans in which the records were sent
    :param share_host: whether the processes of this host that set it share one session and one report; see
        :func:`aiokcc.connect`. Not with ``assignment="managed"``, and not without an end
    :param store_options: for the store behind a URL
    :param consumer: any other setting of aiokafka's consumer: security, fetch sizes, deserializers, ``client_id``. It replaces
        what ``kafka`` says

    For ``lookahead``, ``max_apart``, ``caught_up``, ``ahead``, ``member`` and the timeouts see :func:`aiokcc.connect`.
    """
    source = SourceOptions.check(
        topics,
        pattern=pattern,
        bootstrap_servers=bootstrap_servers,
        kafka=kafka,
        start=start,
        end=end,
        partitions=partitions,
        group_id=group_id,
        assignment=assignment,
        commit=commit,
        offset_storage=offset_storage,
        isolation_level=isolation_level,
        consumer=consumer,
    )
    policy = ConsumerPolicy.check(
        source,
        timestamp=timestamp,
        lateness=lateness,
        late=late,
        poison=poison,
        on_error=on_error,
        retries=retries,
        dead_letter=dead_letter,
        buffer_records=buffer_records,
        buffer_bytes=buffer_bytes,
        fast_fetch=fast_fetch,
        traces=traces,
    )
    if store_options is not None and not isinstance(store_options, Mapping):
        raise UsageError(f"store_options is {store_options!r}; expected a mapping of options for the store")
    options = GroupOptions.check(
        period=period,
        start=format_time(source.start) if isinstance(source.start, int) else None,
        end=format_time(source.end) if isinstance(source.end, int) else None,
        lookahead=lookahead,
        max_apart=max_apart,
        caught_up=caught_up,
        ahead=ahead,
        member=member,
        session_timeout=session_timeout,
        connect_timeout=connect_timeout,
        claim_timeout=claim_timeout,
        clock=clock,
        source=describe_source(source, policy),
        grows=source.end is None,
        newer="partitions" if source.pattern is None else "topics",
        assignment="managed" if source.managed else None,
        subscription=subscription,
        assignor=assignor,
        weight=weight,
        join_window=join_window,
        expect=expect,
        share_host=share_host,
    )
    chosen = choose_store(store, source, store_options)
    return Block(_replaying(source, policy, options, chosen), "aiokcc.replay", "replay")


@asynccontextmanager
async def _replaying(
    source: SourceOptions, policy: ConsumerPolicy, options: GroupOptions, store: Store
) -> AsyncIterator[Replay]:
    cluster, clock = Cluster(source, options.connect_timeout), options.clock
    async with cluster.connected():
        everything = await cluster.partitions(await cluster.topics())
        outside = sorted((source.partitions or everything) - everything)
        if outside:
            count = sum(p.topic == outside[0].topic for p in everything)
            raise PartitionError(f"{outside[0]} does not exist; {outside[0].topic} has {count} partitions, from 0 up")
        mine = frozenset(filter(source.wants, everything))
        if not mine and source.end is not None:
            raise UsageError("partitions= says of no partition that it is ours: this process would have nothing to do")

        async def resolve() -> Mapping[Partition, Bounds]:
            if source.start != "committed":
                return await cluster.bounds(everything, policy, clock())
            if source.offset_storage == "kafka":
                return await cluster.bounds(everything, policy, clock(), await cluster.commits(everything))
            async with store.session(connect_timeout=options.connect_timeout) as session:
                found = await find_offsets(store, session, everything)
            return await cluster.bounds(everything, policy, clock(), found)

        async with join(store, options, frozenset(everything), resolve) as group:
            if source.end is not None:  # partitions that were created after the run was founded are not part of it
                mine &= group.membership.settings.partitions
                newer = sorted((source.partitions or mine) - mine)
                if newer:
                    raise PartitionError(
                        f"{newer[0]} is newer than the run, and not part of it; leave it out of partitions="
                    )
            async with Background() as background:
                yield Replay(source, policy, cluster, group, mine, background.tasks)


class Replay:
    """A replay in this process. Read it once, with :meth:`run`, :meth:`run_batches`, ``async for`` or :meth:`periods`."""

    def __init__(
        self,
        source: SourceOptions,
        policy: ConsumerPolicy,
        cluster: Cluster,
        group: Group,
        mine: frozenset[Partition],
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        self.group = group
        self.summary = Summary()
        self._source = source
        self._member = group.membership
        self._reader = Reader(source, policy, cluster, group, mine, self.summary)
        self._tasks = tasks

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions that this process runs: those it owns while it reads, and those it will claim before that."""
        return tuple(sorted(self._reader.partitions))

    @property
    def busy(self) -> tuple[Partition, ...]:
        """The partitions of this process that may still have records before the limit: the others wait for these."""
        member_progress = self._member.progress
        return tuple(
            partition
            for partition, progress in member_progress.partitions.items()
            if progress.owned and not progress.arrived(member_progress.limit)
        )

    @property
    def bounds(self) -> Mapping[Partition, Bounds]:
        """The part of each log that the run replays, for all partitions: the first offset, and the offset behind the last."""
        return self._member.bounds

    async def health(self, *, stuck_after: float = STANDSTILL_SECONDS) -> MemberHealth:
        """Return whether this process is alive, in step, stuck, fenced, or without its store. Never raises, answers soon."""
        return await self.group.health(stuck_after=stuck_after)

    def stop(self) -> None:
        """Stop reading in this process in good order; call it from anywhere in its event loop, also from a handler.

        No further record starts, and running handlers end: ``async for`` ends with its present list of records, :meth:`periods`
        with its present period. If offsets are committed, they are committed up to here. Then the locks are released, and
        :meth:`run` returns, or the loop ends. Other processes are not stopped, and the limit waits until the partitions are
        owned again. Their next owner resumes here if offsets are committed, and otherwise where the last period closed. To end
        at once, without waiting for a handler, cancel instead.
        """
        self._reader.stop()

    async def run(self, handler: Callable[[Any], Any]) -> Summary:
        """Hand every record to the handler, in one task per partition; return the summary when the run has ended.

        The handler may be a coroutine function or a plain one. When it returns, the record counts as processed. If it raises,
        the replay stops with a HandlerError that names the record, or does what ``on_error`` says; the limit does not pass
        a record that was not handled.
        """
        check_handler(handler, "run", "a record")

        async def work(consumer: PartitionConsumer) -> None:
            await consumer.run(handler)

        await self._reader.read(work)
        return self.summary

    async def run_batches(self, handler: Callable[[list[Any]], Any]) -> Summary:
        """As :meth:`run`, with lists of records of one partition and one period.

        Records that are late have no period left: they come in one list with those of the period that is open by then.
        """
        check_handler(handler, "run_batches", "a list of records")

        async def work(consumer: PartitionConsumer) -> None:
            await consumer.run_batches(handler)

        await self._reader.read(work)
        return self.summary

    async def __aiter__(self) -> AsyncGenerator[Any, None]:
        """Iterate over all records in the order of periods. Asking for the next record says that the last one is processed.

        If the loop is left early, the partitions are released, at the latest when the block ends.
        """
        handoff = Handoff[tuple[PartitionConsumer, list[Any]]]()

        async def work(consumer: PartitionConsumer) -> None:
            await consumer.run_batches(lambda records: handoff.put((consumer, records)), internal=True)

        self._tasks.start_soon(handoff.run_producer, partial(self._reader.read, work))
        try:
            while (item := await handoff.get()) is not None:
                consumer, records = item
                for record in records:
                    if await consumer.may_start(record):
                        yield record
                        self.summary.records += 1
                handoff.item_done()
        finally:
            await handoff.close()

    async def periods(self) -> AsyncGenerator[Period, None]:
        """Iterate over the periods that have records here, each complete, with its records by partition and its cut.

        Asking for the next period says that this one is processed; only then does the limit move. If the loop is left early,
        the partitions are released, at the latest when the block ends. After a release there are no periods: records come as
        they are read. With lookahead the periods come in order all the same, and so many more of them are gathered, in memory,
        while one is processed. Raises UsageError where partitions may move.
        """
        if self._source.by_group or self._source.managed:
            raise UsageError('periods() needs partitions that stay: give partitions=, or assignment="fixed"')
        handoff = Handoff[Period]()
        self._tasks.start_soon(handoff.run_producer, PeriodCollector(self._reader, handoff).run)
        try:
            while (period := await handoff.get()) is not None:
                yield period
                self.summary.records += sum(map(len, period.records.values()))
                handoff.item_done()
        finally:
            await handoff.close()
