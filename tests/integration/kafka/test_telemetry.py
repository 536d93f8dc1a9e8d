"""Metrics and traces of a replay of real topics, as an OpenTelemetry SDK and Prometheus get them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from opentelemetry import metrics as metrics_api
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client.parser import text_string_to_metric_families

import aiokcc
from aiokcc import local
from aiokcc.runtime import metrics
from aiokcc.runtime.metrics import collect
from aiokcc.views.exposition import prometheus_text
from tests import kafka_topics

MINUTE = 60_000
START = 100 * MINUTE


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    """Set up a real SDK for metrics, for this test only."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(metrics_api, "get_meter", provider.get_meter)
    monkeypatch.setattr(metrics, "_instruments", {})
    yield reader
    provider.shutdown()


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Set up a real SDK for traces, for this test only."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data: Any = reader.get_metrics_data()
    return {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


async def test_a_replay_tells_what_it_does(zk_root: str, kafka: local.Kafka, sdk: InMemoryMetricReader) -> None:
    topic = await kafka_topics.create_fresh(kafka.bootstrap, "orders", partitions=2)
    rows = [kafka_topics.Row(p, START + minute * MINUTE + n) for minute in range(5) for n in range(10) for p in (0, 1)]
    rows.append(kafka_topics.Row(1, START))  # a late one
    await kafka_topics.write(kafka.bootstrap, topic, rows)
    seen: dict[str, list[Any]] = {}
    text = b""
    handled = 0

    async def handle(record: Any) -> None:
        nonlocal seen, text, handled
        handled += 1
        await asyncio.sleep(0.001)
        if record.timestamp == START + 4 * MINUTE + 9 and not seen:
            seen, text = points(sdk), prometheus_text(collect())

    async with aiokcc.replay(
        topic, bootstrap_servers=kafka.bootstrap, store=zk_root, period="1m", late="drop", member="one", end="now"
    ) as replay:
        done = await replay.run(handle)
    assert (done.records, done.skipped, handled) == (100, 1, 100)

    group = {"group": zk_root.partition("/")[2].partition("/")[2].partition("/")[2], "member": "one"}
    for name in (
        "aiokcc.limit",
        "aiokcc.limit.lag",
        "aiokcc.periods",
        "aiokcc.generation",
        "aiokcc.leader",
        "aiokcc.buffer.records",
        "aiokcc.buffer.bytes",
        "aiokcc.records.dead_lettered",
        "aiokcc.sessions.lost",
        "aiokcc.rebalances",
        "aiokcc.store.requests",
        "aiokcc.store.request.time",
    ):
        assert [dict(point.attributes) for point in seen[name]] == [group], name
    assert seen["aiokcc.limit"][0].value == (START + 5 * MINUTE) / 1000
    assert seen["aiokcc.periods"][0].value == 4
    assert seen["aiokcc.leader"][0].value == 1
    assert 0 < seen["aiokcc.store.request.time"][0].value / seen["aiokcc.store.requests"][0].value < 1
    assert seen["aiokcc.store.requests"][0].value > 4
    waits = {dict(p.attributes)["messaging.destination.partition.id"]: p.value for p in seen["aiokcc.gate.wait"]}
    assert set(waits) == {"0", "1"}
    assert all(0 <= seconds < 60 for seconds in waits.values())
    (periods,) = seen["aiokcc.period.duration"]
    assert 1 <= periods.count <= 4  # at most twenty a second are measured
    assert 0.01 < periods.sum / periods.count < 60

    # Prometheus gets the same, and finds nothing wrong with the text.
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert families["aiokcc_limit_seconds"].samples[0].value == (START + 5 * MINUTE) / 1000
    assert families["aiokcc_store_requests"].type == "counter"
    duration = families["aiokcc_period_duration_seconds"]
    assert duration.type == "histogram"
    buckets = [sample.value for sample in duration.samples if sample.name.endswith("_bucket")]
    (count,) = (sample.value for sample in duration.samples if sample.name.endswith("_count"))
    assert buckets == sorted(buckets)
    assert buckets[-1] == count == periods.count


async def test_the_time_of_handlers_is_without_the_time_at_the_gate(
    zk_root: str, kafka: local.Kafka, sdk: InMemoryMetricReader
) -> None:
    """One partition is slow, the other waits for it: only the first has a long time in its handler."""
    slow = await kafka_topics.create_fresh(kafka.bootstrap, "slow")
    quick = await kafka_topics.create_fresh(kafka.bootstrap, "quick")
    for topic in (slow, quick):
        rows = [kafka_topics.Row(0, START + minute * MINUTE) for minute in range(4)]
        await kafka_topics.write(kafka.bootstrap, topic, rows)

    async def handle(records: list[Any]) -> None:
        await asyncio.sleep(0.1 * (records[0].topic == slow))

    seen: dict[str, list[Any]] = {}
    async with aiokcc.replay(
        slow, quick, bootstrap_servers=kafka.bootstrap, store=zk_root, period="1m", end="now"
    ) as replay:
        await replay.run_batches(handle)
    seen = points(sdk)  # what was recorded stays, although the replay is over
    sums = {dict(p.attributes)["messaging.destination.name"]: p.sum for p in seen["messaging.process.duration"]}
    assert sums[slow] >= 0.4
    assert sums[quick] < 0.1


async def test_spans_of_periods_and_batches_are_linked_to_the_senders(
    zk_root: str, kafka: local.Kafka, spans: InMemorySpanExporter
) -> None:
    topic = await kafka_topics.create_fresh(kafka.bootstrap, "orders")
    tracer = trace.get_tracer("test")
    sent: list[int] = []
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
        for minute in (0, 0, 1):
            with tracer.start_as_current_span("send") as span:
                carrier: dict[str, str] = {}
                TraceContextTextMapPropagator().inject(carrier)
                headers = [(name, value.encode()) for name, value in carrier.items()]
                sent.append(span.get_span_context().span_id)
                when = START + minute * MINUTE
                await producer.send_and_wait(topic, b"x", timestamp_ms=when, partition=0, headers=headers)
        await producer.send_and_wait(
            topic, b"x", timestamp_ms=START + MINUTE, partition=0, headers=[("traceparent", b"\xff no context")]
        )
    spans.clear()

    async def handle(record: Any) -> None:
        trace.get_tracer("mine").start_span("own").end()

    options: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap, "period": "1m", "end": "now"}
    async with aiokcc.replay(topic, store=f"{zk_root}/one", traces=True, client_id="me", **options) as replay:
        await replay.run(handle)
    found: Any = spans.get_finished_spans()
    batches = [span for span in found if span.name == f"{topic} process"]
    periods = {context(span): span for span in found if span.name == "aiokcc period"}
    assert [[link.context.span_id for link in span.links] for span in batches] == [sent[:2], sent[2:]]
    for batch, offset in zip(batches, (0, 2), strict=True):
        assert batch.kind is trace.SpanKind.CONSUMER
        assert dict(batch.attributes) == {
            "messaging.system": "kafka",
            "server.address": kafka.bootstrap,
            "messaging.client.id": "me",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": "0",
            "messaging.kafka.message.offset": offset,
            "messaging.batch.message_count": 2,
        }
        assert parent(batch) in periods
    first = periods[parent(batches[0])]
    assert dict(first.attributes)["aiokcc.limit"] == "1970-01-01T01:41:00Z"
    assert parent(batches[1]) != parent(batches[0])
    # What the handler does lies below the batch.
    assert [parent(span) for span in found if span.name == "own"] == [context(b) for b in batches for _ in range(2)]

    # By lists, with a handler that raises: the span says so, and the period ends.
    spans.clear()

    async def fail(records: list[Any]) -> None:
        raise ValueError("not today")

    with pytest.raises(aiokcc.HandlerError):
        async with aiokcc.replay(topic, store=f"{zk_root}/two", traces=True, **options) as replay:
            await replay.run_batches(fail)
    ended: Any = spans.get_finished_spans()
    (batch,) = (span for span in ended if span.name == f"{topic} process")
    assert batch.status.status_code is trace.StatusCode.ERROR
    assert [event.name for event in batch.events] == ["exception"]
    assert parent(batch) in [context(s) for s in ended if s.name == "aiokcc period"]

    # Off by default.
    spans.clear()
    async with aiokcc.replay(topic, store=f"{zk_root}/three", **options) as replay:
        await replay.run(lambda _: None)
    assert spans.get_finished_spans() == ()


def context(span: Any) -> int:
    return int(span.context.span_id)


def parent(span: Any) -> int:
    return int(span.parent.span_id)
