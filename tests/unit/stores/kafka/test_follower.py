"""The follower on a log in memory: what it does after an interruption, and what counts as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from aiokcc.stores import Create
from aiokcc.stores.kafka import follower as module
from aiokcc.stores.kafka.client import LogEntry, LogError, LogSlice, OutOfRangeError
from aiokcc.stores.kafka.follower import Follower, LogChangedError, make_genesis
from aiokcc.stores.kafka.history import LogHistory
from aiokcc.stores.kafka.records import Kind
from tests.kafka_log import Client, Log


class Broker:
    """Stands for `LogClient`: it answers from a log in memory, or as the test says.

    It can answer as a broker that is no longer the leader does, which a real one does for some milliseconds only.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.epochs: dict[int, int] = {}
        """The epoch from which on records were appended, by their offsets."""
        self.problems: list[LogError] = []
        """Each of the next reads fails with one of these."""
        self.high_watermark: int | None = None
        """If it is set, the broker tells no records from there on."""
        self.segment_end: int | None = None
        """If it is set, a read from before this offset is answered up to there: a broker reads one file at a time."""
        self.reads = 0
        self.gate = asyncio.Event()
        """While it is not set, the process is frozen before it sends its next read."""
        self.gate.set()
        self.waiting = asyncio.Event()
        """Set while a read waits for records, or for the gate."""

    def _epoch(self, offset: int) -> int:
        return max((epoch for begin, epoch in self.epochs.items() if begin <= offset), default=0)

    async def fetch(self, offset: int, wait: float) -> LogSlice:
        await asyncio.sleep(0)
        if not self.gate.is_set():
            self.waiting.set()
            await self.gate.wait()
        self.reads += 1
        if self.problems:
            raise self.problems.pop(0)
        log = self.log
        if not log.start <= offset <= log.end:
            raise OutOfRangeError("OffsetOutOfRangeError")
        if log.end == offset:
            self.waiting.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    while log.end == offset and self.gate.is_set():  # noqa: ASYNC110 - the log is a plain list
                        await asyncio.sleep(0.001)
        end = log.end if self.high_watermark is None else self.high_watermark
        is_before = self.segment_end is not None and offset < self.segment_end
        last = self.segment_end if is_before and self.segment_end is not None else end
        found = [
            LogEntry(at, 0, raw, self._epoch(at)) for at, raw in sorted(log.entries.items()) if offset <= at < last
        ]
        return LogSlice(found, log.start, end)

    async def find_range(self) -> tuple[int, int]:
        return self.log.start, self.log.end

    async def append(self, values: list[bytes]) -> None:
        for value in values:
            self.log.append(value)

    async def refresh(self) -> None:
        pass

    async def reconnect(self) -> None:
        pass


class Following:
    """A follower that runs, and what it has told."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.contacts: list[bool] = []
        self.ends: list[float] = []
        self.follower = Follower(
            broker,  # type: ignore[arg-type]
            "topic",
            lambda applied: None,
            self.ends.append,
            self.contacts.append,
            lambda: False,
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - the follower tells of records, not of positions
                await asyncio.sleep(0.001)

    async def reach_end(self) -> None:
        await self.until(lambda: self.follower.machine.position == self.broker.log.end)


@asynccontextmanager
async def following(
    broker: Broker, history: LogHistory | None = None
) -> AsyncIterator[tuple[Following, asyncio.Task[None]]]:
    found = Following(broker)
    await found.follower.catch_up(make_genesis(bytes(8), "/test"), history or LogHistory())
    task = asyncio.create_task(found.follower.follow())
    try:
        yield found, task
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture(autouse=True)
def look_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.001)


async def freeze(broker: Broker) -> None:
    """Return once the process is frozen before its next read: none of its reads will fail."""
    broker.waiting.clear()
    broker.gate.clear()
    async with asyncio.timeout(10):
        await broker.waiting.wait()


class TestSameTail:
    """A log that was cut or made again, and has grown past the place that was read, is not followed."""

    async def test_a_process_that_was_frozen_between_two_reads_notices_that_records_were_lost(self) -> None:
        log = Log.new()
        writer = Client(log).open()
        writer.do(Create("a"))
        broker = Broker(log)
        async with following(broker) as (found, task):
            await found.reach_end()
            await freeze(broker)
            log.truncate(log.end - 1)
            broker.epochs[log.end] = 1  # without an election nothing is lost
            again = Client(log).open()
            again.do(Create("b"))
            broker.gate.set()
            with pytest.raises(LogChangedError, match="Kafka has lost acknowledged records"):
                await asyncio.wait_for(task, 10)
            assert "/root/b" not in found.follower.machine.tree.nodes
        assert found.contacts == [], "none of its reads has failed"

    async def test_a_process_that_was_frozen_between_two_reads_notices_another_log(self) -> None:
        """The topic was deleted and made again: its epochs begin anew, so only the genesis tells."""
        log = Log.new()
        Client(log).open()
        broker = Broker(log)
        async with following(broker) as (found, task):
            await found.reach_end()
            position = found.follower.machine.position
            await freeze(broker)
            broker.log = again = Log.new()
            other = Client(again).open()
            for name in "abc":
                other.do(Create(name))
            assert again.end > position
            broker.gate.set()
            with pytest.raises(LogChangedError, match="was deleted and made again"):
                await asyncio.wait_for(task, 10)

    async def test_a_leader_that_was_elected_cleanly_is_followed(self) -> None:
        log = Log.new()
        writer = Client(log).open()
        broker = Broker(log)
        async with following(broker) as (found, _):
            await found.reach_end()
            for epoch in (1, 2, 3):
                broker.epochs[log.end] = epoch
                writer.do(Create(f"n{epoch}"))
                await found.reach_end()
                assert f"/root/n{epoch}" in found.follower.machine.tree.nodes
            before = broker.reads
            for number in range(20):
                writer.do(Create(f"m{number}"))
                await found.reach_end()
            assert broker.reads - before <= 22, "the tail is read again once for each leader, and not for each record"

    async def test_a_leader_whose_first_record_begins_a_new_file_is_followed(self) -> None:
        """The last record is in another file of the broker, so the answer that shows it does not show the new ones."""
        log = Log.new()
        writer = Client(log).open()
        broker = Broker(log)
        async with following(broker) as (found, task):
            await found.reach_end()
            for epoch in (1, 2):
                broker.epochs[log.end] = epoch
                broker.segment_end = log.end
                writer.do(Create(f"n{epoch}"))
                await found.reach_end()
            assert found.contacts == []
            assert not task.done()

    async def test_what_changes_again_after_the_comparison_is_compared_again(self) -> None:
        log = Log.new()
        writer = Client(log).open()
        writer.do(Create("a"))
        broker = Broker(log)
        async with following(broker) as (found, task):
            await found.reach_end()
            end, fetch, offsets = log.end, broker.fetch, list[int]()

            async def lose_after_the_comparison(offset: int, wait: float) -> LogSlice:
                offsets.append(offset)
                answer = await fetch(offset, wait)
                if offset < end:
                    log.truncate(end - 1)
                    broker.epochs[log.end] = 2
                    for _ in range(3):
                        log.append(writer.seal(Kind.BEAT))
                return answer

            broker.fetch = lose_after_the_comparison  # type: ignore[method-assign]
            broker.epochs[end] = 1
            broker.segment_end = end
            writer.do(Create("b"))
            with pytest.raises(LogChangedError, match="Kafka has lost acknowledged records"):
                await asyncio.wait_for(task, 10)
            assert offsets.count(end - 1) == 2

    async def test_after_a_read_that_failed_the_tail_is_compared(self) -> None:
        log = Log.new()
        writer = Client(log).open()
        broker = Broker(log)
        async with following(broker) as (found, task):
            await found.reach_end()
            await freeze(broker)
            log.truncate(log.end - 1)
            log.append(writer.seal(Kind.BEAT))
            log.append(writer.seal(Kind.BEAT))
            broker.problems = [LogError("the connection broke")]
            broker.gate.set()
            with pytest.raises(LogChangedError, match="Kafka has lost acknowledged records"):
                await asyncio.wait_for(task, 10)
        assert found.contacts == [False]


async def test_a_problem_that_is_over_is_not_told_as_the_reason_of_a_later_one() -> None:
    log = Log.new()
    writer = Client(log).open()
    broker = Broker(log)
    async with following(broker) as (found, _):
        await found.reach_end()
        broker.problems = [LogError("the connection broke")]
        await found.until(lambda: found.contacts == [False, True])
        writer.do(Create("a"))
        await found.reach_end()
        assert found.follower.last_problem == ""


class TestNextSession:
    """A process whose session has ended begins to read anew; it knows the log up to where the session before had read."""

    @staticmethod
    async def read_once(log: Log) -> LogHistory:
        history = LogHistory()
        async with following(Broker(log)) as (found, _):
            await found.reach_end()
            history.note(found.follower.machine)
        return history

    async def test_the_same_log_is_followed(self) -> None:
        log = Log.new()
        writer = Client(log).open()
        history = await self.read_once(log)
        for name in "abc":
            writer.do(Create(name))
        async with following(Broker(log), history) as (found, _):
            await found.reach_end()
            assert "/root/c" in found.follower.machine.tree.nodes

    async def test_a_log_that_was_cut_and_has_grown_again_is_not(self) -> None:
        log = Log.new()
        writer = Client(log).open()
        writer.do(Create("a"))
        history = await self.read_once(log)
        log.truncate(log.end - 1)
        for name in "bcd":
            Client(log).open().do(Create(name))
        assert log.end > history.position
        with pytest.raises(
            LogChangedError, match="has other records before that now. Kafka has lost acknowledged records"
        ):
            async with following(Broker(log), history):
                pass

    async def test_a_log_that_was_made_again_is_not(self) -> None:
        history = await self.read_once(Log.new())
        again = Log.new()
        Client(again).open()
        with pytest.raises(LogChangedError, match="was deleted and made again"):
            async with following(Broker(again), history):
                pass


class TestOldLeader:
    """A broker that was the leader, and does not know yet that it no longer is, has a log that ends earlier."""

    async def test_its_answer_is_not_taken_for_a_loss(self) -> None:
        log = Log.new()
        writer = Client(log).open()
        broker = Broker(log)
        async with following(broker) as (found, task):
            await found.reach_end()
            broker.problems = [OutOfRangeError("by the old leader") for _ in range(module.LOOKS - 1)]
            writer.do(Create("a"))
            await found.reach_end()
            assert not task.done()
            assert found.contacts == [False, True], "meanwhile nothing was relied on"

    async def test_a_session_that_reads_from_it_is_not_in_contact(self) -> None:
        """It answers without an error, and tells an end before what was read: whoever is silent there may be alive."""
        log = Log.new()
        writer = Client(log).open()
        broker = Broker(log)
        async with following(broker) as (found, _):
            await found.reach_end()
            await freeze(broker)
            ends = len(found.ends)
            broker.high_watermark = log.end - 1
            broker.gate.set()
            await found.until(lambda: found.contacts == [False])
            await found.until(lambda: broker.reads > 5)
            assert len(found.ends) == ends, "no read has reached the end"
            broker.high_watermark = None
            writer.do(Create("a"))
            await found.reach_end()
            assert found.contacts == [False, True]

    async def test_a_log_that_stays_cut_is_named_after_some_looks(self) -> None:
        log = Log.new()
        Client(log).open()
        broker = Broker(log)
        async with following(broker) as (found, task):
            await found.reach_end()
            await freeze(broker)
            log.truncate(log.end - 2)
            before = broker.reads
            broker.gate.set()
            with pytest.raises(LogChangedError, match="Kafka has lost acknowledged records"):
                await asyncio.wait_for(task, 10)
        assert broker.reads - before >= module.LOOKS
