"""Subscriptions, as users write them and as a registration holds them."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokcc.core.partitions import MAX_COUNT, Partition
from aiokcc.core.subscriptions import EVERYTHING, Registration, Subscription
from aiokcc.errors import CorruptNodeError, UsageError
from tests.unit.naming import brief


def test_everything_is_the_default() -> None:
    subscription = Subscription.check()
    assert subscription is EVERYTHING
    assert subscription.everything
    assert subscription.covers(Partition("orders", 7))
    assert subscription.limit("orders") is None
    assert str(subscription) == "everything"


def test_topics_with_and_without_a_limit_of_streams() -> None:
    subscription = Subscription.check({"orders": 4, "payments": None})
    assert subscription.covers(Partition("orders", 99))
    assert subscription.limit("orders") == 4
    assert subscription.covers(Partition("payments", 0))
    assert subscription.limit("payments") is None
    assert not subscription.covers(Partition("refunds", 0))
    assert not subscription.everything
    assert str(subscription) == "orders (at most 4), payments"


@pytest.mark.parametrize("topics", ["orders", ["orders"], ("orders",), {"orders"}, {"orders": None}], ids=brief)
def test_a_topic_however_it_is_written(topics: object) -> None:
    assert Subscription.check(topics) == Subscription({"orders": None})


def test_partitions_by_their_numbers() -> None:
    subscription = Subscription.check({"orders": [0, 3], "payments": 2})
    assert subscription.covers(Partition("orders", 3))
    assert not subscription.covers(Partition("orders", 1))
    assert not subscription.covers_topic("orders")
    assert subscription.covers(Partition("payments", 9))
    assert str(subscription) == "payments (at most 2), orders.0, orders.3"


def test_a_pattern_matches_the_whole_name() -> None:
    subscription = Subscription.check(pattern="orders-.*|payments")
    assert subscription.covers(Partition("orders-eu", 0))
    assert subscription.covers(Partition("payments", 0))
    assert not subscription.covers(Partition("payments-eu", 0))
    assert not subscription.covers(Partition("old-orders-eu", 0))
    assert Subscription.check(pattern=re.compile("a.*")).pattern == "a.*"


def test_more_streams_than_there_can_be_partitions_is_no_limit() -> None:
    assert Subscription.check({"orders": 10**5000}).limit("orders") == MAX_COUNT


@pytest.mark.parametrize(
    ("topics", "pattern", "message"),
    [
        ({}, None, "the subscription is empty"),
        ([], None, "the subscription is empty"),
        (7, None, "subscription 7 cannot be read; expected a list of topics"),
        (b"orders", None, "expected a list of topics"),
        ({"orders": 0}, None, "topic 'orders' is given 0 streams; expected at least 1"),
        ({"orders": -4}, None, "topic 'orders' is given -4 streams; expected at least 1"),
        ({"orders": -(10**5000)}, None, "is given a negative number streams"),
        ({"orders": True}, None, "expected the number of partitions, or a list"),
        ({"orders": 1.5}, None, "expected the number of partitions, or a list"),
        ({"orders": "0,1"}, None, "expected the number of partitions, or a list"),
        ({"orders": []}, None, "it needs at least one"),
        ({"orders": [-1]}, None, "the partition -1; expected a whole number"),
        ({"a/b": 1}, None, "not a name Kafka allows"),
        (["orders", ""], None, "topic '' is not a name Kafka allows"),
        ("a b", None, "not a name Kafka allows"),
        ([7], None, "topic 7 is not a name Kafka allows"),
        (None, "", "the pattern is empty"),
        (None, "orders-(", "'orders-(' is not a regular expression: missing )"),
        (None, "*", "is not a regular expression: nothing to repeat"),
        (None, "a{99999999999999999999}", "is not a regular expression"),
        (None, "(" * 900, "is not a regular expression"),
        (None, "a" * 1001, "the pattern has 1001 characters; expected at most 1000"),
        (None, 7, "pattern 7 is not a text"),
        (None, re.compile("a", re.IGNORECASE), "has flags"),
        (None, re.compile(b"a"), "has flags"),
        (["orders"], "o.*", "topics and a pattern are both given"),
    ],
    ids=brief,
)
def test_invalid_arguments_are_refused(topics: object, pattern: object, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Subscription.check(topics, pattern=pattern)
    assert message in str(caught.value)


topics = st.from_regex(r"\A[A-Za-z0-9._-]{1,20}\Z").filter(lambda name: name not in {".", ".."})
subscriptions = st.one_of(
    st.just(EVERYTHING),
    st.builds(lambda pattern: Subscription.check(pattern=pattern), st.sampled_from(["a.*", "[ab]", "ä|x"])),
    st.builds(
        Subscription.check,
        st.dictionaries(
            topics,
            st.none() | st.integers(1, MAX_COUNT) | st.lists(st.integers(0, 2**31 - 1), min_size=1),
            min_size=1,
        ),
    ),
)
registrations = st.builds(
    Registration,
    st.text(min_size=1),
    subscriptions,
    st.integers(0, 2**63 - 1),
    st.text(),
    st.none() | st.integers(0, 2**22),
    st.frozensets(st.builds(Partition, topics, st.integers(0, 2**31 - 1))),
)


@given(registrations)
def test_a_registration_is_read_as_it_was_written(registration: Registration) -> None:
    data = registration.encode()
    assert Registration.decode("ids/a", data) == registration
    assert set(json.loads(data)) >= {"version", "subscription", "pattern", "timestamp", "host", "running"}


def test_a_registration_is_for_people_too() -> None:
    subscription = Subscription.check({"orders": 4, "payments": [0, 1]})
    registration = Registration("w-1", subscription, 1700, "here", 7, frozenset({Partition("orders", 3)}))
    assert json.loads(registration.encode()) == {
        "version": 1,
        "id": "w-1",
        "host": "here",
        "pid": 7,
        "timestamp": 1700,
        "subscription": {"orders": 4, "payments": [0, 1]},
        "pattern": None,
        "running": "orders:3;",
    }
    assert json.loads(Registration("w", EVERYTHING, 0, "").encode())["subscription"] == "all"


GOOD = json.loads(Registration("w-1", Subscription.check({"orders": 4}), 1700, "here", 7).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"\xff",
        b"[]",
        b"7",
        b"[" * 100_000,
        json.dumps({**GOOD, "version": 2}).encode(),
        *(json.dumps({key: value for key, value in GOOD.items() if key != gone}).encode() for gone in GOOD),
        json.dumps({**GOOD, "id": ""}).encode(),
        json.dumps({**GOOD, "host": 7}).encode(),
        json.dumps({**GOOD, "pid": "7"}).encode(),
        json.dumps({**GOOD, "timestamp": -1}).encode(),
        json.dumps({**GOOD, "timestamp": True}).encode(),
        json.dumps({**GOOD, "timestamp": 2**63}).encode(),
        json.dumps({**GOOD, "running": "orders"}).encode(),
        json.dumps({**GOOD, "running": ["orders"]}).encode(),
        json.dumps({**GOOD, "subscription": {}}).encode(),
        json.dumps({**GOOD, "subscription": None}).encode(),
        json.dumps({**GOOD, "subscription": {"orders": -1}}).encode(),
        json.dumps({**GOOD, "pattern": "a"}).encode(),
        json.dumps({**GOOD, "subscription": {}, "pattern": "("}).encode(),
        json.dumps({**GOOD, "subscription": "all", "pattern": "a"}).encode(),
        b'{"id": "a", ' + json.dumps(GOOD).encode()[1:],
    ],
    ids=brief,
)
def test_a_registration_that_is_something_else_is_named(data: bytes) -> None:
    with pytest.raises(CorruptNodeError) as caught:
        Registration.decode("/group/ids/w-1", data)
    assert caught.value.path == "/group/ids/w-1"
    assert "subscription" in str(caught.value)
