"""Each rule of the protocol, by the history that breaks without it.

Every test plays one history twice: with all rules, where the invariants hold and the run reaches its end; and with the one rule
switched off, where the very same history breaks what the rule is there for. So no test here can pass by looking away.
*Check of reports* is not in the protocol's table: the leader in its term makes it, and *no loss* needs it.

Two rows of the protocol's table are left to the parts they belong to: *fenced commit* (committed offsets) and *intent before
publish* (Spark).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aiokcc.core import paths
from aiokcc.core.limit import Limit, Mode, Request, RequestKind
from aiokcc.core.partitions import Partition
from tests.property.world import Broken, Member, World, Write

P0, P1, P2 = (Partition("a", n) for n in range(3))
HOLD, OFF = Request(RequestKind.HOLD), Request(RequestKind.OFF)


def done(world: World, write: Write | None) -> None:
    """The write lands, and its answer arrives."""
    assert write is not None
    world.land(write)
    world.reply(write)


def take_part(world: World, m: Member, *, idle: bool = False) -> None:
    """Join, claim, process whatever passes; look and say idle, if asked to; report, if there is something to say."""
    world.join(m)
    world.see_generation(m)
    m.progress.see(world.limit)
    world.see_assignment(m)
    world.claim(m)
    world.start(m)
    for partition in m.progress.partitions:
        while world.handle(m, partition):
            pass
        world.finish(m, partition)
        if idle:
            world.look(m, partition)
            world.idle(m, partition)
    write = world.report(m)
    if write is not None:
        done(world, write)


def elect(world: World, m: Member) -> None:
    """The member takes office, and hears everybody."""
    world.join(m)
    write = world.take_over(m)
    if write is not None:
        done(world, write)
    hear(world, m)


def hear(world: World, m: Member) -> None:
    """The leader reads all reports and the request."""
    assert m.term is not None
    for name in {*world.tree.under(paths.PROGRESS), *m.term.leader.reports}:
        world.hear(m, name)
    world.hear_request(m)


def advance(world: World, m: Member) -> bool:
    """The leader hears everybody and decides; whether the limit moved."""
    before = world.limit
    hear(world, m)
    write = world.decide(m)
    if write is not None:
        done(world, write)
    return world.limit != before


def both(history: Callable[[World], None], rule: str, message: str, make: Callable[[frozenset[str]], World]) -> None:
    """With the rule the history holds and the run ends; without it, it breaks as the table says."""
    world = make(frozenset())
    history(world)
    world.settle()
    with pytest.raises(Broken, match=message):
        history_without = make(frozenset({rule}))
        history(history_without)
        history_without.settle()


def two(first: list[int], second: list[int], *, lookahead: int = 0) -> Callable[[frozenset[str]], World]:
    """p0 with x and p1 with y; p2 is not in the set yet."""
    logs = {P0: first, P1: second, P2: [1, 2]}
    return lambda off: World(logs, {P0: "x", P1: "y"}, without=off, lookahead=lookahead)


def test_idle_at_t() -> None:
    """p1 is idle under 10; a record of 15 comes; p0 moves the limit to 20; the old *idle* would close 20 past the unread 15."""

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        elect(world, x)
        take_part(world, y, idle=True)
        take_part(world, x)
        world.append(P1, 15)
        assert advance(world, x)
        assert world.limit == Limit((20,))
        take_part(world, x)
        advance(world, x)

    both(history, "idle at T", "with records left before it", two([12, 25], []))


def test_idle_at_t_where_the_end_keeps_the_limit() -> None:
    """With lookahead and an end the floor moves and the limit stays; *idle* holds for the floor all the same."""

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        elect(world, x)
        take_part(world, y, idle=True)
        take_part(world, x)
        world.append(P1, 15)
        assert advance(world, x)
        assert world.limit == Limit((20, 25))
        take_part(world, x)
        advance(world, x)

    def make(off: frozenset[str]) -> World:
        return World({P0: [12, 24], P1: []}, {P0: "x", P1: "y"}, without=off, lookahead=2, end=25)

    both(history, "idle at T", "with records left before it", make)


def test_fresh_end() -> None:
    """The end of p1 was read under 10; a record came; then 20 was seen: *idle* under 20 would be false."""

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        elect(world, x)
        take_part(world, y, idle=True)
        take_part(world, x)
        world.append(P1, 15)
        assert advance(world, x)
        world.read_limit(y)
        world.see_limit(y)
        world.idle(y, P1)  # by the look it took under 10
        write = world.report(y)
        if write is not None:
            done(world, write)
        take_part(world, x)
        advance(world, x)

    both(history, "fresh end", "with records left before it", two([12, 25], []))


def test_sets_not_numbers() -> None:
    """Two members report p0, an old member session and the new one; the count is right, and p1 was never reported.

    The check of the reports would refuse this advance too, so it is off on both sides here.
    """

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        elect(world, y)
        take_part(world, x)
        hear(world, y)
        world.expire(x)
        world.answer(x)
        take_part(world, x)
        world.hear(y, x.member_session)  # and not yet that the other one is gone
        write = world.decide(y)
        if write is not None:
            done(world, write)

    make = two([12, 25], [5, 7])
    both(history, "sets, not numbers", "completeness: cut holds", lambda off: make(off | {"check of reports"}))


def test_check_of_generation() -> None:
    """The advance is in flight; a partition joins the set; the advance would land on reports that do not know of it."""

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        elect(world, x)
        take_part(world, x)
        take_part(world, y)
        hear(world, x)
        flying = world.decide(x)
        assert flying is not None
        elect(world, y)
        assert world.assign(y, P2, "y")
        assert world.land(flying) == (not world.has("check of generation"))

    both(history, "check of generation", "completeness: the cut holds", two([12, 25], [13, 27]))


def test_take_over_bump() -> None:
    """The old leader's advance was sent before its session ended, and lands after the new leader took office."""

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        z = world.members["z"] = Member("z")
        elect(world, z)
        take_part(world, x)
        take_part(world, y)
        hear(world, z)
        flying = world.decide(z)
        assert flying is not None
        world.expire(z)
        elect(world, y)
        assert world.land(flying) == (not world.has("take-over bump"))

    both(history, "take-over bump", "one writer", two([12, 25], [13, 27]))


def test_check_of_period() -> None:
    """Hold is acknowledged, then the advance that was in flight arrives."""

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        elect(world, x)
        take_part(world, x)
        take_part(world, y)
        hear(world, x)
        flying = world.decide(x)
        assert flying is not None
        world.ask(HOLD)
        assert not world.land(flying)
        world.reply(flying)
        assert not advance(world, x), "the leader knows now"

    both(history, "check of period", "hold was acknowledged", two([12, 25], [13, 27]))


def test_check_of_reports() -> None:
    """The advance rests on the report of a member that is gone; its successor has read the cut before, and starts there."""

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        elect(world, y)
        take_part(world, x)
        take_part(world, y)
        hear(world, y)
        flying = world.decide(y)
        assert flying is not None
        world.crash(x)
        world.tree.expire(x.session or 0)
        x = world.members["x"]
        for step in (world.join, world.see_assignment, world.claim, world.start):
            step(x)
        assert world.land(flying) == (not world.has("check of reports"))
        world.handle(x, P0)

    both(history, "check of reports", "no loss: a.0@0 comes again", two([1, 12, 25], [13, 27]))


def test_level() -> None:
    """The generation moves after the report for this limit was written: who writes once per limit never writes again."""

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        elect(world, x)
        take_part(world, x)
        take_part(world, y)
        world.expire(x)
        world.answer(x)
        elect(world, x)

    both(history, "level", "liveness", two([12, 25], [13, 27]))


def test_unique_name_where_reports_are_not_level_triggered() -> None:
    """A restarted member meets its old member session's node, which then expires under it. It matters only without *level*."""

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        elect(world, y)
        world.join(x)
        old = x.session
        assert old is not None
        world.crash(x)
        x = world.members["x"]
        world.join(x)
        world.tree.expire(old)
        take_part(world, x)

    make = two([12, 25], [13, 27])
    for off in ({"unique name"}, {"level"}):
        world = make(frozenset(off))
        history(world)
        world.settle()
        assert world.limit.mode is Mode.END
    world = make(frozenset({"unique name", "level"}))
    history(world)
    with pytest.raises(Broken, match="liveness"):
        world.settle()


def test_deadline() -> None:
    """The session has expired, and the process goes on: a successor may run the same partition already."""

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        elect(world, y)
        world.join(x)
        world.see_assignment(x)
        world.claim(x)
        world.start(x)
        assert world.handle(x, P0)
        world.expire(x)
        assert not world.handle(x, P0), "past the deadline nothing starts"

    both(history, "deadline", "one owner: x started", two([1, 2, 12], [13]))


def test_deadline_is_lifted_by_an_answer() -> None:
    world = two([1, 2, 12], [13])(frozenset())
    x = world.members["x"]
    take = [world.join, world.see_assignment, world.claim, world.start, world.stall]
    for step in take:
        step(x)
    assert not world.handle(x, P0)
    assert world.report(x) is None
    world.answer(x)
    assert world.handle(x, P0)


def test_owner_lock() -> None:
    """p0 moves to y, and y sees it before x does."""

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        take_part(world, x)
        elect(world, y)
        assert world.assign(y, P0, "y")
        world.append(P0, 3)
        world.see_assignment(y)
        world.see_generation(y)
        world.claim(y)
        world.start(y)
        assert not world.handle(y, P0), "x still holds the lock"

    both(history, "owner lock", "one owner: y started", two([1, 2], [13]))


def test_leader_applies_requests() -> None:
    """Off is taken back before the leader saw it. Members that watch the request themselves would see it late, and pass."""

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        take_part(world, x)
        elect(world, y)
        world.ask(OFF)
        world.watch_request(x)
        world.ask(Request.every(10))
        world.obey(x)
        assert not world.handle(x, P0)

    both(history, "leader applies requests", "alignment: x started a.0@0 with ts 12", two([12, 25], [13]))


def test_off_is_for_all_once_the_leader_has_applied_it() -> None:
    world = two([12, 25], [13, 27])(frozenset())
    x, y = world.members["x"], world.members["y"]
    take_part(world, x)
    elect(world, y)
    world.ask(OFF)
    assert advance(world, y)
    assert not world.handle(x, P0), "x has not seen it"
    world.read_limit(x)
    world.see_limit(x)
    assert world.handle(x, P0)
    assert world.handle(x, P0)


def test_finished_in_cut() -> None:
    """A member whose partitions are done, and stand in a cut, leaves: nobody waits for its report."""

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        elect(world, y)
        take_part(world, x)
        take_part(world, y)
        assert advance(world, y)
        world.expire(x)
        del world.members["x"]

    def make(off: frozenset[str]) -> World:
        return World({P0: [1, 2], P1: [13, 27, 48]}, {P0: "x", P1: "y"}, without=off, bounded=[P0])

    both(history, "finished in cut", "liveness", make)


def test_resume_at_cut() -> None:
    """The commit lags behind the last cut, and the member starts again: records of closed periods would come in a later one."""

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        elect(world, y)
        world.join(x)
        world.see_assignment(x)
        world.claim(x)
        world.start(x)
        world.handle(x, P0)
        world.commit(x, P0)
        take_part(world, x)
        take_part(world, y)
        assert advance(world, y)
        assert world.committed[P0] == 1
        world.crash(x)
        world.tree.expire(x.session or 0)
        take_part(world, world.members["x"])

    both(history, "resume at cut", "no loss: a.0@1 comes again", two([1, 2, 12, 25], [13, 27]))


@pytest.mark.parametrize("lookahead", [0, 2])
def test_resume_at_cut_same_gate(lookahead: int) -> None:
    """Frozen past its session, x loses p0; y runs it over several cuts and leaves; x wins the lock back in the same gate.

    Its task still stands where it stood. It must be told before it starts another record.
    """

    def history(world: World) -> None:
        x, y, z = (world.members[name] for name in "xyz")
        elect(world, z)
        world.join(x)
        world.see_assignment(x)
        world.claim(x)
        world.start(x)
        assert world.handle(x, P0)
        world.expire(x)
        for _ in range(3):
            take_part(world, y)
            advance(world, z)
        assert len(world.cuts) >= 2
        world.release(y, P0)
        y.progress.drop(P0)
        world.answer(x)
        take_part(world, x)

    def make(off: frozenset[str]) -> World:
        logs = {P0: [1, 2, 12, 25, 37, 48], P1: [13, 27, 38, 49]}
        return World(
            logs,
            {P0: "x", P1: "y"},
            standbys={P0: "y", P2: "z"},
            without=off,
            lookahead=lookahead,
        )

    both(history, "resume at cut, same gate", "no loss: a.0@1 comes again", make)


def test_a_gate_that_nobody_overtook_goes_on_where_it_was() -> None:
    """The session is lost and the lock won back, and the last cut is our own: nobody is told anything, nothing comes again."""
    world = two([1, 12, 25, 37], [13, 27, 38])(frozenset())
    x, y = world.members["x"], world.members["y"]
    elect(world, y)
    take_part(world, x)
    take_part(world, y)
    assert advance(world, y)
    world.expire(x)
    world.answer(x)
    for step in (world.join, world.see_assignment, world.claim, world.start):
        step(x)
    assert not x.progress.partitions[P0].displaced
    assert x.positions[P0] == 1
    world.settle()


def test_owned_only() -> None:
    """A member runs p1 and waits for the lock of p0, which x holds. The limit does not wait for that."""

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        elect(world, y)
        take_part(world, x)
        take_part(world, y)
        assert P0 in y.progress.partitions

    def make(off: frozenset[str]) -> World:
        logs = {P0: [12, 25], P1: [13, 27]}
        return World(logs, {P0: "x", P1: "y"}, standbys={P0: "y"}, without=off)

    both(history, "owned only", "liveness", make)


@pytest.mark.parametrize("lookahead", [0, 2])
@pytest.mark.parametrize("gone", ["releases", "leaves"])
def test_a_standby_takes_over_while_an_advance_is_in_flight(gone: str, lookahead: int) -> None:
    """The report of x is on its way into a cut when x gives p0 up. y stands by, claims, reads the cut before, starts there."""

    def history(world: World) -> None:
        x, y, z = (world.members[name] for name in "xyz")
        elect(world, z)
        take_part(world, x)
        take_part(world, y)
        hear(world, z)
        flying = world.decide(z)
        assert flying is not None
        if gone == "releases":
            world.release(x, P0)
        else:
            world.leave(x)
        world.claim(y)
        world.start(y)
        assert P0 in y.positions
        y.positions[P0] = 0  # as one who does not commit
        assert world.land(flying) == (not world.has("check of reports"))
        world.handle(y, P0)

    def make(off: frozenset[str]) -> World:
        logs = {P0: [1, 12, 25], P1: [13, 27]}
        return World(logs, {P0: "x", P1: "y"}, standbys={P0: "y", P2: "z"}, without=off, lookahead=lookahead)

    both(history, "check of reports", "no loss: a.0@0 comes again", make)


def test_what_was_declared_finished_and_is_in_no_cut_is_said_again_by_the_next_owner() -> None:
    """A member finishes p0 and leaves before a cut holds it. Its word goes with its session; y stands by and says it again."""
    world = World({P0: [1, 2], P1: [13, 27]}, {P0: "x", P1: "y"}, standbys={P0: "y"}, bounded=[P0])
    x, y = world.members["x"], world.members["y"]
    elect(world, y)
    take_part(world, x)
    world.leave(x)
    del world.members["x"]
    take_part(world, y)
    assert advance(world, y)
    assert world.cuts[-1].owner(P0) == y.member_session
    world.settle()


def test_clamp() -> None:
    """With lookahead the partition is past the floor; a commit there would put what lies between into the wrong cut."""

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        elect(world, y)
        take_part(world, x)
        world.commit(x, P0)
        world.crash(x)
        world.tree.expire(x.session or 0)
        take_part(world, world.members["x"])
        take_part(world, y)
        advance(world, y)

    both(history, "clamp", "which is not the first record past it", two([5, 12, 15, 25], [13, 27], lookahead=1))


def test_monotone() -> None:
    """A smaller period under lookahead: what is open stays open."""

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        elect(world, y)
        take_part(world, x)
        take_part(world, y)
        world.ask(Request.every(1))
        assert advance(world, y)
        assert world.limit == Limit((30, 31, 32))

    both(history, "monotone", "monotony", two([5, 12, 25], [13, 27], lookahead=2))


def test_generation_in_report() -> None:
    """p1 moves from y to x; the report y made before would complete the new assignment."""

    def history(world: World) -> None:
        x, y = world.members["x"], world.members["y"]
        elect(world, x)
        take_part(world, x)
        take_part(world, y)
        hear(world, x)
        assert world.assign(x, P1, "x")
        world.see_generation(x)
        advance(world, x)

    both(history, "generation in report", "a.1 was not reported under the generation 2", two([12, 25], [13, 27]))
