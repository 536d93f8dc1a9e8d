"""Each rule of the protocol, by the history that breaks without it.

Every test plays one history twice: with all rules, where the invariants hold and the run reaches its end; and with the one rule
switched off, where the same history breaks the invariant that the rule protects. So no test here can pass without a check.
The table "What breaks without each rule" in docs/explanation/protocol.md names the test of each rule.

These are tests of the *model*. They show that the protocol needs a rule. Where a rule is a decision of the core (a report that
counts, a limit that does not go back), the model runs the core itself, and most of these tests fail if the core lacks it. The
transactions are the model's own: if a check is taken out of aiokcc.runtime, these tests still pass, and those in
tests/unit/runtime/test_conditions.py fail.

Four rows of that table are tested where they belong: *host lease* (processes of one host), *one format* (joining), *fenced
commit* (committed offsets) and *intent before publish* (Spark).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aiokcc.core import paths
from aiokcc.core.limit import Limit, Mode, Request, RequestKind
from aiokcc.core.partitions import Partition
from tests.property.barrier_model import BarrierModel, Broken, Member, Write

P0, P1, P2 = (Partition("a", n) for n in range(3))
HOLD, OFF = Request(RequestKind.HOLD), Request(RequestKind.OFF)


def done(model: BarrierModel, write: Write | None) -> None:
    """Let the write and its answer arrive."""
    assert write is not None
    model.land(write)
    model.reply(write)


def take_part(model: BarrierModel, m: Member, *, idle: bool = False) -> None:
    """Join, claim and process what passes; read the end and report idle, if asked to; report, if there is something new."""
    model.join(m)
    model.see_generation(m)
    model.see(m)
    work(model, m, idle=idle)


def work(model: BarrierModel, m: Member, *, idle: bool = False) -> None:
    """Do the same in a member that has joined, and under the limit that it has seen."""
    model.see_assignment(m)
    model.claim(m)
    model.start(m)
    for partition in m.progress.partitions:
        while model.handle(m, partition):
            pass
        model.finish(m, partition)
        if idle:
            model.look(m, partition)
            model.idle(m, partition)
    write = model.report(m)
    if write is not None:
        done(model, write)


def elect(model: BarrierModel, m: Member) -> None:
    """Let the member take over, and read all reports."""
    model.join(m)
    write = model.take_over(m)
    if write is not None:
        done(model, write)
    hear(model, m)


def hear(model: BarrierModel, m: Member) -> None:
    """Let the leader read all reports and the request."""
    assert m.term is not None
    for name in {*model.tree.under(paths.PROGRESS), *m.term.leader.reports}:
        model.hear(m, name)
    model.hear_request(m)


def advance(model: BarrierModel, m: Member) -> bool:
    """Let the leader read everything and decide; return whether the limit moved."""
    before = model.limit
    hear(model, m)
    write = model.decide(m)
    if write is not None:
        done(model, write)
    return model.limit != before


def both(
    history: Callable[[BarrierModel], None], rule: str, message: str, make: Callable[[frozenset[str]], BarrierModel]
) -> None:
    """Check that the history holds and the run ends with the rule, and breaks as the table says without it."""
    model = make(frozenset())
    history(model)
    model.settle()
    with pytest.raises(Broken, match=message):
        history_without = make(frozenset({rule}))
        history(history_without)
        history_without.settle()


def two(first: list[int], second: list[int], *, lookahead: int = 0) -> Callable[[frozenset[str]], BarrierModel]:
    """Make a model in which x has p0 and y has p1; p2 is not in the set yet."""
    logs = {P0: first, P1: second, P2: [1, 2]}
    return lambda off: BarrierModel(logs, {P0: "x", P1: "y"}, without=off, lookahead=lookahead)


def test_idle_at_t() -> None:
    """p1 is idle under 10; a record of 15 comes; p0 moves the limit to 20; the old *idle* would close 20 past the unread 15."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, x)
        take_part(model, y, idle=True)
        take_part(model, x)
        model.append(P1, 15)
        assert advance(model, x)
        assert model.limit == Limit((20,))
        take_part(model, x)
        advance(model, x)

    both(history, "idle at T", "with records left before it", two([12, 25], []))


def test_idle_at_t_where_the_end_keeps_the_limit() -> None:
    """With lookahead and an end the floor moves and the limit stays; *idle* holds for the floor nevertheless."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, x)
        take_part(model, y, idle=True)
        take_part(model, x)
        model.append(P1, 15)
        assert advance(model, x)
        assert model.limit == Limit((20, 25))
        take_part(model, x)
        advance(model, x)

    def make(off: frozenset[str]) -> BarrierModel:
        return BarrierModel({P0: [12, 24], P1: []}, {P0: "x", P1: "y"}, without=off, lookahead=2, end=25)

    both(history, "idle at T", "with records left before it", make)


def test_fresh_end() -> None:
    """The end of p1 was read under 10; a record came; then 20 was seen: *idle* under 20 would be false."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, x)
        take_part(model, y, idle=True)
        take_part(model, x)
        model.append(P1, 15)
        assert advance(model, x)
        model.read_limit(y)
        model.see_limit(y)
        model.idle(y, P1)  # by the look it took under 10
        write = model.report(y)
        if write is not None:
            done(model, write)
        take_part(model, x)
        advance(model, x)

    both(history, "fresh end", "with records left before it", two([12, 25], []))


def test_sets_not_numbers() -> None:
    """Two members report p0, an old member session and the new one; the count is right, and p1 was never reported.

    The check of the reports would refuse this advance too, so it is off on both sides here.
    """

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, y)
        take_part(model, x)
        hear(model, y)
        model.expire(x)
        model.answer(x)
        take_part(model, x)
        model.hear(y, x.member_session)  # and not yet that the other one is gone
        write = model.decide(y)
        if write is not None:
            done(model, write)

    make = two([12, 25], [5, 7])
    both(history, "sets, not numbers", "completeness: cut holds", lambda off: make(off | {"check of reports"}))


def test_check_of_generation() -> None:
    """The advance is in flight; a partition joins the set; the advance would land on reports that do not know of it."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, x)
        take_part(model, x)
        take_part(model, y)
        hear(model, x)
        flying = model.decide(x)
        assert flying is not None
        elect(model, y)
        assert model.assign(y, P2, "y")
        assert model.land(flying) == (not model.has("check of generation"))

    both(history, "check of generation", "completeness: the cut holds", two([12, 25], [13, 27]))


def test_take_over_bump() -> None:
    """The old leader's advance was sent before its session ended, and lands after the new leader took over."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        z = model.members["z"] = Member("z")
        elect(model, z)
        take_part(model, x)
        take_part(model, y)
        hear(model, z)
        flying = model.decide(z)
        assert flying is not None
        model.expire(z)
        elect(model, y)
        assert model.land(flying) == (not model.has("take-over bump"))

    both(history, "take-over bump", "one writer", two([12, 25], [13, 27]))


def test_check_of_period() -> None:
    """Hold is acknowledged, then the advance that was in flight arrives."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, x)
        take_part(model, x)
        take_part(model, y)
        hear(model, x)
        flying = model.decide(x)
        assert flying is not None
        model.ask(HOLD)
        assert not model.land(flying)
        model.reply(flying)
        assert not advance(model, x), "the leader knows now"

    both(history, "check of period", "hold was acknowledged", two([12, 25], [13, 27]))


def test_check_of_reports() -> None:
    """The advance rests on the report of a member that is gone; its successor has read the cut before, and starts there."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, y)
        take_part(model, x)
        take_part(model, y)
        hear(model, y)
        flying = model.decide(y)
        assert flying is not None
        model.crash(x)
        model.tree.expire(x.session or 0)
        x = model.members["x"]
        for step in (model.join, model.see_assignment, model.claim, model.start):
            step(x)
        assert model.land(flying) == (not model.has("check of reports"))
        model.handle(x, P0)

    both(history, "check of reports", "no loss: a.0@0 comes again", two([1, 12, 25], [13, 27]))


def test_level() -> None:
    """The generation changes after the report for this limit. A member that reports once per limit never reports again."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, x)
        take_part(model, x)
        take_part(model, y)
        model.expire(x)
        model.answer(x)
        elect(model, x)

    both(history, "level", "liveness", two([12, 25], [13, 27]))


def test_unique_name_where_reports_are_not_level_triggered() -> None:
    """A restarted member meets its old member session's node, which then expires under it. It matters only without *level*."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, y)
        model.join(x)
        old = x.session
        assert old is not None
        model.crash(x)
        x = model.members["x"]
        model.join(x)
        model.tree.expire(old)
        take_part(model, x)

    make = two([12, 25], [13, 27])
    for off in ({"unique name"}, {"level"}):
        model = make(frozenset(off))
        history(model)
        model.settle()
        assert model.limit.mode is Mode.END
    model = make(frozenset({"unique name", "level"}))
    history(model)
    with pytest.raises(Broken, match="liveness"):
        model.settle()


def test_deadline() -> None:
    """The session has expired, and the process goes on: a successor may run the same partition already."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, y)
        model.join(x)
        model.see_assignment(x)
        model.claim(x)
        model.start(x)
        assert model.handle(x, P0)
        model.expire(x)
        assert not model.handle(x, P0), "past the deadline nothing starts"

    both(history, "deadline", "one owner: x started", two([1, 2, 12], [13]))


def test_deadline_is_lifted_by_an_answer() -> None:
    model = two([1, 2, 12], [13])(frozenset())
    x = model.members["x"]
    take = [model.join, model.see_assignment, model.claim, model.start, model.stall]
    for step in take:
        step(x)
    assert not model.handle(x, P0)
    assert model.report(x) is None
    model.answer(x)
    assert model.handle(x, P0)


def test_owner_lock() -> None:
    """p0 moves to y, and y sees it before x does."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        take_part(model, x)
        elect(model, y)
        assert model.assign(y, P0, "y")
        model.append(P0, 3)
        model.see_assignment(y)
        model.see_generation(y)
        model.claim(y)
        model.start(y)
        assert not model.handle(y, P0), "x still holds the lock"

    both(history, "owner lock", "one owner: y started", two([1, 2], [13]))


def test_leader_applies_requests() -> None:
    """Off is taken back before the leader saw it. Members that watch the request themselves would see it late, and pass."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        take_part(model, x)
        elect(model, y)
        model.ask(OFF)
        model.watch_request(x)
        model.ask(Request.every(10))
        model.obey(x)
        assert not model.handle(x, P0)

    both(history, "leader applies requests", "alignment: x started a.0@0 with ts 12", two([12, 25], [13]))


def test_off_is_for_all_once_the_leader_has_applied_it() -> None:
    model = two([12, 25], [13, 27])(frozenset())
    x, y = model.members["x"], model.members["y"]
    take_part(model, x)
    elect(model, y)
    model.ask(OFF)
    assert advance(model, y)
    assert not model.handle(x, P0), "x has not seen it"
    model.read_limit(x)
    model.see_limit(x)
    assert model.handle(x, P0)
    assert model.handle(x, P0)


def test_finished_in_cut() -> None:
    """A member whose partitions are finished, and are in a cut, leaves: the limit does not wait for its report."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, y)
        take_part(model, x)
        take_part(model, y)
        assert advance(model, y)
        model.expire(x)
        del model.members["x"]

    def make(off: frozenset[str]) -> BarrierModel:
        return BarrierModel({P0: [1, 2], P1: [13, 27, 48]}, {P0: "x", P1: "y"}, without=off, bounded=[P0])

    both(history, "finished in cut", "liveness", make)


def test_resume_at_cut() -> None:
    """The commit lags behind the last cut, and the member starts again: records of closed periods would come in a later one."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, y)
        model.join(x)
        model.see_assignment(x)
        model.claim(x)
        model.start(x)
        model.handle(x, P0)
        model.commit(x, P0)
        take_part(model, x)
        take_part(model, y)
        assert advance(model, y)
        assert model.committed[P0] == 1
        model.crash(x)
        model.tree.expire(x.session or 0)
        take_part(model, model.members["x"])

    both(history, "resume at cut", "no loss: a.0@1 comes again", two([1, 2, 12, 25], [13, 27]))


def test_t_after_claim() -> None:
    """A standby reads the last cut and waits for the lock. The owner closes a period and is killed before it has committed."""

    def history(model: BarrierModel) -> None:
        x, y, z = (model.members[name] for name in "xyz")
        elect(model, y)
        take_part(model, x)
        take_part(model, y)
        model.join(z)
        model.see_assignment(z)
        model.claim(z)
        assert advance(model, y)
        model.crash(x)
        model.tree.expire(x.session or 0)
        model.see_generation(z)
        work(model, z)

    def make(off: frozenset[str]) -> BarrierModel:
        return BarrierModel({P0: [1, 12, 25], P1: [13, 27]}, {P0: "x", P1: "y"}, standbys={P0: "z"}, without=off)

    both(history, "T after claim", "no loss: a.0@0 comes again", make)


@pytest.mark.parametrize("lookahead", [0, 2])
def test_resume_at_cut_same_gate(lookahead: int) -> None:
    """Frozen past its session, x loses p0; y runs it over several cuts and leaves; x wins the lock back in the same gate.

    Its task is still at its old position. It must get the new one before it starts another record.
    """

    def history(model: BarrierModel) -> None:
        x, y, z = (model.members[name] for name in "xyz")
        elect(model, z)
        model.join(x)
        model.see_assignment(x)
        model.claim(x)
        model.start(x)
        assert model.handle(x, P0)
        model.expire(x)
        for _ in range(3):
            take_part(model, y)
            advance(model, z)
        assert len(model.cuts) >= 2
        model.release(y, P0)
        y.progress.forget(P0)
        model.answer(x)
        take_part(model, x)

    def make(off: frozenset[str]) -> BarrierModel:
        logs = {P0: [1, 2, 12, 25, 37, 48], P1: [13, 27, 38, 49]}
        return BarrierModel(
            logs,
            {P0: "x", P1: "y"},
            standbys={P0: "y", P2: "z"},
            without=off,
            lookahead=lookahead,
        )

    both(history, "resume at cut, same gate", "no loss: a.0@1 comes again", make)


def test_a_gate_without_another_owner_in_between_continues_where_it_was() -> None:
    """The session is lost and the lock claimed again, and the last cut is our own: the task keeps its position."""
    model = two([1, 12, 25, 37], [13, 27, 38])(frozenset())
    x, y = model.members["x"], model.members["y"]
    elect(model, y)
    take_part(model, x)
    take_part(model, y)
    assert advance(model, y)
    model.expire(x)
    model.answer(x)
    for step in (model.join, model.see_assignment, model.claim, model.start):
        step(x)
    assert not x.progress.partitions[P0].displaced
    assert x.positions[P0] == 1
    model.settle()


def test_owned_only() -> None:
    """A member runs p1 and waits for the lock of p0, which x holds. The limit does not wait for that."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, y)
        take_part(model, x)
        take_part(model, y)
        assert P0 in y.progress.partitions

    def make(off: frozenset[str]) -> BarrierModel:
        logs = {P0: [12, 25], P1: [13, 27]}
        return BarrierModel(logs, {P0: "x", P1: "y"}, standbys={P0: "y"}, without=off)

    both(history, "owned only", "liveness", make)


@pytest.mark.parametrize("lookahead", [0, 2])
def test_withheld(lookahead: int) -> None:
    """X has gathered the records of a period and works on them for so long that it reports late. The limit waits for it."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, y)
        take_part(model, y)
        x.progress.withheld_from = 0
        take_part(model, x)
        assert x.progress.has_arrived
        late = model.report(x, late=True)
        assert late is not None or not model.has("withheld")
        if late is not None:
            done(model, late)
        if advance(model, y):
            raise Broken("completeness: a period closed whose records are not processed")
        x.progress.withheld_from = None
        done(model, model.report(x))
        assert advance(model, y)

    both(history, "withheld", "whose records are not processed", two([2, 35], [3, 37], lookahead=lookahead))


def test_withheld_under_lookahead() -> None:
    """X has processed a period and gathered the next two. It reports the first one only, and a crash loses nothing."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, y)
        take_part(model, y)
        x.progress.withheld_from = 20
        take_part(model, x)
        assert advance(model, y)
        if model.limit.floor > 20:
            raise Broken("completeness: a period closed whose records are not processed")
        assert model.limit.floor == 20
        model.crash(x)
        model.tree.expire(x.session or 0)

    both(history, "withheld", "whose records are not processed", two([2, 12, 25], [3, 13, 27], lookahead=3))


@pytest.mark.parametrize("lookahead", [0, 2])
@pytest.mark.parametrize("gone", ["releases", "leaves"])
def test_a_standby_takes_over_while_an_advance_is_in_flight(gone: str, lookahead: int) -> None:
    """The report of x is on its way into a cut when x releases p0. y claims it, reads the cut before, and starts there."""

    def history(model: BarrierModel) -> None:
        x, y, z = (model.members[name] for name in "xyz")
        elect(model, z)
        take_part(model, x)
        take_part(model, y)
        hear(model, z)
        flying = model.decide(z)
        assert flying is not None
        if gone == "releases":
            model.release(x, P0)
        else:
            model.leave(x)
        model.claim(y)
        model.start(y)
        assert P0 in y.positions
        y.positions[P0] = 0  # as one who does not commit
        assert model.land(flying) == (not model.has("check of reports"))
        model.handle(y, P0)

    def make(off: frozenset[str]) -> BarrierModel:
        logs = {P0: [1, 12, 25], P1: [13, 27]}
        return BarrierModel(logs, {P0: "x", P1: "y"}, standbys={P0: "y", P2: "z"}, without=off, lookahead=lookahead)

    both(history, "check of reports", "no loss: a.0@0 comes again", make)


def test_a_partition_finished_in_no_cut_is_reported_finished_again_by_the_next_owner() -> None:
    """A member finishes p0 and leaves before a cut holds it. Its report is deleted with its session; y reports it again."""
    model = BarrierModel({P0: [1, 2], P1: [13, 27]}, {P0: "x", P1: "y"}, standbys={P0: "y"}, bounded=[P0])
    x, y = model.members["x"], model.members["y"]
    elect(model, y)
    take_part(model, x)
    model.leave(x)
    del model.members["x"]
    take_part(model, y)
    assert advance(model, y)
    assert model.cuts[-1].owner(P0) == y.member_session
    model.settle()


def test_clamp() -> None:
    """With lookahead the partition is past the floor; a commit there would put what lies between into the wrong cut."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, y)
        take_part(model, x)
        model.commit(x, P0)
        model.crash(x)
        model.tree.expire(x.session or 0)
        take_part(model, model.members["x"])
        take_part(model, y)
        advance(model, y)

    both(history, "clamp", "which is not the first record past it", two([5, 12, 15, 25], [13, 27], lookahead=1))


def test_monotone() -> None:
    """A smaller period under lookahead: what is open stays open."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, y)
        take_part(model, x)
        take_part(model, y)
        model.ask(Request.every(1))
        assert advance(model, y)
        assert model.limit == Limit((30, 31, 32))

    both(history, "monotone", "monotony", two([5, 12, 25], [13, 27], lookahead=2))


def test_generation_in_report() -> None:
    """p1 moves from y to x; the report y made before would complete the new assignment."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, x)
        take_part(model, x)
        take_part(model, y)
        hear(model, x)
        assert model.assign(x, P1, "x")
        model.see_generation(x)
        advance(model, x)

    both(history, "generation in report", "a.1 was not reported under the generation 2", two([12, 25], [13, 27]))


def test_one_transaction() -> None:
    """An advance is refused, because the operator holds; a name that is announced all the same is past the store's limit."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, x)
        take_part(model, y)
        take_part(model, x)
        hear(model, x)
        flying = model.decide(x)
        assert flying is not None
        model.ask(HOLD)
        assert not model.land(flying)
        model.reply(flying)
        model.catch_up(y)
        work(model, y)

    both(history, "one transaction", "alignment: y started", two([12, 25], [13, 26]))


@pytest.mark.parametrize("periods", [(10, 5), (10, 10)])
def test_whole_limit(periods: tuple[int, int]) -> None:
    """An event that only means "one period on" is not true after a shorter period, nor after a limit near the end of a run."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, x)
        take_part(model, y)
        take_part(model, x)
        model.ask(Request.every(periods[1]))
        assert advance(model, x)
        model.catch_up(y)
        work(model, y)

    logs = {P0: [11, 25], P1: [12, 17]}
    end = None if periods[1] < periods[0] else 15
    both(
        history,
        "whole limit",
        "alignment: y started",
        lambda off: BarrierModel(logs, {P0: "x", P1: "y"}, without=off, end=end),
    )


@pytest.mark.parametrize("name", ["1:90", "3:90", "99:90", "1:open", "1:90:0123abcd", "nonsense", "1", "1:5"])
def test_checksum(name: str) -> None:
    """Somebody creates a node by hand. A member that takes any name for the limit runs past the one in the store."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, x)
        take_part(model, y)
        take_part(model, x)
        model.create_by_hand(paths.limit(name))
        model.catch_up(y)
        work(model, y)

    if ":90" in name or "open" in name:
        both(history, "checksum", "alignment: y started", two([12, 25], [13, 26]))
    else:
        model = two([12, 25], [13, 26])(frozenset())
        history(model)
        model.settle()


def test_read_when_in_place() -> None:
    """The connection of y breaks, and the limit moves. Nobody announces it again, and the limit waits for y for ever."""

    def history(model: BarrierModel) -> None:
        x, y = model.members["x"], model.members["y"]
        elect(model, x)
        take_part(model, y)
        take_part(model, x)
        model.disconnect(y)
        assert advance(model, x)
        model.connect(y)
        model.catch_up(y)
        work(model, y)

    both(history, "read when in place", "liveness", two([12, 25], [13, 26]))


@pytest.mark.parametrize("lookahead", [0, 3])
def test_a_member_that_is_only_told_goes_through_the_whole_run(lookahead: int) -> None:
    """It never reads the limit after it has joined, over jumps, a changed period and the end."""
    model = two([3, 12, 25, 47, 48, 90, 101], [4, 13, 26, 47, 81, 90, 95], lookahead=lookahead)(frozenset())
    x, y = model.members["x"], model.members["y"]
    model.ends[P0] = model.ends[P1] = 7
    elect(model, x)
    take_part(model, x)
    take_part(model, y)
    y.inbox.clear()
    for n in range(30):
        if n == 3:
            model.ask(Request.every(5))
        take_part(model, x)
        advance(model, x)
        while y.announced:
            model.see_announcement(y)
            assert not y.inbox, "nothing is read"
        assert y.progress.limit == model.limit
        work(model, y)
    assert model.over
