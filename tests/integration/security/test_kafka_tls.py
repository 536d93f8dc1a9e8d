"""A real broker with SASL_SSL, client certificates and ACLs: replay, a managed group, Spark and the verbs through it."""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import aiokcc
from aiokcc.errors import KafkaError, KafkaRefusedError
from aiokcc.stores import Session, open_store
from tests import kafka_topics
from tests.certificates import Authority
from tests.integration.cli.commands import run
from tests.kafka_topics import Row, fresh_name
from tests.secure import PASSWORD, USER, SecureKafka, SecureZooKeeper, allow, secure_kafka, write_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.service
START = 1_767_225_600_000
MINUTE = 60_000
PEM_CLIENT = "CN=pem-client"


@pytest.fixture(scope="session")
def topic(tls_kafka: SecureKafka) -> str:
    """Create a topic with six records in two partitions, which the user and the certificate may read."""

    async def fill() -> str:
        name = await kafka_topics.create_fresh(tls_kafka.bootstrap, "allowed", partitions=2)
        rows = [Row(n % 2, START + n * MINUTE, b"%d" % n) for n in range(6)]
        await kafka_topics.write(tls_kafka.bootstrap, name, rows)
        return name

    name = asyncio.run(fill())
    for principal in (USER, PEM_CLIENT):
        rules = [("TOPIC", "allowed", "READ"), ("GROUP", "allowed", "READ"), ("GROUP", "aiokcc-spark-", "READ")]
        allow(tls_kafka.bootstrap, principal, rules)
    return name


async def values(topic: str, kafka: Any, **options: Any) -> list[bytes]:
    seen: list[Any] = []
    settings = {"store": f"memory://{fresh_name()}", "period": "1m", "kafka": kafka, **options}
    async with aiokcc.replay(topic, **settings) as replay:
        await replay.run(lambda record: seen.append(record.value))
    return sorted(seen)


ALL = [b"%d" % n for n in range(6)]


class TestReplay:
    async def test_by_password_from_a_properties_file(self, tls_kafka: SecureKafka, topic: str, tmp_path: Path) -> None:
        file = write_properties(tmp_path / "client.properties", tls_kafka.properties(group_id="not-used"))
        assert await values(topic, file) == ALL

    async def test_by_certificate_from_a_mapping(self, tls_kafka: SecureKafka, topic: str) -> None:
        mine = tls_kafka.authority.issue("pem-client")
        assert await values(topic, tls_kafka.mutual(mine)) == ALL

    async def test_a_password_in_the_environment(
        self, tls_kafka: SecureKafka, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
        given = tls_kafka.properties(sasl_username=USER, sasl_password="env:KAFKA_PASSWORD")
        del given["sasl.jaas.config"]
        assert await values(topic, given) == ALL

    async def test_offsets_are_committed_to_a_group_that_is_allowed(self, tls_kafka: SecureKafka, topic: str) -> None:
        given = {"group_id": "allowed-group", "assignment": "fixed"}
        assert await values(topic, tls_kafka.properties(), **given) == ALL


class TestRefused:
    async def refusal(self, kafka: Any, topic: str = "allowed", **options: Any) -> str:
        with pytest.raises(KafkaRefusedError) as caught:
            await values(topic, kafka, connect_timeout=10, **options)
        assert PASSWORD not in f"{caught.value!r}"
        return str(caught.value)

    async def test_wrong_password(self, tls_kafka: SecureKafka, topic: str) -> None:
        wrong = tls_kafka.properties(sasl_username=USER, sasl_password="wrong")
        del wrong["sasl.jaas.config"]
        assert f"refuses the credentials of {USER!r} by SCRAM-SHA-512" in await self.refusal(wrong)

    async def test_wrong_ca(self, tls_kafka: SecureKafka, tmp_path: Path) -> None:
        other = Authority(tmp_path, "other-ca")
        said = await self.refusal(tls_kafka.properties(ssl_truststore_location=str(other.file)))
        assert "has a certificate that no trusted CA has signed" in said

    async def test_expired_certificate_of_the_broker(self, tmp_path: Path) -> None:
        async with secure_kafka(tmp_path, expired=True) as old:
            assert "has a certificate that has expired" in await self.refusal(old.properties())

    async def test_no_client_certificate(self, tls_kafka: SecureKafka) -> None:
        assert "client's certificate" in await self.refusal(tls_kafka.mutual(None))

    async def test_expired_client_certificate(self, tls_kafka: SecureKafka) -> None:
        old = tls_kafka.authority.issue("old-client", expired=True)
        assert "certificate" in await self.refusal(tls_kafka.mutual(old))

    async def test_tls_on_a_listener_without_it(self, tls_kafka: SecureKafka) -> None:
        plain = {**tls_kafka.mutual(None), "bootstrap.servers": tls_kafka.bootstrap}
        assert "is its listener one for security_protocol=SSL?" in await self.refusal(plain)

    async def test_missing_acl_on_a_topic(self, tls_kafka: SecureKafka, topic: str) -> None:
        hidden = await kafka_topics.create_fresh(tls_kafka.bootstrap, "hidden")
        said = await self.refusal(tls_kafka.properties(), hidden)
        assert f"the user {USER!r} is not allowed to see {hidden!r}" in said
        assert "ACL with Read" in said

    async def test_a_topic_that_may_be_seen_and_not_read(self, tls_kafka: SecureKafka, topic: str) -> None:
        seen = await kafka_topics.create_fresh(tls_kafka.bootstrap, "seen")
        await kafka_topics.write(tls_kafka.bootstrap, seen, [Row(0, START)])
        allow(tls_kafka.bootstrap, USER, [("TOPIC", "seen", "DESCRIBE")])
        said = await self.refusal(tls_kafka.properties(), seen)
        assert f"ACL with Read on the topic {seen!r}" in said

    async def test_missing_acl_on_a_group(self, tls_kafka: SecureKafka, topic: str) -> None:
        with pytest.raises(KafkaError, match="ACL with Read on the group 'other'"):
            await values(topic, tls_kafka.properties(), group_id="other", start="committed", assignment="fixed")


HANDLERS = """
import os, pathlib
def handle(record):
    print("value", record.value.decode())
    for process in (os.getpid(), os.getppid()):  # as `ps` shows them
        words = pathlib.Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\\0", b" ").decode()
        print("ps", words, file=open("ps.txt", "a"))
"""


async def contents(session: Session, path: str = "") -> list[bytes]:
    """Return what stands in a node and in all nodes below it."""
    found = [(await session.get(path)).data]
    for name in await session.children(path):
        found += await contents(session, f"{path}/{name}" if path else name)
    return found


@pytest.mark.timeout(120)
async def test_a_profile_carries_a_managed_group_and_the_verbs_that_need_kafka(
    tls_kafka: SecureKafka, tls_zookeeper: SecureZooKeeper, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same file serves the replay in two processes and the operator; no secret is typed or shown."""
    (tmp_path / "handlers.py").write_text(HANDLERS)
    (tmp_path / "zk-auth").write_text(f"ann:{PASSWORD}\n")
    (tmp_path / "kafka-password").write_text(f"{PASSWORD}\n")
    (tmp_path / "aiokcc.toml").write_text(f"""
profile = "tests"
[profiles.tests.store]
url = "zks://{tls_zookeeper.address}/{fresh_name("profile")}"
ca = "{tls_zookeeper.authority.file}"
cert = "{tls_zookeeper.client.cert}"
key = "{tls_zookeeper.client.key}"
auth = "file:zk-auth"
acl = "creator"
[profiles.tests.kafka]
bootstrap.servers = "{tls_kafka.sasl}"
security.protocol = "SASL_SSL"
ssl.ca.location = "{tls_kafka.authority.file}"
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "{USER}"
sasl.password = "file:kafka-password"
[profiles.tests.defaults]
period = "1m"
assignment = "managed"
""")
    monkeypatch.chdir(tmp_path)
    words = ["replay", "handlers:handle", "--topic", topic, "--processes", "2", "--group-id", "allowed-cli"]
    ended = await run("--log-level", "debug", *words)
    assert ended.code == 0, ended.err
    assert "aiokcc" in ended.err  # it logs
    assert PASSWORD not in ended.err
    assert "handlers:handle" in (tmp_path / "ps.txt").read_text()
    assert PASSWORD not in (tmp_path / "ps.txt").read_text()
    profile = tomllib.loads((tmp_path / "aiokcc.toml").read_text())["profiles"]["tests"]["store"]
    async with open_store(profile.pop("url"), **profile).session() as session:
        nodes = await contents(session)
    assert len(nodes) > 5
    assert not [data for data in nodes if PASSWORD.encode() in data]
    assert sorted(ended.out.split()) == sorted(["value"] * 6 + [str(n) for n in range(6)])
    for more in (["status"], ["offsets", "show", "--group-id", "allowed-cli"], ["offsets", "export"], ["config"]):
        shown = await run(*more)
        assert shown.code == 0, (more, shown.err)
        assert PASSWORD not in shown.out + shown.err
    lag = await run("offsets", "show", "--group-id", "allowed-cli", "--json")
    offsets = json.loads(lag.out)["offsets"]
    assert [entry["lag"] for entry in offsets] == [0, 0]


@pytest.mark.timeout(180)
def test_spark_gets_the_credentials_once(
    tls_kafka: SecureKafka, tls_zookeeper: SecureZooKeeper, topic: str, spark: SparkSession, zk_auth: str
) -> None:
    """By password and by certificate; the executors get the certificates' content, not the files."""
    from aiokcc.spark import replay

    mine = tls_kafka.authority.issue("pem-client")
    for kafka in (tls_kafka.properties(), tls_kafka.mutual(mine)):
        seen: list[int] = []
        store = tls_zookeeper.url(fresh_name("spark"), auth=zk_auth)
        with replay(spark, topic, kafka=kafka, store=store, name="sum", period="1m", progress=False) as pipeline:
            pipeline.for_each_period(
                lambda frame, _: frame.selectExpr("period", "int(string(value)) AS n"),
                sink=lambda frame, _, seen=seen: seen.extend(row.n for row in frame.collect()),
            )
        assert sorted(seen) == list(range(6))
