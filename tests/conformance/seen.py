"""What the tests of watches see: a watch followed until something is there.

Tests wait for the event they are about. ``PATIENCE`` only turns a hang into a failure; nothing is ever measured by it.
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
        """The next changes."""
        async with asyncio.timeout(PATIENCE):
            changes = await self.watch.changes()
        assert changes, "a watch that has nothing to report waits"
        self.log += changes
        self.last.update({change.path: change.now for change in changes})
        return changes

    async def until(self, condition: Callable[[], bool]) -> None:
        """Follow until the condition holds."""
        while not condition():
            await self.more()

    def data(self, path: str) -> bytes | None:
        """The data last reported; None if the node was not there, or nothing was reported yet."""
        now = self.last.get(path)
        return now.data if isinstance(now, Node) else None

    def names(self, path: str) -> tuple[str, ...] | None:
        """The names last reported; None if the node was not there, or nothing was reported yet."""
        now = self.last.get(path)
        return now.names if isinstance(now, Children) else None
