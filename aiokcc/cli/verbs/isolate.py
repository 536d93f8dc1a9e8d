"""``aiokcc isolate``: takes a member of a managed group out, without stopping it."""

from __future__ import annotations

import argparse
import time
from typing import Final

from aiokcc.cli.verb import Verb, argument, command, open_existing, operator_name
from aiokcc.runtime.operator import has_eligible_member, isolate

__all__ = ["EPILOG", "MEMBER", "VERB"]

OTHERS: Final = "those that it has go to the other members."
NOBODY: Final = (
    "it releases those that it has.\nNo other member can take them: they stay unassigned, and the limit waits until a member "
    "joins or this one rejoins."
)
EPILOG: Final = """\
examples:
  aiokcc members
  aiokcc isolate machine-7-4711-1
  aiokcc rejoin machine-7-4711-1
"""
MEMBER: Final = argument("member", metavar="MEMBER", help="its id, as `aiokcc members` shows it")


async def _run(options: argparse.Namespace) -> int:
    store = open_existing(options)
    async with store.session(connect_timeout=options.timeout) as session:
        now = time.time_ns() // 1_000_000
        changed = await isolate(store, session, options.member, by=operator_name(), now=now)
        is_last = not await has_eligible_member(session)
    if not changed:
        print(f"{options.member} is isolated already; nothing was changed.")
        return 0
    print(f"Isolated: {options.member} is assigned no partitions any more; {NOBODY if is_last else OTHERS}")
    print(f"\nLet it take part again with:\n\n    {command(options, 'rejoin', options.member)}\n")
    return 0


VERB: Final = Verb(
    name="isolate",
    brief="take a member of a managed group out, without stopping it",
    usage="[URL] MEMBER",
    arguments=(MEMBER,),
    run=_run,
    description="""\
Isolate a member of a managed group: it drains the records that it has started,
commits if it commits offsets at all, and releases its partitions to the other
members; without commits they repeat from the last cut. It stays connected, and
is assigned no partitions until `aiokcc rejoin`. If it leads the group, it goes
on leading. A member that does not answer keeps its partitions until it does, or
until its session ends: no partition is ever run by two members.
""",
    epilog=EPILOG,
)
