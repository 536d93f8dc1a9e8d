"""A worker process of the benchmarks on Kafka: it reads topics, in one of several ways, once per request.

The first line on standard input is the plan: the way, and what to read. Each ``prepare`` prepares one
reading, each ``go`` reads everything; the answer says when the reading began and when the last record was handled, in
nanoseconds of the monotonic clock, which all processes of a machine share; how many records there were; the CPU time;
and the peak memory of this process.

``replay`` aiokcc, ``await replay.run(handle)``: from the call of ``run``, which makes and connects its consumer and claims
the locks. ``batches`` is ``await replay.run_batches(handle)``, with a bare loop over each list. ``async-for`` and
``getmany`` plain aiokafka, from the making of the consumer: record by record through the consumer's iterator, or whole
lists and a bare loop over their records. ``ungated`` is aiokcc's loop without the gate: lists from ``getmany``, and a
handler awaited for each record. ``confluent`` confluent-kafka's ``consume``, from the making of the consumer, with a bare
loop as well. ``quix`` Quix Streams' ``concat`` of two topics, which hands on records in the order of their timestamps
within each partition number: from its first record, so that its start is not counted.

A plan with ``metrics``: ``served`` collects them every second, as the workers of ``aiokcc replay --metrics`` do; ``imported``
only imports OpenTelemetry's SDK; ``on`` has it export them every second.

``resumed-replay`` and ``resumed-group`` may be killed and started again: aiokcc, and a plain aiokafka consumer group that
commits by itself. The progress of each partition is in a file that survives the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import resource
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

import aiokcc
from aiokcc.runtime.metrics import collect
from benchmarks.worker import Requests

_clock = time.monotonic_ns
Times = tuple[int, int]
Reading = Callable[[], Awaitable[Times]]
"""Reads everything, and returns when that began and when the last record was handled."""


def peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):  # unlike ru_maxrss it does not include the process that started this one
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# -- ours --------------------------------------------------------------------------------------------------------------


class Counting:
    """A handler that counts, and records the time of the last record."""

    def __init__(self, wanted: int) -> None:
        self.ended = 0
        total = 0

        async def handle(record: Any) -> None:
            nonlocal total
            total += 1
            if total == wanted:
                self.ended = _clock()

        async def handle_list(records: list[Any]) -> None:
            nonlocal total
            for _ in records:
                total += 1
            if total == wanted:
                self.ended = _clock()

        self.handle = handle
        self.handle_list = handle_list


@contextlib.asynccontextmanager
async def replay(plan: dict[str, Any], request: dict[str, Any]) -> AsyncIterator[Reading]:
    counting = Counting(plan["records"])
    async with aiokcc.replay(
        *plan["topics"],
        bootstrap_servers=plan["bootstrap"],
        store=request["store"],
        period=plan["period"],
        end="now",
        partitions=[(topic, number) for topic, number in plan["partitions"]],
        **plan.get("settings", {}),
    ) as replaying:

        async def read() -> Times:
            began = _clock()
            if plan["way"] == "batches":
                done = await replaying.run_batches(counting.handle_list)
            else:
                done = await replaying.run(counting.handle)
            assert done.records == plan["records"], done
            return began, counting.ended

        yield read


# -- plain aiokafka ----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _started(plan: dict[str, Any]) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(bootstrap_servers=plan["bootstrap"], enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, number) for topic, number in plan["partitions"]]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        yield consumer
    finally:
        await consumer.stop()


@contextlib.asynccontextmanager
async def async_for(plan: dict[str, Any], request: dict[str, Any]) -> AsyncIterator[Reading]:
    wanted = plan["records"]

    async def read() -> Times:
        began, total = _clock(), 0
        async with _started(plan) as consumer:
            async for _ in consumer:
                total += 1
                if total == wanted:
                    break
            return began, _clock()

    yield read


@contextlib.asynccontextmanager
async def getmany(plan: dict[str, Any], request: dict[str, Any]) -> AsyncIterator[Reading]:
    wanted = plan["records"]

    async def read() -> Times:
        began, total = _clock(), 0
        async with _started(plan) as consumer:
            while total < wanted:
                for records in (await consumer.getmany(timeout_ms=1000, max_records=plan["batch"])).values():
                    for _ in records:
                        total += 1
            return began, _clock()

    yield read


@contextlib.asynccontextmanager
async def ungated(plan: dict[str, Any], request: dict[str, Any]) -> AsyncIterator[Reading]:
    counting = Counting(plan["records"])
    handle = counting.handle

    async def read() -> Times:
        began = _clock()
        async with _started(plan) as consumer:
            while not counting.ended:
                for records in (await consumer.getmany(timeout_ms=1000, max_records=plan["batch"])).values():
                    for record in records:
                        await handle(record)
            return began, counting.ended

    yield read


# -- confluent-kafka ---------------------------------------------------------------------------------------------------

TUNED = {
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 1_000_000,
    "max.partition.fetch.bytes": 16 * 1024 * 1024,
    "fetch.max.bytes": 64 * 1024 * 1024,
    "fetch.wait.max.ms": 50,
    "fetch.queue.backoff.ms": 10,  # by default librdkafka waits a whole second
    "socket.nagle.disable": True,
}
"""librdkafka reads far ahead in its own threads, in large requests."""


@contextlib.asynccontextmanager
async def confluent(plan: dict[str, Any], request: dict[str, Any]) -> AsyncIterator[Reading]:
    import confluent_kafka

    wanted = plan["records"]

    async def read() -> Times:  # it blocks: nothing else runs in this process
        began, total = _clock(), 0
        group = {"bootstrap.servers": plan["bootstrap"], "group.id": f"bench-{uuid.uuid4().hex}"}
        consumer = confluent_kafka.Consumer({**group, "enable.auto.commit": False, **TUNED})
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for topic, number in plan["partitions"]])
            while total < wanted:
                for message in consumer.consume(1000, timeout=30):
                    if message.error() is not None:
                        raise RuntimeError(f"confluent-kafka: {message.error()}")
                    total += 1
            return began, _clock()
        finally:
            consumer.close()

    yield read


# -- Quix Streams ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def quix(plan: dict[str, Any], request: dict[str, Any]) -> AsyncIterator[Reading]:
    from quixstreams import Application

    with tempfile.TemporaryDirectory() as directory:
        application = Application(
            plan["bootstrap"],
            consumer_group=f"bench-{uuid.uuid4().hex}",
            auto_offset_reset="earliest",
            state_dir=directory,
            loglevel="WARNING",
            auto_create_topics=False,
            consumer_extra_config={"fetch.queue.backoff.ms": 10},  # by default librdkafka waits a whole second
        )
        first, second = (
            application.dataframe(application.topic(name, key_deserializer="bytes", value_deserializer="bytes"))
            for name in plan["topics"]
        )
        total, began, ended, wanted = 0, 0, 0, plan["records"]

        def count(_: Any) -> None:
            nonlocal total, began, ended
            if not total:
                began = _clock()
            total += 1
            if total == wanted:
                ended = _clock()

        first.concat(second).update(count)

        async def read() -> Times:
            application.run(count=wanted, timeout=30, collect=False)  # it blocks: nothing else runs in this process
            assert ended, f"Quix Streams stopped after {total} of {wanted} records"
            return began, ended

        yield read


# -- killed and started again ------------------------------------------------------------------------------------------


class Marks:
    """Counts what this process and the one before it have handled, and sets the rate."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._places = {(topic, number): n for n, (topic, number) in enumerate(plan["partitions"])}
        with Path(plan["marks"]).open("r+b") as file:
            self._next = memoryview(mmap.mmap(file.fileno(), 8 * len(self._places))).cast("q")
        self._before = list(self._next)
        self.left = plan["records"] - sum(self._before)
        self.again = 0
        self.first_new = 0
        self._began = time.monotonic()
        self._total = 0

    async def handle(self, record: Any) -> None:
        """Handle one record. At the record where the process is to be killed it says so, and continues."""
        place = self._places[record.topic, record.partition]
        if record.offset < self._before[place]:
            self.again += 1
        else:
            self.first_new = self.first_new or _clock()
            self.left -= 1
            self._next[place] = record.offset + 1
        self._total += 1
        if self._total == self._plan["tell_at"]:
            Requests.answer(reached=True)
        if self._plan["pace"] and self._total % 100 == 0:
            await asyncio.sleep(max(0.0, self._began + self._total / self._plan["pace"] - time.monotonic()))


async def resumed_replay(requests: Requests) -> None:
    plan = requests.plan
    requests.answer(ready=True)
    await requests.wait()
    marks = Marks(plan)
    async with aiokcc.replay(
        *plan["topics"],
        bootstrap_servers=plan["bootstrap"],
        store=plan["store"],
        period=plan["period"],
        end="now",
        session_timeout=plan["session_timeout"],
    ) as replaying:
        await replaying.run(marks.handle)
    requests.answer(first_new=marks.first_new, again=marks.again, left=marks.left)


async def resumed_group(requests: Requests) -> None:
    plan = requests.plan
    requests.answer(ready=True)
    await requests.wait()
    marks = Marks(plan)
    consumer = AIOKafkaConsumer(
        *plan["topics"],
        bootstrap_servers=plan["bootstrap"],
        group_id=plan["group"],
        auto_offset_reset="earliest",
        auto_commit_interval_ms=plan["commit_ms"],
        session_timeout_ms=plan["session_timeout"] * 1000,
        heartbeat_interval_ms=plan["session_timeout"] * 300,
    )
    await consumer.start()
    try:
        while marks.left:
            for records in (await consumer.getmany(timeout_ms=1000, max_records=500)).values():
                for record in records:
                    await marks.handle(record)
    finally:
        await consumer.stop()
    requests.answer(first_new=marks.first_new, again=marks.again, left=marks.left)


# ----------------------------------------------------------------------------------------------------------------------

WAYS = {
    "replay": replay,
    "batches": replay,
    "async-for": async_for,
    "getmany": getmany,
    "ungated": ungated,
    "confluent": confluent,
    "quix": quix,
}
RESUMED = {"resumed-replay": resumed_replay, "resumed-group": resumed_group}


def export_metrics(on: bool) -> None:
    """Import OpenTelemetry's SDK; ``on``: have it collect all metrics every second, and write them to nowhere."""
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader

    if not on:
        return
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115 - it is open as long as the process lives
    exporter = PeriodicExportingMetricReader(ConsoleMetricExporter(nowhere), export_interval_millis=1000)
    metrics.set_meter_provider(MeterProvider([exporter]))


async def collect_metrics() -> None:
    """Collect all metrics every second and encode them, until cancelled."""
    while True:
        json.dumps([(each.name, each.value, dict(each.attributes)) for each in collect()])
        await asyncio.sleep(1)


async def serve(requests: Requests) -> None:
    """Serve requests until there are no more."""
    collecting = asyncio.create_task(collect_metrics()) if requests.plan.get("metrics") == "served" else None
    try:
        await serve_all(requests)
    finally:
        if collecting is not None:
            collecting.cancel()


async def serve_all(requests: Requests) -> None:
    """Serve requests until there are no more, with the metrics of OpenTelemetry's SDK if the plan has them."""
    plan = requests.plan
    if plan.get("metrics") in {"imported", "on"}:
        export_metrics(plan["metrics"] == "on")
    if plan["way"] in RESUMED:
        await RESUMED[plan["way"]](requests)
        return
    way = WAYS[plan["way"]]
    requests.answer(ready=True)
    while (request := await requests.wait()) is not None:
        async with way(plan, request) as read:
            requests.answer(prepared=True)
            if await requests.wait() is None:
                return
            requests.busy = True
            cpu = time.process_time_ns()
            began, ended = await read()
            cpu = time.process_time_ns() - cpu
            requests.busy = False
        requests.answer(began=began, ended=ended, records=plan["records"], cpu=cpu, memory=peak_memory())


def main() -> None:
    """Run the plan."""
    asyncio.run(serve(Requests()))


if __name__ == "__main__":
    main()
