"""Starting again from nothing, where a person has asked for it.

A driver that runs all partitions is the whole group: what the group has agreed on goes as well, or the limit would stand where
the last run left it. That is done only when nobody takes part in it any more.
"""

from __future__ import annotations

import logging

import anyio

from aiokcc.core import paths
from aiokcc.core.run import CUT_SLOTS
from aiokcc.errors import BadVersionError, NoNodeError, UsageError
from aiokcc.stores.port import ANY_VERSION, Children, Delete, Session, Store

__all__ = ["forget_group"]

log = logging.getLogger("aiokcc.spark")


async def forget_group(store: Store, session: Session, seconds: float) -> None:
    """Delete what the group under the store's root has agreed on, once all its members are gone. UsageError if they stay."""
    with anyio.move_on_after(seconds):
        while True:
            await _until_nobody_is_left(session)
            generation = await session.find(paths.GENERATION)
            if generation is None:
                return
            agreed = (paths.COORDINATOR, paths.PERIOD, paths.RUN, paths.TOPIC_PARTITIONS)
            slots = (paths.cut(n, CUT_SLOTS) for n in range(CUT_SLOTS))
            try:
                await session.commit(
                    Delete(paths.GENERATION, generation.version), *(Delete(p, ANY_VERSION) for p in (*agreed, *slots))
                )
            except BadVersionError:  # somebody has joined and leads
                continue
            except NoNodeError as error:
                raise UsageError(
                    f"{store.describe('')} holds the remains of a group, without {error.path}; delete it, or use another root"
                ) from error
            log.info("the group under %s is forgotten; it starts from scratch", store.describe(""))
            return
    members = ", ".join(await session.children(paths.IDS))
    raise UsageError(
        f"from_scratch: {members} still take part in the group under {store.describe('')}; stop them first"
    )


async def _until_nobody_is_left(session: Session) -> None:
    with session.watch() as watch:
        watch.add_children(paths.IDS)
        async for change in watch:
            if not isinstance(change.now, Children) or not change.now.names:
                return
