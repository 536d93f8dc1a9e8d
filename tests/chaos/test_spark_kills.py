"""Drivers of a pipeline that die or freeze after each step: no period is missing, and none is published twice."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import aiokcc
from aiokcc import local
from aiokcc.runtime.options import wall_clock
from aiokcc.spark.pipeline import BatchStep
from aiokcc.spark.tables import published
from tests import pipelines
from tests.balances import balances_at, balances_in_python, rows_of, state_of
from tests.chaos.spark_driver import Spec
from tests.pipelines import some_records, totals_in_python, totals_of
from tests.replays import MINUTE, at
from tests.spark_gateway import connect_server, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


class Driver:
    """One process."""

    def __init__(self, spark: SparkSession, spec: Spec, log: Path) -> None:
        self.spec = spec
        self._environment = environment(spark)
        self._log = log
        self.said: list[str] = []

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.chaos.spark_driver",
                json.dumps(asdict(self.spec)),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._environment,
            )

    async def until(self, *lines: str) -> str:
        """Read the driver's output until it has one of these lines, and return the line."""
        assert self.process.stdout is not None
        while raw := await self.process.stdout.readline():
            self.said.append(raw.decode().strip())
            if self.said[-1] in lines:
                return self.said[-1]
        raise AssertionError(f"it ended without {lines}: {self.said[-5:]}\n{self._log.read_text()[-4000:]}")

    async def end(self) -> int:
        assert self.process.stdout is not None
        self.said += (await self.process.stdout.read()).decode().splitlines()
        return await self.process.wait()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


def check(spark: SparkSession, out: Path, logs: list[pipelines.Log]) -> None:
    """Check that the published result equals that of plain Python, and that its periods tile the logs."""
    assert totals_of(aiokcc.spark.read(spark, out).collect()) == totals_in_python(logs)
    stands = {(log.name, number): 0 for log in logs for number in range(len(log.partitions))}
    before = 0
    for period in aiokcc.spark.manifest(out):
        assert period.start >= before
        before = period.end
        for partition, (start, end) in period.ranges.items():
            assert stands[partition] == start, f"{partition}: {stands[partition]} is followed by {start}"
            stands[partition] = end
    assert stands == {(log.name, n): len(records) for log in logs for n, records in enumerate(log.partitions)}


@pytest.mark.parametrize("end", ["now", "past", "future", "scheduled", "past, with Spark Connect"])
async def test_a_driver_killed_after_any_step_loses_and_repeats_no_period(
    spark: SparkSession, kafka: local.Kafka, zookeeper: local.ZooKeeper, tmp_path: Path, end: str
) -> None:
    """With ``end=TIME``, 15 drivers die one after the other."""
    chance = random.Random(8)
    records = [some_records(chance, 60, minutes=18, disorder=MINUTE // 2) for _ in range(2)]
    log = await pipelines.write(kafka, "kills", records)
    out = tmp_path / "out"
    # The last one comes while drivers are killed: the run was founded before it, and goes on after it.
    ends: dict[str, str | int] = {
        "past": at(100),
        "past, with Spark Connect": at(100),
        "future": wall_clock() + 5000,
    }
    spec = Spec(
        zookeeper.url(log.name),
        kafka.bootstrap,
        [log.name],
        str(out),
        end=ends.get(end, "now"),
        available=at(100) if end == "scheduled" else 0,
        max_periods=1 if end == "past" else 2,
    )
    steps = ["publishing", *(step.value for step in BatchStep)]
    if "Connect" in end:
        steps = ["publishing", "intended", "staged", "checkpointed"]
    if end == "past":
        steps = [*steps, *steps, "publishing"]
    async with AsyncExitStack() as stack:
        if "Connect" in end:
            spec = replace(spec, connect=stack.enter_context(connect_server(spark)))
        for number, step in enumerate(steps):
            driver = Driver(spark, replace(spec, stop=[step, number, int(signal.SIGKILL)]), tmp_path / "drivers.log")
            await driver.start()
            stack.push_async_callback(driver.kill)
            assert await driver.end() == -signal.SIGKILL, (tmp_path / "drivers.log").read_text()[-4000:]
            assert driver.said[-1] == f"{step} {number}"
        last = Driver(spark, spec, tmp_path / "drivers.log")
        await last.start()
        stack.push_async_callback(last.kill)
        assert await last.end() == 0, (tmp_path / "drivers.log").read_text()[-4000:]
        assert last.said[-1] == "done"
    check(spark, out, [log])


@pytest.mark.parametrize("delta", [False, pytest.param(True, marks=pytest.mark.long)], ids=["parquet", "delta"])
async def test_a_restatement_killed_at_any_step_has_not_begun_or_is_done(
    spark: SparkSession, kafka: local.Kafka, zookeeper: local.ZooKeeper, tmp_path: Path, delta: bool
) -> None:
    chance = random.Random(15)
    log = await pipelines.write(kafka, "restated", [some_records(chance, 60, minutes=8) for _ in range(2)])
    out, drivers = tmp_path / "out", tmp_path / "drivers.log"
    spec = Spec(zookeeper.url(log.name), kafka.bootstrap, [log.name], str(out), available=at(100), delta=delta)
    whole = totals_in_python([log])
    old = [row for row in whole if row[0] < at(4)]

    def restated(rows: list[Any]) -> list[tuple[int, ...]]:
        return [(start, who, (1 + (at(1) <= start < at(3))) * total, *rest) for start, who, total, *rest in rows]

    def rows() -> list[tuple[int, ...]]:
        return list(totals_of(aiokcc.spark.read(spark, out).collect()))

    async with AsyncExitStack() as stack:

        async def start(spec: Spec, code: int) -> None:
            driver = Driver(spark, spec, drivers)
            await driver.start()
            stack.push_async_callback(driver.kill)
            assert await driver.end() == code, drivers.read_text()[-4000:]

        # The driver has died, too, and its third batch is recorded. The range has a half of each of the first two.
        await start(replace(spec, stop=["staged", 2, int(signal.SIGKILL)]), -signal.SIGKILL)
        again = replace(spec, restate=[at(1), at(3)])
        for step in ("checked", "fenced", "staged", "replacing", "published"):
            await start(replace(again, stop=[step, 0, int(signal.SIGKILL)]), -signal.SIGKILL)
            assert rows() == (restated(old) if step == "published" else old)
        await start(again, 0)
        assert rows() == restated(old)
        await start(spec, 0)  # it goes on, and removes what is left of the killed ones
    assert rows() == restated(whole)
    if not delta:
        found = published(out)
        named = {file.path.split("/")[1] for one in found.newest_first() for p in one.periods for file in p.files}
        assert {path.name for path in (out / "_aiokcc" / "data").iterdir()} == named
        assert len(found.restates) == 2


@pytest.mark.long  # test_state.py has the steps in one process, and test_states.py each operation on a disk
@pytest.mark.parametrize("delta", [False, True], ids=["parquet", "delta"])
async def test_state_is_resumed_exactly_after_a_driver_was_killed_at_any_step(
    spark: SparkSession, kafka: local.Kafka, zookeeper: local.ZooKeeper, tmp_path: Path, delta: bool
) -> None:
    chance = random.Random(13)
    log = await pipelines.write(kafka, "state", [some_records(chance, 60, minutes=12) for _ in range(2)])
    out, drivers = tmp_path / "out", tmp_path / "drivers.log"
    spec = Spec(zookeeper.url(log.name), kafka.bootstrap, [log.name], str(out), max_periods=1000, chain=1, delta=delta)
    steps = ["staging", "publishing", *(step.value for step in BatchStep)]
    async with AsyncExitStack() as stack:
        for number, step in enumerate(steps):
            # Every other driver takes two periods at once: the next one has to finish what it had recorded.
            mine = replace(spec, stop=[step, number, int(signal.SIGKILL)], chain=1 + number % 2)
            driver = Driver(spark, mine, drivers)
            await driver.start()
            stack.push_async_callback(driver.kill)
            assert await driver.end() == -signal.SIGKILL, drivers.read_text()[-4000:]
        last = Driver(spark, spec, drivers)
        await last.start()
        stack.push_async_callback(last.kill)
        assert await last.end() == 0, drivers.read_text()[-4000:]
    if delta:
        from deltalake import DeltaTable

        rows = spark.read.parquet(*DeltaTable(str(out)).file_uris()).collect()
    else:
        rows = aiokcc.spark.read(spark, out).collect()
    assert rows_of(rows) == balances_in_python(log)
    assert state_of(aiokcc.spark.read_state(spark, out).collect()) == balances_at(log)
    assert len([*out.rglob("state-*.parquet")]) == 2, "left-overs of killed drivers, or states that are not kept"


@pytest.mark.parametrize("step", ["staged", "publishing"])
async def test_a_frozen_driver_publishes_nothing_after_it_was_replaced(
    spark: SparkSession, kafka: local.Kafka, zookeeper: local.ZooKeeper, tmp_path: Path, step: str
) -> None:
    chance = random.Random(9)
    log = await pipelines.write(kafka, "sleep", [some_records(chance, 40, minutes=6) for _ in range(2)])
    out = tmp_path / "out"
    spec = Spec(zookeeper.url(log.name), kafka.bootstrap, [log.name], str(out))
    async with AsyncExitStack() as stack:
        sleeper = Driver(spark, replace(spec, stop=[step, 1, int(signal.SIGSTOP)]), tmp_path / "sleeper.log")
        await sleeper.start()
        stack.push_async_callback(sleeper.kill)
        await sleeper.until(f"{step} 1")
        successor = Driver(spark, spec, tmp_path / "successor.log")
        await successor.start()
        stack.push_async_callback(successor.kill)
        # In the middle of it: the successor has begun, and what both of them would publish is not published.
        await successor.until("staged 1")
        sleeper.process.send_signal(signal.SIGCONT)
        assert await sleeper.end() != 0
        assert sleeper.said[-1] == "FencedError", (tmp_path / "sleeper.log").read_text()[-4000:]
        assert "published 1" not in sleeper.said
        assert await successor.end() == 0, (tmp_path / "successor.log").read_text()[-4000:]
    check(spark, out, [log])


async def test_standby_drivers_continue_after_a_killed_and_after_a_frozen_driver(
    spark: SparkSession, kafka: local.Kafka, zookeeper: local.ZooKeeper, tmp_path: Path
) -> None:
    chance = random.Random(12)
    log = await pipelines.write(kafka, "turns", [some_records(chance, 40, minutes=6) for _ in range(2)])
    out = tmp_path / "out"
    spec = Spec(zookeeper.url(log.name), kafka.bootstrap, [log.name], str(out), end=at(100), max_periods=1, expect=3)
    stops = {"a": ["staged", 1, int(signal.SIGKILL)], "b": ["publishing", 3, int(signal.SIGSTOP)], "c": []}
    async with AsyncExitStack() as stack:
        drivers = [
            Driver(spark, replace(spec, member=name, stop=stop), tmp_path / f"{name}.log")
            for name, stop in stops.items()
        ]
        for driver in drivers:
            await driver.start()
            stack.push_async_callback(driver.kill)
        killed, sleeper, last = drivers
        assert await killed.end() == -signal.SIGKILL, (tmp_path / "a.log").read_text()[-4000:]
        await sleeper.until("publishing 3")
        await last.until("staged 3")
        sleeper.process.send_signal(signal.SIGCONT)
        # It was fenced out, and that is no error here: it stands by again, to the end.
        assert await sleeper.end() == 0, (tmp_path / "b.log").read_text()[-4000:]
        assert await last.end() == 0, (tmp_path / "c.log").read_text()[-4000:]
    assert "published 3" not in sleeper.said
    assert "planned 2" in sleeper.said  # it drove meanwhile
    assert not {"planned 0", "planned 1", "planned 2"} & set(last.said)
    assert sleeper.said[-1] == last.said[-1] == "done"
    check(spark, out, [log])


async def test_ctrl_c_stops_the_running_job_and_publishes_nothing(
    spark: SparkSession, kafka: local.Kafka, zookeeper: local.ZooKeeper, tmp_path: Path
) -> None:
    log = await pipelines.write(kafka, "interrupted", [some_records(random.Random(11), 20, minutes=2)])
    out = tmp_path / "out"
    spec = Spec(zookeeper.url(log.name), kafka.bootstrap, [log.name], str(out), endless=True)
    driver = Driver(spark, spec, tmp_path / "driver.log")
    async with AsyncExitStack() as stack:
        await driver.start()
        stack.push_async_callback(driver.kill)
        await driver.until("computing 0")
        driver.process.send_signal(signal.SIGINT)
        assert await driver.end() == -signal.SIGINT, (tmp_path / "driver.log").read_text()[-4000:]
    assert driver.said[-1] == "interrupted"
    assert aiokcc.spark.files(out) == []
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
