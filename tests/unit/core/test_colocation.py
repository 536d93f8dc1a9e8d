"""Partitions that go together, by example. What holds for all inputs is in tests/property/test_assignors.py."""

from __future__ import annotations

import json

import pytest

from aiokcc.core.assignors import ASSIGNORS, assign
from aiokcc.core.colocation import colocate
from aiokcc.core.partitions import Partition
from aiokcc.core.subscriptions import EVERYTHING, Registration, Subscription
from aiokcc.errors import CorruptNodeError, UsageError

ORDERS = [Partition("orders", n) for n in range(3)]
PAYMENTS = [Partition("payments", n) for n in range(2)]
REVENUE = Subscription.check(["orders"], pipeline="revenue")


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_one_driver_has_all_another_stands_by_and_the_rest_is_shared(assignor: str) -> None:
    members = {"d1": REVENUE, "d2": REVENUE, "a": EVERYTHING, "b": EVERYTHING}
    result = assign(assignor, members, [*ORDERS, *PAYMENTS], dict.fromkeys(ORDERS, "a"))
    assert {result[p] for p in ORDERS} == {"d1"}  # reserved, although somebody else had them
    assert {result[p] for p in PAYMENTS} == {"a", "b"}


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_the_driver_keeps_the_partitions_until_it_is_gone(assignor: str) -> None:
    members = {"d1": REVENUE, "d2": REVENUE}
    driven = dict.fromkeys(ORDERS, "d2")
    assert assign(assignor, members, ORDERS, driven) == driven
    assert assign(assignor, members, [*ORDERS, Partition("orders", 3)], driven)[Partition("orders", 3)] == "d2"
    assert set(assign(assignor, {"d1": REVENUE}, ORDERS, driven).values()) == {"d1"}


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_without_a_driver_they_go_to_members_that_subscribed_or_to_none(assignor: str) -> None:
    driven = dict.fromkeys(ORDERS, "d1")
    assert set(assign(assignor, {"a": EVERYTHING}, ORDERS, driven).values()) == {"a"}
    assert assign(assignor, {"a": Subscription.check("payments")}, ORDERS, driven) == {}


def test_a_driver_counts_for_nothing_else() -> None:
    """A weight is not asked for what a pipeline has, nor a driver balanced against others."""
    asked: list[str] = []

    def weight(partition: Partition, member: str) -> float:
        asked.append(f"{partition} {member}")
        return 1.0

    result = assign("sticky", {"d": REVENUE, "a": EVERYTHING}, [*ORDERS, *PAYMENTS], {}, weight)
    assert {result[p] for p in PAYMENTS} == {"a"}
    assert sorted(asked) == ["payments.0 a", "payments.1 a"]


def test_two_pipelines_that_want_the_same_partition() -> None:
    members = {"d": REVENUE, "e": Subscription.check({"orders": [2], "payments": None}, pipeline="audit")}
    result = colocate(members, [*ORDERS, *PAYMENTS], {})
    assert result.assigned == dict.fromkeys([ORDERS[2], *PAYMENTS], "e")  # by name
    assert result.refused == {"revenue": (ORDERS[2], "audit")}
    result = colocate(members, [*ORDERS, *PAYMENTS], {ORDERS[0]: "d"})
    assert result.assigned == dict.fromkeys(ORDERS, "d")  # it had something, the other nothing
    assert result.refused == {"audit": (ORDERS[2], "revenue")}
    # What it cannot have as a whole is open to others, as if it were not there.
    assert assign("sticky", {**members, "a": EVERYTHING}, [*ORDERS, *PAYMENTS], {ORDERS[0]: "d"})[PAYMENTS[0]] == "a"


def test_a_pipeline_that_wants_partitions_that_do_not_exist() -> None:
    assert colocate({"d": Subscription.check("refunds", pipeline="p")}, ORDERS, {}) == ({}, {})


def test_a_registration_names_its_pipeline() -> None:
    data = Registration("d-1", REVENUE, 0, "here").encode()
    raw = json.loads(data)
    assert (raw["subscription"], raw["pipeline"]) == ({"orders": None}, "revenue")
    assert Registration.decode("ids/d-1", data).subscription == REVENUE
    everything = Subscription.check(pipeline="revenue")
    assert Registration.decode("ids/d", Registration("d", everything, 0, "").encode()).subscription == everything
    assert str(REVENUE) == "orders, all for the pipeline revenue"
    assert str(everything) == "everything, all for the pipeline revenue"
    for wrong in (7, "", "a b", "..", "x" * 101):
        with pytest.raises(CorruptNodeError):
            Registration.decode("ids/d-1", json.dumps({**raw, "pipeline": wrong}).encode())


def test_a_pipeline_has_no_use_for_a_limit() -> None:
    with pytest.raises(UsageError, match="takes all of 'orders' or names its partitions; a limit of 2 is not possible"):
        Subscription.check({"orders": 2}, pipeline="revenue")
