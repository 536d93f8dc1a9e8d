"""``aiokcc period``: changes the period while the group runs, and ends a hold."""

from __future__ import annotations

import argparse
from typing import Final

from aiokcc.cli.argument_types import period_or
from aiokcc.cli.verb import Verb, argument, open_existing
from aiokcc.core.limit import Request, RequestKind
from aiokcc.core.periods import format_duration
from aiokcc.runtime.election import list_candidates
from aiokcc.runtime.operator import write_request

__all__ = ["NO_LEADER", "VERB"]

NO_LEADER: Final = "The group has no members at present; the next leader acts on the request."


async def _run(options: argparse.Namespace) -> int:
    store = open_existing(options)
    async with store.session(connect_timeout=options.timeout) as session:
        previous = await write_request(store, session, Request.every(options.period))
        candidates = await list_candidates(session)
    now = format_duration(options.period)
    if previous is None:
        print(f"The period is {now} from the next boundary on; the previous content of the node could not be read.")
    elif previous.kind is RequestKind.HOLD:
        print(f"The hold is over: the limit moves again, by {now} at a time.")
    elif previous.period == options.period:
        print(f"The period is {now} already; nothing was changed.")
    else:
        print(f"The period is {now} from the next boundary on (before: {format_duration(previous.period)}).")
    if not candidates:
        print(NO_LEADER)
    return 0


VERB: Final = Verb(
    name="period",
    brief="change the period while the group runs",
    usage="[URL] PERIOD",
    arguments=(
        argument("period", type=period_or(what="period"), metavar="PERIOD", help='such as "30s", "5m", "1h30m", "1d"'),
    ),
    run=_run,
    description="""\
Change the period of all members while they run, from the next boundary on.
It also ends a hold.
""",
    epilog="""\
examples:
  aiokcc period 5m
  aiokcc period 1h30m zk://127.0.0.1:2181/replay
  aiokcc period 500ms
""",
)
