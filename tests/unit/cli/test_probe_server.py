"""The server of metrics and health that ``aiokcc replay --metrics`` runs."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from aiokcc.cli import probe_server
from aiokcc.cli.probe_server import Probes, serve_probes
from aiokcc.errors import UsageError


def report(**changed: Any) -> dict[str, Any]:
    health = {"live": True, "ready": True, "stuck": False, "why": "The limit moves.", **changed}
    return {"health": health, "metrics": [["aiokcc.periods", 7, {"member": "one"}]]}


async def get(probes: Probes, path: str) -> httpx.Response:
    async with serve_probes(probes, "127.0.0.1", 0) as where, httpx.AsyncClient() as client:
        return await client.get(where.replace("/metrics", path))


async def test_metrics_are_prometheus_text() -> None:
    probes = Probes(1)
    probes.receive(0, report())
    answer = await get(probes, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    [family] = text_string_to_metric_families(answer.text)
    assert [(s.name, s.labels, s.value) for s in family.samples] == [("aiokcc_periods_total", {"member": "one"}, 7.0)]


@pytest.mark.parametrize(
    ("facts", "live", "ready", "healthy"),
    [
        ({}, 200, 200, 200),
        ({"ready": False}, 200, 503, 200),
        ({"stuck": True}, 200, 200, 503),
        ({"live": False, "ready": False}, 503, 503, 503),
    ],
)
async def test_liveness_and_readiness_are_apart(facts: dict[str, Any], live: int, ready: int, healthy: int) -> None:
    probes = Probes(1)
    probes.receive(0, report(**facts))
    found = [(await get(probes, path)).status_code for path in ("/livez", "/readyz", "/healthz")]
    assert found == [live, ready, healthy]


async def test_it_is_live_but_not_ready_before_all_workers_have_joined() -> None:
    probes = Probes(2)
    probes.receive(0, report())
    assert (await get(probes, "/livez")).status_code == 200
    assert (await get(probes, "/readyz")).status_code == 503


async def test_a_worker_that_is_silent_is_not_live(monkeypatch: pytest.MonkeyPatch) -> None:
    probes = Probes(1)
    probes.receive(0, report())
    monkeypatch.setattr(probe_server, "_SILENT_SECONDS", -1.0)
    answer = await get(probes, "/livez")
    assert answer.status_code == 503
    assert answer.json()["silent"] == [1]


async def test_a_worker_that_is_silent_from_the_first_record_on_is_not_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handler blocks the event loop before it has reported anything."""
    probes = Probes(2)
    monkeypatch.setattr(probe_server, "_SILENT_SECONDS", -1.0)
    assert (await get(probes, "/livez")).status_code == 200, "it has not joined, which may take as long as it takes"
    probes.joined(1)
    answer = await get(probes, "/livez")
    assert (answer.status_code, answer.json()["silent"]) == (503, [2])
    probes.forget(1)
    assert (await get(probes, "/livez")).status_code == 200


async def test_other_paths_and_methods_are_refused() -> None:
    probes = Probes(1)
    assert (await get(probes, "/else")).status_code == 404
    async with serve_probes(probes, "127.0.0.1", 0) as where, httpx.AsyncClient() as client:
        assert (await client.post(where)).status_code == 405
        with pytest.raises(UsageError, match="is taken by another program"):
            async with serve_probes(probes, "127.0.0.1", int(where.split(":")[2].partition("/")[0])):
                pass


async def test_the_address_of_ipv6_can_be_opened() -> None:
    async with serve_probes(Probes(1), "::1", 0) as where, httpx.AsyncClient() as client:
        assert where.startswith("http://[::1]:")
        assert (await client.get(where)).status_code == 200
