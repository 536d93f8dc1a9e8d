"""The server's half of the memory store: the tree, its sessions and watches, and the faults a test can bring about.

In ordinary use nothing here waits: an operation is applied when it is called. Faults are played on this object,
``store.server``; each is a plain call that takes effect at once, so that a test decides every interleaving and never
sleeps. What they do, seen from the client's object and from the server:

==================  ==============================================  ===========================================
fault               the client's object                             the server
==================  ==============================================  ===========================================
``suspend``         SUSPENDED; calls and watches wait, ``stop_at``  keeps the session until ``expire``
                    stands still
``resume``          CONNECTED; calls go on, watches catch up
``expire``          LOST at once (unless frozen)                    ends the session, deletes its ephemerals
``freeze``          a stopped process: believes to be CONNECTED,    keeps the session until ``expire``; applies
                    calls and watches wait                          what was sent before
``thaw``            goes on, or learns that it was lost meanwhile
``intercept``,      waits between call and answer                   applies before, or after, as the test says
``hold_…``
==================  ==============================================  ===========================================

``freeze`` and then ``expire`` is the zombie: its locks are gone and somebody else may hold them, but it does not know. ::

    store = MemoryStore("test")
    async with store.session() as leader, store.session() as other:
        with store.server.hold_reply(lambda call: call.touches("coordinator")) as held:
            advance = asyncio.create_task(leader.set("coordinator", b"10", 0))
            await held.reached()                        # applied, not answered
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
from aiokcc.stores.memory.tree import Key, Tree, TreeOp
from aiokcc.stores.port import Node, Op, Session, boottime

if TYPE_CHECKING:
    from aiokcc.stores.memory.session import MemorySession
    from aiokcc.stores.memory.watch import MemoryWatch

__all__ = ["Call", "Hold", "Hook", "Interception", "MemoryServer"]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call on its way, as hooks see it."""

    session: MemorySession
    verb: str
    """find, get, children, create, set, delete, commit, ensure; ``watch`` when a watch is about to report."""
    paths: tuple[str, ...]
    """Relative to the session's root, in the order of the operations."""
    ops: tuple[Op, ...] = ()
    """The operations of a write."""

    @property
    def writes(self) -> bool:
        """Whether the call can change the tree."""
        return self.verb in ("create", "set", "delete", "commit", "ensure")

    def touches(self, path: str) -> bool:
        """Whether the call writes to this path (or, in a transaction, checks it)."""
        return self.writes and path in self.paths


Hook: TypeAlias = Callable[[Call], Awaitable[object] | None]
"""Called with every call; what it returns, if anything, is awaited. What it raises, the call raises."""


class Interception:
    """A pair of hooks in force until closed. Also a context manager."""

    def __init__(self, server: MemoryServer, before: Hook | None, after: Hook | None) -> None:
        self._server, self.before, self.after = server, before, after
        server._hooks.append(self)

    def close(self) -> None:
        """Stop intercepting; calls that are with the hooks already stay there. Closing twice changes nothing."""
        if self in self._server._hooks:
            self._server._hooks.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Hold:
    """Stops the next call that matches, once, until released. Leaving its context releases it."""

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
        """Wait until a call is held; that call."""
        await self._reached.wait()
        assert self._call is not None
        return self._call

    def release(self, error: BaseException | None = None) -> None:
        """Let the call go on, or end it with an error; if none was held yet, hold none."""
        self._error = error
        self._hooks.close()
        self._released.set()

    def lose(self) -> None:
        """Release the call without an answer: OutcomeUnknownError."""
        self.release(OutcomeUnknownError("the connection broke before the answer (simulated)"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._released.is_set():
            self.release()


class MemoryServer:
    """What all memory stores of one name share. Reached as ``store.server``; not made directly."""

    clock: Callable[[], float]
    """Seconds, for ``stop_at`` and :meth:`expire_overdue`. :func:`boottime` unless a test sets another."""
    wall_clock: Callable[[], float]
    """Seconds since the epoch, for ``Node.created`` and ``Node.modified``."""

    _ids = itertools.count(1)

    def __init__(self, name: str) -> None:
        self.name = name
        self.clock, self.wall_clock = boottime, time.time
        self._tree = Tree()
        self._sessions: dict[int, MemorySession] = {}
        self._watches: dict[Key, dict[MemoryWatch, None]] = {}
        self._hooks: list[Interception] = []
        self._down = False
        self._resumed = Broadcast()
        self._loop: asyncio.AbstractEventLoop | None = None

    # What a test looks at

    @property
    def sessions(self) -> tuple[MemorySession, ...]:
        """The sessions that the server knows, oldest first; also those whose client left while cut off."""
        return tuple(self._sessions.values())

    def nodes(self) -> dict[str, Node]:
        """The whole tree as it is now, by absolute path, without the root ``/``."""
        return {path: self._node(path, path) for path in sorted(self._tree.nodes) if path != "/"}

    # Faults

    def suspend(self, session: Session | None = None, *, stop_at: float | None = None) -> None:
        """Cut the connection of a session, or of all present and future ones (None).

        Its calls wait, its watches report nothing, its ``stop_at`` becomes the one given, by default 2/3 of its timeout
        after now on ``clock``, and stays there. The server ends it only by :meth:`expire` or :meth:`expire_overdue`.
        """
        if session is None:
            self._down = True
        for one in self._select(session):
            one._disconnected = one._disconnected or session is not None
            one._update_state(stop_at)

    def resume(self, session: Session | None = None) -> None:
        """Give a session its connection back, or everybody (None), also those suspended alone."""
        if session is None:
            self._down = False
        for one in self._select(session):
            one._disconnected = False
            one._update_state()
        self._resumed.notify_all()

    def freeze(self, session: Session, *, stop_at: float | None = None) -> None:
        """Stop a session's client as a stopped process is: its state does not move, and nothing reaches it.

        What it had sent before is still applied. ``stop_at`` as in :meth:`suspend`.
        """
        one = self._own(session)
        one._frozen = True
        one._update_state(stop_at)

    def thaw(self, session: Session) -> None:
        """Let a frozen client go on; if its session was expired meanwhile, it learns it now."""
        one = self._own(session)
        one._frozen = False
        one._update_state()

    def expire(self, session: Session) -> None:
        """End a session at the server and delete its ephemeral nodes. Its client is LOST, or if frozen, when thawed."""
        self._end(self._own(session), "it has expired")

    def expire_overdue(self) -> tuple[MemorySession, ...]:
        """Expire every session that was cut off or frozen for its whole timeout, on ``clock``; those expired."""
        now = self.clock()
        overdue = tuple(
            one for one in self.sessions if one._silent_since is not None and now - one._silent_since >= one.timeout
        )
        for one in overdue:
            self.expire(one)
        return overdue

    def intercept(self, *, before: Hook | None = None, after: Hook | None = None) -> Interception:
        """Call ``before`` with every call before it is applied and ``after`` between that and the answer.

        An awaitable that they return delays the call: ``intercept(before=lambda call: clock.sleep(0.01))`` is a network
        with a latency, whatever clock that is. An error that they raise is the call's: in ``before`` nothing was
        applied, in ``after`` it was. Operations of one session are still applied in the order of their calls.
        """
        return Interception(self, before, after)

    def hold_request(self, match: Callable[[Call], bool] | None = None) -> Hold:
        """Hold the next call that matches (None: any) before it is applied."""
        return Hold(self, match, reply=False)

    def hold_reply(self, match: Callable[[Call], bool] | None = None) -> Hold:
        """Hold the next call that matches (None: any) after it was applied, before its answer."""
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
        self._bind_loop()  # again: another loop may have come first while we waited
        session = make(next(self._ids))
        self._sessions[session.id] = session
        return session

    def _bind_loop(self) -> None:
        """One event loop at a time; another may follow when all sessions of the one before are closed."""
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
        return results

    def _node(self, path: str, shown: str) -> Node:
        found = self._tree.nodes[path]
        return Node(shown, found.data, found.version, found.owner, found.created, found.modified)

    def _notify(self, changed: dict[Key, None]) -> None:
        if self._watches:
            for key in changed:
                for watch in self._watches.get(key, ()):
                    watch._mark_changed(key)

    async def _run_hooks(self, call: Call, *, after: bool) -> None:
        for hooks in tuple(self._hooks):
            hook = hooks.after if after else hooks.before
            if hook is not None and (waiting := hook(call)) is not None:
                await waiting
