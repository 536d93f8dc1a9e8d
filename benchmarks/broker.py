"""The Kafka that is measured, started for the run or the user's own, and topics filled with a known history."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.errors import KafkaError, for_code

from aiokcc import local
from benchmarks.harness import BenchmarkError, note

__all__ = ["BASE", "VALUE", "Broker", "broker", "evenly"]

BASE: Final = 1_700_000_040_000
"""The time at which every history begins: a boundary of minutes, in the past."""
VALUE: Final = bytes(range(100))
_BATCH_BYTES: Final = 512 * 1024


class Broker:
    """A running broker, and the topics that were made on it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._made: list[str] = []

    async def topic(
        self, stem: str, logs: Sequence[Iterable[int]], *, batch_bytes: int = _BATCH_BYTES, value: bytes = VALUE
    ) -> str:
        """Create a topic with a partition for each list of timestamps, write it in batches of this size; return its name."""
        name = f"bench-{stem}-{secrets.token_hex(4)}"
        async with self._admin() as admin:
            # Whatever the server's own settings are, records must not be deleted while they are read.
            lasting = NewTopic(name, len(logs), 1, topic_configs={"retention.ms": "-1"})
            answer = await admin.create_topics([lasting])
        for _, code, *_ in answer.topic_errors:
            if code:
                raise BenchmarkError(f"could not create a topic at {self.bootstrap}: {for_code(code).__name__}")
        self._made.append(name)
        # A new topic has no leader for a moment; the producer tries again, so its warning is hidden.
        logging.getLogger("aiokafka.producer.sender").setLevel(logging.ERROR)
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, max_batch_size=batch_bytes)
        await producer.start()
        try:
            for partition, stamps in enumerate(logs):
                await _fill(producer, name, partition, stamps, value)
        finally:
            await producer.stop()
        return name

    async def grow(self, name: str, partitions: int) -> None:
        """Let a topic have this many partitions; returns when the broker has answered."""
        async with self._admin() as admin:
            answer = await admin.create_partitions({name: NewPartitions(partitions)})
        for _, code, *_ in answer.topic_errors:
            if code:
                raise BenchmarkError(f"could not add partitions at {self.bootstrap}: {for_code(code).__name__}")

    async def write(self, name: str, partitions: Iterable[int], ts: int) -> None:
        """Write one record with this timestamp into each of the partitions.

        Into one, then two, four and so on: a broker that still makes the logs of new partitions is not delayed by hundreds of
        requests that it has to refuse.
        """
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap)
        await producer.start()
        left, written = list(partitions), 0
        try:
            # The controller answers before the broker knows.
            while not set(left) <= await producer.partitions_for(name):
                await producer.client.force_metadata_update()
            while left:
                some, left = left[: written + 1], left[written + 1 :]
                async with asyncio.TaskGroup() as tasks:
                    for number in some:
                        tasks.create_task(producer.send_and_wait(name, VALUE, partition=number, timestamp_ms=ts))
                written += len(some)
        finally:
            await producer.stop()

    async def delete(self, name: str) -> None:
        """Delete a topic that was made."""
        async with self._admin() as admin:
            await admin.delete_topics([name])
        self._made.remove(name)

    async def remove(self) -> None:
        """Delete the topics that were made."""
        if self._made:
            async with self._admin() as admin:
                await admin.delete_topics(self._made)

    @contextlib.asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()


async def _fill(
    producer: AIOKafkaProducer, topic: str, partition: int, stamps: Iterable[int], value: bytes = VALUE
) -> None:
    """Write whole batches, one after the other, which is many times faster than single records."""
    batch: Any = producer.create_batch()
    for ts in stamps:
        if batch.append(key=None, value=value, timestamp=ts) is None:  # full
            await (await producer.send_batch(batch, topic, partition=partition))
            batch = producer.create_batch()
            batch.append(key=None, value=value, timestamp=ts)
    if batch.record_count():
        await (await producer.send_batch(batch, topic, partition=partition))


def evenly(records: int, minutes: float, *, after: float = 0) -> list[int]:
    """Return the timestamps of this many records, spread evenly over ``minutes``, beginning ``after`` minutes after BASE."""
    first, length = BASE + int(after * 60_000), int(minutes * 60_000)
    return [first + n * length // records for n in range(records)]


@contextlib.asynccontextmanager
async def broker(bootstrap: str | None, settings: Mapping[str, object] | None = None) -> AsyncIterator[Broker]:
    """Give the broker at these addresses, or start one on loopback. On the user's broker our topics are deleted at the end."""
    if bootstrap is None:
        note("starting Kafka on loopback")
        async with local.kafka(settings=settings, progress=note) as running:
            yield Broker(running.bootstrap)
        return
    found = Broker(bootstrap)
    try:
        yield found
    except KafkaError as error:
        raise BenchmarkError(f"--bootstrap {bootstrap}: {error!r}") from error
    finally:
        await found.remove()
