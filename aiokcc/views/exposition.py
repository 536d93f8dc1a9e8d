"""Metrics in the text format of Prometheus, and the metrics of a whole group, from its status."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate
from math import inf
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from aiokcc.runtime.health import Health
from aiokcc.runtime.metrics import METRICS, Observed, prometheus_name
from aiokcc.runtime.status import Status

__all__ = ["CONTENT_TYPE", "group_metrics", "prometheus_text"]

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4


class _Collected(Collector):
    """Gives values that were collected already."""

    def __init__(self, observed: Iterable[Observed]) -> None:
        self._observed = observed

    def collect(self) -> Iterator[Family]:
        families: dict[str, Family] = {}
        for each in self._observed:
            metric = METRICS[each.name]
            name = prometheus_name(metric)
            if name not in families:
                families[name] = Family(name.removesuffix("_total"), metric.help, metric.kind)
            labels = {key.replace(".", "_"): value for key, value in each.attributes.items()}
            if isinstance(each.value, (int, float)):
                families[name].add_sample(name, labels, each.value)
                continue
            total, *counts = each.value
            for bound, count in zip((*metric.bounds, inf), accumulate(counts), strict=True):
                families[name].add_sample(
                    f"{name}_bucket", {**labels, "le": str(bound) if bound < inf else "+Inf"}, count
                )
            families[name].add_sample(f"{name}_count", labels, sum(counts))
            families[name].add_sample(f"{name}_sum", labels, total)
        yield from families.values()


def prometheus_text(observed: Iterable[Observed]) -> bytes:
    """Return the values in the text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(list(observed)))
    return generate_latest(registry)


def group_metrics(status: Status | None, health: Health | None, group: str) -> Iterator[Observed]:
    """Yield the metrics of a whole group, as its nodes in the store tell them."""
    if status is None or health is None:
        return
    which = {"group": group}
    if status.limit:
        yield Observed("aiokcc.limit", status.limit / 1000, which)
        yield Observed("aiokcc.limit.lag", time.time() - status.limit / 1000, which)
    yield Observed("aiokcc.limit.waiting", status.waiting_seconds, which)
    yield Observed("aiokcc.periods", status.periods_closed, which)
    yield Observed("aiokcc.generation", status.generation, which)
    yield Observed("aiokcc.members", len(status.members), which)
    for state, number in sorted(Counter(p.state for p in status.partitions).items()):
        yield Observed("aiokcc.partitions", number, {**which, "state": state})
    yield Observed("aiokcc.blocking", len(status.blocking), which)
    yield Observed("aiokcc.stuck", float(health.stuck), which)
    if status.offsets_total is not None:
        yield Observed("aiokcc.offsets.done", status.offsets_done or 0, which)
        yield Observed("aiokcc.offsets.expected", status.offsets_total, which)
    for pipeline in status.pipelines:
        if pipeline.published_to is not None:
            published = pipeline.published_to / 1000
            yield Observed("aiokcc.pipeline.published", published, {**which, "pipeline": pipeline.name})
