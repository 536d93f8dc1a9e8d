"""Removes a run in memory that has no member left: the next member founds a new one under the same name.

In other stores a run stays, so that it is resumed after a crash and not run again by mistake. A notebook cell or a test that
has failed or was interrupted runs again under the same ``memory://name``, often with other settings, and expects a new run.

A program that passes a store object instead of the URL resumes an unfinished run: ``store = open_store("memory://name")``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from aiokcc.core import paths
from aiokcc.errors import BadVersionError, NoNodeError, NotEmptyError
from aiokcc.runtime.children import list_children
from aiokcc.stores import open_store
from aiokcc.stores.port import ANY_VERSION, Delete

if TYPE_CHECKING:
    from aiokcc.stores.port import Session, Store

__all__ = ["NODES_OF_A_RUN", "joining", "nodes_below", "open_by_url", "remove_left_run"]

log = logging.getLogger("aiokcc.runtime")

# Weak references: a lock belongs to the event loop it is used in, and lives only while somebody joins.
_joining: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

NODES_OF_A_RUN: Final = (
    paths.GENERATION,
    paths.COORDINATOR,
    paths.LIMITS,
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
"""The nodes that a founder creates. Committed offsets stay, for ``start="committed"``. They name their run, so
no other run resumes by them."""


def open_by_url(url: str, **options: Any) -> Store:
    """Opens a store. If it is in memory, it does not resume an unfinished run that all members have left."""
    store = open_store(url, **options)
    if store.volatile:
        store.forgets_unfinished = True
    return store


@asynccontextmanager
async def joining(store: Store) -> AsyncIterator[None]:
    """Lets members join a run in memory one after the other.

    Otherwise a run that was founded a moment ago, and has no member yet, would look like one that all have left.
    """
    if not store.volatile:
        yield
        return
    lock = _joining.setdefault(store.url, asyncio.Lock())
    async with lock:
        yield


async def remove_left_run(store: Store, session: Session) -> bool:
    """Deletes the nodes of a run, in one transaction. Returns False if a member of it is still there.

    If another process was faster, nothing is deleted; the caller reads again in any case.
    """
    run = await session.find(paths.RUN)
    if run is None:
        return True
    if await list_children(session, paths.IDS):
        return False
    doomed = [path for top in NODES_OF_A_RUN for path in await nodes_below(session, top)]
    try:
        await session.commit(Delete(paths.RUN, run.version), *(Delete(path, ANY_VERSION) for path in doomed))
    except (NoNodeError, BadVersionError, NotEmptyError):
        return True
    log.info("the run under %s is over: its last member has left, and a new run begins", store.url)
    return True


async def nodes_below(session: Session, path: str) -> list[str]:
    """Returns a node and all nodes below it, the lowest first; nothing if the node does not exist.

    The root of another group is not among them, nor what is below or above it.
    """
    return (await _nodes_below(session, path))[0]


async def _nodes_below(session: Session, path: str) -> tuple[list[str], bool]:
    """Returns the nodes, and whether the one at the path is kept."""
    if await session.find(path) is None:
        return [], False
    names = await list_children(session, path)
    if {paths.RUN, paths.COORDINATOR} <= set(names):
        return [], True
    found: list[str] = []
    kept = False
    for name in names:
        below, keeps = await _nodes_below(session, f"{path}/{name}")
        found += below
        kept |= keeps
    return (found if kept else [*found, path]), kept
