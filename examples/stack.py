"""Services for the examples: a Kafka and a ZooKeeper, and topics with a history in them.

``python -m examples.NAME`` starts both on this machine (the first time it fetches Kafka, 44 MB);
``python -m examples.NAME HOST:PORT zk://HOST:PORT/root`` uses yours. Topics and roots get unique names.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import logging
import secrets
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import ExitStack, asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from anyio.from_thread import start_blocking_portal

import aiokcc
from aiokcc import local

logging.getLogger("aiokafka").addHandler(logging.NullHandler())  # errors are raised, so its log is not needed


T = TypeVar("T")


class Services(NamedTuple):
    """The addresses, as :func:`aiokcc.replay` takes them."""

    bootstrap_servers: str
    store: str


class Event(NamedTuple):
    """A record to write; the timestamp in milliseconds since the epoch."""

    partition: int
    timestamp: int
    key: str
    value: str = ""


def run(example: Coroutine[Any, Any, None]) -> None:
    """Run an example, and print an error as one sentence."""
    try:
        asyncio.run(example)
    except (aiokcc.AiokccError, KafkaError) as error:
        sys.exit(f"{error}")
    except KeyboardInterrupt:
        sys.exit(130)


@asynccontextmanager
async def services(given: list[str]) -> AsyncIterator[Services]:
    """Use the given services, or start new ones that end with the block."""
    if given:
        servers, store = given
        yield Services(servers, f"{store.rstrip('/')}/{secrets.token_hex(3)}")
        return
    print("Starting ZooKeeper and Kafka …", flush=True)
    async with local.up(progress=show_progress) as stack:
        yield Services(stack.kafka.bootstrap, stack.zookeeper.url("example"))


def start_services(given: list[str]) -> Services:
    """Do the same for scripts and notebooks, which have no block around everything: the services end with the process."""
    kept = ExitStack()
    portal = kept.enter_context(start_blocking_portal())
    running = kept.enter_context(portal.wrap_async_context_manager(services(given)))
    atexit.register(kept.close)
    return running


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine, also in a notebook, where an event loop runs already."""
    with start_blocking_portal() as portal:

        async def run_it() -> T:
            return await coroutine

        return portal.call(run_it)


def jobs(number: int) -> str:
    """``1 Spark job``, ``3 Spark jobs``."""
    return f"{number} Spark job{'' if number == 1 else 's'}"


def show_progress(line: str) -> None:
    """Print what is being downloaded, on a terminal in one line that changes."""
    end = "\n"
    if sys.stdout.isatty() and line[:1].isdigit():
        number, _, total = line.partition(":")[0].partition(" of ")
        line, end = f"\r\x1b[K  {line}", "\n" if number == total else ""
    print(line, end=end, flush=True)


async def create(servers: str, name: str, partitions: int, *, fresh: bool = True) -> str:
    """Create a topic and return its name."""
    topic = f"{name}-{secrets.token_hex(3)}" if fresh else name
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, partitions, 1)])
    finally:
        await admin.close()
    return topic


async def write(servers: str, topic: str, events: Iterable[Event]) -> None:
    """Write events to a topic, in whole batches. Within a partition they stay in order."""
    producer = AIOKafkaProducer(bootstrap_servers=servers, max_batch_size=256 * 1024)
    await producer.start()
    try:
        by_partition = sorted(events, key=lambda event: event.partition)
        for partition, mine in itertools.groupby(by_partition, key=lambda event: event.partition):
            batch = producer.create_batch()
            for event in mine:
                row = {"key": event.key.encode(), "value": event.value.encode(), "timestamp": event.timestamp}
                if batch.append(**row) is None:  # full
                    await (await producer.send_batch(batch, topic, partition=partition))
                    batch = producer.create_batch()
                    batch.append(**row)
            await (await producer.send_batch(batch, topic, partition=partition))
    finally:
        await producer.stop()
