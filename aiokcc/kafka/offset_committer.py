"""Offsets of a replay: committed as periods close and when partitions are given up, in Kafka or in the store.

Where a run goes on is decided by what it has committed itself and by its last cut, whichever is later; so a commit that
is lost costs at most the open period again, and one that comes too late counts for nothing.

*In the store* the fence is the store's: see :mod:`aiokcc.runtime.store_offsets`. *In Kafka* there is none for partitions it
has not assigned: whoever writes last wins. So right before a commit the store is asked, in the session in which it was
decided: the answer proves that the session is alive, and that the generation and the locks are those we know. The commit has
until the session's deadline, and its metadata names the run, the generation and the member. What a process that is stopped
between the two still writes is at most the last offset it had processed, and the last cut is the floor. It notices when it goes
on, and says so: nobody else can tell such a commit from one of a partition that has not moved since, and another run that
starts at what is committed would go by it.
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
    from aiokcc.kafka.settings import ReplaySettings
    from aiokcc.kafka.summary import Summary
    from aiokcc.runtime.member import Member
    from aiokcc.runtime.member_session import MemberSession

__all__ = ["Committer", "KafkaOffsets", "OffsetStorage", "make_committer"]

log = logging.getLogger("aiokcc.kafka")

_COMMIT_SECONDS: Final = 1.0
_DEADLINE: Final = 10.0


class OffsetStorage(Protocol):
    """Where a member's offsets are kept."""

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """What this run has committed, where it has."""

    async def commit(self, us: MemberSession, offsets: Mapping[Partition, int]) -> None:
        """Commit what is still ours. CoordinationError, TimeoutError or an error of aiokafka's if it cannot be done."""


class KafkaOffsets:
    """The offsets of one member's partitions, in Kafka."""

    def __init__(self, consumer: AIOKafkaConsumer, cluster: Cluster, member: Member) -> None:
        self._consumer = consumer
        self._cluster = cluster
        self._member = member
        self._fence = ANY_VERSION
        """The version of the generation under which the locks were last looked at."""

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """What this run has committed. What others did under the same group's name tells us nothing."""
        found = await self._cluster.commits(partitions)
        return {p: commit.offset for p, commit in found.items() if commit.counts_for(self._member.founded)}

    async def commit(self, us: MemberSession, offsets: Mapping[Partition, int]) -> None:
        """Ask the store whether they are still ours, and commit at once."""
        ours = await still_ours(us, offsets, self._fence)
        self._fence = us.generation_version
        if refused := sorted(offsets.keys() - ours):
            log.warning("%s: not committed, for we no longer hold them: %s", us.name, ", ".join(map(str, refused)))
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
                    "%s: the session's deadline passed while offsets were being committed to Kafka: %s. Somebody else may have "
                    "gone further by then: this run goes by its last cut, but another that starts at what is committed would "
                    "go by them",
                    us.name,
                    ", ".join(f"{p} at {offsets[p]}" for p in sorted(ours)),
                )


class Committer:
    """Commits offsets as periods close: the newest ones, in one request, at most once a second and at the end.

    What was noted in one session is never committed in another: in between, somebody else may have gone further.
    """

    def __init__(self, storage: OffsetStorage, member: Member, summary: Summary, *, enabled: bool) -> None:
        self._storage = storage
        self._member = member
        self._summary = summary
        self.enabled = enabled
        self._pending: dict[Partition, int] = {}
        self._session: MemberSession | None = None
        """In which they were noted."""
        self._signal = Signal()
        self._commit_lock = anyio.Lock()

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """What this run has committed, where it has; asked with the locks in hand."""
        return await self._storage.committed(partitions) if self.enabled else {}

    def note(self, positions: Mapping[Partition, int]) -> None:
        """A boundary has closed at these offsets, or they were reached by somebody who gives them up."""
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
            await anyio.sleep(_COMMIT_SECONDS)  # time is the event: more often would only cost

    async def flush(self, positions: Mapping[Partition, int]) -> None:
        """Commit these, and what is left."""
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
        text = f"could not commit offsets: {why}; the cuts in the store are what a restart goes by"
        self._summary.commit_error = text
        log.warning("%s", text)


def make_committer(
    settings: ReplaySettings, consumer: AIOKafkaConsumer, cluster: Cluster, member: Member, summary: Summary
) -> Committer:
    """The one that a replay's settings ask for."""
    if settings.offset_storage == "store":
        offsets = StoreOffsets(member)
        if settings.commit:
            member.on_claim = offsets.claimed
        return Committer(offsets, member, summary, enabled=settings.commit)
    enabled = settings.commit and settings.group_id is not None
    return Committer(KafkaOffsets(consumer, cluster, member), member, summary, enabled=enabled)
