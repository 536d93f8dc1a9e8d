"""A run in memory ends with its last member: whoever comes after that begins a new one under the same name.

Elsewhere a run that has ended stays, so that nobody runs it again by mistake. What ``memory://name`` holds is of no use to
anybody once the run is over and everybody has left, and a cell of a notebook, or a test, is run again under the same name.
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
"""All that a founder creates, and what lies below. Committed offsets are not of a run: they stay."""


async def remove_ended_run(session: Session) -> bool:
    """Delete the nodes of a run that has ended, in one transaction. Return False if a member of it is still there.

    If somebody else was faster, nothing is deleted, and whatever stands there now is to be read again.
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
    """A node and all nodes below it, the lowest first; nothing if it does not exist."""
    if await session.find(path) is None:
        return []
    return [
        found for name in await list_children(session, path) for found in await _below(session, f"{path}/{name}")
    ] + [path]
