"""Delayed operations: each ends exactly once, as soon as its condition is true, and at its deadline at the latest.

An operation waits for a condition, but not for ever: the join window waits for the expected members, for example. It has a
condition (``ready``), a callback (``done``), the keys of the events that can make the condition true, and a deadline. The
condition is tried at once, and again at each event of one of the keys; at the deadline the operation expires. The first of
these ends it. Its timer and its keys are removed before ``done`` is called, so nothing that ``done`` does can end it again.

``ready`` has no effects. The facts that it reads must be up to date before :meth:`Purgatory.complete` is called. All calls come
from one thread, so nothing happens between the first try and the registration of the keys.

The deadlines are timers of a wheel, or of anything else that has ``add(deadline, callback)``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol

from aiokcc.core.wheel import Timer
from aiokcc.errors import UsageError

__all__ = ["Deadlines", "DelayedOperation", "OperationState", "Purgatory"]


class Deadlines(Protocol):
    """Calls a function at a deadline: the timers of an event loop, or a wheel in a test."""

    def add(self, deadline: int, callback: Callable[[], object], /) -> Timer[Callable[[], object]]: ...


class OperationState(enum.Enum):
    """The state of one operation."""

    WAITING = "waiting"
    """The condition is not true yet. Ends by an event (completed), at the deadline (expired), or when it is cancelled."""
    COMPLETED = "completed"
    """The condition was true in time; ``done(False)`` was called. Final."""
    EXPIRED = "expired"
    """The deadline came first; ``done(True)`` was called. Final."""
    CANCELLED = "cancelled"
    """Nobody waits for it any more; ``done`` is not called. Final."""


class DelayedOperation:
    """One operation, made by :meth:`Purgatory.put`."""

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
        """True until the operation ends."""
        return self.state is OperationState.WAITING

    def try_complete(self) -> bool:
        """Ends the operation if its condition is true. Returns True if this call ended it."""
        return self.waiting and self._ready() and self._end(OperationState.COMPLETED)

    def cancel(self) -> bool:
        """Ends the operation without a call of ``done``. Returns False if it has ended before."""
        return self._end(OperationState.CANCELLED)

    def _expire(self) -> None:
        self._end(OperationState.EXPIRED)

    def _end(self, state: OperationState) -> bool:
        if not self.waiting:
            return False
        self.state = state
        if self._timer is not None:
            self._timer.cancel()
        self._purgatory._forget(self, self._keys)
        if state is not OperationState.CANCELLED:
            self._done(state is OperationState.EXPIRED)
        return True


class Purgatory:
    """The waiting operations, by the keys of the events that can complete them."""

    __slots__ = ("_deadlines", "_watched")

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._watched: dict[Hashable, dict[DelayedOperation, None]] = {}

    def put(
        self, ready: Callable[[], bool], done: Callable[[bool], object], *, keys: Iterable[Hashable], deadline: int
    ) -> DelayedOperation:
        """Tries an operation; if its condition is not true, keeps it until an event of its keys completes it, or its deadline.

        ``done(expired)`` is called once, within this call if the condition is true already. If ``ready`` or ``done`` raises
        here, nothing is kept. Raises UsageError if there are no keys.
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
            operation.cancel()
            raise
        return operation

    def complete(self, key: Hashable) -> int:
        """Tries the operations of this key, in the order of their ``put``. Returns how many of them this has completed.

        Operations that are put meanwhile are not tried again. If one raises, it keeps waiting, the others are tried, and then
        the first error is raised.
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

    def _forget(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> None:
        for key in keys:
            operations = self._watched.get(key)
            if operations is not None:
                operations.pop(operation, None)
                if not operations:
                    del self._watched[key]
