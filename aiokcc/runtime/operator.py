"""The operator's requests to a running group: about the limit, and about the members of a managed group.

They are written to the store; the leader acts on them.
"""

from __future__ import annotations

from typing import Final

from aiokcc.core import paths
from aiokcc.core.assignments import decode_assignment
from aiokcc.core.limit import Limit, Mode, Request, RequestKind
from aiokcc.core.run import encode_member
from aiokcc.errors import (
    AiokccError,
    BadVersionError,
    CorruptNodeError,
    NodeExistsError,
    NoGroupError,
    NoNodeError,
    OutcomeUnknownError,
    UsageError,
)
from aiokcc.runtime.agreement import find_run
from aiokcc.runtime.assignment_follower import member_of
from aiokcc.runtime.children import list_children
from aiokcc.stores.port import Session, Store

__all__ = ["has_eligible_member", "isolate", "rejoin", "write_request"]

_TRIES: Final = 5


async def write_request(store: Store, session: Session, request: Request) -> Request | None:
    """Write the operator's request. Returns the request that it replaces, None if that could not be read.

    The write is conditional on the version that was read, and the leader's advance checks that version. So when this has
    returned, no advance that was decided before can still succeed. UsageError if the group cannot follow the request,
    AiokccError if others keep changing the node. If this is cancelled, the request may have been written or not.
    """
    for _ in range(_TRIES):
        limit_node = await session.find(paths.COORDINATOR)
        node = await session.find(paths.PERIOD)
        if limit_node is None:
            raise NoGroupError(f"there is no group under {store.describe('')}; a member founds one when it connects")
        mode = Limit.decode(store.describe(limit_node.path), limit_node.data).mode
        if mode is Mode.END:
            raise UsageError(f"the run under {store.describe('')} has ended; there is nothing left to control")
        if mode is Mode.OPEN and request.kind is not RequestKind.OFF:
            raise UsageError(
                f"the run under {store.describe('')} was released, which is final; start a new run to gate again"
            )
        before: Request | None = None
        if node is not None:
            try:
                before = Request.decode(store.describe(node.path), node.data)
            except CorruptNodeError:
                pass  # the request replaces it
        if before == request:
            return before
        try:
            if node is None:  # somebody has deleted it
                await session.create(paths.PERIOD, request.encode())
            else:
                await session.set(paths.PERIOD, request.encode(), node.version)
        except (BadVersionError, NoNodeError, NodeExistsError, OutcomeUnknownError):
            continue
        return before
    raise AiokccError(
        f"{store.describe(paths.PERIOD)} was changed by somebody else at every attempt; nothing was written"
    )


async def isolate(store: Store, session: Session, member: str, *, by: str, now: int) -> bool:
    """Isolate a member: its partitions move to others, and it is assigned nothing until it rejoins.

    Returns False if it is isolated already. UsageError if the group is not managed, has no such member, or its run has ended.
    NoGroupError if there is no group, CorruptNodeError if ``run`` or an assignment cannot be read. OutcomeUnknownError if the
    answer is lost: calling again is safe. If this is cancelled, the member is isolated or not.
    """
    known, isolated = await _members(store, session)
    if member in isolated:
        return False
    if member not in known:
        there = f"it has {', '.join(sorted(known)[:20])}" if known else "nobody is there"
        raise UsageError(f"the group under {store.describe('')} has no member {member!r}; {there}")
    await session.ensure(paths.ISOLATED)
    try:
        await session.create(paths.isolated(member), encode_member(timestamp=now, by=by))
    except NodeExistsError:
        return False
    return True


async def has_eligible_member(session: Session) -> bool:
    """Return whether a member is registered that is not isolated. If there is none, nobody can be assigned partitions."""
    isolated = await list_children(session, paths.ISOLATED)
    return any(member_of(name) not in isolated for name in await list_children(session, paths.IDS))


async def rejoin(store: Store, session: Session, member: str) -> bool:
    """Let an isolated member take part again. Returns False if it is not isolated.

    Errors and cancelling are those of :func:`isolate`.
    """
    known, isolated = await _members(store, session)
    if member not in isolated:
        if member in known:
            return False
        listed = (
            f"{', '.join(sorted(isolated)[:20])} {'is' if len(isolated) == 1 else 'are'}" if isolated else "nobody is"
        )
        raise UsageError(f"the group under {store.describe('')} has no member {member!r}; isolated {listed}")
    try:
        node = await session.get(paths.isolated(member))
        await session.delete(node.path, node.version)
    except NoNodeError:
        return False  # another operator was faster
    return True


async def _members(store: Store, session: Session) -> tuple[set[str], set[str]]:
    """Return the members that are registered or assigned something, and the isolated members."""
    found = await find_run(store, session)
    if found is None:
        raise NoGroupError(f"there is no group under {store.describe('')}; a member founds one when it connects")
    agreed, _ = found
    if not agreed.managed:
        raise UsageError(
            f"the group under {store.describe('')} is not managed: each member says which partitions it runs. "
            f'To take one out, stop it. Only members of a group with assignment="managed" can be isolated'
        )
    if agreed.ended:
        raise UsageError(f"the run under {store.describe('')} has ended; there is nothing left to control")
    known = {member_of(name) for name in await session.children(paths.IDS)}
    for topic in await list_children(session, paths.ASSIGNMENTS):
        node = await session.find(paths.assignment(topic))
        if node is not None:
            known |= set(decode_assignment(store.describe(node.path), node.data).values())
    return known, set(await list_children(session, paths.ISOLATED))
