"""Delayed operations: done as soon as they can be, and at the deadline at the latest; exactly once.

Whoever waits for a condition, but not for ever (a rebalance for those who are expected, say), puts in an operation: what must
be true, what to do then, the keys of the events that could make it true, and a deadline. It is tried at once; then at each
event of one of its keys; at its deadline it expires. Whichever comes first ends it: its timer and its keys are gone before its
``done`` is called, so that nothing that ``done`` does, and nothing that comes later, ends it again.

========== ====================== ==================================================================
state      means                  how it ends
========== ====================== ==================================================================
WAITING    not true yet           an event after which it is true, the deadline, or :meth:`DelayedOperation.withdraw`
COMPLETED  it was true in time    for good; ``done(False)`` was called
EXPIRED    the deadline came      for good; ``done(True)`` was called
WITHDRAWN  nobody wants it more   for good; ``done`` is not called
========== ====================== ==================================================================

``ready`` only looks; what an event changes must be there to be seen before the event is told. All this runs in one thread, so
nothing happens between the first try and the watching.

Deadlines lie on a timing wheel that may be shared with others: all that it needs is ``add(deadline, callback)``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol

from aiokcc.core.wheel import Timer
from aiokcc.errors import UsageError

__all__ = ["Deadlines", "DelayedOperation", "OperationState", "Purgatory"]


class Deadlines(Protocol):
    """What calls at a deadline: a wheel whose timers are called when they come, or the timers of an event loop."""

    def add(self, deadline: int, what: Callable[[], object], /) -> Timer[Callable[[], object]]: ...


class OperationState(enum.Enum):
    """Where an operation stands; see above for how each ends."""

    WAITING = "waiting"
    COMPLETED = "completed"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


class DelayedOperation:
    """One operation. :meth:`Purgatory.put` makes it."""

    __slots__ = ("_done", "_keys", "_purgatory", "_ready", "_timer", "state")

    def __init__(
        self,
        purgatory: Purgatory,
        ready: Callable[[], bool],
        done: Callable[[bool], object],
        keys: tuple[Hashable, ...],
    ) -> None:
        self.state = OperationState.WAITING
        self._purgatory, self._ready, self._done, self._keys = purgatory, ready, done, keys
        self._timer: Timer[Callable[[], object]] | None = None

    @property
    def waiting(self) -> bool:
        """Whether it is still to end."""
        return self.state is OperationState.WAITING

    def try_complete(self) -> bool:
        """End it if it can be ended now. True if this call did it."""
        return self.waiting and self._ready() and self._end(OperationState.COMPLETED)

    def withdraw(self) -> bool:
        """Nobody waits for it any more. False if it has ended before."""
        return self._end(OperationState.WITHDRAWN)

    def _expire(self) -> None:
        self._end(OperationState.EXPIRED)

    def _end(self, state: OperationState) -> bool:
        if not self.waiting:
            return False
        self.state = state
        if self._timer is not None:
            self._timer.cancel()
        self._purgatory._forget(self, self._keys)
        if state is not OperationState.WITHDRAWN:
            self._done(state is OperationState.EXPIRED)
        return True


class Purgatory:
    """Operations that wait, by the keys of the events that could end them."""

    __slots__ = ("_deadlines", "_watched")

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._watched: dict[Hashable, dict[DelayedOperation, None]] = {}

    def put(
        self, ready: Callable[[], bool], done: Callable[[bool], object], *, keys: Iterable[Hashable], deadline: int
    ) -> DelayedOperation:
        """Try it; if it is not ready, watch it under its keys until it is, or until its deadline.

        ``done(expired)`` is called once: within this call, if it is ready. If one of them raises here, nothing is kept.
        """
        named = tuple(dict.fromkeys(keys))
        if not named:
            raise UsageError(
                "a delayed operation has no keys, so nothing but its deadline could end it; expected one or more"
            )
        operation = DelayedOperation(self, ready, done, named)
        if operation.try_complete():
            return operation
        for key in named:
            self._watched.setdefault(key, {})[operation] = None
        try:
            operation._timer = self._deadlines.add(deadline, operation._expire)
        except BaseException:
            operation.withdraw()
            raise
        return operation

    def happened(self, key: Hashable) -> int:
        """Try what is watched under this key, in the order in which it was put. Says how many that has completed.

        What is put meanwhile has been tried already. One that raises stays as it is; the others are tried, then the first error
        goes to the caller.
        """
        completed = 0
        error: Exception | None = None
        for operation in list(self._watched.get(key, ())):
            try:
                completed += operation.try_complete()
            except Exception as caught:  # noqa: BLE001 - it is raised below
                error = error or caught
        if error is not None:
            raise error
        return completed

    def waiting(self, key: Hashable) -> int:
        """How many operations an event of this key would try."""
        return len(self._watched.get(key, ()))

    def __len__(self) -> int:
        """How many operations wait."""
        return len({operation for operations in self._watched.values() for operation in operations})

    def _forget(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> None:
        for key in keys:
            operations = self._watched.get(key)
            if operations is not None:
                operations.pop(operation, None)
                if not operations:
                    del self._watched[key]
