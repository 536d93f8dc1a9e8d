"""What an operator may ask for while a group runs. The leader acts on it at the next boundary."""

from __future__ import annotations

from typing import Final

from aiokcc.core import paths
from aiokcc.core.limit import Limit, Mode, Request, RequestKind
from aiokcc.errors import (
    AiokccError,
    BadVersionError,
    CorruptNodeError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    UsageError,
)
from aiokcc.stores.port import Session, Store

__all__ = ["ask"]

_TRIES: Final = 5


async def ask(store: Store, session: Session, request: Request) -> Request | None:
    """Write the operator's request; the one it replaces (None if that could not be read).

    The write is conditional on the version read, and the leader's advance checks that version: once this has returned, no
    advance that was decided before can still succeed.
    """
    for _ in range(_TRIES):
        limit_node = await session.find(paths.COORDINATOR)
        node = await session.find(paths.PERIOD)
        if limit_node is None:
            raise UsageError(f"there is no group under {store.describe('')}; a member founds one when it connects")
        mode = Limit.decode(store.describe(limit_node.path), limit_node.data).mode
        if mode is Mode.END:
            raise UsageError(f"the run under {store.describe('')} has ended; there is nothing left to steer")
        if mode is Mode.OPEN and request.kind is not RequestKind.OFF:
            raise UsageError(
                f"the run under {store.describe('')} was released, which is final; start a new run to gate again"
            )
        before: Request | None = None
        if node is not None:
            try:
                before = Request.decode(store.describe(node.path), node.data)
            except CorruptNodeError:
                pass  # replacing it is just what is needed
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
        f"{store.describe(paths.PERIOD)} is being changed by somebody else all the time; nothing was written"
    )
