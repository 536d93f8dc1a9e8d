"""The announcements of one leader term: the nodes below ``limits`` whose names tell members the limit.

Each write of ``coordinator`` creates one in the same transaction. Old ones are deleted many at a time and beside the advances,
because a deletion is one more event for every member.
"""

from __future__ import annotations

from typing import Final

from aiokcc.core import paths
from aiokcc.core.announcement import Announcement
from aiokcc.core.limit import Limit
from aiokcc.errors import NoNodeError, OutcomeUnknownError
from aiokcc.runtime.children import list_children
from aiokcc.runtime.signal import Signal
from aiokcc.stores.port import ANY_VERSION, Create, Delete, Session

__all__ = ["Announcements"]

_KEPT: Final = 16
"""The newest ones stay, for people to see."""
_MOST: Final = 64
"""Old ones are deleted when there are more than this."""


class Announcements:
    """The announcements that the store holds, as far as the leader knows."""

    def __init__(self, session: Session, leader: str) -> None:
        self._session = session
        self._leader = leader
        self._paths: list[str] = []
        """Ascending by version."""
        self._latest = 0
        """The version that was announced last; 0 is that of the founding, of which nobody has to be told."""
        self._crowded = Signal()

    async def read(self) -> None:
        """Reads which there are. Creates the parent if it was deleted."""
        names = await list_children(self._session, paths.LIMITS)
        if not names:
            await self._session.ensure(paths.LIMITS)
        parsed = {name: Announcement.parse(name, self._leader) for name in names}
        found = sorted((a.version, name) for name, a in parsed.items() if a is not None)
        self._paths = [paths.limit(name) for name, a in parsed.items() if a is None]
        self._paths += [paths.limit(name) for _, name in found]
        self._latest = found[-1][0] if found else 0
        self._check_number()

    def has(self, version: int) -> bool:
        """Returns whether this version of ``coordinator`` was announced, as the last one."""
        return version == self._latest

    def create(self, version: int, limit: Limit, epoch: int) -> Create:
        """Returns the operation that announces a limit. The node holds the epoch of the leader: one writer, one content."""
        return Create(paths.limit(Announcement(version, limit).name(self._leader)), str(epoch).encode())

    def created(self, created: Create, version: int) -> None:
        """Notes that the transaction was applied."""
        self._paths.append(created.path)
        self._latest = version
        self._check_number()

    async def remove(self, path: str) -> None:
        """Deletes a node that no leader created, and that is in the way of one."""
        try:
            await self._session.delete(path, ANY_VERSION)
        except NoNodeError:
            pass

    async def prune(self) -> None:
        """Deletes old announcements, until it is cancelled. A new leader finds those that are left."""
        while True:
            await self._crowded.wait()
            old = self._paths[:-_KEPT]
            try:
                await self._session.commit(*(Delete(path, ANY_VERSION) for path in old))
            except (NoNodeError, OutcomeUnknownError):  # deleted by somebody else, perhaps only some of them
                for path in old:
                    await self.remove(path)
            self._paths = self._paths[len(old) :]

    def _check_number(self) -> None:
        if len(self._paths) > _MOST:
            self._crowded.set()
