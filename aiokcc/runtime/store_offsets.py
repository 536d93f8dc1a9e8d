"""Committed offsets in the store: the commits of a member, which are fenced, and the commands of an operator.

A member commits with one transaction that checks ``generation`` and writes each ``offsets/<topic>/<number>`` at the version it
has read. If the generation has changed, the member reads it, checks that the locks are still its own, and commits again. A
member without its session cannot write at all, because the session refuses. Within a run an offset never goes back: the member
reads the stored offset before it replaces it. If the reply to a commit is lost, the offset is read and compared again.

Only changed offsets are written, and each written offset is remembered with its version, so a commit costs one round trip. The
stored offsets are read when the locks are taken, together with the limit: neither the start nor the first commit waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from aiokcc.core import paths
from aiokcc.core.committed_offset import CommittedOffset, batched
from aiokcc.core.partitions import Partition
from aiokcc.core.run import Generation
from aiokcc.errors import (
    BadVersionError,
    CoordinationError,
    CorruptNodeError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    SessionLostError,
)
from aiokcc.runtime.agreement import find_run
from aiokcc.runtime.children import list_children
from aiokcc.runtime.find_nodes import find_nodes
from aiokcc.runtime.listener import Listener
from aiokcc.runtime.progress_log import log_facts
from aiokcc.stores.port import Check, Create, Node, Op, Session, Set, Store

if TYPE_CHECKING:
    from aiokcc.runtime.member import Member
    from aiokcc.runtime.member_session import MemberSession

__all__ = [
    "Activity",
    "StoreOffsets",
    "find_offsets",
    "list_offsets",
    "read_activity",
    "still_ours",
    "write_offsets",
]

log = logging.getLogger("aiokcc.runtime")

_BATCH: Final = 500
_ENTRY: Final = 600
"""An upper bound for the bytes of one path below the root and its content."""
_TRIES: Final = 8


class _KnownNode(NamedTuple):
    """A node as it was last read or written. ``version`` is None if there is no node, ``commit`` if it cannot be read."""

    version: int | None
    commit: CommittedOffset | None


class StoreOffsets(Listener):
    """The committed offsets of one member's partitions, in the store."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._known: dict[Partition, _KnownNode] = {}
        self._looked: set[Partition] = set()
        """Partitions whose offset was read when their lock was taken, and was not asked for since."""
        self._topics: set[str] = set()
        """Topics whose parent node is known to exist."""

    async def claimed(self, session: Session, partitions: list[Partition]) -> None:
        """Read the stored offsets of partitions whose locks were just taken, and create the parent nodes for new ones."""
        async with anyio.create_task_group() as tasks:
            for topic in {p.topic for p in partitions} - self._topics:
                tasks.start_soon(self._prepare, session, topic)
            await self._look(session, partitions)
        self._looked.update(partitions)

    async def _prepare(self, session: Session, topic: str) -> None:
        try:
            await session.ensure(f"{paths.OFFSETS}/{topic}")
        except NoAuthError:
            return  # the commit will raise it
        self._topics.add(topic)

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offsets that this run has committed. Call it while holding the locks; unreadable offsets are left out.

        Returns nothing if the session is lost: the locks are lost too, and whoever takes them next reads the last cut.
        """
        us = self._member.member_session
        if us is None:
            return {}
        wanted = list(partitions)
        try:
            await self._look(us.session, [p for p in wanted if p not in self._looked or p not in self._known])
        except SessionLostError:
            return {}
        self._looked.difference_update(wanted)
        run, known = self._member.founded, self._known
        found = {p: known[p].commit for p in wanted}
        return {p: commit.offset for p, commit in found.items() if commit is not None and commit.counts_for(run)}

    async def commit(self, us: MemberSession, offsets: Mapping[Partition, int]) -> None:
        """Commit the offsets that are still ours and above the stored ones; in one transaction, if they fit.

        Safe to cancel: the next commit reads the offsets whose outcome is unknown. CoordinationError if the commit fails.
        """
        size = _ENTRY + 3 * len(self._member.store.root)
        for batch in batched(sorted(offsets), size, _BATCH):
            await self._commit(us, {p: offsets[p] for p in batch})

    async def _commit(self, us: MemberSession, wanted: dict[Partition, int]) -> None:
        run = self._member.founded
        wanted = _held(us, wanted, wanted)
        for _ in range(_TRIES):
            await self._look(us.session, [p for p in wanted if p not in self._known])
            due = {p: offset for p, offset in wanted.items() if self._is_further(p, offset, run)}
            if not due:
                return
            facts = (run, us.generation.number, self._member.clock(), us.name)
            commits = {p: CommittedOffset(offset, *facts) for p, offset in due.items()}
            ops = [_write(p, commit, self._known[p].version) for p, commit in commits.items()]
            known = [self._known.pop(p) for p in due]  # unknown until the reply
            fence = us.generation.version
            try:
                results = await us.session.commit(Check(paths.GENERATION, fence), *ops)
            except BadVersionError as error:
                if error.index == 0:
                    self._known.update(zip(due, known, strict=True))
                    wanted = _held(us, wanted, await still_ours(us, wanted, fence))
            except NoNodeError as error:
                if error.index == 0:
                    raise CoordinationError(f"{self._member.store.describe(paths.GENERATION)} is gone") from error
                for topic in {p.topic for p in due}:
                    await us.session.ensure(f"{paths.OFFSETS}/{topic}")
            except (NodeExistsError, OutcomeUnknownError):
                pass
            else:
                self._remember(commits, results[1:])
                return
        raise CoordinationError("the offsets in the store were changed by somebody else at every attempt")

    def _is_further(self, partition: Partition, offset: int, run: int) -> bool:
        there = self._known[partition].commit
        return there is None or not there.counts_for(run) or there.offset < offset

    def _remember(self, commits: Mapping[Partition, CommittedOffset], results: Iterable[object]) -> None:
        for (partition, commit), result in zip(commits.items(), results, strict=True):
            self._known[partition] = _KnownNode(result if isinstance(result, int) else 0, commit)

    async def _look(self, session: Session, partitions: list[Partition]) -> None:
        for partition, node in (await _find(session, partitions)).items():
            commit: CommittedOffset | None = None
            if node is not None:
                try:
                    commit = CommittedOffset.decode(self._member.store.describe(node.path), node.data)
                except CorruptNodeError as error:
                    log.warning("%s; it is ignored, and the next commit replaces it", error)
            self._known[partition] = _KnownNode(None if node is None else node.version, commit)


def _held(us: MemberSession, wanted: dict[Partition, int], ours: Iterable[Partition]) -> dict[Partition, int]:
    """Return the part of a commit whose locks we hold, and log the rest."""
    left = {p: wanted[p] for p in ours if us.ownership.holds(p)}
    if refused := sorted(wanted.keys() - left.keys()):
        log.warning(
            "%s: the offsets of %s are not committed: we no longer hold them",
            us.name,
            ", ".join(map(str, refused)),
            extra=log_facts(us.member, partitions=[str(p) for p in refused]),
        )
    return left


async def still_ours(us: MemberSession, partitions: Iterable[Partition], fence: int) -> list[Partition]:
    """Return the partitions whose locks are ours. Reads the generation first, and the locks if its version is not ``fence``.

    In this order a commit that checks this generation relies on locks that were read under it. SessionLostError if the session
    is over.
    """
    us.generation.see(await us.session.get(paths.GENERATION))
    if us.generation.version == fence:
        return [p for p in partitions if us.ownership.holds(p)]
    locks = await find_nodes(us.session, {p: paths.owner(p) for p in partitions if us.ownership.holds(p)})
    return [p for p, node in locks.items() if node is not None and node.owner == us.session.id]


def _write(partition: Partition, commit: CommittedOffset, version: int | None) -> Op:
    path = paths.offset(partition)
    return Create(path, commit.encode()) if version is None else Set(path, commit.encode(), version)


# -- for a new run, and for operators -------------------------------------------------------------------------------------


async def find_offsets(
    store: Store, session: Session, partitions: Iterable[Partition]
) -> dict[Partition, CommittedOffset]:
    """Return the stored offsets of these partitions, whoever wrote them. CorruptNodeError if one cannot be read."""
    found = await _find(session, list(partitions))
    return {p: _decode(store, node) for p, node in found.items() if node is not None}


async def list_offsets(store: Store, session: Session) -> dict[Partition, CommittedOffset]:
    """Return all stored offsets. CorruptNodeError if one cannot be read, or if its name is not a partition number."""
    partitions: list[Partition] = []
    for topic in await list_children(session, paths.OFFSETS):
        for number in await list_children(session, f"{paths.OFFSETS}/{topic}"):
            try:
                partitions.append(Partition.parse(f"{topic}.{number}"))
            except ValueError:
                path = store.describe(f"{paths.OFFSETS}/{topic}/{number}")
                raise CorruptNodeError(path, number.encode(), "a partition's number as the node's name") from None
    return await find_offsets(store, session, sorted(partitions))


class Activity(NamedTuple):
    """The activity under a root: a run that has not ended, and the members."""

    running: bool
    members: tuple[str, ...]
    partitions: frozenset[Partition]
    """The partitions of the run, ended or not."""


async def read_activity(store: Store, session: Session) -> Activity:
    """Read the activity under the root. CorruptNodeError if a node cannot be read."""
    found = await find_run(store, session)
    members = await list_children(session, paths.IDS)
    if found is None:
        return Activity(False, members, frozenset())
    run, _ = found
    return Activity(not run.ended, members, run.settings.partitions)


async def write_offsets(store: Store, session: Session, commits: Mapping[Partition, CommittedOffset]) -> None:
    """Replace the stored offsets by these, as an operator. No run may be active.

    Each transaction checks that no leader was elected meanwhile. CoordinationError if one was, or if somebody else writes the
    offsets too. Then, and if this is cancelled, earlier transactions remain; doing it again is safe.
    """
    fence = await session.find(paths.GENERATION)
    for batch in batched(sorted(commits), _ENTRY + 3 * len(store.root), _BATCH):
        await _replace(store, session, {p: commits[p] for p in batch}, fence)


async def _replace(
    store: Store, session: Session, commits: dict[Partition, CommittedOffset], fence: Node | None
) -> None:
    for topic in {p.topic for p in commits}:
        await session.ensure(f"{paths.OFFSETS}/{topic}")
    check = [] if fence is None else [Check(paths.GENERATION, fence.version)]
    for _ in range(_TRIES):
        nodes = await _find(session, list(commits))
        ops = [
            _write(p, commit, None if (node := nodes[p]) is None else node.version)
            for p, commit in commits.items()
            if (node := nodes[p]) is None or node.data != commit.encode()
        ]
        if not ops:
            return
        try:
            await session.commit(*check, *ops)
        except (BadVersionError, NoNodeError, NodeExistsError) as error:
            if error.path == paths.GENERATION:
                now = await session.find(paths.GENERATION)
                who = Generation.decode(store.describe(now.path), now.data).leader if now is not None else "somebody"
                raise CoordinationError(f"{who} has started in this group meanwhile; stop it and try again") from None
        except OutcomeUnknownError:
            pass
        else:
            return
    raise CoordinationError(f"{store.describe(paths.OFFSETS)} was changed by somebody else at every attempt; try again")


def _decode(store: Store, node: Node) -> CommittedOffset:
    commit = CommittedOffset.decode(store.describe(node.path), node.data)
    return commit if commit.at is not None else CommittedOffset(commit.offset, at=node.modified)


async def _find(session: Session, partitions: list[Partition]) -> dict[Partition, Node | None]:
    return await find_nodes(session, {p: paths.offset(p) for p in partitions})
