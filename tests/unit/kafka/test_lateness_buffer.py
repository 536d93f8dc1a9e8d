"""The lateness buffer alone: what it holds back, where it stands, and which offsets are done. Without Kafka."""

from __future__ import annotations

import random

from aiokcc.core.periods import MAX_TIMESTAMP
from aiokcc.kafka.lateness_buffer import LatenessBuffer

LATENESS = 10


def holding(*timestamps: int, position: int = 0) -> LatenessBuffer:
    """Return a buffer with records of these timestamps, at consecutive offsets from this position."""
    buffer = LatenessBuffer(LATENESS, position)
    for offset, ts in enumerate(timestamps, position):
        buffer.add(ts, offset, f"record {offset}")
    return buffer


class TestWatermark:
    def test_an_empty_buffer_stands_at_the_greatest_timestamp_less_the_bound(self) -> None:
        assert holding().oldest == MAX_TIMESTAMP
        assert holding().watermark(25) == 15

    def test_it_is_never_negative(self) -> None:
        assert holding().watermark(-1) == 0

    def test_a_held_record_keeps_it_back(self) -> None:
        buffer = holding(30, 12, 40)
        assert buffer.oldest == 12
        assert buffer.watermark(15) == 5
        assert buffer.watermark(40) == 12


class TestTakeBelow:
    def test_records_before_the_limit_come_in_the_order_of_the_log(self) -> None:
        buffer = holding(19, 25, 11, 20, 15)
        assert buffer.take_below(20) == [(19, 0, "record 0"), (11, 2, "record 2"), (15, 4, "record 4")]
        assert len(buffer) == 2
        assert buffer.oldest == 20

    def test_nothing_before_the_limit(self) -> None:
        buffer = holding(20)
        assert buffer.take_below(20) == []
        assert len(buffer) == 1


class TestOffsets:
    def test_the_first_held_record_is_the_next_to_process(self) -> None:
        assert holding(position=7).next_offset == holding(position=7).read_to == 7
        buffer = holding(20, 30, position=7)
        assert (buffer.next_offset, buffer.read_to) == (7, 9)

    def test_a_skipped_record_is_done_when_nothing_before_it_is_held(self) -> None:
        buffer = holding()
        buffer.skip(0)
        assert buffer.next_offset == buffer.read_to == 1
        buffer.add(20, 1, "held")
        buffer.skip(2)
        assert (buffer.next_offset, buffer.read_to) == (1, 3)

    def test_a_processed_record_behind_a_held_one_is_counted_when_that_one_is_done(self) -> None:
        buffer = holding(20, 11, 12, 30)
        for _, offset, _ in buffer.take_below(20):
            buffer.mark_processed(offset)
            assert buffer.next_offset == 0
        assert [offset for _, offset, _ in buffer.take_below(30)] == [0]
        assert buffer.next_offset == 0, "it was taken, and is not processed yet"
        buffer.mark_processed(0)
        assert buffer.next_offset == 3

    def test_any_order_of_timestamps_is_processed_once_and_completely(self) -> None:
        chance = random.Random(13)
        for _ in range(200):
            timestamps = [chance.randrange(100) for _ in range(chance.randrange(1, 30))]
            buffer, done = holding(*timestamps), set[int]()
            for limit in range(10, 101, 10):
                taken = buffer.take_below(limit)
                assert [offset for _, offset, _ in taken] == [
                    offset for offset, ts in enumerate(timestamps) if limit - 10 <= ts < limit
                ]
                for _, offset, _ in taken:
                    buffer.mark_processed(offset)
                    done.add(offset)
                    open_ones = set(range(len(timestamps))) - done
                    assert buffer.next_offset == min(open_ones, default=len(timestamps))
            assert len(buffer) == 0
            assert buffer.next_offset == buffer.read_to == len(timestamps)
