"""The local Spark cluster: starts, runs jobs, survives the end of a worker, and ends with its parent."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from aiokcc import local
from aiokcc.errors import LocalServiceError, UsageError
from aiokcc.local import _spark
from aiokcc.local._process import free_ports
from tests.processes import ended, supervisors_of

pytestmark = [pytest.mark.service, pytest.mark.timeout(300)]  # four or five Java processes on a busy machine


def state(cluster: local.SparkCluster) -> dict[str, object]:
    """Returns the state that the page of the master shows."""
    with urlopen(f"{cluster.page}/json/") as answer:
        told: dict[str, object] = json.load(answer)
    return told


def pids(cluster: local.SparkCluster) -> list[int]:
    found = [service.pid for service in (cluster.master, *cluster.workers)]
    assert all(found)
    return [pid for pid in found if pid]


# Runs on the cluster: a sum, and on which processes Python functions ran. Then it waits, for a worker to be killed, and does
# it again.
DRIVER = """
    import os, sys
    import aiokcc.spark

    with aiokcc.spark.session(master=sys.argv[1], progress=lambda line: None) as spark:
        numbers = spark.sparkContext.parallelize(range(1000), 8)
        print(sum(numbers.map(lambda n: n * n).collect()), flush=True)
        sys.stdin.readline()
        print(sum(numbers.map(lambda n: n * n).collect()), flush=True)
"""


async def test_a_job_runs_and_runs_again_after_a_worker_was_killed() -> None:
    async with local.spark(workers=2) as cluster:
        told = state(cluster)
        assert told["url"] == cluster.url
        assert (told["aliveworkers"], told["cores"], told["memory"]) == (2, 2, 2048)
        command = [sys.executable, "-c", textwrap.dedent(DRIVER), cluster.url]
        pipe = asyncio.subprocess.PIPE
        driver = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
        assert driver.stdin is not None
        assert driver.stdout is not None
        right = b"%d\n" % sum(n * n for n in range(1000))
        assert await driver.stdout.readline() == right
        executors = [pid for worker in cluster.workers for pid in children(worker)]
        assert len(executors) == 2
        await cluster.workers[0].kill()
        assert ended(executors[0])
        driver.stdin.write(b"go on\n")
        out, err = await driver.communicate()
        assert out == right, err.decode()
        assert driver.returncode == 0
        await cluster.workers[0].start()  # it comes back on the same port
        assert state(cluster)["aliveworkers"] == 2


def children(service: local.Service) -> list[int]:
    """The Java processes that a worker has started."""
    found: list[int] = []
    for task in Path(f"/proc/{service.pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


async def test_it_ends_with_its_context_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with local.spark(workers=1) as cluster:
        mine = pids(cluster)
        listening = listeners(mine)
        cluster.workers[0].freeze()
    assert all(ended(pid, 0) for pid in mine)
    assert list(tmp_path.iterdir()) == []
    assert listening == {"127.0.0.1"}


def listeners(of: list[int]) -> set[str]:
    """The addresses on which processes listen for connections."""
    found = set()
    for pid in of:
        inodes = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                    found.add(ipv4(fields[1].partition(":")[0]))
    return found


def ipv4(written: str) -> str:
    """An address as the kernel writes it; the last four bytes, in reverse."""
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(written[-8:])))


async def test_logs_stay_in_a_directory_that_the_user_chose(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with local.spark(workers=1, port=port, data_dir=tmp_path) as cluster:
        assert cluster.url == f"spark://127.0.0.1:{port}"
    assert "Registering worker" in (tmp_path / "spark-master.log").read_text()


async def test_a_port_that_is_taken(zookeeper: local.ZooKeeper) -> None:
    with pytest.raises(LocalServiceError, match="Address already in use"):
        async with local.spark(workers=1, port=zookeeper.server.port):
            pass


async def test_a_port_taken_meanwhile_is_replaced(zookeeper: local.ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    offers = [[zookeeper.server.port, *free_ports(3)]]
    monkeypatch.setattr(_spark, "free_ports", lambda count: offers.pop() if offers else free_ports(count))
    async with local.spark(workers=1) as cluster:
        assert not offers
        assert state(cluster)["aliveworkers"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers must be at least 1"),
        ({"cores": 0}, "cores must be at least 1"),
        ({"memory": "much"}, "memory must be a number with m or g"),
        ({"port": 70_000}, "port must be between"),
    ],
)
async def test_nonsense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        async with local.spark(**arguments):
            pass


# The command line


def test_the_command_prints_an_address_and_ends_when_told() -> None:
    command = [sys.executable, "-m", "aiokcc", "local", "spark", "--workers", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            while "Stop " not in said:
                line = process.stdout.readline()
                assert line, f"it ended early, after: {said}"
                said += line
            assert "Spark is up: a master and 1 worker with 1 core and 1g each on 127.0.0.1, data temporary" in said
            page = said.partition("page ")[2].split()[0]
            with urlopen(f"{page}/json/") as answer:
                assert json.load(answer)["url"] == said.partition("master   ")[2].split()[0]
            process.send_signal(signal.SIGTERM)
            assert "Spark has stopped." in process.stdout.read()
            assert process.wait(60) == 143
        finally:
            process.kill()


# The end of the parent

PARENT = """
    import asyncio
    from aiokcc import local

    async def main():
        async with local.spark(workers=1) as cluster:
            print(cluster.master.pid, cluster.workers[0].pid, cluster.master.log.parent, flush=True)
            await asyncio.Event().wait()

    asyncio.run(main())
"""


def test_the_cluster_ends_with_a_parent_that_is_killed() -> None:
    command = [sys.executable, "-c", textwrap.dedent(PARENT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        try:
            assert parent.stdout is not None
            told = parent.stdout.readline().split()
            assert len(told) == 3, "the parent ended early"
            supervisors = supervisors_of(parent.pid)
            parent.kill()
            parent.wait(20)
            assert all(ended(int(pid)) for pid in told[:2])
            assert all(ended(pid) for pid in supervisors)
            assert not Path(told[2]).exists()
        finally:
            parent.kill()
