"""The session that `aiokcc.spark.session` makes: it reads Kafka, leaves signals alone and ends with its process."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import aiokcc.spark
from aiokcc import local
from aiokcc.errors import UsageError
from aiokcc.local._java import java_home
from tests import kafka_topics
from tests.kafka_topics import Row
from tests.processes import ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(180)  # Spark takes its time to start, on a busy machine much


async def test_it_reads_kafka_by_offsets(spark: SparkSession, kafka: local.Kafka) -> None:
    topic = await kafka_topics.create_fresh(kafka.bootstrap, partitions=2)
    await kafka_topics.write(kafka.bootstrap, topic, [Row(n % 2, 1000 + n, b"%d" % n) for n in range(20)])
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
    reader = reader.option("assign", json.dumps({topic: [0, 1]}))
    reader = reader.option("startingOffsets", json.dumps({topic: {"0": 2, "1": 3}}))
    frame = reader.option("endingOffsets", json.dumps({topic: {"0": 5, "1": 9}})).load()
    rows = await asyncio.to_thread(lambda: frame.selectExpr("cast(value as string)").collect())
    assert sorted(int(row[0]) for row in rows) == [4, 6, 7, 8, 9, 11, 13, 15, 17]


def test_its_settings_suit_many_small_jobs(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None


def test_functions_in_python_run_on_this_python(spark: SparkSession) -> None:
    where = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert where == [sys.executable]


def test_a_second_call_returns_the_same_session(spark: SparkSession) -> None:
    said: list[str] = []
    assert aiokcc.spark.session(app="again", master="local[2]", progress=said.append) is spark
    assert said == [f"Spark {spark.version} runs already: local[2]"]


def test_another_master_is_refused_while_it_runs(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match=r"the master 'local\[2\]' is running in this process"):
        aiokcc.spark.session(app="other", master="local[1]")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"app": ""}, "app must be a name"),
        ({"master": "local[two]"}, r"it is local\[N\] with N cores"),
        ({"master": "sc://127.0.0.1"}, "Spark Connect server"),
        ({"driver_memory": "2g"}, "'driver_memory' is no setting of Spark"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        aiokcc.spark.session(**arguments)


@pytest.mark.parametrize("modules", ["java.base@17", "java.base@17 jdk.incubator.vector@17"], ids=["small", "whole"])
def test_a_java_without_optional_modules_is_started_without_them(modules: str, tmp_path: Path) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\n[ "$1" = --list-modules ] && echo "{modules}" || printf "<%s>" "$@"\n')
    java.chmod(0o755)
    home = java_home(str(java), tmp_path / "cache")
    command = [str(home / "bin" / "java"), "-Da=b c", "--add-modules=jdk.incubator.vector", "", "Main"]
    seen = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    asked = "<--add-modules=jdk.incubator.vector>" if "vector" in modules else ""
    assert seen == f"<-Da=b c>{asked}<><Main>"
    assert java_home(str(java), tmp_path / "cache") == home


DRIVER = """
    import asyncio, signal, sys
    import aiokcc.spark

    async def main():
        asked = signal.getsignal(signal.SIGINT)
        spark = await asyncio.to_thread(aiokcc.spark.session, master="local[1]", progress=lambda line: None)
        assert signal.getsignal(signal.SIGINT) is asked
        print(spark.sparkContext._gateway.proc.pid, flush=True)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            print("cancelled", flush=True)
            raise

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored
    asyncio.run(main())
"""


@pytest.mark.service
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name)
def test_java_ends_with_the_driver_and_asyncio_still_handles_ctrl_c(number: signal.Signals) -> None:
    command = [sys.executable, "-c", textwrap.dedent(DRIVER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            assert driver.stderr is not None
            line = driver.stdout.readline()
            assert line, driver.stderr.read()
            driver.send_signal(number)
            assert driver.stdout.read() == ("cancelled\n" if number == signal.SIGINT else "")
            assert ended(int(line), within=60), "Java outlived its driver"
        finally:
            driver.kill()
