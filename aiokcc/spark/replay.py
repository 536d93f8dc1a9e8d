"""Level 3 of the API: ``aiokcc.spark.replay`` computes each period with Spark, in step with the rest of the group."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

from anyio.from_thread import BlockingPortal, start_blocking_portal

from aiokcc.core.periods import format_time
from aiokcc.core.subscriptions import Subscription
from aiokcc.core.weighted import Weight
from aiokcc.credentials import KafkaClient, KafkaConfig
from aiokcc.errors import UsageError
from aiokcc.kafka.consumer_policy import ConsumerPolicy, describe_source
from aiokcc.kafka.own_store import choose_store
from aiokcc.kafka.source_options import SourceOptions, check_choice, check_count, consumer_keywords
from aiokcc.runtime.entry import known_keywords
from aiokcc.runtime.options import GroupOptions
from aiokcc.spark.driver import AsyncReplay, open_driver
from aiokcc.spark.function_version import check_version
from aiokcc.spark.pipeline_options import PipelineOptions
from aiokcc.spark.progress import Progress, Summary
from aiokcc.spark.security import check_security
from aiokcc.spark.sinks import Sink
from aiokcc.spark.source import check_options
from aiokcc.spark.spark_thread import is_stopped
from aiokcc.stores import open_store
from aiokcc.stores.port import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Opening", "Replay", "check_bytes", "replay"]

LOOKAHEAD: Final = 1000
"""The default lookahead of a group in which one driver runs all partitions: one job may hold this number of periods."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_BYTES: Final = re.compile(r"\s*(\d+)\s*([kmgt]?)i?b?\s*", re.IGNORECASE)


@known_keywords("aiokcc.spark.replay", consumer_keywords)
def replay(
    spark: SparkSession,
    *topics: str,
    pattern: str | None = None,
    bootstrap_servers: str | list[str] | None = None,
    kafka: KafkaConfig = None,
    store: str | Store,
    name: str,
    period: str | int | timedelta,
    start: str | int | datetime = "earliest",
    end: str | int | datetime | None = "now",
    trigger: Literal["available_now"] | None = None,
    partitions: Mapping[str, list[int]] | list[tuple[str, int]] | None = None,
    assignment: Literal["managed"] | None = None,
    subscription: object = None,
    assignor: str = "sticky",
    weight: Weight | None = None,
    join_window: float | None = None,
    expect: int | None = None,
    offset_storage: Literal["kafka", "store"] = "kafka",
    lookahead: int | None = None,
    timestamp: Column | str | None = None,
    lateness: str | int | timedelta | Mapping[str, str | int | timedelta] | None = None,
    late: Literal["deliver", "restate"] = "deliver",
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed",
    max_periods: int = LOOKAHEAD,
    target_seconds: float = 10.0,
    max_bytes: str | int = "512MB",
    retries: int = 2,
    from_scratch: bool = False,
    accept_deleted: bool = False,
    keeps_periods: bool = False,
    version: str | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
    caught_up: str | int | timedelta = "follow",
    ahead: str | int | timedelta = "1h",
    member: str | None = None,
    session_timeout: float = 10.0,
    connect_timeout: float = 10.0,
    claim_timeout: float | None = None,
    store_timeout: float = 60.0,
    clock: Callable[[], int] | None = None,
    store_options: Mapping[str, Any] | None = None,
    kafka_options: Mapping[str, str] | None = None,
    **consumer: Any,
) -> Opening:
    """Compute every period of some topics with Spark, exactly once each, in step with other participants. ::

        with aiokcc.spark.replay(spark, "orders", "payments", bootstrap_servers=…, store="zk://…/replay", name="revenue",
                                 start="2026-01-01T00:00Z", end="now", period="1h") as replay:
            replay.for_each_period(revenue, sink=aiokcc.spark.ParquetSink("out/revenue"))

    In an asyncio program use ``async with`` and ``await replay.for_each_period(…)``. All arguments are checked at once.

    :param spark: a session with the Kafka connector, such as :func:`aiokcc.spark.session` makes
    :param pattern: instead of topics, a regular expression that the whole name of a topic must match
    :param bootstrap_servers: ``"host:port"``, or several; by default ``bootstrap.servers`` of ``kafka``
    :param kafka: Kafka's client properties: a file such as ``"client.properties"``, or a mapping, with ``security.protocol``,
        ``ssl.*`` (PEM) and ``sasl.*``; a value may be ``env:NAME`` or ``file:PATH``. Both consumers get them: aiokafka's,
        through which boundaries are looked up, and Spark's, on every executor
    :param store: ``zk://h1:2181,h2:2181/root``, ``zks://…`` (TLS), ``"kafka"`` (a topic of the Kafka that is read) or
        ``kafka://h1:9092/root``, ``memory://name`` (one process), or a store
    :param name: identifies the pipeline under the store's root: started again, it resumes after what it has published
    :param period: the length of a period: ``"1h"``, a timedelta, or milliseconds
    :param start: a time, or ``"earliest"``
    :param end: a time, ``"now"`` (the default: the ends of the logs when the group is founded), or None to follow for ever:
        then partitions that are added later, and topics that come to match the pattern, join while it runs
    :param trigger: ``"available_now"``: the run has no end. This start publishes every period that is closed by now and
        returns; the next start, such as tomorrow's, goes on there
    :param partitions: which partitions Spark runs, where others of the group run the rest; by default all
    :param assignment: ``"managed"``: the pipeline takes part in a group whose leader says who runs which partitions. All of the
        pipeline's go together, to one driver; others that are started with the same name, on any machine, stand by, and one
        of them goes on when the one that runs leaves, dies or is isolated. Asynchronous members share the rest
    :param subscription: managed: which topics the pipeline runs, of those the group replays: ``["orders"]``, or a compiled
        regular expression; by default all. Or ``partitions``. For ``assignor``, ``weight``, ``join_window`` and ``expect``
        see :func:`aiokcc.connect`
    :param offset_storage: where asynchronous members of the group commit; a pipeline does not, but all of a group give the same
    :param lookahead: how many periods a participant may run ahead of the slowest. All of a group give the same; by default
        0 with ``partitions`` or in a managed group, and many without, for then there is nobody to wait for
    :param timestamp: event time as a column expression over the Kafka source's columns; Kafka's timestamp by default
    :param lateness: how far a record may lie behind an earlier one of its partition, for all topics or by topic
    :param late: where a record goes that is later than that. ``"deliver"``: to the period that is open by then. ``"restate"``:
        it is left out and listed, and :func:`restate` puts it into its own period. Each batch is then read twice
    :param max_periods: the most periods with records in one job; 1: each frame holds one period
    :param target_seconds: how long a job should take: the number of periods in a job is tuned to it
    :param max_bytes: the most that one job reads, such as ``"512MB"``
    :param retries: how often a failed job is tried again before the replay stops with a SparkJobError
    :param from_scratch: throw away what the pipeline has published, and start again
    :param accept_deleted: start also if Kafka may have deleted records past ``start`` before the run was founded. A warning
        names the partitions; without this it is an error
    :param keeps_periods: True if you vouch for it that the function keeps periods apart: then it is not decided from its plan
    :param version: the version of the function, such as ``"2"``: it is recorded with each batch. A function that has changed
        without a new version is noticed by its plan, and logged once
    :param progress: called with a :class:`Progress` after each job. By default a line on the terminal; False: nothing
    :param store_timeout: seconds without the store after which the replay stops
    :param kafka_options: further options of Spark's Kafka source, such as ``{"kafka.security.protocol": "SSL"}``
    :param consumer: settings of aiokafka's consumer, through which boundaries are looked up: ``client_id``. Spark reads the
        records through a consumer of its own: where this one logs in by such settings and not by ``kafka``,
        ``kafka_options`` says how that one does

    For ``caught_up``, ``ahead``, ``member`` and the timeouts see :func:`aiokcc.connect`.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in {".", ".."}:
        raise UsageError(
            f"name {name!r} cannot name a pipeline; expected letters, digits, '.', '_' and '-', at most 100"
        )
    if not hasattr(spark, "read"):
        raise UsageError(f"spark is {spark!r}; expected a SparkSession, such as aiokcc.spark.session() makes")
    client = KafkaClient.load(kafka)
    if is_stopped(spark):
        raise UsageError("the Spark session was stopped; make another one, such as with aiokcc.spark.session()")
    end = _end(end, trigger, assignment)
    source = SourceOptions.check(
        topics,
        pattern=pattern,
        bootstrap_servers=bootstrap_servers,
        kafka=client,
        start=start,
        end=end,
        partitions=partitions,
        commit=False,
        offset_storage=offset_storage,
        isolation_level=isolation_level,
        consumer=consumer,
    )
    policy = ConsumerPolicy.check(source, timestamp=None if timestamp is None else _told_by_spark, lateness=lateness)
    options = {**client.spark, **check_options(kafka_options or {})}
    check_security(source.consumer, options, spark)
    if source.rule is not None:
        raise UsageError("partitions is a function; a pipeline's result depends on which they are, so list them")
    wanted = None
    if assignment == "managed":
        wanted = _pipeline(name, source, subscription)
        source = replace(source, managed=True)
        if from_scratch:
            raise UsageError(
                "from_scratch does not go with a managed group, where a driver that stood by would throw away what another one "
                "has published; give the pipeline another name, or another root"
            )
    if source.start == "committed":
        raise UsageError(
            'start="committed" is for consumer groups; a pipeline goes on by its name. Give a time or "earliest"'
        )
    check_choice("late", late, ("deliver", "restate"))
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise UsageError(f"progress is {progress!r}; expected a function of a Progress, or False")
    if not isinstance(target_seconds, int | float) or isinstance(target_seconds, bool) or not target_seconds > 0:
        raise UsageError(f"target_seconds is {target_seconds!r}; expected a number of seconds above 0")
    alone = partitions is None and wanted is None
    chosen = lookahead if lookahead is not None else LOOKAHEAD if alone else 0
    group = GroupOptions.check(
        period=period,
        start=format_time(source.start) if isinstance(source.start, int) else None,
        end=format_time(source.end) if isinstance(source.end, int) else None,
        lookahead=chosen,
        caught_up=caught_up,
        ahead=ahead,
        member=member,
        session_timeout=session_timeout,
        connect_timeout=connect_timeout,
        claim_timeout=claim_timeout,
        clock=clock,
        source=describe_source(source, policy),
        # To a run that has an end belong the topics that matched when it was founded, whatever matches now.
        grows=source.end is None or source.pattern is not None,
        assignment=assignment,
        subscription=subscription if wanted is None else wanted,
        assignor=assignor,
        weight=weight,
        join_window=join_window,
        expect=expect,
    )
    place = choose_store(store, source, store_options, name, open_store)
    return Opening(
        PipelineOptions(
            spark,
            name,
            source,
            policy,
            group,
            timestamp,
            options,
            check_count("max_periods", max_periods, 1),
            float(target_seconds),
            check_bytes(max_bytes),
            check_count("retries", retries, 0),
            bool(from_scratch),
            bool(accept_deleted),
            progress,
            bool(keeps_periods),
            check_version(version),
            trigger is not None,
            place,
            store_timeout,
            wanted,
            late == "restate",
        )
    )


def _end(end: str | int | datetime | None, trigger: object, assignment: object) -> str | int | datetime | None:
    """Return the end of the run. A run that is triggered has none, so that each start finds the same run."""
    if trigger is None:
        return end
    if trigger != "available_now":
        raise UsageError(f'trigger is {trigger!r}; expected "available_now", or None')
    if end not in ("now", None):
        raise UsageError(
            f'trigger="available_now" does not go with end={end!r}: each start publishes what is closed by then, and the run '
            f"has no end; leave end out"
        )
    if assignment == "managed":
        raise UsageError(
            'trigger="available_now" does not go with a managed group, whose drivers stand by and follow the topics; leave '
            "trigger out, or use a pipeline of its own root"
        )
    return None


def _pipeline(name: str, source: SourceOptions, subscription: object) -> Subscription:
    """Return what a pipeline of a managed group runs: all topics, those it subscribes to, or the partitions it names."""
    if source.partitions is not None:
        if subscription is not None:
            raise UsageError("partitions and subscription both say what the pipeline runs; give one of them")
        return Subscription(partitions=source.partitions, pipeline=name)
    if isinstance(subscription, re.Pattern):
        wanted = Subscription.check(pattern=subscription, pipeline=name)
    else:
        wanted = Subscription.check(subscription, pipeline=name)
    strange = sorted(t for t in {*wanted.topics, *(p.topic for p in wanted.partitions)} if not source.replays(t))
    if source.pattern is not None:
        replayed = f"what matches {source.pattern.pattern}"
        matches = True  # which topics exist is checked later
    else:
        replayed = ", ".join(source.topics)
        matches = bool(wanted.partitions) or any(map(wanted.covers_topic, source.topics))
    if strange or not matches:
        what = f"names the topic {strange[0]!r}" if strange else f"is {wanted.pattern!r}, which no topic matches"
        raise UsageError(f"subscription {what}; the group replays {replayed}")
    return wanted


def _told_by_spark(record: Any) -> int:
    """Stand for the function that asynchronous members of the group have: event time is not Kafka's own. Never called."""
    raise NotImplementedError


def check_bytes(value: object) -> int:
    """Return ``max_bytes`` as a number. Raise UsageError if it is none."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _BYTES.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[1]) == 0:
        raise UsageError(f'max_bytes is {value!r}; expected a number of bytes, or a text like "512MB"')
    return int(match[1]) * int(1024 ** " kmgt".index(match[2].lower() or " "))


class Opening:
    """A replay that is not open yet: ``with`` it in a script or a notebook, ``async with`` it in an asyncio program."""

    def __init__(self, options: PipelineOptions) -> None:
        self._options = options
        self._blocking: ExitStack | None = None
        self._context: AbstractAsyncContextManager[AsyncReplay] | None = None

    def __enter__(self) -> Replay:
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal(name="aiokcc-spark-loop"))
            inner = stack.enter_context(portal.wrap_async_context_manager(open_driver(self._options)))
            self._blocking = stack.pop_all()
            return Replay(portal, inner)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._blocking is not None
        return self._blocking.__exit__(kind, error, trace)

    async def __aenter__(self) -> AsyncReplay:
        self._context = open_driver(self._options)
        return await self._context.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._context is not None
        return await self._context.__aexit__(kind, error, trace)


class Replay:
    """A replay for programs without an event loop: its methods block."""

    def __init__(self, portal: BlockingPortal, inner: AsyncReplay) -> None:
        self._portal = portal
        self._inner = inner

    @property
    def summary(self) -> Summary:
        """The totals of what was published so far."""
        return self._inner.summary

    def for_each_period(
        self,
        function: Callable[..., Any],
        sink: Sink | Callable[[DataFrame, Any], Any] | None = None,
        *,
        state: DataFrame | StructType | str | None = None,
        chain: int | None = None,
        keep_states: int | None = None,
    ) -> Summary:
        """Do as :meth:`AsyncReplay.for_each_period` does. Ctrl-C stops the running job; no period is half published then."""
        over = threading.Event()

        async def run() -> Summary:
            try:
                return await self._inner.for_each_period(
                    function, sink, state=state, chain=chain, keep_states=keep_states
                )
            finally:
                over.set()

        future = self._portal.start_task_soon(run)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            over.wait()
            raise
