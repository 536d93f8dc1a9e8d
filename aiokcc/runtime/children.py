"""Lists the children of a node that need not exist."""

from __future__ import annotations

from aiokcc.errors import NoNodeError
from aiokcc.stores.port import Session

__all__ = ["list_children"]


async def list_children(session: Session, path: str) -> tuple[str, ...]:
    """Return the names of the node's children; none if there is no such node."""
    try:
        return await session.children(path)
    except NoNodeError:
        return ()
