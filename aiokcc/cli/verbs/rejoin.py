"""``aiokcc rejoin``: lets an isolated member take part again."""

from __future__ import annotations

import argparse
from typing import Final

from aiokcc.cli.verb import Verb, open_existing
from aiokcc.cli.verbs.isolate import EPILOG, MEMBER
from aiokcc.runtime.operator import rejoin

__all__ = ["VERB"]


async def _run(options: argparse.Namespace) -> int:
    store = open_existing(options)
    async with store.session(connect_timeout=options.timeout) as session:
        changed = await rejoin(store, session, options.member)
    print(f"{options.member} {'takes part again' if changed else 'is not isolated; nothing was changed'}.")
    return 0


VERB: Final = Verb(
    name="rejoin",
    brief="let an isolated member take part again",
    usage="[URL] MEMBER",
    arguments=(MEMBER,),
    run=_run,
    description="""\
Let an isolated member take part again. It is assigned partitions with the next
rebalance, about a second later.
""",
    epilog=EPILOG,
)
