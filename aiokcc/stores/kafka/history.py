"""Keeps what a process remembers of a log from one session to the next, so that it does not follow another log silently."""

from __future__ import annotations

from aiokcc.errors import StoreError
from aiokcc.stores.kafka.machine import Machine

__all__ = ["LogHistory"]


class LogHistory:
    """The name of the log and how far it was read, over all sessions of one store, and why it is no longer followed."""

    def __init__(self) -> None:
        self.genesis: bytes | None = None
        self.position = 0
        self.chain = bytes(8)
        """The chain hash at that position."""
        self._refusal: str | None = None

    def note(self, machine: Machine) -> None:
        """Remember how far the log was read."""
        if machine.position >= self.position:
            self.genesis, self.position, self.chain = machine.genesis, machine.position, machine.chain

    def refuse(self, reason: str) -> StoreError:
        """Return the error for a log that cannot be followed, now and in every later session."""
        self._refusal = reason
        return StoreError(reason)

    def check(self) -> None:
        """Raise StoreError if an earlier session has found that the log cannot be followed."""
        if self._refusal is not None:
            raise StoreError(self._refusal)
