"""A secret that this process was given is hidden by its value, also where nothing about its form says that it is one."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import aiokcc
from aiokcc.cli.argument_types import setting
from aiokcc.cli.logs import JsonFormatter, TextFormatter, set_up_logs
from aiokcc.core.masking import mask_text
from aiokcc.credentials import KafkaClient, hide_secrets, remember_secret, remember_secrets
from aiokcc.errors import UsageError
from aiokcc.spark.sinks.kafka import KafkaSink
from aiokcc.spark.source import check_options

SECRET = "Tr0ub4dor&3"
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="{SECRET}";'


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    root = logging.getLogger()
    level, last = root.level, logging.lastResort
    yield
    set_up_logs(None)
    root.setLevel(level)
    logging.lastResort = last


def given_to_kafka() -> None:
    KafkaClient.load(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "ann",
            "sasl.password": SECRET,
        }
    )


def given_to_kafka_as_jaas() -> None:
    KafkaClient.load(
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS},
    )


def given_to_a_replay() -> None:
    aiokcc.replay("t", bootstrap_servers="h:1", store="memory://m", period="1m", sasl_plain_password=SECRET)


def given_to_the_kafka_store() -> None:
    aiokcc.open_store("kafka://h:1/x", sasl_plain_password=SECRET)


def given_to_zookeeper() -> None:
    aiokcc.open_store("zk://h:1/x", auth=("ann", SECRET))


def given_in_a_url() -> None:
    aiokcc.open_store("zk://ann:Tr0ub4dor%263@h:1/x")


def given_on_the_command_line() -> None:
    setting(f"sasl_plain_password={SECRET}")


def given_to_spark() -> None:
    check_options({"kafka.sasl.jaas.config": JAAS})


def given_to_a_sink() -> None:
    KafkaSink("results", bootstrap_servers="h:1", kafka_options={"sasl.jaas.config": JAAS})


@pytest.mark.parametrize(
    "give",
    [
        given_to_kafka,
        given_to_kafka_as_jaas,
        given_to_a_replay,
        given_to_the_kafka_store,
        given_to_zookeeper,
        given_in_a_url,
        given_on_the_command_line,
        given_to_spark,
        given_to_a_sink,
    ],
)
def test_whoever_is_given_a_secret_remembers_it(give: object) -> None:
    text = f"cannot log in with {SECRET} as ann"
    assert hide_secrets(text) == mask_text(text) == text
    assert callable(give)
    give()
    assert hide_secrets(text) == "cannot log in with *** as ann"


def test_a_secret_is_hidden_however_it_is_written() -> None:
    secret = "it's a \"p@ss\\word\n"
    remember_secret(secret)
    for text in (secret, repr(secret), repr({"x": secret}), json.dumps([secret]), f"{secret.encode()!r}"):
        assert "ss" not in hide_secrets(text), text
    for text in (f"{secret.encode()!r}", ascii(secret), f"x{[secret]!a}"):
        assert "ss" not in hide_secrets(text), text
    remember_secret("grün-und-geheim")
    for text in (
        "grün-und-geheim",
        json.dumps("grün-und-geheim"),
        repr("grün-und-geheim".encode()),
        "gr%C3%BCn-und-geheim",
    ):
        assert "geheim" not in hide_secrets(text), text
    remember_secret("a b/c?d&e")
    for text in ("http://h/a%20b%2Fc%3Fd%26e", "x=a+b%2Fc%3Fd%26e"):
        assert "b%2Fc" not in hide_secrets(text), text


def test_a_short_secret_is_hidden_as_a_word_and_a_very_short_one_is_not() -> None:
    remember_secret("order")
    remember_secret("abc")
    remember_secret("")
    remember_secret(None)
    assert hide_secrets("the password order of orders.0 abc") == "the password *** of orders.0 abc"


@pytest.mark.parametrize("text", [repr(b"\0ann\0qwertz"), repr("first\nqwertz"), "Bearer qwertz.", "(qwertz)"])
def test_a_short_secret_is_hidden_behind_an_escape(text: str) -> None:
    remember_secret("qwertz")
    assert "qwertz" in text
    assert "qwertz" not in hide_secrets(text)


@pytest.mark.parametrize("word", ["true", "password", "Kafka", "admin", "none", "a", "topics"])
def test_an_ordinary_word_as_a_password_does_not_garble_every_line(word: str) -> None:
    """A gap in the place of a known word would say what the password is."""
    line = f"sasl.password: the {word} of kafka://h:1 is true; a password=PASSWORD for none of the topics"
    remember_secrets({"sasl.password": word})
    assert hide_secrets(line) == line
    assert hide_secrets(f"sasl.password={word}, {word!r}").startswith("sasl.password=***")


def test_where_a_key_is_found_is_no_secret(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        KafkaClient.load(
            {
                "security.protocol": "SSL",
                "ssl.certificate.location": str(tmp_path / "client.pem"),
                "ssl.key.location": str(tmp_path / "client.key"),
            }
        )
    assert hide_secrets(str(caught.value)) == str(caught.value)
    assert hide_secrets(str(tmp_path / "client.key")) == str(tmp_path / "client.key")


def test_of_two_secrets_the_longer_one_is_hidden_as_a_whole() -> None:
    remember_secrets({"password": "longsecret", "token": "longsecret-and-more", "client_id": "shown-here"})
    assert hide_secrets("longsecret-and-more longsecret shown-here") == "*** *** shown-here"


def test_a_private_key_is_hidden() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQ\n-----END PRIVATE KEY-----"
    assert "MIIEvQ" not in mask_text(f"cannot parse {key} at all")
    assert "MIIEvQ" not in mask_text(f"cannot parse {key[:40]}")
    certificate = "-----BEGIN CERTIFICATE-----\nMIIEvQ\n-----END CERTIFICATE-----"
    assert mask_text(certificate) == certificate


def fail() -> None:
    """Raise an error with a cause, a context and a group, each of which quotes the secret in its own way."""
    try:
        try:
            raise OSError(f"401 for ann and {SECRET}")
        except OSError as error:
            raise LookupError(f"refused: {SECRET!r}") from error
    except LookupError:
        try:
            raise ValueError(f"then {SECRET}")  # with the other as its context
        except ValueError as error:
            error.add_note(f"tried {SECRET}")
            raise ExceptionGroup(f"all of it: {SECRET}", [error, RuntimeError(SECRET)]) from None


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter("worker-1")])
def test_tracebacks_in_logs_show_no_secret(formatter: logging.Formatter) -> None:
    remember_secret(SECRET)
    try:
        fail()
    except ExceptionGroup:
        info = sys.exc_info()
    record = logging.getLogger("aiokcc.x").makeRecord(
        "aiokcc.x", logging.ERROR, "", 1, "failed for %s", (SECRET,), info
    )
    text = formatter.format(record)
    assert SECRET not in text
    for shown in ("RuntimeError", "ValueError", "LookupError", "OSError: 401 for ann and ***"):
        assert shown in text


def test_facts_show_no_secret_however_deep_it_lies() -> None:
    remember_secret(SECRET)
    around: list[object] = []
    around.append(around)
    facts = {
        "servers": ["zk://ann:pw@h/x", {"password": "other", "user": "ann", "tries": 3}],
        "nested": {"a": ({"b": f"x {SECRET} y"},), SECRET: 1, 5: None},
        "api_token": "abc",
        "key": "order-7",
        "set": {SECRET},
        "around": around,
        "ratio": float("nan"),
        "done": True,
    }
    record = logging.getLogger("x").makeRecord("x", logging.INFO, "", 1, "m", (), None, extra=facts)
    text = JsonFormatter().format(record)
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert SECRET not in text
    assert found["servers"] == ["zk://***@h/x", {"password": "***", "user": "ann", "tries": 3}]
    assert found["nested"] == {"a": [{"b": "x *** y"}], "***": 1, "5": None}
    assert (found["api_token"], found["key"], found["set"], found["done"]) == ("***", "order-7", ["***"], True)


@pytest.mark.parametrize("logs", [None, ("text", "info"), ("json", "debug")])
def test_a_task_whose_error_nobody_awaits_shows_no_secret(
    logs: tuple[str, str] | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asyncio logs it, and Python prints what is logged where no handler is set up."""
    remember_secret(SECRET)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])  # pytest has some of its own
    set_up_logs(logs)

    async def forget() -> None:
        async def work() -> None:
            fail()

        task = asyncio.ensure_future(work())
        await asyncio.wait([task])
        del task

    asyncio.run(forget())
    err = capsys.readouterr().err
    assert "Task exception was never retrieved" in err
    assert SECRET not in err


def test_a_program_that_fails_shows_no_secret_with_its_traceback(tmp_path: Path) -> None:
    """The command as a user runs it, with a properties file whose password the failing part quotes without any form."""
    (tmp_path / "client.properties").write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={JAAS}\n"
    )
    (tmp_path / "run.py").write_text(
        "import sys\nfrom aiokcc.cli import main\nfrom aiokcc.kafka import cluster\n"
        "from aiokcc.credentials import KafkaClient\n"
        "def broken(*args, **kwargs):\n"
        "    secret = KafkaClient.load('client.properties').consumer['sasl_plain_password']\n"
        "    raise RuntimeError('no luck with ' + secret)\n"
        "cluster.Cluster.__init__ = broken\n"
        "sys.exit(main(['-v', 'offsets', 'show', '--group-id', 'g', '--kafka-config', 'client.properties',\n"
        "               '--bootstrap-servers', 'h:1']))\n"
    )
    ended = subprocess.run([sys.executable, "run.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Traceback" in ended.stderr
    assert "no luck with ***" in ended.stderr
    assert SECRET not in ended.stdout + ended.stderr
