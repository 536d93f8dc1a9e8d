"""Commits the offsets of a replay when periods close and when partitions are released, to Kafka or to the store.

A run resumes at its last cut or at its own last commit, whichever is later. So a commit that is lost repeats at most the open
period, and one that comes too late has no effect. See [fenced commit] in docs/explanation/protocol.md.

*In the store* each commit is fenced by the store: see :mod:`aiokcc.runtime.store_offsets`. *In Kafka* there is no fence for
partitions that Kafka has not assigned: the last writer wins. So the member asks the store right before a commit: the answer
proves that its session is alive, and that it knows the current generation and owns the locks. The commit must end before the
session's deadline, and its metadata names the run, the generation and the member. A process that is stopped between question
and commit writes at most the last offset it has processed, and the run does not resume before its last cut. Such a process
notices it afterwards and logs a warning: nobody else can tell such a commit from one of a partition that has not moved since,
and another run that starts at the committed offsets would use it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError as AiokafkaError

from aiokcc.core.committed_offset import CommittedOffset
from aiokcc.core.partitions import Partition
from aiokcc.errors import CoordinationError, SessionLostError
from aiokcc.runtime.signal import Signal
from aiokcc.runtime.store_offsets import StoreOffsets, still_ours
from aiokcc.stores.port import ANY_VERSION, boottime

if TYPE_CHECKING:
    from aiokcc.kafka.cluster import Cluster
    from aiokcc.kafka.source_options import SourceOptions
    from aiokcc.kafka.summary import Summary
    from aiokcc.runtime.member import Member
    from aiokcc.runtime.member_session import MemberSession

__all__ = ["CommitTarget", "Committer", "KafkaOffsets", "make_committer"]

log = logging.getLogger("aiokcc.kafka")

_COMMIT_SECONDS: Final = 1.0
_DEADLINE: Final = 10.0


class CommitTarget(Protocol):
    """Keeps the offsets of a member's partitions."""

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return what this run has committed, for the partitions for which it has."""

    async def commit(self, us: MemberSession, offsets: Mapping[Partition, int]) -> None:
        """Commit the offsets of partitions that we still own. Raises CoordinationError, TimeoutError or aiokafka's errors."""


class KafkaOffsets:
    """Keeps the offsets of one member's partitions in Kafka."""

    def __init__(self, consumer: AIOKafkaConsumer, cluster: Cluster, member: Member) -> None:
        self._consumer = consumer
        self._cluster = cluster
        self._member = member
        self._fence = ANY_VERSION
        """The version of the generation under which the locks were last checked."""

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return what this run has committed. Commits of other runs under the same group id are ignored."""
        found = await self._cluster.commits(partitions)
        return {p: commit.offset for p, commit in found.items() if commit.counts_for(self._member.founded)}

    async def commit(self, us: MemberSession, offsets: Mapping[Partition, int]) -> None:
        """Ask the store whether we still own the partitions, and commit at once. Raises SessionLostError past the deadline."""
        ours = await still_ours(us, offsets, self._fence)
        self._fence = us.generation.version
        if refused := sorted(offsets.keys() - ours):
            told = _facts(us, refused)
            names = ", ".join(map(str, refused))
            log.warning("%s: not committed, because we no longer own them: %s", us.name, names, extra=told)
        if not ours:
            return
        facts = (self._member.founded, us.generation.number, self._member.clock(), us.name)
        entries: dict[Any, Any] = {
            TopicPartition(*p): (offsets[p], CommittedOffset(offsets[p], *facts).metadata) for p in ours
        }
        left = us.session.stop_at - boottime()
        if left <= 0:
            raise SessionLostError("the session's deadline has passed")
        try:
            async with asyncio.timeout(left):
                await self._consumer.commit(entries)
        finally:
            if boottime() >= us.session.stop_at:
                log.warning(
                    "%s: the session's deadline passed while offsets were being committed to Kafka: %s. Another member may "
                    "have been further by then. This run resumes at its last cut all the same, but another run that starts at "
                    "the committed offsets would use them",
                    us.name,
                    ", ".join(f"{p} at {offsets[p]}" for p in sorted(ours)),
                    extra=_facts(us, ours),
                )


def _facts(us: MemberSession, partitions: Iterable[Partition]) -> dict[str, object]:
    """Return the facts of a log record."""
    return {
        "member": us.name,
        "generation": us.generation.number,
        "partitions": [str(p) for p in sorted(partitions)],
    }


class Committer:
    """Commits the newest offsets in one request, at most once a second and at the end.

    Offsets that were noted in one session are never committed in another: another member may be further by then.
    """

    def __init__(self, storage: CommitTarget, member: Member, summary: Summary, *, enabled: bool) -> None:
        self._storage = storage
        self._member = member
        self._summary = summary
        self.enabled = enabled
        self._pending: dict[Partition, int] = {}
        self._session: MemberSession | None = None
        """The session in which the pending offsets were noted."""
        self._signal = Signal()
        self._commit_lock = anyio.Lock()

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return what this run has committed, for the partitions for which it has. Call it when the locks are ours."""
        return await self._storage.committed(partitions) if self.enabled else {}

    def note(self, positions: Mapping[Partition, int]) -> None:
        """Have these offsets committed soon: a period has closed there, or the partitions are being released."""
        us = self._member.member_session
        if not self.enabled or us is None:
            return
        if us is not self._session:
            self._pending, self._session = {}, us
        self._pending.update((p, int(offset)) for p, offset in positions.items())
        self._signal.set()

    async def run(self) -> None:
        """Commit until cancelled."""
        while True:
            await self._signal.wait()
            await self._commit()
            await anyio.sleep(_COMMIT_SECONDS)  # time is the event: more commits would only cost more

    async def commit_now(self, positions: Mapping[Partition, int]) -> None:
        """Commit these offsets and the pending ones now. A failure is logged and kept in the summary, and not raised."""
        self.note(positions)
        if self.enabled and positions and self._member.member_session is None:
            self._failed("there is no session with the store")
        await self._commit()

    async def _commit(self) -> None:
        async with self._commit_lock:
            pending, self._pending = self._pending, {}
            us = self._session
            if not pending or us is None:
                return
            if us is not self._member.member_session:
                self._failed("the session in which they were reached is over")
                return
            try:
                async with asyncio.timeout(_DEADLINE):
                    await self._storage.commit(us, pending)
            except (TimeoutError, AiokafkaError, CoordinationError) as error:
                self._failed(repr(error))
            else:
                self._summary.commit_error = None

    def _failed(self, why: str) -> None:
        text = f"could not commit offsets: {why}; a restart resumes at the last cut in the store"
        self._summary.commit_error = text
        log.warning("%s", text)


def make_committer(
    source: SourceOptions, consumer: AIOKafkaConsumer, cluster: Cluster, member: Member, summary: Summary
) -> Committer:
    """Return the committer that a replay's options ask for."""
    if source.offset_storage == "store":
        offsets = StoreOffsets(member)
        if source.commit:
            member.add_listener(offsets)
        return Committer(offsets, member, summary, enabled=source.commit)
    enabled = source.commit and source.group_id is not None
    return Committer(KafkaOffsets(consumer, cluster, member), member, summary, enabled=enabled)
