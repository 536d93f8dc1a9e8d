"""Follows the status of a group through the store's watches.

All nodes that make up a status are watched. When one changes, the status is read again and shown. A group may change hundreds
of times in a second, which nobody can read, so there is a pause after each reading. The pause only limits how often the status
is read: the watch keeps the changes that arrive meanwhile, and if nothing changes, nothing is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import anyio

from aiokcc.core import paths
from aiokcc.errors import SessionLostError, UsageError
from aiokcc.runtime.status import Status
from aiokcc.runtime.status_reader import read_status
from aiokcc.stores.port import Change, Children, Session, SessionState, Store, Watch

__all__ = ["follow"]

_PAUSE_SECONDS: Final = 0.15
"""The shortest time between two readings."""
_PAUSE_FACTOR: Final = 4
"""A reading that takes long is followed by a pause this many times as long, so that following does not load a big group."""

_NODES: Final = (paths.COORDINATOR, paths.PERIOD, paths.GENERATION, paths.RUN, paths.TOPIC_PARTITIONS)
_PARENTS: Final = (
    paths.PROGRESS,
    paths.IDS,
    paths.LEADER,
    paths.OWNERS,
    paths.STATE,
    paths.ISOLATED,
    paths.PIPELINES,
)
_WATCHED_BELOW: Final = {paths.PROGRESS: "", paths.LEADER: "", paths.STATE: "", paths.PIPELINES: "/published"}
"""The parents whose children are watched, and the node of each child that is."""


async def follow(
    store: Store,
    *,
    timeout: float | None,
    on_status: Callable[[Status], bool],
    on_missing: Callable[[str], None],
    on_connection: Callable[[bool], None],
) -> None:
    """Call ``on_status`` with each new status until it returns False, over lost connections and sessions.

    ``on_missing`` is called with an explanation while there is no group. ``on_connection`` is called with False when the
    connection is lost and with True when it is back. Raises StoreUnreachableError if the store does not answer within
    ``timeout`` at first; later, and from the beginning if that is None, it waits for the store without a limit. Cancelling
    closes the session.
    """
    connect_timeout: float | None = timeout
    while True:
        try:
            async with store.session(connect_timeout=connect_timeout) as session:
                connect_timeout = None
                on_connection(True)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_follow_connection, session, on_connection)
                    await _follow(store, session, on_status, on_missing)
                    tasks.cancel_scope.cancel()
                return
        except* SessionLostError:
            on_connection(False)


async def _follow_connection(session: Session, on_connection: Callable[[bool], None]) -> None:
    while await session.until(SessionState.SUSPENDED) is SessionState.SUSPENDED:
        on_connection(False)
        if await session.until(SessionState.CONNECTED) is SessionState.CONNECTED:
            on_connection(True)


async def _follow(
    store: Store, session: Session, on_status: Callable[[Status], bool], on_missing: Callable[[str], None]
) -> None:
    with session.watch() as watch:
        for path in _NODES:
            watch.add(path)
        for path in _PARENTS:
            watch.add_children(path)
        below: dict[str, set[str]] = {}
        while True:
            for change in await watch.changes():
                _update_watches(watch, change, below)
            begun = time.monotonic()
            try:
                status = await read_status(store, session)
            except UsageError as error:
                on_missing(str(error))
            else:
                if not on_status(status):
                    return
            await anyio.sleep(max(_PAUSE_SECONDS, _PAUSE_FACTOR * (time.monotonic() - begun)))


def _update_watches(watch: Watch, change: Change, below: dict[str, set[str]]) -> None:
    """Watch the children that were added below a node; stop watching those that were removed."""
    names = set(change.now.names) if isinstance(change.now, Children) else set()
    if change.path == paths.OWNERS:
        for topic in names:
            watch.add_children(f"{paths.OWNERS}/{topic}")
    elif change.path in _WATCHED_BELOW:
        before = below.get(change.path, set())
        end = _WATCHED_BELOW[change.path]
        for name in names - before:
            watch.add(f"{change.path}/{name}{end}")
        for name in before - names:
            watch.remove(f"{change.path}/{name}{end}")
        below[change.path] = names
