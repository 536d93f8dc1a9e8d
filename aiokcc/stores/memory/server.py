"""The server's half of the memory store: the tree, its sessions and watches, and the faults that a test can inject.

In ordinary use nothing here waits: an operation is applied when it is called. A test injects faults through this object,
``store.server``. Each fault is a plain call that takes effect at once, so that a test decides every interleaving and never
sleeps. The faults have these effects:

==================  ==============================================  ===========================================
fault               the client's object                             the server
==================  ==============================================  ===========================================
``suspend``         SUSPENDED; calls and watches wait, ``stop_at``  keeps the session until ``expire``
                    does not change
``resume``          CONNECTED; calls and watches continue
``expire``          LOST at once (unless frozen)                    ends the session, deletes its ephemerals
``freeze``          as a stopped process: stays CONNECTED, calls    keeps the session until ``expire``; applies
                    and watches wait                                what was sent before
``thaw``            continues, or becomes LOST if it has expired
``intercept``,      waits between call and answer                   applies it before or after that wait
``hold_…``
==================  ==============================================  ===========================================

``freeze`` and then ``expire`` make a zombie: another session may hold its locks, and it does not know. ::

    store = MemoryStore("test")
    async with store.session() as leader, store.session() as other:
        with store.server.hold_reply(lambda call: call.touches("coordinator")) as held:
            advance = asyncio.create_task(leader.set("coordinator", b"10", 0))
            await held.reached()                        # it was applied and is not answered
            store.server.expire(leader)                 # the answer will never come
        with pytest.raises(OutcomeUnknownError):
            await advance
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

from aiokcc.errors import OutcomeUnknownError, StoreUnreachableError, UsageError
from aiokcc.stores.memory.broadcast import Broadcast
from aiokcc.stores.port import Node, Op, Session, boottime
from aiokcc.stores.tree import Key, Tree, TreeOp, split_path

if TYPE_CHECKING:
    from aiokcc.stores.memory.session import MemorySession
    from aiokcc.stores.memory.watch import MemoryWatch

__all__ = ["Call", "Hold", "Hook", "Interception", "MemoryServer"]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of a session, as hooks get it."""

    session: MemorySession
    verb: str
    """One of find, get, children, create, set, delete, commit, ensure; ``watch`` when a watch is about to report."""
    paths: tuple[str, ...]
    """The paths, relative to the session's root, in the order of the operations."""
    ops: tuple[Op, ...] = ()
    """The operations of a write."""

    @property
    def writes(self) -> bool:
        """True if the call can change the tree."""
        return self.verb in ("create", "set", "delete", "commit", "ensure")

    def touches(self, path: str) -> bool:
        """Return whether the call writes to this path (or, in a transaction, checks it)."""
        return self.writes and path in self.paths


Hook: TypeAlias = Callable[[Call], Awaitable[object] | None]
"""A function that gets every call. If it returns an awaitable, that is awaited. The call raises what the hook raises."""


class Interception:
    """A pair of hooks that is active until it is closed. Also a context manager."""

    def __init__(self, server: MemoryServer, before: Hook | None, after: Hook | None) -> None:
        self._server, self.before, self.after = server, before, after
        server._hooks.append(self)

    def close(self) -> None:
        """Stop intercepting; hooks that already run continue. Closing twice changes nothing."""
        if self in self._server._hooks:
            self._server._hooks.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Hold:
    """Holds the next call that matches, and only that one, until it is released. Leaving the context releases it."""

    def __init__(self, server: MemoryServer, match: Callable[[Call], bool] | None, *, reply: bool) -> None:
        self._match = match
        self._call: Call | None = None
        self._error: BaseException | None = None
        self._reached, self._released = asyncio.Event(), asyncio.Event()
        self._hooks = Interception(server, None, self._stop) if reply else Interception(server, self._stop, None)

    async def _stop(self, call: Call) -> None:
        if self._call is not None or (self._match is not None and not self._match(call)):
            return
        self._call = call
        self._hooks.close()
        self._reached.set()
        await self._released.wait()
        if self._error is not None:
            raise self._error

    async def reached(self) -> Call:
        """Wait until a call is held and return it. Can be cancelled at any time."""
        await self._reached.wait()
        assert self._call is not None
        return self._call

    def release(self, error: BaseException | None = None) -> None:
        """Let the held call continue, or make it raise an error. If no call is held yet, none will be."""
        self._error = error
        self._hooks.close()
        self._released.set()

    def lose(self) -> None:
        """Release the call without an answer: it raises OutcomeUnknownError."""
        self.release(OutcomeUnknownError("the connection broke before the answer (simulated)"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._released.is_set():
            self.release()


class MemoryServer:
    """The tree and the sessions that all memory stores of one name share. It is available as ``store.server``."""

    clock: Callable[[], float]
    """The clock of ``stop_at`` and :meth:`expire_overdue`, in seconds: :func:`boottime` unless a test replaces it."""
    wall_clock: Callable[[], float]
    """The clock of ``Node.created`` and ``Node.modified``, in seconds since the epoch."""

    _ids = itertools.count(1)

    def __init__(self, name: str) -> None:
        self.name = name
        self.clock, self.wall_clock = boottime, time.time
        self._tree = Tree()
        self._sessions: dict[int, MemorySession] = {}
        self._watches: dict[Key, dict[MemoryWatch, None]] = {}
        self._creation_watches: dict[str, dict[MemoryWatch, None]] = {}
        self._hooks: list[Interception] = []
        self._down = False
        self._resumed = Broadcast()
        self._loop: asyncio.AbstractEventLoop | None = None

    # For tests: the state

    @property
    def sessions(self) -> tuple[MemorySession, ...]:
        """The sessions that the server knows, oldest first, including those that were closed without a connection."""
        return tuple(self._sessions.values())

    def nodes(self) -> dict[str, Node]:
        """Return all present nodes by absolute path, without ``/``."""
        return {path: self._node(path, path) for path in sorted(self._tree.nodes) if path != "/"}

    # For tests: faults

    def suspend(self, session: Session | None = None, *, stop_at: float | None = None) -> None:
        """Disconnect a session, or all present and future ones (None).

        Its calls wait and its watches report nothing. Its ``stop_at`` is set to the given time, by default ``clock`` + 2/3 of
        its timeout, and does not change. The session ends only by :meth:`expire` or :meth:`expire_overdue`.
        """
        if session is None:
            self._down = True
        for one in self._select(session):
            one._disconnected = one._disconnected or session is not None
            one._update_state(stop_at)

    def resume(self, session: Session | None = None) -> None:
        """Reconnect a session, or all sessions (None), including those that were suspended one by one."""
        if session is None:
            self._down = False
        for one in self._select(session):
            one._disconnected = False
            one._update_state()
        self._resumed.notify_all()

    def freeze(self, session: Session, *, stop_at: float | None = None) -> None:
        """Stop a session's client as SIGSTOP stops a process: its state does not change, and nothing reaches it.

        What it has already sent is still applied. ``stop_at`` is set as in :meth:`suspend`.
        """
        one = self._own(session)
        one._frozen = True
        one._update_state(stop_at)

    def thaw(self, session: Session) -> None:
        """Let a frozen client continue; if its session has expired meanwhile, it becomes LOST."""
        one = self._own(session)
        one._frozen = False
        one._update_state()

    def expire(self, session: Session) -> None:
        """End a session and delete its ephemeral nodes. Its client becomes LOST; a frozen client does so when thawed."""
        self._end(self._own(session), "it has expired")

    def expire_overdue(self) -> tuple[MemorySession, ...]:
        """Expire and return all sessions that were suspended or frozen for their whole timeout, on ``clock``."""
        now = self.clock()
        overdue = tuple(
            one for one in self.sessions if one._silent_since is not None and now - one._silent_since >= one.timeout
        )
        for one in overdue:
            self.expire(one)
        return overdue

    def intercept(self, *, before: Hook | None = None, after: Hook | None = None) -> Interception:
        """Run ``before`` for every call before it is applied, and ``after`` when it was applied and not yet answered.

        If a hook returns an awaitable, the call waits for it: ``intercept(before=lambda call: clock.sleep(0.01))`` simulates a
        network latency. If a hook raises an error, the call raises it; after an error of ``before`` the call is not applied.
        Operations of one session are still applied in the order of their calls.
        """
        return Interception(self, before, after)

    def hold_request(self, match: Callable[[Call], bool] | None = None) -> Hold:
        """Hold the next call for which ``match`` is true (None: any call) before it is applied."""
        return Hold(self, match, reply=False)

    def hold_reply(self, match: Callable[[Call], bool] | None = None) -> Hold:
        """Hold the next call for which ``match`` is true (None: any call) after it was applied, before its answer."""
        return Hold(self, match, reply=True)

    # For sessions

    def _own(self, session: Session) -> MemorySession:
        from aiokcc.stores.memory.session import MemorySession  # here: it imports this module

        if not isinstance(session, MemorySession) or session._server is not self:
            raise UsageError(f"{session!r} is not a session of memory://{self.name}")
        return session

    def _select(self, session: Session | None) -> tuple[MemorySession, ...]:
        return self.sessions if session is None else (self._own(session),)

    async def _connect(self, make: Callable[[int], MemorySession], connect_timeout: float | None) -> MemorySession:
        self._bind_loop()
        try:
            async with asyncio.timeout(connect_timeout if self._down else None):
                await asyncio.sleep(0)
                while self._down:
                    await self._resumed.wait()
        except TimeoutError:
            raise StoreUnreachableError(
                f"memory://{self.name} did not answer within {connect_timeout:g} s: it is suspended"
            ) from None
        self._bind_loop()  # again: another loop may have opened a session while we waited
        session = make(next(self._ids))
        self._sessions[session.id] = session
        return session

    def _bind_loop(self) -> None:
        """Bind the server to the running event loop. Raises UsageError if another loop has open sessions."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            for session in self.sessions:
                if session._loop.is_closed():
                    self._end(session, "its event loop was closed")
                elif session._loop is not loop and not session._closed:
                    raise UsageError(
                        f"memory://{self.name} has open sessions in another event loop; close them first, "
                        f"or use another name: a memory store serves one loop at a time"
                    )
            self._loop = loop

    def _end(self, session: MemorySession, why: str) -> None:
        if self._sessions.pop(session.id, None) is not None:
            session._alive = False
            session._reason = session._reason or why
            self._notify(self._tree.delete_owned(session.id, self._now()))
            session._update_state()

    def _now(self) -> int:
        return int(self.wall_clock() * 1000)

    def _write(self, ops: list[TreeOp]) -> list[int | str | None]:
        results, changed = self._tree.apply(ops, self._now())
        self._notify(changed)
        if self._creation_watches:
            self._notify_creations(results)
        return results

    def _node(self, path: str, shown: str) -> Node:
        found = self._tree.nodes[path]
        return Node(shown, found.data, found.version, found.owner, found.created, found.modified)

    def _notify(self, changed: dict[Key, None]) -> None:
        if self._watches:
            for key in changed:
                for watch in self._watches.get(key, ()):
                    watch._mark_changed(key)

    def _notify_creations(self, results: list[int | str | None]) -> None:
        for path in results:
            if isinstance(path, str):  # the path that a Create has made
                parent, name = split_path(path)
                for watch in self._creation_watches.get(parent, ()):
                    watch._mark_created(parent, name)

    async def _run_hooks(self, call: Call, *, after: bool) -> None:
        for hooks in tuple(self._hooks):
            hook = hooks.after if after else hooks.before
            if hook is not None and (waiting := hook(call)) is not None:
                await waiting
