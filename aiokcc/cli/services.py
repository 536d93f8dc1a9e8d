"""``aiokcc local zookeeper``, ``kafka``, ``spark`` and ``up``: runs real services until the command is stopped."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final

import anyio

from aiokcc.cli.arguments import ENVIRONMENT
from aiokcc.cli.formatting import count
from aiokcc.cli.replay_arguments import SERVERS
from aiokcc.errors import LocalServiceError, UsageError

if TYPE_CHECKING:
    from aiokcc import local

__all__ = ["check_local", "run_local"]

_NAMES: Final = {"zookeeper": "ZooKeeper", "kafka": "Kafka", "spark": "Spark", "up": "ZooKeeper and Kafka"}
_TEMPORARY: Final = "temporary, removed at the end"


def check_local(options: argparse.Namespace) -> None:
    """Raise UsageError for numbers that are out of range."""
    servers = getattr(options, "servers", 1)
    port = getattr(options, "port", None)
    if servers < 1:
        raise UsageError(f"--servers {servers}: there must be at least 1")
    for name in ("workers", "cores"):
        number = getattr(options, name, 1)
        if number < 1:
            raise UsageError(f"--{name} {number}: there must be at least 1")
    if port is not None and not 0 < port <= 65_536 - servers:
        raise UsageError(f"--port {port}: a port lies between 1 and {65_536 - servers}")


async def run_local(options: argparse.Namespace) -> int:
    """Start the services, print how to use them, and keep them until cancelled.

    Raises LocalServiceError if one of them ends by itself. Cancelling stops all of them.
    """
    name = _NAMES[options.service]
    print(f"Starting {name} …", flush=True)
    start = {"zookeeper": _zookeeper, "kafka": _kafka, "spark": _spark, "up": _up}[options.service]
    try:
        async with start(options) as services:
            print(f"Stop {'them' if options.service == 'up' else 'it'} with Ctrl-C, or: kill {os.getpid()}", flush=True)
            await _until_one_ends(services)
    except asyncio.CancelledError:
        print(f"\n{name} {'have' if options.service == 'up' else 'has'} stopped.")
        raise
    return 0


@contextlib.asynccontextmanager
async def _zookeeper(options: argparse.Namespace) -> AsyncIterator[Sequence[local.Service]]:
    from aiokcc import local

    async with local.zookeeper(servers=options.servers, port=options.port, data_dir=options.data) as zookeeper:
        kept = f"in {options.data}" if options.data else _TEMPORARY
        print(f"ZooKeeper is up: {count(len(zookeeper.servers), 'server')} on 127.0.0.1, data {kept}.\n")
        print(f"    export {ENVIRONMENT}={zookeeper.url('replay')}\n")
        yield zookeeper.servers


@contextlib.asynccontextmanager
async def _kafka(options: argparse.Namespace) -> AsyncIterator[Sequence[local.Service]]:
    from aiokcc import local

    async with local.kafka(port=options.port, data_dir=options.data, progress=_Progress()) as kafka:
        kept = f"in {options.data}" if options.data else _TEMPORARY
        print(f"Kafka is up: 1 broker on 127.0.0.1, data {kept}.\n")
        print(f"    export {SERVERS}={kafka.bootstrap}\n")
        yield [kafka]


@contextlib.asynccontextmanager
async def _spark(options: argparse.Namespace) -> AsyncIterator[Sequence[local.Service]]:
    from aiokcc import local

    size = {"workers": options.workers, "cores": options.cores, "memory": options.memory}
    async with local.spark(**size, port=options.port, data_dir=options.data, progress=_Progress()) as cluster:
        workers = f"{count(options.workers, 'worker')} with {count(options.cores, 'core')} and {options.memory} each"
        kept = f"in {options.data}" if options.data else _TEMPORARY
        print(f"Spark is up: a master and {workers} on 127.0.0.1, data {kept}.\n")
        print(f"    master   {cluster.url}")
        print(f"    page     {cluster.page}")
        print(f"    session  aiokcc.spark.session(master={cluster.url!r})\n")
        yield [cluster.master, *cluster.workers]


@contextlib.asynccontextmanager
async def _up(_: argparse.Namespace) -> AsyncIterator[Sequence[local.Service]]:
    from aiokcc import local

    async with local.up(progress=_Progress()) as services:
        print(f"ZooKeeper and Kafka are up: on 127.0.0.1, data {_TEMPORARY}.\n")
        print(f"    export {ENVIRONMENT}={services.zookeeper.url('replay')}")
        print(f"    export {SERVERS}={services.kafka.bootstrap}\n")
        yield [*services.zookeeper.servers, services.kafka]


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


class _Progress:
    """Shows the progress of downloads: in one line that is redrawn on a terminal, line by line elsewhere."""

    def __call__(self, line: str) -> None:
        counts = line[:1].isdigit()
        if counts and sys.stdout.isatty():
            number, _, total = line.partition(":")[0].partition(" of ")
            print(f"\r\x1b[K  {line}", end="\n" if number == total else "", flush=True)
        else:
            print(f"  {line}", flush=True)
