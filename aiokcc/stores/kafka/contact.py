"""The two rules that need a clock, and a hint. Pure: times are passed in.

* **[patience]** An observer ends a session only after it has waited the session's whole timeout since it *read* the last record
  of it. What it has not read it does not know, so time counts only up to the send time of the last read that was answered and
  reached the end of the log; and after an interruption of its own it starts anew.
* **[deadline]** A session may be relied on until the *first* send time of its last record that was *read back as counted* + 2/3
  of its timeout. The broker's acknowledgement proves nothing: the record may not count. The time of a later attempt proves
  nothing: the first may be the one that others have read.

If all processes of a group were killed, nobody is there to end their sessions: whoever comes an hour later finds their nodes.
The times of the records say that they have been silent for long. Such a clock may be wrong, so :class:`SilentBefore` ends no
session: whoever opens one waits until **[patience]** has ended them, or until they are heard.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from aiokcc.stores.kafka.state import LogSession
from aiokcc.stores.port import STOP_FRACTION

__all__ = ["Deadline", "Patience", "SilentBefore"]


class Patience:
    """Tells which sessions have been silent for their whole timeout, as far as we have been in contact."""

    def __init__(self) -> None:
        self._heard: dict[int, float] = {}
        self._contact = -math.inf

    def hear(self, session: int, now: float) -> None:
        """Note that a record of a session was read that counted."""
        self._heard[session] = now

    def forget(self, session: int) -> None:
        """Note that a session has ended."""
        self._heard.pop(session, None)

    def interrupt(self) -> None:
        """Note that contact was lost. All waiting starts anew at the next contact."""
        self._contact = -math.inf

    def confirm(self, sent: float, now: float, sessions: Iterable[LogSession]) -> None:
        """Note that a read sent at this time was answered now, and that everything in the log at its send time was applied.

        A session whose last half timeout we did not follow counts as heard now.
        """
        for session in sessions:
            if session.id not in self._heard or now - self._contact > session.timeout / 2000:
                self._heard[session.id] = now
        self._contact = now
        self._sent = sent

    def silent(self, sessions: Iterable[LogSession]) -> Iterator[LogSession]:
        """Yield the sessions that are to be ended."""
        if self._contact == -math.inf:
            return
        for session in sessions:
            heard = self._heard.get(session.id)
            if heard is not None and self._sent - heard >= session.timeout / 1000:
                yield session


class Deadline:
    """Tells until when a session may be relied on, by its own records."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self.confirmed = -math.inf
        """The first send time of the last record that was read back as counted."""

    def confirm(self, first_sent: float) -> None:
        """Note that a record was read back as counted."""
        self.confirmed = max(self.confirmed, first_sent)

    @property
    def stop_at(self) -> float:
        """The time after which nothing that depends on the session may start."""
        return self.confirmed + STOP_FRACTION * self._timeout

    @property
    def lost_at(self) -> float:
        """The time after which the session is lost: others may have ended it."""
        return self.confirmed + self._timeout


class SilentBefore:
    """Tells which sessions had been silent for longer than their timeout when ours was opened, by the broker's clock.

    :param longest: sessions with a longer timeout, in seconds, are left out
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._first: int | None = None
        self._heard: dict[int, int] = {}
        self.sessions: dict[int, float] = {}
        """The sessions that have neither ended nor been heard since, with their timeouts in seconds."""

    def note(self, timestamp: int, session: int) -> None:
        """Note the time of a record, and the session that it was counted for (0: none)."""
        if self._first is None:
            self._first = timestamp
        if session:
            self._heard[session] = timestamp
            self.sessions.pop(session, None)

    def opened(self, own: int, sessions: Iterable[LogSession]) -> None:
        """Note that the record just noted has opened our own session. These are the live ones."""
        now = self._heard[own]
        for session in sessions:
            if session.timeout / 1000 > self._longest:
                continue
            # What is in the snapshot with which we began was heard before the first record that we have read.
            if now - self._heard.get(session.id, self._first or 0) >= session.timeout:
                self.sessions[session.id] = session.timeout / 1000
        self._heard.clear()

    def end(self, session: int) -> None:
        """Note that a session has ended."""
        self.sessions.pop(session, None)
