"""Keeps a restatement and the drivers of the same pipeline apart, so that none of them is fenced out without need.

A restatement creates ``pipelines/<name>/restating``, which ends with its session, and then waits until the driver that took the
last attempt is gone. A driver that starts claims its partitions, waits until the node is gone, and then takes its attempt. It
may do so right after the restatement has looked; so the restatement looks again before it takes an attempt of its own. If a
driver is suspended between its look and its attempt, the greater attempt number decides, as between any two drivers: it is what
makes results safe; this node only saves work.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from aiokcc.core import paths
from aiokcc.errors import NodeExistsError, NoNodeError, PipelineBusyError
from aiokcc.stores.port import ANY_VERSION, Children, Session

__all__ = ["alone_with", "wait_until_not_driven", "wait_until_restated"]

log = logging.getLogger("aiokcc.spark")


@asynccontextmanager
async def alone_with(session: Session, pipeline: str, who: str, seconds: float) -> AsyncIterator[None]:
    """Show that the pipeline is being restated, and wait until no driver and no other restatement is at work.

    Raise PipelineBusyError, which names the other one, after these seconds.
    """
    path = paths.restating(pipeline)
    busy = ""
    with anyio.move_on_after(seconds) as scope:
        while True:
            try:
                await session.create(path, who.encode(), ephemeral=True)
            except NodeExistsError:
                node = await session.find(path)
                busy = "" if node is None else f"is being restated by {node.data.decode(errors='replace')}"
                await _until_absent(session, path)
            else:
                break
    if scope.cancelled_caught:
        raise PipelineBusyError(pipeline, busy, seconds)
    try:
        await wait_until_not_driven(session, pipeline, seconds)
        yield
    finally:
        with anyio.move_on_after(5, shield=True):
            try:
                await session.delete(path, ANY_VERSION)
            except NoNodeError:
                pass


async def wait_until_not_driven(session: Session, pipeline: str, seconds: float) -> None:
    """Return when the driver that took the last attempt is gone. Raise PipelineBusyError, which names it, after this time."""
    node = await session.find(f"{paths.PIPELINES}/{pipeline}/attempt")
    driver = "" if node is None else node.data.decode(errors="replace").partition(" ")[2]
    if not driver:
        return
    with anyio.move_on_after(seconds) as scope:
        await _until_not_connected(session, driver)
    if scope.cancelled_caught:
        raise PipelineBusyError(pipeline, f"is driven by {driver}", seconds)


async def wait_until_restated(session: Session, pipeline: str) -> None:
    """Return when the pipeline is not being restated. Raise SessionLostError if the session is lost meanwhile."""
    node = await session.find(paths.restating(pipeline))
    if node is None:
        return
    log.warning("%s is being restated by %s; waiting for its end", pipeline, node.data.decode(errors="replace"))
    await _until_absent(session, paths.restating(pipeline))


async def _until_not_connected(session: Session, member: str) -> None:
    with session.watch() as watch:
        watch.add_children(paths.IDS)
        async for change in watch:
            names = change.now.names if isinstance(change.now, Children) else ()
            if not any(paths.is_session_of(name, member) for name in names):
                return


async def _until_absent(session: Session, path: str) -> None:
    with session.watch() as watch:
        watch.add(path)
        async for change in watch:
            if change.now is None:
                return
