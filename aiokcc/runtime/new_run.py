"""Removes a run in memory that has ended and has no member left: the next member founds a new one under the same name.

In other stores a run that has ended stays, so that it is not run again by mistake. The content of ``memory://name`` has no use
once the run is over and all members have left, and a notebook cell or a test runs again under the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiokcc.core import paths
from aiokcc.errors import BadVersionError, NoNodeError, NotEmptyError
from aiokcc.runtime.children import list_children
from aiokcc.stores.port import ANY_VERSION, Delete

if TYPE_CHECKING:
    from aiokcc.stores.port import Session

__all__ = ["remove_ended_run"]

_OF_A_RUN: Final = (
    paths.GENERATION,
    paths.COORDINATOR,
    paths.PERIOD,
    paths.TOPIC_PARTITIONS,
    paths.PROGRESS,
    paths.LEADER,
    paths.IDS,
    paths.OWNERS,
    paths.CUTS,
    paths.ASSIGNMENTS,
    paths.STATE,
    paths.ISOLATED,
)
"""The nodes that a founder creates. Committed offsets do not belong to a run: they stay."""


async def remove_ended_run(session: Session) -> bool:
    """Deletes the nodes of a run that has ended, in one transaction. Returns False if a member of it is still there.

    If another process was faster, nothing is deleted; the caller reads again in any case.
    """
    run = await session.find(paths.RUN)
    if run is None:
        return True
    if await list_children(session, paths.IDS):
        return False
    doomed = [path for top in _OF_A_RUN for path in await _below(session, top)]
    try:
        await session.commit(Delete(paths.RUN, run.version), *(Delete(path, ANY_VERSION) for path in doomed))
    except (NoNodeError, BadVersionError, NotEmptyError):
        return True
    return True


async def _below(session: Session, path: str) -> list[str]:
    """Returns a node and all nodes below it, the lowest first; nothing if the node does not exist."""
    if await session.find(path) is None:
        return []
    return [
        found for name in await list_children(session, path) for found in await _below(session, f"{path}/{name}")
    ] + [path]
