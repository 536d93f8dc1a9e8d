"""Reads the agreement of the group: the nodes ``run`` and ``topic-partitions``, which belong together.

The two nodes are written in one transaction and read one after the other, so a change may come in between. Then they do not
match, which looks like damage. They are read again until they match, or until neither has changed between two reads.
"""

from __future__ import annotations

from aiokcc.core import paths
from aiokcc.core.partitions import decode_partitions
from aiokcc.core.run import Run
from aiokcc.errors import CorruptNodeError, MissingNodeError
from aiokcc.stores.port import Node, Session, Store

__all__ = ["find_run", "has_changed"]


async def find_run(store: Store, session: Session) -> tuple[Run, Node] | None:
    """Returns the run and its node; None if there is no group.

    Raises MissingNodeError if the set of partitions was deleted, CorruptNodeError if one of the nodes cannot be read or the
    two do not belong together.
    """
    while True:
        node = await session.find(paths.RUN)
        if node is None:
            return None
        path = store.describe(paths.TOPIC_PARTITIONS)
        listed = await session.find(paths.TOPIC_PARTITIONS)
        if listed is None:
            raise MissingNodeError(path)
        try:
            return Run.decode(store.describe(node.path), node.data, decode_partitions(path, listed.data)), node
        except CorruptNodeError:
            if not await has_changed(session, node):
                raise


async def has_changed(session: Session, node: Node) -> bool:
    """Returns whether the node was written since it was read."""
    now = await session.find(node.path)
    return now is not None and now.version != node.version
