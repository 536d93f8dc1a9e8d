"""The store on a real Kafka: bad topics are refused, and what happens to the log is noticed and named."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiokafka.admin import RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.structs import TopicPartition

from aiokcc import local
from aiokcc.errors import (
    OutcomeUnknownError,
    SessionLostError,
    StoreError,
    StoreUnreachableError,
    TooLargeError,
    UsageError,
)
from aiokcc.stores import ANY_VERSION, Session, SessionState, Set, boottime, open_store
from aiokcc.stores.kafka import KafkaStore, keeper, records
from aiokcc.stores.kafka import session as kafka_session
from aiokcc.stores.kafka.client import LogClient, LogError, LogSlice, TooLargeForTopicError
from aiokcc.stores.kafka.records import Kind, Record
from aiokcc.stores.kafka.session import IDLE_SECONDS, MAX_TIMEOUT, KafkaSession
from aiokcc.stores.kafka.snapshot import split_snapshot
from aiokcc.stores.kafka.topic import make_settings
from tests import kafka_topics
from tests.kafka_topics import Row, admin

PATIENCE = 30.0
MADE = make_settings(1)
RIGHT = {"retention.ms": -1, "retention.bytes": -1, "message.timestamp.type": "LogAppendTime"}


def new_store(kafka: local.Kafka, topic: str | None = None) -> KafkaStore:
    name = kafka_topics.fresh_name("root")
    store = open_store(f"kafka://{kafka.bootstrap}/{name}" + (f"?topic={topic}" if topic else ""))
    assert isinstance(store, KafkaStore)
    return store


@asynccontextmanager
async def opened(store: KafkaStore, timeout: float = 10.0) -> AsyncIterator[KafkaSession]:
    async with store.session(timeout=timeout) as session:
        assert isinstance(session, KafkaSession)
        await session.ensure("")
        yield session


def freeze(session: KafkaSession) -> None:
    """Let the session neither read nor write any more, as in a stopped process."""
    session._scope.cancel()
    assert session._lost_timer is not None
    session._lost_timer.cancel()


@asynccontextmanager
async def killed(store: KafkaStore, timeout: float) -> AsyncIterator[KafkaSession]:
    """Give a session whose process is killed at the end: its end is not in the log."""
    async with opened(store, timeout) as session:
        yield session
        freeze(session)
        await session._client.close()


async def until_gone(session: Session, path: str) -> None:
    with session.watch() as watch:
        watch.add(path)
        async with asyncio.timeout(PATIENCE):
            async for change in watch:
                if change.now is None:
                    return


async def start_of(store: KafkaStore) -> int:
    return (await range_of(store))[0]


async def end_of(store: KafkaStore) -> int:
    return (await range_of(store))[1]


async def range_of(store: KafkaStore) -> tuple[int, int]:
    client = LogClient(store.servers, store.topic, {}, 5.0)
    await client.start()
    try:
        await client.refresh()
        return await client.find_range()
    finally:
        await client.close()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what Kafka does by itself and tells nobody."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.05)


async def _value(value: bool) -> bool:
    return value


async def refused(store: KafkaStore) -> str:
    with pytest.raises(StoreError) as caught:
        async with store.session():
            pass
    return str(caught.value)


class TestTopic:
    """The topic is made on first use, and refused if it would lose the agreement."""

    @pytest.mark.parametrize(
        ("partitions", "configs", "expected"),
        [
            (2, RIGHT, "it has 2 partitions; expected 1"),
            (1, {**RIGHT, "cleanup.policy": "compact"}, "cleanup.policy is 'compact'; set it to 'delete'"),
            (1, {**RIGHT, "retention.ms": 60000}, "retention.ms is 60000; set it to -1"),
            (1, {**RIGHT, "retention.bytes": 1000}, "retention.bytes is 1000; set it to -1"),
            (1, {**RIGHT, "max.message.bytes": 10000}, "max.message.bytes is 10000; set it to 1048588 or more"),
            (1, {**RIGHT, "compression.type": "zstd"}, "compression.type is zstd; set it to producer"),
            (1, {**RIGHT, "message.timestamp.type": "CreateTime"}, "is CreateTime; set it to LogAppendTime"),
        ],
    )
    async def test_a_topic_that_would_lose_the_agreement_is_refused(
        self, kafka: local.Kafka, partitions: int, configs: dict[str, Any], expected: str
    ) -> None:
        topic = kafka_topics.fresh_name("bad")
        await kafka_topics.create(kafka.bootstrap, topic, partitions=partitions, configs=configs)
        message = await refused(new_store(kafka, topic))
        assert expected in message
        assert topic in message

    async def test_a_topic_with_other_records_is_refused(self, kafka: local.Kafka) -> None:
        topic = kafka_topics.fresh_name("foreign")
        await kafka_topics.create(kafka.bootstrap, topic, configs=RIGHT)
        await kafka_topics.write(kafka.bootstrap, topic, [Row(0, 1, b"somebody's")])
        assert "has records that are not of aiokcc's log" in await refused(new_store(kafka, topic))

    async def test_one_topic_holds_one_root(self, kafka: local.Kafka) -> None:
        topic = kafka_topics.fresh_name("shared")
        first, second = new_store(kafka, topic), new_store(kafka, topic)
        async with opened(first):
            message = await refused(second)
        assert repr(first.root) in message
        assert "name another topic" in message

    async def test_it_is_made_with_the_settings_that_are_checked(self, kafka: local.Kafka) -> None:
        store = new_store(kafka)
        async with opened(store) as session:
            found = await session._client.describe()
        assert found is not None
        assert (found.partitions, found.replicas) == (1, 1)
        assert found.settings["message.timestamp.type"] == "LogAppendTime"

    async def test_a_name_that_kafka_takes_for_another_one_is_refused_at_once(self, kafka: local.Kafka) -> None:
        """Names that differ in '.' and '_' only are the same to Kafka: /a/b and /a_b cannot both have a topic."""
        name = kafka_topics.fresh_name("root")
        async with open_store(f"kafka://{kafka.bootstrap}/{name}/eu").session() as session:
            await session.ensure("")
        store = open_store(f"kafka://{kafka.bootstrap}/{name}_eu")
        with pytest.raises(
            StoreError, match="collides with .*; name another one: kafka://host:9092/root.topic=NAME"
        ) as caught:
            async with store.session():
                pass
        assert not isinstance(caught.value, StoreUnreachableError)

    async def test_no_broker(self) -> None:
        with pytest.raises(StoreUnreachableError, match="no Kafka broker of 127.0.0.1:1 answered within 0.5 s"):
            async with open_store("kafka://127.0.0.1:1/root").session(connect_timeout=0.5):
                pass

    async def test_changed_retention_is_named_while_running_and_refused_afterwards(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(keeper, "CHECK_SECONDS", 0.1)
        store = new_store(kafka)
        async with opened(store):
            await alter(kafka, store.topic, {"retention.ms": "3600000"})
            await until(lambda: _value("retention.ms is 3600000" in caplog.text))
        assert "retention.ms is 3600000; set it to -1" in await refused(store)


async def alter(kafka: local.Kafka, topic: str, configs: dict[str, str]) -> None:
    async with admin(kafka.bootstrap) as client:
        await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])


class TestLostAcknowledgement:
    """The append reached the log, and its answer did not reach us: it is sent again, and applied once."""

    @pytest.mark.parametrize("times", [0, 1, 2])
    async def test_each_kind_of_write_is_applied_once(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch, times: int
    ) -> None:
        """The first attempt of each record reaches the log so many times, and is never answered."""
        append = LogClient.append
        tried: set[bytes] = set()

        async def flaky(self: LogClient, values: list[bytes]) -> None:
            if tried.isdisjoint(values):
                tried.update(values)
                for _ in range(times):
                    await append(self, values)
                raise LogError("the answer was lost")
            await append(self, values)

        store = new_store(kafka)
        async with opened(store) as session:
            monkeypatch.setattr(LogClient, "append", flaky)
            writes: list[Callable[[], Awaitable[Any]]] = [
                lambda: session.create("a", b"x"),
                lambda: session.set("a", b"y", 0),
                lambda: session.commit(Set("a", b"z", 1)),
                lambda: session.create("c-", sequential=True),
                lambda: session.create("e", ephemeral=True),
                lambda: session.ensure("d/e/f"),
                lambda: session.delete("e", 0),
                session.sync,
            ]
            for write in writes:
                async with asyncio.timeout(PATIENCE):
                    await write()
            monkeypatch.setattr(LogClient, "append", append)
            assert len(tried) >= len(writes)
            assert (await session.get("a")).version == 2
            names = await session.children("")
            assert [name.partition("-")[0] for name in names] == ["a", "c", "d"]

    async def test_the_deadline_counts_from_the_first_attempt(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append = LogClient.append
        attempts: list[float] = []

        async def late(self: LogClient, values: Sequence[bytes]) -> None:
            attempts.append(boottime())
            if len(attempts) < 3:
                raise LogError("it did not reach the broker")
            await append(self, values)

        async with opened(new_store(kafka), 30.0) as session:
            monkeypatch.setattr(LogClient, "append", late)
            await session.create("a")
            assert len(attempts) == 3
            assert session.stop_at <= attempts[0] + 20.0 < attempts[1] + 20.0

    async def test_the_deadline_does_not_count_what_was_acknowledged_and_not_read_back(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with opened(new_store(kafka), 2.0) as session:
            append, beaten, is_blind = session._client.append, asyncio.Event(), asyncio.Event()

            async def note(values: Sequence[bytes]) -> None:
                await append(values)
                beaten.set()

            async def read_nothing(offset: int, wait: float) -> LogSlice:
                is_blind.set()
                return await asyncio.Event().wait()  # type: ignore[return-value]

            monkeypatch.setattr(session._client, "fetch", read_nothing)
            await is_blind.wait()
            stop_at = session.stop_at
            monkeypatch.setattr(session._client, "append", note)
            async with asyncio.timeout(PATIENCE):
                await beaten.wait()
            assert session.stop_at == stop_at
            async with asyncio.timeout(PATIENCE):
                assert await session.until(SessionState.LOST) is SessionState.LOST
            with pytest.raises(SessionLostError, match="none of its records was read back for 2 s"):
                await session.find("a")

    @pytest.mark.parametrize("times", [1, 2])
    async def test_each_kind_of_record_is_applied_once(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch, times: int
    ) -> None:
        """Also those that nobody waits for: a session's begin and end, its beats, marks, snapshots, the end of another one."""
        append = LogClient.append
        lost: dict[Kind, int] = {}
        seen: set[bytes] = set()

        async def flaky(self: LogClient, values: Sequence[bytes]) -> None:
            if not seen.isdisjoint(values):
                await append(self, values)
                return
            seen.update(values)
            for _ in range(times):
                await append(self, values)
            for record in (records.decode(value, None) for value in values):
                assert record is not None
                lost[record.kind] = lost.get(record.kind, 0) + 1
            raise LogError("the answer was lost")

        monkeypatch.setattr(keeper, "MARK_RECORDS", 30)
        monkeypatch.setattr(LogClient, "append", flaky)
        store = new_store(kafka)
        async with opened(store, 2.0) as session:
            await session.create("count")
            async with opened(open_again(store), 2.0) as silent:
                await silent.create("lock", ephemeral=True)
                freeze(silent)
                await session.sync()
                await until_gone(session, "lock")
            async with opened(open_again(store), 2.0) as guest:
                await guest.create("guest", ephemeral=True)
            await until_gone(session, "guest")

            async def is_trimmed() -> bool:
                await session.set("count", b"", ANY_VERSION)
                return await start_of(store) > 0

            await until(is_trimmed)
            async with asyncio.timeout(PATIENCE):
                while Kind.BEAT not in lost:  # noqa: ASYNC110 - it comes when nothing else was written for a while
                    await asyncio.sleep(0.1)
            version = (await session.get("count")).version
            async with opened(open_again(store)) as newcomer:
                assert (await newcomer.get("count")).version == version
                assert await newcomer.children("") == ("count",)
            assert session.state is SessionState.CONNECTED
        assert set(lost) == set(Kind) - {Kind.FORMAT}


class TestSessions:
    """Sessions that fall silent, and processes that wake up after it."""

    async def test_a_frozen_process_that_wakes_up_and_appends_changes_nothing(self, kafka: local.Kafka) -> None:
        store = new_store(kafka)
        async with opened(store, 2.0) as frozen, opened(store) as one, opened(store) as two:
            await frozen.create("limit", b"10")
            await frozen.create("lock", ephemeral=True)
            stop_at = frozen.stop_at
            body = records.encode_ops([Set("limit", b"20", ANY_VERSION)])
            late = records.encode(frozen._seal(Kind.WRITE, 3, body))
            await one.sync()
            freeze(frozen)
            await asyncio.gather(until_gone(one, "lock"), until_gone(two, "lock"))
            assert boottime() > stop_at, "nobody has seen it end before its own deadline"
            await one._client.append([late])
            await one.sync()
            assert (await one.get("limit")).data == b"10"

    async def test_two_observers_that_end_the_same_session_at_once_end_it_once(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append = LogClient.append
        ending: dict[LogClient, bytes] = {}
        both = asyncio.Event()

        async def wait_for_both(self: LogClient, values: Sequence[bytes]) -> None:
            for value in values:
                record = records.decode(value, None)
                if record is not None and record.kind is Kind.EXPIRE and self not in ending:
                    ending[self] = value
                    if len(ending) == 2:
                        both.set()
                    await both.wait()
            await append(self, values)

        store = new_store(kafka)
        async with opened(store, 1.0) as silent, opened(store) as one, opened(store) as two:
            await silent.create("lock", ephemeral=True)
            await asyncio.gather(one.sync(), two.sync())
            monkeypatch.setattr(LogClient, "append", wait_for_both)
            freeze(silent)
            await asyncio.gather(until_gone(one, "lock"), until_gone(two, "lock"))
            await one.create("lock", ephemeral=True)
            await asyncio.gather(one.sync(), two.sync())
            assert len(ending) == 2
            for observer in (one, two):
                assert (await observer.get("lock")).owner == one.id, "the second one has not ended anything"
                assert observer.state is SessionState.CONNECTED
                assert set(observer._follower.machine.sessions) == {one.id, two.id}
            found = await kafka_topics.read(kafka.bootstrap, store.topic)
            assert set(ending.values()) <= {value for _, _, value in found}, "both are in the log"

    async def test_closing_while_the_broker_does_not_answer_is_quick(self, private_kafka: local.Kafka) -> None:
        store = new_store(private_kafka)
        async with opened(store) as session:
            await session.create("a")
            private_kafka.freeze()
            write = asyncio.ensure_future(session.create("b"))
            await asyncio.sleep(0)
            began = boottime()
        assert boottime() - began < 3
        with pytest.raises(
            (OutcomeUnknownError, SessionLostError)
        ):  # whether it was sent depends on the answer to the first
            await write
        private_kafka.thaw()
        async with opened(store) as again:
            assert (await again.get("a")).version == 0

    async def test_a_process_that_was_only_slow_learns_that_its_session_is_over(self, kafka: local.Kafka) -> None:
        store = new_store(kafka)
        async with opened(store, 2.0) as session, opened(store) as other:
            machine = other._follower.machine
            last = machine.sessions[session.id].last
            await session.create("a")  # after that record, so this one does not end it
            await other._client.append(
                [records.encode(other._seal(Kind.EXPIRE, 0, records.encode_expire(session.id, last)))]
            )
            await session.sync()
            assert session.state is SessionState.CONNECTED
            last = machine.sessions[session.id].last + 1000
            await other._client.append(
                [records.encode(other._seal(Kind.EXPIRE, 0, records.encode_expire(session.id, last)))]
            )
            async with asyncio.timeout(PATIENCE):
                assert await session.until(SessionState.LOST) is SessionState.LOST
            with pytest.raises(SessionLostError, match="it has expired"):
                await session.create("b")

    async def test_who_comes_long_after_all_were_killed_finds_nobody(self, kafka: local.Kafka) -> None:
        """Nobody was there to end their sessions. A command that comes then must not say that they are alive."""
        store = new_store(kafka)
        async with killed(store, 1.0) as one, killed(store, 1.0) as two:
            await one.create("one", ephemeral=True)
            await two.create("two", ephemeral=True)
        await asyncio.sleep(1.2)
        begun = boottime()
        async with opened(open_again(store)) as newcomer:
            assert boottime() - begun > 1.0, "it ends them by its own patience, not by the broker's clock"
            assert await newcomer.children("") == ()

    @pytest.mark.parametrize("longest", [2.0, 1.9])
    async def test_who_comes_waits_until_they_have_ended_or_not_at_all(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch, longest: float
    ) -> None:
        monkeypatch.setattr(kafka_session, "LONGEST_LOOK", longest)
        store = new_store(kafka)
        async with killed(store, 2.0) as one:
            await one.create("one", ephemeral=True)
        await asyncio.sleep(2.2)
        begun = boottime()
        async with opened(open_again(store)) as newcomer:
            waited, found = boottime() - begun, await newcomer.children("")
        if longest == 2.0:
            assert waited > 2.0
            assert found == ()
        else:
            assert waited < 1.0
            assert found == ("one",)

    async def test_who_comes_while_others_live_does_not_wait(self, kafka: local.Kafka) -> None:
        store = new_store(kafka)
        async with opened(store, 2.0) as live, killed(store, 60.0) as slow:
            await slow.create("slow", ephemeral=True)
            await live.create("live", ephemeral=True)
            await asyncio.sleep(2.5)
            begun = boottime()
            async with opened(open_again(store)) as newcomer:
                assert boottime() - begun < 1.0
                assert await newcomer.children("") == ("live", "slow")

    async def test_an_idle_session_stays(self, kafka: local.Kafka) -> None:
        store = new_store(kafka)
        async with opened(store, 1.0) as session, opened(store, 1.0) as other:
            await asyncio.sleep(4)  # time is what is tested
            assert session.state is other.state is SessionState.CONNECTED
            await session.create("a")

    async def test_a_session_of_the_shortest_timeout_is_ended_by_one_with_a_long_timeout(
        self, kafka: local.Kafka
    ) -> None:
        """The observer reads seldom, as its own timeout is long; it is in contact often enough for the other's."""
        store = new_store(kafka)
        async with opened(store, 1.0) as frozen, opened(store, 30.0) as observer:
            await frozen.create("lock", ephemeral=True)
            await observer.sync()
            freeze(frozen)
            async with asyncio.timeout(6):
                await until_gone(observer, "lock")

    async def test_a_timeout_of_many_years_is_shortened(self, kafka: local.Kafka) -> None:
        async with opened(new_store(kafka), 1e9) as session:
            assert session.timeout == MAX_TIMEOUT

    async def test_writes_that_are_to_be_sent_one_by_one_end_with_the_session(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append, first = LogClient.append, asyncio.Event()

        async def take_one(self: LogClient, values: list[bytes]) -> None:
            if len(values) > 1:
                raise TooLargeForTopicError
            first.set()
            await asyncio.Event().wait()

        async with opened(new_store(kafka)) as session:
            monkeypatch.setattr(LogClient, "append", take_one)
            writes = [asyncio.ensure_future(session.create(name)) for name in "abc"]
            await first.wait()
            monkeypatch.setattr(LogClient, "append", append)
        _, left = await asyncio.wait(writes, timeout=5)
        assert not left
        errors = [write.exception() for write in writes]
        assert [type(error) for error in errors] == [OutcomeUnknownError, SessionLostError, SessionLostError]

    async def test_a_write_that_is_too_large_at_its_second_attempt_was_perhaps_taken_at_the_first(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The answer was lost, and then the topic was told to take smaller records: the log knows what has become of it."""
        async with opened(new_store(kafka)) as session:
            append, fetch = session._client.append, session._client.fetch
            attempts, refused, is_held = 0, asyncio.Event(), asyncio.Event()

            async def take_once(values: Sequence[bytes]) -> None:
                nonlocal attempts
                attempts += 1
                if attempts > 1:
                    refused.set()
                    raise TooLargeForTopicError
                await append(values)
                raise LogError("the answer was lost")

            async def read_later(offset: int, wait: float) -> LogSlice:
                is_held.set()
                await refused.wait()
                return await fetch(offset, wait)

            monkeypatch.setattr(session._client, "fetch", read_later)
            await is_held.wait()
            monkeypatch.setattr(session._client, "append", take_once)
            async with asyncio.timeout(PATIENCE):
                assert await session.create("a", b"1") == "a"
            monkeypatch.setattr(session._client, "append", append)
            assert await session.set("a", b"2", 0) == 1
            assert session.state is SessionState.CONNECTED

    async def test_a_session_that_ends_because_nothing_is_taken_says_why(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Reads go on while too few replicas are in sync, so only the answers to appends tell."""
        async with opened(new_store(kafka), 1.0) as session:

            async def refuse(values: Sequence[bytes]) -> None:
                raise LogError("NotEnoughReplicasError")

            monkeypatch.setattr(session._client, "append", refuse)
            with pytest.raises(OutcomeUnknownError, match=r"read back for 1 s \(NotEnoughReplicasError\)"):
                await session.create("a")

    async def test_many_idle_sessions_read_their_beats_together(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = new_store(kafka)
        async with AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(opened(store, 4.0)) for _ in range(20)]
            await asyncio.sleep(IDLE_SECONDS + 0.1)  # time is what is tested
            reads, fetch = 0, LogClient.fetch

            async def counted(self: LogClient, offset: int, wait: float) -> LogSlice:
                nonlocal reads
                reads += 1
                return await fetch(self, offset, wait)

            monkeypatch.setattr(LogClient, "fetch", counted)
            await asyncio.sleep(2)
            # 20 beats a second; one by one they would be 800 reads of 20 sessions in two seconds.
            assert reads < 400
            began = boottime()
            await sessions[0].create("a")
            assert boottime() - began < 0.1, "a session that writes reads at once"
            assert all(session.state is SessionState.CONNECTED for session in sessions)


class TestLog:
    """Records that are not ours, and a log that is not the one we know."""

    async def test_garbage_and_foreign_records_change_nothing(self, kafka: local.Kafka) -> None:
        store = new_store(kafka)
        async with opened(store) as session:
            foreign = Record(b"somebody", Kind.WRITE, session.id, 2, 0, bytes(8), b"")
            rows = [Row(0, 1, b"garbage"), Row(0, 1, None), Row(0, 1, records.encode(foreign))]
            for codec in kafka_topics.CODECS:
                await kafka_topics.write(kafka.bootstrap, store.topic, rows, codec=codec)
            await session.create("a")
        async with opened(store) as again:
            assert await again.children("") == ("a",)

    async def test_the_end_of_a_foreign_transaction_changes_nothing(self, kafka: local.Kafka) -> None:
        """It is a record of Kafka's own, at the end of the log: nobody waits for what follows it."""
        store = new_store(kafka)
        async with opened(store) as session:
            await session.create("a")
        end = await end_of(store)
        await kafka_topics.write_transaction(kafka.bootstrap, store.topic, [Row(0, 1, b"foreign")])

        async def has_ended() -> bool:
            return await end_of(store) == end + 2

        await until(has_ended)
        async with asyncio.timeout(PATIENCE), opened(open_again(store)) as again:
            assert await again.children("") == ("a",)
            following = await end_of(store)
            await kafka_topics.write_transaction(kafka.bootstrap, store.topic, [Row(0, 1, b"foreign")])

            async def has_read() -> bool:
                return again._follower.machine.position >= following + 2

            await until(has_read)

    async def test_a_newer_format_stops_the_reader_with_a_clear_error(self, kafka: local.Kafka) -> None:
        store = new_store(kafka)
        async with opened(store) as session:
            newer = bytearray(records.encode(session._seal(Kind.BEAT, 1, b"")))
            newer[6] = 2
            await kafka_topics.write(kafka.bootstrap, store.topic, [Row(0, 1, bytes(newer))])
            async with asyncio.timeout(PATIENCE):
                await session.until(SessionState.LOST)
            with pytest.raises(SessionLostError, match="records of format 2"):
                await session.find("a")
        assert "let all members run the same version" in await refused(store)

    async def test_a_deleted_topic_is_not_made_again_by_a_process_that_knew_it(self, kafka: local.Kafka) -> None:
        store = new_store(kafka)
        async with opened(store, 2.0) as session:
            await delete(kafka, store.topic)
            async with asyncio.timeout(PATIENCE):
                await session.until(SessionState.LOST)
        assert "was deleted while this process ran" in await refused(store)

    async def test_a_topic_that_was_deleted_and_made_again_is_noticed(self, kafka: local.Kafka) -> None:
        store = new_store(kafka)
        async with opened(store, 10.0) as session:
            await session.create("a")
            await delete(kafka, store.topic)
            async with opened(open_again(store)) as other:
                for number in range(20):
                    await other.create(f"n{number}")
                async with asyncio.timeout(PATIENCE):
                    await session.until(SessionState.LOST)
            with pytest.raises(SessionLostError, match="was deleted and made again"):
                await session.find("a")
        assert "was deleted and made again" in await refused(store)

    async def test_a_log_whose_beginning_was_deleted_is_refused(self, kafka: local.Kafka) -> None:
        store = new_store(kafka)
        async with opened(store) as session:
            await session.create("a")
            async with admin(kafka.bootstrap) as client:
                await client.delete_records({TopicPartition(store.topic, 0): RecordsToDelete(before_offset=2)})
            message = await refused(open_again(store))
            assert "begins at offset 2" in message
            assert "retention" in message
            assert session.state is SessionState.CONNECTED, "it has read them"


def open_again(store: KafkaStore) -> KafkaStore:
    """Return the store as another process would open it."""
    again = open_store(store.url)
    assert isinstance(again, KafkaStore)
    return again


async def delete(kafka: local.Kafka, topic: str) -> None:
    async with admin(kafka.bootstrap) as client:
        await client.delete_topics([topic])

        async def is_gone() -> bool:
            return topic not in await client.list_topics()

        await until(is_gone)


class TestSnapshots:
    """The log is marked, a snapshot follows, and it is trimmed when everybody has read it."""

    async def test_the_log_stays_short_and_a_newcomer_has_the_same_tree(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(keeper, "MARK_RECORDS", 100)
        store = new_store(kafka)
        async with opened(store, 2.0) as session, opened(store, 2.0) as other:
            await session.create("count")
            await other.create("mine", ephemeral=True)
            for number in range(500):
                await session.set("count", b"%d" % number, number)

            async def is_trimmed() -> bool:
                return await start_of(store) >= 200

            await until(is_trimmed)
            async with opened(open_again(store)) as newcomer:
                assert (await newcomer.get("count")).version == 500
                mine = await newcomer.get("mine")
                assert mine.owner == other.id
                assert newcomer._follower.start >= 200
            assert session.state is other.state is SessionState.CONNECTED

    async def test_a_large_tree_is_written_down_less_often(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every session writes its whole state down at each mark, so marks cost as much as the tree is large."""
        monkeypatch.setattr(keeper, "MARK_RECORDS", 50)
        async with opened(new_store(kafka), 2.0) as session:
            machine = session._follower.machine

            async def count_marks() -> int:
                offsets = set()
                for number in range(200):
                    await session.set("", b"%d" % number, ANY_VERSION)
                    offsets.add(machine.mark.offset if machine.mark is not None else -1)
                return len(offsets) - 1

            assert await count_marks() >= 3
            await session.create("large", os.urandom(100 * keeper.STATE_PER_RECORD))
            await count_marks()  # until a mark has the large state
            assert machine.mark is not None
            assert len(machine.mark.content) > 100 * keeper.STATE_PER_RECORD
            assert await count_marks() <= 2

    async def test_a_member_that_does_not_read_keeps_the_log_from_being_trimmed(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(keeper, "MARK_RECORDS", 50)
        store = new_store(kafka)
        async with opened(store) as session, opened(store, 60.0) as slow:
            freeze(slow)
            await session.create("count")
            for number in range(200):
                await session.set("count", b"", number)
            assert session._follower.machine.mark is not None
            assert await start_of(store) == 0

    async def test_a_process_whose_session_had_ended_when_the_log_was_trimmed_may_begin_again(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A machine that sleeps: the clock of the session goes on, and the timers of the process do not."""
        monkeypatch.setattr(keeper, "MARK_RECORDS", 50)
        store = new_store(kafka)
        asleep = asyncio.Event()
        async with opened(store, 2.0) as session, opened(open_again(store), 2.0) as other:
            fetch, append = session._client.fetch, session._client.append

            async def fetch_later(offset: int, wait: float) -> LogSlice:
                await asleep.wait()
                return await fetch(offset, wait)

            async def append_later(values: Sequence[bytes]) -> None:
                await asleep.wait()
                await append(values)

            monkeypatch.setattr(session._client, "fetch", fetch_later)
            monkeypatch.setattr(session._client, "append", append_later)
            assert session._lost_timer is not None
            session._lost_timer.cancel()
            await other.create("count")

            async def is_trimmed() -> bool:
                await other.set("count", b"", ANY_VERSION)
                return await start_of(store) > session._follower.machine.position

            await until(is_trimmed)
            asleep.set()
            async with asyncio.timeout(PATIENCE):
                await session.until(SessionState.LOST)
            async with opened(store) as again:
                assert await again.find("count") is not None

    async def test_a_wrong_snapshot_stops_the_newcomer_that_took_it_and_nobody_else(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The oldest member writes a wrong snapshot before the right one; newcomers take the first that is complete."""

        def split_wrongly(mark: int, content: bytes, most: int) -> Iterator[bytes]:
            assert content.count(b"limit") == 1
            yield from split_snapshot(mark, content.replace(b"limit", b"LIMIT"), most)
            yield from split_snapshot(mark, content, most)

        monkeypatch.setattr(keeper, "MARK_RECORDS", 50)
        monkeypatch.setattr(keeper, "split_snapshot", split_wrongly)
        store = new_store(kafka)
        async with opened(store, 2.0) as session, opened(store, 2.0) as other:
            await session.create("limit")

            async def is_trimmed() -> bool:
                await session.set("limit", b"x", ANY_VERSION)
                return await start_of(store) > 0

            await until(is_trimmed)
            assert "has written a snapshot" in caplog.text
            assert "another history or state" in await refused(open_again(store))
            assert session.state is other.state is SessionState.CONNECTED

    async def test_a_topic_that_takes_smaller_records_now_keeps_the_old_ones_and_says_so(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A snapshot that the topic does not take leaves the log as it is; a write that it does not take fails alone."""
        monkeypatch.setattr(keeper, "MARK_RECORDS", 50)
        monkeypatch.setattr(keeper, "STATE_PER_RECORD", 2**20)
        store = new_store(kafka)
        async with opened(store, 2.0) as session:
            await session.create("large", os.urandom(200_000))
            await alter(kafka, store.topic, {**MADE, "max.message.bytes": "100000"})

            async def is_refused() -> bool:
                await session.set("", b"x", ANY_VERSION)
                return "raise its max.message.bytes" in caplog.text

            await until(is_refused)
            with pytest.raises(TooLargeError):
                await session.create("larger", os.urandom(200_000))
            await session.create("small")
            assert await start_of(store) == 0
            await alter(kafka, store.topic, MADE)

            async def is_trimmed() -> bool:
                await session.set("", b"x", ANY_VERSION)
                return await start_of(store) > 0

            await until(is_trimmed)
            assert session.state is SessionState.CONNECTED
        async with opened(open_again(store)) as again:
            assert await again.children("") == ("large", "small")

    async def test_a_snapshot_of_several_records(self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keeper, "MARK_RECORDS", 50)
        monkeypatch.setattr(keeper, "_PART_BYTES", 1000)
        store = new_store(kafka)
        async with opened(store, 2.0) as session, opened(store, 2.0):
            contents = [os.urandom(5000) for _ in range(5)]
            for number, content in enumerate(contents):
                await session.create(f"n{number}", content)

            async def is_trimmed() -> bool:
                await session.set("", b"x", ANY_VERSION)
                return await start_of(store) > 0

            await until(is_trimmed)
            async with opened(open_again(store)) as newcomer:
                found = [(await newcomer.get(f"n{number}")).data for number in range(5)]
            assert found == contents

    async def test_newcomers_join_while_the_log_is_trimmed(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A newcomer that is slow finds that the place where it reads was trimmed, and begins with the next snapshot."""
        monkeypatch.setattr(keeper, "MARK_RECORDS", 20)
        store = new_store(kafka)
        find_range = LogClient.find_range
        async with opened(store, 2.0) as session:
            await session.create("count")

            async def write_past(start: int) -> None:
                async def is_trimmed() -> bool:
                    await session.set("count", b"", ANY_VERSION)
                    return (await find_range(session._client))[0] > start

                await until(is_trimmed)

            await write_past(0)
            late: list[int] = []

            async def look_early(self: LogClient) -> tuple[int, int]:
                start, end = await find_range(self)
                if self is not session._client and len(late) < 3:
                    late.append(start)
                    await write_past(start)  # before this newcomer reads what it has found
                return start, end

            monkeypatch.setattr(LogClient, "find_range", look_early)
            async with opened(open_again(store), 2.0) as newcomer:
                assert (await newcomer.get("count")).version == (await session.get("count")).version
                assert newcomer._follower.machine.chain == session._follower.machine.chain
            assert len(late) == 3

    async def test_a_newcomer_that_is_slow_to_open_its_session_begins_again(
        self, kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It had read the log, and has no session yet, so nobody waits for it. It does not fail."""
        monkeypatch.setattr(keeper, "MARK_RECORDS", 20)
        store = new_store(kafka)
        async with opened(store, 2.0) as session:
            await session.create("count")
            open_slowly, late = KafkaSession.open, 0

            async def open_late(self: KafkaSession, connect_timeout: float | None) -> None:
                nonlocal late
                await open_slowly(self, connect_timeout)
                if late < 2:
                    late += 1

                    async def is_trimmed() -> bool:
                        await session.set("count", b"", ANY_VERSION)
                        return session._follower.start > self._follower.machine.position

                    await until(is_trimmed)

            monkeypatch.setattr(KafkaSession, "open", open_late)
            async with opened(open_again(store), 2.0) as newcomer:
                assert (await newcomer.get("count")).version == (await session.get("count")).version
            assert late == 2


class TestClient:
    async def test_two_reconnections_at_the_same_time_leave_no_connection_behind(self, kafka: local.Kafka) -> None:
        """The follower drops all connections while the appender asks for the leader."""
        client = LogClient([kafka.bootstrap], kafka_topics.fresh_name("none"), {}, 5.0)
        before = asyncio.all_tasks()
        await client.start()
        await asyncio.gather(client.reconnect(), client.refresh())
        await client.close()
        assert asyncio.all_tasks() == before


class TestUrl:
    @pytest.mark.parametrize(
        ("url", "problem"),
        [
            ("kafka://", "does not say which host"),
            ("kafka://h:x/r", "is not a port number"),
            ("kafka://user:secret@h:9092/r", "sasl_plain_username="),
            ("kafka://h:9092/r?retention=1", "a URL takes topic= and prefix="),
            ("kafka://h:9092/r?topic=a b", "which Kafka refuses"),
            ("kafka://h:9092/größe", "name the topic"),
        ],
    )
    def test_an_invalid_url_is_refused_and_no_password_is_shown(self, url: str, problem: str) -> None:
        with pytest.raises(UsageError) as caught:
            open_store(url)
        assert problem in str(caught.value)
        assert "secret" not in str(caught.value)

    def test_an_unknown_option_is_refused(self) -> None:
        with pytest.raises(UsageError, match="has no option 'acl'"):
            open_store("kafka://h:9092/r", acl="open")


def test_the_log_says_nothing_of_passwords() -> None:
    store = open_store("kafka://h:9092/r", sasl_plain_password="secret")
    assert "secret" not in repr(store)
    assert "secret" not in store.url
