"""``aiokcc release``: opens the gate for all members, for the rest of the run."""

from __future__ import annotations

import argparse
from typing import Final

import anyio

from aiokcc.cli.confirm import YES, ask
from aiokcc.cli.verb import Verb, command, open_existing
from aiokcc.cli.verbs.period import NO_LEADER
from aiokcc.core import paths
from aiokcc.core.limit import Limit, Mode, Request, RequestKind
from aiokcc.core.masking import mask_url
from aiokcc.errors import CoordinationError
from aiokcc.runtime.election import list_candidates
from aiokcc.runtime.operator import write_request
from aiokcc.stores.port import Node, Session, Store

__all__ = ["VERB"]

_LEADER_SECONDS: Final = 5.0
"""The seconds to wait for the leader to act on the request."""


def _confirm(options: argparse.Namespace) -> bool:
    """Ask the user. Raises UsageError without --yes if stdin is no terminal."""
    where = mask_url(options.store)
    what = f"This opens the gate of {where} for all members, for good: partitions are not kept in step any more."
    return ask(options, "release", what, why="is final for the run")


async def _run(options: argparse.Namespace) -> int:
    """Release the gate. Raises CoordinationError if the leader does not act in time. Cancelling leaves the request."""
    store = open_existing(options)
    async with store.session(connect_timeout=options.timeout) as session:
        if _mode(store, await session.find(paths.COORDINATOR)) is Mode.OPEN:
            print("Released already; nothing was changed.")
            return 0
        await write_request(store, session, Request(RequestKind.OFF))
        with anyio.move_on_after(_LEADER_SECONDS):
            await _wait_until_open(store, session)
            print("Released: every record passes from now on.")
            return 0
        if await list_candidates(session):
            raise CoordinationError(
                f"the release was requested, but the leader has not acted on it within {_LEADER_SECONDS:g} s; "
                f"see `{command(options, 'status')}`"
            )
    print(f"The release is requested.\n{NO_LEADER}")
    return 0


async def _wait_until_open(store: Store, session: Session) -> None:
    with session.watch() as watch:
        watch.add(paths.COORDINATOR)
        async for change in watch:
            if _mode(store, change.now) not in {None, Mode.GATED}:
                return


def _mode(store: Store, node: object) -> Mode | None:
    return Limit.decode(store.describe(node.path), node.data).mode if isinstance(node, Node) else None


VERB: Final = Verb(
    name="release",
    brief="open the gate for all members, for the rest of the run",
    usage="[URL] [--yes]",
    arguments=(YES,),
    confirm=_confirm,
    run=_run,
    description="""\
Open the gate for all members: from then on every record passes, and partitions
are not kept in step any more. This is final for the run; to gate again, start a
new one under another root.
""",
    epilog="""\
examples:
  aiokcc release          asks first
  aiokcc release --yes    for scripts
""",
)
