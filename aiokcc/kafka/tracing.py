"""Spans of a replay, through OpenTelemetry: one per period, and below it one per batch of records that a handler gets.

A batch is a sequence of records of one partition that the handler gets without a wait in between: at most one list, and all of
one period. Its span has the attributes that OpenTelemetry's instrumentation of aiokafka sets, and links to the spans in which
the records were sent, if their headers tell them. Nothing of this runs unless ``traces=True``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from aiokcc.core.limit import Mode
from aiokcc.core.periods import format_time
from aiokcc.errors import UsageError
from aiokcc.runtime.listener import Listener

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from aiokcc.core.partitions import Partition
    from aiokcc.kafka.source_options import SourceOptions
    from aiokcc.kafka.summary import Summary
    from aiokcc.runtime.member import Member

__all__ = ["BatchSpan", "Tracing", "check_traces"]

MOST_LINKS: Final = 128
"""A span has so many links at most, which is also the default limit of OpenTelemetry's SDK."""


def check_traces(traces: object) -> bool:
    """Return whether spans are wanted. Raises UsageError if it is not a bool, or OpenTelemetry is not installed."""
    if not isinstance(traces, bool):
        raise UsageError(f"traces is {traces!r}; expected True or False")
    if traces:
        try:
            import opentelemetry.trace  # noqa: F401 - whether it is there
        except ModuleNotFoundError:
            raise UsageError(
                "traces=True needs opentelemetry-api, which is not installed: pip install 'aiokcc[metrics]'"
            ) from None
    return traces


class _Headers:
    """Reads the headers of a record for a propagator. A value that is no text is no trace context."""

    def get(self, carrier: Any, key: str) -> list[str] | None:
        found = [value for name, value in carrier if name.lower() == key and value is not None]
        return [value.decode("latin-1") for value in found] or None

    def keys(self, carrier: Any) -> list[str]:
        return [name for name, _ in carrier]


class Tracing(Listener):
    """Makes the spans of one process. It listens to the member: when the limit moves, the next period begins."""

    def __init__(self, source: SourceOptions, member: Member, summary: Summary) -> None:
        from opentelemetry import propagate, trace

        self._trace = trace
        self._propagate = propagate
        self._tracer = trace.get_tracer("aiokcc")
        self._member = member
        self._summary = summary
        self._period: Span | None = None
        self._records = 0
        settings = source.consumer
        servers = source.bootstrap_servers
        self._common: dict[str, Any] = {
            "messaging.system": "kafka",
            "server.address": servers if isinstance(servers, str) else ",".join(servers),
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
        }
        if source.group_id is not None:
            self._common["messaging.consumer.group.name"] = source.group_id
        if isinstance(client := settings.get("client_id"), str):
            self._common["messaging.client.id"] = client

    # -- periods --------------------------------------------------------------------------------------------------------

    def limit_moved(self, positions: dict[Partition, int]) -> None:
        self.end_period()
        self.begin_period()

    def begin_period(self) -> None:
        """Begin the span of the period that is open now, if there is one."""
        limit = self._member.progress.limit
        if limit.mode is not Mode.GATED or not limit.value:
            return
        attributes: dict[str, Any] = {
            "aiokcc.group": self._member.measurements.labels["group"],
            "aiokcc.member": self._member.name,
            "aiokcc.limit": format_time(limit.value),
        }
        if self._member.progress.late_below > 0:
            attributes["aiokcc.period.start"] = format_time(self._member.progress.late_below)
        self._records = self._summary.records
        self._period = self._tracer.start_span("aiokcc period", attributes=attributes)

    def end_period(self) -> None:
        """End the span of the period that was open."""
        if self._period is not None:
            self._period.set_attribute("messaging.batch.message_count", self._summary.records - self._records)
            self._period.end()
            self._period = None

    # -- batches --------------------------------------------------------------------------------------------------------

    def batch_span(self, partition: Partition) -> BatchSpan:
        """Return the spans of one partition."""
        return BatchSpan(self, partition)

    def start_batch(self, partition: Partition, offset: int) -> Span:
        """Start the span of a batch that begins at this offset, below the span of the open period."""
        attributes = {
            **self._common,
            "messaging.destination.name": partition.topic,
            "messaging.destination.partition.id": str(partition.number),
            "messaging.kafka.message.offset": offset,
        }
        parent = None if self._period is None else self._trace.set_span_in_context(self._period)
        kind = self._trace.SpanKind.CONSUMER
        return self._tracer.start_span(f"{partition.topic} process", context=parent, kind=kind, attributes=attributes)

    def link(self, span: Span, record: Any) -> bool:
        """Link a span to the one in which a record was sent, and return whether its headers tell one."""
        from opentelemetry.context import Context

        found = self._propagate.extract(record.headers, context=Context(), getter=_Headers())  # type: ignore[arg-type]
        sent = self._trace.get_current_span(found).get_span_context()
        if sent.is_valid:
            span.add_link(sent)
        return sent.is_valid

    @contextmanager
    def current(self, span: Span) -> Iterator[None]:
        """Make a span the current one while the block runs; an error of the block is noted in it."""
        with self._trace.use_span(span, record_exception=True, set_status_on_exception=True):
            yield


class BatchSpan:
    """The span of the batch that a partition's handler works on. It is begun by the first record and ended by :meth:`end`."""

    def __init__(self, tracing: Tracing, partition: Partition) -> None:
        self._tracing = tracing
        self._partition = partition
        self._span: Span | None = None
        self._count = self._links = 0
        self._last = -1

    def around_each(self, handle: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        """Return a handler that calls this one with each record inside the span."""

        async def traced(record: Any) -> Any:
            with self._tracing.current(self._take(record)):
                return await handle(record)

        return traced

    @contextmanager
    def around(self, records: list[Any]) -> Iterator[None]:
        """Run the block inside the span of these records, and end the span."""
        try:
            for record in records:
                span = self._take(record)
            with self._tracing.current(span):
                yield
        finally:
            self.end()

    def _take(self, record: Any) -> Span:
        """Return the span, with this record in it. A record whose handler is called again counts once."""
        if self._span is None:
            self._span = self._tracing.start_batch(self._partition, record.offset)
        if record.offset != self._last:
            self._last = record.offset
            self._count += 1
            if record.headers and self._links < MOST_LINKS:
                self._links += self._tracing.link(self._span, record)
        return self._span

    def end(self) -> None:
        """End the span, if one is open: the partition waits now, or has ended."""
        if self._span is not None:
            self._span.set_attribute("messaging.batch.message_count", self._count)
            if self._count == 1:
                topic, number = self._partition
                self._span.set_attribute("messaging.message.id", f"{topic}.{number}.{self._last}")
            self._span.end()
            self._span = None
            self._count = self._links = 0
            self._last = -1
