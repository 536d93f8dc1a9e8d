"""A member that leaves waits until a cut holds its finished partitions, if such a cut can still come.

A finished partition needs no owner once a cut holds it. Until then its report counts only while its member is there. So a
member that leaves waits for the cut; but only while all partitions that it released unfinished have another owner, because
without one no cut comes. Otherwise it leaves at once. Then its session ends, and with it the lock and the report: the partition
counts as unfinished, and its next owner finishes it again.

A member of a managed group also deletes its registration, and if it leads it assigns its partitions to others before it goes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio

from aiokcc.core import paths
from aiokcc.core.limit import Mode
from aiokcc.core.partition_progress import PartitionState
from aiokcc.core.partitions import listing
from aiokcc.errors import NoNodeError, OutcomeUnknownError, SessionLostError
from aiokcc.runtime.cuts import last_cut
from aiokcc.runtime.progress_log import log_facts
from aiokcc.stores.port import Node, Session

if TYPE_CHECKING:
    from aiokcc.core.partitions import Partition
    from aiokcc.runtime.member import Member

__all__ = ["TAKE_OVER_SECONDS", "deregister", "handed_over", "recorded"]

log = logging.getLogger("aiokcc.runtime")

TAKE_OVER_SECONDS: Final = 2.0
"""The time that another member has to claim a partition that we have released."""
_HANDOVER_SECONDS: Final = 2.0
"""The time that a leader that leaves takes, at most, to assign its partitions to others."""


async def recorded(member: Member) -> None:
    """Returns when a cut holds our finished partitions, or when no such cut can come."""
    failure: Exception | None = None

    async def leave_without() -> None:
        await _no_cut_can_come(member)
        if member.failure is None and member.progress.limit.mode is Mode.GATED:
            log.info(
                "%s leaves before the group has recorded that %s; the next owner says so again",
                member.name,
                _have_finished(_finished(member)),
                extra=log_facts(member),
            )
        tasks.cancel_scope.cancel()

    if not _finished(member):
        return
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave_without)
        try:
            await _in_a_cut(member)
        except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _finished(member: Member) -> set[Partition]:
    return {p for p, progress in member.progress.partitions.items() if progress.state is PartitionState.FINISHED}


def _have_finished(partitions: set[Partition]) -> str:
    return f"{listing(map(str, sorted(partitions)))} {'has' if len(partitions) == 1 else 'have'} finished"


async def _in_a_cut(member: Member) -> None:
    told = False
    while member.failure is None and member.progress.limit.mode is Mode.GATED:
        finished = _finished(member)
        if not finished:
            return
        session = member.session
        if isinstance(session, Session):
            try:
                member.moved.clear()
                node = await session.get(paths.COORDINATOR)
                cut = await last_cut(member.store, session, node.version)
            except SessionLostError:
                cut = None
            if cut is not None:
                if finished <= cut.finished().keys():
                    return
                member.released_unfinished -= cut.finished().keys()
        if not told:
            told = True
            what = _have_finished(finished)
            log.info("%s: waiting until the group has recorded that %s", member.name, what, extra=log_facts(member))
        await member.moved.wait()


async def _no_cut_can_come(member: Member) -> None:
    """Returns when a partition that we have released has no next owner, or when we cannot know."""
    if member.leaving:
        return  # managed: other members get our partitions only when we are gone
    if not member.released_unfinished:
        await anyio.sleep_forever()
    session, us = member.session, member.member_session
    if not isinstance(session, Session) or us is None:
        return
    try:
        with session.watch() as watch:
            for partition in member.released_unfinished:
                watch.add(paths.owner(partition))
            with anyio.move_on_after(TAKE_OVER_SECONDS):
                if set(await session.children(paths.IDS)) <= {us.name}:
                    return  # there is no other member
            unowned = {paths.owner(partition) for partition in member.released_unfinished}
            while True:
                # Partitions leave the set when a cut holds that they have finished.
                left = {paths.owner(partition) for partition in member.released_unfinished}
                with anyio.move_on_after(TAKE_OVER_SECONDS if unowned & left else None) as waiting:
                    for change in await watch.changes():
                        (unowned.discard if isinstance(change.now, Node) else unowned.add)(change.path)
                if waiting.cancelled_caught:
                    return
    except SessionLostError:
        return


async def deregister(member: Member) -> None:
    """Deletes our registration if we leave the managed group, unless it went with the locks."""
    us = member.member_session
    follower = None if us is None else us.assignment_follower
    if us is None or follower is None:
        return
    try:
        for operation in follower.deregistration():
            await us.session.commit(operation)
    except (NoNodeError, SessionLostError, OutcomeUnknownError):
        pass  # deleted already, or it goes with the session, which ends with the block at the latest
    follower.deregistered = member.leaving


async def handed_over(member: Member) -> None:
    """Waits, if we lead and have left, until our partitions are assigned to others, or for some seconds."""
    term = None if member.member_session is None else member.member_session.term
    if member.leaving and term is not None and term.assignment_leader is not None:
        with anyio.move_on_after(_HANDOVER_SECONDS):
            await term.assignment_leader.handed_over()
