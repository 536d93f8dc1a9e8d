"""Long histories of a managed group: at random, and those that break without one of the protocol's rules."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from aiokcc.core.assignors import ASSIGNORS
from aiokcc.core.group_settings import GroupSettings
from aiokcc.core.partitions import Partition
from aiokcc.core.subscriptions import EVERYTHING, Subscription
from tests.property.company import RULES, Company, Process, Term
from tests.property.test_group import ALL, NAMES, PIPELINES, at_rest


def wander(seed: int, steps: int, without: frozenset[str] = frozenset()) -> Counter[str]:
    """A long history: mostly progress, with faults in between. What happened, counted."""
    chance = random.Random(seed)
    wanted = [EVERYTHING]
    if seed % 3 == 1:
        wanted += [Subscription.check({"a": 1, "b": None}), Subscription.check("a")]
    elif seed % 3 == 2:
        wanted += PIPELINES
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
        "office": company.take_over,
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
    company.take_over(process)
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


def a_driver_that_missed_how_the_set_has_changed(without: frozenset[str]) -> tuple[Process, Process]:
    """One drives all that there is, v; x stands by, and knows the set as it was two changes ago."""
    first, second = Partition("a", 0), Partition("a", 1)
    company = Company(frozenset({second}), GroupSettings.check(join_window=0), without)
    for name in "vx":
        company.start(name, PIPELINES[0])
    at_rest(company)
    v, x = company.processes["v"], company.processes["x"]
    term = v.term
    assert term is not None
    for agreed in ({first}, {first, second}):
        company.change_set(term, frozenset(agreed))
        settle(company)
        for _ in range(4):
            lead(company, term, "lead", random.Random(0))
            settle(company)
            if agreed == {first}:
                see_all(company, v)
                company.follow(v)
                settle(company)
    assert v.running.keys() == {first}
    company.isolate("v")
    for _ in range(3):  # the second is closed at once, for v does not hold it, and goes to x
        lead(company, term, "lead", random.Random(0))
        settle(company)
    company.see_generation(x)
    company.see_assignment(x, "a")
    assert x.mine == x.whole == {second}
    company.follow(x)
    settle(company)
    at_rest(company)
    return v, x


def test_a_driver_looks_at_the_set_once_it_has_the_locks() -> None:
    v, x = a_driver_that_missed_how_the_set_has_changed(frozenset())
    assert (len(v.running), len(x.running)) == (0, 2)
    with pytest.raises(AssertionError, match="v and x both drive the pipeline p"):
        a_driver_that_missed_how_the_set_has_changed(frozenset({"set after claim"}))
