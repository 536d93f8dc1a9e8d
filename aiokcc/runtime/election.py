"""Election without a herd: candidates queue up, each watches only the one before it.

Being first in the queue is not yet leading. A leader is whoever has written the next generation, and every write it makes is
conditional on that generation: so a former leader that does not know yet changes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiokcc.core import paths
from aiokcc.core.run import encode_member
from aiokcc.errors import NoNodeError, SessionLostError
from aiokcc.stores.port import ANY_VERSION, Session

__all__ = ["campaign", "list_candidates"]

_DIGITS = 10


async def list_candidates(session: Session) -> list[str]:
    """The candidates' paths, the first in line first."""
    names = await session.children(paths.LEADER)
    return [f"{paths.LEADER}/{name}" for name in sorted(names, key=lambda name: name[-_DIGITS:])]


@asynccontextmanager
async def campaign(session: Session, name: str, clock: Callable[[], int]) -> AsyncIterator[str]:
    """Stand for election; the body runs when we are first in line, with our candidate node's path.

    Leaving the body resigns: the node is deleted, and the next in line is told by its watch.
    """
    path = ""
    try:
        while True:
            facts = encode_member(id=name, timestamp=clock(), epoch=None)
            path = await session.create(f"{paths.LEADER}/c-", facts, ephemeral=True, sequential=True)
            if await _first_in_line(session, path):
                break
        yield path
    finally:
        if path:
            try:
                await session.delete(path, ANY_VERSION)
            except (NoNodeError, SessionLostError):
                pass


async def _first_in_line(session: Session, path: str) -> bool:
    """Wait until nobody stands before us. False: our own node is gone, somebody deleted it."""
    while True:
        line = await list_candidates(session)
        if path not in line:
            return False
        place = line.index(path)
        if place == 0:
            return True
        with session.watch() as watch:
            watch.add(line[place - 1])
            watch.add(path)
            gone = path
            async for change in watch:
                if change.now is None:
                    gone = change.path
                    break
        if place == 1 and gone != path:
            return True  # nobody can have come in between: who stands later has a greater number
