"""The tasks that wait for a state of a session."""

from __future__ import annotations

import asyncio

from aiokcc.stores.port import SessionState

__all__ = ["StateWaiters"]


class StateWaiters:
    """Tasks in :meth:`wait` return when :meth:`notify` gives a state that they wait for, or LOST, which is the last one."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[SessionState], tuple[SessionState, ...]] = {}

    async def wait(self, states: tuple[SessionState, ...]) -> SessionState:
        """Wait for the next change to one of these states, and return the state. Can be cancelled at any time."""
        future: asyncio.Future[SessionState] = asyncio.get_running_loop().create_future()
        self._waiting[future] = states
        try:
            return await future
        finally:
            del self._waiting[future]

    def notify(self, state: SessionState) -> None:
        """Wake the tasks that wait for this state."""
        for future, states in self._waiting.items():
            # A waiter whose loop was closed can no longer be woken.
            if (state in states or state is SessionState.LOST) and not (future.done() or future.get_loop().is_closed()):
                future.set_result(state)
