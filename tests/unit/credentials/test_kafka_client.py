"""Kafka's client properties become settings of aiokafka and options of Spark; each mistake is an error without a secret."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from aiokcc.credentials import KafkaClient
from aiokcc.credentials.properties_file import parse_properties
from aiokcc.errors import UsageError
from tests.certificates import Authority

SECRET = "hunter2-marked"
SCRAM = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="al" password="{SECRET}";'
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": SCRAM}


def refusal(given: object) -> str:
    with pytest.raises(UsageError) as caught:
        KafkaClient.load(given)  # type: ignore[arg-type]
    assert SECRET not in f"{caught.value!r}"
    return str(caught.value)


def test_a_file_is_read_as_java_reads_it() -> None:
    text = "# no\n! no\n a.b = 1\\\n   2\nc : x\\ny\nd=\\u00e9=e\n\ne\nf.g\\:h=i\\\\"
    assert parse_properties(text, "file") == {"a.b": "12", "c": "x\ny", "d": "é=e", "e": "", "f.g:h": "i\\"}
    with pytest.raises(UsageError, match=r"file, line 2: a stands there twice"):
        parse_properties("a=1\na=2", "file")


def test_a_login_line_serves_both() -> None:
    client = KafkaClient.load({**SASL, "bootstrap.servers": "h:1", "client.id": "me", "request.timeout.ms": 5000})
    assert client.bootstrap_servers == "h:1"
    assert client.consumer == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "al",
        "sasl_plain_password": SECRET,
        "client_id": "me",
        "request_timeout_ms": 5000,
    }
    assert client.spark["kafka.sasl.jaas.config"] == SCRAM
    assert client.spark["kafka.security.protocol"] == "SASL_PLAINTEXT"
    assert SECRET not in repr(client)


def test_quotes_in_a_password_survive() -> None:
    jaas = 'x.PlainLoginModule required username=al password="a\\"b\\\\c;d";'
    client = KafkaClient.load({**SASL, "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas})
    assert client.consumer["sasl_plain_password"] == 'a"b\\c;d'
    assert 'password="a\\"b\\\\c;d";' in client.spark["kafka.sasl.jaas.config"]


def test_secrets_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", SECRET)
    (tmp_path / "pw").write_text(f"{SECRET}\n")
    (tmp_path / "jaas").write_text(SCRAM)
    base = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
    for more in (
        {"sasl.username": "al", "sasl.password": "env:PW"},
        {"sasl.username": "al", "sasl.password": f"file:{tmp_path / 'pw'}"},
        {"sasl.jaas.config": f"file:{tmp_path / 'jaas'}"},
        {"sasl.jaas.config": SCRAM.replace(SECRET, "env:PW")},
    ):
        assert KafkaClient.load({**base, **more}).consumer["sasl_plain_password"] == SECRET
    assert "sasl.password: the environment variable NONE is not set" in refusal(
        {**base, "sasl.username": "al", "sasl.password": "env:NONE"}
    )


def test_certificates_go_to_python_as_a_context_and_to_spark_as_text(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    mine = authority.issue("me", password="open")
    given = {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(authority.file),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(mine.both),
        "ssl.key.password": "open",
        "ssl.enabled.protocols": "TLSv1.3",
        "ssl.endpoint.identification.algorithm": "",
    }
    client = KafkaClient.load(given)
    context = client.consumer["ssl_context"]
    assert isinstance(context, ssl.SSLContext)
    assert not context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert client.spark["kafka.ssl.truststore.certificates"] == authority.file.read_text()
    assert "BEGIN ENCRYPTED PRIVATE KEY" in client.spark["kafka.ssl.keystore.key"]
    assert str(tmp_path) not in str(client.spark), "the executors do not have the files"
    apart = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.file),
        "ssl.certificate.location": str(mine.cert),
        "ssl.key.location": str(mine.key),
        "ssl.key.password": "open",
    }
    assert KafkaClient.load(apart).consumer["ssl_context"].check_hostname


def test_properties_of_other_clients_are_named_and_left_out() -> None:
    client = KafkaClient.load({"group.id": "g", "acks": "all", "bootstrap.servers": "h:1"})
    assert client.ignored == ("group.id", "acks")
    assert client.consumer == {}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"security.protocl": "SSL"}, "there is no property 'security.protocl'; did you mean security.protocol?"),
        ({"colour": "red"}, "there is no property 'colour'"),
        ({"security.protocol": "TLS"}, "expected one of PLAINTEXT, SSL"),
        ({"ssl.truststore.location": "ca.pem"}, "security.protocol is PLAINTEXT, which does not use it"),
        ({**SASL, "sasl.mechanism": "DIGEST"}, "sasl.mechanism is 'DIGEST'; expected one of"),
        ({**SASL, "sasl.mechanism": "OAUTHBEARER"}, "sasl_oauth_token_provider"),
        ({**SASL, "sasl.jaas.config": f"password={SECRET}"}, "sasl.jaas.config cannot be read"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.username is missing"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is missing"),
        ({"security.protocol": "SSL", "ssl.cipher.suites": "x"}, "aiokafka has nothing for"),
        ({"config.providers": "env"}, "aiokafka has nothing for"),
        ({"fetch.min.bytes": "many"}, "expected a whole number"),
        (
            {"security.protocol": "SSL", "ssl.truststore.location": "/none.pem"},
            "/none.pem cannot be read: No such file",
        ),
        (
            {"security.protocol": "SSL", "ssl.truststore.type": "JKS", "ssl.truststore.location": "t.jks"},
            "keytool -importkeystore -srckeystore t.jks",
        ),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "SSLv3"}, "expected TLSv1.2 or TLSv1.3"),
        ("/none.properties", "/none.properties cannot be read: No such file"),
        (7, "kafka is of type int"),
    ],
)
def test_mistakes_are_explained(given: object, says: str) -> None:
    assert says in refusal(given)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xfe\xed\xfe\xed\x00", "is a Java key store; Python needs PEM"),
        (b"0\x82\x01", "is a Java key store; Python needs PEM"),
        (b"hello", "is not in PEM format"),
        (b"-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n", "holds no certificate"),
    ],
)
def test_what_is_no_pem_certificate_is_explained(content: bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "trust.jks"
    file.write_bytes(content)
    assert says in refusal({"security.protocol": "SSL", "ssl.truststore.location": str(file)})


def test_a_key_that_does_not_belong_to_the_certificate_is_told(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    given = {"security.protocol": "SSL", "ssl.certificate.location": str(one.cert), "ssl.key.location": str(other.key)}
    assert "does not belong to the first certificate" in refusal(given)
    del given["ssl.key.location"]
    assert "holds no private key" in refusal(given)
