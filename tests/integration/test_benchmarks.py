"""The benchmarks run and print what they should. Speed is not tested here, because machines differ."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aiokcc import open_store
from benchmarks import harness
from benchmarks.__main__ import main
from benchmarks.worker_pool import worker_pool

if TYPE_CHECKING:
    from aiokcc import local

HOME = Path(__file__).resolve().parents[2]


async def benchmark(*arguments: str) -> tuple[int | None, str, str]:
    process = await _start(*arguments)
    out, errors = await process.communicate()
    return process.returncode, out.decode(), errors.decode()


async def _start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks",
        *arguments,
        cwd=HOME,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


def check_form(found: dict[str, Any], name: str) -> None:
    """Checks the form on which users rely: exactly these keys, figures that are figures, ratios that are ours / anchor."""
    assert set(found) == {"benchmark", "results"}
    assert found["benchmark"] == name
    for result in found["results"]:
        assert set(result) == {"case", "unit", "ours", "anchors", "ratios"}
        assert result["case"]
        assert set(result["ratios"]) == set(result["anchors"])
        for figures in (result["ours"], *result["anchors"].values()):
            assert 0 < figures["p50"] <= figures["p99"] < math.inf
            assert figures["samples"] > 0
        for ratio in result["ratios"].values():
            assert 0 < ratio < math.inf


@pytest.mark.timeout(300)
async def test_period_latency_measures_every_case_and_every_anchor(zookeeper: local.ZooKeeper, tmp_path: Path) -> None:
    table, picture = tmp_path / "latency.json", tmp_path / "latency.svg"
    arguments = ("--quick", "--periods", "4", "--loop", "asyncio", "--url", zookeeper.url("benchmarks"))
    code, _, errors = await benchmark("period-latency", *arguments, "--json", str(table), "--plot", str(picture))
    assert code == 0, errors
    found = json.loads(table.read_text())
    check_form(found, "period-latency")
    results = found["results"]
    assert [result["case"] for result in results] == [
        {"processes": 1, "partitions": 1},
        {"processes": 1, "partitions": 64},
        {"processes": 3, "partitions": 4},
        {"processes": 16, "partitions": 1},
        {"processes": 8, "partitions": 8},
        {"processes": 16, "partitions": 64},
        {"processes": 3, "partitions": 4, "empty_periods": 86_400},
    ]
    floors = {"write", "floor"}
    assert [set(result["anchors"]) for result in results] == [
        floors | {"polling"},
        floors | {"polling"},
        *[floors | {"polling", "double-barrier"}] * 4,
        floors,
    ]
    for result in results:
        ours = result["ours"]
        assert result["unit"] == "ms"
        assert ours["samples"] == 4
        assert ours["limit_writes_per_period"] == 1
        assert ours["requests_per_period"] >= ours["writes_per_period"] >= 1
        assert ours["client_cpu_ms_per_period"] > 0
        for name, ratio in result["ratios"].items():
            assert ratio == pytest.approx(ours["p50"] / result["anchors"][name]["p50"])
    for goal in (
        "86,400 empty",
        "16 × 1: ours / double-barrier",
        "16 × 64: ours / floor",
        "16 × 1: requests per period",
    ):
        assert goal in errors
    assert "load of the machine" in errors
    assert picture.read_text().lstrip().startswith("<?xml")
    async with open_store(zookeeper.url("benchmarks")).session() as session:
        assert await session.children("") == ()  # nothing is left on a server that is not ours


async def test_a_case_of_ones_own_on_a_server_that_is_started() -> None:
    code, out, errors = await benchmark(
        "period-latency", "--quick", "--processes", "2", "--partitions", "3", "--periods", "2", "--json", "-"
    )
    assert code == 0, errors
    found = json.loads(out)
    check_form(found, "period-latency")
    case = {"processes": 2, "partitions": 3}
    on_uvloop = [{**case, "loop": "uvloop"}] if find_spec("uvloop") is not None else []
    assert [result["case"] for result in found["results"]] == [case, *on_uvloop]
    assert all(result["ours"]["server_cpu_ms_per_period"] > 0 for result in found["results"])


async def test_another_checkout_is_measured_in_turns_with_this_one(zk_root: str, tmp_path: Path) -> None:
    other = tmp_path / "before"
    other.mkdir()
    (other / "aiokcc").symlink_to(HOME / "aiokcc")
    own = ("--processes", "2", "--periods", "2", "--loop", "asyncio", "--url", zk_root, "--json", "-")
    code, out, errors = await benchmark("period-latency", "--quick", *own, "--against", str(other))
    assert code == 0, errors
    found = json.loads(out)
    check_form(found, "period-latency")
    (result,) = found["results"]
    assert result["anchors"]["before"]["samples"] == result["ours"]["samples"] == 2
    assert 0.1 < result["ratios"]["before"] < 10  # the code is the same


def test_a_path_that_is_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["period-latency", "--against", str(tmp_path)])
    assert "has no package aiokcc" in capsys.readouterr().err


async def test_members_are_measured_by_their_number_and_a_wrong_number_is_refused(
    zk_root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "members.svg"
    arguments = ("--quick", "--members", "2,9", "--url", zk_root, "--json", "-", "--plot", str(picture))
    code, out, errors = await benchmark("members", *arguments)
    assert code == 0, errors
    found = json.loads(out)
    check_form(found, "members")
    assert [(result["unit"], result["case"]["members"]) for result in found["results"]] == [
        ("ms", 2),
        ("ms", 9),
        ("ms CPU", 2),
        ("ms CPU", 9),
    ]
    few, many = (result["ours"]["requests_per_period"] for result in found["results"][:2])
    assert few < many
    assert "clients" in found["results"][-1]["anchors"]
    assert "leader's CPU" in errors  # the bars
    assert picture.read_text().lstrip().startswith("<?xml")
    with pytest.raises(SystemExit):
        main(["members", "--members", "16,1"])
    assert "whole numbers from 2 up" in capsys.readouterr().err


async def test_a_simulated_period_costs_one_operation_per_host() -> None:
    code, out, errors = await benchmark("simulation", "--quick", "--hosts", "5", "--processes", "7", "--json", "-")
    assert code == 0, errors
    found = json.loads(out)
    check_form(found, "simulation")
    operations, largest, cpu = found["results"]
    assert operations["case"] == {"hosts": 5, "processes": 7, "partitions": 1}
    assert operations["ours"]["p50"] == 6  # a report of each host, and the advance of the leader
    assert largest["ours"]["p50"] > 35  # the cut has all partitions
    assert 0 < cpu["ours"]["p50"] < cpu["anchors"]["all"]["p50"]


async def test_gate_measures_all_ways_of_asking(zk_root: str) -> None:
    code, out, errors = await benchmark("gate", "--quick", "--rounds", "3", "--url", zk_root, "--json", "-")
    assert code == 0, errors
    found = json.loads(out)
    check_form(found, "gate")
    assert [result["case"] for result in found["results"]] == [
        {"call": call} for call in ("wait_until", "is_open", "is_open, then wait_until")
    ]
    assert "is_open, then wait_until / empty coroutine" in errors
    assert all("empty-coroutine" in result["ratios"] for result in found["results"])


async def test_timers_are_measured_soon_and_late_cancelled() -> None:
    arguments = ("--quick", "--rounds", "3", "--pending", "2000", "1000", "--json", "-")
    code, out, errors = await benchmark("timers", *arguments)
    assert code == 0, errors
    found = json.loads(out)
    check_form(found, "timers")
    assert [result["case"] for result in found["results"]] == [
        {"pending": 1000, "cancelled": "soon"},
        {"pending": 1000, "cancelled": "oldest"},
        {"pending": 2000, "cancelled": "soon"},
        {"pending": 2000, "cancelled": "oldest"},
    ]
    assert all(set(result["ratios"]) == {"call_later"} for result in found["results"])
    assert "2,000 pending / 1,000 pending" in errors


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_the_store_on_kafka() -> None:
    code, out, errors = await benchmark("kafka-store", "--quick", "--json", "-")
    assert code == 0, errors
    found = json.loads(out)
    check_form(found, "kafka-store")
    assert [result["case"]["measured"] for result in found["results"]] == ["join", "bytes", "idle"]


async def test_assignments_are_measured_and_their_moves_counted() -> None:
    arguments = ("--quick", "--rounds", "2", "--partitions", "60", "--members", "5", "--json", "-")
    code, out, errors = await benchmark("assignment", *arguments)
    assert code == 0, errors
    found = json.loads(out)
    check_form(found, "assignment")
    moves = {
        (result["case"]["subscription"], result["case"]["change"]): result["ours"]["moves"]
        for result in found["results"]
    }
    assert [change for kind, change in moves if kind == "everything"] == ["start", "stay", "join", "leave"]
    assert moves["everything", "join"] == 10  # its share, and no more
    assert not any(count for (_, change), count in moves.items() if change != "join")
    anchored = [result for result in found["results"] if result["case"]["subscription"] != "limited"]
    assert all(set(result["anchors"]) == {"aiokafka-sticky"} for result in anchored)


@pytest.mark.timeout(180)
async def test_reading_kafka_is_measured_in_every_way(
    kafka: local.Kafka, zookeeper: local.ZooKeeper, tmp_path: Path
) -> None:
    async def quick(name: str, *arguments: str) -> list[dict[str, Any]]:
        table = tmp_path / f"{name}.json"
        services = ("--bootstrap", kafka.bootstrap, *arguments)
        code, _, errors = await benchmark(name, "--quick", *services, "--json", str(table))
        assert code == 0, errors
        found = json.loads(table.read_text())
        check_form(found, name)
        results: list[dict[str, Any]] = found["results"]
        return results

    url = ("--url", zookeeper.url("benchmarks-on-kafka"))
    throughput, skew, resume = await asyncio.gather(
        quick("throughput", *url, "--plot", str(tmp_path / "throughput.svg")), quick("skew"), quick("resume", *url)
    )
    assert [result["unit"] for result in throughput] == ["records/s"] * 8 + [
        "× real time",
        "periods/s",
        "CPU us/record",  # with --metrics
        "CPU us/record",  # the SDK alone
    ]
    plain = {"async-for", "getmany", "getmany-best", "ungated"}
    plain |= {"confluent"} if find_spec("confluent_kafka") is not None else set()
    quix = {"quix-concat"} if find_spec("quixstreams") is not None else set()
    assert [set(result["anchors"]) for result in throughput] == [
        plain | quix,
        plain | quix | {"memory"},
        plain | quix | {"memory"},
        plain | quix,
        plain | quix,
        {"ungated"},
        {"ungated"},
        {"ungated"},
        {"write"},
        {"write"},
        {"without"},
        {"without", "sdk-imported"},
    ]
    assert (tmp_path / "throughput.svg").read_text().lstrip().startswith("<?xml")
    (peak,) = skew
    assert peak["unit"] == "MB"
    assert peak["case"]["records"] == 11_100
    (killed,) = resume
    assert killed["ours"]["most_again"] <= killed["ours"]["records_per_period"]
    assert set(killed["anchors"]) == {"group"}
    async with open_store(zookeeper.url("benchmarks-on-kafka")).session() as session:
        assert await session.children("") == ()


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_handing_over_is_measured_in_every_way(
    kafka: local.Kafka, zookeeper: local.ZooKeeper, tmp_path: Path
) -> None:
    table, url = tmp_path / "rebalance.json", zookeeper.url("benchmarks-on-groups")
    services = ("--bootstrap", kafka.bootstrap, "--url", url)
    code, _, errors = await benchmark("rebalance", "--quick", *services, "--json", str(table))
    assert code == 0, errors
    found = json.loads(table.read_text())
    check_form(found, "rebalance")
    units = [*["ms CPU"] * 4, *["store operations"] * 2, *["store round trips"] * 6, *["s"] * 3]
    assert [result["unit"] for result in found["results"]] == units
    assert all(set(result["anchors"]) == {"kafka group"} for result in found["results"][-3:])
    growth = found["results"][-1]
    assert growth["case"] == {"members": 2, "before": 4, "after": 12}
    for figures in (growth["ours"], growth["anchors"]["kafka group"]):
        assert figures["assigned_s"] > 0


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_pipeline_on_spark_is_measured_in_every_way(
    kafka: local.Kafka, zookeeper: local.ZooKeeper, tmp_path: Path
) -> None:
    table, url = tmp_path / "spark.json", zookeeper.url("benchmarks-on-spark")
    services = ("--bootstrap", kafka.bootstrap, "--url", url)
    code, _, errors = await benchmark("spark", "--quick", "--records", "1200", *services, "--json", str(table))
    assert code == 0, errors
    found = json.loads(table.read_text())
    check_form(found, "spark")
    assert [(result["case"]["what"], result["unit"], set(result["anchors"])) for result in found["results"]] == [
        ("catch-up", "s", {"plain", "tuned"}),
        ("vouched for", "s", {"plain", "tuned"}),
        ("mostly empty", "s", {"catch-up"}),
        ("to Parquet", "s", {"plain", "parquet"}),
        ("steady state", "ms", {"job"}),
        ("the gate", "ms", {"write"}),
        ("driver memory", "MB", {"a tenth"}),
    ]
    for goal in (
        "against one plain read",
        "without periods",
        "bare tuned job",
        "the gate",
        "most of them empty",
        "memory",
    ):
        assert goal in errors
    async with open_store(url).session() as session:
        assert await session.children("") == ()


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_the_large_history_on_spark_is_measured_in_every_way(
    kafka: local.Kafka, zookeeper: local.ZooKeeper, tmp_path: Path
) -> None:
    table, url = tmp_path / "spark.json", zookeeper.url("benchmarks-large")
    services = ("--bootstrap", kafka.bootstrap, "--url", url)
    code, _, errors = await benchmark("spark", "--quick", "--only", "large", *services, "--json", str(table))
    assert code == 0, errors
    found = json.loads(table.read_text())
    check_form(found, "spark")
    assert [(result["case"]["what"], result["unit"], set(result["anchors"])) for result in found["results"]] == [
        ("large", "s", {"tuned"}),
        ("large to Parquet", "s", {"by hour"}),
        ("large rows to Parquet", "s", {"rows by hour"}),
        ("nothing to do", "s", set()),
        ("restating", "s", {"whole"}),
    ]
    for goal in ("aggregate only", "a file per hour", "nothing to do, s", "restating 24 of 48 hours"):
        assert goal in errors


async def test_interrupting_ends_all_processes(zk_root: str) -> None:
    process = await _start("period-latency", "--processes", "3", "--periods", "1000000", "--url", zk_root)
    assert process.stderr is not None
    async with open_store(zk_root).session() as session:
        await session.ensure("")
        with session.watch() as watch:  # until the workers are at work
            watch.add_children("")
            async for change in watch:
                names: tuple[str, ...] = getattr(change.now, "names", ())
                if names:
                    break
        (name,) = names
        with session.watch() as watch:
            watch.add(f"{name}/3x1-gate/progress")
            async for change in watch:
                if change.now is not None:
                    break
        workers = await _descendants(process.pid)
        assert workers
        os.kill(process.pid, signal.SIGINT)
        _, errors = await process.communicate()
        assert process.returncode == 130, errors
        assert "Traceback" not in errors.decode()
        assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
        assert await session.children("") == ()


async def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        children = [int(child) for child in (task / "children").read_text().split()]
        for child in children:
            found += [child, *await _descendants(child)]
    return found


async def test_open_pages_of_the_dashboard_are_measured(zookeeper: local.ZooKeeper, tmp_path: Path) -> None:
    table = tmp_path / "dashboard.json"
    words = ("--url", zookeeper.url("benchmark-dashboard"), "--pages", "5", "--seconds", "1", "--json", str(table))
    code, _, errors = await benchmark("dashboard", *words)
    assert code == 0, errors
    results = json.loads(table.read_text())["results"]
    found = {(result["case"]["pages"], result["unit"]): result["ours"]["p50"] for result in results}
    assert set(found) == {(pages, unit) for pages in (0, 1, 5) for unit in ("requests/s", "% of a core", "kB/s")}
    assert found[0, "requests/s"] > 0
    assert found[5, "kB/s"] > found[1, "kB/s"] > 0 == found[0, "kB/s"]


async def test_a_failing_worker_ends_the_run_and_its_error_output_is_shown() -> None:
    plans = [{"way": "no such way"}] * 2
    with pytest.raises(
        harness.BenchmarkError, match=r"worker broken/\d ended with exit code 1(.|\n)*KeyError: 'no such way'"
    ):
        async with worker_pool("broken", plans, timeout=30):
            pytest.fail("it cannot be ready")


def test_without_a_name_it_lists_the_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    for word in (
        "period-latency",
        "gate",
        "throughput",
        "skew",
        "resume",
        "timers",
        "assignment",
        "dashboard",
        "examples:",
        "python -m benchmarks period-latency --quick",
    ):
        assert word in out


def test_a_store_that_processes_cannot_share_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["period-latency", "--url", "memory://here"]) == 1
    assert "zk://host:port" in capsys.readouterr().err


def test_percentiles_lie_between_neighbours() -> None:
    assert harness.percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert harness.percentile([1.0, 2.0], 0.5) == 1.5
    assert harness.percentile([7.0], 0.99) == 7.0


def test_tables_need_no_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    result = harness.Result("one", {"n": 1}, "ms", {"p50": 1.0, "p99": 2.0}, {"anchor": {"p50": 4.0}})
    harness.show(harness.Outcome("name", "Title", [result], [harness.Goal("goal", 2.0, 1.0)]))
    shown = capsys.readouterr().err
    assert "4  (0.25)" in shown
    assert "MISSED" in shown
