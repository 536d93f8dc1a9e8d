"""Appends the records of one session, in order, one batch at a time, until each was appended or the session is lost.

A record whose append failed is sent again as it is: if both attempts reach the log, **[seq]** drops the second. The writer of a
record learns its result when the record is read back, not here. While one batch is under way, records that come in wait and
go together with the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from aiokcc.errors import StoreError, TooLargeError
from aiokcc.stores.kafka.client import LogClient, LogError, TooLargeForTopicError
from aiokcc.stores.kafka.records import Kind, Record, encode
from aiokcc.stores.kafka.topic import PERMISSIONS
from aiokcc.stores.port import Op, boottime

__all__ = ["Appender", "Outgoing"]

log = logging.getLogger("aiokcc.stores")

_BATCH_BYTES: Final = 900_000
_RETRY_SECONDS: Final = 0.05
"""The pause after the first append that failed; it grows with each further one. A broker does not tell when it is back."""


@dataclass(eq=False, slots=True)
class Outgoing:
    """A record that is to be appended."""

    kind: Kind
    body: bytes = b""
    future: asyncio.Future[Any] | None = None
    ops: tuple[Op, ...] = ()
    path: str = ""
    is_transaction: bool = False
    seq: int = 0
    raw: bytes = b""
    first_sent: float = 0.0
    done: bool = False
    """True once the record was read back or has failed: it need not be sent again."""
    reads: list[Callable[[], None]] = field(default_factory=list)
    """Reads that were called after this write and before the next one."""

    @property
    def is_write(self) -> bool:
        """True if its place in the session's order counts."""
        return self.future is not None

    def fail(self, error: Exception) -> None:
        """Raise an error from the call that waits for this record."""
        self.done = True
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)


class Appender:
    """The queue of one session. :meth:`run` sends it.

    :param seal: returns the record for a kind, a sequence number and a body, with the writer's present position
    :param on_refused: called when a record has failed because it is too large
    """

    def __init__(
        self, client: LogClient, seal: Callable[[Kind, int, bytes], Record], on_refused: Callable[[], None]
    ) -> None:
        self._client = client
        self._on_refused = on_refused
        self._seal = seal
        self._queue: deque[Outgoing] = deque()
        self._wakeup = asyncio.Event()
        self._next_write = 1
        self._next_other = 1
        self.last_sent = boottime()
        """The first send time of the last record."""
        self.last_problem = ""
        """The reason why the last append failed; empty if it did not."""
        self.sent: dict[tuple[bool, int], Outgoing] = {}
        """The records that were sent and not yet read back, by whether they are writes, and number."""

    @property
    def is_behind(self) -> bool:
        """True if something waits to be sent, or to be read back."""
        return bool(self._queue or self.sent)

    def put(self, outgoing: Outgoing) -> None:
        """Queue a record."""
        self._queue.append(outgoing)
        self._wakeup.set()

    def take_sent(self, record: Record) -> Outgoing | None:
        """Return our record that was read back, once."""
        is_write = record.kind in (Kind.WRITE, Kind.ENSURE, Kind.SYNC)
        outgoing = self.sent.pop((is_write, record.seq), None)
        if outgoing is not None:
            outgoing.done = True
        return outgoing

    def fail_all(self, unsent: Exception, sent: Exception) -> None:
        """Fail all records: those that were never sent with one error, those that were with another."""
        for outgoing in self.sent.values():
            outgoing.fail(sent)
        self.sent.clear()
        for outgoing in self._queue:
            outgoing.fail(unsent)
        self._queue.clear()

    async def run(self) -> None:
        """Send what is queued, for ever."""
        while True:
            await self._wakeup.wait()
            batch: list[Outgoing] = []
            size = 0
            while self._queue and (not batch or size + len(self._queue[0].body) < _BATCH_BYTES):
                outgoing = self._queue.popleft()
                size += len(outgoing.body) + 100
                self._number(outgoing)
                batch.append(outgoing)
            if not self._queue:
                self._wakeup.clear()
            await self._send(batch)

    def _number(self, outgoing: Outgoing) -> None:
        if outgoing.is_write:
            outgoing.seq, self._next_write = self._next_write, self._next_write + 1
        else:
            outgoing.seq, self._next_other = self._next_other, self._next_other + 1
        outgoing.raw = encode(self._seal(outgoing.kind, outgoing.seq, outgoing.body))
        outgoing.first_sent = self.last_sent = boottime()
        self.sent[outgoing.is_write, outgoing.seq] = outgoing

    async def _send(self, batch: list[Outgoing]) -> None:
        failures = 0
        while batch:
            try:
                await self._client.append([outgoing.raw for outgoing in batch])
                self.last_problem = ""
                return
            except TooLargeForTopicError as error:
                if not failures:
                    await self._send_smaller(batch)
                    return
                # An attempt before this one may be in the log, if the topic has taken larger ones until now.
                failures, self.last_problem = failures + 1, str(error)
                log.debug("an append failed (attempt %d): %s", failures, error)
            except PermissionError as error:
                raise StoreError(
                    f"Kafka does not let us write to the topic {self._client.topic!r} ({error}); {PERMISSIONS}"
                ) from None
            except LogError as error:
                failures, self.last_problem = failures + 1, str(error)
                log.debug("an append failed (attempt %d): %s", failures, error)
            await asyncio.sleep(min(_RETRY_SECONDS * failures, 1.0))
            try:
                await self._client.refresh()
            except LogError as error:
                log.debug("no leader is known: %s", error)
            # What was read back meanwhile is in the log, although the broker has not said so.
            batch = [outgoing for outgoing in batch if not outgoing.done]

    async def _send_smaller(self, batch: list[Outgoing]) -> None:
        """Send records that are too large together, each with a new number: none of them is in the log. Refuse a single one."""
        if len(batch) == 1:
            self._refuse(batch[0])
            return
        for outgoing in reversed(batch):
            self._take_number_back(outgoing)
        for outgoing in batch:
            self._number(outgoing)
            await self._send([outgoing])

    def _take_number_back(self, outgoing: Outgoing) -> None:
        self.sent.pop((outgoing.is_write, outgoing.seq), None)
        if outgoing.is_write:
            self._next_write = outgoing.seq

    def _refuse(self, outgoing: Outgoing) -> None:
        """Fail a record that the topic does not take. Its number goes to the next write: it is nowhere in the log."""
        self._take_number_back(outgoing)
        if not outgoing.is_write:
            log.warning("the topic does not take a record of %d bytes; raise its max.message.bytes", len(outgoing.raw))
        outgoing.fail(TooLargeError(outgoing.path))
        self._on_refused()
