"""Asks the cluster for its partitions, their offsets at a time, and their ends.

The questions go through a consumer of their own: those of the fetching one would queue behind a running fetch. Each question
has a deadline, because aiokafka itself waits for a dead broker without limit.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import anyio
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    KafkaConnectionError,
    NotCoordinatorForGroupError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka.errors import KafkaError as AiokafkaError

from aiokcc.core.committed_offset import CommittedOffset
from aiokcc.core.partitions import Partition
from aiokcc.core.run import Bounds
from aiokcc.credentials.kafka_client import CONNECTION_SETTINGS
from aiokcc.credentials.kafka_refusal import NOT_ALLOWED, describe_denial, find_refusal
from aiokcc.errors import KafkaError, KafkaRefusedError, UsageError
from aiokcc.kafka.consumer_policy import ConsumerPolicy
from aiokcc.kafka.source_options import SourceOptions

__all__ = ["Cluster", "consumer_settings", "stopping"]

T = TypeVar("T")

log = logging.getLogger("aiokcc.kafka")

_NO_COORDINATOR: Final = (GroupCoordinatorNotAvailableError, GroupLoadInProgressError, NotCoordinatorForGroupError)
_RETRY_SECONDS: Final = 0.1
"""The pause before a broker is asked again that has just started: it does not tell when it is ready."""
_LOOK_SECONDS: Final = 10.0
"""The seconds for which records are looked at. Logs that take longer are read to their ends, which is right but slower."""

_ADMIN_SETTINGS: Final = CONNECTION_SETTINGS | {
    "request_timeout_ms",
    "connections_max_idle_ms",
    "retry_backoff_ms",
    "metadata_max_age_ms",
    "api_version",
}


def consumer_settings(source: SourceOptions) -> dict[str, Any]:
    """Return the settings for every consumer of a replay. The user's settings replace our defaults, except for those we fix."""
    return {
        "fetch_max_wait_ms": 50,
        "metadata_max_age_ms": 5000,
        **source.consumer,
        "bootstrap_servers": source.bootstrap_servers,
        "isolation_level": source.isolation_level,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
    }


class Cluster:
    """A second connection to the cluster, for questions. Made by :meth:`connected`."""

    def __init__(self, source: SourceOptions, timeout: float) -> None:
        self._source = source
        self._timeout = timeout
        common = consumer_settings(source)
        admin = {name: value for name, value in common.items() if name in _ADMIN_SETTINGS}
        try:
            # For each new topic the first question fails inside aiokafka, which asks again after the back-off.
            self._consumer = AIOKafkaConsumer(**{"retry_backoff_ms": 20, **common}, group_id=source.group_id)
            self._admin = AIOKafkaAdminClient(bootstrap_servers=source.bootstrap_servers, **admin)
        except (ValueError, TypeError) as error:  # such as SSL without an ssl_context
            raise UsageError(f"aiokafka refuses a setting: {error}") from error

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Cluster]:
        """Connect, and disconnect at the end. Raises KafkaError if no broker answers within the timeout."""
        async with stopping(self._consumer), stopping(self._admin, method="close"):
            await self.ask(self._admin.start(), "connect to")
            await self.ask(self._consumer.start(), "connect to")
            yield self

    async def ask(self, question: Awaitable[T], what: str) -> T:
        """Wait for an answer, with a deadline. Raises KafkaError, which names the servers, if there is none, or an error."""
        servers = self._source.bootstrap_servers
        try:
            async with asyncio.timeout(self._timeout):
                return await question
        except TimeoutError:
            raise KafkaError(f"could not {what} Kafka at {servers}: no answer within {self._timeout:g} s") from None
        except AiokafkaError as error:
            if isinstance(error, NOT_ALLOWED):
                raise KafkaRefusedError(
                    f"could not {what} Kafka at {servers}: {self._source.user} is not allowed to: {describe_denial(error)}"
                ) from error
            if not isinstance(error, KafkaConnectionError):
                raise KafkaError(f"could not {what} Kafka at {servers}: {error}") from error
            refusal = await find_refusal(servers, consumer_settings(self._source), self._timeout)
            if refusal is not None:
                raise KafkaRefusedError(f"could not {what} Kafka at {servers}: {refusal.text}") from error
            raise KafkaError(f"could not {what} Kafka at {servers}: no broker there") from error

    async def partitions(self, topics: Iterable[str]) -> frozenset[Partition]:
        """Return all partitions of these topics. Raises UsageError for a topic that does not exist."""
        found: set[Partition] = set()
        wanted = list(topics)
        answer = await self.ask(self._admin.describe_topics(wanted), "ask for the topics of")
        if denied := [entry["topic"] for entry in answer if entry["error_code"] == TopicAuthorizationFailedError.errno]:
            raise KafkaRefusedError(
                f"could not ask for the topics of Kafka at {self._source.bootstrap_servers}: {self._source.user} is not "
                f"allowed to see {', '.join(map(repr, denied))}; it needs an ACL with Read (which includes Describe) on "
                f"{'this topic' if len(denied) == 1 else 'these topics'}"
            )
        missing = [entry["topic"] for entry in answer if entry["error_code"] or not entry["partitions"]]
        if missing:
            known = sorted(t for t in await self.ask(self._admin.list_topics(), "list the topics of") if t[:1] != "_")
            raise UsageError(describe_missing(missing, known))
        for entry in answer:
            found.update(Partition(entry["topic"], part["partition"]) for part in entry["partitions"])
        return frozenset(found)

    async def present(self, topics: Iterable[str]) -> frozenset[Partition]:
        """Return all partitions of those of these topics that exist. Raises KafkaError if Kafka cannot tell for one of them."""
        answer = await self.ask(self._admin.describe_topics(list(topics)), "ask for the topics of")
        unclear = [e["topic"] for e in answer if e["error_code"] not in {0, UnknownTopicOrPartitionError.errno}]
        if unclear:
            raise KafkaError(f"Kafka does not say whether these topics exist: {', '.join(unclear)}")
        return frozenset(Partition(e["topic"], part["partition"]) for e in answer for part in e["partitions"])

    async def topics(self) -> tuple[str, ...]:
        """Return the topics to replay: those named, or those that match the pattern now. Raises UsageError if none does."""
        pattern = self._source.pattern
        if pattern is None:
            return self._source.topics
        known = [t for t in await self.ask(self._admin.list_topics(), "list the topics of") if not t.startswith("__")]
        found = tuple(sorted(topic for topic in known if pattern.fullmatch(topic)))
        if not found:
            there = f"it has {', '.join(sorted(known)[:20])}" if known else "it has none"
            raise UsageError(f"no topic of Kafka matches the pattern {pattern.pattern!r}; {there}")
        return found

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the end of each log as it is now, at the isolation level of the replay."""
        asked = [TopicPartition(*p) for p in partitions]
        answer = await self.ask(self._consumer.end_offsets(asked), "ask for the ends of the logs of")
        return {Partition(*tp): offset for tp, offset in answer.items()}

    async def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the first offset of each log as it is now."""
        asked = [TopicPartition(*p) for p in partitions]
        answer = await self.ask(self._consumer.beginning_offsets(asked), "ask for the beginnings of the logs of")
        return {Partition(*tp): offset for tp, offset in answer.items()}

    async def commits(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, CommittedOffset]:
        """Return what was committed under the group id, by any program, for partitions that have it; None: for all of them."""
        asked = None if partitions is None else [TopicPartition(*p) for p in partitions]
        if asked == []:
            return {}
        group = self._source.group_id
        answer = await self._ask_coordinator(
            lambda: self._admin.list_consumer_group_offsets(group, partitions=asked), "ask for committed offsets of"
        )
        return {
            Partition(*tp): CommittedOffset.from_kafka(found.offset, found.metadata or "")
            for tp, found in answer.items()
            if found.offset >= 0
        }

    async def group_members(self) -> tuple[str, ...]:
        """Return the names of the present members of Kafka's group; none if there is no such group."""
        group = self._source.group_id
        answer = await self._ask_coordinator(
            lambda: self._admin.describe_consumer_groups([group]), "ask for the members of a group of"
        )
        return tuple(member[1] for response in answer for group in response.groups for member in group[5])

    async def _ask_coordinator(self, question: Callable[[], Awaitable[Any]], what: str) -> Any:
        async def until_there_is_one() -> Any:
            while True:
                try:
                    return await question()
                except _NO_COORDINATOR:  # a broker that has just started or taken over; the admin client does not retry
                    await anyio.sleep(_RETRY_SECONDS)

        return await self.ask(until_there_is_one(), what)

    async def commit(self, commits: Mapping[Partition, CommittedOffset]) -> None:
        """Commit for the group without being a member of it. Raises KafkaError if it has members: Kafka refuses it then."""
        wanted = [TopicPartition(*p) for p in commits]
        self._consumer.assign(wanted)
        self._consumer.pause(*wanted)  # no records are wanted
        try:
            entries = {TopicPartition(*p): (commit.offset, commit.metadata) for p, commit in commits.items()}
            await self.ask(self._consumer.commit(entries), "commit offsets to")
        finally:
            self._consumer.unsubscribe()

    async def at(self, ts: int, partitions: Iterable[Partition], ends: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the first offset of each partition at or past a time, in log order; its end where there is none."""
        answer = await self.look_up(dict.fromkeys(partitions, ts))
        return {p: ends[p] if found is None else min(ends[p], found[0]) for p, found in answer.items()}

    async def look_up(self, times: Mapping[Partition, int]) -> dict[Partition, tuple[int, int] | None]:
        """Return the offset and the timestamp of each partition's first record at or past its time, in log order, or None.

        The answer is that of Kafka's index of times, which may also name what is no record: the marker of a transaction.
        """
        asked = {TopicPartition(*p): ts for p, ts in times.items()}
        answer = await self.ask(self._consumer.offsets_for_times(asked), "ask for offsets by time of")
        return {
            Partition(*tp): None if found is None else (found.offset, found.timestamp) for tp, found in answer.items()
        }

    async def _stops(
        self, ts: int, partitions: frozenset[Partition], ends: Mapping[Partition, int]
    ) -> dict[Partition, int]:
        """Return where each log is to be read to, so that no record before a time is left out.

        Kafka's time index also returns transaction markers and aborted records. They carry the time at which they were
        written, so in an old history the first one seems to lie past any end. Where no record stands at the offset that the
        index returns, the log is read to its end, and event time ends the partition.
        """
        stops = await self.at(ts, partitions, ends)
        inside = {p: offset for p, offset in stops.items() if offset < ends[p]}
        records = await self._with_records(inside)
        return {p: offset if p not in inside or p in records else ends[p] for p, offset in stops.items()}

    async def _with_records(self, offsets: Mapping[Partition, int]) -> set[Partition]:
        """Return the partitions that have a record at this offset, as far as it can be read within some seconds."""
        found: set[Partition] = set()
        if not offsets:
            return found
        wanted = {"key_deserializer": None, "value_deserializer": None, "max_partition_fetch_bytes": 64 * 1024}
        consumer = AIOKafkaConsumer(**{**consumer_settings(self._source), **wanted, "fetch_max_wait_ms": 10})
        async with stopping(consumer):
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await consumer.start()
                    places = {TopicPartition(*p): offset for p, offset in offsets.items()}
                    consumer.assign(list(places))
                    for place, offset in places.items():
                        consumer.seek(place, offset)
                    for place, offset in places.items():
                        brought: dict[Any, list[Any]] = {}
                        # An empty answer may come from a slow broker. The position moves only past what is no record.
                        while not brought and await consumer.position(place) == offset:
                            brought = await consumer.getmany(place, timeout_ms=200, max_records=1)
                        if any(records[0].offset == offset for records in brought.values()):
                            found.add(Partition(*place))
            except (TimeoutError, AiokafkaError) as error:
                log.debug("could not look whether records stand at the end of the run: %r", error)
        return found

    async def bounds(
        self,
        partitions: frozenset[Partition],
        policy: ConsumerPolicy,
        now: int,
        committed: Mapping[Partition, CommittedOffset] | None = None,
    ) -> dict[Partition, Bounds]:
        """Return the part of each log that is replayed. The member that founds the run resolves it once.

        ``committed`` replaces the start in the options; a partition without an entry starts at the beginning of its log.
        """
        start, end = self._source.start, self._source.end
        ends = await self.ends(partitions)
        indexed = policy.timestamp is None  # Kafka's index does not know the times that a function returns
        if committed is not None or not isinstance(start, int) or not indexed:
            starts = await self.begins(partitions)
            starts.update({p: max(starts[p], commit.offset) for p, commit in (committed or {}).items()})
        else:
            starts = await self.at(start, partitions, ends)
        if end == "now" or (isinstance(end, int) and end <= now and not indexed):
            stops: Mapping[Partition, int | None] = ends
        elif isinstance(end, int) and end <= now:
            latest = max(policy.lateness.values(), default=0)  # an earlier record may lie behind a later one
            stops = await self._stops(end + latest, partitions, ends)
        else:
            stops = dict.fromkeys(partitions)
        return {p: Bounds(starts[p], stops[p]) for p in partitions}


def describe_missing(missing: list[str], known: list[str]) -> str:
    """Return the error for topics that Kafka does not have: which ones, which may be meant, and which there are."""
    near = dict.fromkeys(name for topic in missing for name in difflib.get_close_matches(topic, known, 1))
    meant = f"; did you mean {' and '.join(map(repr, near))}?" if near else ""
    there = f"{', '.join(known[:20])}{' …' if len(known) > 20 else ''}" if known else "none"
    return f"Kafka has no topic {', '.join(map(repr, missing))}{meant}{' It' if near else '; it'} has {there}"


@asynccontextmanager
async def stopping(client: Any, method: str = "stop") -> AsyncIterator[None]:
    """Stop an aiokafka client at the end, whatever state it is in.

    With a dead broker its ``stop()`` raises a stray CancelledError, which a task group would take for its own. So it runs in a
    task of its own, with a deadline, and its errors are dropped: nothing can be lost any more.
    """
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            # The only task outside a task group: we wait for it here, and a group would end with its error.
            task = asyncio.ensure_future(getattr(client, method)())
            await asyncio.wait([task], timeout=5)
            if not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=1)
