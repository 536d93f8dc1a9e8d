"""A member of a managed group follows its assignment.

:class:`AssignmentFollower` belongs to one session. It reads the assignments, keeps their versions, and makes every claim
conditional on them: a claim succeeds only while the assignment on which it rests is unchanged, so a member that missed a
rebalance claims nothing. It also keeps the member's id unique: a process that joins with the same id asks, and a live one
answers.

:func:`follow_assignment` belongs to the member and outlives sessions. While the store is unreachable, or the new session has
not read the assignments yet, all partitions go on. After that, revoked partitions end first (no further record starts, the
running handler ends, offsets are committed, the lock is released); only then do new ones begin.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import anyio

from aiokcc.core import paths
from aiokcc.core.assignments import decode_assignment
from aiokcc.core.limit import Mode
from aiokcc.core.partitions import Partition, encode_partitions
from aiokcc.core.run import encode_member
from aiokcc.core.subscriptions import Registration, Subscription
from aiokcc.errors import (
    BadVersionError,
    CorruptNodeError,
    MemberExistsError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    PartitionRevoked,
    PositionLostError,
    UsageError,
)
from aiokcc.exception_groups import leaves
from aiokcc.runtime.progress_log import log_facts
from aiokcc.runtime.signal import Signal
from aiokcc.stores.port import ANY_VERSION, Change, Check, Delete, Node, Session, Watch

if TYPE_CHECKING:
    from aiokcc.runtime.member import Member

__all__ = ["AssignmentFollower", "follow_assignment", "member_of", "run_assigned"]

log = logging.getLogger("aiokcc.runtime")

_ASKED = "asked"
"""The field of a registration in which another process with the same id asks whether its owner is alive."""


def member_of(member_session: str) -> str:
    """Returns the member to which this member session belongs."""
    return member_session.rpartition("-")[0]


class AssignmentFollower:
    """The assignments that this session has read, and its registration."""

    def __init__(
        self, member: Member, session: Session, name: str, facts: Mapping[str, Any], subscription: Subscription
    ) -> None:
        self._member = member
        self._session = session
        self._store = member.store
        self._name = name
        listed, pattern = subscription.to_json()
        pipeline = {} if subscription.pipeline is None else {"pipeline": subscription.pipeline}
        self._facts = {**facts, "subscription": listed, "pattern": pattern, **pipeline}
        self._registration = paths.member(name)
        self._watch: Watch | None = None
        self._versions: dict[str, int] = {}
        """The versions of the assignments by topic: missing while not read, -1 where there is no assignment."""
        self._mine: dict[str, frozenset[Partition]] = {}
        self._running = frozenset[Partition]()
        self._registration_changed = Signal()
        self.deregistered = False
        """True once our registration is deleted because we leave."""

    def registration(self) -> bytes:
        """Returns the content of our registration."""
        return encode_member(**self._facts, running=encode_partitions(self._running).decode())

    # -- one process for each id -----------------------------------------------------------------------------------------

    async def await_predecessor(self) -> None:
        """Waits until no earlier session has our id: the session of a process that was killed has to expire first.

        We write a question into the other registration. A live process writes its registration again; then this raises
        MemberExistsError. Until the other session has ended we take part in nothing, but we are registered, so the
        partitions that are assigned to the member stay assigned to it.
        """
        session, ours = self._session, await self._session.get(self._registration)
        for name in await session.children(paths.IDS):
            path = paths.member(name)
            if name == self._name or member_of(name) != self._member.name:
                continue
            node = await session.find(path)
            if node is not None and (node.created, name) < (ours.created, self._name):
                text = "%s: waiting for the end of the session of %s, which has the same id"
                log.info(text, self._name, name, extra=log_facts(self._member))
                await self._await_end_of(path, name)

    async def _await_end_of(self, path: str, name: str) -> None:
        asked: int | None = None
        with self._session.watch() as watch:
            watch.add(path)
            async for change in watch:
                node = change.now
                if not isinstance(node, Node):
                    return
                facts = _facts(node.data)
                if _ASKED in facts:  # by us, or by a third one with the same id
                    asked = node.version
                elif asked is not None and node.version > asked:
                    raise MemberExistsError(self._member.name, name, self._store.describe(""))
                else:
                    question = encode_member(**{**facts, _ASKED: self._name})
                    try:
                        asked = await self._session.set(path, question, node.version)
                    except NoNodeError:
                        return
                    except BadVersionError:
                        continue  # written meanwhile: the watch reports the new content

    # -- following ----------------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Follows the assignments and our own registration until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._update_registration)
            with self._session.watch() as watch:
                self._watch = watch
                watch.add(self._registration)
                self.topics_changed()
                while True:
                    for change in await watch.changes():
                        if change.path == self._registration:
                            await self._check_registration(change)
                        else:
                            self._learn(change)
                    self._publish()

    def topics_changed(self) -> None:
        """Watches the assignments of the topics that the agreed set has now."""
        if self._watch is None:
            return
        topics = {p.topic for p in self._member.settings.partitions}
        for topic in topics:
            self._watch.add(paths.assignment(topic))
        for topic in self._versions.keys() - topics:
            self._watch.remove(paths.assignment(topic))
            del self._versions[topic]
            self._mine.pop(topic, None)
        self._publish()

    def _learn(self, change: Change) -> None:
        topic = change.path.removeprefix(f"{paths.ASSIGNMENTS}/")
        if not isinstance(change.now, Node):
            self._versions[topic], self._mine[topic] = ANY_VERSION, frozenset()
            return
        try:
            assignment = decode_assignment(self._store.describe(change.path), change.now.data)
        except CorruptNodeError as error:
            log.error("%s; everything stays as it is until it can be read", error)
            self._versions.setdefault(topic, change.now.version)
            return
        self._versions[topic] = change.now.version
        self._mine[topic] = frozenset(Partition(topic, n) for n, m in assignment.items() if m == self._member.name)

    def _publish(self) -> None:
        """Gives the member its assigned partitions, once all assignments have been read."""
        topics = {p.topic for p in self._member.settings.partitions}
        if topics <= self._versions.keys():
            agreed = self._member.settings.partitions  # it may arrive a moment later than the assignment
            self._member.see_assignment(frozenset[Partition]().union(*self._mine.values()) & agreed)

    def conditions(self, partitions: Iterable[Partition]) -> list[Check]:
        """Returns the checks on which a claim of these partitions rests."""
        return [
            Check(paths.assignment(topic), self._versions.get(topic, 0))
            for topic in sorted({p.topic for p in partitions})
        ]

    def release_conditions(self, partitions: Iterable[Partition]) -> list[Check] | None:
        """Returns checks that prove that no other member holds these partitions, which we have claimed; None if there are none.

        The proof is the assignment while it gives them to us: every claim rests on the assignment, and our id is unique.
        """
        partitions = list(partitions)
        return self.conditions(partitions) if all(p in self._mine.get(p.topic, ()) for p in partitions) else None

    def deregistration(self) -> list[Delete]:
        """Returns the deletion of our registration if we leave: released with the locks, they go to other members at once."""
        return [Delete(self._registration, ANY_VERSION)] if self._member.leaving and not self.deregistered else []

    # -- the registration ---------------------------------------------------------------------------------------------

    def show_running(self, partitions: frozenset[Partition]) -> None:
        """Has the registration list the partitions that we run. Only people read that."""
        if partitions != self._running:
            self._running = partitions
            self._registration_changed.set()

    async def _update_registration(self) -> None:
        while True:
            await self._registration_changed.wait()
            await self._write()

    async def _check_registration(self, change: Change) -> None:
        if isinstance(change.now, Node):
            if _ASKED in _facts(change.now.data):
                await self._write()
                return
            try:
                Registration.decode(self._store.describe(change.path), change.now.data)
            except CorruptNodeError as error:
                log.error("%s; it is written again", error)
                await self._write()
            return
        if self._member.leaving:
            return
        log.warning("%s was deleted; registering again", self._store.describe(self._registration))
        try:
            await self._session.create(self._registration, self.registration(), ephemeral=True)
        except NodeExistsError:
            return

    async def _write(self) -> None:
        try:
            await self._session.set(self._registration, self.registration(), ANY_VERSION)  # it is ours
        except NoNodeError:
            return  # deleted by hand: the watch reports it
        except OutcomeUnknownError:
            self._registration_changed.set()  # once more


def _facts(data: bytes) -> dict[str, Any]:
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return {name: value for name, value in raw.items() if name != "version"} if isinstance(raw, dict) else {}


async def follow_assignment(
    member: Member,
    begin: Callable[[frozenset[Partition]], Awaitable[None]],
    end: Callable[[frozenset[Partition]], Awaitable[None]],
    over: Callable[[], bool] = lambda: False,
    lost: set[Partition] | None = None,
) -> None:
    """Runs the partitions that are assigned to us until the run has ended (or ``over`` returns True).

    ``begin`` returns when the partitions run, ``end`` when they are released. ``begin`` may wait for a lock; if one of the
    partitions is revoked meanwhile, ``begin`` is cancelled and must leave nothing behind. ``lost`` has partitions whose tasks
    ended on their own because the lock was lost: they begin again if they are still assigned to us.
    """
    running = frozenset[Partition]()
    while member.progress.limit.mode is not Mode.END and member.failure is None and not over():
        if lost:
            running -= lost
            lost.clear()
        assigned = member.assigned
        gone = frozenset() if assigned is None else running - assigned
        new = frozenset() if assigned is None else assigned - running
        if gone:
            await end(gone)
            running -= gone
        elif new:
            running |= await _begin(member, begin, new)
        else:
            await member.moved.wait()


async def _begin(
    member: Member, begin: Callable[[frozenset[Partition]], Awaitable[None]], new: frozenset[Partition]
) -> frozenset[Partition]:
    """Begins these partitions, unless one of them is revoked before. Returns those that have begun."""
    begun = frozenset[Partition]()
    failure: Exception | None = None

    async def work() -> None:
        nonlocal begun, failure
        try:
            await begin(new)
            begun = new
        except PartitionRevoked:
            pass  # one was revoked before all had begun: the caller decides again
        except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
            failure = error
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        while member.assigned is None or new <= member.assigned:
            await member.moved.wait()
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return begun


async def run_assigned(member: Member, run: Callable[[Partition], Awaitable[None]]) -> None:
    """Runs each assigned partition as a task that opens its own gate. Raises the first error of a task.

    A revoked partition is released when its task has ended, not when the task has closed its gate: what the task does in
    between, such as committing, it does while no other member can run the partition.
    """
    ended: dict[Partition, asyncio.Event] = {}
    lost: set[Partition] = set()
    failure: Exception | None = None

    async def one(partition: Partition, done: asyncio.Event) -> None:
        nonlocal failure
        try:
            await run(partition)
        except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
            if not all(isinstance(leaf, PartitionRevoked | PositionLostError) for leaf in leaves(error)):
                failure = failure or error
                member.moved.set()
            elif ended.get(partition) is done:  # it was not asked to end: begun again, it starts from the last cut
                lost.add(partition)
                member.moved.set()
        finally:
            member.release_kept(
                partition
            )  # only now: what the task did after its gate was closed was done under the lock
            done.set()

    async def begin(partitions: frozenset[Partition]) -> None:
        for partition in sorted(partitions):
            ended[partition] = asyncio.Event()
            tasks.start_soon(one, partition, ended[partition])

    async def end(partitions: frozenset[Partition]) -> None:
        leaving = [ended.pop(partition) for partition in partitions]
        for partition in partitions:
            if (gate := member.gates.get(partition)) is not None:
                member.revoke(gate, keeps_lock=True)
        for done in leaving:
            await done.wait()
        for partition in partitions:
            await member.release_partition(partition)

    if member.leaving:
        raise UsageError(f"{member.name} has left the managed group; connect again to be assigned partitions")
    async with anyio.create_task_group() as tasks:
        try:
            await follow_assignment(member, begin, end, lambda: failure is not None, lost)
        finally:
            member.leave()
        if failure is not None or member.failure is not None:
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
