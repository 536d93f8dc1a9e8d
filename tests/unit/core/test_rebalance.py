"""The machine of a managed group: facts in, decisions out. And what its nodes hold."""

from __future__ import annotations

import re
from typing import Any

import pytest

from aiokcc.core.assignments import TopicAssignment, TopicState, decode_assignment, decode_state, encode_assignment
from aiokcc.core.group_settings import GroupSettings, check_group
from aiokcc.core.partitions import Partition
from aiokcc.core.rebalance import STARTS_PER_WRITE, Await, Decision, Reassign, RebalanceMachine, Settle
from aiokcc.core.subscriptions import EVERYTHING, Subscription
from aiokcc.errors import CorruptNodeError, UsageError
from tests.unit.naming import brief


def partitions(count: int, topic: str = "orders") -> frozenset[Partition]:
    return frozenset(Partition(topic, n) for n in range(count))


def group(
    count: int = 4, *names: str, topics: dict[str, TopicAssignment] | None = None, **settings: Any
) -> RebalanceMachine:
    made = RebalanceMachine(
        GroupSettings.check(**settings), partitions(count), topics={"orders": TopicAssignment(), **(topics or {})}
    )
    made.members = dict.fromkeys(names, EVERYTHING)
    return made


def write(machine: RebalanceMachine, now: float = 0.0) -> Decision:
    """Decide, and have it written."""
    decision = machine.decide(now)
    if not isinstance(decision, Await):
        machine.wrote(decision)
    return decision


def lock(machine: RebalanceMachine, *numbers: int, topic: str = "orders") -> None:
    machine.locked[topic] = frozenset(numbers)


def stable(*names: str, count: int = 4) -> RebalanceMachine:
    """A group that has assigned everything to these members, and in which all is held."""
    machine = group(count, *names, join_window=0)
    assert isinstance(write(machine), Reassign)
    lock(machine, *range(count))
    assert isinstance(write(machine), Settle)
    assert isinstance(machine.decide(0), Await)
    assert machine.topics["orders"].state is TopicState.STABLE
    return machine


def given(machine: RebalanceMachine) -> dict[int, str]:
    return dict(machine.topics["orders"].assignment)


class TestTheMachine:
    def test_initial_starting_stable(self) -> None:
        machine = group(2, "a", "b", join_window=0)
        assert machine.topics["orders"].state is TopicState.INITIAL
        decision = write(machine)
        assert isinstance(decision, Reassign)
        assert decision.starting == (Partition("orders", 0), Partition("orders", 1))
        assert machine.topics["orders"] == TopicAssignment({0: "a", 1: "b"}, {0: "a", 1: "b"})
        assert machine.topics["orders"].state is TopicState.STARTING
        waiting = machine.decide(0)
        assert waiting == Await("a has to start orders.0")
        lock(machine, 0)
        assert isinstance(machine.decide(0), Await), "not all of it is held"
        lock(machine, 0, 1)
        assert isinstance(write(machine), Settle)
        assert machine.topics["orders"].state is TopicState.STABLE
        assert machine.decide(0) == Await("stable")

    def test_closing_before_starting(self) -> None:
        machine = stable("a")
        machine.members["b"] = EVERYTHING
        decision = write(machine)
        assert isinstance(decision, Reassign)
        assert decision.starting == ()
        moving = dict(machine.topics["orders"].to_close)
        assert machine.topics["orders"].state is TopicState.CLOSING
        assert set(moving.values()) == {"a"}
        assert not moving.keys() & given(machine).keys(), "what moves is unassigned until it is closed"
        assert isinstance(machine.decide(0), Await), "what was seen before the decision does not count"
        lock(machine, 0, 1, 2, 3)
        assert machine.decide(0) == Await(f"a has to close orders.{min(moving)} and 1 more")
        first, second = sorted(moving)
        lock(machine, *given(machine), second)
        decision = write(machine)
        assert isinstance(decision, Reassign), "the one that is closed does not wait for the other"
        assert decision.starting == (Partition("orders", first),)
        assert machine.topics["orders"].state is TopicState.CLOSING
        lock(machine, *given(machine))
        write(machine)
        assert given(machine) == {**given(machine), first: "b", second: "b"}
        assert machine.topics["orders"].state is TopicState.STARTING

    def test_the_partitions_of_a_dead_member_are_free_at_once(self) -> None:
        machine = stable("a", "b")
        had = [n for n, m in given(machine).items() if m == "b"]
        del machine.members["b"]
        decision = write(machine)
        assert isinstance(decision, Reassign)
        assert [p.number for p in decision.starting] == had
        assert set(given(machine).values()) == {"a"}
        assert machine.topics["orders"].state is TopicState.STARTING

    def test_one_that_dies_while_it_closes_has_closed(self) -> None:
        machine = stable("a")
        machine.members["b"] = EVERYTHING
        write(machine)
        lock(machine, 0, 1, 2, 3)
        del machine.members["a"]
        write(machine)
        assert given(machine) == dict.fromkeys(range(4), "b")

    def test_free_partitions_are_placed_without_moving_others(self) -> None:
        """The partitions of the member that is gone are assigned to the others; these keep their own."""
        machine = stable("a", "b", "c", count=6)
        keep = {n: m for n, m in given(machine).items() if m != "c"}
        del machine.members["c"]
        write(machine)
        assert {n: given(machine)[n] for n in keep} == keep

    def test_an_isolated_member_counts_as_closed_when_it_has_released_its_partitions(self) -> None:
        machine = stable("a", "b")
        machine.isolated = frozenset({"b"})
        write(machine)
        assert machine.topics["orders"].state is TopicState.CLOSING
        assert set(given(machine).values()) == {"a"}
        lock(machine, *given(machine))
        write(machine)
        assert given(machine) == dict.fromkeys(range(4), "a")

    def test_a_silent_member_keeps_its_partitions(self) -> None:
        machine = stable("a", "b")
        machine.locked.clear()  # nobody has heard anything of anybody
        before = given(machine)
        for now in range(0, 10_000, 100):
            assert isinstance(machine.decide(now), Await)
        assert given(machine) == before

    def test_all_isolated(self) -> None:
        machine = stable("a")
        machine.isolated = frozenset({"a"})
        write(machine)
        lock(machine)
        decision = machine.decide(0)
        while not isinstance(decision, Await):
            machine.wrote(decision)
            lock(machine)
            decision = machine.decide(0)
        assert given(machine) == {}
        machine.isolated = frozenset()
        assert isinstance(write(machine, 0), Reassign)

    def test_a_lock_that_nobody_knows_of_has_to_go_first(self) -> None:
        machine = group(1, "a", join_window=0)
        decision = machine.decide(0)
        assert isinstance(decision, Reassign)
        machine.found_locked(Partition("orders", 0))  # the transaction failed
        assert isinstance(machine.decide(0), Await)
        assert machine.moving == {"orders"}
        lock(machine, 0)
        assert machine.decide(0) == Await("its holder has to close orders.0")
        lock(machine)
        assert isinstance(write(machine), Reassign)
        assert given(machine) == {0: "a"}

    def test_an_event_while_the_decision_is_on_its_way_is_not_lost(self) -> None:
        machine = group(4, "a", join_window=0)
        decision = machine.decide(0)
        assert isinstance(decision, Reassign)
        machine.members["b"] = EVERYTHING
        machine.wrote(decision)
        lock(machine, 0, 1, 2, 3)
        decision = write(machine)
        assert isinstance(decision, Reassign)
        assert len(machine.topics["orders"].to_close) == 2

    def test_partitions_that_join_are_assigned_and_those_that_leave_are_not_waited_for(self) -> None:
        machine = stable("a", "b")
        machine.partitions = partitions(5) | partitions(1, "late")
        decision = write(machine)
        assert isinstance(decision, Reassign)
        assert set(decision.starting) == {Partition("orders", 4), Partition("late", 0)}
        machine.partitions = partitions(4)
        decision = write(machine)
        assert isinstance(decision, Reassign)
        assert decision.removed == ("late",)
        assert "late" not in machine.topics
        assert given(machine).keys() == {0, 1, 2, 3}

    def test_streams_are_a_bound(self) -> None:
        machine = group(4, join_window=0)
        machine.members = {"a": Subscription.check({"orders": 1}), "b": Subscription.check({"orders": 2})}
        write(machine)
        assert sorted(given(machine).values()) == ["a", "b", "b"]
        before = given(machine)
        assert isinstance(machine.decide(0), Await), "what nobody may have is not tried again and again"
        machine.members["c"] = EVERYTHING
        write(machine, 1)
        assert {n: given(machine).get(n) for n in before} == before
        assert sorted(given(machine).values()) == ["a", "b", "b", "c"]

    def test_thousands_go_in_several_transactions(self) -> None:
        count = STARTS_PER_WRITE + 500
        machine = group(count, "a", "b", join_window=0)
        sizes = []
        while isinstance(decision := machine.decide(0), Reassign):
            machine.wrote(decision)
            sizes.append(len(decision.starting))
            lock(machine, *given(machine))
        assert sizes == [STARTS_PER_WRITE, 500]
        assert len(given(machine)) == count

    def test_long_names_make_smaller_transactions(self) -> None:
        topic = "t" * 249
        machine = RebalanceMachine(
            GroupSettings.check(join_window=0), partitions(2000, topic), members={"a": EVERYTHING}
        )
        decision = machine.decide(0)
        assert isinstance(decision, Reassign)
        assert 0 < len(decision.starting) < 1000
        assert sum(2 * len(f"owners/{p.topic}/{p.number}") for p in decision.starting) < 500_000


class TestTheWindow:
    def test_joins_are_gathered(self) -> None:
        machine = group(4, "a", join_window=5)
        assert machine.decide(100) == Await("gathering members, 1 there", 105)
        machine.members["b"] = EVERYTHING
        assert machine.decide(103) == Await("gathering members, 2 there", 105)
        assert isinstance(machine.decide(105), Reassign)

    def test_it_closes_early_when_so_many_are_there(self) -> None:
        machine = group(4, "a", expect=2)
        assert machine.decide(0) == Await("gathering members, 1 of 2 there", 30)
        assert machine.gathering is not None
        machine.members["b"] = EVERYTHING
        assert machine.gathering is None
        assert isinstance(machine.decide(1), Reassign)

    def test_isolated_ones_are_not_counted(self) -> None:
        machine = group(4, "a", "b", expect=2)
        machine.isolated = frozenset({"b"})
        assert isinstance(machine.decide(0), Await)

    def test_a_member_that_joins_a_running_group_waits_for_the_window(self) -> None:
        machine = stable("a")
        machine.settings = GroupSettings.check(join_window=1)
        machine.members["b"] = EVERYTHING
        assert machine.decide(50) == Await("gathering members, 2 there", 51)
        assert isinstance(machine.decide(51), Reassign)

    def test_a_member_that_joins_and_leaves_in_the_window_moves_nothing(self) -> None:
        machine = stable("a")
        machine.settings = GroupSettings.check(join_window=1)
        machine.members["b"] = EVERYTHING
        assert isinstance(machine.decide(50), Await)
        del machine.members["b"]
        assert machine.decide(50.5) == Await("stable")
        machine.members["c"] = EVERYTHING
        assert machine.decide(60) == Await("gathering members, 2 there", 61), "another window"

    def test_a_death_does_not_wait_for_the_window(self) -> None:
        machine = stable("a", "b")
        machine.settings = GroupSettings.check(join_window=1)
        machine.members["c"] = EVERYTHING
        assert isinstance(machine.decide(50), Await)
        del machine.members["b"]
        decision = machine.decide(50.1)
        assert isinstance(decision, Reassign)
        assert "c" in {m for t in decision.topics.values() for m in t.assignment.values()}

    def test_a_group_that_comes_back_waits_for_all_who_had_something(self) -> None:
        had = TopicAssignment({0: "a", 1: "b", 2: "c", 3: "a"})
        machine = group(4, "a", "b", topics={"orders": had}, join_window=1)
        machine.window_since = 10.0
        assert machine.decide(10.2) == Await("gathering members, 2 there", 11)
        machine.members["c"] = EVERYTHING
        assert isinstance(machine.decide(10.3), Await)
        assert machine.topics["orders"] == had, "everybody goes on with what it had"

    def test_a_member_that_did_not_come_back_is_removed(self) -> None:
        had = TopicAssignment({0: "a", 1: "b", 2: "c", 3: "a"})
        machine = group(4, "a", "b", topics={"orders": had}, expect=3)
        machine.window_since = 10.0
        decision = write(machine, 11.0)
        assert isinstance(decision, Reassign), "the long wait is for the first time only"
        assert decision.starting == (Partition("orders", 2),)
        assert "c" not in given(machine).values()

    def test_a_new_leader_that_has_been_there_for_long_does_not_wait_for_the_dead_one(self) -> None:
        machine = group(4, "b", topics={"orders": TopicAssignment(dict.fromkeys(range(4), "a"))}, join_window=1)
        machine.window_since = 10.0
        assert isinstance(machine.decide(500), Reassign)


class TestRecovery:
    """Whatever stands in the store, the next leader goes on from there."""

    def restarted(self, machine: RebalanceMachine) -> RebalanceMachine:
        stored = {
            name: TopicAssignment.decode("a", encode_assignment(topic.assignment), "s", topic.encode_state())
            for name, topic in machine.topics.items()
        }
        again = RebalanceMachine(machine.settings, machine.partitions, topics=stored, members=dict(machine.members))
        again.isolated, again.window_since = machine.isolated, 0.0
        return again

    @pytest.mark.parametrize("assignor", ["sticky", "range", "round_robin"])
    def test_another_leader_for_every_single_write(self, assignor: str) -> None:
        """Members come and go; each decision is written by a leader that has just taken over."""
        machine = group(6, "a", assignor=assignor, join_window=0)
        held: dict[int, str] = {}
        for names in (["a", "b"], ["a", "b", "c"], ["b", "c"], ["c", "d"], ["d"]):
            machine.members = dict.fromkeys(names, EVERYTHING)
            held = {n: m for n, m in held.items() if m in names}
            for _ in range(30):
                machine = self.restarted(machine)
                lock(machine, *held)
                decision = machine.decide(1000.0)
                if isinstance(decision, Await):
                    break
                if isinstance(decision, Reassign):
                    assert not {p.number for p in decision.starting} & held.keys(), "given away while it is held"
                machine.wrote(decision)
                given_now = given(machine)
                held = {n: m for n, m in held.items() if given_now.get(n) == m}  # they let go
                held.update(given_now)  # and take
            assert given(machine).keys() == set(range(6))
            assert set(given(machine).values()) == set(names)
            assert machine.topics["orders"].state is TopicState.STABLE


class TestNodes:
    @pytest.mark.parametrize(
        "topic",
        [
            TopicAssignment(),
            TopicAssignment({0: "a"}),
            TopicAssignment({0: "a", 1: "b", 10: "a"}, {1: "b"}),
            TopicAssignment({0: "worker-1.x_y"}, {0: "worker-1.x_y"}, {3: "b", 2: "a"}),
        ],
        ids=brief,
    )
    def test_they_hold_what_was_written(self, topic: TopicAssignment) -> None:
        assert TopicAssignment.decode("a", encode_assignment(topic.assignment), "s", topic.encode_state()) == topic

    def test_they_can_be_read_by_people(self) -> None:
        topic = TopicAssignment({0: "a", 1: "b", 2: "a"}, {1: "b"}, {3: "a"})
        assert encode_assignment(topic.assignment) == b"a:0,2;b:1;"
        assert topic.encode_state() == b"Closing\ntoStart b:1;\ntoClose a:3;"

    @pytest.mark.parametrize(
        "data", [b"x", b"a:", b"a:0", b"a:0;;", b"a:0;a:1;", b"a:0;b:0;", b":0;", b"a:-1;", b"a:99999999999;", b"\xff"]
    )
    def test_an_invalid_assignment_is_corrupt(self, data: bytes) -> None:
        with pytest.raises(
            CorruptNodeError, match=r"assignments/orders holds .*; expected members and their partition"
        ):
            decode_assignment("assignments/orders", data)

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"Stable",
            b"stable\ntoStart \ntoClose ",
            b"Stable\ntoStart a:0;\ntoClose ",
            b"Closing\ntoStart \ntoClose ",
            b"Starting\ntoStart a:0;\ntoClose a:0;",
            b"Closing\ntoStart a:0;\ntoClose a:0;",
            b"Stable\ntoClose \ntoStart ",
            b"Stable\ntoStart \ntoClose \n",
            b"\xff\xfe\n\n",
        ],
    )
    def test_an_invalid_state_is_corrupt(self, data: bytes) -> None:
        with pytest.raises(CorruptNodeError, match=r"state/orders holds .*; expected three lines"):
            decode_state("state/orders", data)

    def test_where_the_two_differ_the_assignment_counts(self) -> None:
        topic = TopicAssignment.decode("a", b"a:0,1;", "s", b"Closing\ntoStart b:0;c:7;\ntoClose b:1,2;")
        assert topic == TopicAssignment({0: "a", 1: "a"}, {}, {2: "b"})


class TestSettings:
    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"subscription": {}}, "the subscription is empty"),
            ({"subscription": {"orders": -1}}, "is given -1 streams"),
            ({"subscription": 7}, "expected a list of topics"),
            ({"subscription": re.compile("")}, "the pattern is empty"),
            ({"assignor": "fair"}, "there is no assignor 'fair'"),
            ({"weight": 3}, "expected a function of a partition and a member"),
            ({"weight": lambda p, m: 1, "assignor": "range"}, "with the assignor 'sticky'"),
            ({"expect": 0}, "expect is 0"),
            ({"expect": True}, "expect is True"),
            ({"join_window": -1}, "join_window is -1"),
            ({"join_window": "soon"}, "join_window is 'soon'"),
        ],
        ids=brief,
    )
    def test_invalid_arguments_are_refused(self, wrong: dict[str, Any], message: str) -> None:
        with pytest.raises(UsageError, match=re.escape(message)):
            check_group("managed", **wrong)

    @pytest.mark.parametrize("given", [{"expect": 2}, {"subscription": ["orders"]}, {"assignor": "range"}])
    def test_settings_of_a_managed_group_are_refused_in_other_groups(self, given: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match='only mean something with assignment="managed"'):
            check_group(None, **given)

    def test_an_unknown_assignment_is_refused(self) -> None:
        with pytest.raises(UsageError, match="assignment is 'kafka'"):
            check_group("kafka")

    def test_defaults(self) -> None:
        assert check_group(None, assignor="sticky", expect=None) is None
        assert GroupSettings.check() == GroupSettings()
        assert GroupSettings.check(expect=3).join_window == 30
        assert GroupSettings.check(subscription=re.compile("o.*")).subscription.pattern == "o.*"
