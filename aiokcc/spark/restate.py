"""``aiokcc.spark.restate`` and ``aiokcc.spark.late``: their arguments, and how programs without an event loop call them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from anyio.from_thread import start_blocking_portal

from aiokcc.core.periods import parse_time
from aiokcc.credentials import KafkaClient, KafkaConfig
from aiokcc.errors import UsageError
from aiokcc.kafka.source_options import check_count, consumer_keywords
from aiokcc.runtime.entry import known_keywords
from aiokcc.spark.compute import Periods
from aiokcc.spark.function_version import check_version
from aiokcc.spark.progress import Summary
from aiokcc.spark.published import LatePeriod
from aiokcc.spark.replay import check_bytes
from aiokcc.spark.restatement import Restatement, RestateOptions, list_late
from aiokcc.spark.security import check_security
from aiokcc.spark.sinks import Sink
from aiokcc.spark.source import check_options
from aiokcc.spark.spark_thread import is_stopped
from aiokcc.stores import open_store
from aiokcc.stores.port import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["late", "prepare_restate", "restate"]

T = TypeVar("T")
P = ParamSpec("P")


@known_keywords("aiokcc.spark.restate", consumer_keywords)
def prepare_restate(
    spark: SparkSession,
    function: Callable[[DataFrame, Periods], DataFrame],
    *,
    store: str | Store,
    name: str,
    start: str | int | datetime | None = None,
    end: str | int | datetime | None = None,
    late: bool = False,
    bootstrap_servers: str | list[str] | None = None,
    kafka: KafkaConfig = None,
    sink: Sink | None = None,
    timestamp: Column | str | None = None,
    max_periods: int = 1000,
    max_bytes: str | int = "512MB",
    retries: int = 2,
    keeps_periods: bool = False,
    version: str | None = None,
    session_timeout: float = 10.0,
    connect_timeout: float = 10.0,
    claim_timeout: float | None = None,
    store_options: Mapping[str, Any] | None = None,
    kafka_options: Mapping[str, str] | None = None,
    **consumer: Any,
) -> Restatement:
    """Compute published periods of a pipeline again, and replace exactly these periods, all of them in one step. ::

        aiokcc.spark.restate(spark, revenue, store="zk://…/revenue", name="revenue", bootstrap_servers=…,
                             start="2026-03-01T00:00Z", end="2026-03-02T00:00Z")

    The records are read from the offsets that were recorded when the periods were published. Readers see the old periods or the
    new ones. Killed at any moment, it has not begun or it is done; start it again. It returns the totals.

    :param function: gets a frame and its periods and returns a frame, as in ``for_each_period``
    :param store: where the pipeline is recorded, as in :func:`replay`; ``name`` is the pipeline's
    :param start: the start of the first period; ``end``: the end of the last one
    :param late: True: in place of ``start`` and ``end``, all periods whose late records wait (:func:`late` lists them)
    :param bootstrap_servers: as in :func:`replay`, like ``kafka``, ``kafka_options`` and further settings of the consumer
    :param sink: the pipeline's; needed if the sink has options, such as credentials. By default the one that is recorded
    :param timestamp: event time; needed if the pipeline's is a column. SQL text is recorded
    :param max_periods: as in :func:`replay`, like ``max_bytes``, ``retries``, ``keeps_periods`` and ``version``
    :param claim_timeout: seconds to wait until a driver of the pipeline, or another restatement, has ended; by default twice
        the session timeout

    Raise UsageError if ``start`` or ``end`` is no boundary of published periods, PipelineBusyError if a driver is at work,
    KafkaError if Kafka does not have all of the records any more, FencedError if a driver has taken over meanwhile,
    SparkJobError if a job failed too often. Nothing is changed then. In an asyncio program call it with ``asyncio.to_thread``.

    :func:`prepare_restate` takes the same arguments and returns the restatement, whose ``run()`` is a coroutine.
    """
    if not callable(function):
        raise UsageError(f"function is {function!r}; expected a function of a frame and its periods")
    if not hasattr(spark, "read"):
        raise UsageError(f"spark is {spark!r}; expected a SparkSession, such as aiokcc.spark.session() makes")
    if is_stopped(spark):
        raise UsageError("the Spark session was stopped; make another one, such as with aiokcc.spark.session()")
    if sink is not None and not isinstance(sink, Sink):
        raise UsageError(f"sink is {sink!r}; expected a ParquetSink or a DeltaSink, or leave it out")
    client = KafkaClient.load(kafka)
    servers = bootstrap_servers if bootstrap_servers is not None else client.bootstrap_servers
    if not servers:
        raise UsageError('where is Kafka? Give bootstrap_servers="host:port"')
    options = {**client.spark, **check_options(kafka_options or {})}
    check_security({**client.consumer, **consumer}, options, spark)
    if store == "kafka":
        raise UsageError('store="kafka" takes its root from the topics; give the URL: store="kafka://host:9092/root"')
    place = store if isinstance(store, Store) else open_store(store, **(store_options or {}))
    return Restatement(
        RestateOptions(
            spark,
            name,
            function,
            _bounds(start, end, late),
            sink,
            timestamp,
            servers if isinstance(servers, str) else ",".join(servers),
            client,
            consumer,
            options,
            check_count("max_periods", max_periods, 1),
            check_bytes(max_bytes),
            check_count("retries", retries, 0),
            bool(keeps_periods),
            check_version(version),
            place,
            session_timeout,
            connect_timeout,
            2 * session_timeout if claim_timeout is None else claim_timeout,
        )
    )


def _blocking(prepare: Callable[P, Restatement]) -> Callable[P, Summary]:
    @functools.wraps(prepare)
    def run(*args: P.args, **kwargs: P.kwargs) -> Summary:
        return _block(prepare(*args, **kwargs).run)

    run.__name__ = run.__qualname__ = "restate"
    return run


restate = _blocking(prepare_restate)


def late(
    *, store: str | Store, name: str, sink: Sink | None = None, store_options: Mapping[str, Any] | None = None
) -> list[LatePeriod]:
    """Return the periods of a pipeline with ``late="restate"`` whose late records wait, with the offsets of these records."""
    place = store if isinstance(store, Store) else open_store(store, **(store_options or {}))

    async def find() -> list[LatePeriod]:
        return await list_late(place, name, sink)

    return _block(find)


def _bounds(start: object, end: object, late: bool) -> tuple[int, int] | None:
    if late:
        if start is not None or end is not None:
            raise UsageError("late=True restates all periods whose late records wait; leave start and end out")
        return None
    if start is None or end is None:
        raise UsageError("which periods? Give start= and end=, or late=True for those whose late records wait")
    return parse_time(start, what="start"), parse_time(end, what="end")


def _block(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in an event loop of its own. Ctrl-C cancels it, and waits for its end."""
    over = threading.Event()

    async def run() -> T:
        try:
            return await function()
        finally:
            over.set()

    with start_blocking_portal(name="aiokcc-spark-loop") as portal:
        future = portal.start_task_soon(run)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            over.wait()
            raise
