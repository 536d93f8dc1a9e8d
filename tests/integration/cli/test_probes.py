"""``aiokcc replay --metrics`` on real services: what Prometheus and probes get while it runs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.cli.test_replay import HANDLERS, Place, place

__all__ = ["place"]

pytestmark = pytest.mark.timeout(120)

SLOWLY = """
async def slowly(record):
    await asyncio.sleep(0.01)
    if not os.path.exists("silent"):
        print(os.getpid(), flush=True)
"""


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def until(url: str, *, status: int, workers: int) -> dict[str, object]:
    """Ask until the answer has this status and so many workers; a worker reports once in a second."""
    while True:
        code, text = await asyncio.to_thread(get, url)
        found: dict[str, object] = json.loads(text)
        if code == status and len(found["workers"]) == workers:  # type: ignore[arg-type]
            return found
        await asyncio.sleep(0.1)


async def owned(where: str) -> dict[str, float]:
    """Return the number of partitions that each member owns, by the metrics."""
    code, text = await asyncio.to_thread(get, f"{where}/metrics")
    assert code == 200
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    return {sample.labels["member"]: sample.value for sample in families["aiokcc_partitions_owned"]}


async def address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    seen = ""
    while line := (await process.stderr.readline()).decode():
        seen += line
        if found := re.fullmatch(r"Metrics: (http://127\.0\.0\.1:\d+)/metrics\n", line):
            return found[1]
    raise AssertionError(f"it said no address: {seen}")


async def test_metrics_and_health_are_served_while_it_runs_and_without_a_worker_that_has_ended(place: Place) -> None:
    (place.directory / "handlers.py").write_text(HANDLERS + SLOWLY)
    words = ("--assignment", "managed", "--processes", "2", "--member", "team", "--follow", "--metrics", "127.0.0.1:0")
    async with place.started("slowly", *words) as process:
        where = await address(process)
        assert process.stdout is not None
        worker = int(await process.stdout.readline())
        place.directory.joinpath("silent").touch()  # nobody reads the output any more
        ready = await until(f"{where}/readyz", status=200, workers=2)
        assert (ready["live"], ready["ready"], ready["silent"]) == (True, True, [])
        assert (await asyncio.to_thread(get, f"{where}/livez"))[0] == 200
        assert set(await owned(where)) == {"team-1", "team-2"}

        os.kill(worker, signal.SIGKILL)  # the other takes over its partitions
        left = await until(f"{where}/readyz", status=200, workers=1)
        assert left["silent"] == []
        assert len(await owned(where)) == 1
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 143
    with pytest.raises(urllib.error.URLError):
        await asyncio.to_thread(get, f"{where}/livez")
