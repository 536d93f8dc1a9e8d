"""Following a group: woken by the store's watches, never by a clock.

The nodes that make up a status are watched; when one changes, the status is read anew and shown. A group may move hundreds of
times in a second, which nobody can read: after each reading there is a pause, and what changes meanwhile is shown together.
The pause bounds how often we read, and here time itself is the event: nothing else says that a person has had time to look. It
loses nothing, for the watch holds what has changed meanwhile, and where nothing changes nothing is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import anyio

from aiokcc.core import paths
from aiokcc.errors import SessionLostError, UsageError
from aiokcc.runtime.status import Status, read_status
from aiokcc.stores.port import Change, Children, Session, SessionState, Store, Watch

__all__ = ["follow"]

_PAUSE: Final = 0.15
"""Seconds between two readings, at least; longer where a reading takes long, so that a big group is not kept busy by us."""
_SHARE: Final = 4

_NODES: Final = (paths.COORDINATOR, paths.PERIOD, paths.GENERATION, paths.RUN, paths.TOPIC_PARTITIONS)
_PARENTS: Final = (paths.PROGRESS, paths.IDS, paths.LEADER, paths.OWNERS)


async def follow(
    store: Store,
    *,
    timeout: float,
    seen: Callable[[Status], bool],
    nothing: Callable[[str], None],
    connection: Callable[[bool], None],
) -> None:
    """Call ``seen`` with each new status until it returns False, over lost connections and sessions.

    ``nothing`` is called while there is no group, ``connection`` when the connection breaks or is back. StoreUnreachableError
    if there is no answer at first; afterwards it waits for the store for as long as it takes.
    """
    patience: float | None = timeout
    while True:
        try:
            async with store.session(connect_timeout=patience) as session:
                patience = None
                connection(True)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_mind_connection, session, connection)
                    await _follow(store, session, seen, nothing)
                    tasks.cancel_scope.cancel()
                return
        except* SessionLostError:
            connection(False)


async def _mind_connection(session: Session, connection: Callable[[bool], None]) -> None:
    while await session.until(SessionState.SUSPENDED) is SessionState.SUSPENDED:
        connection(False)
        if await session.until(SessionState.CONNECTED) is SessionState.CONNECTED:
            connection(True)


async def _follow(
    store: Store, session: Session, seen: Callable[[Status], bool], nothing: Callable[[str], None]
) -> None:
    with session.watch() as watch:
        for path in _NODES:
            watch.add(path)
        for path in _PARENTS:
            watch.add_children(path)
        below: dict[str, set[str]] = {}
        while True:
            for change in await watch.changes():
                _widen(watch, change, below)
            begun = time.monotonic()
            try:
                status = await read_status(store, session)
            except UsageError as error:
                nothing(str(error))
            else:
                if not seen(status):
                    return
            await anyio.sleep(max(_PAUSE, _SHARE * (time.monotonic() - begun)))  # a frame's time, not a poll: see above


def _widen(watch: Watch, change: Change, below: dict[str, set[str]]) -> None:
    """Watch what has come below a node, and no longer what is gone."""
    names = set(change.now.names) if isinstance(change.now, Children) else set()
    if change.path == paths.OWNERS:
        for topic in names:
            watch.add_children(f"{paths.OWNERS}/{topic}")
    elif change.path in (paths.PROGRESS, paths.LEADER):
        before = below.get(change.path, set())
        for name in names - before:
            watch.add(f"{change.path}/{name}")
        for name in before - names:
            watch.remove(f"{change.path}/{name}")
        below[change.path] = names
