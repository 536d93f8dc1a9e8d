"""The interface through which a member notifies the layers that are built on the group, such as :mod:`aiokcc.kafka`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiokcc.core.partitions import Partition
    from aiokcc.stores.port import Session

__all__ = ["Listener"]


class Listener:
    """Receives the events of one member. Each method does nothing; a subclass overrides those that it needs.

    :meth:`Member.add_listener <aiokcc.runtime.member.Member.add_listener>` adds it. None of these methods is called for each
    record. The plain ones must return at once.
    """

    def set_changed(self) -> None:
        """Called when the agreed set has changed."""

    def elected(self) -> None:
        """Called when this member has become the leader."""

    def assignment_changed(self) -> None:
        """Called when the partitions assigned to this member of a managed group have changed."""

    def all_arrived(self) -> None:
        """Called when every partition has arrived at the floor, or there is no limit any more, and something is withheld."""

    def limit_moved(self, positions: dict[Partition, int]) -> None:
        """Called when the limit has moved. ``positions`` has the offset of the boundary that closed, by partition.

        It is empty if not all of our partitions had arrived there.
        """

    async def claimed(self, session: Session, partitions: list[Partition]) -> None:
        """Called after a claim, while the limit is read. The partitions begin when it has returned."""
