"""``aiokcc members``: shows the members of a managed group and their partitions."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Final

from aiokcc.cli.render import write_table
from aiokcc.cli.verb import Verb, argument, command, open_existing
from aiokcc.core.formatting import count
from aiokcc.errors import UsageError
from aiokcc.runtime.status import GroupState
from aiokcc.runtime.status_reader import read_status
from aiokcc.views.status_view import assignment_tables

__all__ = ["VERB"]


async def _run(options: argparse.Namespace) -> int:
    """Show the members. Raises UsageError if the group is not managed."""
    store = open_existing(options)
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
    if status.state is GroupState.ENDED:
        print("The run has ended; this is its last assignment.")
    if status.group.waits_for is not None:
        print(f"A rebalance is under way: {status.group.waits_for}.")
    for table in assignment_tables(status):
        print(f"\n{write_table(table)}")
    for problem in status.problems:
        print(f"\n{problem}")
    return 0


VERB: Final = Verb(
    name="members",
    brief="show the members of a managed group and their partitions",
    usage="[URL] [--json]",
    arguments=(argument("--json", action="store_true", help="one JSON object"),),
    run=_run,
    description="""\
Show the members of a managed group: the subscription of each, the partitions
that are assigned to it, and those that it runs.
""",
    epilog="""\
examples:
  aiokcc members zk://127.0.0.1:2181/replay
  aiokcc members --json | jq -r '.workers[] | select(.isolated) | .name'
""",
)
