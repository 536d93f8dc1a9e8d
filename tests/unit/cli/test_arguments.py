"""The command line accepts these arguments, refuses those, and explains itself with --help."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import pytest

from aiokcc import __version__
from aiokcc.cli import main
from aiokcc.cli.arguments import make_parser, parse
from aiokcc.cli.verb import command
from aiokcc.errors import UsageError

URL = "zk://127.0.0.1:2181/replay"


def verbs_of(parser: argparse.ArgumentParser, before: str = "") -> Iterator[str]:
    """Yield every verb, and every action or service of one."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield f"{before}{name}"
                yield from verbs_of(below, f"{before}{name} ")


class TestArguments:
    @pytest.mark.parametrize(
        "words",
        [
            ["period", "5m", URL],
            ["period", URL, "5m"],
            ["period", "--store", URL, "5m"],
            ["--verbose", "period", URL, "5m"],
            ["period", "--verbose", URL, "5m"],
            ["period", "5m", "--timeout", "3s", "--store", URL],
        ],
    )
    def test_the_url_may_stand_anywhere(self, words: list[str]) -> None:
        options = parse(words, {})
        assert (options.verb, options.period, options.store) == ("period", 300_000, URL)
        assert options.verbose == ("--verbose" in words)

    def test_the_environment_variable_is_used_if_no_url_is_given(self) -> None:
        assert parse(["period", "5m"], {"AIOKCC_STORE": URL}).store == URL
        assert parse(["status", "zk://other/x"], {"AIOKCC_STORE": URL}).store == "zk://other/x"

    def test_a_command_to_copy_has_the_url_if_it_was_typed_and_never_a_password(self) -> None:
        assert command(parse(["hold"], {"AIOKCC_STORE": URL}), "period", "1m") == "aiokcc period 1m"
        assert command(parse(["hold", URL], {}), "period", "1m") == f"aiokcc period {URL} 1m"
        assert "secret" not in command(parse(["hold", "zk://me:secret@h/x"], {}), "period", "1m")

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            ([], "VERB"),
            (["stats"], "invalid choice: 'stats'"),
            (["status"], "set AIOKCC_STORE"),
            (["status", "127.0.0.1:2181"], "a store's URL looks like zk://127.0.0.1:2181/replay"),
            (["status", URL, URL], "two stores are given"),
            (["status", URL, "--store", URL], "two stores are given"),
            (["status", "memory://demo"], "group.status()"),
            (["status", "redis://h/x"], "there is no store for 'redis://'"),
            (["status", "zk://h:port/x"], "is not a port number"),
            (["status", "zk:///x"], "which host"),
            (["status", URL, "--colour"], "status has no option --colour"),
            (["status", URL, "--timeout", "0s"], "--timeout '0s' is too short"),
            (["period", URL], "PERIOD"),
            (["period", URL, "0m"], "period '0m' is too short"),
            (["period", URL, "5"], 'write "5ms", "5s", "5m"'),
            (["period", URL, "soon"], "period 'soon' cannot be read"),
            (["period", URL, "-5m"], "PERIOD"),
            (["release", URL], "--yes"),
            (["local"], "SERVICE"),
            (["local", "redis"], "invalid choice: 'redis'; expected zookeeper, kafka, spark, up"),
            (["stauts", URL], "invalid choice: 'stauts'; did you mean 'status'?"),
            (["offsets", "shwo", URL], "invalid choice: 'shwo'; did you mean 'show'?"),
            (["status", URL, "--wacht"], "status has no option --wacht; did you mean --watch?"),
            (["offsets", "show", URL, "--group", "g"], "offsets show has no option --group; did you mean --group-id?"),
            (["local", "spark", "--worker=2"], "local spark has no option --worker; did you mean --workers?"),
            (["status", URL, "--xyz"], "status has no option --xyz\nTry 'aiokcc status --help'."),
            (["--verbos", "status", URL], "aiokcc has no option --verbos; did you mean --verbose?"),
            (["local", "zookeeper", URL], "the services print one"),
            (["local", "zookeeper", "--servers", "0"], "--servers: '0' is not a whole number from 1 up"),
            (["local", "zookeeper", "--port", "70000"], "'70000' is not a whole number from 1 to 65535"),
            (
                ["local", "zookeeper", "--port", "65534", "--servers", "3"],
                "the last of 3 servers would have port 65536",
            ),
            (["local", "zookeeper", "--port", "x"], "not a whole number"),
        ],
    )
    def test_an_invalid_argument_is_explained_and_exits_with_2(
        self, words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("AIOKCC_STORE", raising=False)
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("aiokcc: ")
        assert says in err
        assert "Traceback" not in err

    def test_verbose_shows_the_traceback(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["status", "redis://h/x", "--verbose"]) == 2
        assert "Traceback" in capsys.readouterr().err

    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--version"]) == 0
        assert capsys.readouterr().out == f"aiokcc {__version__}\n"

    @pytest.mark.parametrize(
        "verb", ["status", "period", "hold", "release", "local zookeeper", "local kafka", "local up"]
    )
    def test_the_help_of_each_verb_has_examples(self, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([*verb.split(), "--help"]) == 0
        shown = capsys.readouterr().out
        assert "examples:" in shown
        assert f"aiokcc {verb}" in shown

    @pytest.mark.parametrize("verb", ["", *verbs_of(make_parser())])
    def test_the_help_fits_80_columns_and_breaks_no_word(
        self, verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shown = {}
        for columns in (80, 1000):
            monkeypatch.setenv("COLUMNS", str(columns))
            assert main([*verb.split(), "--help"]) == 0
            shown[columns] = capsys.readouterr().out
        assert [line for line in shown[80].splitlines() if len(line) > 80] == []
        assert shown[80].split() == shown[1000].split()

    def test_the_help_lists_the_exit_codes(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--help"]) == 0
        assert "exit codes:" in capsys.readouterr().out

    def test_two_urls_do_not_show_a_password(self) -> None:
        with pytest.raises(UsageError) as caught:
            parse(["status", "zk://me:secret@h/x", URL], {})
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("typed", ["security_protocol=SSL", "security_protocol=SASL_SSL", "ssl_context=x"])
@pytest.mark.parametrize(
    "words",
    [
        ["replay", "json:loads", "--topic", "t", "--period", "1m", "zk://h/x", "--bootstrap-servers", "h:1"],
        ["offsets", "show", "--group-id", "g", "--bootstrap-servers", "h:1"],
    ],
    ids=lambda words: words[0],
)
def test_tls_by_a_setting_is_refused_with_the_file_that_would_work(
    words: list[str], typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--consumer", typed]) == 2
    shown = capsys.readouterr().err
    assert "--consumer cannot give TLS" in shown
    assert "--kafka-config" in shown


def test_local_help_describes_each_service(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["local", "--help"]) == 0
    assert re.search(r"spark +a Spark cluster: a master and its workers", capsys.readouterr().out)
