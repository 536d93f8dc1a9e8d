"""The settings of a replay are checked at the call, before anything is connected; the message says what would be right."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import inspect
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import aiokcc
from aiokcc.cli.arguments import parse
from aiokcc.cli.replay_options import as_keywords
from aiokcc.core.partitions import Partition
from aiokcc.kafka import Replay
from aiokcc.kafka.cluster import describe_missing
from aiokcc.kafka.consumer_policy import ConsumerPolicy, describe_source
from aiokcc.kafka.source_options import SourceOptions, check_consumer
from aiokcc.spark.replay import replay as spark_replay


def check(*topics: Any, **changed: Any) -> None:
    """Nothing listens at these addresses: whatever is raised is raised without them."""
    settings: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1", "store": "zk://127.0.0.1:1/root", "period": "1m"}
    aiokcc.replay(*(topics or ("orders", "payments")), **{**settings, **changed})


def test_the_library_and_the_command_line_have_the_same_end_by_default() -> None:
    """A program that says nothing about the end has one: whoever wants to follow says ``end=None``, or ``--follow``."""
    environment = {"AIOKCC_STORE": "zk://h/x", "AIOKCC_BOOTSTRAP_SERVERS": "h:1"}
    typed = as_keywords(parse(["replay", "handlers:handle", "--topic", "orders", "--period", "1m"], environment))
    defaults = [inspect.signature(function).parameters["end"].default for function in (aiokcc.replay, spark_replay)]
    assert [typed["end"], *defaults] == ["now"] * 3


def source_of(*topics: str, **changed: Any) -> SourceOptions:
    return SourceOptions.check(topics, **{"bootstrap_servers": "h:1", "end": None, "consumer": {}, **changed})


def described(*topics: str, **changed: Any) -> str:
    """Return what stands in the run node for these arguments."""
    policy = {name: changed.pop(name) for name in list(changed) if name in ConsumerPolicy.__slots__}
    source = source_of(*topics, **changed)
    return describe_source(source, ConsumerPolicy.check(source, **policy))


def test_good_settings_connect_nothing() -> None:
    check()
    check(
        start="2026-01-01T00:00Z",
        end=datetime(2026, 2, 1, tzinfo=UTC),
        partitions={"orders": [0, 1]},
        lateness={"orders": "30s"},
        security_protocol="SSL",
        max_partition_fetch_bytes=1,
    )


def test_offsets_in_the_store_need_no_group() -> None:
    check(start="committed", offset_storage="store")
    assert "offsets=zookeeper" in described("orders", offset_storage="store")
    assert "offsets=" not in described("orders")


async def _coroutine(_: Any) -> int:
    return 0


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"period": 0}, "period"),
    ({"period": "1"}, "no unit"),
    ({"start": "2026-02-01T00:00Z", "end": "2026-01-01T00:00Z"}, "does not lie after start"),
    ({"start": "2026-02-01T00:00Z", "end": "2026-02-01T00:00Z"}, "does not lie after start"),
    ({"start": "yesterday"}, "start 'yesterday'.*'earliest' or 'committed'"),
    ({"start": None}, "start is None"),
    ({"start": "2026-02-01"}, "time zone"),
    ({"start": -1}, "start -1 is negative"),
    ({"start": "latest"}, "'earliest' or 'committed'"),
    ({"end": "tomorrow"}, "end 'tomorrow'.*'now'"),
    ({"end": 1.5}, "end 1.5"),
    ({"start": "committed"}, "group_id"),
    ({"start": "committed", "offset_storage": "kafka"}, "group_id.*offset_storage=.store"),
    ({"offset_storage": "redis"}, "offset_storage is 'redis'; expected one of 'kafka', 'store'"),
    ({"offset_storage": "zookeeper"}, 'offset_storage is "zookeeper"; write "store"'),
    ({"offset_storage": None}, "offset_storage is None"),
    ({"bootstrap_servers": ""}, "bootstrap_servers"),
    ({"bootstrap_servers": None}, "bootstrap_servers"),
    ({"bootstrap_servers": []}, "bootstrap_servers"),
    ({"bootstrap_servers": [b"h:1"]}, "bootstrap_servers"),
    ({"bootstrap_servers": [("h", 1)]}, "bootstrap_servers"),
    ({"partitions": []}, "nothing to do"),
    ({"partitions": {}}, "nothing to do"),
    ({"partitions": {"orders": []}}, "nothing to do"),
    ({"partitions": {"orders": 3}}, "expected partitions like"),
    ({"partitions": lambda topic: True}, "expected a plain function of topic and number"),
    ({"partitions": asyncio.sleep}, "expected a plain function of topic and number"),
    ({"partitions": {"orders": None}}, "expected partitions like"),
    ({"partitions": {"others": [0]}}, "'others', which is not replayed"),
    ({"partitions": {"orders": [-1]}}, "from 0 up"),
    ({"partitions": {"orders": [True]}}, "from 0 up"),
    ({"partitions": {"orders": ["0"]}}, "from 0 up"),
    ({"partitions": "orders"}, "expected partitions like"),
    ({"partitions": 3}, "expected partitions like"),
    ({"partitions": ["orders"]}, "expected partitions like"),
    ({"partitions": [("orders", 0, 1)]}, "expected partitions like"),
    ({"partitions": [(["orders"], 0)]}, "which is not replayed"),
    ({"group_id": 5}, "group_id is 5"),
    ({"group_id": ""}, "group_id is ''"),
    ({"assignment": "group"}, "needs group_id"),
    ({"assignment": "mine"}, "assignment is 'mine'"),
    ({"assignment": "group", "group_id": "g", "partitions": {"orders": [0]}}, "no partitions"),
    ({"commit": "yes"}, "commit is 'yes'; expected True or False"),
    ({"timestamp": 5}, "timestamp is 5"),
    ({"timestamp": _coroutine}, "plain function"),
    ({"lateness": "-1s"}, "lateness"),
    ({"lateness": -1}, "lateness"),
    ({"lateness": {"others": "1s"}}, "'others', which is not replayed"),
    ({"lateness": {"orders": "long"}}, "lateness of orders"),
    ({"late": "ignore"}, "late is 'ignore'; expected one of 'deliver', 'drop', 'dead-letter'"),
    ({"poison": "ignore"}, "poison is 'ignore'"),
    ({"on_error": "ignore"}, "on_error is 'ignore'"),
    ({"late": "dead-letter"}, "dead_letter="),
    ({"poison": "dead-letter", "dead_letter": "orders-dead"}, "dead_letter"),
    ({"dead_letter": "orders-dead"}, "dead_letter is 'orders-dead'"),
    ({"retries": -1}, "retries is -1; expected a whole number from 0 up"),
    ({"retries": True}, "retries is True"),
    ({"fast_fetch": 1}, "fast_fetch is 1; expected True or False"),
    ({"traces": "yes"}, "traces is 'yes'; expected True or False"),
    ({"buffer_records": 0}, "buffer_records is 0; expected a whole number from 1 up"),
    ({"buffer_bytes": 1.5}, "buffer_bytes is 1.5"),
    ({"buffer_bytes": 2**31}, "buffer_bytes is 2147483648; expected at most 2147483647"),
    ({"max_partition_fetch_bytes": 2**31}, "max_partition_fetch_bytes is 2147483648; expected at most 2147483647"),
    ({"fetch_max_bytes": "1MB"}, "fetch_max_bytes is '1MB'; expected a whole number from 0 up"),
    ({"isolation_level": "serializable"}, "isolation_level is 'serializable'"),
    ({"lookahead": -1}, "lookahead -1"),
    ({"caught_up": "sleep"}, '"follow", or "release"'),
    ({"ahead": "-1s"}, "ahead"),
    ({"member": "a/b"}, "a/b"),
    ({"session_timeout": 0}, "session_timeout"),
    ({"connect_timeout": "10"}, "connect_timeout"),
    ({"claim_timeout": -1}, "claim_timeout"),
    ({"clock": 5}, "clock is 5"),
    ({"store": "redis://h/root"}, "redis"),
    ({"store_options": 5}, "store_options is 5"),
    ({"auto_offset_reset": "earliest"}, "auto_offset_reset cannot be passed through: start="),
    ({"enable_auto_commit": True}, "enable_auto_commit cannot be passed through"),
    ({"max_poll_records": 5}, "buffer_records="),
    ({"max_poll_interval_ms": 5}, "max_poll_interval_ms cannot be passed through: a partition is not polled while it"),
    ({"fetch_size": 5}, "fetch_size is no setting of aiokafka's consumer"),
    ({"perod": "1m"}, "no argument 'perod'; did you mean 'period'"),
    ({"security_protocol": "TLS"}, "security_protocol is 'TLS'; expected one of 'PLAINTEXT', 'SSL'"),
    ({"sasl_mechanism": "KERBEROS"}, "sasl_mechanism is 'KERBEROS'"),
]


@pytest.mark.parametrize(
    ("changed", "message"), WRONG, ids=[str(changed).partition(" at 0x")[0][:60] for changed, _ in WRONG]
)
def test_a_wrong_setting_is_an_error_at_the_call(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(aiokcc.UsageError, match=message):
        check(**changed)


@pytest.mark.parametrize("topics", [("",), (["orders", "payments"],), (5,)])
def test_topics_are_names(topics: Any) -> None:
    with pytest.raises(aiokcc.UsageError, match="name the topics"):
        check(*topics)


def test_no_topics_at_all() -> None:
    with pytest.raises(aiokcc.UsageError, match="name the topics"):
        aiokcc.replay(bootstrap_servers="h:1", store="memory://x", period="1m")


def test_a_topic_named_twice() -> None:
    with pytest.raises(aiokcc.UsageError, match="twice: orders, orders"):
        check("orders", "orders")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pattern": ""}, "the pattern is empty, so no topic matches it"),
        ({"pattern": "orders-("}, "'orders-\\(' is not a regular expression"),
        ({"pattern": 5}, "pattern 5 is not a text"),
        ({"pattern": re.compile("orders", re.IGNORECASE)}, r"has flags, which the registration cannot hold.*like \(\?i\)"),
        ({"pattern": re.compile(b"orders")}, "has flags|is not a text"),
        ({"pattern": "orders-.*", "topics": ["orders"]}, "name the topics or give a pattern, not both"),
        ({"partitions": {"bills": [0]}}, "partitions names the topic 'bills', which does not match the pattern 'orders-.*'"),
        ({"lateness": {"bills": "1s"}}, "lateness names the topic 'bills', which does not match the pattern"),
        ({"lateness": "1s"}, "with a pattern, give lateness by topic"),
    ],
)  # fmt: skip
def test_a_wrong_pattern_or_a_topic_that_does_not_match_it(changed: dict[str, Any], message: str) -> None:
    settings = {"bootstrap_servers": "h:1", "store": "zk://h:1/x", "period": "1m", "pattern": "orders-.*", **changed}
    with pytest.raises(aiokcc.UsageError, match=message):
        aiokcc.replay(*settings.pop("topics", ()), **settings)  # type: ignore[misc, arg-type]


def test_a_pattern_matches_whole_names() -> None:
    source = source_of(pattern=re.compile("orders-.*|bills"), partitions={"orders-x": [0]})
    assert [topic for topic in ("orders-x", "orders", "bills", "bills-x") if source.replays(topic)] == [
        "orders-x",
        "bills",
    ]
    assert ConsumerPolicy.check(source, lateness={"bills": "1s"}).lateness == {"bills": 1000}
    assert ConsumerPolicy.check(source, lateness=0).lateness == {}
    assert described(pattern="orders") != described(pattern="bills")


def test_servers_may_be_a_list() -> None:
    assert source_of("orders", bootstrap_servers=["a:1", "b:2"]).bootstrap_servers == "a:1,b:2"


def test_partitions_may_be_a_mapping_or_pairs() -> None:
    wanted = frozenset([Partition("orders", 0), Partition("orders", 2)])
    assert source_of("orders", partitions={"orders": [0, 2]}).partitions == wanted
    assert source_of("orders", partitions=[("orders", 2), ("orders", 0)]).partitions == wanted
    assert source_of("orders", partitions={"orders": range(0, 3, 2)}).partitions == wanted


def test_lateness_is_for_all_topics_or_by_topic() -> None:
    source = source_of("a", "b")
    assert ConsumerPolicy.check(source, lateness="30s").lateness == {"a": 30_000, "b": 30_000}
    assert ConsumerPolicy.check(source, lateness=timedelta(seconds=1)).lateness == {"a": 1000, "b": 1000}
    assert ConsumerPolicy.check(source, lateness={"a": 5}).lateness == {"a": 5}


@pytest.mark.parametrize(
    "changed",
    [
        {"start": 5},
        {"end": "now"},
        {"lateness": "1m"},
        {"isolation_level": "read_uncommitted"},
        {"timestamp": lambda r: r.timestamp},
    ],
)
def test_settings_that_all_members_must_share_are_in_the_source(changed: dict[str, Any]) -> None:
    assert described("orders", **changed) != described("orders")


@pytest.mark.parametrize("changed", [{"lateness": 0}, {"retries": 3}, {"late": "drop"}, {"buffer_records": 99}])
def test_settings_of_one_member_are_not_in_the_source(changed: dict[str, Any]) -> None:
    assert described("orders", **changed) == described("orders")


def test_a_rule_selects_partitions() -> None:
    settings = source_of("orders", "payments", partitions=lambda topic, number: topic == "orders" and number % 2)
    assert settings.partitions is None
    assert [settings.wants(Partition("orders", n)) for n in range(3)] == [False, True, False]
    assert not settings.wants(Partition("payments", 1))
    assert not source_of("orders", "payments", partitions=lambda *_: True, group_id="shop").by_group, (
        "we say so, and not Kafka"
    )


def test_a_list_selects_partitions_and_without_either_all_are_ours() -> None:
    assert source_of("orders", "payments").wants(Partition("orders", 9))
    assert source_of("orders", "payments", partitions=[("orders", 1)]).wants(Partition("orders", 1))
    assert not source_of("orders", "payments", partitions=[("orders", 1)]).wants(Partition("orders", 0))


async def _generates(record: Any) -> AsyncIterator[Any]:
    yield record


class _Generates:
    async def __call__(self, record: Any) -> AsyncIterator[Any]:
        yield record

    def __repr__(self) -> str:
        return "_Generates()"


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (None, r"got None, which cannot be called; expected a function of a (list of )?records?"),
        ("handle", "got 'handle', which cannot be called"),
        (_generates, "_generates is a generator: it has a yield in it"),
        (functools.partial(_generates), "_generates is a generator: it has a yield in it"),
        (_Generates(), r"_Generates\(\) is a generator: it has a yield in it"),
        (functools.partial(_Generates()), r"_Generates\(\) is a generator: it has a yield in it"),
        (_Generates().__call__, "_Generates.__call__ is a generator"),
    ],
)
@pytest.mark.parametrize("method", ["run", "run_batches"])
async def test_an_invalid_handler_is_refused_at_the_call(method: str, handler: Any, message: str) -> None:
    replay = Replay.__new__(Replay)  # nothing of it is looked at before
    with pytest.raises(aiokcc.UsageError, match=message):
        await getattr(replay, method)(handler)


def test_a_time_early_in_1970_that_is_written_out_is_taken() -> None:
    """As a bare number it would look like seconds; the founder's check must not see it as one."""
    aiokcc.replay(
        "orders",
        bootstrap_servers="h:1",
        store="memory://x",
        period="1m",
        start="1970-01-12T14:00Z",
        end="1970-01-13T00:00Z",
    )


def test_gssapi_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gssapi" else object())
    with pytest.raises(aiokcc.UsageError, match="pip install gssapi"):
        check_consumer({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"})


def test_the_error_for_a_mistyped_topic_names_the_nearest() -> None:
    assert describe_missing(["orderz"], ["orders", "payments"]) == (
        "Kafka has no topic 'orderz'; did you mean 'orders'? It has orders, payments"
    )
    assert describe_missing(["x"], ["orders"]) == "Kafka has no topic 'x'; it has orders"
    assert describe_missing(["x"], []) == "Kafka has no topic 'x'; it has none"
