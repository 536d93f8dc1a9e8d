"""Reads from the store the state of a run that ``aiokcc replay`` is about to resume, or has just left."""

from __future__ import annotations

import argparse
import asyncio
from typing import Final

from aiokcc.cli.replay_options import member_name
from aiokcc.cli.verb import store_settings
from aiokcc.core import paths
from aiokcc.core.limit import Request, RequestKind
from aiokcc.core.report import Cut
from aiokcc.core.run import Run
from aiokcc.errors import AiokccError, CorruptNodeError
from aiokcc.runtime.agreement import find_run
from aiokcc.runtime.assignment_follower import member_of
from aiokcc.runtime.children import list_children
from aiokcc.runtime.cuts import last_cut
from aiokcc.stores import Session, open_store

__all__ = ["PreviousRun", "read_previous_run", "try_read_previous_run"]

_QUICKLY: Final = 3.0


class PreviousRun:
    """The state of a run as the store holds it, before this command starts or after it has stopped."""

    def __init__(
        self, run: Run | None = None, cut: Cut | None = None, *, others: bool = False, known: bool = True
    ) -> None:
        self.known = known
        """False if the store could not be read."""
        self.exists, self.ended = run is not None, run is not None and run.ended
        self.closed = cut.limit or None if cut is not None else None
        """The boundary that closed last; None if none has closed."""
        self.others = others
        """True if the group has members that are not workers of this command."""
        self.period: int | None = None
        """The period in force, which may have changed since the run was founded; None if there is none or it cannot be read."""
        self.held = False
        """True if the run is on hold."""
        self.offsets_done = 0
        """The number of offsets that were processed before the last cut."""
        if run is not None and cut is not None:
            for partition, bounds in run.bounds.items():
                mark = cut.find(partition)
                if mark is not None and mark.offset is not None:
                    self.offsets_done += max(0, mark.offset - bounds.start)


async def read_previous_run(options: argparse.Namespace) -> PreviousRun:
    """Read the state of the run. Raises StoreUnreachableError if the store does not answer."""
    if options.store.startswith("memory://"):
        return PreviousRun()
    store = open_store(options.store, **store_settings(options))
    async with store.session(connect_timeout=options.timeout) as session:
        found, coordinator = await find_run(store, session), await session.find(paths.COORDINATOR)
        if found is None or coordinator is None:
            return PreviousRun()
        decoded, _ = found
        cut = await last_cut(store, session, coordinator.version)
        previous = PreviousRun(decoded, cut, others=bool(await _members(session) - _ours(options)))
        request = await _request(session)
        if request is not None:
            previous.held = request.kind is RequestKind.HOLD
            previous.period = request.period if request.kind is RequestKind.PERIOD else None
        return previous


async def try_read_previous_run(options: argparse.Namespace) -> PreviousRun:
    """Read the state of the run; if the store does not answer within _QUICKLY seconds, ``known`` is False."""
    try:
        async with asyncio.timeout(_QUICKLY):
            return await read_previous_run(options)
    except (TimeoutError, AiokccError):
        return PreviousRun(known=False)


async def _request(session: Session) -> Request | None:
    """Return the operator's request; None if it cannot be read, which the members report."""
    node = await session.find(paths.PERIOD)
    try:
        return None if node is None else Request.decode(node.path, node.data)
    except CorruptNodeError:
        return None


async def _members(session: Session) -> set[str]:
    return {member_of(name) for name in await list_children(session, paths.IDS)}


def _ours(options: argparse.Namespace) -> set[str]:
    return {member_name(options, number) for number in range(1, options.processes + 1)}
