"""Leader election: the candidates form a queue, and each watches only the one before it, so that no herd wakes up.

The first in the queue does not lead yet. The leader is the member that has written the next generation, and each of its writes
checks this generation. So a former leader that does not know of its successor changes nothing.
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
    """Return the paths of the candidates, in the order of the queue."""
    names = await session.children(paths.LEADER)
    return [f"{paths.LEADER}/{name}" for name in sorted(names, key=lambda name: name[-_DIGITS:])]


@asynccontextmanager
async def campaign(session: Session, name: str, clock: Callable[[], int]) -> AsyncIterator[str]:
    """Join the queue, wait until we are first, and run the body with the path of our candidate node.

    Leaving the body resigns: the node is deleted, and the watch of the next candidate fires. Cancelling the wait does the same.
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
    """Wait until no candidate is before us. Returns False if our own node was deleted."""
    while True:
        queue = await list_candidates(session)
        if path not in queue:
            return False
        place = queue.index(path)
        if place == 0:
            return True
        with session.watch() as watch:
            watch.add(queue[place - 1])
            watch.add(path)
            gone = path
            async for change in watch:
                if change.now is None:
                    gone = change.path
                    break
        if place == 1 and gone != path:
            return True  # nobody can have come between: later candidates have greater numbers
