"""Drivers of one pipeline in a managed group: one drives, the others stand by.

The leader assigns a pipeline's partitions to one driver as a whole, and revokes them so (:mod:`aiokcc.core.colocation`).
Until then a driver stands by: it is registered, owns nothing, and waits for its assignment. It starts when it holds all locks;
then no other driver runs. When a partition is revoked everything stops, the running job too, and only then are the locks
released: the next driver cannot start before that. The batch that was decided is recorded in the store, and the next driver
carries it out. A driver that lost its partitions while it was suspended is fenced out, as anywhere else, and stands by again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio

from aiokcc.core import paths
from aiokcc.core.limit import Mode
from aiokcc.core.partitions import Partition, decode_partitions
from aiokcc.core.subscriptions import Registration, Subscription
from aiokcc.errors import (
    CorruptNodeError,
    GroupMismatchError,
    MissingNodeError,
    PartitionError,
    PartitionRevoked,
    PipelineMismatchError,
    SessionLostError,
)
from aiokcc.runtime.listener import Listener
from aiokcc.spark.participant import Participant
from aiokcc.stores.port import Session, Store

__all__ = ["check_other_pipelines", "claim_all", "drive_in_turn", "wait_until_revoked"]

log = logging.getLogger("aiokcc.spark")


async def drive_in_turn(participant: Participant, drive: Callable[[frozenset[Partition]], Awaitable[None]]) -> None:
    """Stand by until all partitions are assigned to us, then drive; stand by again if they are revoked; until the run's end."""
    name = participant.member.name
    while (mine := await _wait_for_assignment(participant)) is not None:
        log.info("%s is assigned all partitions of the pipeline, and drives it", name)
        if await _drive_until_revoked(participant, mine, drive):
            return
        log.info("%s has released the pipeline's partitions", name)


async def _wait_for_assignment(participant: Participant) -> frozenset[Partition] | None:
    """Wait until all partitions of the pipeline are assigned to us, and return the assignment; None if the run ends before."""
    member, told = participant.member, False
    while participant.limit.mode is not Mode.END:
        participant.check()
        whole, assigned = participant.whole(member.settings.partitions), member.assigned
        if whole and assigned is not None and whole <= assigned:
            return assigned
        if not told:
            told = True
            log.info("%s stands by for the pipeline's partitions", member.name)
        await member.moved.wait()
    return None


async def _drive_until_revoked(
    participant: Participant, mine: frozenset[Partition], drive: Callable[[frozenset[Partition]], Awaitable[None]]
) -> bool:
    """Drive. Return True if that came to its end; False if a partition was revoked, after all locks are released."""
    member = participant.member
    with anyio.CancelScope() as ours:
        listener = _CancelWhenRevoked(participant, ours)
        member.add_listener(listener)
        try:
            await drive(mine)
        except PartitionRevoked as gone:
            log.info("%s: %s", member.name, gone)
        else:
            return True
        finally:
            member.remove_listener(listener)
    await participant.release()
    return False


class _CancelWhenRevoked(Listener):
    """Cancels a scope when the leader has revoked one of the driver's partitions."""

    def __init__(self, participant: Participant, scope: anyio.CancelScope) -> None:
        self._participant = participant
        self._scope = scope

    def assignment_changed(self) -> None:
        if self._participant.is_revoked:
            self._scope.cancel()


async def claim_all(participant: Participant, mine: frozenset[Partition]) -> None:
    """Claim the locks, then check that they are all partitions of the pipeline. Raise PartitionRevoked if they are not.

    The set is read after the locks are held, because it may have changed since the assignment was made. A driver that holds
    the locks of the whole pipeline knows that no other driver holds any of them.
    """
    member = participant.member
    known = member.settings.partitions
    if gone := mine - known:
        raise PartitionRevoked(f"{min(gone)} has left the group's set")
    await participant.open(mine)
    while True:
        await participant.ready()
        session = await participant.session()
        try:
            agreed = await _agreed(member.store, session)
        except SessionLostError:
            continue
        missing = participant.whole(agreed) - participant.tracks.keys()
        if not missing:
            return
        if member.settings.partitions != known or participant.limit.mode is Mode.END:
            raise PartitionRevoked(f"{min(missing)} belongs to the pipeline as well")
        await member.moved.wait()  # until this member has read the new set, or the same would be tried again


async def wait_until_revoked(participant: Participant) -> None:
    """Return when the run has ended. A revoked partition cancels this call, as it cancels everything else of the driver."""
    while participant.limit.mode is not Mode.END:
        participant.check()
        await participant.member.moved.wait()


async def _agreed(store: Store, session: Session) -> frozenset[Partition]:
    node = await session.find(paths.TOPIC_PARTITIONS)
    if node is None:
        raise MissingNodeError(store.describe(paths.TOPIC_PARTITIONS))
    return decode_partitions(store.describe(node.path), node.data)


async def check_other_pipelines(
    store: Store, session: Session, member_session: str, mine: Subscription, replays: Callable[[str], bool]
) -> None:
    """Raise an error if the pipeline conflicts with others of the group that registered before it.

    If two that conflict start at the same moment, both may be refused. Conflicts that arise later cannot be seen here; the
    leader resolves them by a rule and logs it.
    """
    agreed = await _agreed(store, session)
    others = sorted({p.topic for p in agreed if not replays(p.topic)})
    if others:
        raise GroupMismatchError(
            f"the group under {store.describe('')} replays {', '.join(others)} as well; name all topics of the group, and "
            f"say with subscription= or partitions= which of them the pipeline runs"
        )
    ours = await session.find(paths.member(member_session))
    if ours is None:  # deleted by hand: it is being created again
        return
    whole = frozenset(filter(mine.covers, agreed))
    for name in await session.children(paths.IDS):
        node = None if name == member_session else await session.find(paths.member(name))
        if node is None or node.created > ours.created:
            continue
        try:
            theirs = Registration.decode(store.describe(node.path), node.data).subscription
        except CorruptNodeError:
            continue  # the leader logs that, and assigns it nothing
        if theirs.pipeline is None or theirs == mine:
            continue
        if theirs.pipeline == mine.pipeline:
            raise PipelineMismatchError(
                f"{name} drives the pipeline {mine.pipeline!r} of this group with {theirs}, and this driver comes with {mine}; "
                f"all drivers of a pipeline run the same partitions. Give it another name, or the same partitions"
            )
        contested = sorted(partition for partition in whole if theirs.covers(partition))
        if contested:
            raise PartitionError(
                f"{contested[0]} belongs to the pipeline {theirs.pipeline!r}, which {name} drives in this group; a partition "
                f"is in one pipeline at most. Give {mine.pipeline!r} other partitions, or a group of its own"
            )
