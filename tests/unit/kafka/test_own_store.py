"""``store="kafka"``: the root is made from what all processes of a group have in common."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from aiokcc.errors import UsageError
from aiokcc.kafka.own_store import choose_store, name_root
from aiokcc.kafka.source_options import SourceOptions
from aiokcc.stores import open_store
from aiokcc.stores.kafka import KafkaStore


def source(*topics: str, **more: Any) -> SourceOptions:
    return SourceOptions.check(topics, bootstrap_servers="h1:9092,h2:9092", consumer=more.pop("consumer", {}), **more)


def test_the_root_has_the_topics_and_the_group() -> None:
    assert name_root(source("payments", "orders")) == "/orders/payments"
    assert name_root(source("orders", group_id="g")) == "/orders/of.g"
    assert name_root(source("orders"), "revenue") == "/orders/of.revenue"


def test_names_that_a_topic_cannot_have_get_a_hash_and_stay_different() -> None:
    roots = {
        name_root(one)
        for one in (
            source(pattern="a.*"),
            source(pattern="a.+"),
            source("a", group_id="g h"),
            source("a", group_id="g+h"),
            source(*(f"topic-{number}" for number in range(100))),
        )
    }
    assert len(roots) == 5
    for root in roots:
        open_store(f"kafka://h:9092{root}")


def test_the_security_settings_are_those_of_the_replay() -> None:
    consumer = {"sasl_plain_username": "me", "security_protocol": "SASL_PLAINTEXT", "fetch_max_wait_ms": 10}
    store = choose_store("kafka", source("orders", consumer=consumer), {"topic": "mine"})
    assert isinstance(store, KafkaStore)
    assert store._settings == {"sasl_plain_username": "me", "security_protocol": "SASL_PLAINTEXT"}
    assert (store.topic, store.servers, store.root) == ("mine", ("h1:9092", "h2:9092"), "/orders")


def test_options_do_not_go_with_a_store_object() -> None:
    with pytest.raises(UsageError, match="store_options"):
        choose_store(open_store("kafka://h:9092/r"), source("orders"), {"topic": "mine"})


def test_without_aiokafka_the_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['aiokafka'] = None\n"
        "from aiokcc.stores import open_store\n"
        "try: open_store('kafka://h:9092/r')\n"
        "except ValueError as error: print(error)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'aiokcc[kafka]'" in answer.stdout
