"""The member's rule: which record may pass, and what there is to report."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aiokcc.core.lane import Lane, LaneState
from aiokcc.core.ledger import Ledger
from aiokcc.core.limit import END, OPEN, Limit, Mode
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import MAX_LIMIT, MAX_TIMESTAMP
from aiokcc.core.progress import Cut, Mark, Report
from aiokcc.errors import UsageError

P0, P1, P2 = (Partition("orders", n) for n in range(3))


def joined(
    *partitions: Partition,
    limit: Limit = Limit((10,)),  # noqa: B008 - frozen
    generation: int = 1,
    holder: str = "us",
) -> tuple[Ledger, list[Lane]]:
    """A member that holds the locks of these partitions and has read limit and generation."""
    ledger = Ledger()
    lanes = [ledger.add(p) for p in partitions]
    ledger.see(limit)
    ledger.generation = generation
    ledger.claim(partitions, holder)
    return ledger, lanes


def entries(ledger: Ledger) -> dict[str, str] | None:
    """What the ledger would report."""
    report = ledger.report()
    return None if report is None else dict(report.entries)


# -- passing ------------------------------------------------------------------------------------------------------------


def test_records_below_the_limit_pass_and_the_one_at_it_waits() -> None:
    ledger, [lane] = joined(P0)
    assert ledger.approach(lane, 0, 0)
    assert ledger.approach(lane, 9, 1)
    assert not ledger.ready
    assert not ledger.approach(lane, 10, 2)
    assert lane.state is LaneState.BLOCKED
    assert entries(ledger) == {"orders.0": "10@2"}


def test_before_anything_was_read_nothing_passes() -> None:
    ledger = Ledger()
    lane = ledger.add(P0)
    assert not ledger.approach(lane, 0, 0)
    ledger.claim([P0])
    assert not ledger.approach(lane, 0, 0)
    assert ledger.report() is None, "the generation is not known"


def test_nothing_passes_without_the_lock_and_nothing_is_reported() -> None:
    ledger = Ledger()
    ledger.generation = 1
    lane = ledger.add(P0)
    ledger.see(Limit((10,)))
    assert not ledger.approach(lane, 5, 0)
    assert not ledger.approach(lane, 15, 0)
    assert not ledger.ready
    assert ledger.report() is None
    ledger.claim([P0])
    assert entries(ledger) == {"orders.0": "15@0"}


@pytest.mark.parametrize("limit", [Limit((10,)), Limit((MAX_LIMIT,)), OPEN, END])
def test_nothing_passes_under_a_lost_lock(limit: Limit) -> None:
    ledger, [lane] = joined(P0, limit=limit)
    ledger.lose()
    assert not ledger.approach(lane, 5, 0)
    assert lane.open_below < 0
    assert ledger.report(even_running=True) is None


def test_released_everything_passes_and_at_the_end_nothing() -> None:
    ledger, [lane] = joined(P0)
    assert not ledger.approach(lane, 10, 0)
    assert ledger.see(OPEN)
    assert lane.state is LaneState.RUNNING
    assert ledger.approach(lane, MAX_TIMESTAMP, 1)
    assert lane.open_below == MAX_LIMIT
    assert ledger.report() is None
    assert ledger.see(END)
    assert not ledger.approach(lane, 0, 2)
    assert lane.open_below < 0
    assert ledger.report() is None


def test_the_open_test_of_a_lane_is_never_wider_than_the_rule() -> None:
    ledger, [lane] = joined(P0, limit=Limit((10, 20, 30)))
    assert lane.open_below == 10, "the record that crosses 10 has to be noted down"
    assert ledger.approach(lane, 12, 0)
    assert lane.open_below == 20
    assert ledger.approach(lane, 27, 1)
    assert lane.open_below == 30
    assert not ledger.approach(lane, 30, 2)


# -- arriving ------------------------------------------------------------------------------------------------------------


def test_the_report_comes_with_the_last_lane() -> None:
    ledger, [a, b] = joined(P0, P1)
    ledger.approach(a, 12, 3)
    assert ledger.report() is None
    ledger.approach(b, 15, 8)
    assert entries(ledger) == {"orders.0": "12@3", "orders.1": "15@8"}


def test_a_late_report_tells_who_is_slow_and_does_not_count() -> None:
    ledger, [a, _] = joined(P0, P1)
    ledger.approach(a, 12, 3)
    report = ledger.report(even_running=True)
    assert report is not None
    assert dict(report.entries) == {"orders.0": "12@3", "orders.1": "running"}
    assert report.running


def test_equal_states_give_equal_reports_whatever_the_order() -> None:
    reports = []
    for order in itertools.permutations((P0, P1, P2)):
        ledger, lanes = joined(*order)
        for lane in lanes:
            ledger.approach(lane, 12, 1)
        report = ledger.report()
        assert report is not None
        reports.append(report.encode())
    assert len(set(reports)) == 1


def test_idle_holds_for_the_limit_it_was_looked_up_under() -> None:
    ledger, [lane] = joined(P0)
    assert not ledger.idle(lane, Limit((9,)), 5), "the end was read before this limit was seen"
    assert lane.state is LaneState.RUNNING
    assert ledger.idle(lane, Limit((10,)), 5)
    assert entries(ledger) == {"orders.0": "idle@5"}
    ledger.see(Limit((20,)))
    assert lane.state is LaneState.RUNNING
    assert ledger.report() is None
    assert not ledger.idle(lane, Limit((10,)), 5)
    assert ledger.idle(lane, Limit((20,)), 5)
    assert ledger.ready


def test_idle_holds_for_one_floor_even_where_the_end_keeps_the_limit() -> None:
    """(10, 20, 30) and (20, 30) let the same records pass, but different periods close."""
    ledger, [lane] = joined(P0, limit=Limit((10, 20, 30)))
    before = ledger.limit
    assert ledger.idle(lane, before, 0)
    first = ledger.report()
    ledger.see(Limit((20, 30)))
    assert ledger.report() is None
    assert not ledger.idle(lane, before, 0)
    assert ledger.idle(lane, ledger.limit, 0)
    second = ledger.report()
    assert first is not None
    assert second is not None
    assert second.supersedes(first)


@pytest.mark.parametrize("limit", [OPEN, END])
def test_nobody_is_idle_when_there_is_no_gate(limit: Limit) -> None:
    ledger, [lane] = joined(P0, limit=limit)
    assert not ledger.idle(lane, limit, 0)


def test_an_idle_lane_that_gets_a_record_runs_again() -> None:
    ledger, [lane] = joined(P0)
    ledger.idle(lane, ledger.limit, 5)
    assert ledger.approach(lane, 7, 5)
    assert not ledger.ready
    ledger.idle(lane, ledger.limit, 6)
    ledger.resume(lane)
    assert lane.state is LaneState.RUNNING
    assert not ledger.ready


def test_finished_is_final_and_changes_nothing_more() -> None:
    ledger, [lane] = joined(P0)
    ledger.finish(lane, 5)
    with pytest.raises(UsageError, match=r"^orders.0 was declared finished"):
        ledger.approach(lane, 5, 5)
    with pytest.raises(UsageError, match="declared finished"):
        ledger.idle(lane, ledger.limit, 5)
    ledger.finish(lane, 9)
    ledger.resume(lane)
    ledger.see(Limit((20,)))
    assert lane.state is LaneState.FINISHED
    assert entries(ledger) == {"orders.0": "finished@5"}
    ledger.see(OPEN)
    with pytest.raises(UsageError):
        ledger.approach(lane, 50, 5)


def test_who_gives_up_waiting_has_not_arrived_any_more() -> None:
    ledger, [lane] = joined(P0, limit=Limit((10, 20)))
    assert not ledger.approach(lane, 25, 3)
    assert entries(ledger) == {"orders.0": "25@3"}
    ledger.resume(lane)
    assert ledger.report() is None
    assert lane.crossings == {}, "a record that was not processed has crossed nothing"
    assert not ledger.approach(lane, 22, 2)
    assert entries(ledger) == {"orders.0": "22@2"}


def test_who_gives_up_waiting_keeps_what_earlier_records_crossed() -> None:
    ledger, [lane] = joined(P0, limit=Limit((10, 20)))
    assert ledger.approach(lane, 12, 1)
    assert not ledger.approach(lane, 25, 2)
    ledger.resume(lane)
    assert entries(ledger) == {"orders.0": "12@1"}
    assert lane.open_below == 20


def test_offsets_are_left_out_where_they_are_not_known() -> None:
    ledger, [a, b, c] = joined(P0, P1, P2)
    ledger.approach(a, 12, None)
    ledger.idle(b, ledger.limit, None)
    ledger.finish(c, None)
    assert entries(ledger) == {"orders.0": "12", "orders.1": "idle", "orders.2": "finished"}


# -- the limit moves -----------------------------------------------------------------------------------------------------


def test_a_limit_that_is_not_later_is_dropped() -> None:
    ledger, _ = joined(P0, limit=Limit((20,)))
    assert not ledger.see(Limit((20,)))
    assert not ledger.see(Limit((10,)))
    assert ledger.see(Limit((30,)))
    assert ledger.see(END)
    assert not ledger.see(OPEN)
    assert ledger.limit is END


def test_blocked_stays_true_over_several_limits() -> None:
    ledger, [lane] = joined(P0)
    ledger.approach(lane, 35, 1)
    written = ledger.report()
    assert written is not None
    for limit in (20, 30):
        ledger.see(Limit((limit,)))
        report = ledger.report()
        assert report is not None
        assert not report.supersedes(written), "one write for the whole gap"
    ledger.see(Limit((40,)))
    assert lane.state is LaneState.RUNNING
    assert ledger.report() is None
    assert ledger.approach(lane, 35, 1)


def test_records_of_a_closed_period_are_late() -> None:
    ledger, [lane] = joined(P0)
    assert lane.late_below == 0
    ledger.see(Limit((50,)))
    assert lane.late_below == 10, "[10, 50) is open"
    ledger.see(Limit((60,)))
    assert (lane.late_below, ledger.late_below) == (50, 50)
    assert ledger.approach(lane, 3, 0), "late records pass"
    ledger.closed(55)
    assert lane.late_below == 55
    ledger.closed(20)
    assert lane.late_below == 55
    assert ledger.add(P1).late_below == 55


def test_a_release_closes_no_period() -> None:
    ledger, [lane] = joined(P0)
    ledger.see(OPEN)
    assert (lane.late_below, ledger.add(P1).late_below) == (0, 0)


def test_crossings_are_where_each_boundary_was_passed_however_far_ahead_the_lane_is() -> None:
    ledger, [lane] = joined(P0, limit=Limit((10, 20, 30)))
    for offset, ts in enumerate([3, 12, 14, 21, 29]):
        assert ledger.approach(lane, ts, offset)
    assert not ledger.approach(lane, 31, 5)
    assert entries(ledger) == {"orders.0": "12@1"}
    ledger.see(Limit((20, 30, 40)))
    assert entries(ledger) == {"orders.0": "21@3"}
    assert ledger.approach(lane, 31, 5)
    ledger.see(Limit((30, 40, 50)))
    assert entries(ledger) == {"orders.0": "31@5"}


def test_what_a_lane_crossed_counts_before_what_it_became() -> None:
    """It has finished, or is idle, far past the floor: the cut of the floor is still where the floor was crossed."""
    for end in ("finish", "idle"):
        ledger, [lane] = joined(P0, limit=Limit((10, 20, 30)))
        ledger.approach(lane, 12, 1)
        ledger.approach(lane, 23, 2)
        if end == "finish":
            ledger.finish(lane, 3)
        else:
            ledger.idle(lane, ledger.limit, 3)
        assert entries(ledger) == {"orders.0": "12@1"}
        ledger.see(Limit((20, 30, 40)))
        assert entries(ledger) == {"orders.0": "23@2"}
        ledger.see(Limit((30, 40, 50)))
        assert entries(ledger) == ({"orders.0": "finished@3"} if end == "finish" else None)


def test_the_generation_is_part_of_what_is_reported() -> None:
    ledger, [lane] = joined(P0)
    ledger.approach(lane, 12, 1)
    written = ledger.report()
    ledger.generation = 2
    report = ledger.report()
    assert report is not None
    assert report.generation == 2
    assert report.supersedes(written)


# -- sessions and partitions come and go -----------------------------------------------------------------------------------


def test_a_lost_session_shuts_everything_and_a_new_one_says_again_what_is_still_true() -> None:
    ledger, [lane] = joined(P0)
    ledger.approach(lane, 12, 1)
    ledger.lose()
    assert (ledger.generation, lane.owned, ledger.ready) == (None, False, False)
    assert ledger.report(even_running=True) is None
    ledger.generation = 4
    assert ledger.report() is None
    ledger.claim([P0])
    report = ledger.report()
    assert report is not None
    assert (report.generation, dict(report.entries)) == (4, {"orders.0": "12@1"})


def test_a_new_lane_holds_the_report_back_from_its_claim_until_it_has_arrived() -> None:
    ledger, [a] = joined(P0)
    ledger.approach(a, 12, 1)
    b = ledger.add(P1)
    assert entries(ledger) == {"orders.0": "12@1"}, "somebody else reports it"
    assert ledger.due
    assert not ledger.complete, "who gathers whole periods waits for it"
    ledger.claim([P1])
    assert ledger.report() is None
    ledger.approach(b, 11, 0)
    assert entries(ledger) == {"orders.0": "12@1", "orders.1": "11@0"}


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
    ledger, [a] = joined(P0, holder="us-1")
    ledger.approach(a, 12, stands_at)
    ledger.lose()
    ledger.generation = 4
    ledger.claim([P0], "us-2", cut_by(by, 1, offset))
    assert a.displaced is displaced
    assert (a.open_below < 0) is displaced
    assert (ledger.report() is None) is displaced, "where it stood is behind the cut, and goes into no other"


def test_who_was_told_once_is_not_told_again_of_the_same_cut() -> None:
    ledger, [a] = joined(P0, holder="us-1")
    ledger.lose()
    ledger.claim([P0], "us-2", cut_by("them", 1, 9))
    ledger.lose()
    ledger.claim([P0], "us-3", cut_by("them", 1, 9))
    assert a.displaced, "not told yet"
    assert not ledger.locate(a, 5)
    ledger.lose()
    ledger.claim([P0], "us-4", cut_by("them", 1, 9))
    assert not a.displaced
    ledger.lose()
    ledger.claim([P0], "us-5", cut_by("them", 2, 20))
    assert a.displaced
    assert ledger.locate(a, 20), "it stands there"


def test_a_finished_lane_that_was_overtaken_does_not_take_the_cut_back() -> None:
    ledger, [a] = joined(P0, holder="us-1")
    ledger.finish(a, 3)
    ledger.lose()
    ledger.generation = 4
    ledger.claim([P0], "us-2", cut_by("them", 1, 9))
    assert entries(ledger) == {"orders.0": "finished@9"}


def test_what_was_given_up_is_not_ours_to_report() -> None:
    ledger, [a, b] = joined(P0, P1)
    ledger.approach(a, 12, 1)
    ledger.drop(P1)
    assert entries(ledger) == {"orders.0": "12@1"}
    assert not ledger.approach(b, 5, 0), "whoever still holds the lane gets no further"
    assert ledger.ready
    ledger.drop(P1)
    ledger.drop(P0)
    assert ledger.report() is None


def test_claiming_what_we_do_not_run_changes_nothing() -> None:
    ledger, _ = joined(P0)
    ledger.claim([P2])
    assert list(ledger.lanes) == [P0]


# -- whatever happens ------------------------------------------------------------------------------------------------------


class LedgerMachine(RuleBasedStateMachine):
    """Any order of events: the count of those missing is what counting gives, and nothing passes that must not."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.lanes: list[Lane] = []
        self.highest = self.ledger.limit
        self.offset = itertools.count()

    @initialize(
        first=st.sampled_from(
            [Limit((0,)), Limit((10,)), Limit((10, 20)), Limit((10, 20, 30)), Limit((10, 20, 30, 40))]
        ),
        gathers=st.sampled_from([0, 20, 50]),
    )
    def join(self, first: Limit, gathers: int) -> None:
        self.ledger.generation = 1
        self.ledger.gathers = gathers
        self.lanes = [self.ledger.add(p) for p in (P0, P1, P2)]
        self.see_limit(first)
        self.ledger.claim((P0, P1))

    def see_limit(self, limit: Limit) -> None:
        assert self.ledger.see(limit) == self.highest.precedes(limit)
        if self.highest.precedes(limit):
            self.highest = limit

    @rule(which=st.integers(0, 2), ts=st.integers(0, 80))
    def approach(self, which: int, ts: int) -> None:
        lane = self.lanes[which]
        assume(lane.state is not LaneState.FINISHED)
        open_ = lane.open_below
        passed = self.ledger.approach(lane, ts, next(self.offset))
        allowed = self.highest.mode is Mode.OPEN or (self.highest.mode is Mode.GATED and ts < self.highest.value)
        assert passed == (allowed and lane.owned and not lane.displaced)
        if ts < open_:
            assert passed, "an open gate never needs the second look"

    @rule(which=st.integers(0, 2), fresh=st.booleans())
    def idle(self, which: int, fresh: bool) -> None:
        lane = self.lanes[which]
        assume(lane.state is not LaneState.FINISHED)
        taken = self.ledger.idle(lane, self.highest if fresh else Limit((7,)), next(self.offset))
        assert taken == (fresh and self.highest.mode is Mode.GATED)

    @rule(
        which=st.integers(0, 2),
        how=st.sampled_from(["finish", "resume", "claim", "lose", "drop", "read", "overtaken", "told"]),
    )
    def other(self, which: int, how: str) -> None:
        lane = self.lanes[which]
        if how == "finish":
            self.ledger.locate(lane, None)  # the gate tells its task before it takes its word
            self.ledger.finish(lane, next(self.offset))
        elif how == "resume":
            self.ledger.resume(lane)
        elif how == "claim":
            self.ledger.claim([lane.partition], "us")
        elif how == "overtaken":
            self.ledger.lose()
            held_before = bool(lane.holders)
            offset = next(self.offset)
            cut = Cut(offset + 1, 0, 0, 1, {"them": {other.partition: Mark(offset) for other in self.lanes}})
            self.ledger.claim([lane.partition], "us", cut)
            assert lane.displaced == (held_before and lane.state is not LaneState.FINISHED)
        elif how == "told":
            self.ledger.locate(lane, None)
        elif how == "lose":
            self.ledger.lose()
        elif how == "drop":
            self.ledger.drop(lane.partition)
            self.lanes[which] = self.ledger.add(lane.partition)
        else:
            self.ledger.generation = (self.ledger.generation or 0) + 1

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
        arrived = [lane.arrived(self.ledger.limit) for lane in self.ledger.lanes.values() if lane.owned]
        assert self.ledger.ready == (bool(arrived) and all(arrived))
        assert self.ledger.complete == (len(arrived) == len(self.ledger.lanes) and all(arrived))
        assert self.ledger.limit == self.highest

    @invariant()
    def every_report_is_one(self) -> None:
        report = self.ledger.report()
        if report is not None:
            assert not report.running
            assert report.minimum is None or report.minimum >= self.highest.floor
            assert set(report.entries) == {str(p) for p, lane in self.ledger.lanes.items() if lane.owned}
            assert Report.decode("/r", report.encode()) == report

    @invariant()
    def what_is_reported_of_further_boundaries_was_crossed_by_all(self) -> None:
        report = self.ledger.report()
        for crossing in () if report is None else report.further:
            assert crossing.boundary in self.highest.boundaries[1:]
            owned = [lane for lane in self.ledger.lanes.values() if lane.owned]
            found = [lane.crossings.get(crossing.boundary) for lane in owned]
            assert crossing.minimum == min((c[0] for c in found if c is not None), default=None)
            for mark, lane, crossed in zip(crossing.marks, owned, found, strict=True):
                assert mark == (f"{lane.offset}!" if crossed is None else str(crossed[1]))
                assert crossed is not None or lane.state is LaneState.FINISHED

    @invariant()
    def what_all_wait_for_is_due(self) -> None:
        if self.ledger.ready and all(lane.state is not LaneState.RUNNING for lane in self.ledger.lanes.values()):
            assert self.ledger.due
        assert self.ledger.ready or not self.ledger.due

    @invariant()
    def thresholds_never_let_pass_what_the_rule_does_not(self) -> None:
        for lane in self.ledger.lanes.values():
            if not lane.owned or lane.displaced or self.highest.mode is Mode.END:
                assert lane.open_below < 0
            elif self.highest.mode is Mode.GATED:
                assert lane.open_below <= self.highest.value


LedgerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestLedgerMachine = LedgerMachine.TestCase
