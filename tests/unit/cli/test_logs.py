"""``--log-format`` and ``--log-level``: the lines, the facts in them, and the levels."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from aiokcc.cli.app import main
from aiokcc.cli.logs import JsonFormatter, TextFormatter, choose_logs, is_json, set_up_logs
from aiokcc.cli.render import LogLines, open_progress_display, print_message
from aiokcc.views.model import ReplayProgress

log = logging.getLogger("aiokcc.runtime")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    level = logging.getLogger().level
    yield
    set_up_logs(None)
    logging.getLogger().setLevel(level)


def objects(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


class TestJson:
    def test_an_object_has_the_time_the_level_the_logger_the_message_and_the_facts(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        set_up_logs(("json", "info"), member="worker-1")
        log.warning("%s waits", "orders.0", extra={"partition": "orders.0", "limit": 17, "generation": 3})
        (found,) = objects(capsys.readouterr().err)
        assert str(found.pop("time")).endswith("Z")
        assert found == {
            "level": "warning",
            "logger": "aiokcc.runtime",
            "message": "orders.0 waits",
            "member": "worker-1",
            "partition": "orders.0",
            "limit": 17,
            "generation": 3,
        }

    def test_a_message_of_several_lines_and_a_traceback_stay_in_one_line(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        set_up_logs(("json", "info"))
        try:
            raise LookupError("no such customer")
        except LookupError:
            log.exception("first\nsecond")
        (found,) = objects(capsys.readouterr().err)
        assert found["message"] == "first\nsecond"
        assert "LookupError: no such customer" in str(found["error"])

    def test_the_facts_of_the_record_win_over_those_of_the_process(self, capsys: pytest.CaptureFixture[str]) -> None:
        set_up_logs(("json", "info"), member="worker-1")
        log.info("x", extra={"member": "worker-1-4711-ab"})
        assert objects(capsys.readouterr().err)[0]["member"] == "worker-1-4711-ab"

    def test_messages_of_the_command_are_records(self, capsys: pytest.CaptureFixture[str]) -> None:
        set_up_logs(("json", "info"))
        assert is_json()
        print_message("Replaying orders.")
        (found,) = objects(capsys.readouterr().err)
        assert (found["logger"], found["message"]) == ("aiokcc.cli", "Replaying orders.")

    def test_the_progress_has_figures(self, capsys: pytest.CaptureFixture[str]) -> None:
        set_up_logs(("json", "info"))
        with open_progress_display() as display:
            assert isinstance(display, LogLines)
            display._next = 0
            for records in (100, 200):
                display.show(ReplayProgress(1_767_225_600_000, 0.5, records, 10.0, 5.0, ""))
        (found,) = objects(capsys.readouterr().err)  # the second one came less than ten seconds later
        assert found["message"] == "2026-01-01T00:00:00Z  50%  100 records  10/s  5.0s left"
        assert (found["limit"], found["share"], found["records"]) == (1_767_225_600_000, 0.5, 100)
        assert (found["records_per_second"], found["seconds_left"]) == (10.0, 5.0)

    def test_an_invalid_command_is_an_object_too(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["status", "--log-format", "json", "--perod"]) == 2
        (found,) = objects(capsys.readouterr().err)
        assert found["level"] == "error"
        assert str(found["message"]).startswith("status has no option --perod")

    def test_the_format_comes_from_the_environment(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIOKCC_LOG_FORMAT", "json")
        monkeypatch.delenv("AIOKCC_STORE", raising=False)
        assert main(["status"]) == 2
        assert "which group?" in str(objects(capsys.readouterr().err)[0]["message"])


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter("worker-1")])
def test_secrets_are_masked(formatter: logging.Formatter) -> None:
    record = log.makeRecord("aiokcc.x", logging.INFO, "", 1, "sasl_plain_password='hunter2' at zk://a:b@c/", (), None)
    text = formatter.format(record)
    assert "hunter2" not in text
    assert "a:b" not in text


def test_secrets_in_facts_are_masked() -> None:
    facts = {
        "where": "zk://a:hunter2@c/",
        "cause": ValueError("password='hunter2'"),
        "partitions": ["orders.0"],
        "limit": 5,
    }
    record = log.makeRecord("aiokcc.x", logging.INFO, "", 1, "away", (), None, extra=facts)
    text = JsonFormatter().format(record)
    assert "hunter2" not in text
    assert (json.loads(text)["partitions"], json.loads(text)["limit"]) == (["orders.0"], 5)


class TestText:
    def test_a_line_has_the_level_the_member_and_the_logger(self, capsys: pytest.CaptureFixture[str]) -> None:
        set_up_logs(("text", "warning"), member="100%")
        log.info("hidden")
        log.warning("shown")
        assert capsys.readouterr().err.endswith("WARNING 100% aiokcc.runtime: shown\n")
        assert not is_json()

    def test_packages_below_are_logged_from_one_level_higher(self, capsys: pytest.CaptureFixture[str]) -> None:
        set_up_logs(("text", "info"))
        logging.getLogger("aiokafka.consumer").info("hidden")
        logging.getLogger("aiokafka.consumer").warning("shown")
        assert capsys.readouterr().err.endswith("WARNING aiokafka.consumer: shown\n")
        set_up_logs(("text", "debug"))
        logging.getLogger("aiokafka.consumer").info("shown now")
        assert capsys.readouterr().err.endswith("INFO aiokafka.consumer: shown now\n")


@pytest.mark.parametrize(
    ("log_format", "level", "verbose", "expected"),
    [
        (None, None, False, None),
        ("json", None, False, ("json", "info")),
        (None, "debug", False, ("text", "debug")),
        (None, None, True, ("text", "info")),
        ("json", "error", True, ("json", "error")),
    ],
)
def test_nothing_is_logged_unless_it_is_asked_for(
    log_format: str | None, level: str | None, verbose: bool, expected: object
) -> None:
    assert choose_logs(log_format, level, verbose=verbose) == expected


def test_an_unknown_level_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--log-level", "trace", "status"]) == 2
    assert "argument --log-level: invalid choice: 'trace'; expected debug, info, warning, error" in (
        capsys.readouterr().err
    )
