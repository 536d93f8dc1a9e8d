"""Lookahead in the core: several boundaries in one report, several cuts in one decision, and when it is time to report."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokcc.core.leader import Advance, Leader, Wait, blockers
from aiokcc.core.limit import END, Limit, Request
from aiokcc.core.marks import Mark, Marks
from aiokcc.core.member_progress import MemberProgress, ReportTime
from aiokcc.core.partition_progress import PartitionProgress, PartitionState
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import MAX_TIMESTAMP
from aiokcc.core.report import Crossing, Cut, Report
from aiokcc.core.report_builder import milestone_interval
from aiokcc.core.run import MOST_AT_ONCE, Settings
from aiokcc.errors import CorruptNodeError
from tests.unit.core.reports import report_of, shown
from tests.unit.naming import brief

P0, P1 = Partition("orders", 0), Partition("orders", 1)
NOW = 1_000_000


def chain(first: int, count: int, period: int = 10) -> Limit:
    """The number of open boundaries."""
    return Limit(tuple(range(first, first + count * period, period)))


def joined(*partitions: Partition, limit: Limit, gathers: int = 0) -> tuple[MemberProgress, list[PartitionProgress]]:
    """A member that holds the locks of these partitions and has read limit and generation."""
    member_progress = MemberProgress(gathers)
    progresses = [member_progress.add(p) for p in partitions]
    member_progress.see(limit)
    member_progress.generation = 3
    member_progress.claim(partitions)
    return member_progress, progresses


def read(member_progress: MemberProgress, progress: PartitionProgress, *stamps: int, first: int = 0) -> None:
    """Records come, with offsets from ``first`` on."""
    for offset, ts in enumerate(stamps, first):
        member_progress.approach(progress, ts, offset)


def reported(member_progress: MemberProgress) -> Report:
    """Returns the report of the member's progress, as other members decode it."""
    report = member_progress.report()
    assert report is not None
    again = Report.decode("/report", report.encode())
    assert again == report
    return again


# -- the report ---------------------------------------------------------------------------------------------------------


def test_a_report_has_all_boundaries_that_every_partition_has_crossed() -> None:
    member_progress, [a, b] = joined(P0, P1, limit=chain(10, 5))
    read(member_progress, a, 5, 12, 14, 25, 33, 41)
    read(member_progress, b, 11, 31, 38)
    report = reported(member_progress)
    assert shown(report) == {"orders.0": "12@1", "orders.1": "11@0"}
    assert report.further == (Crossing(20, 25, Marks("3,1;")), Crossing(30, 31, Marks("4,1;")))
    assert report.encode().splitlines()[4:] == [b"20 25 3,1;", b"30 31 4,1;"]


def test_a_finished_partition_has_crossed_all_later_boundaries() -> None:
    member_progress, [a, b] = joined(P0, P1, limit=chain(10, 3))
    read(member_progress, a, 12, 25, 33)
    read(member_progress, b, 11)
    member_progress.finish(b, 1)
    assert reported(member_progress).further == (Crossing(20, 25, Marks("1,1!;")), Crossing(30, 33, Marks("2,1!;")))
    member_progress.finish(a, 3)
    assert reported(member_progress).further == (Crossing(20, 25, Marks("1,1!;")), Crossing(30, 33, Marks("2,1!;")))


def test_all_have_finished() -> None:
    member_progress, [a] = joined(P0, limit=chain(10, 3))
    member_progress.finish(a, None)
    assert reported(member_progress).further == (Crossing(20, None, Marks("?!;")), Crossing(30, None, Marks("?!;")))


def test_idle_is_of_one_floor_only() -> None:
    limit = chain(10, 3)
    member_progress, [a, b] = joined(P0, P1, limit=limit)
    read(member_progress, a, 12, 25, 33)
    assert member_progress.idle(b, limit, 0)
    report = reported(member_progress)
    assert report.idle
    assert report.further == ()


def test_a_report_is_of_a_size_that_the_store_takes() -> None:
    limit = chain(10, 100)
    member_progress, [a] = joined(P0, limit=limit)
    read(member_progress, a, 2000)
    assert len(reported(member_progress).further) == MOST_AT_ONCE - 1
    many = [Partition("orders", n) for n in range(1500)]
    member_progress, progresses = joined(*many, limit=limit)
    for progress in progresses:
        read(member_progress, progress, 2000)
    assert len(reported(member_progress).further) == 2
    assert len(reported(member_progress).encode()) < 100_000


@pytest.mark.parametrize(
    "line",
    [
        "",
        "20",
        "20 25",
        "20 25 3,1; ",
        "20 25 3;",
        "20 25 3,1,4;",
        "20 25 3,x;",
        "20 25 3,-1;",
        "20 25 3,;",
        "20 25 3,1",  # truncated: it could have been 11
        "20 19 3,1;",
        "20 - 3,1!;",
        "20 - 3,1;",
        "10 25 3,1;",
        "9 25 3,1;",
        "x 25 3,1;",
        "20 x 3,1;",
        f"20 {MAX_TIMESTAMP + 1} 3,1;",
        "20 25 3,1;\n20 25 3,1;",
        "30 35 3,1;\n20 25 3,1;",
    ],
    ids=brief,
)
def test_an_invalid_boundary_is_corrupt(line: str) -> None:
    head = "3 10 11\norders:0,1;\n12,11;\n1,0;\n"
    assert Report.decode("/r", f"{head}20 25 3,1;".encode()) is not None
    with pytest.raises(CorruptNodeError, match="/r"):
        Report.decode("/r", f"{head}{line}".encode())


@pytest.mark.parametrize("state", ["idle", "running"])
def test_a_partition_that_is_not_past_the_floor_has_crossed_no_boundary(state: str) -> None:
    minimum = "running" if state == "running" else "11"
    with pytest.raises(CorruptNodeError):
        Report.decode("/r", f"3 10 {minimum}\norders:0,1;\n{state},11;\n0,0;\n20 25 3,1;".encode())


def test_the_crossing_of_a_floor_in_a_report() -> None:
    report = replace(report_of(3, 10, {"orders.0": "12@1"}), further=(Crossing(20, 35, Marks("3;")),))
    assert report.at(10) == Crossing(10, 12, Marks("1;"))
    assert report.at(20) == Crossing(20, 35, Marks("3;"))
    assert report.at(30) is None, "it tells of others"
    assert report.at(12) is None
    plain = report_of(3, 10, {"orders.0": "35@1"})
    assert plain.at(10) == plain.at(30) == plain.at(35) == Crossing(10, 35, Marks("1;")), "blocked behind them"
    assert plain.at(36) is None
    done = replace(report_of(3, 10, {"orders.0": "12@1"}), further=(Crossing(20, None, Marks("3!;")),))
    assert done.at(20) == done.at(90) == Crossing(20, None, Marks("3!;")), "it has finished, and stays so"


def test_it_is_not_written_again_for_boundaries_that_nobody_can_use_yet() -> None:
    member_progress, [a, b] = joined(P0, P1, limit=chain(10, 4))
    read(member_progress, a, 12, 25, 33)
    read(member_progress, b, 11, 21)
    written = reported(member_progress)
    read(member_progress, b, 35, first=2)
    assert len(reported(member_progress).further) == 2
    assert not reported(member_progress).supersedes(written), "one more boundary than anybody can use now"
    member_progress.see(chain(20, 4))
    assert not reported(member_progress).supersedes(written), "it tells of this floor"
    member_progress.see(chain(30, 4))
    assert reported(member_progress).supersedes(written), "of this one it does not"
    member_progress.generation = 4
    assert reported(member_progress).supersedes(written)


def test_it_is_written_again_when_a_partition_was_added_or_forgotten() -> None:
    member_progress, [a, b] = joined(P0, P1, limit=chain(10, 4))
    read(member_progress, a, 12, 25, 33)
    read(member_progress, b, 11, 21)
    written = reported(member_progress)
    member_progress.see(chain(20, 4))
    member_progress.forget(P1)
    assert reported(member_progress).supersedes(written)


def test_it_is_written_again_where_it_has_other_boundaries_only() -> None:
    """Blocked far behind the floor, which others have brought to a boundary that was not told."""
    member_progress, [a] = joined(P0, limit=chain(10, 4), gathers=20)
    read(member_progress, a, 95)
    written = reported(member_progress)
    assert [c.boundary for c in written.further] == [20, 30, 40]
    member_progress.see(chain(40, 4))
    assert not reported(member_progress).supersedes(written)
    member_progress.see(chain(50, 4))
    assert written.at(50) is None
    assert reported(member_progress).supersedes(written), "although its entries are the same"


def test_while_a_lock_is_missing_the_boundaries_of_the_other_partitions_are_reported() -> None:
    member_progress, [a, b] = joined(P0, P1, limit=chain(10, 4))
    read(member_progress, a, 12, 25)
    read(member_progress, b, 11, 21)
    member_progress.lose()
    member_progress.generation = 4
    member_progress.claim([P0])
    report = member_progress.report()
    assert report is not None
    assert shown(report) == {"orders.0": "12@0"}
    assert report.further == (Crossing(20, 25, Marks("1;")),)
    assert Report.decode("/r", report.encode()) == report


# -- when it is time ----------------------------------------------------------------------------------------------------


def test_half_of_what_is_open_lies_between_two_milestones() -> None:
    assert [milestone_interval(10, k) for k in (0, 1, 2, 3, 7, 8, 15, 1000)] == [0, 10, 10, 20, 40, 40, 80, 80]


def test_it_is_time_when_all_have_crossed_the_milestone() -> None:
    member_progress, [a, b] = joined(P0, P1, limit=chain(10, 8), gathers=40)
    read(member_progress, a, 12, 25, 33, 41, 55)
    assert not member_progress.due
    read(member_progress, b, 11)
    assert member_progress.ready
    assert not member_progress.due
    read(member_progress, b, 39, first=1)
    assert not member_progress.due
    read(member_progress, b, 44, first=2)
    assert member_progress.due
    report = reported(member_progress)
    assert [c.boundary for c in report.further] == [20, 30, 40]
    read(member_progress, b, 51, first=3)
    assert [c.boundary for c in reported(member_progress).further] == [20, 30, 40], "all reports end at milestones"
    member_progress.see(chain(50, 8))
    assert member_progress.ready
    assert not member_progress.due, "the next is 80"


def test_the_milestone_may_be_the_floor() -> None:
    member_progress, [a] = joined(P0, limit=chain(40, 8), gathers=40)
    read(member_progress, a, 55)
    assert member_progress.due
    assert reported(member_progress).further == ()


def test_where_there_is_no_milestone_half_of_what_is_open_is_one() -> None:
    member_progress, [a] = joined(P0, limit=Limit((41, 42, 43, 44, 45, 46)), gathers=40)
    read(member_progress, a, 42)
    assert not member_progress.due
    read(member_progress, a, 43, first=1)
    assert member_progress.due
    assert [c.boundary for c in reported(member_progress).further] == [42, 43]


def test_a_report_does_not_wait_for_partitions_that_cannot_go_on() -> None:
    limit = chain(10, 4)
    member_progress, [a, b] = joined(P0, P1, limit=limit, gathers=20)
    read(member_progress, a, 12)
    assert member_progress.idle(b, limit, 0)
    assert not member_progress.due, "one still runs"
    member_progress.finish(a, 1)
    assert member_progress.due, "none does"
    member_progress, [a, b] = joined(P0, P1, limit=limit, gathers=20)
    read(member_progress, a, 12)
    read(member_progress, b, 15)
    member_progress.forget(P0)
    member_progress.finish(b, 1)
    assert member_progress.due, "the one that was waited for is gone"


def test_crossings_that_have_waited_long_enough_are_reported() -> None:
    member_progress, [a] = joined(P0, limit=chain(10, 8), gathers=40)
    member_progress.delay_over = True
    assert not member_progress.due, "there is nothing to report"
    read(member_progress, a, 12)
    assert member_progress.due
    member_progress.see(chain(20, 8))
    read(member_progress, a, 22)
    assert not member_progress.due, "under the next limit it waits again"


@pytest.mark.parametrize("open_", [1, 2])
def test_with_little_lookahead_nothing_is_gathered(open_: int) -> None:
    member_progress, [a] = joined(P0, limit=chain(10, open_), gathers=milestone_interval(10, open_ - 1))
    read(member_progress, a, 12)
    assert member_progress.due


def test_a_report_is_made_now_or_soon_or_not_yet() -> None:
    member_progress, [a, b] = joined(P0, P1, limit=chain(10, 8), gathers=40)
    read(member_progress, a, 12)
    assert member_progress.report_time is ReportTime.NOT_YET
    read(member_progress, b, 11)
    assert member_progress.report_time is ReportTime.SOON, "there may be more boundaries"
    member_progress.delay_over = True
    assert member_progress.report_time is ReportTime.NOW


def test_under_an_old_limit_even_running_partitions_are_reported() -> None:
    member_progress, [a, _] = joined(P0, P1, limit=chain(10, 8), gathers=40)
    read(member_progress, a, 12)
    member_progress.overdue = True
    assert member_progress.report_time is ReportTime.NOW
    assert not member_progress.due, "it would not count"


def test_a_withheld_period_is_not_due() -> None:
    member_progress, [a] = joined(P0, limit=chain(10, 4))
    read(member_progress, a, 12)
    member_progress.withheld_from = 0
    assert not member_progress.due
    late = member_progress.report(even_running=True)
    assert late is not None
    assert late.running, "it has arrived and is not processed: the late report must not count either"
    member_progress.withheld_from = None
    again = member_progress.report()
    assert again is not None
    assert not again.running


def test_where_a_closed_boundary_was_crossed_is_what_may_be_committed() -> None:
    member_progress, [a, b] = joined(P0, P1, limit=chain(10, 4))
    read(member_progress, a, 12, 25, 33)
    read(member_progress, b, 11, 21)
    assert member_progress.positions() == {P0: 0, P1: 0}
    assert member_progress.positions(20) == {P0: 1, P1: 1}
    assert member_progress.positions(30) == {P0: 2}, "where the other one will cross it nobody knows"
    member_progress.finish(b, 7)
    assert member_progress.positions(30) == {P0: 2, P1: 7}


# -- the decision -------------------------------------------------------------------------------------------------------


def term(limit: Limit, *, lookahead: int = 4, end: int | None = None, caught_up: object = "follow") -> Leader:
    """A leader of generation 3 over two partitions that knows nothing from anybody yet."""
    settings = Settings.check(
        topics={"orders": 2}, period=10, end=end, lookahead=lookahead, caught_up=caught_up, ahead=1000
    )
    return Leader(settings, 3, limit, 7, Request.every(10))


def hear(leader: Leader, member: str, limit: int, entry: str, *further: Crossing) -> None:
    """A report of one partition came: ``a`` runs the first one, ``b`` the second."""
    report = report_of(3, limit, {"orders.0" if member == "a" else "orders.1": entry})
    leader.reports[member] = Report.decode(
        "/r", b"\n".join([report.encode(), *(crossing.encode().encode() for crossing in further)])
    ) or pytest.fail("no report")


def at(boundary: int, minimum: int | None, mark: str) -> Crossing:
    return Crossing(boundary, minimum, Marks(f"{mark};"))


def advance(leader: Leader, now: int = NOW) -> Advance:
    decision = leader.decide(now)
    assert isinstance(decision, Advance), decision
    return decision


def cuts_of(decision: Advance) -> list[Cut]:
    found = [Cut.decode("/cut", (step.cut or "").encode()) for step in decision.steps]
    return [cut for cut in found if cut is not None]


def test_several_boundaries_close_in_one_decision_each_with_its_cut() -> None:
    leader = term(chain(10, 5))
    hear(leader, "a", 10, "12@1", at(20, 25, "3"), at(30, 33, "4"))
    hear(leader, "b", 10, "11@0", at(20, 21, "2"), at(30, 41, "5"))
    decision = advance(leader)
    assert [step.limit for step in decision.steps] == [chain(20, 5), chain(30, 5), chain(40, 5)]
    assert cuts_of(decision) == [
        Cut(8, 0, 10, 3, {"a": {P0: Mark(1)}, "b": {P1: Mark(0)}}),
        Cut(9, 10, 20, 3, {"a": {P0: Mark(3)}, "b": {P1: Mark(2)}}),
        Cut(10, 20, 30, 3, {"a": {P0: Mark(4)}, "b": {P1: Mark(5)}}),
    ]
    leader.advanced(decision)
    assert (leader.version, leader.closed, leader.limit) == (10, 30, chain(40, 5))
    then = leader.decide(NOW)
    assert isinstance(then, Wait)
    assert then.reason == "a has work before the limit"


def test_it_closes_as_many_as_everybody_has_crossed_and_the_rest_when_the_others_have() -> None:
    leader = term(chain(10, 5))
    hear(leader, "a", 10, "12@1", at(20, 25, "3"), at(30, 33, "4"))
    hear(leader, "b", 10, "11@0")
    decision = advance(leader)
    assert decision.limit == chain(20, 5)
    leader.advanced(decision)
    hear(leader, "b", 20, "21@2", at(30, 41, "5"))
    decision = advance(leader)
    assert [cut.limit for cut in cuts_of(decision)] == [20, 30], "by what the first has said before"
    assert cuts_of(decision)[1].find(P0) == Mark(4)


def test_a_gap_is_one_step_in_the_middle_too() -> None:
    leader = term(chain(10, 5))
    hear(leader, "a", 10, "12@1", at(20, 95, "3"), at(30, 95, "3"), at(40, 95, "3"), at(50, 95, "3"))
    hear(leader, "b", 10, "11@0", at(20, 97, "2"), at(30, 97, "2"), at(40, 97, "2"), at(50, 97, "2"))
    decision = advance(leader)
    assert [cut.limit for cut in cuts_of(decision)] == [10, 20]
    assert decision.limit == chain(100, 5)


def test_a_finished_partition_is_in_the_cut_of_the_boundary_before_which_it_finished() -> None:
    leader = term(chain(10, 5))
    hear(leader, "a", 10, "12@1", at(20, None, "2!"), at(30, None, "2!"))
    hear(leader, "b", 10, "11@0", at(20, 21, "2"), at(30, 41, "5"))
    decision = advance(leader)
    assert [cut.find(P0) for cut in cuts_of(decision)] == [Mark(1), Mark(2, finished=True), Mark(2, finished=True)]
    assert decision.finished == {P0: ("a", Mark(2, finished=True))}
    leader.advanced(decision)
    del leader.reports["a"]
    hear(leader, "b", 50, "51@6")
    assert cuts_of(advance(leader))[0].find(P0) == Mark(2, finished=True)


def test_all_have_finished_and_the_next_decision_ends_the_run() -> None:
    leader = term(chain(10, 5))
    hear(leader, "a", 10, "12@1", at(20, None, "2!"))
    hear(leader, "b", 10, "11@0", at(20, None, "1!"))
    decision = advance(leader)
    assert decision.limit == chain(20, 5)
    leader.advanced(decision)
    decision = advance(leader)
    assert decision.limit == END
    assert [cut.limit for cut in cuts_of(decision)] == [20]


def test_the_end_of_the_run_is_left_to_the_next_decision() -> None:
    leader = term(Limit((10, 20, 25)), end=25)
    for member in "ab":
        hear(leader, member, 10, "12@1", at(20, 99, "2"), at(25, 99, "2"))
    decision = advance(leader)
    assert decision.limit == Limit((20, 25))
    leader.advanced(decision)
    assert advance(leader).limit == END


def test_idle_closes_one_boundary_only() -> None:
    leader = term(chain(10, 5))
    hear(leader, "a", 10, "12@1", at(20, 25, "3"), at(30, 33, "4"))
    hear(leader, "b", 10, "idle@0")
    assert advance(leader).limit == chain(20, 5)


def test_the_clock_and_the_policies_count_at_each_boundary() -> None:
    for caught_up, now, limit in (("follow", 15, chain(40, 5)), ("release", 25, chain(20, 5)), (50, 25, chain(20, 5))):
        leader = term(chain(10, 5), caught_up=caught_up)
        for member in "ab":
            hear(leader, member, 10, "12@1", at(20, 25, "3"), at(30, 33, "4"))
        assert advance(leader, now).limit == limit, (caught_up, now)
    leader = term(chain(10, 5))
    for member in "ab":
        hear(leader, member, 10, "12@1", at(20, 5000, "3"))
    assert advance(leader, now=0).limit == chain(20, 5), "a record further ahead than the clock allows"


def test_one_transaction_takes_no_more_than_the_store_does() -> None:
    crossings = [at(b, b + 5, "9") for b in range(20, 400, 10)]
    leader = term(chain(10, 100), lookahead=99)
    for member in "ab":
        hear(leader, member, 10, "12@1", *crossings)
    assert len(advance(leader).steps) == MOST_AT_ONCE
    names = [f"orders-with-a-long-name-{n:05d}.0" for n in range(9000)]
    settings = Settings.check(topics={name[:-2]: 1 for name in names}, period=10, lookahead=99)
    leader = Leader(settings, 3, chain(10, 100), 7, Request.every(10))
    report = report_of(3, 10, dict.fromkeys(names, "12@123456"))
    further = tuple(Crossing(b, b + 5, report.marks) for b in range(20, 100, 10))
    leader.reports["a"] = replace(report, further=further)
    decision = advance(leader)
    assert 1 <= len(decision.steps) < MOST_AT_ONCE
    assert sum(len(step.cut or "") for step in decision.steps) < 800_000


def test_a_partition_that_has_crossed_the_floor_in_an_earlier_report_does_not_block() -> None:
    report = replace(report_of(3, 10, {"orders.0": "12@1"}), further=(Crossing(20, 25, Marks("3;")),))
    partitions = frozenset({P0})
    assert blockers(chain(20, 3), 3, partitions, {"a": report}, {}, {P0: "a"}) == []
    (blocker,) = blockers(chain(30, 3), 3, partitions, {"a": report}, {}, {P0: "a"})
    assert blocker.state == "running"


def test_a_report_that_is_far_ahead_proves_only_the_boundaries_that_it_has() -> None:
    leader = term(chain(10, 30), lookahead=29)
    member_progress, [progress] = joined(P0, limit=leader.limit)
    member_progress.walk(progress, [(end, end // 10) for end in range(10, 301, 10)], reached=140)
    leader.reports["a"] = reported(member_progress)
    other, [same] = joined(P1, limit=leader.limit)
    stamps = [n * 10 + 5 for n in range(13)]
    cuts: list[Cut] = []
    for first, last in ((0, 6), (6, 13)):
        read(other, same, *stamps[first:last], first=first)
        leader.reports["b"] = reported(other)
        for _ in range(3):
            while isinstance(decision := leader.decide(NOW), Advance):
                cuts += cuts_of(decision)
                leader.advanced(decision)
                member_progress.see(decision.limit)
                other.see(decision.limit)
            if reported(member_progress).supersedes(leader.reports["a"]):
                leader.reports["a"] = reported(member_progress)
    assert [cut.limit for cut in cuts] == list(range(10, 121, 10))
    for cut in cuts:
        assert cut.find(P0) == Mark(cut.limit // 10)


# -- late records -------------------------------------------------------------------------------------------------------


def test_the_boundary_that_closed_last_is_in_the_limit() -> None:
    limit = chain(10, 3).after(12, 10, 2, None)
    assert (limit, limit.closed) == (chain(20, 3), 10)
    assert limit.encode() == b"40 30 20 after 10"
    again = Limit.decode("/c", limit.encode())
    assert (again, again.closed) == (limit, 10)
    jumped = limit.after(55, 10, 2, None)
    assert (jumped, jumped.closed) == (chain(60, 3), 20), "what was jumped over is open until the jump's end closes"
    assert Limit((10,)).after(12, 10, 0, None).encode() == b"20"
    for data in (
        b"20 after",
        b"after 10",
        b"20 after x",
        b"20 after 30",
        b"20 after 10 5",
        b"20 after -1",
        b"20 10 after",
    ):
        with pytest.raises(CorruptNodeError):
            Limit.decode("/c", data)


def test_a_record_of_any_closed_period_is_late() -> None:
    member_progress, [a] = joined(P0, limit=chain(10, 4))
    limit = chain(10, 4)
    for ts in (12, 22, 32):
        limit = limit.after(ts, 10, 3, None)
    member_progress.see(limit)
    assert a.late_below == 30, "although it had seen nothing after 10"


def test_a_record_behind_a_boundary_that_its_partition_has_crossed_is_late() -> None:
    """Also while the boundary is open for others: which records are late does not depend on how far the others are."""
    member_progress, [a, b] = joined(P0, P1, limit=chain(10, 4))
    read(member_progress, a, 25)
    assert (a.late_below, a.open_below) == (20, 30)
    assert (b.late_below, b.open_below) == (0, 10)


# -- both together ------------------------------------------------------------------------------------------------------

logs = st.lists(st.integers(0, 200), max_size=30).map(sorted)


@given(logs, logs, st.integers(0, 12), st.booleans(), st.lists(st.sampled_from([P0, P1]), max_size=60))
def test_the_cuts_are_those_of_the_log_whichever_boundaries_are_gathered(
    first: list[int], second: list[int], lookahead: int, gathers: bool, turns: list[Partition]
) -> None:
    """Two members read at any pace; whoever has something due reports. Each cut lies where the log says, and they tile."""
    contents = {P0: first, P1: second}
    settings = Settings.check(topics={"orders": 2}, period=10, start=0, lookahead=lookahead)
    limit = Limit.first(0, 10, lookahead, None)
    leader = Leader(settings, 3, limit, 0, Request.every(10))
    members = {p: joined(p, limit=limit, gathers=milestone_interval(10, lookahead) if gathers else 0) for p in contents}
    offsets, written, cuts = dict.fromkeys(contents, 0), dict[Partition, Report](), list[Cut]()
    for partition in itertools.chain(turns, itertools.islice(itertools.cycle(contents), 200)):
        member_progress, (progress,) = members[partition]
        log = contents[partition]
        if progress.state is PartitionState.RUNNING:
            offset = offsets[partition]
            if offset == len(log):
                member_progress.finish(progress, offset)
            elif member_progress.approach(progress, log[offset], offset):
                offsets[partition] += 1
        if member_progress.due:
            report = member_progress.report()
            if report is not None and report.supersedes(written.get(partition)):
                written[partition] = report
                leader.reports[str(partition)] = Report.decode("/r", report.encode()) or report
        decision = leader.decide(NOW)
        if isinstance(decision, Advance):
            cuts += cuts_of(decision)
            leader.advanced(decision)
            for other, _ in members.values():
                other.see(decision.limit)
            if decision.limit == END:
                break
    assert leader.limit == END, "everybody reports what is due, and the run ends"
    assert offsets == {p: len(log) for p, log in contents.items()}
    previous = 0
    for number, cut in enumerate(cuts, 1):
        assert (cut.number, cut.previous) == (number, previous)
        for p, log in contents.items():
            mark = cut.find(p)
            assert mark is not None
            assert mark.offset == sum(ts < cut.limit for ts in log)
        previous = cut.limit
