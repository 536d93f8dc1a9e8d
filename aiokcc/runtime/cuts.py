"""Reading the last cut from the ring in the store."""

from __future__ import annotations

import logging

from aiokcc.core import paths
from aiokcc.core.progress import Cut
from aiokcc.core.run import CUT_SLOTS
from aiokcc.errors import CorruptNodeError, MissingNodeError
from aiokcc.stores.port import Session, Store

__all__ = ["last_cut"]

log = logging.getLogger("aiokcc.cuts")


async def last_cut(store: Store, session: Session, version: int) -> Cut | None:
    """The newest cut, given the version of the ``coordinator`` node just read; None if no boundary has closed yet."""
    if version == 0:  # as it was founded
        return None
    path = paths.cut(version, CUT_SLOTS)
    node = await session.find(path)
    if node is None:
        raise MissingNodeError(store.describe(path))
    newest = Cut.decode(store.describe(path), node.data)
    if newest is not None and newest.number == version:
        return newest
    for slot in await session.children(paths.CUTS):  # released, or written by hand: look at all of them
        node = await session.find(f"{paths.CUTS}/{slot}")
        try:
            cut = None if node is None else Cut.decode(store.describe(node.path), node.data)
        except CorruptNodeError as error:
            log.warning("%s", error)
            continue
        if cut is not None and (newest is None or cut.number > newest.number):
            newest = cut
    return newest
