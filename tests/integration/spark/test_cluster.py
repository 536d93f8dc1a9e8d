"""The pipeline on a real cluster: the same code, and the same bytes as in local mode, with a worker killed in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

import aiokcc.spark
from aiokcc import local
from aiokcc.spark import ParquetSink, Summary
from tests import pipelines
from tests.cluster_driver import Spec
from tests.pipelines import some_records, totals, totals_in_python, totals_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]
MINUTES = 12

pytestmark = pytest.mark.timeout(900)  # half a dozen Java processes on a busy machine


def hashes(out: Path) -> dict[int, list[str]]:
    """Return the hashes of the published files, by period."""
    return {period.start: [file.sha256 for file in period.files] for period in aiokcc.spark.manifest(out)}


@pytest.mark.long
async def test_same_bytes_as_in_local_mode_though_a_worker_was_killed(
    spark: SparkSession, kafka: local.Kafka, zk_root: str, tmp_path: Path
) -> None:
    chance = random.Random(7)
    logs = [
        await pipelines.write(kafka, "orders", [some_records(chance, 200, minutes=MINUTES) for _ in range(3)]),
        await pipelines.write(
            kafka, "payments", [some_records(chance, 100, minutes=MINUTES, first=1000 * n) for n in (1, 2)]
        ),
    ]
    topics = [log.name for log in logs]
    one, other = tmp_path / "local", tmp_path / "cluster"

    def run_locally() -> Summary:
        settings: dict[str, Any] = {"store": f"{zk_root}-local", "name": "p", "period": "1m", "end": "now"}
        with aiokcc.spark.replay(spark, *topics, bootstrap_servers=kafka.bootstrap, **settings) as replay:
            return replay.for_each_period(totals, sink=ParquetSink(one))

    await asyncio.to_thread(run_locally)
    rows = await asyncio.to_thread(lambda: aiokcc.spark.read(spark, one).collect())
    assert totals_of(rows) == totals_in_python(logs)

    caught = tmp_path / "caught"
    os.mkfifo(caught)
    middle = 2050  # a payment of the sixth minute or so
    async with local.spark(workers=2) as cluster:
        trap = [str(tmp_path), middle]
        spec = Spec(cluster.url, kafka.bootstrap, f"{zk_root}-cluster", topics, str(other), 4, trap)
        command = [sys.executable, "-m", "tests.cluster_driver", json.dumps(asdict(spec))]
        with (tmp_path / "driver.log").open("wb") as log:
            driver = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        try:
            async with asyncio.TaskGroup() as tasks:
                ending = tasks.create_task(driver.communicate())
                catching = tasks.create_task(first_line(caught))
                await asyncio.wait([ending, catching], return_when=asyncio.FIRST_COMPLETED)
                assert not ending.done(), (tmp_path / "driver.log").read_text()
                worker = worker_of(int(catching.result()), cluster)
                survivor = next(one for one in cluster.workers if one is not worker)
                published = set(hashes(other))
                await worker.kill()
            out, _ = ending.result()
        finally:
            if driver.returncode is None:
                driver.kill()
        said = (tmp_path / "driver.log").read_text()
        assert driver.returncode == 0, said
        assert worker.pid is None
        assert survivor.pid is not None
        submitted = tmp_path / "submitted"
        await submit(cluster, Spec("", kafka.bootstrap, f"{zk_root}-submitted", topics, str(submitted), 100, []))
    assert hashes(submitted) == hashes(one)
    assert 0 < len(published) < MINUTES, "the worker was to be killed in the middle"
    assert hashes(other) == hashes(one)
    assert json.loads(out)["periods"] == len(hashes(one))


async def submit(cluster: local.SparkCluster, spec: Spec) -> None:
    """Run a driver by Spark's own script, which brings master and connector."""
    jars = [str(jar) for jar in (await local.prepare_spark(print)).jars]
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", cluster.url]
    command += ["--jars", ",".join(jars), "--conf", "spark.driver.bindAddress=127.0.0.1"]
    command += [str(ROOT / "tests" / "cluster_driver.py"), json.dumps(asdict(spec))]
    variables = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    driver = await asyncio.create_subprocess_exec(*command, env={**os.environ, **variables}, stdout=-1, stderr=-1)
    _, said = await driver.communicate()
    assert driver.returncode == 0, said.decode()


async def first_line(pipe: Path) -> bytes:
    """Return the first line of a named pipe. It is opened for writing too, so that opening does not wait for the other side."""
    lines = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(os.open(pipe, os.O_RDWR | os.O_NONBLOCK), "rb", 0)
    )
    try:
        return await lines.readline()
    finally:
        transport.close()


def worker_of(task: int, cluster: local.SparkCluster) -> local.Service:
    """Return the worker that has started a process of an executor."""
    by_pid = {worker.pid: worker for worker in cluster.workers}
    while task not in by_pid:
        assert task > 1, "it is below no worker"
        task = int(Path(f"/proc/{task}/stat").read_text().rpartition(")")[2].split()[1])
    return by_pid[task]
