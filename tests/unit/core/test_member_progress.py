"""The member's rule: which record may pass, and what there is to report."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aiokcc.core.limit import END, OPEN, Limit, Mode
from aiokcc.core.marks import Mark
from aiokcc.core.member_progress import MemberProgress
from aiokcc.core.partition_progress import PartitionProgress, PartitionState
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import MAX_LIMIT, MAX_TIMESTAMP
from aiokcc.core.report import Cut, Report
from aiokcc.errors import UsageError
from tests.unit.core.reports import shown

P0, P1, P2 = (Partition("orders", n) for n in range(3))


def joined(
    *partitions: Partition,
    limit: Limit = Limit((10,)),  # noqa: B008 - frozen
    generation: int = 1,
    holder: str = "us",
) -> tuple[MemberProgress, list[PartitionProgress]]:
    """A member that holds the locks of these partitions and has read limit and generation."""
    member_progress = MemberProgress()
    progresses = [member_progress.add(p) for p in partitions]
    member_progress.see(limit)
    member_progress.generation = generation
    member_progress.claim(partitions, holder)
    return member_progress, progresses


def entries(member_progress: MemberProgress) -> dict[str, str] | None:
    """Returns the entries that the member's progress would report."""
    report = member_progress.report()
    return None if report is None else shown(report)


# -- passing ------------------------------------------------------------------------------------------------------------


def test_records_below_the_limit_pass_and_the_one_at_it_waits() -> None:
    member_progress, [progress] = joined(P0)
    assert member_progress.approach(progress, 0, 0)
    assert member_progress.approach(progress, 9, 1)
    assert not member_progress.ready
    assert not member_progress.approach(progress, 10, 2)
    assert progress.state is PartitionState.BLOCKED
    assert entries(member_progress) == {"orders.0": "10@2"}


def test_before_anything_was_read_nothing_passes() -> None:
    member_progress = MemberProgress()
    progress = member_progress.add(P0)
    assert not member_progress.approach(progress, 0, 0)
    member_progress.claim([P0])
    assert not member_progress.approach(progress, 0, 0)
    assert member_progress.report() is None, "the generation is not known"


def test_nothing_passes_without_the_lock_and_nothing_is_reported() -> None:
    member_progress = MemberProgress()
    member_progress.generation = 1
    progress = member_progress.add(P0)
    member_progress.see(Limit((10,)))
    assert not member_progress.approach(progress, 5, 0)
    assert not member_progress.approach(progress, 15, 0)
    assert not member_progress.ready
    assert member_progress.report() is None
    member_progress.claim([P0])
    assert entries(member_progress) == {"orders.0": "15@0"}


@pytest.mark.parametrize("limit", [Limit((10,)), Limit((MAX_LIMIT,)), OPEN, END])
def test_nothing_passes_under_a_lost_lock(limit: Limit) -> None:
    member_progress, [progress] = joined(P0, limit=limit)
    member_progress.lose()
    assert not member_progress.approach(progress, 5, 0)
    assert progress.open_below < 0
    assert member_progress.report(even_running=True) is None


def test_released_everything_passes_and_at_the_end_nothing() -> None:
    member_progress, [progress] = joined(P0)
    assert not member_progress.approach(progress, 10, 0)
    assert member_progress.see(OPEN)
    assert progress.state is PartitionState.RUNNING
    assert member_progress.approach(progress, MAX_TIMESTAMP, 1)
    assert progress.open_below == MAX_LIMIT
    assert member_progress.report() is None
    assert member_progress.see(END)
    assert not member_progress.approach(progress, 0, 2)
    assert progress.open_below < 0
    assert member_progress.report() is None


def test_the_fast_test_of_a_partition_never_passes_more_than_the_rule() -> None:
    member_progress, [progress] = joined(P0, limit=Limit((10, 20, 30)))
    assert progress.open_below == 10, "the record that crosses 10 has to be noted down"
    assert member_progress.approach(progress, 12, 0)
    assert progress.open_below == 20
    assert member_progress.approach(progress, 27, 1)
    assert progress.open_below == 30
    assert not member_progress.approach(progress, 30, 2)


# -- arriving ------------------------------------------------------------------------------------------------------------


def test_the_report_comes_with_the_last_partition() -> None:
    member_progress, [a, b] = joined(P0, P1)
    member_progress.approach(a, 12, 3)
    assert member_progress.report() is None
    member_progress.approach(b, 15, 8)
    assert entries(member_progress) == {"orders.0": "12@3", "orders.1": "15@8"}


def test_a_late_report_tells_who_is_slow_and_does_not_count() -> None:
    member_progress, [a, _] = joined(P0, P1)
    member_progress.approach(a, 12, 3)
    report = member_progress.report(even_running=True)
    assert report is not None
    assert shown(report) == {"orders.0": "12@3", "orders.1": "running"}
    assert report.running


def test_equal_states_give_equal_reports_whatever_the_order() -> None:
    reports = []
    for order in itertools.permutations((P0, P1, P2)):
        member_progress, progresses = joined(*order)
        for progress in progresses:
            member_progress.approach(progress, 12, 1)
        report = member_progress.report()
        assert report is not None
        reports.append(report.encode())
    assert len(set(reports)) == 1


def test_idle_holds_for_the_limit_it_was_looked_up_under() -> None:
    member_progress, [progress] = joined(P0)
    assert not member_progress.idle(progress, Limit((9,)), 5), "the end was read before this limit was seen"
    assert progress.state is PartitionState.RUNNING
    assert member_progress.idle(progress, Limit((10,)), 5)
    assert entries(member_progress) == {"orders.0": "idle@5"}
    member_progress.see(Limit((20,)))
    assert progress.state is PartitionState.RUNNING
    assert member_progress.report() is None
    assert not member_progress.idle(progress, Limit((10,)), 5)
    assert member_progress.idle(progress, Limit((20,)), 5)
    assert member_progress.ready


def test_idle_holds_for_one_floor_even_where_the_end_keeps_the_limit() -> None:
    """(10, 20, 30) and (20, 30) let the same records pass, but different periods close."""
    member_progress, [progress] = joined(P0, limit=Limit((10, 20, 30)))
    before = member_progress.limit
    assert member_progress.idle(progress, before, 0)
    first = member_progress.report()
    member_progress.see(Limit((20, 30)))
    assert member_progress.report() is None
    assert not member_progress.idle(progress, before, 0)
    assert member_progress.idle(progress, member_progress.limit, 0)
    second = member_progress.report()
    assert first is not None
    assert second is not None
    assert second.supersedes(first)


@pytest.mark.parametrize("limit", [OPEN, END])
def test_nobody_is_idle_when_there_is_no_gate(limit: Limit) -> None:
    member_progress, [progress] = joined(P0, limit=limit)
    assert not member_progress.idle(progress, limit, 0)


def test_an_idle_partition_that_gets_a_record_runs_again() -> None:
    member_progress, [progress] = joined(P0)
    member_progress.idle(progress, member_progress.limit, 5)
    assert member_progress.approach(progress, 7, 5)
    assert not member_progress.ready
    member_progress.idle(progress, member_progress.limit, 6)
    member_progress.resume(progress)
    assert progress.state is PartitionState.RUNNING
    assert not member_progress.ready


def test_finished_is_final_and_changes_nothing_more() -> None:
    member_progress, [progress] = joined(P0)
    member_progress.finish(progress, 5)
    with pytest.raises(UsageError, match=r"^orders.0 was declared finished"):
        member_progress.approach(progress, 5, 5)
    with pytest.raises(UsageError, match="declared finished"):
        member_progress.idle(progress, member_progress.limit, 5)
    member_progress.finish(progress, 9)
    member_progress.resume(progress)
    member_progress.see(Limit((20,)))
    assert progress.state is PartitionState.FINISHED
    assert entries(member_progress) == {"orders.0": "finished@5"}
    member_progress.see(OPEN)
    with pytest.raises(UsageError):
        member_progress.approach(progress, 50, 5)


def test_a_partition_whose_wait_was_cancelled_has_not_arrived() -> None:
    member_progress, [progress] = joined(P0, limit=Limit((10, 20)))
    assert not member_progress.approach(progress, 25, 3)
    assert entries(member_progress) == {"orders.0": "25@3"}
    member_progress.resume(progress)
    assert member_progress.report() is None
    assert progress.crossings == {}, "a record that was not processed has crossed nothing"
    assert not member_progress.approach(progress, 22, 2)
    assert entries(member_progress) == {"orders.0": "22@2"}


def test_a_partition_whose_wait_was_cancelled_keeps_its_earlier_crossings() -> None:
    member_progress, [progress] = joined(P0, limit=Limit((10, 20)))
    assert member_progress.approach(progress, 12, 1)
    assert not member_progress.approach(progress, 25, 2)
    member_progress.resume(progress)
    assert entries(member_progress) == {"orders.0": "12@1"}
    assert progress.open_below == 20


def test_offsets_are_left_out_where_they_are_not_known() -> None:
    member_progress, [a, b, c] = joined(P0, P1, P2)
    member_progress.approach(a, 12, None)
    member_progress.idle(b, member_progress.limit, None)
    member_progress.finish(c, None)
    assert entries(member_progress) == {"orders.0": "12", "orders.1": "idle", "orders.2": "finished"}


# -- the limit moves -----------------------------------------------------------------------------------------------------


def test_a_limit_that_is_not_later_is_dropped() -> None:
    member_progress, _ = joined(P0, limit=Limit((20,)))
    assert not member_progress.see(Limit((20,)))
    assert not member_progress.see(Limit((10,)))
    assert member_progress.see(Limit((30,)))
    assert member_progress.see(END)
    assert not member_progress.see(OPEN)
    assert member_progress.limit is END


def test_blocked_stays_true_over_several_limits() -> None:
    member_progress, [progress] = joined(P0)
    member_progress.approach(progress, 35, 1)
    written = member_progress.report()
    assert written is not None
    for limit in (20, 30):
        member_progress.see(Limit((limit,)))
        report = member_progress.report()
        assert report is not None
        assert not report.supersedes(written), "one write for the whole gap"
    member_progress.see(Limit((40,)))
    assert progress.state is PartitionState.RUNNING
    assert member_progress.report() is None
    assert member_progress.approach(progress, 35, 1)


def test_records_of_a_closed_period_are_late() -> None:
    member_progress, [progress] = joined(P0)
    assert progress.late_below == 0
    member_progress.see(Limit((50,)))
    assert progress.late_below == 10, "[10, 50) is open"
    member_progress.see(Limit((60,)))
    assert (progress.late_below, member_progress.late_below) == (50, 50)
    assert member_progress.approach(progress, 3, 0), "late records pass"
    member_progress.closed(55)
    assert progress.late_below == 55
    member_progress.closed(20)
    assert progress.late_below == 55
    assert member_progress.add(P1).late_below == 55


def test_a_release_closes_no_period() -> None:
    member_progress, [progress] = joined(P0)
    member_progress.see(OPEN)
    assert (progress.late_below, member_progress.add(P1).late_below) == (0, 0)


def test_crossings_are_where_each_boundary_was_passed_however_far_ahead_the_partition_is() -> None:
    member_progress, [progress] = joined(P0, limit=Limit((10, 20, 30)))
    for offset, ts in enumerate([3, 12, 14, 21, 29]):
        assert member_progress.approach(progress, ts, offset)
    assert not member_progress.approach(progress, 31, 5)
    assert entries(member_progress) == {"orders.0": "12@1"}
    member_progress.see(Limit((20, 30, 40)))
    assert entries(member_progress) == {"orders.0": "21@3"}
    assert member_progress.approach(progress, 31, 5)
    member_progress.see(Limit((30, 40, 50)))
    assert entries(member_progress) == {"orders.0": "31@5"}


def test_a_crossing_counts_before_the_present_state() -> None:
    """A partition has finished, or is idle, far past the floor; the cut of the floor is where it crossed the floor."""
    for end in ("finish", "idle"):
        member_progress, [progress] = joined(P0, limit=Limit((10, 20, 30)))
        member_progress.approach(progress, 12, 1)
        member_progress.approach(progress, 23, 2)
        if end == "finish":
            member_progress.finish(progress, 3)
        else:
            member_progress.idle(progress, member_progress.limit, 3)
        assert entries(member_progress) == {"orders.0": "12@1"}
        member_progress.see(Limit((20, 30, 40)))
        assert entries(member_progress) == {"orders.0": "23@2"}
        member_progress.see(Limit((30, 40, 50)))
        assert entries(member_progress) == ({"orders.0": "finished@3"} if end == "finish" else None)


def test_the_generation_is_part_of_what_is_reported() -> None:
    member_progress, [progress] = joined(P0)
    member_progress.approach(progress, 12, 1)
    written = member_progress.report()
    member_progress.generation = 2
    report = member_progress.report()
    assert report is not None
    assert report.generation == 2
    assert report.supersedes(written)


# -- sessions and partitions come and go -----------------------------------------------------------------------------------


def test_a_lost_session_shuts_every_gate_and_a_new_one_reports_again_what_is_still_true() -> None:
    member_progress, [progress] = joined(P0)
    member_progress.approach(progress, 12, 1)
    member_progress.lose()
    assert (member_progress.generation, progress.owned, member_progress.ready) == (None, False, False)
    assert member_progress.report(even_running=True) is None
    member_progress.generation = 4
    assert member_progress.report() is None
    member_progress.claim([P0])
    report = member_progress.report()
    assert report is not None
    assert (report.generation, shown(report)) == (4, {"orders.0": "12@1"})


def test_a_new_partition_holds_the_report_back_from_its_claim_until_it_has_arrived() -> None:
    member_progress, [a] = joined(P0)
    member_progress.approach(a, 12, 1)
    b = member_progress.add(P1)
    assert entries(member_progress) == {"orders.0": "12@1"}, "somebody else reports it"
    assert member_progress.due
    assert not member_progress.complete, "who gathers whole periods waits for it"
    member_progress.claim([P1])
    assert member_progress.report() is None
    member_progress.approach(b, 11, 0)
    assert entries(member_progress) == {"orders.0": "12@1", "orders.1": "11@0"}


def cut_by(member: str, number: int, offset: int | None) -> Cut:
    return Cut(number, 0, 10 * number, 1, {member: {P0: Mark(offset)}})


@pytest.mark.parametrize(
    ("stands_at", "by", "offset", "displaced"),
    [
        (1, "them", 9, True),
        (9, "them", 9, False),
        (10, "them", 9, False),
        (None, "them", 9, True),  # not known is not as far
        (9, "them", None, True),
        (1, "us-1", 9, False),  # the cut was made from our own report
    ],
)
def test_a_lock_won_back_after_another_member_has_closed_periods(
    stands_at: int | None, by: str, offset: int | None, displaced: bool
) -> None:
    member_progress, [a] = joined(P0, holder="us-1")
    member_progress.approach(a, 12, stands_at)
    member_progress.lose()
    member_progress.generation = 4
    member_progress.claim([P0], "us-2", cut_by(by, 1, offset))
    assert a.displaced is displaced
    assert (a.open_below < 0) is displaced
    assert (member_progress.report() is None) is displaced, "where it stood is behind the cut, and goes into no other"


def test_a_task_is_told_of_the_same_cut_only_once() -> None:
    member_progress, [a] = joined(P0, holder="us-1")
    member_progress.lose()
    member_progress.claim([P0], "us-2", cut_by("them", 1, 9))
    member_progress.lose()
    member_progress.claim([P0], "us-3", cut_by("them", 1, 9))
    assert a.displaced, "not told yet"
    assert not member_progress.locate(a, 5)
    member_progress.lose()
    member_progress.claim([P0], "us-4", cut_by("them", 1, 9))
    assert not a.displaced
    member_progress.lose()
    member_progress.claim([P0], "us-5", cut_by("them", 2, 20))
    assert a.displaced
    assert member_progress.locate(a, 20), "it stands there"


def test_a_finished_partition_that_was_overtaken_does_not_take_the_cut_back() -> None:
    member_progress, [a] = joined(P0, holder="us-1")
    member_progress.finish(a, 3)
    member_progress.lose()
    member_progress.generation = 4
    member_progress.claim([P0], "us-2", cut_by("them", 1, 9))
    assert entries(member_progress) == {"orders.0": "finished@9"}


def test_a_released_partition_is_not_reported() -> None:
    member_progress, [a, b] = joined(P0, P1)
    member_progress.approach(a, 12, 1)
    member_progress.forget(P1)
    assert entries(member_progress) == {"orders.0": "12@1"}
    assert not member_progress.approach(b, 5, 0), "whoever still holds the partition gets no further"
    assert member_progress.ready
    member_progress.forget(P1)
    member_progress.forget(P0)
    assert member_progress.report() is None


def test_claiming_what_we_do_not_run_changes_nothing() -> None:
    member_progress, _ = joined(P0)
    member_progress.claim([P2])
    assert list(member_progress.partitions) == [P0]


# -- whatever happens ------------------------------------------------------------------------------------------------------


class MemberProgressMachine(RuleBasedStateMachine):
    """Any order of events: the count of those missing is what counting gives, and nothing passes that must not."""

    def __init__(self) -> None:
        super().__init__()
        self.progress = MemberProgress()
        self.partitions: list[PartitionProgress] = []
        self.highest = self.progress.limit
        self.offset = itertools.count()

    @initialize(
        first=st.sampled_from(
            [Limit((0,)), Limit((10,)), Limit((10, 20)), Limit((10, 20, 30)), Limit((10, 20, 30, 40))]
        ),
        gathers=st.sampled_from([0, 20, 50]),
    )
    def join(self, first: Limit, gathers: int) -> None:
        self.progress.generation = 1
        self.progress.milestone_interval = gathers
        self.partitions = [self.progress.add(p) for p in (P0, P1, P2)]
        self.see_limit(first)
        self.progress.claim((P0, P1))

    def see_limit(self, limit: Limit) -> None:
        assert self.progress.see(limit) == self.highest.precedes(limit)
        if self.highest.precedes(limit):
            self.highest = limit

    @rule(which=st.integers(0, 2), ts=st.integers(0, 80))
    def approach(self, which: int, ts: int) -> None:
        progress = self.partitions[which]
        assume(progress.state is not PartitionState.FINISHED)
        open_ = progress.open_below
        passed = self.progress.approach(progress, ts, next(self.offset))
        allowed = self.highest.mode is Mode.OPEN or (self.highest.mode is Mode.GATED and ts < self.highest.value)
        assert passed == (allowed and progress.owned and not progress.displaced)
        if ts < open_:
            assert passed, "an open gate never needs the second look"

    @rule(which=st.integers(0, 2), fresh=st.booleans())
    def idle(self, which: int, fresh: bool) -> None:
        progress = self.partitions[which]
        assume(progress.state is not PartitionState.FINISHED)
        taken = self.progress.idle(progress, self.highest if fresh else Limit((7,)), next(self.offset))
        assert taken == (fresh and self.highest.mode is Mode.GATED)

    @rule(
        which=st.integers(0, 2),
        how=st.sampled_from(["finish", "resume", "claim", "lose", "drop", "read", "overtaken", "told"]),
    )
    def other(self, which: int, how: str) -> None:
        progress = self.partitions[which]
        if how == "finish":
            self.progress.locate(progress, None)  # the gate tells its task before it takes its word
            self.progress.finish(progress, next(self.offset))
        elif how == "resume":
            self.progress.resume(progress)
        elif how == "claim":
            self.progress.claim([progress.partition], "us")
        elif how == "overtaken":
            self.progress.lose()
            held_before = bool(progress.holders)
            offset = next(self.offset)
            cut = Cut(offset + 1, 0, 0, 1, {"them": {other.partition: Mark(offset) for other in self.partitions}})
            self.progress.claim([progress.partition], "us", cut)
            assert progress.displaced == (held_before and progress.state is not PartitionState.FINISHED)
        elif how == "told":
            self.progress.locate(progress, None)
        elif how == "lose":
            self.progress.lose()
        elif how == "drop":
            self.progress.forget(progress.partition)
            self.partitions[which] = self.progress.add(progress.partition)
        else:
            self.progress.generation = (self.progress.generation or 0) + 1

    @rule(ts=st.integers(0, 80), period=st.sampled_from([3, 7, 10, 25]), lookahead=st.integers(0, 4))
    def move(self, ts: int, period: int, lookahead: int) -> None:
        if self.highest.mode is Mode.GATED and ts >= self.highest.floor:
            self.see_limit(self.highest.after(ts, period, lookahead, 70))

    @rule(limit=st.sampled_from([Limit((0,)), Limit((10,)), Limit((40,)), OPEN, END]))
    def read(self, limit: Limit) -> None:
        if limit.mode is not Mode.GATED or not self.highest.precedes(limit):
            self.see_limit(limit)

    @invariant()
    def the_count_is_right(self) -> None:
        arrived = [
            progress.arrived(self.progress.limit) for progress in self.progress.partitions.values() if progress.owned
        ]
        assert self.progress.ready == (bool(arrived) and all(arrived))
        assert self.progress.complete == (len(arrived) == len(self.progress.partitions) and all(arrived))
        assert self.progress.limit == self.highest

    @invariant()
    def every_report_is_one(self) -> None:
        report = self.progress.report()
        if report is not None:
            assert not report.running
            assert report.minimum is None or report.minimum >= self.highest.floor
            assert set(report.partitions) == {p for p, progress in self.progress.partitions.items() if progress.owned}
            assert Report.decode("/r", report.encode()) == report

    @invariant()
    def what_is_reported_of_further_boundaries_was_crossed_by_all(self) -> None:
        report = self.progress.report()
        for crossing in () if report is None else report.further:
            assert crossing.boundary in self.highest.boundaries[1:]
            owned = [progress for progress in self.progress.partitions.values() if progress.owned]
            found = [progress.crossings.get(crossing.boundary) for progress in owned]
            assert crossing.minimum == min((c[0] for c in found if c is not None), default=None)
            for mark, progress, crossed in zip(crossing.marks.values(), owned, found, strict=True):
                assert str(mark) == (f"{progress.offset}!" if crossed is None else str(crossed[1]))
                assert crossed is not None or progress.state is PartitionState.FINISHED

    @invariant()
    def what_all_wait_for_is_due(self) -> None:
        if self.progress.ready and all(
            progress.state is not PartitionState.RUNNING for progress in self.progress.partitions.values()
        ):
            assert self.progress.due
        assert self.progress.ready or not self.progress.due

    @invariant()
    def thresholds_never_let_pass_what_the_rule_does_not(self) -> None:
        for progress in self.progress.partitions.values():
            if not progress.owned or progress.displaced or self.highest.mode is Mode.END:
                assert progress.open_below < 0
            elif self.highest.mode is Mode.GATED:
                assert progress.open_below <= self.highest.value


MemberProgressMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestMemberProgressMachine = MemberProgressMachine.TestCase
