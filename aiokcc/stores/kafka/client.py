"""The connection to Kafka: append to the log, read it, and ask about its topic.

Appending and reading have a connection each, so that a read that waits for records does not delay an append. Every call raises
:class:`LogError` for what may be over at the next attempt, and an error of ``aiokcc.errors`` for what will not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiokcc.errors import StoreError, UsageError
from aiokcc.stores.kafka.wire import (
    FAILURES,
    AppendRequest,
    ConnectionGroup,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DescribeConfigsRequest,
    LogEntry,
    MetadataRequest,
    OffsetRequest,
    ReadAnswer,
    ReadRequest,
    Refusal,
    SlowedDown,
    TopicClient,
    TopicPartition,
    VersionedRequest,
    check_aiokafka,
    find_refusal,
    kafka_errors,
    pack_batch,
    unpack_batches,
)

__all__ = [
    "LogClient",
    "LogEntry",
    "LogError",
    "LogSlice",
    "NotConnectedError",
    "OutOfRangeError",
    "Refusal",
    "TooLargeForTopicError",
    "TopicDescription",
]

log = logging.getLogger("aiokcc.stores")

FETCH_BYTES: Final = 4 * 2**20
_TOPIC_RESOURCE: Final = 2
_PROBE_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 0.5


class LogError(Exception):
    """A request failed, or was not answered. The next attempt may succeed."""


class NotConnectedError(LogError):
    """No broker has accepted a connection."""


class OutOfRangeError(LogError):
    """The log does not have the offset that was asked for: it begins later, or it has become shorter."""


class TooLargeForTopicError(Exception):
    """The broker refuses a batch that is larger than the topic's ``max.message.bytes``. Nothing was appended."""


class LogSlice(NamedTuple):
    """The answer to a read."""

    entries: list[LogEntry]
    start: int
    """The offset at which the log begins."""
    end: int
    """The offset behind the last record that can be read."""


class TopicDescription(NamedTuple):
    """The topic, as the cluster describes it."""

    partitions: int
    replicas: int
    brokers: int
    settings: Mapping[str, str]


class LogClient:
    """One partition of one topic. :meth:`start` and :meth:`close` belong together."""

    def __init__(self, servers: Sequence[str], topic: str, settings: Mapping[str, Any], request_timeout: float) -> None:
        check_aiokafka()
        self._servers = list(servers)
        self.servers = ",".join(servers)
        """The servers, for messages."""
        self._topic = self.topic = topic
        self._name = topic.encode()
        self._timeout = request_timeout
        self._settings = dict(settings)
        self._client: Any = None
        self._starting = asyncio.Lock()
        self._has_warned = False

    async def start(self) -> None:
        """Connect, unless we are connected. Raises LogError if no broker answers."""
        async with self._starting:  # the appender and the follower may both find that we are not
            if self._client is None:
                await self._start()

    async def _start(self) -> None:
        try:
            client = TopicClient(
                bootstrap_servers=self._servers,
                request_timeout_ms=int(self._timeout * 1000),
                retry_backoff_ms=20,
                **self._settings,
            )
        except (ValueError, TypeError) as error:
            raise UsageError(f"aiokafka refuses a setting: {error}") from error
        try:
            await client.bootstrap()
            self._client = client
        except (kafka_errors.KafkaError, OSError, TimeoutError) as error:
            raise NotConnectedError(str(error)) from error
        except NotImplementedError as error:
            raise StoreError(
                f"the Kafka brokers and the installed aiokafka have no request in common: {error}"
            ) from None
        finally:
            if self._client is not client:
                await client.close()

    async def find_refusal(self) -> Refusal | None:
        """Return why a broker refuses us; None if none does, or none is there."""
        return await find_refusal(self.servers, self._settings, _PROBE_SECONDS)

    async def close(self) -> None:
        """Disconnect. Connections that do not end soon, because a broker does not answer, end by themselves."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(kafka_errors.KafkaError, OSError, TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await client.close()

    # -- The log ----------------------------------------------------------------------------------------------------------

    async def append(self, values: Sequence[bytes]) -> None:
        """Append records, all or none, and wait until the replicas in sync have them.

        Raises LogError if that is not known, and TooLargeForTopicError if nothing was appended for that reason.
        """
        request = AppendRequest(self._name, pack_batch(values), int(self._timeout * 1000))
        self._check(await self._ask(await self._leader(), request))

    async def fetch(self, offset: int, wait: float) -> LogSlice:
        """Return the records from an offset on; wait up to so many seconds if there is none.

        Raises OutOfRangeError and LogError.
        """
        request = ReadRequest(self._name, offset, int(wait * 1000), FETCH_BYTES)
        answer: ReadAnswer | SlowedDown = await self._ask(await self._leader(), request, ConnectionGroup.COORDINATION)
        while isinstance(answer, SlowedDown):
            self._warn_of_quota()
            await asyncio.sleep(answer.seconds)  # the broker reads nothing of ours until then
            answer = await self._ask(await self._leader(), request, ConnectionGroup.COORDINATION)
        self._check(answer.code)
        try:
            return LogSlice(list(unpack_batches(answer.data, offset)), answer.start, answer.end)
        except kafka_errors.KafkaError as error:
            raise LogError(str(error)) from error

    def _warn_of_quota(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "Kafka slows down our reads of %s, by a quota: sessions are lost if that takes longer than their timeout",
                self._topic,
            )

    async def find_range(self) -> tuple[int, int]:
        """Return the offsets at which the log begins and ends. Raises LogError."""
        edges = []
        for when in (-2, -1):
            request = OffsetRequest(-1, 0, [(self._topic, [(0, when)])])
            answer = await self._send(await self._leader(), request)
            found = answer.topics[0][1][0]
            self._check(found[1])
            edges.append(int(found[3]))
        return edges[0], edges[1]

    async def trim(self, offset: int) -> None:
        """Delete all records before an offset. Raises StoreError if we may not."""
        answer = await self._send(
            await self._leader(), DeleteRecordsRequest([(self._topic, [(0, offset)])], int(self._timeout * 1000))
        )
        self._check(answer.topics[0][1][0][2])

    # -- The topic --------------------------------------------------------------------------------------------------------

    async def describe(self) -> TopicDescription | None:
        """Return the topic's partitions, replicas and settings; None if it does not exist."""
        # Asking must not create it, as brokers do by default: without the settings that a log needs.
        request = MetadataRequest([self._topic], allow_auto_topic_creation=False)
        found = await self._send(self._any_node(), request)
        brokers = len(found.brokers)
        for topic in found.topics:
            code, name, partitions = topic[0], topic[1], topic[-1]
            if name == self._topic:
                if code == kafka_errors.UnknownTopicOrPartitionError.errno:
                    return None
                self._check(code)
                replicas = min((len(part[3]) for part in partitions), default=0)
                return TopicDescription(len(partitions), replicas, brokers, await self._describe_settings())
        return None

    async def count_brokers(self) -> int:
        """Return the number of brokers."""
        return len((await self._send(self._any_node(), MetadataRequest([]))).brokers)

    async def _describe_settings(self) -> dict[str, str]:
        request = DescribeConfigsRequest([(_TOPIC_RESOURCE, self._topic, None)], False)
        answer = await self._send(self._any_node(), request)
        resource = answer.resources[0]
        self._check(resource[0])
        return {entry[0]: entry[1] or "" for entry in resource[4]}

    async def create(self, replicas: int, settings: Mapping[str, str]) -> None:
        """Create the topic with one partition. If it exists already, nothing happens."""
        request = CreateTopicsRequest(
            [(self._topic, 1, replicas, [], list(settings.items()))], int(self._timeout * 1000), False
        )
        controller = self._client.cluster.controller
        node = self._any_node() if controller is None else controller.nodeId
        answer = await self._send(node, request)
        code, message = answer.topic_errors[0][1], answer.topic_errors[0][-1]
        if code != kafka_errors.TopicAlreadyExistsError.errno:
            self._check(code, str(message or ""))

    # -- Requests ---------------------------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Ask for the present leader. Raises LogError if no broker answers."""
        if self._client is None:
            await self.start()
        client = self._client
        try:
            async with asyncio.timeout(self._timeout):
                client.set_topics([self._topic])
                if not await client.force_metadata_update():
                    raise LogError("no broker answers")
        except TimeoutError:
            raise LogError(f"no broker answers within {self._timeout:g} s") from None

    async def reconnect(self) -> None:
        """Drop all connections, and connect again through the servers that were given. Raises LogError."""
        await self.close()
        await self.start()

    async def _leader(self) -> int:
        if self._client is None:
            raise LogError("not connected")
        leader = self._client.cluster.leader_for_partition(TopicPartition(self._topic, 0))
        if leader is None or leader == -1:
            await self.refresh()
            if self._client is None:  # somebody else connects again meanwhile
                raise LogError("not connected")
            leader = self._client.cluster.leader_for_partition(TopicPartition(self._topic, 0))
        if leader is None or leader == -1:
            raise LogError(f"{self._topic} has no leader")
        return int(leader)

    def _any_node(self) -> int:
        if self._client is None:
            raise LogError("not connected")
        node = self._client.get_random_node()
        if node is None:
            raise LogError("no broker is known")
        return int(node)

    async def _send(self, node: int, request: Any) -> Any:
        return await self._ask(node, VersionedRequest(request))

    async def _ask(self, node: int, request: Any, group: Any = ConnectionGroup.DEFAULT) -> Any:
        try:
            return await self._client.send(node, request, group=group)
        except FAILURES as error:
            raise LogError(str(error) or type(error).__name__) from error

    def _check(self, code: int, message: str = "") -> None:
        """Raise the error that a code of Kafka means for us; 0 is none."""
        if code == 0:
            return
        kind = kafka_errors.for_code(code)
        text = f"{kind.__name__}{': ' + message if message else ''}"
        if kind is kafka_errors.OffsetOutOfRangeError:
            raise OutOfRangeError(text)
        if kind in (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError):
            raise TooLargeForTopicError(text)
        if kind in (kafka_errors.TopicAuthorizationFailedError, kafka_errors.ClusterAuthorizationFailedError):
            raise PermissionError(text)
        if kind in (kafka_errors.PolicyViolationError, kafka_errors.InvalidReplicationFactorError):
            raise StoreError(f"Kafka refuses to make the topic {self._topic!r}: {text}")
        if kind is kafka_errors.InvalidTopicError:  # to Kafka, names that differ in '.' and '_' only are the same
            raise StoreError(
                f"Kafka refuses to make the topic {self._topic!r}: {text}; name another one: kafka://host:9092/root?topic=NAME"
            )
        raise LogError(text)
