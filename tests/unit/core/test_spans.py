"""Two offsets for one boundary: what a partition that holds records back reports, and what the cut keeps of it."""

from __future__ import annotations

import pytest

from aiokcc.core.leader import Advance, Leader
from aiokcc.core.limit import Limit, Request
from aiokcc.core.marks import Mark, Span
from aiokcc.core.member_progress import MemberProgress
from aiokcc.core.partitions import Partition
from aiokcc.core.report import Cut, Report
from aiokcc.core.run import Settings
from aiokcc.errors import CorruptNodeError
from tests.unit.core.reports import report_of, shown

ORDERS = Partition("orders", 0)


def test_a_span_is_its_low_offset_and_says_both() -> None:
    span = Span.of(55, 60)
    assert int(span) == 55
    assert f"{span}" == str(span) == repr(span) == "55-60"
    assert isinstance(span, Span)
    assert span.high == 60


def test_a_span_equals_a_span_with_the_same_two_offsets_and_nothing_else() -> None:
    span, same = Span.of(55, 60), Span.of(55, 60)
    assert span == same
    assert not span != same  # noqa: SIM202 - int has a `!=` of its own
    assert hash(span) == hash(same)
    for other in (Span.of(55, 61), Span.of(54, 60), 55, 60, None, "55-60"):
        assert span != other
        assert other != span
        assert not span == other  # noqa: SIM201
    assert Mark(span) == Mark(same) != Mark(55)
    assert len({span, same, 55, Span.of(55, 61)}) == 3


def test_a_span_is_ordered_by_its_low_offset() -> None:
    assert 54 < Span.of(55, 60) < 56
    assert Span.of(55, 60) >= 55
    assert max(54, Span.of(55, 60)) == Span.of(55, 60)


def test_a_span_of_nothing_is_the_plain_offset() -> None:
    assert type(Span.of(55, 55)) is int


def test_a_span_the_wrong_way_round_is_refused() -> None:
    with pytest.raises(ValueError, match="60-55"):
        Span.of(60, 55)


def test_a_cut_keeps_both_offsets() -> None:
    cut = Cut(3, 0, 60_000, 1, {"w": {ORDERS: Mark(Span.of(55, 60)), Partition("orders", 1): Mark(9, finished=True)}})
    assert cut.encode() == b"3 0 60000 1\nw orders:0,1; 55-60,9!;"
    read = Cut.decode("cuts/3", cut.encode())
    assert read is not None
    mark = read.find(ORDERS)
    assert mark is not None
    assert isinstance(mark.offset, Span)
    assert (int(mark.offset), mark.offset.high) == (55, 60)
    assert type(read.marks["w"][Partition("orders", 1)].offset) is int


@pytest.mark.parametrize("body", [b"60-55;", b"?-5;", b"5-;", b"-5;", b"5-6-7;"])
def test_a_damaged_pair_is_a_corrupt_node(body: bytes) -> None:
    with pytest.raises(CorruptNodeError):
        Cut.decode("cuts/0", b"1 0 10 1\nw o:0; " + body)
    with pytest.raises(CorruptNodeError):
        Report.decode("progress/w", b"1 10 11\no:0;\n11;\n" + body)
    assert Report.decode("progress/w", b"1 10 11\no:0;\n11;\n5-6;") is not None


def test_a_report_carries_the_pair_to_the_cut() -> None:
    member_progress = MemberProgress()
    progress = member_progress.add(ORDERS)
    member_progress.claim([ORDERS])
    member_progress.generation = 2
    member_progress.see(Limit((60_000,)))
    assert not member_progress.approach(progress, 61_000, Span.of(55, 60))
    report = member_progress.report()
    assert report is not None
    assert shown(report) == {"orders.0": "61000@55-60"}
    again = Report.decode("progress/w", report.encode())
    assert again == report
    assert member_progress.positions() == {ORDERS: 55}, "what may be committed is the lower one"

    leader = Leader(Settings(frozenset([ORDERS]), 60_000), 2, Limit((60_000,)), 7, Request.every(60_000))
    leader.reports["w"] = again
    decision = leader.decide(now=10_000_000)
    assert isinstance(decision, Advance)
    assert decision.steps[0].cut == "8 0 60000 2\nw orders:0; 55-60;"


def test_a_pair_whose_upper_offset_moved_is_another_report() -> None:
    before = report_of(1, 60_000, {"orders.0": "61000@55-60"})
    assert report_of(1, 60_000, {"orders.0": "61000@55-61"}).supersedes(before)
