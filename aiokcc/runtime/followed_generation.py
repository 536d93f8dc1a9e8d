"""The generation that one member session knows. Its writes check this version, and its reports name this number."""

from __future__ import annotations

from collections.abc import Callable

from aiokcc.core.run import Generation
from aiokcc.stores.port import ANY_VERSION, Node, Store

__all__ = ["FollowedGeneration"]


class FollowedGeneration:
    """The latest generation that this session has read or written.

    :param changed: called when a later one was taken
    """

    def __init__(self, store: Store, changed: Callable[[], None]) -> None:
        self._store = store
        self._changed = changed
        self.number = 0
        self.leader = "-"
        """The member session that wrote it."""
        self.version = ANY_VERSION
        """The version of its node."""

    def see(self, node: Node) -> None:
        """Takes a generation that was read, or that we wrote. An earlier one changes nothing."""
        if node.version <= self.version:
            return
        generation = Generation.decode(self._store.describe(node.path), node.data)
        self.number, self.leader, self.version = generation.number, generation.leader, node.version
        self._changed()
