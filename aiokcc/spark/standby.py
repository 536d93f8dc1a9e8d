"""Drivers of one pipeline in a managed group take turns: one drives, the others stand by.

A pipeline's partitions are given to one driver as a whole, and taken from it as a whole (:mod:`aiokcc.core.colocation`). Until
they are given to it a driver stands by: it is registered, holds nothing, and waits to be told. It starts once it holds all
locks, and then nobody else drives. When a partition is taken away everything stops, the running job too, and only then
do the locks go back: the next driver cannot start before that. What had been decided stands in the store, and is done by
whoever comes next. A driver that lost its turn while it was asleep is fenced out as anywhere else; it finds out, and stands by.
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
from aiokcc.spark.participant import Participant
from aiokcc.stores.port import Session, Store

__all__ = ["check_other_pipelines", "claim_all", "drive_in_turn", "wait_until_revoked"]

log = logging.getLogger("aiokcc.spark")


async def drive_in_turn(participant: Participant, drive: Callable[[frozenset[Partition]], Awaitable[None]]) -> None:
    """Stand by until all partitions are given to us, then drive; stand by again if they are taken away. To the run's end."""
    name = participant.member.name
    while (mine := await _wait_for_assignment(participant)) is not None:
        log.info("%s is given all partitions of the pipeline, and drives it", name)
        if await _drive_until_revoked(participant, mine, drive):
            return
        log.info("%s has given the pipeline's partitions back", name)


async def _wait_for_assignment(participant: Participant) -> frozenset[Partition] | None:
    """Wait until all that the pipeline runs is given to us: that; or None if the run is over before."""
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
    """Drive until that is over (True), or until a partition is taken away: then everything is given back (False)."""
    member = participant.member
    with anyio.CancelScope() as ours:

        def look() -> None:
            if participant.is_revoked:
                ours.cancel()

        member.on_assigned = look
        try:
            await drive(mine)
        except PartitionRevoked as gone:
            log.info("%s: %s", member.name, gone)
        else:
            return True
        finally:
            member.on_assigned = None
    await participant.release()
    return False


async def claim_all(participant: Participant, mine: frozenset[Partition]) -> None:
    """Take the locks, and look once more whether that is all of the pipeline. PartitionRevoked if it is not.

    How the set stands is read once the locks are ours, for what we were given may be all of a set that has changed since.
    Whoever holds all of it knows that no other driver holds any.
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
        await member.moved.wait()  # until we have heard of it ourselves, or we would only try the same again


async def wait_until_revoked(participant: Participant) -> None:
    """Wait until a partition is taken away, which ends this call as it ends all else; or return if the run is over."""
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
    """Whether a pipeline fits in with the others that are there, and came before it; an error that says why it does not.

    Of two that start in the same moment and do not fit, both may be refused. What comes about later, and nobody can tell here,
    the leader decides by a rule, and says so in its log.
    """
    agreed = await _agreed(store, session)
    others = sorted({p.topic for p in agreed if not replays(p.topic)})
    if others:
        raise GroupMismatchError(
            f"the group under {store.describe('')} replays {', '.join(others)} as well; name all topics of the group, and "
            f"say with subscription= or partitions= which of them the pipeline runs"
        )
    ours = await session.find(paths.member(member_session))
    if ours is None:  # deleted by hand: it is being made again
        return
    whole = frozenset(filter(mine.covers, agreed))
    for name in await session.children(paths.IDS):
        node = None if name == member_session else await session.find(paths.member(name))
        if node is None or node.created > ours.created:
            continue
        try:
            theirs = Registration.decode(store.describe(node.path), node.data).subscription
        except CorruptNodeError:
            continue  # the leader says so, and gives it nothing
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
