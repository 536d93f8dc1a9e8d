"""Long histories of a managed group: at random, and those that break without one of the protocol's rules."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from aiokcc.core.assignors import ASSIGNORS
from aiokcc.core.group_settings import GroupSettings
from aiokcc.core.partitions import Partition
from aiokcc.core.subscriptions import EVERYTHING, Subscription
from tests.property.group_model import RULES, GroupModel, Process, Term
from tests.property.test_group import ALL, NAMES, PIPELINES, at_rest


def wander(seed: int, steps: int, without: frozenset[str] = frozenset()) -> Counter[str]:
    """Take a long walk: mostly progress, with faults in between. Return the counts of its steps."""
    chance = random.Random(seed)
    wanted = [EVERYTHING]
    if seed % 3 == 1:
        wanted += [Subscription.check({"a": 1, "b": None}), Subscription.check("a")]
    elif seed % 3 == 2:
        wanted += PIPELINES
    group = GroupSettings.check(assignor=chance.choice(list(ASSIGNORS)), join_window=1.0)
    model = GroupModel(frozenset(ALL), group, without)
    happened: Counter[str] = Counter()
    for name in NAMES[:3]:
        model.start(name, chance.choice(wanted))
    at_rest(model)
    for _ in range(steps):
        step = chance.choices(list(STEPS), list(STEPS.values()))[0]
        if model.processes or step == "start":
            happened[step] += bool(take(model, step, chance, wanted))
        model.check()
    at_rest(model)
    happened["run"] += sum(len(process.running) for process in model.processes.values())
    return happened


STEPS = {
    "work": 40, "lead": 30, "see": 15, "follow": 15, "land": 10, "answer": 80, "learn": 10, "locks": 10, "late locks": 10,
    "decide": 10, "handle": 10, "commit": 3, "clock": 12, "start": 3, "kill": 0.5, "leave": 0.5, "suspend": 1, "freeze": 1,
    "back": 6, "orphan": 3, "take over": 1.5, "lose": 3, "isolate": 0.4, "rejoin": 1.5, "set": 0.5,
}  # fmt: skip


def take(model: GroupModel, step: str, chance: random.Random, wanted: list[Subscription]) -> object:
    """Take one step, if it is possible, and return whether it was."""
    processes = list(model.processes.values())
    process = chance.choice(processes) if processes else None
    terms = [one.term for one in processes if one.term is not None]
    name = chance.choice(NAMES)
    if step == "start":
        model.start(name, chance.choice(wanted))
        return True
    assert process is not None
    if step in {"land", "answer", "lose"}:
        if not model.writes:
            return False
        write = chance.choice(model.writes)
        if step != "lose":
            model.land(write)
        if step == "answer" and write in model.writes:
            model.answer(write)
        elif step == "lose":
            model.lose(write)
        return True
    if step in {"lead", "learn", "locks", "late locks", "decide", "set"}:
        return bool(terms) and lead(model, chance.choice(terms), step, chance)
    if step == "orphan":
        if model.orphans:
            model.expire_orphan(chance.choice(sorted(model.orphans)))
        return True
    if step in {"see", "work"}:
        if process.connected and not model.busy(process):
            if chance.random() < 0.7:
                model.see_generation(process)
            model.see_agreed(process)
            for topic in "abc" if step == "work" else chance.choice("abc"):
                model.see_assignment(process, topic)
            if step == "work":
                model.follow(process)
        return process.connected
    if step == "back":
        if process.frozen:
            model.thaw(process)
        model.reconnect(process)
        return True
    if step in {"suspend", "freeze"}:
        (model.suspend if step == "suspend" else model.freeze)(process)
        if chance.random() < 0.5:
            model.expire(process)
        return True
    if step == "handle":
        if process.running:
            model.handle(process, chance.choice(sorted(process.running)))
        return process.running
    if step == "clock":
        model.clock += chance.choice([0.1, 1.0, 1.0])
        return True
    one_of_them = {
        "follow": model.follow,
        "commit": model.commit_running,
        "kill": model.kill,
        "leave": model.leave,
        "take over": model.take_over,
    }
    if step in one_of_them:
        one_of_them[step](process)
    else:
        (model.isolate if step == "isolate" else model.rejoin)(name)
    return True


def lead(model: GroupModel, term: Term, step: str, chance: random.Random) -> bool:
    if not model.active(term):
        return False
    if step in {"learn", "lead"}:
        if not term.read:
            model.read(term)
        model.learn_members(term)
        model.learn_isolated(term)
        for topic in sorted(term.group.moving) if step == "lead" else ():
            model.read_locks(term, topic)
            model.learn_locks(term)
        return step == "learn" or model.decide(term) == ""
    elif step == "decide":
        return model.decide(term) == ""
    elif step == "set":
        model.change_set(term, frozenset(chance.sample(ALL, chance.randint(1, len(ALL)))))
    elif step == "late locks" and term.locks_read and chance.random() < 0.5:
        model.learn_locks(term)
    else:
        for topic in sorted(term.group.moving):
            model.read_locks(term, topic)
        while step == "locks" and term.locks_read and model.active(term):
            model.learn_locks(term)
    return True


def test_a_new_leader_revokes_an_isolated_members_partitions_even_if_no_other_member_exists() -> None:
    """Found by a walk: a leader that had decided nothing yet waited for a member to assign the partitions to."""
    model = GroupModel(frozenset(ALL), GroupSettings.check())
    model.start("v", EVERYTHING)
    at_rest(model)
    process = model.processes["v"]
    assert process.running.keys() == set(ALL)
    model.take_over(process)
    model.isolate("v")
    at_rest(model)
    assert not process.running
    model.rejoin("v")
    at_rest(model)
    assert process.running.keys() == set(ALL)


def test_long_walks_keep_the_invariants_and_come_to_rest() -> None:
    happened: Counter[str] = Counter()
    for seed in range(100):
        happened += wander(seed, 500)
    assert set(STEPS) <= happened.keys()  # everything has happened
    assert happened["run"] > 100
    assert happened["decide"] + happened["lead"] > 400


@pytest.mark.parametrize("rule", ["deadline", "take-over"])
def test_a_walk_fails_when_a_rule_is_switched_off(rule: str) -> None:
    with pytest.raises(AssertionError):
        for seed in range(300):
            wander(seed, 500, frozenset({rule}))


# -- the histories that break without a rule -------------------------------------------------------------------------------


def given_to_x(without: frozenset[str]) -> tuple[GroupModel, Term, Process]:
    """Make a group of v, and x, which is assigned partitions and has not claimed them yet."""
    model = GroupModel(frozenset(ALL), GroupSettings.check(join_window=0), without)
    model.start("v", EVERYTHING)
    at_rest(model)
    model.start("x", EVERYTHING)
    term, x = model.processes["v"].term, model.processes["x"]
    assert term is not None
    for _ in range(8):
        model.learn_members(term)
        model.learn_isolated(term)
        lead(model, term, "locks", random.Random(0))
        model.decide(term)
        settle(model)
        see_all(model, model.processes["v"])
        model.follow(model.processes["v"])
        settle(model)
    see_all(model, x)
    assert x.mine
    assert not x.running
    return model, term, x


def see_all(model: GroupModel, process: Process) -> None:
    model.see_generation(process)
    model.see_agreed(process)
    for topic in "abc":
        model.see_assignment(process, topic)


def settle(model: GroupModel) -> None:
    for write in list(model.writes):
        model.land(write)
        model.answer(write)
        model.check()


def isolate_x(model: GroupModel, term: Term) -> None:
    model.isolate("x")
    model.learn_isolated(term)
    assert model.decide(term) == ""
    settle(model)


def a_claim_is_on_its_way_while_the_partition_goes_to_another(without: frozenset[str]) -> None:
    model, term, x = given_to_x(without)
    model.follow(x)
    (claim,) = model.writes
    model.isolate("x")
    model.learn_isolated(term)
    for _ in range(3):  # taken from x, which holds nothing; then given to v
        lead(model, term, "locks", random.Random(0))
        model.decide(term)
        for write in [write for write in model.writes if write is not claim]:
            model.land(write)
            model.answer(write)
    model.land(claim)
    model.check()
    at_rest(model)


def the_leader_learns_of_the_locks_late(without: frozenset[str]) -> None:
    model, term, x = given_to_x(without)
    for topic in sorted(term.group.moving):
        model.read_locks(term, topic)  # before x claims
    model.follow(x)
    settle(model)
    assert x.running
    isolate_x(model, term)
    assert model.topics["a"].to_close
    while term.locks_read:  # which say that nobody holds what x has to close
        model.learn_locks(term)
    model.decide(term)
    settle(model)
    at_rest(model)


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
    """Let v drive all partitions; x stands by, and knows the set as it was two changes ago."""
    first, second = Partition("a", 0), Partition("a", 1)
    model = GroupModel(frozenset({second}), GroupSettings.check(join_window=0), without)
    for name in "vx":
        model.start(name, PIPELINES[0])
    at_rest(model)
    v, x = model.processes["v"], model.processes["x"]
    term = v.term
    assert term is not None
    for agreed in ({first}, {first, second}):
        model.change_set(term, frozenset(agreed))
        settle(model)
        for _ in range(4):
            lead(model, term, "lead", random.Random(0))
            settle(model)
            if agreed == {first}:
                see_all(model, v)
                model.follow(v)
                settle(model)
    assert v.running.keys() == {first}
    model.isolate("v")
    for _ in range(3):  # the second is closed at once, for v does not hold it, and goes to x
        lead(model, term, "lead", random.Random(0))
        settle(model)
    model.see_generation(x)
    model.see_assignment(x, "a")
    assert x.mine == x.whole == {second}
    model.follow(x)
    settle(model)
    at_rest(model)
    return v, x


def test_a_driver_reads_the_set_after_it_has_the_locks() -> None:
    v, x = a_driver_that_missed_how_the_set_has_changed(frozenset())
    assert (len(v.running), len(x.running)) == (0, 2)
    with pytest.raises(AssertionError, match="v and x both drive the pipeline p"):
        a_driver_that_missed_how_the_set_has_changed(frozenset({"set after claim"}))
