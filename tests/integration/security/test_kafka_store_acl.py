"""The store on a Kafka that asks who is there: each missing permission is named, and every verb gets its settings by a file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import aiokcc
from aiokcc.credentials import KafkaClient
from aiokcc.credentials.kafka_client import CONNECTION_SETTINGS
from aiokcc.errors import StoreError, StoreUnreachableError
from aiokcc.stores import ANY_VERSION, Session
from aiokcc.stores.kafka import KafkaStore, keeper
from tests import kafka_topics
from tests.integration.cli.commands import run
from tests.kafka_topics import Row, fresh_name
from tests.secure import PASSWORD, USER, SecureKafka, allow, write_properties

pytestmark = pytest.mark.service
START = 1_767_225_600_000
MINUTE = 60_000
ALL = ("CREATE", "READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "DELETE")


def allow_topic(kafka: SecureKafka, name: str, operations: Iterable[str]) -> None:
    allow(kafka.bootstrap, USER, [("TOPIC", f"__aiokcc.{name}", operation) for operation in operations])


def open_as_user(kafka: SecureKafka, name: str) -> KafkaStore:
    given = KafkaClient.load(kafka.properties()).consumer
    settings = {key: value for key, value in given.items() if key in CONNECTION_SETTINGS}
    store = aiokcc.open_store(f"kafka://{kafka.sasl}/{name}", **settings)
    assert isinstance(store, KafkaStore)
    return store


class TestMissingPermission:
    """Each error names the topic, what Kafka refuses, and what is needed."""

    @pytest.mark.parametrize("lacking", ["CREATE", "everything"])
    async def test_to_make_the_topic(self, tls_kafka: SecureKafka, lacking: str) -> None:
        name = fresh_name("acl")
        if lacking == "CREATE":
            allow_topic(tls_kafka, name, set(ALL) - {lacking})
        with pytest.raises(StoreError, match="does not let us make or describe the topic") as caught:
            async with open_as_user(tls_kafka, name).session():
                pass
        assert name in str(caught.value)
        assert "Create unless it exists" in str(caught.value)

    @pytest.mark.parametrize(
        ("lacking", "expected"),
        [
            ("READ", "does not let us use the topic"),
            ("WRITE", "does not let us write to the topic"),
            ("DESCRIBE_CONFIGS", "does not let us make or describe the topic"),
        ],
    )
    async def test_to_use_a_topic_that_exists(self, tls_kafka: SecureKafka, lacking: str, expected: str) -> None:
        name = fresh_name("acl")
        # Who may read or write may describe too.
        allow_topic(tls_kafka, name, set(ALL) - {lacking})
        async with aiokcc.open_store(f"kafka://{tls_kafka.bootstrap}/{name}").session() as founder:
            await founder.ensure("")
        with pytest.raises(StoreError, match=expected) as caught:
            async with open_as_user(tls_kafka, name).session():
                pass
        assert name in str(caught.value)
        assert "needs the permissions Read, Write, Describe and DescribeConfigs" in str(caught.value)

    async def test_to_trim_is_said_once_and_stops_nobody(
        self, tls_kafka: SecureKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(keeper, "MARK_RECORDS", 50)
        name = fresh_name("acl")
        allow_topic(tls_kafka, name, set(ALL) - {"DELETE"})
        async with open_as_user(tls_kafka, name).session() as session:
            await session.ensure("")
            await session.create("count")
            await write_until(session, lambda: "give us the permission Delete" in caplog.text)
            for _ in range(200):
                await session.set("count", b"", ANY_VERSION)
        assert caplog.text.count("give us the permission Delete") == 1


async def test_a_wrong_password_is_refused_at_once_and_not_tried_again(tls_kafka: SecureKafka) -> None:
    given = KafkaClient.load(tls_kafka.properties()).consumer
    settings = {key: value for key, value in given.items() if key in CONNECTION_SETTINGS}
    store = aiokcc.open_store(
        f"kafka://{tls_kafka.sasl}/{fresh_name('acl')}", **{**settings, "sasl_plain_password": "not-this-one"}
    )
    with pytest.raises(StoreError, match="refuses the credentials of") as caught:
        async with asyncio.timeout(20), store.session(connect_timeout=60):
            pass
    assert isinstance(store, KafkaStore)
    assert not isinstance(caught.value, StoreUnreachableError)
    assert "not-this-one" not in str(caught.value)
    with pytest.raises(StoreUnreachableError, match="refuses the credentials of"):
        await store.list_roots()


async def test_a_listener_of_another_protocol_is_named(tls_kafka: SecureKafka) -> None:
    store = aiokcc.open_store(f"kafka://{tls_kafka.sasl}/{fresh_name('acl')}")
    with pytest.raises(StoreUnreachableError, match="security_protocol is PLAINTEXT, its listener may need"):
        async with store.session(connect_timeout=2):
            pass


async def write_until(session: Session, condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await session.set("count", b"", ANY_VERSION)


HANDLERS = """
def handle(record):
    print("value", record.value.decode())
"""


@pytest.mark.parametrize("verb", ["status", "list"])
async def test_a_wrong_password_is_told(tls_kafka: SecureKafka, tmp_path: Path, verb: str) -> None:
    given = tls_kafka.properties()
    wrong = {name: value.replace(PASSWORD, "not-the-password") for name, value in given.items()}
    file = write_properties(tmp_path / "client.properties", wrong)
    ended = await run(verb, f"kafka://{tls_kafka.sasl}/x", "--kafka-config", file, "--timeout", "2s")
    assert ended.code == 1
    assert f"refuses the credentials of {USER!r}" in ended.err
    assert "not-the-password" not in ended.out + ended.err


@pytest.mark.timeout(120)
@pytest.mark.parametrize("by", ["profile", "option"])
async def test_every_verb_reaches_a_store_that_asks_for_a_password(
    tls_kafka: SecureKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    topic = await kafka_topics.create_fresh(tls_kafka.bootstrap, "secured", partitions=2)
    rows = [Row(n % 2, START + n * MINUTE, b"%d" % n) for n in range(6)]
    await kafka_topics.write(tls_kafka.bootstrap, topic, rows)
    allow(tls_kafka.bootstrap, USER, [("TOPIC", topic, "READ"), ("GROUP", topic, "READ")])
    allow_topic(tls_kafka, topic, ALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "handlers.py").write_text(HANDLERS)
    file = write_properties(tmp_path / "client.properties", tls_kafka.properties())
    (tmp_path / "aiokcc.toml").write_text(f'[profiles.secure]\nkafka = "{file}"\n')
    how = ["--profile", "secure"] if by == "profile" else ["--kafka-config", file]
    ended = await run("replay", "handlers:handle", "--topic", topic, "--period", "1m", "--store", "kafka", *how)
    assert ended.code == 0, ended.err
    assert sorted(ended.out.split()) == sorted(["value"] * 6 + [str(n) for n in range(6)])
    url = f"kafka://{tls_kafka.sasl}/{topic}"
    verbs = [
        (["status"], 0),
        (["members"], 1),  # it says that the group is not managed
        (["describe"], 0),
        (["offsets", "show"], 0),
        (["pipeline", "status"], 0),
    ]
    for words, code in verbs if by == "profile" else verbs[:1]:
        shown = await run(*words, url, *how)
        assert shown.code == code, (words, shown.out, shown.err)
        assert PASSWORD not in shown.out + shown.err
    bare = await run("status", url, "--timeout", "2s", AIOKCC_CONFIG="")
    assert bare.code == 1, "without the settings nothing is reached"
