"""The arguments of a pipeline are checked at once, before anything connects and before Spark is used."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import aiokcc
from aiokcc.core.partitions import Partition
from aiokcc.core.subscriptions import Subscription
from aiokcc.kafka.consumer_policy import describe_source
from aiokcc.spark.driver import AsyncReplay
from aiokcc.spark.pipeline_options import PipelineOptions
from aiokcc.spark.replay import replay
from aiokcc.spark.security import check_sink_security
from aiokcc.spark.sinks import KafkaSink


def options(*topics: str, spark: Any = SimpleNamespace(read=None), **changed: Any) -> PipelineOptions:  # noqa: B008
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
def test_a_managed_pipeline_subscribes_by_pattern(changed: dict[str, Any], wanted: Subscription) -> None:
    chosen = options(pattern="orders-.*", assignment="managed", offset_storage="store", **changed)
    assert chosen.subscription == wanted
    assert describe_source(chosen.source, chosen.policy).startswith("kafka pattern=orders-.* offsets=zookeeper ")


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
    ({"offset_storage": "redis"}, "offset_storage is 'redis'; expected one of 'kafka', 'store'"),
    ({"start": "committed", "offset_storage": "store"}, "a pipeline goes on by its name"),
    ({"partitions": lambda topic, number: True}, "partitions is a function"),
    ({"assignment": None, "subscription": ["orders-a"]}, 'subscription only mean something with assignment="managed"'),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "message"), WRONG, ids=[message for _, message in WRONG])
def test_invalid_arguments_of_a_managed_pipeline_are_refused(changed: dict[str, Any], message: str) -> None:
    settings = {"pattern": "orders-.*", "assignment": "managed", **changed}
    with pytest.raises(aiokcc.UsageError, match=message):
        options(*settings.pop("topics", ()), **settings)


# -- what Spark needs to reach Kafka -----------------------------------------------------------------------------------

SECRET = "marked-secret"
SASL: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "SCRAM-SHA-256",
    "sasl_plain_username": "reader",
    "sasl_plain_password": SECRET,
}
JAAS = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="reader" password="{SECRET}";'
SPARK_SASL = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "SCRAM-SHA-256",
    "kafka.sasl.jaas.config": JAAS,
}


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in SPARK_SASL.items() if name not in names}


INSECURE: list[tuple[dict[str, Any], dict[str, str], str]] = [
    (SASL, {}, "lacks kafka.security.protocol, kafka.sasl.mechanism, kafka.sasl.jaas.config"),
    (SASL, without("kafka.sasl.jaas.config"), r"lacks kafka.sasl.jaas.config\. .*ScramLoginModule required"),
    (SASL, without("kafka.sasl.mechanism"), "lacks kafka.sasl.mechanism"),
    (SASL, without("kafka.security.protocol"), "lacks kafka.security.protocol"),
    ({"security_protocol": "SSL"}, {}, r"lacks kafka.security.protocol\. .*'SSL'"),
    (SASL, {**SPARK_SASL, "kafka.security.protocol": "SSL"}, "is 'SSL' and security_protocol is 'SASL_PLAINTEXT'"),
    ({}, SPARK_SASL, "is 'SASL_PLAINTEXT' and security_protocol is 'PLAINTEXT'"),
    ({**SASL, "sasl_mechanism": "PLAIN"}, {}, "plain.PlainLoginModule required"),
    ({**SASL, "sasl_mechanism": "PLAIN"}, SPARK_SASL, "is 'SCRAM-SHA-256' and sasl_mechanism is 'PLAIN'"),
]


@pytest.mark.parametrize(("consumer", "kafka_options", "message"), INSECURE, ids=[m for _, _, m in INSECURE])
def test_missing_credentials_of_spark_are_reported_at_once(
    consumer: dict[str, Any], kafka_options: dict[str, str], message: str
) -> None:
    """Without credentials Spark would wait for Kafka for a minute at each try, without an error."""
    with pytest.raises(aiokcc.UsageError, match=message) as refused:
        options("orders", kafka_options=kafka_options, **consumer)
    assert SECRET not in str(refused.value)


SECURE: list[tuple[dict[str, Any], dict[str, str], dict[str, str]]] = [
    (SASL, SPARK_SASL, {}),
    ({"security_protocol": "SSL"}, {"kafka.security.protocol": "ssl"}, {}),
    ({"security_protocol": "PLAINTEXT"}, {}, {}),
    ({**SASL, "sasl_mechanism": "GSSAPI"}, without("kafka.sasl.mechanism"), {}),
    # Spark has other ways to be told: delegation tokens by cluster, or a file for the whole of Java.
    (SASL, {}, {"spark.kafka.clusters.main.auth.bootstrap.servers": "h:1"}),
    (
        SASL,
        without("kafka.sasl.jaas.config"),
        {"spark.driver.extraJavaOptions": "-Djava.security.auth.login.config=/etc/jaas.conf"},
    ),
]


@pytest.mark.parametrize("missing", list(SPARK_SASL))
async def test_missing_credentials_of_a_kafka_sink_are_reported_at_once(missing: str) -> None:
    """The sink writes to the servers that the pipeline reads from, and these require a login."""
    chosen = options("orders", kafka_options=SPARK_SASL, **SASL)
    servers = chosen.source.bootstrap_servers.split(",")
    cluster: Any = None
    sink = KafkaSink("results", bootstrap_servers=servers, kafka_options=without(missing))
    with pytest.raises(aiokcc.UsageError, match=f"KafkaSink writes to {servers[0]} too, .* lack {missing}") as refused:
        await AsyncReplay(chosen, cluster, None).for_each_period(lambda frame, _: frame, sink)
    assert SECRET not in str(refused.value)


def test_a_kafka_sink_on_other_servers_or_with_its_own_login_is_accepted() -> None:
    spark = SimpleNamespace()
    check_sink_security(SASL, ["a:1"], ["b:1"], {}, spark)
    check_sink_security(SASL, ["a:1"], ["a:1"], {**SPARK_SASL, "kafka.sasl.mechanism": "PLAIN"}, spark)
    check_sink_security({}, ["a:1"], ["a:1"], {}, spark)


@pytest.mark.parametrize(("consumer", "kafka_options", "conf"), SECURE)
def test_credentials_that_spark_has_are_accepted(
    consumer: dict[str, Any], kafka_options: dict[str, str], conf: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(name=name))  # gssapi is installed
    spark = SimpleNamespace(
        read=None, sparkContext=SimpleNamespace(getConf=lambda: SimpleNamespace(getAll=lambda: list(conf.items())))
    )
    chosen = options("orders", spark=spark, kafka_options=kafka_options, **consumer)
    assert chosen.kafka_options == kafka_options


@pytest.mark.parametrize(
    "statement", ["import aiokcc.spark", "from aiokcc.spark import replay", "import aiokcc; aiokcc.spark"]
)
def test_a_missing_extra_is_named_in_the_error(statement: str) -> None:
    program = f"import sys; sys.modules['aiokafka'] = None; {statement}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "pip install 'aiokcc[spark]'" in ended.stderr.splitlines()[-1]


def test_a_stopped_session_is_refused() -> None:
    stopped = SimpleNamespace(read=None, _sc=SimpleNamespace(_jsc=None))
    with pytest.raises(aiokcc.UsageError, match="the Spark session was stopped; make another one"):
        options("orders", spark=stopped)
