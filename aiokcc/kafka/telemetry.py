"""Measures the handlers of a replay: their time, for metrics, and with ``traces=True`` a span for each list of records.

Both follow lists of records, not records. A list is what one partition brings at a time, so its time is measured where the
next one is asked for, and the loop over its records knows nothing of it.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Final

from aiokcc.runtime.metrics import Histogram, Observed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiokcc.kafka.tracing import BatchSpan, Tracing
    from aiokcc.runtime.gate import Gate
    from aiokcc.runtime.member import Member

__all__ = ["OPERATION", "PartitionTelemetry", "Telemetry"]

OPERATION: Final = {"messaging.system": "kafka", "messaging.operation.name": "process"}
"""The attributes that OpenTelemetry's conventions ask for on each metric of messages."""


class Telemetry:
    """The measurements of one process, by topic, and its spans if it has any."""

    def __init__(self, member: Member, tracing: Tracing | None = None) -> None:
        self._member = member
        self._tracing = tracing
        self._durations: dict[str, Histogram] = {}

    def partition(self, gate: Gate) -> PartitionTelemetry:
        """Return the measurements of the partition that is read through this gate."""
        topic = gate.partition.topic
        if topic not in self._durations:
            attributes = {**self._member.measurements.labels, **OPERATION, "messaging.destination.name": topic}
            self._durations[topic] = Histogram("messaging.process.duration", attributes)
        span = None if self._tracing is None else self._tracing.batch_span(gate.partition)
        return PartitionTelemetry(self._durations[topic], gate, span)

    def observe(self) -> Iterator[Observed]:
        """Yield what was measured."""
        for histogram in self._durations.values():
            yield histogram.observed()


class PartitionTelemetry:
    """Measures the lists of one partition."""

    __slots__ = ("_began", "_gate", "_histogram", "_waited", "span")

    def __init__(self, histogram: Histogram, gate: Gate, span: BatchSpan | None) -> None:
        self._histogram = histogram
        self._gate = gate
        self._began: float | None = None
        self._waited = 0.0
        self.span = span
        """The span of the records that are being handled; None without traces."""

    def begin_list(self) -> None:
        """Note that the handler gets records from now on."""
        now = perf_counter()
        if self._histogram.is_due(now):
            self._began = now
            self._waited = self._gate.waited

    def end_list(self) -> None:
        """Note that the handler has had all records of the list. The time at the gate is not the handler's."""
        if self._began is not None:
            waited = self._gate.waited - self._waited
            self._histogram.record(max(0.0, perf_counter() - self._began - waited))
            self._began = None
