"""The requests of a session that cannot be sent now: there is no connection, or earlier writes are in doubt.

When a connection breaks, its unanswered requests are put in front of the backlog. The next connection sends the backlog in
order: reads as they are, and writes in doubt after ``resolve`` has found that they were not applied.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from itertools import islice

from aiokcc.errors import OutcomeUnknownError, SessionLostError
from aiokcc.stores.zookeeper.connection import Connection, LastSeenZxid
from aiokcc.stores.zookeeper.pending import ConnectionDroppedError, PendingRequest
from aiokcc.stores.zookeeper.resolve import OutcomeResolver

__all__ = ["Backlog"]


class Backlog:
    """The requests of one session that wait for a connection, in order."""

    __slots__ = ("_attributed", "_last_seen", "_requests", "_root")

    def __init__(self, root: str, last_seen: LastSeenZxid) -> None:
        self._root = root
        self._last_seen = last_seen
        self._requests: deque[PendingRequest] = deque()
        self._attributed: set[tuple[str, int]] = set()
        """The changes that were found to come from one of our writes: they are not evidence for another one."""

    def __len__(self) -> int:
        return len(self._requests)

    def append(self, request: PendingRequest) -> None:
        """Add a request at the end."""
        self._requests.append(request)

    def put_back(self, connection: Connection) -> None:
        """Put the unanswered requests of a broken connection in front."""
        sent = len(connection.pending) - len(connection.outbox)
        kept = [request for index, request in enumerate(connection.pending) if request.on_drop(index < sent)]
        connection.pending.clear()
        self._requests.extendleft(reversed(kept))

    async def send(self, connection: Connection, session_id: int, timeout: float) -> None:
        """Send all requests in order, and resolve the writes in doubt. Return early if the connection breaks."""
        requests = self._requests
        resolver = OutcomeResolver(connection, self._root, session_id, self._attributed)
        with suppress(ConnectionDroppedError):
            if any(request.in_doubt for request in requests):
                await resolver.sync()
                for request in requests:
                    request.up_to_zxid = request.up_to_zxid or self._last_seen.zxid
            while requests and not connection.closed.is_set():
                request = requests[0]
                resolved = request.done
                if request.in_doubt and not resolved:
                    resolved = await resolver.resolve(request, tuple(islice(requests, 1, None)))
                    if connection.closed.is_set():
                        return  # the break has changed the backlog; the next connection resolves the request again
                requests.popleft()
                if resolved:
                    continue
                if request.attempts_exhausted(timeout):
                    request.give_up()
                else:
                    connection.send(request)

    def forget_evidence(self) -> None:
        """Forget which changes come from our writes. Call it when nothing is in doubt."""
        self._attributed.clear()

    def fail(self, reason: str) -> None:
        """Fail all requests, because the session is lost."""
        for request in self._requests:
            if request.in_doubt:
                request.fail(OutcomeUnknownError(f"{request.path or 'the root'}: {reason}; it was not answered"))
            else:
                request.fail(SessionLostError(reason))
        self._requests.clear()
