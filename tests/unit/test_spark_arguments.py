"""What a pipeline is told is checked when it is told: nothing is connected, and Spark is not asked."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

import aiokcc
from aiokcc.core.partitions import Partition
from aiokcc.core.subscriptions import Subscription
from aiokcc.spark.driver import Options
from aiokcc.spark.replay import replay


def options(*topics: str, **changed: Any) -> Options:
    spark: Any = SimpleNamespace(read=None)
    usual: dict[str, Any] = {"bootstrap_servers": "h:1", "store": "zk://h:1/x", "period": "1m", "name": "p"}
    return replay(spark, *topics, **{**usual, **changed})._options


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({}, Subscription.check(pipeline="p")),
        ({"subscription": ["orders-a"]}, Subscription.check("orders-a", pipeline="p")),
        ({"subscription": re.compile("orders-a.*")}, Subscription.check(pattern="orders-a.*", pipeline="p")),
        ({"partitions": {"orders-a": [1]}}, Subscription(partitions=frozenset([Partition("orders-a", 1)]), pipeline="p")),
    ],
)  # fmt: skip
def test_a_managed_pipeline_by_pattern(changed: dict[str, Any], wanted: Subscription) -> None:
    chosen = options(pattern="orders-.*", assignment="managed", offset_storage="zookeeper", **changed)
    assert chosen.subscription == wanted
    assert chosen.settings.source.startswith("kafka pattern=orders-.* offsets=zookeeper ")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"pattern": ""}, "the pattern is empty"),
    ({"pattern": "("}, "'\\(' is not a regular expression"),
    ({"pattern": "o", "topics": ["orders"]}, "name the topics or give a pattern, not both"),
    ({"partitions": {"bills": [0]}}, "partitions names the topic 'bills', which does not match the pattern 'orders-.*'"),
    ({"subscription": ["bills"]}, "subscription names the topic 'bills'; the group replays what matches orders-.*"),
    ({"subscription": {"bills": [0]}}, "subscription names the topic 'bills'"),
    ({"subscription": {"orders-a": 2}}, "takes all of 'orders-a' or names its partitions"),
    ({"subscription": ["orders-a"], "partitions": {"orders-a": [0]}}, "both say what the pipeline runs"),
    ({"pattern": None, "topics": ["orders"], "subscription": re.compile("b.*")}, "is 'b.*', which no topic matches"),
    ({"from_scratch": True}, "from_scratch does not go with a managed group"),
    ({"offset_storage": "redis"}, "offset_storage is 'redis'; expected one of 'kafka', 'zookeeper'"),
    ({"start": "committed", "offset_storage": "zookeeper"}, "a pipeline goes on by its name"),
    ({"partitions": lambda topic, number: True}, "partitions is a function"),
    ({"assignment": None, "subscription": ["orders-a"]}, 'subscription only mean something with assignment="managed"'),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_cannot_be_meant_in_a_managed_group(changed: dict[str, Any], message: str) -> None:
    settings = {"pattern": "orders-.*", "assignment": "managed", **changed}
    with pytest.raises(aiokcc.UsageError, match=message):
        options(*settings.pop("topics", ()), **settings)
