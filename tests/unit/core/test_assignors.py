"""The assignors, by example. What holds for all inputs is in tests/property/test_assignors.py."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest

from aiokcc.core.assignors import ASSIGNORS, DEFAULT, assign, check_assignor
from aiokcc.core.partitions import Partition
from aiokcc.core.subscriptions import EVERYTHING, Subscription
from aiokcc.errors import UsageError
from tests.unit.naming import brief


def numbered(topic: str, count: int) -> list[Partition]:
    return [Partition(topic, number) for number in range(count)]


def by_member(assignment: Mapping[Partition, str]) -> dict[str, list[str]]:
    shown: dict[str, list[str]] = {}
    for partition, name in assignment.items():
        shown.setdefault(name, []).append(str(partition))
    return dict(sorted(shown.items()))


def everybody(names: str) -> dict[str, Subscription]:
    return dict.fromkeys(names, EVERYTHING)


def moved(before: Mapping[Partition, str], after: Mapping[Partition, str]) -> list[str]:
    return [str(partition) for partition in before if after.get(partition) != before[partition]]


def test_range_gives_neighbours_topic_by_topic() -> None:
    partitions = [*numbered("orders", 5), *numbered("payments", 5)]
    assert by_member(assign("range", everybody("abc"), partitions, {})) == {
        "a": ["orders.0", "orders.1", "payments.0", "payments.1"],
        "b": ["orders.2", "orders.3", "payments.2", "payments.3"],
        "c": ["orders.4", "payments.4"],
    }


def test_round_robin_gives_one_to_each_in_turn() -> None:
    partitions = [*numbered("orders", 4), *numbered("payments", 3)]
    assert by_member(assign("round_robin", everybody("abc"), partitions, {})) == {
        "a": ["orders.0", "orders.3", "payments.2"],
        "b": ["orders.1", "payments.0"],
        "c": ["orders.2", "payments.1"],
    }


def test_round_robin_skips_members_that_are_not_eligible() -> None:
    members = {"a": Subscription.check("orders"), "b": EVERYTHING}
    partitions = [*numbered("orders", 2), *numbered("payments", 2), *numbered("refunds", 1)]
    assert by_member(assign("round_robin", members, partitions, {})) == {
        "a": ["orders.0"],
        "b": ["orders.1", "payments.0", "payments.1", "refunds.0"],
    }


def test_sticky_spreads_a_topic_over_the_members() -> None:
    assert by_member(assign("sticky", everybody("ab"), [*numbered("o", 3), *numbered("p", 2)], {})) == {
        "a": ["o.0", "o.2", "p.1"],
        "b": ["o.1", "p.0"],
    }


def test_sticky_moves_only_what_a_new_member_gets() -> None:
    partitions = [*numbered("orders", 6), *numbered("payments", 6)]
    before = assign("sticky", everybody("ab"), partitions, {})
    after = assign("sticky", everybody("abc"), partitions, before)
    assert Counter(after.values()) == {"a": 4, "b": 4, "c": 4}
    assert len(moved(before, after)) == 4
    gained = Counter(partition.topic for partition, name in after.items() if name == "c")
    assert gained == {"orders": 2, "payments": 2}  # some of each


def test_sticky_moves_only_what_the_dead_had() -> None:
    partitions = numbered("orders", 12)
    before = assign("sticky", everybody("abcd"), partitions, {})
    after = assign("sticky", everybody("abd"), partitions, before)
    assert Counter(after.values()) == {"a": 4, "b": 4, "d": 4}
    assert set(moved(before, after)) == {str(p) for p, name in before.items() if name == "c"}


def test_sticky_leaves_the_longer_share_with_the_member_that_has_it() -> None:
    partitions = numbered("orders", 5)
    before = dict(zip(partitions, "aabbb", strict=True))
    assert assign("sticky", everybody("ab"), partitions, before) == before


def test_the_example_of_the_sticky_assignor() -> None:
    partitions = [*numbered("orders", 4), *numbered("payments", 1)]
    before = dict.fromkeys(partitions, "a")
    members = {**everybody("ab"), "c": Subscription.check("payments")}
    after = assign("sticky", members, partitions, before)
    assert Counter(after.values()) == {"a": 2, "b": 2, "c": 1}
    assert len(moved(before, after)) == 3


def test_sticky_moves_partitions_along_a_chain_of_members() -> None:
    """The refunds go from b to c, and so b has room for orders of a."""
    members = {"a": Subscription.check("orders"), "b": EVERYTHING, "c": Subscription.check("refunds")}
    partitions = [*numbered("orders", 4), *numbered("refunds", 2)]
    before = dict(zip(partitions, "aaaabb", strict=True))
    after = assign("sticky", members, partitions, before)
    assert Counter(after.values()) == {"a": 2, "b": 2, "c": 2}
    assert len(moved(before, after)) == 4


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_at_most_so_many_streams_of_a_topic(assignor: str) -> None:
    members = {"a": Subscription.check({"orders": 2}), "b": Subscription.check({"orders": 1})}
    result = assign(assignor, members, numbered("orders", 8), {})
    assert Counter(result.values()) == {"a": 2, "b": 1}  # the rest is unassigned
    members["c"] = EVERYTHING
    result = assign(assignor, members, numbered("orders", 8), result)
    assert Counter(result.values()) == {"a": 2, "b": 1, "c": 5}


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_a_limit_is_not_spent_on_what_others_can_take(assignor: str) -> None:
    members = {"a": Subscription.check({"orders": 2}), "b": Subscription.check({"orders": [0, 1]})}
    result = assign(assignor, members, numbered("orders", 4), dict.fromkeys(numbered("orders", 2), "a"))
    assert by_member(result) == {"a": ["orders.2", "orders.3"], "b": ["orders.0", "orders.1"]}


@pytest.mark.parametrize("assignor", ASSIGNORS)
@pytest.mark.parametrize("members", [{}, {"a": Subscription.check("refunds")}], ids=["nobody", "not-mine"])
def test_a_partition_that_no_member_may_take_is_unassigned(assignor: str, members: Mapping[str, Subscription]) -> None:
    assert assign(assignor, members, numbered("orders", 3), {}) == {}


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_nothing_to_assign(assignor: str) -> None:
    assert assign(assignor, everybody("ab"), [], {Partition("gone", 0): "a"}) == {}


def test_a_pattern_takes_what_matches() -> None:
    members = {"a": Subscription.check(pattern="orders-.*"), "b": EVERYTHING}
    partitions = [*numbered("orders-eu", 2), *numbered("payments", 2)]
    assert by_member(assign("sticky", members, partitions, {})) == {
        "a": ["orders-eu.0", "orders-eu.1"],
        "b": ["payments.0", "payments.1"],
    }


def lag(heavy: Iterable[Partition]) -> dict[Partition, float]:
    return dict.fromkeys(heavy, 100.0)


def test_a_weight_by_lag_spreads_the_heavy_ones() -> None:
    partitions = numbered("orders", 8)
    lags = lag(partitions[:2])
    result = assign("sticky", everybody("ab"), partitions, {}, lambda partition, _: lags.get(partition, 1.0))
    assert {result[partitions[0]], result[partitions[1]]} == {"a", "b"}
    assert Counter(result.values()) == {"a": 4, "b": 4}


def test_a_weight_by_rack_keeps_partitions_near() -> None:
    partitions = numbered("orders", 8)
    racks = {partition: "ab"[partition.number >= 4] for partition in partitions}

    def weight(partition: Partition, member: str) -> float:
        return 1.0 if racks[partition] == member else 2.0

    assert assign("sticky", everybody("ab"), partitions, {}, weight) == racks
    # Even if everything was the wrong way round and as even as it could be.
    wrong = {partition: "ba"[rack == "b"] for partition, rack in racks.items()}
    assert assign("sticky", everybody("ab"), partitions, wrong, weight) == racks


def test_an_assignment_balanced_by_weight_stays() -> None:
    partitions = numbered("orders", 40)

    def weight(partition: Partition, _: str) -> float:
        return 1.0 + partition.number % 7 / 3

    once = assign("sticky", everybody("abc"), partitions, {}, weight)
    assert assign("sticky", everybody("abc"), partitions, once, weight) == once


def test_the_default_is_sticky() -> None:
    assert DEFAULT == next(iter(ASSIGNORS)) == "sticky"
    assert check_assignor("range") == "range"


@pytest.mark.parametrize("name", ["roundrobin", "", None, 7, [], ["sticky"]], ids=brief)
def test_an_unknown_assignor(name: object) -> None:
    with pytest.raises(
        UsageError, match=re.escape(f"no assignor {name!r}; expected one of sticky, range, round_robin")
    ):
        check_assignor(name)


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, None, "1", True, 1e16], ids=brief)
def test_an_invalid_weight_is_refused(weight: float) -> None:
    with pytest.raises(UsageError, match=r"the weight of orders\.0 on a is .*; expected a number above 0"):
        assign("sticky", everybody("ab"), numbered("orders", 1), {}, lambda *_: weight)


def test_a_weight_is_checked_for_every_partition() -> None:
    """Also where it equals one that is right."""
    with pytest.raises(UsageError, match=r"the weight of orders\.1 on b is True"):
        assign(
            "sticky", everybody("ab"), numbered("orders", 2), {}, lambda p, m: True if (p.number, m) == (1, "b") else 1
        )


@pytest.mark.parametrize("assignor", ["range", "round_robin"])
def test_only_sticky_weighs(assignor: str) -> None:
    with pytest.raises(UsageError, match="takes none; expected the assignor 'sticky'"):
        assign(assignor, everybody("ab"), numbered("orders", 1), {}, lambda *_: 1.0)
