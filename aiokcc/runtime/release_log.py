"""Logs the partitions that a member releases before they have finished: one line for all of about the same time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from aiokcc.core.partitions import Partition, listing
from aiokcc.runtime.progress_log import log_facts
from aiokcc.runtime.timer import Timeout, timers

if TYPE_CHECKING:
    from aiokcc.runtime.member import Member

__all__ = ["ReleaseLog"]

log = logging.getLogger("aiokcc.runtime")

_GATHER_SECONDS: Final = 0.5


class ReleaseLog:
    """The releases of one member that are not logged yet."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._released: set[Partition] = set()
        self._timer: Timeout | None = None

    def add(self, partition: Partition) -> None:
        """Logs this partition soon, with others that are released meanwhile, unless its gate is opened again before."""
        self._released.add(partition)
        if self._timer is None:
            self._timer = timers().call_later(_GATHER_SECONDS, self.write)

    def write(self) -> None:
        """Logs the line now, if there is something to log."""
        member = self._member
        released = sorted(self._released - member.gates.keys())
        self.discard()
        if released:
            one = len(released) == 1
            log.log(
                # A managed group finds the next owner itself; the next start of a scheduled run claims them again.
                logging.WARNING if member.options.managed is None and not member.continues_later else logging.INFO,
                "%s: %s released before %s had finished; the limit waits for %s",
                member.name,
                f"{released[0]} was" if one else f"{listing(map(str, released))} were",
                "it" if one else "they",
                "its next owner" if one else "their next owners",
                extra=log_facts(member, partitions=[str(p) for p in released]),
            )

    def discard(self) -> None:
        """Drops the line: the run fails, and the log should show the reason only."""
        self._released.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
