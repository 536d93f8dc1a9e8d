"""``aiokcc members``, ``isolate`` and ``rejoin``: shows and changes the members of a managed group."""

from __future__ import annotations

import argparse
import getpass
import json
import socket
import time
from dataclasses import asdict

from aiokcc.cli.arguments import command
from aiokcc.cli.formatting import count
from aiokcc.cli.render_text import write_table
from aiokcc.cli.status_view import assignment_tables
from aiokcc.errors import UsageError
from aiokcc.runtime.operator import isolate, rejoin
from aiokcc.runtime.status import read_status
from aiokcc.stores import open_store

__all__ = ["run_isolate", "run_members", "run_rejoin"]


async def run_members(options: argparse.Namespace) -> int:
    """Show the members and return the exit code. Raises UsageError if the group is not managed."""
    store = open_store(options.store)
    async with store.session(connect_timeout=options.timeout) as session:
        status = await read_status(store, session)
    if status.group is None:
        raise UsageError(
            f"the group under {store.describe('')} is not managed: each member says which partitions it runs. "
            f"`{command(options, 'status')}` shows them"
        )
    if options.json:
        print(json.dumps({"generation": status.generation, "leader": status.leader, **asdict(status.group)}, indent=2))
        return 0
    here = sum(worker.here for worker in status.group.workers)
    print(f"Generation {status.generation}, {count(here, 'member')}.")
    if status.state == "ended":
        print("The run has ended; this is its last assignment.")
    if status.group.waits_for is not None:
        print(f"A rebalance is under way: {status.group.waits_for}.")
    for table in assignment_tables(status):
        print(f"\n{write_table(table)}")
    for problem in status.problems:
        print(f"\n{problem}")
    return 0


async def run_isolate(options: argparse.Namespace) -> int:
    """Isolate a member; return the exit code."""
    store = open_store(options.store)
    async with store.session(connect_timeout=options.timeout) as session:
        by = f"{getpass.getuser()}@{socket.gethostname()}"
        new = await isolate(store, session, options.member, by=by, now=time.time_ns() // 1_000_000)
    if not new:
        print(f"{options.member} is isolated already; nothing was changed.")
        return 0
    print(f"Isolated: {options.member} is assigned no partitions any more; those that it has go to the other members.")
    print(f"\nLet it take part again with:\n\n    {command(options, 'rejoin', options.member)}\n")
    return 0


async def run_rejoin(options: argparse.Namespace) -> int:
    """End the isolation of a member; return the exit code."""
    store = open_store(options.store)
    async with store.session(connect_timeout=options.timeout) as session:
        new = await rejoin(store, session, options.member)
    if new:
        print(f"{options.member} takes part again.")
    else:
        print(f"{options.member} is not isolated; nothing was changed.")
    return 0
