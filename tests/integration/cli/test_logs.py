"""``aiokcc replay --log-format json`` on real services: every line on stderr is an object, with facts."""

from __future__ import annotations

import json
import signal

import pytest

from tests.integration.cli.test_replay import EACH, MINUTES, Place, handled, place
from tests.integration.cli.test_replay_stop import said, working

__all__ = ["place"]

pytestmark = pytest.mark.timeout(120)


def objects(text: str) -> list[dict[str, object]]:
    found = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "logger", "message"} <= each.keys() for each in found)
    return found


async def test_every_line_of_three_processes_is_an_object(place: Place) -> None:
    ended = await place.run("show", "--processes", "3", "--log-format", "json")
    assert ended.code == 0, ended.err
    assert len(handled(ended.out)) == 2 * MINUTES * EACH, "stdout belongs to the handler"
    found = objects(ended.err)
    said_by_command = [str(each["message"]) for each in found if each["logger"] == "aiokcc.cli"]
    assert said_by_command[0].startswith("Replaying ")
    assert said_by_command[-1].startswith("Done: ")
    (leads,) = [each for each in found if "leads under generation" in str(each["message"])]
    assert leads["generation"] == 1
    assert leads["logger"] == "aiokcc.runtime"
    assert str(leads["member"]) in str(leads["message"])
    loggers = {str(each["logger"]) for each in found}
    assert loggers <= {"aiokcc.cli", "aiokcc.kafka", "aiokcc.runtime", "aiokcc.stores"}


async def test_a_handler_that_raises_is_one_object(place: Place) -> None:
    ended = await place.run("fail", "--log-format", "json", "--log-level", "error")
    assert ended.code == 1
    (error,) = objects(ended.err)
    assert error["level"] == "error"
    assert "no such customer" in str(error["message"])


async def test_a_stop_is_told_in_objects(place: Place) -> None:
    async with place.started("stop_in_minute_five", "--log-format", "json", "--stop-timeout", "1s") as process:
        await working(process, 1, "waiting")
        process.send_signal(signal.SIGTERM)
        await said(process, b'"message": "Stopping when the running handlers have returned;')
        _, err = await process.communicate()
    assert process.returncode == 143
    messages = [str(each["message"]) for each in objects(err.decode())]
    late = messages.index("Not all handlers have returned within 1.0s (--stop-timeout).")
    assert messages[late + 1] == "Stopping at once."


async def test_text_logs_have_the_level_and_the_member(place: Place) -> None:
    ended = await place.run("show", "--log-level", "info")
    assert ended.code == 0
    assert " INFO worker-1 aiokcc.runtime: " in ended.err
    quiet = await place.run("show", "--log-level", "warning", "--store", "memory://once")
    assert "aiokcc.runtime" not in quiet.err
    assert "Done: " in quiet.err, "messages of the command are no logs"
