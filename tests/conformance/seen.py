"""A helper for the tests of watches: it follows a watch until a condition holds.

Tests wait for the event that they test. ``PATIENCE`` only turns a hang into a failure; it measures nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiokcc.stores import Change, Children, Node, Watch

PATIENCE = 20.0


class Seen:
    """Follows a watch; keeps all that it reported, and per path what it reported last."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.log: list[Change] = []
        self.last: dict[str, Node | Children | None] = {}

    async def more(self) -> list[Change]:
        """Wait for the next changes, and return them."""
        async with asyncio.timeout(PATIENCE):
            changes = await self.watch.changes()
        assert changes, "a watch that has nothing to report waits"
        self.log += changes
        self.last.update({change.path: change.now for change in changes})
        return changes

    async def until(self, condition: Callable[[], bool]) -> None:
        """Follow the watch until the condition holds."""
        while not condition():
            await self.more()

    def data(self, path: str) -> bytes | None:
        """Return the data that was last reported; None if the node did not exist, or nothing was reported yet."""
        now = self.last.get(path)
        return now.data if isinstance(now, Node) else None

    def names(self, path: str) -> tuple[str, ...] | None:
        """Return the names that were last reported; None if the node did not exist, or nothing was reported yet."""
        now = self.last.get(path)
        return now.names if isinstance(now, Children) else None
