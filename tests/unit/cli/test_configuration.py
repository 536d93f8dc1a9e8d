"""Profiles of aiokcc.toml, environment variables and typed options: their weight, their errors, and what `config` shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aiokcc.cli.app import main
from aiokcc.cli.arguments import parse
from aiokcc.errors import UsageError

SECRET = "hunter2-marked"
TOML = """
profile = "one"
[profiles.one.store]
url = "zk://h1:2181,h2:2181/replay"
auth = "env:ZK_AUTH"
acl = "readable"
[profiles.one.kafka]
bootstrap.servers = "k:9092"
security.protocol = "SASL_PLAINTEXT"
sasl.mechanism = "PLAIN"
sasl.username = "al"
sasl.password = "file:password"
[profiles.one.defaults]
period = "1m"
topic = ["orders", "payments"]
batches = true
follow = true
[profiles.two.store]
url = "zk://h3/two"
"""
REPLAY = ["replay", "json:loads"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "aiokcc.toml").write_text(TOML)
    (tmp_path / "password").write_text(SECRET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZK_AUTH", f"al:{SECRET}")
    return tmp_path


def test_a_profile_gives_store_kafka_and_defaults(here: Path) -> None:
    options = parse(REPLAY, {})
    assert options.store == "zk://h1:2181,h2:2181/replay?auth=env:ZK_AUTH&acl=readable"
    assert options.period == 60_000
    assert options.topic == ["orders", "payments"]
    assert options.batches
    assert options.follow
    assert options.kafka["sasl.password"] == f"file:{here / 'password'}"


def test_what_is_typed_weighs_more_than_the_environment_and_that_more_than_the_file() -> None:
    environment = {"AIOKCC_PERIOD": "2m", "AIOKCC_STORE": "zk://e/x", "AIOKCC_KAFKA_CONFIG": "e.properties"}
    options = parse(REPLAY, environment)
    assert (options.period, options.store, options.kafka) == (120_000, "zk://e/x", "e.properties")
    options = parse([*REPLAY, "--period", "3m", "zk://c/x", "--kafka-config", "c.properties"], environment)
    assert (options.period, options.store, options.kafka) == (180_000, "zk://c/x", "c.properties")
    options = parse([*REPLAY, "--topic", "t", "--to", "now"], {})
    assert options.topic == ["t"], "a typed list replaces the profile's"
    assert not options.follow, "--to excludes the profile's follow"


def test_the_credentials_go_to_the_profiles_servers_only() -> None:
    assert parse(["status", "zk://h1:2181,h2:2181/other"], {}).store.endswith("/other?auth=env:ZK_AUTH&acl=readable")
    assert parse(["status", "zk://elsewhere/x"], {}).store == "zk://elsewhere/x"


def test_a_profile_is_chosen_by_name() -> None:
    assert parse(["status", "--profile", "two"], {}).store == "zk://h3/two"
    assert parse(["status"], {"AIOKCC_PROFILE": "two"}).store == "zk://h3/two"


def test_a_password_in_the_file_becomes_part_of_the_url(here: Path) -> None:
    (here / "aiokcc.toml").write_text(TOML.replace("env:ZK_AUTH", f"al:p/@{SECRET}"))
    assert parse(["status"], {}).store == f"zk://al:p%2F%40{SECRET}@h1:2181,h2:2181/replay?acl=readable"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('profile = "on"\n' + TOML.replace('profile = "one"', ""), "has no profile 'on'; did you mean 'one'?"),
        (TOML.replace("url =", "ulr ="), "store: there is no 'ulr'; did you mean 'url'?"),
        (
            TOML.replace('period = "1m"', 'perod = "1m"'),
            "defaults has 'perod', which no verb has; did you mean 'period'?",
        ),
        (TOML.replace('period = "1m"', 'period = "x"'), "aiokcc.toml, profile one: argument --period:"),
        (TOML.replace("batches = true", "batches = 1"), "expected true or false"),
        (TOML.replace("follow = true", "yes = true"), "--yes cannot be a default"),
        ("profile = ", "is not TOML"),
        ("[profile.x]", "profile has to be the name of a profile"),
        ("colour = 1", "there is no key 'colour'"),
        (TOML.replace('"env:ZK_AUTH"', f'"{SECRET}"'), "store.auth has to be user:password"),
        (TOML.replace('"env:ZK_AUTH"', "7"), "store.auth has to be a text"),
    ],
)
def test_mistakes_are_explained(text: str, says: str, here: Path) -> None:
    (here / "aiokcc.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        parse(REPLAY, {})
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_profile_or_a_file_that_does_not_exist_is_told(here: Path) -> None:
    with pytest.raises(UsageError, match="has no profile 'three'; its profiles are: one, two"):
        parse(["status", "--profile", "three"], {})
    with pytest.raises(UsageError, match="none.toml cannot be read: No such file"):
        parse(["status", "--config", "none.toml"], {})
    (here / "aiokcc.toml").unlink()
    with pytest.raises(UsageError, match="there is no aiokcc.toml"):
        parse(["status", "--profile", "one"], {"HOME": str(here)})


def test_config_shows_what_is_in_force_and_no_secret(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIOKCC_TIMEOUT", "5s")
    (here / "client.properties").write_text(
        "bootstrap.servers=k2:9092\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\ngroup.id=g\n"
        f'sasl.jaas.config=x.PlainLoginModule required username="al" password="{SECRET}";\n'
    )
    assert main(["config"]) == 0
    shown = capsys.readouterr().out
    assert "auth = env:ZK_AUTH" in shown
    assert f"sasl.password = file:{here / 'password'}" in shown
    assert "--timeout 5s (from $AIOKCC_TIMEOUT)" in shown
    assert main(["config", "--json", "--kafka-config", "client.properties", f"zk://al:{SECRET}@h/x"]) == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    assert found["kafka"]["sasl.jaas.config"] == "***"
    assert found["kafka"]["not used"] == "group.id"
    assert found["kafka"]["from"] == "--kafka-config client.properties"
    assert found["store"] == {"url": "zk://***@h/x", "from": "the command line"}
    assert SECRET not in text + shown


def test_config_shows_the_defaults_of_all_verbs_and_no_token(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "aiokcc.toml").write_text(
        f'profile = "p"\n[profiles.p.defaults]\nperiod = "1m"\ntoken = "{SECRET}"\nfollow = true\nmetrics = "127.0.0.1:1"\n'
    )
    assert main(["config"]) == 0
    out = capsys.readouterr().out
    for line in ("--period 1m (from ", "--token *** (from ", "--follow true (from ", "--metrics 127.0.0.1:1 (from "):
        assert line in out
    assert SECRET not in out


def test_config_says_what_is_wrong(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "password").unlink()
    assert main(["config"]) == 2
    assert "sasl.password: the file" in capsys.readouterr().err
