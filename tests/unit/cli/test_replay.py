"""The arguments of ``aiokcc replay``, the functions that they name, and the shares of its workers; nothing is started."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path
from typing import Any

import pytest

from aiokcc.cli import main
from aiokcc.cli.arguments import parse
from aiokcc.cli.functions import describe_location, load_function
from aiokcc.cli.replay_options import as_keywords, shares_host, worker_spec
from aiokcc.cli.worker import partition_rule
from aiokcc.cli.worker_pool import describe_exit
from aiokcc.errors import UsageError

T = 1_767_225_600_000
ENVIRONMENT = {"AIOKCC_STORE": "zk://h/replay", "AIOKCC_BOOTSTRAP_SERVERS": "h:9092"}
WORDS = ("replay", "handlers:handle", "--topic", "orders", "--period", "1m")


def parsed(*more: str) -> argparse.Namespace:
    return parse([*WORDS, *more], ENVIRONMENT)


class TestArguments:
    def test_the_defaults(self) -> None:
        given = as_keywords(parsed())
        assert given["store"] == "zk://h/replay"
        assert given["bootstrap_servers"] == "h:9092"
        assert (given["start"], given["end"], given["period"]) == ("earliest", "now", 60_000)

    def test_times_are_milliseconds(self) -> None:
        given = as_keywords(parsed("--from", "2026-01-01T00:00Z", "--to", f"{T + 5}"))
        assert (given["start"], given["end"]) == (T, T + 5)
        assert as_keywords(parsed("--follow"))["end"] is None
        assert as_keywords(parsed("--follow", "--caught-up", "1h"))["caught_up"] == 3_600_000

    def test_a_url_is_the_store_unless_it_follows_bootstrap_servers(self) -> None:
        options = parsed("zk://other/x", "--bootstrap-servers", "PLAINTEXT://h:9092")
        assert options.store == "zk://other/x"
        assert options.bootstrap_servers == "PLAINTEXT://h:9092"

    def test_lateness_is_for_all_topics_or_for_each(self) -> None:
        assert as_keywords(parsed())["lateness"] is None
        assert as_keywords(parsed("--lateness", "30s"))["lateness"] == 30_000
        each = as_keywords(parsed("--lateness", "orders=30s", "--lateness", "payments=1m"))
        assert each["lateness"] == {"orders": 30_000, "payments": 60_000}
        with pytest.raises(UsageError, match="TOPIC=TIME"):
            as_keywords(parsed("--lateness", "30s", "--lateness", "1m"))

    @pytest.mark.parametrize(
        ("more", "shared"),
        [
            (("--processes", "3"), True),
            (("--processes", "3", "--no-share-host"), False),
            ((), False),
            (("--processes", "3", "--follow"), False),
            (("--processes", "3", "--assignment", "managed"), False),
        ],
    )
    def test_several_processes_share_their_host(self, more: tuple[str, ...], *, shared: bool) -> None:
        spec = worker_spec(parsed(*more), [[], [], []], 2)
        assert spec["arguments"]["share_host"] is shared

    def test_processes_that_cannot_meet_on_their_host_have_a_session_each(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The variable often names a directory that does not exist, as in a cron job or after ``su``."""
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
        assert not shares_host(parsed("--processes", "3"))
        (tmp_path / ("long" * 20)).mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("long" * 20)))
        assert not shares_host(parsed("--processes", "3"))

    def test_auto_lookahead_and_its_bound_are_passed_on(self) -> None:
        given = as_keywords(parsed("--lookahead", "auto", "--max-apart", "15m"))
        assert (given["lookahead"], given["max_apart"]) == ("auto", 900_000)
        given = as_keywords(parsed())
        assert (given["lookahead"], given["max_apart"]) == (0, None)

    def test_settings_of_the_consumer_become_keywords(self) -> None:
        given = as_keywords(parsed("--consumer", "fetch_max_bytes=1000", "--consumer", "client_id=me=you"))
        assert (given["fetch_max_bytes"], given["client_id"]) == (1000, "me=you")

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (["--from", "yesterday"], "the time 'yesterday' cannot be read; .* or 'earliest' or 'committed'"),
            (["--to", "2026-01-01"], "has no time zone"),
            (["--period", "5"], "has no unit"),
            (["--processes", "0"], "'0' is not a whole number from 1 up"),
            (["--lookahead", "-1"], "'-1' is not a whole number from 0 up, or 'auto'"),
            (["--lookahead", "auto", "--max-apart", "15"], "has no unit"),
            (["--consumer", "fast"], "'fast' is not a setting; expected NAME=VALUE"),
            (["--late", "never"], "invalid choice: 'never'"),
            (["--offset-storage", "zookeeper"], "'zookeeper' is now 'store', which names any store; write 'store'"),
            (["--to", "now", "--follow"], "not allowed with"),
            (["--pattern", "orders-.*"], "--pattern: not allowed with argument --topic"),
            (["--speed", "9"], "replay has no option --speed"),
            (["--proceses", "4"], "replay has no option --proceses; did you mean --processes?"),
            (["--start", "earliest"], "replay has no option --start; did you mean --from?"),
            (["--end", "now"], "replay has no option --end; did you mean --to?"),
            (["--on-error", "deadletter"], "'deadletter'; did you mean 'dead-letter'?"),
        ],
    )
    def test_an_invalid_argument_is_explained(self, more: list[str], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            parsed(*more)

    def test_a_mistyped_option_is_named_before_the_one_that_is_missing(self) -> None:
        with pytest.raises(UsageError, match="replay has no option --perod; did you mean --period?"):
            parse(["replay", "handlers:handle", "--topic", "orders", "--perod", "1m"], ENVIRONMENT)

    def test_a_missing_argument_is_named(self) -> None:
        with pytest.raises(UsageError, match="which store.* memory://once"):
            parse(WORDS, {})
        with pytest.raises(UsageError, match="required: --period"):
            parse(["replay", "a:b"], ENVIRONMENT)

    def test_topics_are_required(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["replay", "a:b", "--period", "1m", "zk://h/x"]) == 2
        assert (
            capsys.readouterr().err == "aiokcc: which topics? Give --topic TOPIC, once for each, or --pattern REGEX\n"
        )

    def test_a_pattern_replaces_the_topics(self) -> None:
        options = parse(["replay", "a:b", "--pattern", "orders-.*", "--period", "1m"], ENVIRONMENT)
        assert options.topic is None
        assert as_keywords(options)["pattern"] == "orders-.*"

    def test_the_help_explains_the_handler_stopping_and_resuming(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["replay", "--help"]) == 0
        text = capsys.readouterr().out
        for word in (
            "examples:",
            "--processes 4",
            "async def handle(record)",
            "the same command resumes",
            "--follow",
            "stopping:",
        ):
            assert word in text
        assert main(["--help"]) == 0
        assert "replay" in capsys.readouterr().out


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty directory that is not in sys.path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if entry])
    return tmp_path


class TestFunctions:
    def test_the_current_directory_is_searched(self, here: Path) -> None:
        (here / "mine_a.py").write_text("class Shop:\n    @staticmethod\n    def handle(record): return record\n")
        assert load_function("mine_a:Shop.handle", "a record")(7) == 7

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("mine_b", "'mine_b' is not a function; expected MODULE:FUNCTION"),
            ("nope_b:handle", "there is no module 'nope_b', in .* or installed$"),
            ("mine_b.py:handle", "there is no module 'mine_b.py'.* no .py: mine_b:handle"),
            ("mine_b:hande", "mine_b has no 'hande'; did you mean 'handle'?"),
            ("mine_b:zzz", "mine_b has no 'zzz'; it has handle, two, many$"),
            ("mine_b:NUMBER", "mine_b:NUMBER is an int, which cannot be called; expected a function of a record"),
            ("mine_b:two", r"mine_b:two\(a, b\) cannot be called with a record"),
            ("mine_b:many", "is a generator"),
            (
                "broken_b:handle",
                r"broken_b cannot be imported: ZeroDivisionError: .* \(broken_b.py, line 1, in <module>\)",
            ),
            ("needy_b:handle", "needy_b cannot be imported: it needs 'nothing_of_that_name', which is not installed"),
            ("wrong_b:handle", r"wrong_b cannot be imported: SyntaxError: .* \(wrong_b.py, line 1\)"),
        ],
    )
    def test_the_error_says_what_is_wrong(self, here: Path, name: str, message: str) -> None:
        (here / "mine_b.py").write_text(
            "from math import floor\nNUMBER = 3\ndef handle(r): pass\ndef two(a, b): pass\ndef many(r): yield r\n"
        )
        (here / "broken_b.py").write_text("1 / 0\n")
        (here / "needy_b.py").write_text("import nothing_of_that_name\n")
        (here / "wrong_b.py").write_text("def handle(:\n")
        with pytest.raises(UsageError, match=message):
            load_function(name, "a record")

    def test_the_location_of_an_error_is_its_last_line(self) -> None:
        def fail() -> None:
            raise LookupError

        try:
            fail()
        except LookupError as error:
            assert describe_location(error).endswith("in fail")
        assert describe_location(LookupError()) == ""

    def test_the_location_of_an_error_in_a_library_is_the_users_line(self, here: Path) -> None:
        (here / "own_c.py").write_text(
            "import json\ndef inner(r):\n    json.loads('{')\ndef handle(r):\n    inner(r)\n"
        )
        (here / "borrowed_c.py").write_text("from own_c import handle\n")
        for name in ("own_c:handle", "borrowed_c:handle"):
            handler = load_function(name, "a record")
            with pytest.raises(ValueError, match="Expecting property name") as caught:
                handler(None)
            assert describe_location(caught.value, name) == "own_c.py, line 3, in inner"
            assert "decoder.py" in describe_location(caught.value)


def test_the_address_of_kafka_is_required(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("AIOKCC_BOOTSTRAP_SERVERS", raising=False)
    assert main([*WORDS, "zk://h/x"]) == 2
    assert "where is Kafka? Give --bootstrap-servers HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_taken_address_of_metrics_is_refused_before_anything_else_is_said(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no Kafka at this address either: the command does not get so far as to notice."""
    family = socket.AF_INET6 if "[" in host else socket.AF_INET
    with socket.create_server((host.strip("[]"), 0), family=family) as taken:
        address = f"{host}:{taken.getsockname()[1]}"
        words = ("json:loads", "--topic", "t", "--period", "1m", "--bootstrap-servers", "127.0.0.1:1")
        assert main(["replay", *words, "--store", "memory://taken", "--metrics", address]) == 1
    out, err = capsys.readouterr()
    advice = "give another address, or port 0 for any free port; the address is printed"
    assert (out, err) == ("", f"aiokcc: --metrics {address} is taken by another program; {advice}\n")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (-9, "was killed by SIGKILL (was the machine out of memory?)"),
        (-15, "was killed by SIGTERM"),
        (3, "ended with code 3"),
    ],
)
def test_an_exit_code_is_described(code: int, text: str) -> None:
    assert describe_exit(code) == text


def test_every_partition_belongs_to_one_worker_also_those_added_later() -> None:
    shares: list[list[Any]] = [[["orders", 0], ["orders", 2]], [["orders", 1]], [["payments", 0]]]
    rules = [partition_rule(shares, number) for number in range(3)]
    for number, share in enumerate(shares):
        for topic, partition in share:
            assert [rule(topic, partition) for rule in rules] == [n == number for n in range(3)]
    later = [[rule("orders", partition) for rule in rules] for partition in range(3, 100)]
    assert all(sum(ours) == 1 for ours in later)
    assert all(sum(ours) > 10 for ours in zip(*later, strict=True)), "they are spread over the workers"
