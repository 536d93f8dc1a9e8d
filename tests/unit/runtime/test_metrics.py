"""The metrics of a member, through OpenTelemetry and as plain values."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import aiokcc
from aiokcc.runtime import metrics
from aiokcc.runtime.metrics import METRICS, collect, prometheus_name

ROOT = Path(aiokcc.__file__).parent.parent


def values(member: str) -> dict[str, float]:
    return {each.name: each.value for each in collect() if each.attributes.get("member") == member}


async def test_a_member_tells_its_limit_its_periods_and_who_leads() -> None:
    async with aiokcc.connect(
        "memory://metrics-one", topics={"orders": 1}, start=0, period="1m", member="one", clock=lambda: 600_000
    ) as group:
        async with group.gate("orders", 0) as gate:
            await gate.wait_until(0)
            await gate.wait_until(90_000)
            seen = values("one")
            assert seen["aiokcc.limit"] == 120.0
            assert seen["aiokcc.limit.lag"] == 480.0
            assert seen["aiokcc.periods"] == 1
            assert seen["aiokcc.leader"] == 1
            assert seen["aiokcc.generation"] == 1
            assert seen["aiokcc.sessions.lost"] == 0
            assert seen["aiokcc.partitions.owned"] == 1
            assert seen["aiokcc.gate.wait"] > 0
    assert values("one") == {}


async def test_opentelemetry_observes_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(api, "get_meter", provider.get_meter)
    monkeypatch.setattr(metrics, "_instruments", {})
    connecting = aiokcc.connect("memory://metrics-two", topics={"orders": 1}, start=0, period="1m", member="two")
    calls = 0

    def count() -> list[metrics.Observed]:
        nonlocal calls
        calls += 1
        return []

    async with connecting as group, group.gate("orders", 0) as gate:
        await gate.wait_until(90_000)  # only a leader moves the limit
        with metrics.observing(count):
            data: Any = reader.get_metrics_data()
        found = {
            metric.name: (metric.unit, [point.value for point in metric.data.data_points])
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
        assert found["aiokcc.leader"] == ("{leader}", [1.0])
        assert found["aiokcc.periods"] == ("{period}", [1])
        assert calls == 1  # the sources are asked once for all metrics, not once for each
    provider.shutdown()


def test_without_opentelemetry_nothing_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.setattr(metrics, "_instruments", {})
    with metrics.observing(list):
        assert metrics._instruments == {"": None}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aiokcc.limit.lag", "aiokcc_limit_lag_seconds"),
        ("aiokcc.periods", "aiokcc_periods_total"),
        ("aiokcc.gate.wait", "aiokcc_gate_wait_seconds_total"),
        ("messaging.client.consumed.messages", "messaging_client_consumed_messages_total"),
        ("aiokcc.period.duration", "aiokcc_period_duration_seconds"),
    ],
)
def test_names_in_prometheus_have_units(name: str, expected: str) -> None:
    assert prometheus_name(METRICS[name]) == expected


def test_the_grafana_dashboard_uses_only_names_that_are_exported() -> None:
    board = json.loads((ROOT / "examples" / "grafana" / "aiokcc.json").read_text())
    known = {
        f"{prometheus_name(metric)}{end}"
        for metric in METRICS.values()
        for end in (("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",))
    }
    used = set()
    for panel in board["panels"]:
        for target in panel["targets"]:
            words = set(re.findall(r"\b(?:aiokcc|messaging)_[a-z_]+\b", target["expr"]))
            assert words, panel["title"]
            used |= words - {"messaging_destination_name", "messaging_destination_partition_id"}
            for selected, label in re.findall(r"(\w+)\{(\w+)[!=]", target["expr"]):
                assert label in {"member", "group"}, selected
    assert used <= known
    assert len(used) >= 12


class TestHistogram:
    def test_it_counts_values_in_buckets(self) -> None:
        histogram = metrics.Histogram("aiokcc.spark.job.periods", {"pipeline": "p"})
        for value in (1, 2, 3, 5000):
            histogram.record(value)
        seen: Any = histogram.observed()
        bounds = METRICS["aiokcc.spark.job.periods"].bounds
        assert seen.value[0] == 5006
        assert dict(zip((*bounds, "more"), seen.value[1:], strict=True)) == {
            **dict.fromkeys(bounds, 0),
            1.0: 1,
            2.0: 1,
            5.0: 1,
            "more": 1,
        }

    def test_at_most_so_many_are_due_in_a_second(self) -> None:
        histogram = metrics.Histogram("aiokcc.period.duration", {})
        due = sum(histogram.is_due(step / 1000) for step in range(1000))
        assert 18 <= due <= metrics.MOST_PER_SECOND


def test_every_metric_is_described() -> None:
    page = (ROOT / "docs" / "how-to" / "metrics.md").read_text()
    assert [name for name in METRICS if f"`{name}`" not in page] == []
