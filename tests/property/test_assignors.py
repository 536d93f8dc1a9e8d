"""Properties of every assignment; the sticky one is compared with all possible assignments."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from aiokcc.core.assignors import ASSIGNORS, assign
from aiokcc.core.partitions import Partition
from aiokcc.core.subscriptions import EVERYTHING, Subscription

assignors = st.sampled_from(list(ASSIGNORS))
specs = st.one_of(st.none(), st.integers(1, 3), st.lists(st.integers(0, 3), min_size=1, max_size=3))
subscriptions = st.one_of(
    st.just(EVERYTHING),
    st.builds(lambda pattern: Subscription.check(pattern=pattern), st.sampled_from(["a", "b", "a|b", "c"])),
    st.builds(Subscription.check, st.dictionaries(st.sampled_from("ab"), specs, min_size=1)),
)


whole_subscriptions = st.sampled_from(
    [
        Subscription.check("a", pipeline="p"),
        Subscription.check({"a": [0, 2], "b": [1]}, pipeline="q"),
        Subscription.check("b", pipeline="r"),
        Subscription.check(pipeline="s"),
    ]
)


class Situation(NamedTuple):
    members: dict[str, Subscription]
    partitions: list[Partition]
    current: dict[Partition, str]


@st.composite
def situations(draw: st.DrawFn, most: int = 4) -> Situation:
    """Draw a few members, a few partitions, and an assignment that may name members and partitions that are gone."""
    names = draw(st.lists(st.sampled_from("xyzw"), max_size=3, unique=True))
    if draw(st.booleans()):
        members = dict.fromkeys(names, draw(subscriptions))
    else:
        members = {name: draw(subscriptions) for name in names}
    partitions = [Partition(topic, n) for topic in "ab" for n in range(draw(st.integers(0, most)))]
    owners = st.sampled_from("xyzw?")
    current = draw(st.dictionaries(st.sampled_from([*partitions, Partition("gone", 0)]), owners))
    return Situation(members, partitions, current)


def given_to(situation: Situation, assignment: Mapping[Partition, str]) -> Counter[tuple[str, str]]:
    return Counter((name, partition.topic) for partition, name in assignment.items())


def within_limits(situation: Situation, assignment: Mapping[Partition, str]) -> bool:
    return all(
        (most := situation.members[name].limit(topic)) is None or count <= most
        for (name, topic), count in given_to(situation, assignment).items()
    )


def cost(situation: Situation, assignment: Mapping[Partition, str]) -> tuple[int, int, int]:
    """Return the number of unassigned partitions, how uneven the rest is, and how many moved that could have stayed."""
    counts = Counter(assignment.values())
    moves = sum(
        owner in situation.members and situation.members[owner].covers(partition) and assignment.get(partition) != owner
        for partition, owner in situation.current.items()
        if partition in situation.partitions
    )
    return len(situation.partitions) - len(assignment), sum(n * n for n in counts.values()), moves


def least_cost(situation: Situation) -> tuple[int, int, int]:
    """Return the least cost of all possible assignments."""
    choices: Sequence[list[str | None]] = [
        [None, *(name for name, subscription in situation.members.items() if subscription.covers(partition))]
        for partition in situation.partitions
    ]
    assignments = (
        {partition: name for partition, name in zip(situation.partitions, chosen, strict=True) if name is not None}
        for chosen in itertools.product(*choices)
    )
    return min(cost(situation, assignment) for assignment in assignments if within_limits(situation, assignment))


@given(assignors, situations())
def test_each_partition_is_assigned_once_to_a_member_that_subscribes_to_it(assignor: str, situation: Situation) -> None:
    result = assign(assignor, *situation)
    assert set(result) <= set(situation.partitions)
    for partition, name in result.items():
        assert situation.members[name].covers(partition)
    assert within_limits(situation, result)


@settings(deadline=None)
@given(assignors, situations(3))
def test_as_many_partitions_as_possible_are_assigned(assignor: str, situation: Situation) -> None:
    fewest_left = least_cost(situation)[0]
    assert cost(situation, assign(assignor, *situation))[0] == fewest_left
    if assignor == "sticky":
        assert (
            cost(situation, assign(assignor, *situation, lambda partition, _: 1 + partition.number))[0] == fewest_left
        )


@settings(deadline=None, max_examples=300)
@given(situations(3))
@example(
    Situation(
        {"x": Subscription.check({"a": 1}), "y": Subscription.check({"a": [0]}), "z": Subscription.check({"b": 1})},
        [Partition("a", 0), Partition("a", 1), Partition("b", 0)],
        {Partition("a", 0): "x"},
    )
)
def test_sticky_is_as_even_as_possible_and_moves_as_little_as_possible(situation: Situation) -> None:
    assert cost(situation, assign("sticky", *situation)) == least_cost(situation)


@st.composite
def crowds(draw: st.DrawFn) -> Situation:
    """Draw more members and partitions, mostly assigned to a few members: too many to try all assignments."""
    wanted = st.sampled_from(
        [
            *[Subscription.check(["a", "b"])] * 3,
            Subscription.check({"a": 4, "b": None}),
            Subscription.check({"a": 3, "b": 5}),
            Subscription.check("b"),
        ]
    )
    members = draw(st.dictionaries(st.sampled_from("uvwxyz"), wanted, min_size=3))
    partitions = [Partition(topic, n) for topic in "ab" for n in range(draw(st.integers(3, 9)))]
    owners = st.sampled_from([*draw(st.lists(st.sampled_from(sorted(members)), min_size=1, max_size=3)), "?"])
    return Situation(members, partitions, {partition: draw(owners) for partition in partitions})


@settings(deadline=None, max_examples=300)
@given(crowds())
@example(  # a move that costs more than it need, made at a glance, would lead the search in circles
    Situation(
        {"u": EVERYTHING, "v": EVERYTHING, "w": Subscription.check("a")},
        [Partition("a", 0), Partition("a", 1), Partition("b", 0)],
        {Partition("a", 0): "u"},
    )
)
@example(
    Situation(
        {"u": Subscription.check({"a": 4, "b": None}), "v": EVERYTHING, "w": Subscription.check("a")},
        [Partition("a", 0), Partition("a", 1), Partition("b", 0)],
        {Partition("a", 0): "u"},
    )
)
def test_a_single_move_finds_the_same_cost_as_a_search(situation: Situation) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aiokcc.core.sticky._Flow._single_move", lambda _: [])
        searched = cost(situation, assign("sticky", *situation))
    assert cost(situation, assign("sticky", *situation)) == searched


@given(assignors, situations(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(assignor: str, situation: Situation, chance: random.Random) -> None:
    members, current = list(situation.members.items()), list(situation.current.items())
    partitions = list(situation.partitions)
    result = assign(assignor, *situation)
    for items in (members, current, partitions):
        chance.shuffle(items)
    again = assign(assignor, dict(members), [*partitions, *partitions], dict(current))
    assert list(again.items()) == list(result.items())


@given(assignors, situations(8))
def test_an_assignment_stays_when_nothing_changes(assignor: str, situation: Situation) -> None:
    once = assign(assignor, *situation)
    assert assign(assignor, situation.members, situation.partitions, once) == once


@given(
    st.integers(1, 12),
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
    st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 29)), st.integers(0, 15)),
)
def test_equal_subscriptions_get_equal_shares(count: int, sizes: list[int], held: dict[tuple[int, int], int]) -> None:
    members = {f"m{n}": EVERYTHING for n in range(count)}
    partitions = [Partition(f"t{t}", n) for t, size in enumerate(sizes) for n in range(size)]
    current = {Partition(f"t{t}", n): f"m{owner}" for (t, n), owner in held.items()}
    for assignor in ("sticky", "round_robin"):
        shares = Counter(assign(assignor, members, partitions, current).values())
        assert max(shares.values(), default=0) - min(shares[name] for name in members) <= 1
    for size, topic in zip(sizes, (f"t{t}" for t in range(len(sizes))), strict=True):
        mine = [Partition(topic, n) for n in range(size)]
        stretches = [list(group) for _, group in itertools.groupby(assign("range", members, mine, {}).values())]
        assert len(stretches) == min(size, count)  # neighbours together
        assert all(len(stretch) in {size // count, size // count + 1} for stretch in stretches)


@settings(deadline=None)
@given(situations(6), st.data())
def test_a_member_that_joins_or_leaves_moves_no_more_than_its_share(situation: Situation, data: st.DataObject) -> None:
    """All subscribe to the same. If one member joins or leaves, nothing moves between the others."""
    assume(situation.members)
    members = dict.fromkeys(situation.members, EVERYTHING)
    before = assign("sticky", members, situation.partitions, situation.current)
    joined = assign("sticky", {**members, "new": EVERYTHING}, situation.partitions, before)
    assert all(joined[partition] in {before[partition], "new"} for partition in before)
    gone = data.draw(st.sampled_from(sorted(members)))
    rest = {name: EVERYTHING for name in members if name != gone}
    left = assign("sticky", rest, situation.partitions, before)
    assert all(left[partition] == before[partition] for partition in left if before[partition] != gone)


@settings(deadline=None, max_examples=200)
@given(
    assignors,
    situations(),
    st.dictionaries(st.sampled_from(["d", "e", "f"]), whole_subscriptions, min_size=1),
    st.data(),
)
def test_a_pipelines_partitions_go_to_one_driver_and_do_not_change_the_rest(
    assignor: str, situation: Situation, drivers: dict[str, Subscription], data: st.DataObject
) -> None:
    partitions, members = situation.partitions, {**situation.members, **drivers}
    held = st.dictionaries(st.sampled_from(partitions), st.sampled_from(sorted(drivers)))
    current = {**situation.current, **(data.draw(held) if partitions else {})}
    result = assign(assignor, members, partitions, current)
    wanted = {wants.pipeline: {p for p in partitions if wants.covers(p)} for wants in drivers.values()}
    reserved: set[Partition] = set()
    for pipeline, whole in wanted.items():
        mine = {name for name, wants in drivers.items() if wants.pipeline == pipeline}
        owners = {result.get(p) for p in whole}
        if owners & mine:
            assert len(owners) == 1, f"{pipeline} is shared out"
            reserved |= whole
            had = Counter(current.get(p) for p in partitions)
            (owner,) = owners
            assert had[owner] == max(had[name] for name in mine), "who has most keeps it"
        else:  # nothing, and only because another pipeline has one of them
            assert not whole or any(whole & other for name, other in wanted.items() if name != pipeline)
    # The others have what they would have if there were neither pipelines nor these partitions.
    rest = [p for p in partitions if p not in reserved]
    assert {p: m for p, m in result.items() if p not in reserved} == assign(assignor, situation.members, rest, current)
    assert not {p for p, m in result.items() if p not in reserved and m in drivers}
    assert assign(assignor, members, partitions, result) == result


@settings(deadline=None, max_examples=300)
@given(
    situations(5),
    st.dictionaries(st.integers(0, 5), st.floats(0.1, 50)),
    st.dictionaries(st.tuples(st.integers(0, 5), st.sampled_from("xyzw")), st.sampled_from([0.5, 2, 7.3])),
)
def test_no_single_move_would_balance_the_loads_better(
    situation: Situation, weights: dict[int, float], nearness: dict[tuple[int, str], float]
) -> None:
    def weight(partition: Partition, member: str) -> float:
        return weights.get(partition.number, 1.0) * nearness.get((partition.number, member), 1)

    result = assign("sticky", *situation, weight)
    assert within_limits(situation, result)

    def uneven(assignment: Mapping[Partition, str]) -> float:
        loads: Counter[str] = Counter()
        for partition, name in assignment.items():
            loads[name] += weight(partition, name)  # type: ignore[assignment]
        return sum(load * load for load in loads.values())

    for partition in result:
        for name, subscription in situation.members.items():
            other = {**result, partition: name}
            if subscription.covers(partition) and within_limits(situation, other):
                assert uneven(other) >= uneven(result) * (1 - 1e-6)
    assert assign("sticky", situation.members, situation.partitions, result, weight) == result
