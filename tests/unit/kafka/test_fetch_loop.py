"""The fetch loop on virtual time, between stand-ins for the Kafka consumer, which holds the logs, and for partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError as AiokafkaError
from aiokafka.errors import OffsetOutOfRangeError

from aiokcc.core.limit import Limit
from aiokcc.core.partitions import Partition
from aiokcc.errors import KafkaError, RecordError, UsageError
from aiokcc.kafka.fetch_loop import FetchLoop
from tests.virtual import settle

BATCH = 3


def tp(number: int) -> TopicPartition:
    return TopicPartition("orders", number)


class FakeConsumer:
    """Stands in for aiokafka's consumer: it holds a log for each partition, and notes what it is asked."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, list[Any]] = {}
        self.positions: dict[TopicPartition, int] = {}
        self.asked: list[tuple[tuple[int, ...], int]] = []
        """The partitions of each fetch, and for how many milliseconds it waits."""
        self.assignments: list[list[int]] = []
        self.paused: set[int] = set()
        self.coordinator_asked = 0
        self.error: Exception | None = None
        self._assigned: set[TopicPartition] = set()
        self._written = asyncio.Event()

    def write(self, number: int, count: int = 1) -> None:
        log = self.logs.setdefault(tp(number), [])
        log += [SimpleNamespace(topic="orders", partition=number, offset=len(log) + n) for n in range(count)]
        self._written.set()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._assigned = set(partitions)
        self.assignments.append(sorted(where.partition for where in self._assigned))
        self.positions.clear()
        self.paused.clear()

    def assignment(self) -> set[TopicPartition]:
        return self._assigned

    def seek(self, where: TopicPartition, offset: int) -> None:
        self.positions[where] = offset

    def pause(self, where: TopicPartition) -> None:
        assert where in self._assigned
        self.paused.add(where.partition)

    async def position(self, where: TopicPartition) -> int:
        return self.positions[where]

    async def committed(self, where: TopicPartition) -> None:
        self.coordinator_asked += 1

    async def getmany(self, *wanted: TopicPartition, timeout_ms: int, max_records: int) -> dict[Any, list[Any]]:
        self.asked.append((tuple(where.partition for where in wanted), timeout_ms))
        if self.error is not None:
            raise self.error
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                while timeout_ms and not self._take(wanted, 1, keep=True):
                    self._written.clear()
                    await self._written.wait()
        return self._take(wanted, max_records)

    def _take(self, wanted: Iterable[TopicPartition], most: int, *, keep: bool = False) -> dict[Any, list[Any]]:
        found: dict[TopicPartition, list[Any]] = {}
        for where in wanted:
            start = self.positions[where]
            if (records := self.logs.get(where, [])[start : start + most]) and where.partition not in self.paused:
                found[where] = records
                most -= len(records)
                if not keep:
                    self.positions[where] += len(records)
        return found


class FakeCluster:
    """Answers questions about the ends of the logs and about the topics."""

    def __init__(self, consumer: FakeConsumer) -> None:
        self._consumer = consumer
        self.asked: list[list[int]] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.error: Exception | None = None
        self.topics_asked: list[tuple[float, set[str]]] = []
        self.topics_error: Exception | None = None

    async def ask(self, question: Awaitable[Any], what: str) -> Any:
        return await question

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        wanted = list(partitions)
        self.asked.append([p.number for p in wanted])
        ends = {p: len(self._consumer.logs.get(TopicPartition(*p), [])) for p in wanted}
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return ends

    async def partitions(self, topics: set[str]) -> None:
        self.topics_asked.append((asyncio.get_running_loop().time(), topics))
        if self.topics_error is not None:
            raise self.topics_error


class FakePartition:
    """Stands in for a partition consumer. It wants records until it has some."""

    def __init__(self, loop: FetchLoop, number: int, *, position: int = 0, end: int | None = None) -> None:
        self._loop = loop
        self.partition = Partition("orders", number)
        self.tp = tp(number)
        self.position = position
        self.end = end
        self.waits = True
        self.wants_log_end = False
        self.offsets: list[int] = []
        self.log_ends: list[tuple[int, Limit, int]] = []

    @property
    def complete(self) -> bool:
        return self.end is not None and self.position >= self.end

    @property
    def wants_records(self) -> bool:
        return self.waits and not self.complete

    def add_records(self, records: list[Any]) -> None:
        self.offsets += [record.offset for record in records]
        self.position = records[-1].offset + 1
        self.waits = False

    def move_to(self, position: int) -> None:
        self.position = position

    def note_log_end(self, offset: int, as_of: Any, asked_at: int) -> None:
        self.log_ends.append((offset, as_of, asked_at))
        self.wants_log_end = False

    def want(self) -> None:
        """Use up the records, and want more."""
        self.waits = True
        self._loop.wake()

    def want_log_end(self) -> None:
        self.wants_log_end = True
        self.want()


class Setup:
    """A fetch loop between the stand-ins."""

    def __init__(self, *, assigns: bool = True) -> None:
        self.kafka = FakeConsumer()
        self.cluster = FakeCluster(self.kafka)
        self.now = 0
        self.progress = SimpleNamespace(limit=Limit((1000,)))
        options = SimpleNamespace(grows=False, managed=None)
        self.member = SimpleNamespace(progress=self.progress, clock=lambda: self.now, options=options)
        consumer: Any = self.kafka
        cluster: Any = self.cluster
        member: Any = self.member
        self.loop = FetchLoop(consumer, cluster, member, assigns=assigns, fast=True, fetch_ahead=False, batch=BATCH)

    def partition(self, number: int, *, position: int = 0, end: int | None = None) -> FakePartition:
        return FakePartition(self.loop, number, position=position, end=end)

    def add(self, *partitions: FakePartition) -> None:
        consumers: Any = {partition.partition: partition for partition in partitions}
        self.loop.add(consumers)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        """Run the loop. An error of the loop is raised at the end of the block."""
        task = asyncio.create_task(self.loop.run())
        await settle()
        try:
            yield task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
async def setup(monkeypatch: pytest.MonkeyPatch) -> Setup:
    monkeypatch.setattr("aiokcc.kafka.fetch_loop.monotonic", asyncio.get_running_loop().time)
    return Setup()


class TestWhatIsFetched:
    async def test_only_partitions_that_want_records_are_fetched(self, setup: Setup) -> None:
        at_the_gate, hungry = setup.partition(0), setup.partition(1)
        at_the_gate.waits = False
        setup.add(at_the_gate, hungry)
        setup.kafka.write(0)
        setup.kafka.write(1)
        async with setup.running():
            assert setup.kafka.asked == [((1,), 100)]
        assert (at_the_gate.offsets, hungry.offsets) == ([], [0])

    async def test_nothing_is_asked_while_no_partition_wants_records(self, setup: Setup) -> None:
        partition = setup.partition(0)
        partition.waits = False
        setup.add(partition)
        async with setup.running():
            await asyncio.sleep(60)
            assert setup.kafka.asked == []
            assert setup.cluster.asked == []

    async def test_a_partition_gets_one_list_and_the_next_when_it_has_used_that_up(self, setup: Setup) -> None:
        partition = setup.partition(0)
        setup.add(partition)
        setup.kafka.write(0, 2 * BATCH)
        async with setup.running():
            assert partition.offsets == [0, 1, 2]
            await asyncio.sleep(60)
            assert partition.offsets == [0, 1, 2], "nothing more is held for a partition that waits"
            partition.want()
            await settle()
        assert partition.offsets == [0, 1, 2, 3, 4, 5]

    async def test_records_that_come_while_a_fetch_waits_are_handed_over_at_once(self, setup: Setup) -> None:
        partition = setup.partition(0)
        setup.add(partition)
        async with setup.running():
            await asyncio.sleep(0.05)
            setup.kafka.write(0)
            await settle()
            assert partition.offsets == [0]

    async def test_a_partition_that_begins_to_want_records_does_not_wait_for_the_running_fetch(
        self, setup: Setup
    ) -> None:
        first, second = setup.partition(0), setup.partition(1)
        second.waits = False
        setup.add(first, second)
        setup.kafka.write(1)
        async with setup.running():
            await asyncio.sleep(0.01)
            second.want()
            await settle()
            assert setup.kafka.asked[:2] == [((0,), 100), ((0, 1), 100)]
        assert second.offsets == [0]

    async def test_a_wake_while_the_loop_is_busy_is_not_lost(self, setup: Setup) -> None:
        first, second = setup.partition(0), setup.partition(1)
        second.waits = False
        setup.add(first, second)
        setup.kafka.write(1)
        first.wants_log_end = True
        setup.cluster.answers.clear()
        async with setup.running():
            second.want()
            first.waits = False
            setup.cluster.answers.set()
            await settle()
        assert second.offsets == [0]

    async def test_other_tasks_run_while_records_are_always_there(self, setup: Setup) -> None:
        """With records at hand getmany never yields."""
        partition = setup.partition(0)
        partition.wants_log_end = True
        setup.add(partition)
        setup.kafka.write(0, 30)

        seen: list[int] = []

        def add_records(records: list[Any]) -> None:
            partition.offsets += [record.offset for record in records]
            asyncio.get_running_loop().call_soon(lambda: seen.append(len(partition.offsets)))

        partition.add_records = add_records
        async with setup.running():
            pass
        assert seen[:3] == [3, 6, 9]


class TestPositions:
    async def test_partitions_that_come_later_do_not_move_the_others(self, setup: Setup) -> None:
        """An assignment makes aiokafka forget all positions."""
        first = setup.partition(0, position=5)
        setup.add(first)
        assert setup.kafka.positions == {tp(0): 5}
        first.position = 7
        setup.add(setup.partition(1, position=3))
        assert setup.kafka.assignments == [[0], [0, 1]]
        assert setup.kafka.positions == {tp(0): 7, tp(1): 3}

    async def test_where_kafka_assigns_only_the_new_partitions_are_moved(self) -> None:
        setup = Setup(assigns=False)
        setup.add(setup.partition(0, position=5))
        setup.kafka.positions[tp(0)] = 9
        setup.add(setup.partition(1, position=3))
        assert setup.kafka.assignments == []
        assert setup.kafka.positions == {tp(0): 9, tp(1): 3}

    async def test_a_partition_that_is_complete_from_the_start_is_paused(self, setup: Setup) -> None:
        setup.add(setup.partition(0, position=4, end=4), setup.partition(1, position=3, end=4))
        assert setup.kafka.paused == {0}

    async def test_a_partition_is_paused_when_it_was_fetched_up_to_the_end_of_the_run(self, setup: Setup) -> None:
        first, second = setup.partition(0, end=2), setup.partition(1, end=9)
        setup.add(first, second)
        setup.kafka.write(0, 2)
        setup.kafka.write(1, 2)
        async with setup.running():
            second.want()
            await settle()
            assert (first.offsets, second.offsets) == ([0, 1], [0, 1])
        assert setup.kafka.paused == {0}

    async def test_a_partition_that_kafka_has_taken_away_is_not_paused(self) -> None:
        """For the aiokafka consumer this is an error, as for any partition that is not assigned."""
        setup = Setup(assigns=False)
        setup.add(setup.partition(0, position=4, end=4))
        assert setup.kafka.paused == set()


class TestFetchNow:
    async def fetch_now(self, setup: Setup, partition: FakePartition) -> bool:
        consumer: Any = partition
        return await setup.loop.fetch_now(consumer)

    async def test_fetched_records_are_handed_over_without_waiting(self, setup: Setup) -> None:
        partition = setup.partition(0, end=3)
        setup.add(partition)
        assert not await self.fetch_now(setup, partition)
        setup.kafka.write(0, 3)
        assert await self.fetch_now(setup, partition)
        assert partition.offsets == [0, 1, 2]
        assert setup.kafka.asked == [((0,), 0)] * 2
        assert setup.kafka.paused == {0}

    async def test_where_kafka_assigns_the_loop_fetches(self) -> None:
        """There getmany waits for the end of a rebalance, and the rebalance may wait for this partition."""
        setup = Setup(assigns=False)
        partition = setup.partition(0)
        setup.add(partition)
        setup.kafka.write(0)
        assert not await self.fetch_now(setup, partition)
        assert setup.kafka.asked == []

    async def test_a_consumer_that_was_replaced_gets_nothing(self, setup: Setup) -> None:
        before, now = setup.partition(0), setup.partition(0)
        setup.add(before)
        setup.add(now)
        setup.kafka.write(0)
        assert not await self.fetch_now(setup, before)
        assert setup.kafka.positions == {tp(0): 0}, "the record is there for the other"

    async def test_other_tasks_run_between_lists(self, setup: Setup) -> None:
        """With records at hand neither getmany nor a plain handler ever yields."""
        partition = setup.partition(0)
        setup.add(partition)
        setup.kafka.write(0, 1200)
        ran: list[int] = []
        asyncio.get_running_loop().call_soon(lambda: ran.append(len(partition.offsets)))
        while await self.fetch_now(setup, partition):
            pass
        assert ran
        assert ran[0] <= 500 + BATCH


class TestLogEnds:
    async def test_a_partition_that_wants_the_end_of_its_log_gets_it(self, setup: Setup) -> None:
        partition = setup.partition(0)
        partition.wants_log_end = True
        setup.add(partition)
        setup.now = 77
        async with setup.running():
            assert setup.kafka.asked[0] == ((0,), 0), "it does not wait for records first"
            assert partition.log_ends == [(0, setup.progress.limit, 77)]

    async def test_the_end_holds_under_the_limit_before_the_fetch(self, setup: Setup) -> None:
        """A record may have come after the fetch and before the limit moved."""
        partition = setup.partition(0)
        partition.wants_log_end = True
        setup.add(partition)
        setup.cluster.answers.clear()
        before, getmany = setup.progress.limit, setup.kafka.getmany

        async def limit_moves(*wanted: TopicPartition, **how: Any) -> dict[Any, list[Any]]:
            found = await getmany(*wanted, **how)
            setup.progress.limit = Limit((2000,))
            return found

        setup.kafka.getmany = limit_moves
        async with setup.running():
            setup.now = 5
            setup.cluster.answers.set()
            await settle()
            assert partition.log_ends == [(0, before, 0)], "and the clock shows the time of the question"

    async def test_it_is_not_looked_up_for_a_partition_that_got_records_or_does_not_ask(self, setup: Setup) -> None:
        first, second = setup.partition(0), setup.partition(1)
        first.wants_log_end = True
        setup.add(first, second)
        setup.kafka.write(0)
        async with setup.running():
            assert first.offsets == [0]
            await asyncio.sleep(1)
        assert setup.cluster.asked == []

    async def test_it_is_not_looked_up_while_full_lists_come(self, setup: Setup) -> None:
        """The next fetch may bring records for the partition that got none."""
        first, second = setup.partition(0), setup.partition(1)
        second.wants_log_end = True
        setup.add(first, second)
        setup.kafka.write(0, BATCH)
        setup.kafka.write(1)
        async with setup.running():
            pass
        assert second.offsets == [0]
        assert setup.cluster.asked == []

    async def test_a_partition_follows_the_consumer_past_offsets_without_records(self, setup: Setup) -> None:
        """At the end of a log there may be markers of transactions."""
        partition = setup.partition(0, end=5)
        partition.wants_log_end = True
        setup.add(partition)
        setup.kafka.positions[tp(0)] = 5
        async with setup.running():
            pass
        assert partition.position == 5
        assert setup.kafka.paused == {0}
        assert setup.cluster.asked == [], "it is complete: the end of its log does not matter"

    async def test_records_that_were_taken_meanwhile_are_not_skipped(self, setup: Setup) -> None:
        """A partition may take fetched records while the loop asks for the position of another."""
        partition = setup.partition(0)
        setup.add(partition)
        position = setup.kafka.position

        async def taken(where: TopicPartition) -> int:
            partition.waits = False
            return await position(where) + 50

        setup.kafka.position = taken
        async with setup.running():
            await asyncio.sleep(1)
        assert partition.position == 0

    async def test_no_partition_is_at_the_end_while_the_broker_does_not_answer(
        self, setup: Setup, caplog: pytest.LogCaptureFixture
    ) -> None:
        partition = setup.partition(0)
        partition.wants_log_end = True
        setup.add(partition)
        setup.cluster.error = KafkaError("no answer")
        with caplog.at_level(logging.INFO):
            async with setup.running():
                assert len(setup.cluster.asked) == 1
                await asyncio.sleep(0.25)
                assert len(setup.cluster.asked) == 3, "it asks again after 0.1 s"
                assert partition.log_ends == []
                setup.cluster.error = None
                await asyncio.sleep(0.1)
                assert len(partition.log_ends) == 1
        assert [record.getMessage() for record in caplog.records] == [
            "no answer; no partition counts as idle until it answers",
            "Kafka answers again",
        ], "an outage is logged once, however often it asks"

    async def test_a_partition_that_was_removed_meanwhile_is_not_told(self, setup: Setup) -> None:
        partition = setup.partition(0)
        partition.wants_log_end = True
        setup.add(partition)
        setup.cluster.answers.clear()
        async with setup.running():
            setup.loop.remove([partition.partition])
            setup.cluster.answers.set()
            await settle()
        assert partition.log_ends == []

    async def test_a_partition_that_kafka_has_taken_away_is_not_asked_for(self) -> None:
        """It is an error if aiokafka is asked for the position of a partition that is not assigned."""
        setup = Setup(assigns=False)
        partition = setup.partition(0)
        partition.wants_log_end = True
        setup.add(partition)
        del setup.kafka.positions[tp(0)]
        setup.kafka.logs.clear()

        async def getmany(*_: TopicPartition, timeout_ms: int, max_records: int) -> dict[Any, list[Any]]:
            await asyncio.sleep(1)
            return {}

        setup.kafka.getmany = getmany
        async with setup.running() as task:
            await asyncio.sleep(2)
            assert not task.done()
        assert setup.cluster.asked == []


class TestErrors:
    async def fetched(self, setup: Setup, error: Exception) -> None:
        setup.add(setup.partition(0))
        setup.kafka.error = error
        async with setup.running() as task:
            await task

    async def test_records_that_were_deleted_are_named(self, setup: Setup) -> None:
        with pytest.raises(KafkaError, match=r"deleted under the replay: orders\.0 at offset 4; nothing was skipped"):
            await self.fetched(setup, OffsetOutOfRangeError({tp(0): 4}))

    async def test_an_error_of_aiokafka_is_raised_as_ours(self, setup: Setup) -> None:
        with pytest.raises(KafkaError, match="could not fetch from Kafka: .*broken"):
            await self.fetched(setup, AiokafkaError("broken"))

    async def test_a_deserializer_that_raises_is_told_with_its_record(self, setup: Setup) -> None:
        setup.add(setup.partition(0))

        def unpack(tp: TopicPartition, record: Any) -> None:
            raise ValueError(f"no number: {record.value}")

        async def getmany(*_: TopicPartition, timeout_ms: int, max_records: int) -> dict[Any, list[Any]]:
            unpack(tp(0), SimpleNamespace(offset=9, value="x"))
            return {}

        setup.kafka.getmany = getmany
        with pytest.raises(RecordError, match="a deserializer raised ValueError") as caught:
            await setup.loop.run()
        assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("orders", 0, 9)

    async def test_after_five_silent_seconds_it_asks_whether_the_topics_exist(self, setup: Setup) -> None:
        partition = setup.partition(0)
        setup.add(partition)
        began = asyncio.get_running_loop().time()
        async with setup.running():
            await asyncio.sleep(4)
            setup.kafka.write(0)
            await settle()
            partition.want()
            await asyncio.sleep(4.9)
            assert setup.cluster.topics_asked == [], "the record ended the silence"
            await asyncio.sleep(5.4)
        assert [(round(at - began), topics) for at, topics in setup.cluster.topics_asked] == [
            (9, {"orders"}),
            (14, {"orders"}),
        ]

    async def test_records_that_a_partition_takes_itself_end_the_silence_too(self, setup: Setup) -> None:
        taking, silent = setup.partition(0), setup.partition(1)
        taking.waits = False
        setup.add(taking, silent)
        consumer: Any = taking
        async with setup.running():
            for _ in range(5):
                await asyncio.sleep(4)
                setup.kafka.write(0)
                assert await setup.loop.fetch_now(consumer)
        assert setup.cluster.topics_asked == []

    @pytest.mark.parametrize("group", [None, object()], ids=["fixed", "managed"])
    async def test_a_topic_that_was_deleted_is_an_error(self, setup: Setup, group: object) -> None:
        setup.add(setup.partition(0))
        setup.member.group = group
        setup.cluster.topics_error = UsageError("Kafka has no topic 'orders'")
        with pytest.raises(KafkaError, match="a topic was deleted under the replay: Kafka has no topic"):
            async with setup.running() as task:
                await task

    async def test_in_a_managed_group_that_grows_the_leader_removes_it(
        self, setup: Setup, caplog: pytest.LogCaptureFixture
    ) -> None:
        setup.add(setup.partition(0))
        setup.cluster.topics_error = UsageError("Kafka has no topic 'orders'")
        setup.member.options.grows, setup.member.options.managed = True, object()
        with caplog.at_level(logging.WARNING):
            async with setup.running() as task:
                await asyncio.sleep(6)
                assert not task.done()
        assert "the leader takes it out of the set" in caplog.text

    async def test_a_broker_that_cannot_tell_is_asked_again(
        self, setup: Setup, caplog: pytest.LogCaptureFixture
    ) -> None:
        setup.add(setup.partition(0))
        setup.cluster.topics_error = KafkaError("no broker there")
        with caplog.at_level(logging.WARNING):
            async with setup.running() as task:
                await asyncio.sleep(11)
                assert not task.done()
        assert len(setup.cluster.topics_asked) == 2
        assert [record.getMessage() for record in caplog.records] == ["no broker there; waiting until it answers"]


class TestRemove:
    async def test_a_partition_that_was_removed_is_not_fetched(self, setup: Setup) -> None:
        first, second = setup.partition(0), setup.partition(1)
        setup.add(first, second)
        async with setup.running():
            assert setup.kafka.asked == [((0, 1), 100)]
            setup.loop.remove([first.partition])
            await settle()
            assert setup.kafka.asked[-1] == ((1,), 100)

    async def test_records_that_came_for_it_are_dropped(self, setup: Setup) -> None:
        partition = setup.partition(0)
        setup.add(partition)
        setup.kafka.write(0)
        getmany = setup.kafka.getmany

        async def revoked_meanwhile(*wanted: TopicPartition, **how: Any) -> dict[Any, list[Any]]:
            found = await getmany(*wanted, **how)
            setup.loop.remove([partition.partition])
            return found

        setup.kafka.getmany = revoked_meanwhile
        async with setup.running() as task:
            assert not task.done()
        assert partition.offsets == []


class TestCoordinator:
    async def test_the_coordinator_is_looked_up_once(self, setup: Setup) -> None:
        await setup.loop.find_coordinator()
        assert setup.kafka.coordinator_asked == 0, "aiokafka looks for it only when it has partitions"
        setup.add(setup.partition(0))
        await setup.loop.find_coordinator()
        setup.add(setup.partition(1))
        await setup.loop.find_coordinator()
        assert setup.kafka.coordinator_asked == 1

    async def test_a_coordinator_that_is_not_found_in_time_does_not_end_the_replay(self, setup: Setup) -> None:
        setup.add(setup.partition(0))

        async def ask(question: Any, what: str) -> None:
            question.close()
            raise KafkaError("no answer within 1 s")

        setup.cluster.ask = ask
        await setup.loop.find_coordinator()
        assert setup.kafka.coordinator_asked == 0
