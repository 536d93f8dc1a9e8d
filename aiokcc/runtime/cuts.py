"""Reading the last cut from the ring in the store."""

from __future__ import annotations

import asyncio
import logging

from aiokcc.core import paths
from aiokcc.core.progress import Cut
from aiokcc.core.run import CUT_SLOTS
from aiokcc.errors import CorruptNodeError, MissingNodeError
from aiokcc.stores.port import Node, Session, Store

__all__ = ["last_cut", "limit_and_cut"]

log = logging.getLogger("aiokcc.cuts")


async def last_cut(store: Store, session: Session, version: int) -> Cut | None:
    """The newest cut, given the version of the ``coordinator`` node just read; None if no boundary has closed yet."""
    if version == 0:  # as it was founded
        return None
    return await _newest(store, session, version, await session.find(paths.cut(version, CUT_SLOTS)))


async def limit_and_cut(store: Store, session: Session, expected: int | None) -> tuple[Node, Cut | None]:
    """The ``coordinator`` node and then the newest cut; in one round trip if the node still has the expected version."""
    slot: Node | None = None
    if expected:  # a cut tells of which version it is, so it may be read beside the node
        path = paths.cut(expected, CUT_SLOTS)
        node, slot = await asyncio.gather(session.find(paths.COORDINATOR), session.find(path))
    else:
        node = await session.find(paths.COORDINATOR)
    if node is None:
        raise MissingNodeError(store.describe(paths.COORDINATOR))
    if slot is not None and node.version == expected:
        return node, await _newest(store, session, node.version, slot)
    return node, await last_cut(store, session, node.version)


async def _newest(store: Store, session: Session, version: int, slot: Node | None) -> Cut | None:
    """The cut in the slot of this version, if it is there; otherwise the newest one anywhere."""
    if slot is None:
        raise MissingNodeError(store.describe(paths.cut(version, CUT_SLOTS)))
    newest = Cut.decode(store.describe(slot.path), slot.data)
    if newest is not None and newest.number == version:
        return newest
    names = await session.children(paths.CUTS)  # released, or written by hand: look at all of them
    for node in await asyncio.gather(*(session.find(f"{paths.CUTS}/{name}") for name in names)):
        try:
            cut = None if node is None else Cut.decode(store.describe(node.path), node.data)
        except CorruptNodeError as error:
            log.warning("%s", error)
            continue
        if cut is not None and (newest is None or cut.number > newest.number):
            newest = cut
    return newest
