"""``aiokcc local zookeeper``: real services for as long as the command runs."""

from __future__ import annotations

import argparse
import asyncio
import os

from aiokcc.cli.arguments import ENVIRONMENT
from aiokcc.cli.words import count
from aiokcc.errors import LocalServiceError, UsageError

__all__ = ["check_local", "say_local"]


def check_local(options: argparse.Namespace) -> None:
    """UsageError for numbers that cannot be meant."""
    if options.servers < 1:
        raise UsageError(f"--servers {options.servers}: there must be at least 1")
    if options.port is not None and not 0 < options.port <= 65_536 - options.servers:
        raise UsageError(f"--port {options.port}: a port lies between 1 and {65_536 - options.servers}")


async def say_local(options: argparse.Namespace) -> int:
    """Start it, say how to use it, and keep it until we are cancelled, or until it ends by itself."""
    print("Starting ZooKeeper …", flush=True)
    try:
        await _keep(options)
    except asyncio.CancelledError:
        print("\nZooKeeper has stopped.")
        raise
    return 0


async def _keep(options: argparse.Namespace) -> None:
    from aiokcc import local

    async with local.zookeeper(servers=options.servers, port=options.port, data_dir=options.data) as zookeeper:
        kept = f"in {options.data}" if options.data else "temporary, removed at the end"
        print(f"ZooKeeper is up: {count(len(zookeeper.servers), 'server')} on 127.0.0.1, data {kept}.\n")
        print(f"    export {ENVIRONMENT}={zookeeper.url('replay')}\n")
        print(f"Stop it with Ctrl-C, or: kill {os.getpid()}", flush=True)
        servers = {asyncio.ensure_future(server.ended()): server for server in zookeeper.servers}
        try:
            done, _ = await asyncio.wait(servers, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for ended in servers:
                ended.cancel()
            await asyncio.gather(*servers, return_exceptions=True)
        names = ", ".join(servers[one].name for one in done)
        raise LocalServiceError(f"{names} ended by itself", servers[next(iter(done))].last_words())
