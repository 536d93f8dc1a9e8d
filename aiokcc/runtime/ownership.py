"""The locks of one member in one session. A member runs only partitions whose locks it holds.

A partition starts when we hold its lock and have read the limit since. Locks are claimed and released in transactions that
check the generation, and in a managed group the assignment ([owner lock] in docs/explanation/protocol.md).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import anyio

from aiokcc.core import paths
from aiokcc.core.limit import Limit
from aiokcc.core.partitions import Partition, listing
from aiokcc.errors import BadVersionError, NodeExistsError, NoNodeError, OutcomeUnknownError, PartitionOwnedError
from aiokcc.runtime.cuts import limit_and_cut
from aiokcc.runtime.progress_log import log_facts
from aiokcc.runtime.signal import Signal
from aiokcc.stores.port import ANY_VERSION, Check, Create, Delete, Node, Set

if TYPE_CHECKING:
    from aiokcc.runtime.assignment_follower import AssignmentFollower
    from aiokcc.runtime.followed_generation import FollowedGeneration
    from aiokcc.runtime.member import Member
    from aiokcc.runtime.own_report import OwnReport
    from aiokcc.stores.port import Session

__all__ = ["Ownership"]

log = logging.getLogger("aiokcc.runtime")

_BATCH: Final = 500
"""The most locks claimed or released in one transaction: far below the store's 1 MB."""


class Ownership:
    """Claims, holds and releases the locks of one member session."""

    def __init__(
        self,
        member: Member,
        session: Session,
        generation: FollowedGeneration,
        own_report: OwnReport,
        follower: AssignmentFollower | None,
    ) -> None:
        self._member = member
        self._session = session
        self._store = member.store
        self._generation = generation
        self._own_report = own_report
        self._name = own_report.name
        self._follower = follower
        """Follows our assignment in a managed group; None in other groups."""
        self.claim_needed = Signal()
        """Set when there may be something to claim."""
        self._held: set[Partition] = set()
        """The locks that we hold, by the answers that we have."""
        self._releasing: dict[Partition, asyncio.Future[None]] = {}
        """The partitions that are being released. Until that is done nobody can claim them, not even we."""

    @property
    def has_releases(self) -> bool:
        """True if there are locks to release."""
        return bool(self._releasing)

    async def release_batch(self) -> None:
        """Releases the locks that are to be released, as many as one transaction takes."""
        await self._release(list(self._releasing)[:_BATCH])

    def end(self) -> None:
        """Ends all waits for a release: the session is over, and its locks with it."""
        for done in self._releasing.values():
            if not done.done():
                done.set_result(None)

    async def claim(self) -> None:
        """Claims the partitions that are wanted, whenever that changes, until cancelled."""
        awaited: set[Partition] = set()
        async with anyio.create_task_group() as tasks:
            while True:
                await self.claim_needed.wait()
                await self._claim_wanted(awaited, tasks)

    async def _claim_wanted(self, awaited: set[Partition], tasks: anyio.abc.TaskGroup) -> None:
        """Claims what is wanted now. ``awaited`` has the partitions that others hold; a task waits for each of them."""
        member_progress = self._member.progress
        unavailable = awaited | self._releasing.keys()
        wanted = [
            p for p, progress in member_progress.partitions.items() if not progress.owned and p not in unavailable
        ]
        if self._follower is not None:
            # All assigned partitions or none: while another member still holds one of them, the others wait.
            assigned = self._member.assigned or frozenset()
            wanted = [p for p in wanted if p in assigned] if not awaited & assigned else []
        batches = [wanted[n : n + _BATCH] for n in range(0, len(wanted), _BATCH)]
        # Made now: a claim rests on the assignment by which it is wanted, not on one that is read while it is in flight.
        conditions = [[] if self._follower is None else self._follower.conditions(batch) for batch in batches]
        held: dict[Partition, str] = {}
        for batch, resting_on in zip(batches, conditions, strict=True):
            taken, refused = await self._claim(batch, resting_on)
            held.update(refused)
            for partition in refused:
                awaited.add(partition)
                tasks.start_soon(self._await_release, partition, awaited)
            if taken:
                await self._read_after_claim(taken)
        self._log_holders(held)

    def _log_holders(self, held: dict[Partition, str]) -> None:
        """Logs one line for all partitions that we wait for."""
        if held:
            log.log(
                logging.INFO if self._follower is None else logging.DEBUG,  # a managed group hands over all the time
                "%s waits for %s, held by %s; it runs them when they are released",
                self._name,
                listing(map(str, sorted(held))),
                listing(sorted(set(held.values()))),
                extra=log_facts(self._member, partitions=[str(p) for p in sorted(held)]),
            )

    async def _claim(
        self, wanted: list[Partition], conditions: list[Check]
    ) -> tuple[list[Partition], dict[Partition, str]]:
        """Claims these locks in one transaction, without those that others hold. Returns ours, and the owners of the others.

        In a managed group the transaction checks the assignment too, and if another member holds one lock, we claim none.
        """
        refused: dict[Partition, str] = {}
        ours: list[Partition] = []
        for topic in {p.topic for p in wanted} if self._follower is None else ():
            await self._session.ensure(f"{paths.OWNERS}/{topic}")
        while wanted:
            locks = [Create(paths.owner(p), self._name.encode(), ephemeral=True) for p in wanted]
            try:
                await self._session.commit(Check(paths.GENERATION, self._generation.version), *conditions, *locks)
            except BadVersionError as error:
                if error.path != paths.GENERATION:
                    wanted = []  # there is a new assignment: once we have read it, we claim again
                    break
                self._generation.see(await self._session.get(paths.GENERATION))
            except NoNodeError as error:
                if not error.path.startswith(f"{paths.ASSIGNMENTS}/"):
                    raise
                wanted = []  # the topic has left the set: the watch reports it
                break
            except NodeExistsError as error:
                place = (error.index or 1) - 1 - len(conditions)
                in_the_way = wanted[place]
                nodes = await self._owners(wanted)
                # Ours already: the answer was lost, or the partition was opened again before it was released.
                mine = [p for p, node in nodes.items() if node is not None and node.owner == self._session.id]
                ours += mine
                others = {p: _name(node) for p, node in nodes.items() if node is not None and p not in set(mine)}
                if self._follower is None:
                    refused.update(others)
                    wanted = [p for p, node in nodes.items() if node is None]
                elif in_the_way in mine:
                    wanted = [p for p in wanted if p not in mine]
                else:
                    refused[in_the_way] = others.get(in_the_way, "another member")
                    wanted = []
            except OutcomeUnknownError:
                continue
            else:
                break
        self._held.update(ours, wanted)
        self._show_running()
        return ours + wanted, refused

    async def _owners(self, partitions: list[Partition]) -> dict[Partition, Node | None]:
        """Reads the locks of these partitions side by side."""
        nodes = await asyncio.gather(*(self._session.find(paths.owner(p)) for p in partitions))
        return dict(zip(partitions, nodes, strict=True))

    async def _owned_by_us(self, partitions: list[Partition]) -> set[Partition]:
        """Reads which of these locks this session holds."""
        nodes = await self._owners(partitions)
        return {p for p, node in nodes.items() if node is not None and node.owner == self._session.id}

    def _show_running(self) -> None:
        if self._follower is not None:
            self._follower.show_running(frozenset(self._held))

    async def _read_after_claim(self, taken: list[Partition]) -> None:
        async with anyio.create_task_group() as tasks:
            for listener in self._member.listeners:
                tasks.start_soon(listener.claimed, self._session, taken)
            node, cut = await limit_and_cut(self._store, self._session, self._member.version)
        self._member.see(Limit.decode(self._store.describe(node.path), node.data), node.version)
        if cut is not None:
            self._member.progress.closed(cut.limit)
            for partition in taken:
                gate, mark = self._member.gates.get(partition), cut.find(partition)
                if gate is not None and mark is not None:
                    gate.resume_offset = mark.offset
        held = [p for p in taken if p in self._held and p not in self._releasing]
        self._member.claimed(held, self._name, cut)
        for partition in held:
            if partition not in self._member.progress.partitions:  # its gate was closed while we claimed it
                self.start_release(partition)

    async def _await_release(self, partition: Partition, awaited: set[Partition]) -> None:
        """Waits until the other owner is gone, then claims again. After the timeout the gate raises PartitionOwnedError."""
        timeout = self._member.options.claim_timeout
        if timeout is None:
            timeout = 2 * self._session.timeout
        owner = "?"
        with anyio.move_on_after(timeout) as scope, self._session.watch() as watch:
            watch.add(paths.owner(partition))
            async for change in watch:
                if not isinstance(change.now, Node):
                    break
                owner = _name(change.now)
        awaited.discard(partition)
        gate = self._member.gates.get(partition)
        if scope.cancelled_caught:
            if gate is not None:
                gate.failure = PartitionOwnedError(str(partition), owner, timeout)
                gate.signal.set()
            self._member.forget(partition)
        self.claim_needed.set()

    def holds(self, partition: Partition) -> bool:
        """Returns whether we hold this lock in this session, by the answers that we have."""
        return partition in self._held

    def is_releasing(self, partition: Partition) -> bool:
        """Returns whether the release of this lock has begun and is not done."""
        return partition in self._releasing

    async def release(self, partition: Partition) -> None:
        """Releases a partition's lock, with others of the same moment. Cancelling ends the wait, not the release."""
        await asyncio.shield(self.start_release(partition))

    def start_release(self, partition: Partition) -> asyncio.Future[None]:
        """Starts to release a lock. Returns a future that is done when it is released."""
        done = self._releasing.setdefault(partition, asyncio.get_running_loop().create_future())
        self._own_report.needed.set()
        return done

    async def _release(self, partitions: list[Partition], *, look: bool = False) -> None:
        """Writes the report without these partitions and deletes their locks, in one transaction.

        Only our own locks are deleted. A partition that we claimed and that is still assigned to us cannot belong to another
        member, so checking the assignment is enough; otherwise, or if that check fails, the locks are read first (``look``).
        """
        report = self._member.progress.report(even_running=True)
        content = b"" if report is None else report.encode()
        follower = None if look or not self._held.issuperset(partitions) else self._follower
        resting_on = None if follower is None else follower.release_conditions(partitions)
        ours = await self._owned_by_us(partitions) if resting_on is None else partitions
        try:
            await self._session.commit(
                Check(paths.GENERATION, self._generation.version),
                *(resting_on or ()),
                Set(paths.progress(self._name), content, ANY_VERSION),
                *(Delete(paths.owner(p), ANY_VERSION) for p in partitions if p in ours),
                *(() if self._follower is None else self._follower.deregistration()),
            )
        except BadVersionError as error:
            if error.path == paths.GENERATION:
                self._generation.see(await self._session.get(paths.GENERATION))
            else:
                await self._release(partitions, look=True)
            return
        except NoNodeError as error:  # our node, or a lock
            if resting_on is not None and error.path.startswith((f"{paths.OWNERS}/", f"{paths.ASSIGNMENTS}/")):
                await self._release(partitions, look=True)
                return
            if self._follower is not None and error.path == paths.member(self._name):
                self._follower.deregistered = True
            await self._own_report.restore()
            return
        except OutcomeUnknownError:
            self._own_report.written = None
            return
        self._own_report.written = report
        self._held.difference_update(partitions)
        self._show_running()
        if self._follower is not None and self._member.leaving:
            self._follower.deregistered = True
        self._end_release(partitions)

    def _end_release(self, partitions: list[Partition]) -> None:
        self.claim_needed.set()  # one of them may have been opened again meanwhile
        for partition in partitions:
            done = self._releasing.pop(partition)
            if not done.done():
                done.set_result(None)


def _name(lock: Node) -> str:
    """Returns the member session that a lock names."""
    return lock.data.decode(errors="replace")
