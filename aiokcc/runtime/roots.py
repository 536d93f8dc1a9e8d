"""Finds the roots of groups in a store, and deletes one of them: all nodes of the group, and no other below its root.

A root is a node with the children ``run`` and ``coordinator``. Deleting is safe against a member that joins at the same time:
one transaction deletes all nodes of the run, at the version of ``run`` that was read, and with them the parents of the
ephemeral nodes. ZooKeeper refuses to delete a node that has children, so the transaction fails if anybody is registered, leads,
holds a lock or restates a pipeline. Then there is no run any more, and no record of a pipeline by which another run would go
on. What remains, committed offsets, which name their run, is deleted in further transactions, each of which creates ``run`` and
deletes it again: it fails if somebody has founded a new run meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiokcc.core import paths
from aiokcc.core.committed_offset import batched
from aiokcc.errors import (
    AiokccError,
    BadVersionError,
    CoordinationError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    UsageError,
)
from aiokcc.runtime.children import list_children
from aiokcc.runtime.new_run import NODES_OF_A_RUN, nodes_below
from aiokcc.runtime.status import GroupState, Status
from aiokcc.runtime.status_reader import read_status
from aiokcc.stores.port import ANY_VERSION, Create, Delete, Session, Store

__all__ = ["RootSummary", "delete_root", "find_roots", "summarize"]

_MOST_LEVELS = 6
_BATCH = 500


@dataclass(frozen=True, slots=True)
class RootSummary:
    """One root, as a list shows it."""

    status: Status
    founded: int
    """Milliseconds since the epoch, on the store's clock; so are the others."""
    active: int
    """The time at which the limit last moved."""
    ended: int | None
    """The time at which the run ended; None if it has not."""
    run_version: int


async def find_roots(session: Session, path: str = "", levels: int = _MOST_LEVELS) -> AsyncIterator[str]:
    """Yield the paths of the roots at and below a path, in order. Nodes that we may not read are passed over."""
    try:
        names = sorted(await list_children(session, path))
    except NoAuthError:
        return
    if {paths.RUN, paths.COORDINATOR} <= set(names):
        yield path
        return
    if levels:
        for name in names:
            async for found in find_roots(session, f"{path}/{name}" if path else name, levels - 1):
                yield found


async def summarize(store: Store, session: Session) -> RootSummary:
    """Return the summary of the root of this session. Raises UsageError if there is no group."""
    status = await read_status(store, session)
    run, limit = await session.find(paths.RUN), await session.find(paths.COORDINATOR)
    if run is None or limit is None:
        raise UsageError(f"there is no group under {store.describe('')}; it was deleted a moment ago")
    ended = run.modified if status.state is GroupState.ENDED else None
    return RootSummary(status, run.created, max(limit.modified, run.modified), ended, run.version)


async def delete_root(store: Store, session: Session, *, version: int | None = None) -> int:
    """Delete the group under the root, and return the number of nodes deleted.

    ``version`` is that of ``run`` on which the decision rests. Raises UsageError if there is no group, or somebody is alive in
    it, or the run has changed since; CoordinationError if a new run was founded while the rest was deleted. If this is
    cancelled, the run is deleted or not, as a whole. Nodes that other programs have created below the root stay, and the
    root with them.
    """
    run = await session.find(paths.RUN)
    if run is None:
        raise UsageError(f"there is no group under {store.describe('')}")
    if version is not None and run.version != version:
        raise UsageError(f"the run under {store.describe('')} has changed since it was looked at; nothing was deleted")
    await _refuse_if_alive(store, session)
    doomed = await _persistent_nodes(session)
    try:
        await session.commit(Delete(paths.RUN, run.version), *(Delete(path, ANY_VERSION) for path in doomed))
    except (BadVersionError, NoNodeError, NotEmptyError) as error:
        await _refuse_if_alive(store, session)
        raise UsageError(
            f"the group under {store.describe('')} changed while it was to be deleted; nothing was deleted, try again"
        ) from error
    deleted = 1 + len(doomed)
    rest = await nodes_below(session, paths.OFFSETS)
    for batch in batched(rest, 600 + len(store.root), _BATCH):
        no_run = (Create(paths.RUN), Delete(paths.RUN, ANY_VERSION))
        try:
            await session.commit(*no_run, *(Delete(path, ANY_VERSION) for path in batch))
        except (NodeExistsError, NoNodeError, NotEmptyError) as error:
            raise CoordinationError(
                f"the run under {store.describe('')} is deleted, but somebody has begun a new one there; the rest stays"
            ) from error
        deleted += len(batch)
    with contextlib.suppress(AiokccError):  # nodes of another group, or of another program, may be below it
        await session.delete("", ANY_VERSION)
        deleted += 1
    return deleted


async def _persistent_nodes(session: Session) -> list[str]:
    """Return the nodes of the run and its pipelines except ``run`` itself, the lowest first, without those of a session.

    The nodes of a member that joins now, or of a restatement that begins, are not among them. So their parents cannot be
    deleted, and nothing is.
    """
    found: list[str] = []
    for top in NODES_OF_A_RUN:
        if top in {paths.IDS, paths.LEADER, paths.PROGRESS}:
            found += [top] if await session.find(top) is not None else []
        elif top == paths.OWNERS:
            topics = [f"{top}/{name}" for name in await list_children(session, top)]
            found += [*topics, *([top] if await session.find(top) is not None else [])]
        else:
            found += await nodes_below(session, top)
    restated = {paths.restating(name) for name in await list_children(session, paths.PIPELINES)}
    return found + [path for path in await nodes_below(session, paths.PIPELINES) if path not in restated]


async def _refuse_if_alive(store: Store, session: Session) -> None:
    alive = {
        name for parent in (paths.IDS, paths.LEADER, paths.PROGRESS) for name in await list_children(session, parent)
    }
    for pipeline in await list_children(session, paths.PIPELINES):  # a restatement is no member
        if await session.find(paths.restating(pipeline)) is not None:
            alive.add(f"the restatement of {pipeline}")
    if alive:
        members = sorted(await list_children(session, paths.IDS)) or sorted(alive)
        raise UsageError(
            f"the group under {store.describe('')} is alive, with {', '.join(members[:5])}{' …' if len(members) > 5 else ''}; "
            f"nothing was deleted. Stop its members first; a killed one is gone when its session has expired"
        )
