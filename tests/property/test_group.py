"""The group's machine under joins, deaths, leaves, isolations, leaders that change between any two writes, and lost replies."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aiokcc.core.assignors import ASSIGNORS, assign
from aiokcc.core.group import GroupSettings
from aiokcc.core.partitions import Partition
from aiokcc.core.subscriptions import EVERYTHING, Subscription
from tests.property.company import RULES, Company, Process, Term

NAMES = "vwxyz"
ALL = [Partition(topic, n) for topic, count in (("a", 3), ("b", 2), ("c", 1)) for n in range(count)]
subscriptions = st.sampled_from(
    [
        EVERYTHING,
        EVERYTHING,
        EVERYTHING,
        Subscription.check("a"),
        Subscription.check({"a": 1, "b": None}),
        Subscription.check({"a": [0, 1]}),
        Subscription.check(pattern="[bc]"),
    ]
)
agreed_sets = st.frozensets(st.sampled_from(ALL), min_size=1)


def at_rest(company: Company) -> None:
    """No more faults: whatever can be run is run, once, by whom it is assigned to; and there is nothing left to do."""
    said = company.calm()
    company.check()
    if not company.processes:
        return
    isolated = set(company.tree.under("isolated"))
    eligible = {name: one.wants for name, one in company.processes.items() if name not in isolated}
    runs = {partition: one.name for one in company.processes.values() for partition in one.running}
    if not eligible:
        assert not runs, "whoever is isolated runs nothing"
        return
    assert said == "stable", said
    given = {Partition(t, n): name for t, topic in company.topics.items() for n, name in topic.assignment.items()}
    assert runs == given
    possible = assign(company.settings.assignor, eligible, company.agreed, given)
    assert len(given) == len(possible), "something could be run, and is not"
    assert set(given.values()) <= eligible.keys()
    for topic in company.topics.values():
        assert not topic.to_start
        assert not topic.to_close
    if all(wants == EVERYTHING for wants in eligible.values()) and company.settings.assignor == "sticky":
        counts = Counter(given.values())
        assert max(counts[name] for name in eligible) - min(counts[name] for name in eligible) <= 1


class TheGroup(RuleBasedStateMachine):
    """Every fault, in every order."""

    without: frozenset[str] = frozenset()

    @initialize(
        partitions=agreed_sets,
        expect=st.sampled_from([None, None, 2, 3]),
        assignor=st.sampled_from(list(ASSIGNORS)),
        wants=st.lists(subscriptions, min_size=1, max_size=3),
    )
    def begin(
        self, partitions: frozenset[Partition], expect: int | None, assignor: str, wants: list[Subscription]
    ) -> None:
        self.company = Company(partitions, GroupSettings.check(assignor=assignor, expect=expect), self.without)
        for name, mine in zip(NAMES, wants, strict=False):
            self.company.start(name, mine)

    def some(self, data: st.DataObject) -> Process:
        assume(self.company.processes)
        return data.draw(st.sampled_from(list(self.company.processes.values())))

    def leader(self, data: st.DataObject) -> Term:
        terms = [process.term for process in self.company.processes.values() if process.term is not None]
        assume(terms)
        return data.draw(st.sampled_from(terms))

    # -- processes and sessions

    @rule(name=st.sampled_from(NAMES), wants=subscriptions)
    def somebody_starts(self, name: str, wants: Subscription) -> None:
        self.company.start(name, wants)

    @rule(data=st.data())
    def somebody_is_killed(self, data: st.DataObject) -> None:
        self.company.kill(self.some(data))

    @rule(data=st.data())
    def somebody_leaves(self, data: st.DataObject) -> None:
        self.company.leave(self.some(data))

    @rule(data=st.data(), expire=st.booleans(), back=st.booleans())
    def somebody_is_cut_off(self, data: st.DataObject, expire: bool, back: bool) -> None:
        process = self.some(data)
        self.company.suspend(process)
        if expire:
            self.company.expire(process)
        if back:
            self.company.reconnect(process)

    @rule(data=st.data(), expire=st.booleans())
    def somebody_is_stopped(self, data: st.DataObject, expire: bool) -> None:
        process = self.some(data)
        self.company.freeze(process)
        if expire:
            self.company.expire(process)

    @rule(data=st.data())
    def somebody_goes_on(self, data: st.DataObject) -> None:
        process = self.some(data)
        if process.frozen:
            self.company.thaw(process)
        self.company.reconnect(process)

    @precondition(lambda self: self.company.orphans)
    @rule(data=st.data())
    def the_session_of_the_killed_ends(self, data: st.DataObject) -> None:
        self.company.expire_orphan(data.draw(st.sampled_from(sorted(self.company.orphans))))

    # -- writes

    @precondition(lambda self: self.company.writes)
    @rule(data=st.data(), fate=st.sampled_from(["land", "land", "answer", "answer", "lose"]))
    def a_write_goes_on(self, data: st.DataObject, fate: str) -> None:
        write = data.draw(st.sampled_from(self.company.writes))
        if fate in {"land", "answer"}:
            self.company.land(write)
        if fate == "answer" and write in self.company.writes:
            self.company.answer(write)
        elif fate == "lose":
            self.company.lose(write)

    # -- members

    @rule(data=st.data(), generation=st.booleans())
    def a_member_sees(self, data: st.DataObject, generation: bool) -> None:
        process = self.some(data)
        if process.connected and not self.company.busy(process):
            if generation:
                self.company.see_generation(process)
            self.company.see_agreed(process)
            for topic in data.draw(st.sampled_from(["abc", "a", "b", "c"])):
                self.company.see_assignment(process, topic)

    @rule(data=st.data())
    def a_member_follows(self, data: st.DataObject) -> None:
        self.company.follow(self.some(data))

    @rule(data=st.data(), times=st.integers(1, 3))
    def a_member_handles_records(self, data: st.DataObject, times: int) -> None:
        process = self.some(data)
        assume(process.running)
        partition = data.draw(st.sampled_from(sorted(process.running)))
        for _ in range(times):
            self.company.handle(process, partition)

    @rule(data=st.data())
    def a_member_commits(self, data: st.DataObject) -> None:
        self.company.commit_running(self.some(data))

    # -- leaders

    @rule(data=st.data())
    def somebody_takes_office(self, data: st.DataObject) -> None:
        process = self.some(data)
        self.company.take_office(process)
        if process.term is not None and data.draw(st.booleans()):
            self.company.read(process.term)

    @rule(data=st.data(), what=st.sampled_from(["all", "all", "members", "isolated", "read"]))
    def a_leader_learns(self, data: st.DataObject, what: str) -> None:
        term = self.leader(data)
        if what == "read" or (what == "all" and not term.read):
            self.company.read(term)
        if what in {"all", "members"}:
            self.company.learn_members(term)
        if what in {"all", "isolated"}:
            self.company.learn_isolated(term)

    @rule(data=st.data(), learn=st.booleans())
    def a_leader_reads_the_locks(self, data: st.DataObject, learn: bool) -> None:
        term = self.leader(data)
        for topic in sorted(term.group.moving):
            self.company.read_locks(term, topic)
        while learn and term.locks_read and self.company.active(term):
            self.company.learn_locks(term)

    @rule(data=st.data())
    def a_leader_learns_what_it_read(self, data: st.DataObject) -> None:
        self.company.learn_locks(self.leader(data))

    @rule(data=st.data())
    def a_leader_decides(self, data: st.DataObject) -> None:
        self.company.decide(self.leader(data))

    @rule(data=st.data(), partitions=agreed_sets)
    def partitions_come_and_go(self, data: st.DataObject, partitions: frozenset[Partition]) -> None:
        self.company.change_set(self.leader(data), partitions)

    # -- the operator, the clock, the rest

    @rule(name=st.sampled_from(NAMES))
    def an_operator_isolates(self, name: str) -> None:
        self.company.isolate(name)

    @rule(name=st.sampled_from(NAMES))
    def an_operator_lets_rejoin(self, name: str) -> None:
        self.company.rejoin(name)

    @rule(by=st.sampled_from([0.1, 1.0, 40.0]))
    def time_passes(self, by: float) -> None:
        self.company.clock += by

    @rule()
    def all_is_calm(self) -> None:
        at_rest(self.company)

    @invariant()
    def the_invariants_hold(self) -> None:
        if hasattr(self, "company"):
            self.company.check()

    def teardown(self) -> None:
        if hasattr(self, "company"):
            at_rest(self.company)


TestTheGroup = TheGroup.TestCase
TestTheGroup.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


# -- long walks ----------------------------------------------------------------------------------------------------------


def wander(seed: int, steps: int, without: frozenset[str] = frozenset()) -> Counter[str]:
    """A long history: mostly progress, with faults in between. What happened, counted."""
    chance = random.Random(seed)
    wanted = (
        [EVERYTHING] if seed % 2 else [EVERYTHING, Subscription.check({"a": 1, "b": None}), Subscription.check("a")]
    )
    group = GroupSettings.check(assignor=chance.choice(list(ASSIGNORS)), join_window=1.0)
    company = Company(frozenset(ALL), group, without)
    happened: Counter[str] = Counter()
    for name in NAMES[:3]:
        company.start(name, chance.choice(wanted))
    at_rest(company)
    for _ in range(steps):
        step = chance.choices(list(STEPS), list(STEPS.values()))[0]
        if company.processes or step == "start":
            happened[step] += bool(take(company, step, chance, wanted))
        company.check()
    at_rest(company)
    happened["run"] += sum(len(process.running) for process in company.processes.values())
    return happened


STEPS = {
    "work": 40, "lead": 30, "see": 15, "follow": 15, "land": 10, "answer": 80, "learn": 10, "locks": 10, "late locks": 10,
    "decide": 10, "handle": 10, "commit": 3, "clock": 12, "start": 3, "kill": 0.5, "leave": 0.5, "suspend": 1, "freeze": 1,
    "back": 6, "orphan": 3, "office": 1.5, "lose": 3, "isolate": 0.4, "rejoin": 1.5, "set": 0.5,
}  # fmt: skip


def take(company: Company, step: str, chance: random.Random, wanted: list[Subscription]) -> object:
    """One step, if it can be taken; whether it was."""
    processes = list(company.processes.values())
    process = chance.choice(processes) if processes else None
    terms = [one.term for one in processes if one.term is not None]
    name = chance.choice(NAMES)
    if step == "start":
        company.start(name, chance.choice(wanted))
        return True
    assert process is not None
    if step in {"land", "answer", "lose"}:
        if not company.writes:
            return False
        write = chance.choice(company.writes)
        if step != "lose":
            company.land(write)
        if step == "answer" and write in company.writes:
            company.answer(write)
        elif step == "lose":
            company.lose(write)
        return True
    if step in {"lead", "learn", "locks", "late locks", "decide", "set"}:
        return bool(terms) and lead(company, chance.choice(terms), step, chance)
    if step == "orphan":
        if company.orphans:
            company.expire_orphan(chance.choice(sorted(company.orphans)))
        return True
    if step in {"see", "work"}:
        if process.connected and not company.busy(process):
            if chance.random() < 0.7:
                company.see_generation(process)
            company.see_agreed(process)
            for topic in "abc" if step == "work" else chance.choice("abc"):
                company.see_assignment(process, topic)
            if step == "work":
                company.follow(process)
        return process.connected
    if step == "back":
        if process.frozen:
            company.thaw(process)
        company.reconnect(process)
        return True
    if step in {"suspend", "freeze"}:
        (company.suspend if step == "suspend" else company.freeze)(process)
        if chance.random() < 0.5:
            company.expire(process)
        return True
    if step == "handle":
        if process.running:
            company.handle(process, chance.choice(sorted(process.running)))
        return process.running
    if step == "clock":
        company.clock += chance.choice([0.1, 1.0, 1.0])
        return True
    one_of_them = {
        "follow": company.follow,
        "commit": company.commit_running,
        "kill": company.kill,
        "leave": company.leave,
        "office": company.take_office,
    }
    if step in one_of_them:
        one_of_them[step](process)
    else:
        (company.isolate if step == "isolate" else company.rejoin)(name)
    return True


def lead(company: Company, term: Term, step: str, chance: random.Random) -> bool:
    if not company.active(term):
        return False
    if step in {"learn", "lead"}:
        if not term.read:
            company.read(term)
        company.learn_members(term)
        company.learn_isolated(term)
        for topic in sorted(term.group.moving) if step == "lead" else ():
            company.read_locks(term, topic)
            company.learn_locks(term)
        return step == "learn" or company.decide(term) == ""
    elif step == "decide":
        return company.decide(term) == ""
    elif step == "set":
        company.change_set(term, frozenset(chance.sample(ALL, chance.randint(1, len(ALL)))))
    elif step == "late locks" and term.locks_read and chance.random() < 0.5:
        company.learn_locks(term)
    else:
        for topic in sorted(term.group.moving):
            company.read_locks(term, topic)
        while step == "locks" and term.locks_read and company.active(term):
            company.learn_locks(term)
    return True


def test_a_new_leader_closes_whoever_is_isolated_even_if_nobody_else_is_there() -> None:
    """Found by a walk: a leader that had decided nothing yet waited for somebody to give the partitions to."""
    company = Company(frozenset(ALL), GroupSettings.check())
    company.start("v", EVERYTHING)
    at_rest(company)
    process = company.processes["v"]
    assert process.running.keys() == set(ALL)
    company.take_office(process)
    company.isolate("v")
    at_rest(company)
    assert not process.running
    company.rejoin("v")
    at_rest(company)
    assert process.running.keys() == set(ALL)


def test_long_walks_keep_the_invariants_and_come_to_rest() -> None:
    happened: Counter[str] = Counter()
    for seed in range(100):
        happened += wander(seed, 500)
    assert set(STEPS) <= happened.keys()  # everything has happened
    assert happened["run"] > 100
    assert happened["decide"] + happened["lead"] > 400


@pytest.mark.parametrize("rule", ["deadline", "take-over"])
def test_a_walk_notices_when_a_rule_is_missing(rule: str) -> None:
    with pytest.raises(AssertionError):
        for seed in range(300):
            wander(seed, 500, frozenset({rule}))


# -- the histories that break without a rule -------------------------------------------------------------------------------


def given_to_x(without: frozenset[str]) -> tuple[Company, Term, Process]:
    """The group has v, and now x, who has been given something and has not claimed it yet."""
    company = Company(frozenset(ALL), GroupSettings.check(join_window=0), without)
    company.start("v", EVERYTHING)
    at_rest(company)
    company.start("x", EVERYTHING)
    term, x = company.processes["v"].term, company.processes["x"]
    assert term is not None
    for _ in range(8):
        company.learn_members(term)
        company.learn_isolated(term)
        lead(company, term, "locks", random.Random(0))
        company.decide(term)
        settle(company)
        see_all(company, company.processes["v"])
        company.follow(company.processes["v"])
        settle(company)
    see_all(company, x)
    assert x.mine
    assert not x.running
    return company, term, x


def see_all(company: Company, process: Process) -> None:
    company.see_generation(process)
    company.see_agreed(process)
    for topic in "abc":
        company.see_assignment(process, topic)


def settle(company: Company) -> None:
    for write in list(company.writes):
        company.land(write)
        company.answer(write)
        company.check()


def isolate_x(company: Company, term: Term) -> None:
    company.isolate("x")
    company.learn_isolated(term)
    assert company.decide(term) == ""
    settle(company)


def a_claim_is_on_its_way_while_the_partition_goes_to_another(without: frozenset[str]) -> None:
    company, term, x = given_to_x(without)
    company.follow(x)
    (claim,) = company.writes
    company.isolate("x")
    company.learn_isolated(term)
    for _ in range(3):  # taken from x, which holds nothing; then given to v
        lead(company, term, "locks", random.Random(0))
        company.decide(term)
        for write in [write for write in company.writes if write is not claim]:
            company.land(write)
            company.answer(write)
    company.land(claim)
    company.check()
    at_rest(company)


def the_leader_learns_of_the_locks_late(without: frozenset[str]) -> None:
    company, term, x = given_to_x(without)
    for topic in sorted(term.group.moving):
        company.read_locks(term, topic)  # before x claims
    company.follow(x)
    settle(company)
    assert x.running
    isolate_x(company, term)
    assert company.topics["a"].to_close
    while term.locks_read:  # which say that nobody holds what x has to close
        company.learn_locks(term)
    company.decide(term)
    settle(company)
    at_rest(company)


HISTORIES = {
    "assignment in claim": a_claim_is_on_its_way_while_the_partition_goes_to_another,
    "proof": the_leader_learns_of_the_locks_late,
}


@pytest.mark.parametrize("missing", HISTORIES)
def test_the_history_that_breaks_without_a_rule_is_harmless_with_it(missing: str) -> None:
    assert missing in RULES
    HISTORIES[missing](frozenset())
    with pytest.raises(AssertionError, match=r"was given to v before x had closed it"):
        HISTORIES[missing](frozenset({missing}))
