"""Reads the newest cut from the ring of cuts in the store."""

from __future__ import annotations

import asyncio
import logging

from aiokcc.core import paths
from aiokcc.core.report import Cut
from aiokcc.core.run import CUT_SLOTS
from aiokcc.errors import CorruptNodeError, MissingNodeError
from aiokcc.stores.port import Node, Session, Store

__all__ = ["last_cut", "limit_and_cut"]

log = logging.getLogger("aiokcc.runtime")


async def last_cut(store: Store, session: Session, version: int) -> Cut | None:
    """Return the newest cut, None if no boundary has closed yet. ``version`` is that of the ``coordinator`` node just read.

    MissingNodeError if the slot of this version is not there, CorruptNodeError if it cannot be read.
    """
    if version == 0:  # nobody has written it since the run was founded
        return None
    return await _newest(store, session, version, await session.find(paths.cut(version, CUT_SLOTS)))


async def limit_and_cut(store: Store, session: Session, expected: int | None) -> tuple[Node, Cut | None]:
    """Return the ``coordinator`` node and the newest cut; in one round trip if the node still has the expected version.

    Raises what :func:`last_cut` raises, and MissingNodeError if there is no ``coordinator`` node.
    """
    slot: Node | None = None
    if expected:  # a cut holds its version, so both can be read concurrently
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
    """Return the cut in the slot if it has this version; otherwise the newest cut of all slots."""
    if slot is None:
        raise MissingNodeError(store.describe(paths.cut(version, CUT_SLOTS)))
    newest = Cut.decode(store.describe(slot.path), slot.data)
    if newest is not None and newest.number == version:
        return newest
    names = await session.children(paths.CUTS)  # the run was released, or the node written by hand: read all of them
    for node in await asyncio.gather(*(session.find(f"{paths.CUTS}/{name}") for name in names)):
        try:
            cut = None if node is None else Cut.decode(store.describe(node.path), node.data)
        except CorruptNodeError as error:
            log.warning("%s", error)
            continue
        if cut is not None and (newest is None or cut.number > newest.number):
            newest = cut
    return newest
