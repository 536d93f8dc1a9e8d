"""The leader's rule: who blocks, may the limit move, and to where."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokcc.core.leader import Advance, Blocker, BlockerState, Leader, Step, Wait, blockers
from aiokcc.core.limit import END, OPEN, Limit, Mode, Request, RequestKind
from aiokcc.core.marks import Mark
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import MAX_LIMIT, MAX_TIMESTAMP
from aiokcc.core.report import Cut
from aiokcc.core.run import Settings
from tests.unit.core.reports import report_of

P0, P1, P2 = (Partition("orders", n) for n in range(3))
NOW = 1_000_000_000
HOLD, OFF = Request(RequestKind.HOLD), Request(RequestKind.OFF)


def term(
    *partitions: Partition,
    limit: Limit = Limit((10,)),  # noqa: B008 - frozen
    request: Request | None = Request.every(10),  # noqa: B008 - frozen
    lookahead: int = 0,
    end: int | None = None,
    caught_up: object = "follow",
    ahead: int = 1000,
) -> Leader:
    """A leader of generation 3 that knows nothing from anybody yet."""
    settings = Settings.check(
        topics={"orders": [p.number for p in partitions or (P0, P1)]},
        period=10,
        end=end,
        lookahead=lookahead,
        caught_up=caught_up,
        ahead=ahead,
    )
    return Leader(settings, 3, limit, 7, request)


def hear(leader: Leader, member: str, generation: int = 3, limit: int | None = None, **entries: str) -> None:
    """A report came: ``p0="12@3"``."""
    named = {f"orders.{name[1:]}": value for name, value in entries.items()}
    leader.reports[member] = report_of(generation, leader.limit.floor if limit is None else limit, named)


def waits(leader: Leader, why: str, now: int = NOW) -> Wait:
    """The leader waits, and says why."""
    decision = leader.decide(now)
    assert isinstance(decision, Wait)
    assert why in decision.reason
    return decision


def advance(leader: Leader, now: int = NOW) -> Advance:
    """The leader moves the limit, or ends, or opens."""
    decision = leader.decide(now)
    assert isinstance(decision, Advance), decision
    return decision


def cut_of(decision: Advance) -> Cut:
    """The cut that the decision writes, read as anybody would."""
    (step,) = decision.steps
    assert step.cut is not None
    cut = Cut.decode("/cut", step.cut.encode())
    assert cut is not None
    return cut


# -- may it move --------------------------------------------------------------------------------------------------------


def test_it_moves_to_the_boundary_after_the_least_timestamp() -> None:
    leader = term()
    hear(leader, "a", p0="12@3")
    waits(leader, "nobody has reported orders.1")
    hear(leader, "b", p1="35@9")
    decision = advance(leader)
    assert decision.limit == Limit((20,))
    assert cut_of(decision) == Cut(8, 0, 10, 3, {"a": {P0: Mark(3)}, "b": {P1: Mark(9)}})


def test_a_record_at_the_limit_is_not_before_it() -> None:
    leader = term(P0)
    hear(leader, "a", p0="9@0")
    waits(leader, "a has work before the limit")
    hear(leader, "a", p0="10@0")
    assert advance(leader).limit == Limit((20,))


def test_without_reports_the_limit_waits() -> None:
    waits(term(), "nobody has reported orders.0")


def test_an_empty_day_of_seconds_is_one_advance() -> None:
    leader = replace(term(P0, limit=Limit((1000,)), ahead=0), request=Request.every(1000))
    hear(leader, "a", p0=f"{1000 + 86_400_000}@5")
    assert advance(leader).limit == Limit((86_402_000,)), "86,400 periods"


def test_reports_of_another_generation_do_not_count() -> None:
    for generation in (2, 4):
        leader = term(P0)
        hear(leader, "a", generation=generation, p0="12@3")
        waits(leader, "a has not reported yet")


def test_a_report_with_a_running_partition_does_not_count() -> None:
    leader = term()
    hear(leader, "a", p0="12@3", p1="running")
    waits(leader, "a has not reported yet")


def test_the_set_counts_and_not_the_number() -> None:
    leader = term()
    hear(leader, "a", p0="12@3")
    hear(leader, "b", p0="12@3")
    waits(leader, "a partition is reported by two members")
    leader = term()
    hear(leader, "a", p0="12@3")
    hear(leader, "b", p2="12@3")
    waits(leader, "orders.2 is reported and is not in the agreed set")
    leader = term()
    hear(leader, "a", p0="12@3", p1="12@3")
    hear(leader, "b", p2="12@3")
    waits(leader, "orders.2 is reported and is not in the agreed set")


def test_idle_counts_under_the_limit_it_was_said_under() -> None:
    leader = term()
    hear(leader, "a", p0="12@3")
    hear(leader, "b", limit=9, p1="idle@5")
    waits(leader, "b has to look again")
    hear(leader, "b", limit=10, p1="idle@5")
    decision = advance(leader)
    assert decision.limit == Limit((20,))
    leader.advanced(decision)
    waits(leader, "a has work before the limit")
    hear(leader, "a", p0="25@4")
    waits(leader, "b has to look again")


def test_idle_counts_for_one_floor_even_where_the_end_keeps_the_limit() -> None:
    leader = term(limit=Limit((10, 20, 30)), lookahead=2, end=30)
    hear(leader, "a", p0="12@1")
    hear(leader, "b", limit=10, p1="idle@5")
    decision = advance(leader)
    assert decision.limit == Limit((20, 30))
    leader.advanced(decision)
    hear(leader, "a", p0="22@2")
    waits(leader, "b has to look again")


def test_all_idle_stays() -> None:
    leader = term()
    hear(leader, "a", p0="idle@3", p1="idle@4")
    waits(leader, "every partition is idle")
    hear(leader, "a", p0="finished@3", p1="idle@4")
    waits(leader, "every partition is idle")


def test_all_finished_ends() -> None:
    leader = term()
    hear(leader, "a", p0="finished@3")
    hear(leader, "b", p1="finished@4")
    decision = advance(leader)
    assert decision.limit is END
    cut = cut_of(decision)
    assert cut.find(P0) == Mark(3, finished=True)
    assert cut.find(P1) == Mark(4, finished=True)
    leader.advanced(decision)
    waits(leader, "the run is over")


def test_finished_does_not_hold_the_others_back() -> None:
    leader = term()
    hear(leader, "a", p0="finished@3", p1="57@9")
    assert advance(leader).limit == Limit((60,))


# -- finished in a cut -----------------------------------------------------------------------------------------------------


def test_a_member_that_has_finished_in_a_cut_may_leave() -> None:
    leader = term()
    hear(leader, "a", p0="finished@3")
    hear(leader, "b", p1="12@4")
    leader.advanced(advance(leader))
    del leader.reports["a"]
    hear(leader, "b", p1="25@5")
    decision = advance(leader)
    cut = cut_of(decision)
    assert cut.marks == {"b": {P1: Mark(5)}, "a": {P0: Mark(3, finished=True)}}
    leader.advanced(decision)
    hear(leader, "b", p1="finished@6")
    assert advance(leader).limit is END


def test_the_next_leader_knows_from_the_cut_which_partitions_have_finished() -> None:
    leader = term()
    hear(leader, "a", p0="finished")
    hear(leader, "b", p1="12@4")
    cut = cut_of(advance(leader))
    successor = replace(term(limit=Limit((20,))), generation=4, finished=cut.finished(), reports={})
    hear(successor, "b", generation=4, p1="25@5")
    decision = advance(successor)
    assert cut_of(decision).find(P0) == Mark(None, finished=True)


def test_partitions_have_finished_by_the_cut_and_not_by_later_reports() -> None:
    leader = term(P0, P1)
    hear(leader, "a", p0="finished@3")
    hear(leader, "b", p1="12@4")
    decision = advance(leader)
    del leader.reports["a"]  # it has seen the cut and left before our write was answered
    hear(leader, "b", p1="finished@9")  # this one is in no cut yet
    leader.advanced(decision)
    assert leader.finished == {P0: ("a", Mark(3, finished=True))}


def test_the_limit_waits_for_a_member_that_comes_back_with_a_finished_partition() -> None:
    leader = term(limit=Limit((20,)))
    leader.finished = {P0: ("a", Mark(3, finished=True))}
    hear(leader, "a2", p0="15@2")
    hear(leader, "b", p1="25@5")
    waits(leader, "a2 has work before the limit")
    hear(leader, "a2", p0="finished@3")
    cut = cut_of(advance(leader))
    assert cut.marks == {"a2": {P0: Mark(3, finished=True)}, "b": {P1: Mark(5)}}


# -- the operator ----------------------------------------------------------------------------------------------------------


def test_hold_off_and_what_cannot_be_read() -> None:
    leader = term(P0, request=HOLD)
    hear(leader, "a", p0="12@3")
    waits(leader, "on hold")
    leader.request = None
    waits(leader, "cannot be read")
    leader.request = OFF
    decision = advance(leader)
    assert decision.steps == (Step(OPEN),)
    leader.advanced(decision)
    waits(leader, "released")
    leader.request = Request.every(10)
    waits(leader, "released")


def test_off_needs_no_report() -> None:
    assert advance(term(request=OFF)).limit is OPEN


def test_on_hold_not_even_a_finished_run_ends() -> None:
    leader = term(P0, request=HOLD)
    hear(leader, "a", p0="finished@1")
    waits(leader, "on hold")


def test_another_period_takes_effect_at_the_next_boundary() -> None:
    leader = term(P0)
    hear(leader, "a", p0="12@3")
    leader.request = Request.every(7)
    assert advance(leader).limit == Limit((14,))
    leader.request = Request.every(100)
    assert advance(leader).limit == Limit((100,))


@pytest.mark.parametrize(
    ("period", "limit"), [(1, (20, 30, 31)), (7, (20, 30, 35)), (30, (20, 30, 60)), (10, (20, 30, 40))]
)
def test_another_period_never_moves_what_is_open(period: int, limit: tuple[int, ...]) -> None:
    leader = term(P0, limit=Limit((10, 20, 30)), lookahead=2, request=Request.every(period))
    hear(leader, "a", p0="12@3")
    assert advance(leader).limit == Limit(limit)


# -- to where --------------------------------------------------------------------------------------------------------------


def test_lookahead_closes_the_floor_and_opens_one_more() -> None:
    leader = term(limit=Limit((10, 20, 30)), lookahead=2)
    hear(leader, "a", p0="12@3")
    hear(leader, "b", p1="28@9")
    decision = advance(leader)
    assert decision.limit == Limit((20, 30, 40))
    cut = cut_of(decision)
    assert (cut.previous, cut.limit) == (0, 10)
    leader.advanced(decision)
    assert leader.closed == 10
    hear(leader, "a", p0="45@4")
    assert advance(leader).limit == Limit((30, 40, 50)), "b is still blocked at 28"


def test_the_end_of_the_run_is_the_last_boundary() -> None:
    leader = term(end=25)
    hear(leader, "a", p0="12@3", p1="24@9")
    leader.advanced(advance(leader))
    assert leader.limit == Limit((20,))
    hear(leader, "a", p0="40@4", p1="24@9")
    decision = advance(leader)
    assert decision.limit == Limit((25,))
    leader.advanced(decision)
    hear(leader, "a", p0="40@4", p1="25@10")
    assert advance(leader).limit is END, "what lies at or past the end never comes"


def test_past_the_end_and_finished_is_the_end() -> None:
    leader = term(end=25)
    hear(leader, "a", p0="40@4", p1="finished@9")
    decision = advance(leader)
    assert decision.limit is END
    assert cut_of(decision).marks == {"a": {P0: Mark(4), P1: Mark(9, finished=True)}}


def test_past_the_end_and_idle_waits_for_the_idle_one() -> None:
    leader = term(end=25)
    hear(leader, "a", p0="40@4", p1="idle@9")
    waits(leader, "some are idle before the end of the run")
    hear(leader, "a", p0="40@4", p1="17@9")
    assert advance(leader).limit == Limit((20,))


def test_a_record_from_the_far_future_pulls_the_limit_no_further_than_the_clock_allows() -> None:
    leader = term(P0, limit=Limit((500,)), ahead=1000)
    hear(leader, "a", p0=f"{MAX_TIMESTAMP}@3")
    decision = advance(leader, now=123)
    assert decision.limit == Limit((1130,))
    leader.advanced(decision)
    wait = waits(leader, "waiting for the clock", now=129)
    assert wait.until == 130
    assert advance(leader, now=130).limit == Limit((1140,))


def test_the_clock_holds_back_with_lookahead_too() -> None:
    leader = term(P0, limit=Limit((1130, 1140)), lookahead=1, ahead=1000)
    hear(leader, "a", p0=f"{MAX_TIMESTAMP}@3")
    assert waits(leader, "waiting for the clock", now=100).until == 130
    assert advance(leader, now=130).limit == Limit((1140, 1150))


def test_the_greatest_timestamp_has_a_limit_above_it() -> None:
    leader = term(P0, ahead=MAX_LIMIT)
    hear(leader, "a", p0=f"{MAX_TIMESTAMP}@3")
    assert advance(leader).limit == Limit((MAX_LIMIT,))


# -- caught up with the clock ------------------------------------------------------------------------------------------------


def test_behind_the_clock_no_policy_matters() -> None:
    for policy in ("follow", "release", 1000):
        leader = term(P0, caught_up=policy)
        hear(leader, "a", p0="12@3")
        assert advance(leader, now=20).limit == Limit((20,))
        assert advance(leader, now=20).request is None


def test_follow_keeps_pace_with_the_clock() -> None:
    leader = term(P0, caught_up="follow")
    hear(leader, "a", p0="12@3")
    decision = advance(leader, now=15)
    assert (decision.limit, decision.request) == (Limit((20,)), None)


def test_release_opens_the_gate_for_good() -> None:
    leader = term(P0, caught_up="release")
    hear(leader, "a", p0="12@3")
    decision = advance(leader, now=19)
    assert (decision.limit, decision.request) == (OPEN, OFF)
    assert cut_of(decision).limit == 10
    leader.advanced(decision)
    assert leader.request == OFF
    waits(leader, "released")


def test_a_longer_period_takes_over() -> None:
    leader = term(P0, caught_up=100)
    hear(leader, "a", p0="12@3")
    decision = advance(leader, now=19)
    assert (decision.limit, decision.request) == (Limit((100,)), Request.every(100))
    leader.advanced(decision)
    assert leader.request == Request.every(100)
    hear(leader, "a", p0="120@4")
    decision = advance(leader, now=119)
    assert (decision.limit, decision.request) == (Limit((200,)), None)


# -- the cut -----------------------------------------------------------------------------------------------------------------


def test_cuts_are_numbered_by_the_version_and_tile() -> None:
    leader = term(P0, limit=Limit((10,)))
    seen = []
    for ts in (12, 57, 60, 99):
        hear(leader, "a", p0=f"{ts}@{ts}")
        decision = advance(leader)
        seen.append(cut_of(decision))
        leader.advanced(decision)
    assert [cut.number for cut in seen] == [8, 9, 10, 11]
    assert [(cut.previous, cut.limit) for cut in seen] == [(0, 10), (10, 20), (20, 60), (60, 70)]


def test_a_cut_with_names_that_could_be_taken_for_something_else() -> None:
    leader = term(P0)
    leader.reports["100%s-1"] = report_of(3, 10, {"orders.0": "12"})
    assert cut_of(advance(leader)).marks == {"100%s-1": {P0: Mark(None)}}


def test_members_that_come_and_go_do_not_confuse_the_cut() -> None:
    leader = term()
    for n in range(60):
        leader.reports = {}
        hear(leader, f"m{n}", p0=f"{leader.limit.floor}@{n}")
        hear(leader, f"n{n}", p1=f"{leader.limit.floor}@{n}")
        decision = advance(leader)
        assert cut_of(decision).marks == {f"m{n}": {P0: Mark(n)}, f"n{n}": {P1: Mark(n)}}
        leader.advanced(decision)


# -- who blocks --------------------------------------------------------------------------------------------------------------


def who(leader: Leader, owners: dict[Partition, str] | None = None) -> list[Blocker]:
    """The blockers as a status would list them."""
    settings = leader.settings
    return blockers(leader.limit, leader.generation, settings.partitions, leader.reports, leader.finished, owners or {})


def test_the_blockers() -> None:
    leader = term(P0, P1, P2)
    assert who(leader, {P1: "b"}) == [
        Blocker(P0, None, BlockerState.UNOWNED),
        Blocker(P1, "b", BlockerState.UNREPORTED),
        Blocker(P2, None, BlockerState.UNOWNED),
    ]
    hear(leader, "a", p0="12@3", p1="running", p2="9")
    assert who(leader) == [Blocker(P1, "a", BlockerState.RUNNING), Blocker(P2, "a", BlockerState.RUNNING)]
    hear(leader, "a", limit=5, p0="12@3", p1="idle@5", p2="finished@7")
    assert who(leader) == [Blocker(P1, "a", BlockerState.IDLE)]
    hear(leader, "a", generation=2, p0="12@3", p1="idle@5", p2="finished@7")
    assert [b.state for b in who(leader)] == ["unreported"] * 3
    hear(leader, "a", p0="12@3", p1="idle@5", p2="finished@7")
    assert who(leader) == []
    leader.limit = OPEN
    leader.reports = {}
    assert who(leader) == []


def test_a_finished_partition_blocks_only_if_somebody_runs_it_again() -> None:
    leader = term(P0)
    leader.finished = {P0: ("a", Mark(3, finished=True))}
    assert who(leader) == []
    hear(leader, "a2", p0="running")
    assert who(leader) == [Blocker(P0, "a2", BlockerState.RUNNING)]


def test_a_partition_that_two_members_report_blocks() -> None:
    leader = term(P0)
    hear(leader, "a", p0="12@3")
    hear(leader, "b", p0="12@3")
    assert who(leader, {P0: "b"}) == [Blocker(P0, "b", BlockerState.DISPUTED)]


words = st.sampled_from(["idle@1", "finished@2", "running"]) | st.integers(0, 60).map("{}@3".format)
heard = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.tuples(
        st.sampled_from([2, 3, 3, 3]),
        st.sampled_from([0, 10, 20, 20]),
        st.dictionaries(st.sampled_from(["orders.0", "orders.1", "orders.2"]), words, min_size=1, max_size=3),
    ),
    max_size=3,
)


@given(heard, st.sets(st.sampled_from([P0, P1])), st.sampled_from([Limit((20,)), Limit((20, 30)), Limit((20, 33, 40))]))
def test_it_moves_only_if_nobody_blocks_and_then_it_moves(
    said: dict[str, tuple[int, int, dict[str, str]]], gone: set[Partition], limit: Limit
) -> None:
    """The rule against a slow restatement of it, partition by partition."""
    leader = term(P0, P1, limit=limit, lookahead=len(limit.boundaries) - 1)
    leader.finished = {p: ("z", Mark(2, finished=True)) for p in gone}
    leader.reports = {name: report_of(*facts) for name, facts in said.items()}
    decision = leader.decide(NOW)
    blocking = who(leader)
    outside = any("orders.2" in entries for _, _, entries in said.values())
    stale_but_done = False
    least: list[int] = []
    idle = False
    for generation, _, entries in said.values():
        stale_but_done = stale_but_done or generation != 3
        for value in entries.values():
            word = value.partition("@")[0]
            idle = idle or word == "idle"
            if word.isdigit():
                least.append(int(word))
    if blocking or outside or stale_but_done:
        assert isinstance(decision, Wait)
    elif least:
        assert isinstance(decision, Advance)
        assert decision.limit.floor > min(least) >= limit.floor
        assert decision.limit.value >= limit.value
        assert limit.precedes(decision.limit)
        cut = cut_of(decision)
        assert cut.limit == limit.floor
        assert set(cut.owners()) == {P0, P1}
    elif idle:
        assert isinstance(decision, Wait)
    else:
        assert isinstance(decision, Advance)
        assert decision.limit.mode is Mode.END
