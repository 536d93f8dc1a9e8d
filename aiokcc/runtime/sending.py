"""Sends writes from the callback that learns of a change. A task waits for their answers later.

The trip from a callback to a task costs a turn of the event loop. It is saved where the store can send without waiting
(:meth:`~aiokcc.stores.port.Session.send_commit`); elsewhere a task sends as ever.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from aiokcc.core import paths
from aiokcc.core.run import CUT_SLOTS
from aiokcc.errors import AiokccError
from aiokcc.stores.port import ANY_VERSION, Check, Set

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from aiokcc.core.leader import Advance
    from aiokcc.core.report import Report
    from aiokcc.stores.port import Create, Op, OpResult, Session

__all__ = ["AdvanceInFlight", "advance_ops", "discard", "send"]


class AdvanceInFlight(NamedTuple):
    """An advance that was sent and not answered yet."""

    decision: Advance
    version: int
    """The version of ``coordinator`` after it."""
    fold: Report | None
    """The leader's own report, if it is written with it."""
    announcement: Create | None
    began: float
    """The time when it was sent, by the event loop's clock."""
    answer: Awaitable[list[OpResult]]


def advance_ops(
    decision: Advance, version: int, generation_version: int, request_version: int, reports: Mapping[str, int]
) -> list[Op]:
    """Returns the operations of an advance from this version of ``coordinator``.

    They are conditional on the versions of the generation ([check of generation] in docs/explanation/protocol.md) and of the
    operator's request ([check of period]); and, if the advance closes a boundary, of all ``reports`` of other members that the
    leader has read, by name ([check of reports]). The leader's own report needs no check: its session writes in order.
    ``test_an_advance`` in tests/unit/runtime/test_conditions.py tries each of these checks; the node is its parameter.
    """
    # Each limit is a version of the node, and numbers its cut.
    numbered = list(enumerate(decision.steps, version))
    ops: list[Op] = [Set(paths.COORDINATOR, step.limit.encode(), number) for number, step in numbered]
    ops.append(Check(paths.GENERATION, generation_version))
    if decision.request is None:
        ops.append(Check(paths.PERIOD, request_version))
    else:
        ops.append(Set(paths.PERIOD, decision.request.encode(), request_version))
    if decision.closes:
        ops += [Check(paths.progress(name), read) for name, read in reports.items()]
        ops += [
            Set(paths.cut(number + 1, CUT_SLOTS), step.cut.encode(), ANY_VERSION)
            for number, step in numbered
            if step.cut is not None
        ]
    return ops


def send(session: Session, ops: Sequence[Op], *, at_once: bool) -> Awaitable[list[OpResult]] | None:
    """Sends a transaction and returns its answer. ``at_once``: returns None if only a task can send it."""
    try:
        answer = session.send_commit(*ops)
    except AiokccError:
        answer = None  # a task sends it again, and gets the error
    if answer is not None or at_once:
        return answer
    return session.commit(*ops)


def discard(answer: object) -> None:
    """Drops the answer to a write that was sent at once, because nobody waits for it any more."""
    if isinstance(answer, asyncio.Future) and not answer.cancel() and not answer.cancelled():
        answer.exception()  # marks it as seen
