"""One session on the log: the port's operations on the session's own copy of the tree.

A write is a record. It is queued (``appender``), appended, read back with everything before it (``follower``), and applied
(``machine``); then its result is known. A read looks at the session's own copy, after the writes that were called before it. It
may be older than what another session has been told; :meth:`KafkaSession.sync` waits until it is not.

The session lives by its own records (``contact``): each that is read back as counted moves ``stop_at`` on. If none is read back
for the whole timeout, others may have ended the session, so it is lost without asking. If its end is read in the log, it is
lost too, and writes that had not been read before that have certainly not been applied.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from aiokcc.errors import NoNodeError, OutcomeUnknownError, SessionLostError, StoreError, StoreUnreachableError
from aiokcc.exception_groups import main_error
from aiokcc.stores.checks import check_op, check_path, check_size
from aiokcc.stores.kafka import records
from aiokcc.stores.kafka.appender import Appender, Outgoing
from aiokcc.stores.kafka.client import LogClient, LogError
from aiokcc.stores.kafka.contact import Deadline, Patience, SilentBefore
from aiokcc.stores.kafka.follower import Follower, LogChangedError, LogTrimmedError
from aiokcc.stores.kafka.history import LogHistory
from aiokcc.stores.kafka.keeper import Keeper
from aiokcc.stores.kafka.machine import Applied, full_path
from aiokcc.stores.kafka.opening import describe_difference, open_log
from aiokcc.stores.kafka.records import Kind, Record
from aiokcc.stores.kafka.watch import KafkaWatch, WatchTable
from aiokcc.stores.port import (
    Children,
    Create,
    Delete,
    Node,
    Op,
    OpResult,
    Session,
    SessionState,
    Set,
    boottime,
)
from aiokcc.stores.state_waiters import StateWaiters

__all__ = ["KafkaSession", "TrimmedWhileOpeningError"]

T = TypeVar("T")

log = logging.getLogger("aiokcc.stores")

MIN_TIMEOUT: Final = 1.0
MAX_TIMEOUT: Final = 4_000_000.0
IDLE_SECONDS: Final = 1.0
"""A session is idle if it has not written for so long; then it need not read each beat of the others at once."""
CLOSE_TIMEOUT: Final = 1.0
"""Closing waits this many seconds until the session's end is in the log."""
LONGEST_LOOK: Final = 30.0
"""Opening does not wait for sessions that seem to be over and have a longer timeout than so many seconds."""


class TrimmedWhileOpeningError(StoreUnreachableError):
    """The others have trimmed the log past the place where a newcomer was, before it had a session. It may begin again."""


class KafkaSession(Session):
    """One session on the log. ``KafkaStore.session`` makes it and calls :meth:`open`, :meth:`run` and :meth:`close`."""

    def __init__(
        self, client: LogClient, topic: str, root: str, history: LogHistory, timeout: float, *, create: bool = True
    ) -> None:
        self.id = 0
        self.timeout = min(max(timeout, MIN_TIMEOUT), MAX_TIMEOUT)
        self.stop_at = -math.inf
        self.state = SessionState.SUSPENDED
        self._loop = asyncio.get_running_loop()
        self._client, self._topic, self._root, self._history = client, topic, root, history
        self._create = create
        self._nonce = os.urandom(16)
        self._deadline = Deadline(self.timeout)
        self._patience = Patience()
        self._silent = SilentBefore(LONGEST_LOOK)
        self._none_silent = asyncio.Event()
        self._follower = Follower(client, topic, self._on_applied, self._on_read, self._on_contact, self._is_idle)
        self._appender = Appender(client, self._seal, self._settle)
        self._keeper = Keeper(client, topic, self._follower, self._appender, self._patience)
        self._pending: deque[Outgoing] = deque()
        self._last_write = boottime()
        self._watches = WatchTable()
        self._state_waiters = StateWaiters()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._scope = anyio.CancelScope()
        self._lost_timer: asyncio.TimerHandle | None = None
        self._lost_reason = ""

    def __repr__(self) -> str:
        return f"<KafkaSession {self.id} on {self._topic} {self.state.value}>"

    # -- Reads ------------------------------------------------------------------------------------------------------------

    async def find(self, path: str) -> Node | None:
        check_path(path)
        return await self._read(lambda: self.peek(path))

    async def get(self, path: str) -> Node:
        if (node := await self.find(path)) is None:
            raise NoNodeError(path)
        return node

    async def children(self, path: str) -> tuple[str, ...]:
        check_path(path)
        if (found := await self._read(lambda: self.peek_children(path))) is None:
            raise NoNodeError(path)
        return found.names

    async def sync(self) -> None:
        await self._submit(Outgoing(Kind.SYNC))

    def peek(self, path: str) -> Node | None:
        """Return a node of the session's own copy."""
        node = self._follower.machine.tree.nodes.get(full_path(path))
        return None if node is None else Node(path, node.data, node.version, node.owner, node.created, node.modified)

    def peek_children(self, path: str) -> Children | None:
        """Return the names of a node's children in the session's own copy."""
        node = self._follower.machine.tree.nodes.get(full_path(path))
        return None if node is None else Children(path, tuple(sorted(node.children)))

    async def _read(self, read: Callable[[], T]) -> T:
        self._check_usable()
        while self.state is SessionState.SUSPENDED:
            await self.until(SessionState.CONNECTED)
        self._check_usable()
        if not self._pending:
            found = read()
            await checkpoint()
            return found
        future: asyncio.Future[T] = self._loop.create_future()

        def answer() -> None:
            if not future.done():
                if self.state is SessionState.LOST:
                    future.set_exception(self.lost_error())
                else:
                    future.set_result(read())

        self._pending[-1].reads.append(answer)
        return await future

    # -- Writes -----------------------------------------------------------------------------------------------------------

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        created = await self._write(Create(path, data, ephemeral, sequential))
        assert isinstance(created, str)
        return created

    async def set(self, path: str, data: bytes, version: int) -> int:
        written = await self._write(Set(path, data, version))
        assert isinstance(written, int)
        return written

    async def delete(self, path: str, version: int) -> None:
        await self._write(Delete(path, version))

    async def commit(self, *ops: Op) -> list[OpResult]:
        if not ops:
            self._check_usable()
            await checkpoint()
            return []
        results: list[OpResult] = await self._submit(self._outgoing(ops, is_transaction=True))
        return results

    def send_set(self, path: str, data: bytes, version: int) -> asyncio.Future[int] | None:
        return self._send(Set(path, data, version), is_transaction=False)

    def send_commit(self, *ops: Op) -> asyncio.Future[list[OpResult]] | None:
        return self._send(*ops, is_transaction=True) if ops else None

    def _send(self, *ops: Op, is_transaction: bool) -> asyncio.Future[Any] | None:
        """Queue a write, if it can be sent now. A single operation's answer is its result, a transaction's a list."""
        if self.state is not SessionState.CONNECTED:
            return None
        return self._submit(self._outgoing(ops, is_transaction=is_transaction))

    async def ensure(self, path: str) -> None:
        check_path(path)
        await self._submit(Outgoing(Kind.ENSURE, path.encode(), path=path))

    async def _write(self, op: Op) -> OpResult:
        result: OpResult = await self._submit(self._outgoing((op,), is_transaction=False))
        return result

    def _outgoing(self, ops: tuple[Op, ...], *, is_transaction: bool) -> Outgoing:
        for op in ops:
            check_op(op)
        check_size(self._root, *ops)
        body = records.encode_ops([_with_unique_id(op) for op in ops])
        return Outgoing(Kind.WRITE, body, None, ops, ops[0].path, is_transaction)

    def _submit(self, outgoing: Outgoing) -> asyncio.Future[Any]:
        self._check_usable()
        outgoing.future = self._loop.create_future()
        self._pending.append(outgoing)
        self._appender.put(outgoing)
        self._last_write = boottime()
        self._follower.hurry()
        return outgoing.future

    def _is_idle(self) -> bool:
        return not self._pending and boottime() - self._last_write > IDLE_SECONDS

    def _resolve(self, outgoing: Outgoing, applied: Applied) -> None:
        self.requests += 1
        self.request_seconds += boottime() - outgoing.first_sent
        if outgoing.future is None or outgoing.future.done():
            return
        if applied.error is None:
            is_single = outgoing.ops and not outgoing.is_transaction
            outgoing.future.set_result(applied.results[0] if is_single else applied.results)
        elif outgoing.ops:
            index = applied.index if outgoing.is_transaction else None
            outgoing.future.set_exception(applied.error(outgoing.ops[applied.index].path, index))
        else:
            outgoing.future.set_exception(applied.error(outgoing.path))

    def _settle(self) -> None:
        """Run the reads that were called after writes that are done."""
        while self._pending and self._pending[0].done:
            for read in self._pending.popleft().reads:
                read()

    # -- Watches and states -----------------------------------------------------------------------------------------------

    def watch(self) -> KafkaWatch:
        return KafkaWatch(self, self._watches)

    async def until(self, *states: SessionState) -> SessionState:
        if self.state in states or self.state is SessionState.LOST:
            await checkpoint()
            return self.state
        return await self._state_waiters.wait(states)

    def lost_error(self, otherwise: SessionLostError | None = None) -> SessionLostError:
        """Return the error of every call after the session is lost; before that the other one."""
        if otherwise is not None and self.state is not SessionState.LOST:
            return otherwise
        return SessionLostError(f"session {self.id} on {self._topic} is over: {self._lost_reason}")

    def _check_usable(self) -> None:
        if self.state is SessionState.LOST:
            raise self.lost_error()

    def _set_state(self, state: SessionState) -> None:
        if state is not self.state and self.state is not SessionState.LOST:
            self.state = state
            self._state_waiters.notify(state)
            self._watches.wake()

    def _lose(self, reason: str, *, read: bool = False) -> None:
        """End the session on our side. ``read``: its end was read in the log, so nothing unread of it was applied."""
        if self.state is SessionState.LOST:
            return
        self._lost_reason = reason
        self._scope.cancel()
        self.stop_at = -math.inf
        self._set_state(SessionState.LOST)
        if self._lost_timer is not None:
            self._lost_timer.cancel()
        lost = self.lost_error()
        unknown = OutcomeUnknownError(f"{lost}; whether this write was applied before that is not known")
        self._appender.fail_all(lost, lost if read else unknown)
        for outgoing in self._pending:
            outgoing.fail(lost)
        self._settle()
        self._watches.close()
        self._none_silent.set()

    # -- What the log tells -----------------------------------------------------------------------------------------------

    def _seal(self, kind: Kind, seq: int, body: bytes) -> Record:
        machine = self._follower.machine
        assert machine.genesis is not None
        return Record(machine.genesis, kind, self.id, seq, machine.position, machine.chain, body)

    def _on_applied(self, applied: Applied) -> None:
        record = applied.record
        heard = applied.opened or (record.session if record is not None and applied.counted else 0)
        if heard:
            self._patience.hear(heard, boottime())
        self._note_silent(applied, heard)
        if record is not None and self.id and self.id == (applied.opened or record.session):
            self._on_own(record, applied)
        if applied.changed:
            self._watches.notify(applied)
        for ended in applied.ended:
            self._patience.forget(ended)
            if ended == self.id:
                by = "it was closed" if record is not None and record.session == self.id else "it has expired"
                self._lose(by, read=True)

    def _note_silent(self, applied: Applied, heard: int) -> None:
        """Find out which session is ours, and which of the others seem to be over, until nothing is left to find out."""
        if self.id and not self._silent.sessions:
            return
        self._silent.note(applied.timestamp, heard)
        for ended in applied.ended:
            self._silent.end(ended)
        if applied.opened and not self.id:
            sessions = self._follower.machine.sessions
            if sessions[applied.opened].nonce == self._nonce:
                self.id = applied.opened
                self._silent.opened(self.id, sessions.values())
        if self.id and not self._silent.sessions:
            self._none_silent.set()

    def _on_own(self, record: Record, applied: Applied) -> None:
        outgoing = self._appender.take_sent(record)
        if outgoing is None:
            return
        if not applied.counted:  # the order of our records was broken, which must not happen
            outgoing.fail(OutcomeUnknownError(f"session {self.id} on {self._topic}: a record of ours does not count"))
            self._settle()
            return
        self._deadline.confirm(outgoing.first_sent)
        if self.state is not SessionState.LOST:
            self.stop_at = self._deadline.stop_at
        self._resolve(outgoing, applied)
        self._settle()
        if applied.opened and not self._opened.done():
            self._opened.set_result(None)

    def _on_read(self, sent: float) -> None:
        machine = self._follower.machine
        if machine.differing and machine.is_outvoted(self.id):
            raise LogChangedError(describe_difference(machine, self._topic, self.id))
        self._patience.confirm(sent, boottime(), machine.sessions.values())
        self._history.note(machine)
        if self.id and self.state is not SessionState.LOST:
            self._keeper.tend(self.id)

    def _on_contact(self, is_there: bool) -> None:
        if not is_there:
            self._patience.interrupt()
        elif self.id:
            self._watches.listen_again()
        self._set_state(SessionState.CONNECTED if is_there and self.id else SessionState.SUSPENDED)

    # -- Life -------------------------------------------------------------------------------------------------------------

    async def open(self, connect_timeout: float | None) -> None:
        """Connect, check the topic and catch up with the log. Raises StoreUnreachableError and StoreError."""
        await open_log(self._client, self._follower, self._history, self._root, connect_timeout, create=self._create)

    async def wait_opened(self, connect_timeout: float | None) -> None:
        """Append the OPEN, and wait until it was read back. :meth:`run` must be running."""
        self._appender.put(Outgoing(Kind.OPEN, records.encode_open(int(self.timeout * 1000), self._nonce)))
        try:
            async with asyncio.timeout(connect_timeout):
                await self._opened
        except TimeoutError:
            raise StoreUnreachableError(
                f"Kafka at {self._client.servers} did not take a record within {connect_timeout:g} s; does the topic "
                f"{self._topic!r} have enough replicas in sync? {self._last_problem}".strip()
            ) from None
        self._set_state(SessionState.CONNECTED)
        self._check_deadline()
        await self._wait_for_silent()

    async def _wait_for_silent(self) -> None:
        """Wait until the sessions that seem to be over have ended, so that their nodes do not look like those of live ones."""
        if (silent := self._silent.sessions) and self.state is not SessionState.LOST:
            longest = max(silent.values())
            log.info(
                "sessions %s on %s have been silent for longer than their timeout of up to %g s; waiting until they are ended",
                ", ".join(map(str, silent)),
                self._topic,
                longest,
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0 + 1.5 * longest):
                    await self._none_silent.wait()

    async def run(self) -> None:
        """Follow the log, append what is queued, and show that the session is alive, until it is lost or this is cancelled."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._follower.follow)
                    tasks.start_soon(self._appender.run)
                    tasks.start_soon(self._beat)
                    tasks.start_soon(self._keeper.run)
        except* LogChangedError as group:
            error = main_error(group)
            is_live = self.id and boottime() < self._deadline.lost_at
            # The others trim the log without us if we have no session, or none any more: we may begin again.
            was_trimmed = isinstance(error, LogTrimmedError) and not is_live
            if was_trimmed and not self._opened.done():
                self._opened.set_exception(TrimmedWhileOpeningError(str(error)))
            else:
                self._fail(StoreUnreachableError(str(error)) if was_trimmed else self._history.refuse(str(error)))
        except* StoreError as group:
            self._fail(main_error(group))

    def _fail(self, error: BaseException) -> None:
        log.error("%s", error)
        self._lose(str(error))
        if not self._opened.done():
            self._opened.set_exception(error)

    async def _beat(self) -> None:
        """Append a BEAT whenever no other record of ours was sent for a quarter of the timeout."""
        await asyncio.shield(self._opened)
        interval = self.timeout / 4
        while True:
            due = self._appender.last_sent + interval
            if (left := due - boottime()) > 0:
                await asyncio.sleep(left)
            elif self._appender.is_behind:
                await asyncio.sleep(interval / 4)  # one is under way already, and tries again by itself
            else:
                self._appender.put(Outgoing(Kind.BEAT))
                await asyncio.sleep(interval / 4)

    def _check_deadline(self) -> None:
        """Lose the session when none of its records was read back for its whole timeout."""
        left = self._deadline.lost_at - boottime()
        if left <= 0:
            self._lose(
                f"none of its records was read back for {self.timeout:g} s ({self._last_problem or 'no answer'})"
            )
        elif self.state is not SessionState.LOST:
            self._lost_timer = self._loop.call_later(left, self._check_deadline)

    @property
    def _last_problem(self) -> str:
        """The reason why our records are not taken, or why they cannot be read back; empty if no reason is known."""
        return self._appender.last_problem or self._follower.last_problem

    async def close(self) -> None:
        """Close the session: append its end, for at most CLOSE_TIMEOUT seconds. Closing twice changes nothing."""
        if self.state is not SessionState.LOST and self.id:
            was_connected = self.state is SessionState.CONNECTED
            self._lose("it was closed")
            if was_connected:
                with suppress(TimeoutError, LogError, PermissionError, StoreError):
                    async with asyncio.timeout(CLOSE_TIMEOUT):
                        await self._client.append([records.encode(self._seal(Kind.CLOSE, 0, b""))])
        self._lose("it was closed")
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._client.close()


def _with_unique_id(op: Op) -> Op:
    if isinstance(op, Create) and op.sequential:
        return Create(f"{op.path}{uuid.uuid4().hex}-", op.data, op.ephemeral, True)
    return op
