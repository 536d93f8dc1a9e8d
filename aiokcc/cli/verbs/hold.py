"""``aiokcc hold``: stops the limit where it is."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Final

from aiokcc.cli.verb import Verb, open_existing
from aiokcc.cli.verbs.period import NO_LEADER
from aiokcc.cli.verbs.status import resume_command
from aiokcc.core.limit import Request, RequestKind
from aiokcc.core.periods import format_duration, format_time
from aiokcc.runtime.election import list_candidates
from aiokcc.runtime.operator import write_request
from aiokcc.runtime.status import GroupState
from aiokcc.runtime.status_reader import read_status

__all__ = ["VERB"]


async def _run(options: argparse.Namespace) -> int:
    """Hold the limit, and print the command that ends the hold."""
    store = open_existing(options)
    async with store.session(connect_timeout=options.timeout) as session:
        previous = await write_request(store, session, Request(RequestKind.HOLD))
        status = replace(await read_status(store, session), state=GroupState.HELD)
        if previous is not None and previous.kind is RequestKind.PERIOD:
            status = replace(status, held_period=previous.period)
        candidates = await list_candidates(session)
    held_before = previous is not None and previous.kind is RequestKind.HOLD
    where = f"at {format_time(status.limit)}" if status.limit else "where it is"
    print(
        f"{'Held already' if held_before else 'Held'}: the limit stays {where}. Records before it are still processed."
    )
    print(f"\nResume with:\n\n    {resume_command(status, options)}\n")
    if status.held_period is None:
        began = "" if status.agreed_period is None else f"; the run began with {format_duration(status.agreed_period)}"
        print(f"(The period before the hold is not recorded{began}.)")
    if not candidates:
        print(NO_LEADER)
    return 0


VERB: Final = Verb(
    name="hold",
    brief="stop the limit where it is",
    usage="[URL]",
    run=_run,
    description="""\
Stop the limit where it is. After this command the limit does not move,
whichever member leads, until a period is set again. Records before the limit
are still processed.
""",
    epilog="""\
examples:
  aiokcc hold
  aiokcc period 1m        resume
""",
)
