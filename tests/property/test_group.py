"""The rebalance machine under joins, deaths, leaves, isolations, lost replies, and a new leader between any two writes."""

from __future__ import annotations

from collections import Counter

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aiokcc.core.assignors import ASSIGNORS, assign
from aiokcc.core.group_settings import GroupSettings
from aiokcc.core.partitions import Partition
from aiokcc.core.subscriptions import EVERYTHING, Subscription
from tests.property.group_model import GroupModel, Process, Term

NAMES = "vwxyz"
ALL = [Partition(topic, n) for topic, count in (("a", 3), ("b", 2), ("c", 1)) for n in range(count)]
PIPELINES = [
    Subscription.check("a", pipeline="p"),
    Subscription.check("a", pipeline="p"),
    Subscription.check({"b": [0], "c": None}, pipeline="q"),
    Subscription.check({"b": [0], "c": None}, pipeline="q"),
    Subscription.check(pattern="[ab]", pipeline="r"),
]
subscriptions = st.sampled_from(
    [
        EVERYTHING,
        EVERYTHING,
        EVERYTHING,
        Subscription.check("a"),
        Subscription.check({"a": 1, "b": None}),
        Subscription.check({"a": [0, 1]}),
        Subscription.check(pattern="[bc]"),
        *PIPELINES,
    ]
)
agreed_sets = st.frozensets(st.sampled_from(ALL), min_size=1)


def at_rest(model: GroupModel) -> None:
    """Check that, without further faults, each partition is run once, by its assigned member, and nothing is left to do."""
    said = model.calm()
    model.check()
    if not model.processes:
        return
    isolated = set(model.tree.under("isolated"))
    eligible = {name: one.wants for name, one in model.processes.items() if name not in isolated}
    runs = {partition: one.name for one in model.processes.values() for partition in one.running}
    if not eligible:
        assert not runs, "whoever is isolated runs nothing"
        return
    assert said == "stable", said
    given = {Partition(t, n): name for t, topic in model.topics.items() for n, name in topic.assignment.items()}
    assert runs == given
    possible = assign(model.settings.assignor, eligible, model.agreed, given)
    assert len(given) == len(possible), "something could be run, and is not"
    assert set(given.values()) <= eligible.keys()
    each_pipeline_has_one_driver(model, eligible, given)
    for topic in model.topics.values():
        assert not topic.to_start
        assert not topic.to_close
    if all(wants == EVERYTHING for wants in eligible.values()) and model.settings.assignor == "sticky":
        counts = Counter(given.values())
        assert max(counts[name] for name in eligible) - min(counts[name] for name in eligible) <= 1


def each_pipeline_has_one_driver(
    model: GroupModel, eligible: dict[str, Subscription], given: dict[Partition, str]
) -> None:
    """Check that all partitions of a pipeline are at one of its drivers; or at none, if another pipeline wants one of them."""
    wanted = {
        wants.pipeline: frozenset(filter(wants.covers, model.agreed))
        for wants in eligible.values()
        if wants.pipeline is not None
    }
    for pipeline, whole in wanted.items():
        owners = {given.get(partition) for partition in whole}
        drivers = {name for name, wants in eligible.items() if wants.pipeline == pipeline}
        if owners & drivers or not any(whole & other for name, other in wanted.items() if name != pipeline):
            assert len(owners) == bool(whole), f"{pipeline} is shared out: {owners}"
            assert owners <= drivers, f"{pipeline} has drivers, and {owners} run it"


class TheGroup(RuleBasedStateMachine):
    """Takes every step and fault, in every order."""

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
        self.model = GroupModel(partitions, GroupSettings.check(assignor=assignor, expect=expect), self.without)
        for name, mine in zip(NAMES, wants, strict=False):
            self.model.start(name, mine)

    def some(self, data: st.DataObject) -> Process:
        assume(self.model.processes)
        return data.draw(st.sampled_from(list(self.model.processes.values())))

    def leader(self, data: st.DataObject) -> Term:
        terms = [process.term for process in self.model.processes.values() if process.term is not None]
        assume(terms)
        return data.draw(st.sampled_from(terms))

    # -- processes and sessions

    @rule(name=st.sampled_from(NAMES), wants=subscriptions)
    def somebody_starts(self, name: str, wants: Subscription) -> None:
        self.model.start(name, wants)

    @rule(data=st.data())
    def somebody_is_killed(self, data: st.DataObject) -> None:
        self.model.kill(self.some(data))

    @rule(data=st.data())
    def somebody_leaves(self, data: st.DataObject) -> None:
        self.model.leave(self.some(data))

    @rule(data=st.data(), expire=st.booleans(), back=st.booleans())
    def somebody_is_cut_off(self, data: st.DataObject, expire: bool, back: bool) -> None:
        process = self.some(data)
        self.model.suspend(process)
        if expire:
            self.model.expire(process)
        if back:
            self.model.reconnect(process)

    @rule(data=st.data(), expire=st.booleans())
    def somebody_is_stopped(self, data: st.DataObject, expire: bool) -> None:
        process = self.some(data)
        self.model.freeze(process)
        if expire:
            self.model.expire(process)

    @rule(data=st.data())
    def somebody_goes_on(self, data: st.DataObject) -> None:
        process = self.some(data)
        if process.frozen:
            self.model.thaw(process)
        self.model.reconnect(process)

    @precondition(lambda self: self.model.orphans)
    @rule(data=st.data())
    def the_session_of_the_killed_ends(self, data: st.DataObject) -> None:
        self.model.expire_orphan(data.draw(st.sampled_from(sorted(self.model.orphans))))

    # -- writes

    @precondition(lambda self: self.model.writes)
    @rule(data=st.data(), fate=st.sampled_from(["land", "land", "answer", "answer", "lose"]))
    def a_write_goes_on(self, data: st.DataObject, fate: str) -> None:
        write = data.draw(st.sampled_from(self.model.writes))
        if fate in {"land", "answer"}:
            self.model.land(write)
        if fate == "answer" and write in self.model.writes:
            self.model.answer(write)
        elif fate == "lose":
            self.model.lose(write)

    # -- members

    @rule(data=st.data(), generation=st.booleans())
    def a_member_sees(self, data: st.DataObject, generation: bool) -> None:
        process = self.some(data)
        if process.connected and not self.model.busy(process):
            if generation:
                self.model.see_generation(process)
            self.model.see_agreed(process)
            for topic in data.draw(st.sampled_from(["abc", "a", "b", "c"])):
                self.model.see_assignment(process, topic)

    @rule(data=st.data())
    def a_member_follows(self, data: st.DataObject) -> None:
        self.model.follow(self.some(data))

    @rule(data=st.data(), times=st.integers(1, 3))
    def a_member_handles_records(self, data: st.DataObject, times: int) -> None:
        process = self.some(data)
        assume(process.running)
        partition = data.draw(st.sampled_from(sorted(process.running)))
        for _ in range(times):
            self.model.handle(process, partition)

    @rule(data=st.data())
    def a_member_commits(self, data: st.DataObject) -> None:
        self.model.commit_running(self.some(data))

    # -- leaders

    @rule(data=st.data())
    def somebody_takes_over(self, data: st.DataObject) -> None:
        process = self.some(data)
        self.model.take_over(process)
        if process.term is not None and data.draw(st.booleans()):
            self.model.read(process.term)

    @rule(data=st.data(), what=st.sampled_from(["all", "all", "members", "isolated", "read"]))
    def a_leader_learns(self, data: st.DataObject, what: str) -> None:
        term = self.leader(data)
        if what == "read" or (what == "all" and not term.read):
            self.model.read(term)
        if what in {"all", "members"}:
            self.model.learn_members(term)
        if what in {"all", "isolated"}:
            self.model.learn_isolated(term)

    @rule(data=st.data(), learn=st.booleans())
    def a_leader_reads_the_locks(self, data: st.DataObject, learn: bool) -> None:
        term = self.leader(data)
        for topic in sorted(term.group.moving):
            self.model.read_locks(term, topic)
        while learn and term.locks_read and self.model.active(term):
            self.model.learn_locks(term)

    @rule(data=st.data())
    def a_leader_learns_what_it_read(self, data: st.DataObject) -> None:
        self.model.learn_locks(self.leader(data))

    @rule(data=st.data())
    def a_leader_decides(self, data: st.DataObject) -> None:
        self.model.decide(self.leader(data))

    @rule(data=st.data(), partitions=agreed_sets)
    def partitions_come_and_go(self, data: st.DataObject, partitions: frozenset[Partition]) -> None:
        self.model.change_set(self.leader(data), partitions)

    # -- the operator, the clock, the rest

    @rule(name=st.sampled_from(NAMES))
    def an_operator_isolates(self, name: str) -> None:
        self.model.isolate(name)

    @rule(name=st.sampled_from(NAMES))
    def an_operator_lets_rejoin(self, name: str) -> None:
        self.model.rejoin(name)

    @rule(by=st.sampled_from([0.1, 1.0, 40.0]))
    def time_passes(self, by: float) -> None:
        self.model.clock += by

    @rule()
    def all_is_calm(self) -> None:
        at_rest(self.model)

    @invariant()
    def the_invariants_hold(self) -> None:
        if hasattr(self, "model"):
            self.model.check()

    def teardown(self) -> None:
        if hasattr(self, "model"):
            at_rest(self.model)


TestTheGroup = TheGroup.TestCase
TestTheGroup.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
