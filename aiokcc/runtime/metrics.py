"""Metrics: their names, and the sources that are asked for values when somebody collects them.

Nothing is counted for metrics alone in the path of a record: a source reads what the program counts anyway. With
``opentelemetry-api`` installed and an SDK set up, the values are observed by it; without, a source costs one entry in a set.

Durations go into a :class:`Histogram`. OpenTelemetry has no histogram that is read on demand, so a duration is recorded when it
was measured, and because that costs its SDK some microseconds, at most MOST_PER_SECOND of each histogram are.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiokcc.core.limit import Mode

if TYPE_CHECKING:
    from aiokcc.runtime.member import Member

__all__ = [
    "METRICS",
    "MOST_PER_SECOND",
    "Histogram",
    "Metric",
    "Observed",
    "collect",
    "observe_connection",
    "observe_member",
    "observing",
    "prometheus_name",
]

MOST_PER_SECOND: Final = 20
"""The most durations of one histogram that are measured in a second."""
_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PERIODS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Its name is OpenTelemetry's; :func:`prometheus_name` returns that of Prometheus."""

    name: str
    kind: str
    """``counter``, ``gauge`` or ``histogram``."""
    unit: str
    """The unit as UCUM writes it: ``s``, ``By``, or a noun in braces."""
    help: str
    bounds: Sequence[float] = ()
    """The upper bounds of a histogram's buckets; the last bucket has none."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One value, at the time when it was collected."""

    name: str
    value: float | Sequence[float]
    """A number. Of a histogram: the sum, and then the number of values in each bucket."""
    attributes: Mapping[str, str]


METRICS: Final = {
    metric.name: metric
    for metric in (
        Metric("messaging.client.consumed.messages", "counter", "{message}", "Records that were handled."),
        Metric(
            "messaging.process.duration",
            "histogram",
            "s",
            "Time in which the handler worked on a list of records of one partition, without waits at the gate.",
            _SECONDS,
        ),
        Metric("aiokcc.records.late", "counter", "{record}", "Records that came after their period had closed."),
        Metric("aiokcc.records.skipped", "counter", "{record}", "Records that were left out by policy."),
        Metric("aiokcc.records.dead_lettered", "counter", "{record}", "Records passed to the dead-letter function."),
        Metric("aiokcc.records.retried", "counter", "{call}", "Further calls of a handler that had raised."),
        Metric("aiokcc.buffer.records", "gauge", "{record}", "Records that are fetched and not handled yet."),
        Metric("aiokcc.buffer.bytes", "gauge", "By", "Fetches that are held until all their records are unpacked."),
        Metric("aiokcc.partitions.owned", "gauge", "{partition}", "Partitions that this member runs."),
        Metric("aiokcc.partitions.busy", "gauge", "{partition}", "Partitions that may have records before the limit."),
        Metric("aiokcc.gate.wait", "counter", "s", "Time that a partition has waited at its gate for the others."),
        Metric("aiokcc.limit", "gauge", "s", "The limit: event time, in seconds since the epoch."),
        Metric("aiokcc.limit.lag", "gauge", "s", "How far the limit is behind the clock."),
        Metric("aiokcc.limit.waiting", "gauge", "s", "Time since the limit last moved."),
        Metric("aiokcc.periods", "counter", "{period}", "Periods that have closed."),
        Metric(
            "aiokcc.period.duration",
            "histogram",
            "s",
            "Time from one move of the limit to the next, if that closed a period.",
            _SECONDS,
        ),
        Metric("aiokcc.store.requests", "counter", "{request}", "Requests that the store has answered."),
        Metric("aiokcc.store.request.time", "counter", "s", "Time from sending them to their answers, in all."),
        Metric("aiokcc.generation", "gauge", "{generation}", "The generation of the group."),
        Metric("aiokcc.leader", "gauge", "{leader}", "1 if this member leads, 0 if not."),
        Metric("aiokcc.sessions.lost", "counter", "{session}", "Sessions with the store that this member has lost."),
        Metric("aiokcc.rebalances", "counter", "{rebalance}", "Changes of this member's assignment."),
        Metric("aiokcc.members", "gauge", "{member}", "Live members of the group."),
        Metric("aiokcc.partitions", "gauge", "{partition}", "Partitions of the group, by state."),
        Metric("aiokcc.blocking", "gauge", "{partition}", "Partitions for which the limit waits."),
        Metric("aiokcc.stuck", "gauge", "{group}", "1 if the group is stuck, 0 if not."),
        Metric("aiokcc.offsets.done", "gauge", "{offset}", "Offsets of the run that are processed."),
        Metric("aiokcc.offsets.expected", "gauge", "{offset}", "Offsets of the run, if it knows its end."),
        Metric("aiokcc.pipeline.published", "gauge", "s", "Event time up to which a Spark pipeline has published."),
        Metric("aiokcc.spark.jobs", "counter", "{job}", "Spark jobs whose results were published."),
        Metric("aiokcc.spark.job.duration", "histogram", "s", "Time of a Spark job and its publication.", _SECONDS),
        Metric("aiokcc.spark.job.periods", "histogram", "{period}", "Periods with records in one Spark job.", _PERIODS),
        Metric(
            "aiokcc.spark.rows", "counter", "{row}", "Rows that Spark jobs have read: the offsets of their periods."
        ),
    )
}

_SUFFIXES: Final = {"s": "_seconds", "By": "_bytes"}

Source = Callable[[], Iterable[Observed]]
_sources: set[Source] = set()
_instruments: dict[str, Any] = {}
"""OpenTelemetry's instruments by the names of the metrics; ``""`` is there if it is not installed."""


class Histogram:
    """Counts values in buckets, and records them with OpenTelemetry too. Not for threads."""

    __slots__ = ("_attributes", "_bounds", "_counts", "_next", "_record", "_sum", "name")

    def __init__(self, name: str, attributes: Mapping[str, str]) -> None:
        self.name = name
        self._attributes = dict(attributes)
        self._bounds = METRICS[name].bounds
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._next = float("-inf")
        self._record = _record_with(name)

    def is_due(self, now: float) -> bool:
        """Return whether a value is to be measured that begins at this time of any clock in seconds."""
        if now < self._next:
            return False
        self._next = now + 1 / MOST_PER_SECOND
        return True

    def record(self, value: float) -> None:
        """Record one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value
        if self._record is not None:
            self._record(value, self._attributes)

    def observed(self) -> Observed:
        """Return the present counts."""
        return Observed(self.name, (self._sum, *self._counts), self._attributes)


def prometheus_name(metric: Metric) -> str:
    """Return the name in Prometheus, as OpenTelemetry's rules make it."""
    name = metric.name.replace(".", "_")
    return (
        name.removesuffix(unit := _SUFFIXES.get(metric.unit, ""))
        + unit
        + ("_total" if metric.kind == "counter" else "")
    )


def collect() -> list[Observed]:
    """Return the present values of all sources of this process."""
    return [observed for source in tuple(_sources) for observed in source()]


@contextlib.contextmanager
def observing(source: Source) -> Iterator[None]:
    """Have this source asked for values while the block runs."""
    _make_instruments()
    _sources.add(source)
    try:
        yield
    finally:
        _sources.discard(source)


def _make_instruments() -> None:
    """Register with OpenTelemetry, once in a process, if it is installed. Until an SDK is set up nothing is asked."""
    if _instruments:
        return
    try:
        from opentelemetry import metrics
    except ModuleNotFoundError:
        _instruments[""] = None
        return
    meter = metrics.get_meter("aiokcc")
    collected: dict[str, list[metrics.Observation]] = {}

    def observe(_: object, name: str) -> list[metrics.Observation]:
        """Return the values of one metric. The SDK asks for all, one after another: the sources are asked once for that."""
        if name not in collected:
            collected.update({other: [] for other in METRICS})
            for o in collect():
                if isinstance(o.value, (int, float)):
                    collected[o.name].append(metrics.Observation(o.value, dict(o.attributes)))
        return collected.pop(name)

    for metric in METRICS.values():
        what: Any = {"unit": metric.unit, "description": metric.help}
        if metric.kind == "histogram":
            advised = list(metric.bounds)
            _instruments[metric.name] = meter.create_histogram(
                metric.name, **what, explicit_bucket_boundaries_advisory=advised
            )
        else:
            make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
            _instruments[metric.name] = make(metric.name, callbacks=[partial(observe, name=metric.name)], **what)


def _record_with(name: str) -> Callable[[float, dict[str, str]], None] | None:
    """Return OpenTelemetry's function that records values of a histogram; None if it is not installed."""
    _make_instruments()
    instrument = _instruments.get(name)
    return None if instrument is None else instrument.record


def observe_member(member: Member) -> Source:
    """Return the source of a member: the limit, its periods, its sessions, the time at its gates."""
    observe_session = observe_connection(member)

    def observe() -> Iterator[Observed]:
        progress = member.progress
        limit, who = progress.limit, member.measurements.labels
        if limit.mode is Mode.GATED and limit.value:
            yield Observed("aiokcc.limit", limit.value / 1000, who)
            yield Observed("aiokcc.limit.lag", (member.clock() - limit.value) / 1000, who)
        yield Observed("aiokcc.periods", member.closed, who)
        yield from observe_session()
        yield member.measurements.period_durations.observed()
        yield Observed("aiokcc.sessions.lost", member.sessions_lost, who)
        yield Observed("aiokcc.rebalances", member.rebalances, who)
        owned = [p for p in progress.partitions.values() if p.owned]
        yield Observed("aiokcc.partitions.owned", len(owned), who)
        yield Observed("aiokcc.partitions.busy", sum(not p.arrived(limit) for p in owned), who)
        for partition, seconds in member.gate_wait.items():
            where = {
                "messaging.destination.name": partition.topic,
                "messaging.destination.partition.id": str(partition.number),
            }
            yield Observed("aiokcc.gate.wait", seconds, {**who, **where})

    return observe


def observe_connection(member: Member) -> Source:
    """Return the source of what a member does with the store: its generation, whether it leads, its requests.

    It is all there is to tell of the member of a host: the processes that share it tell the rest.
    """
    who = member.measurements.labels

    def observe() -> Iterator[Observed]:
        session = member.member_session
        generation = None if session is None else session.generation.number
        if generation is not None:
            yield Observed("aiokcc.generation", generation, who)
        yield Observed("aiokcc.leader", float(session is not None and session.term is not None), who)
        requests, seconds = member.measurements.requests(None if session is None else session.session)
        yield Observed("aiokcc.store.requests", requests, who)
        yield Observed("aiokcc.store.request.time", seconds, who)

    return observe
