"""The feed of one partition alone: what it wants, what it drops, and when it has reached the end of the run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aiokcc.core.limit import Limit
from aiokcc.core.partitions import Partition
from aiokcc.kafka.partition_feed import PartitionFeed
from aiokcc.runtime.signal import Signal

LIMIT = Limit((1000,))


class Setup:
    """A feed at offset 5 whose consumer waits."""

    def __init__(self, end: int | None = None, until: int | None = None) -> None:
        self.signal = Signal()
        self.progress = SimpleNamespace(limit=LIMIT)
        gate: Any = SimpleNamespace(partition=Partition("orders", 0), signal=self.signal)
        member: Any = SimpleNamespace(progress=self.progress)
        self.feed = PartitionFeed(gate, member, 5, end, until)
        self.feed.waiting = True

    @property
    def woken(self) -> bool:
        """True if the consumer was woken since the last look."""
        woken = self.signal._is_set
        self.signal.clear()
        return woken


def records(*offsets: int) -> list[Any]:
    return [SimpleNamespace(offset=offset) for offset in offsets]


class TestRecords:
    def test_a_feed_wants_records_while_its_consumer_waits_and_it_has_none(self) -> None:
        setup = Setup(end=9)
        feed = setup.feed
        assert feed.wants_records
        feed.add_records(records(5, 6))
        assert setup.woken
        assert not feed.wants_records
        assert [record.offset for record in feed.take()] == [5, 6]
        assert (feed.position, feed.has_records) == (7, False)
        assert feed.wants_records
        feed.waiting = False
        assert not feed.wants_records

    def test_records_that_come_before_the_last_were_taken_follow_them(self) -> None:
        feed = Setup().feed
        feed.add_records(records(5))
        feed.add_records(records(6, 7))
        assert [record.offset for record in feed.take()] == [5, 6, 7]

    def test_a_consumer_that_does_not_wait_is_not_woken(self) -> None:
        setup = Setup()
        setup.feed.waiting = False
        setup.feed.add_records(records(5))
        assert not setup.woken

    def test_records_past_the_end_of_the_run_are_dropped(self) -> None:
        feed = Setup(end=7).feed
        feed.add_records(records(5, 6, 7, 8))
        assert [record.offset for record in feed.take()] == [5, 6]
        assert (feed.position, feed.complete, feed.wants_records) == (7, True, False)

    def test_offsets_without_a_record_are_passed_up_to_the_end_of_the_run(self) -> None:
        setup = Setup(end=9)
        setup.feed.move_to(7)
        assert setup.woken
        assert (setup.feed.position, setup.feed.complete) == (7, False)
        setup.feed.move_to(6)
        assert setup.feed.position == 7, "it does not go back"
        setup.feed.move_to(12)
        assert (setup.feed.position, setup.feed.complete) == (9, True)

    def test_records_that_are_held_are_not_passed(self) -> None:
        """The Kafka consumer stands past what it has handed out, and that may not be all that it has fetched."""
        setup = Setup()
        setup.feed.add_records(records(5))
        setup.feed.move_to(9)
        assert setup.feed.position == 6


class TestLogEnd:
    def test_the_end_is_looked_up_once_under_each_limit(self) -> None:
        setup = Setup()
        assert setup.feed.wants_log_end
        setup.feed.note_log_end(5, LIMIT, 0)
        assert setup.woken
        assert (setup.feed.end_seen, setup.feed.wants_log_end) == (LIMIT, False)
        setup.progress.limit = Limit((2000,))
        assert setup.feed.wants_log_end

    def test_it_is_not_looked_up_before_an_offset_that_the_log_is_known_to_reach(self) -> None:
        setup = Setup()
        setup.feed.note_log_end(7, LIMIT, 0)
        assert not setup.woken
        assert setup.feed.end_seen is None
        assert not setup.feed.wants_log_end
        setup.feed.move_to(7)
        assert setup.feed.wants_log_end
        assert not Setup(end=9).feed.wants_log_end

    def test_it_does_not_count_when_records_have_come_meanwhile(self) -> None:
        setup = Setup()
        setup.feed.add_records(records(5))
        setup.feed.note_log_end(6, LIMIT, 0)
        assert setup.feed.end_seen is None


class TestEndOfTheRun:
    """The run ends at the time 1000, and that lay in the future when it was founded."""

    @pytest.mark.parametrize(("asked_at", "complete"), [(999, False), (1000, True)])
    def test_it_is_reached_at_the_end_of_the_log_when_the_time_is_up(self, asked_at: int, complete: bool) -> None:
        """The time of the question decides: a record may have come between question and answer."""
        setup = Setup(until=1000)
        setup.feed.note_log_end(5, LIMIT, asked_at)
        assert setup.feed.complete is complete
        assert setup.feed.end == (5 if complete else None)

    def test_it_is_not_reached_while_the_log_holds_more(self) -> None:
        setup = Setup(until=1000)
        setup.feed.note_log_end(6, LIMIT, 2000)
        assert not setup.feed.complete

    def test_a_run_without_an_end_goes_on(self) -> None:
        setup = Setup()
        setup.feed.note_log_end(5, LIMIT, 10**15)
        assert not setup.feed.complete
