"""Several ``aiokcc replay`` commands form a managed group; an operator shows its members, isolates and stops them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from aiokcc import local
from tests.integration.cli.commands import run
from tests.integration.cli.test_replay import EACH, HANDLERS, MINUTES, Place, handled, place
from tests.integration.test_group import looking
from tests.managed import shared

__all__ = ["place"]

pytestmark = pytest.mark.timeout(120)

SLOWLY = """
async def slowly(record):
    await asyncio.sleep(0.01)
    show(record)
"""


@pytest.fixture
def team(place: Place) -> Place:
    (place.directory / "handlers.py").write_text(HANDLERS + SLOWLY)
    return place


async def test_three_terminals_with_one_command_each_share_a_replay(team: Place, zk_root: str) -> None:
    async with AsyncExitStack() as stack:
        words = ("slowly", "--assignment", "managed", "--expect", "3")
        processes = [await stack.enter_async_context(team.started(*words)) for _ in range(3)]
        outputs = await asyncio.gather(*(process.communicate() for process in processes))
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    parts = [handled(out.decode()) for out, _ in outputs]
    records = [record for part in parts for record in part]
    assert len(records) == len(set(records)) == 2 * MINUTES * EACH
    assert all(parts), "somebody had nothing to do"
    shown = (await run("members", AIOKCC_STORE=zk_root)).out
    assert "The run has ended" in shown
    assert "A rebalance is under way" not in shown
    assert json.loads((await run("members", "--json", AIOKCC_STORE=zk_root)).out)["waits_for"] is None


async def test_an_isolated_member_has_no_partitions_until_it_rejoins(
    team: Place, zk_root: str, kafka: local.Kafka
) -> None:
    store = {"AIOKCC_STORE": zk_root}
    orders, _ = team.topics
    words = ("slowly", "--assignment", "managed", "--processes", "2", "--member", "team", "--follow")
    async with team.started(*words) as process, looking(zk_root) as session:
        assert process.stdout is not None
        await process.stdout.readline()
        before = json.loads((await run("members", "--json", **store)).out)
        assert [(w["name"], w["here"], w["isolated"]) for w in before["workers"]] == [
            ("team-1", True, False),
            ("team-2", True, False),
        ]
        assert sorted(len(w["assigned"]) for w in before["workers"]) == [1, 2]

        unknown = await run("isolate", "team-3", **store)
        assert (unknown.code, unknown.out) == (1, "")
        assert "has no member 'team-3'; it has team-1, team-2" in unknown.err

        isolated = await run("isolate", "team-2", **store)
        assert isolated.code == 0
        assert isolated.out.startswith("Isolated: team-2 is assigned no partitions any more")
        assert "aiokcc rejoin team-2" in isolated.out
        assert "isolated already" in (await run("isolate", "team-2", **store)).out
        assert set((await shared(session, "team-1", topic=orders)).values()) == {"team-1"}
        shown = (await run("members", **store)).out
        assert "team-2" in shown
        assert "isolated" in shown
        status = json.loads((await run("status", "--json", **store)).out)
        assert {w["name"]: w["isolated"] for w in status["group"]["workers"]} == {"team-1": False, "team-2": True}
        assert "Assignment" in (await run("status", **store)).out

        back = await run("rejoin", "team-2", **store)
        assert (back.code, back.out) == (0, "team-2 takes part again.\n")
        assert "is not isolated" in (await run("rejoin", "team-2", **store)).out

        refused = await team.run("slowly")  # not managed
        assert refused.code == 1
        assert "runs with other settings" in refused.err
        assert "The same command" not in refused.err, "it would be refused again"
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert process.returncode == 130


async def test_the_others_take_over_from_a_process_that_is_killed(team: Place, zk_root: str) -> None:
    async with team.started("slowly", "--assignment", "managed", "--processes", "2", "--member", "team") as process:
        assert process.stdout is not None
        first = await process.stdout.readline()
        status = json.loads((await run("status", "--json", AIOKCC_STORE=zk_root)).out)
        os.kill(next(m["pid"] for m in status["members"] if m["name"].startswith("team-2-")), signal.SIGKILL)
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert "team-2 was killed by SIGKILL" in err.decode()
    assert "the others take over its partitions." in err.decode()
    assert len(set(handled((first + out).decode()))) == 2 * MINUTES * EACH


async def test_if_one_of_two_commands_is_stopped_the_other_continues_with_the_next_record(team: Place) -> None:
    words = ("slowly", "--assignment", "managed", "--expect", "2", "--offset-storage", "store")
    async with team.started(*words) as stays, team.started(*words) as leaves:
        assert leaves.stdout is not None
        first = await leaves.stdout.readline()
        leaves.send_signal(signal.SIGINT)
        (mine, err), (theirs, _) = await asyncio.gather(leaves.communicate(), stays.communicate())
    assert (leaves.returncode, stays.returncode) == (130, 0)
    assert "The other members go on. The same command joins again:" in err.decode()
    records = handled((first + mine).decode()) + handled(theirs.decode())
    assert len(records) == len(set(records)) == 2 * MINUTES * EACH


async def test_the_others_take_over_from_a_process_that_gets_sigterm(team: Place, zk_root: str) -> None:
    words = ("--assignment", "managed", "--processes", "2", "--member", "team", "--offset-storage", "store")
    async with team.started("slowly", *words) as process:
        assert process.stdout is not None
        first = await process.stdout.readline()
        status = json.loads((await run("status", "--json", AIOKCC_STORE=zk_root)).out)
        os.kill(next(m["pid"] for m in status["members"] if m["name"].startswith("team-2-")), signal.SIGTERM)
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert "team-2 was told to stop; the others take over its partitions." in err.decode()
    records = handled((first + out).decode())
    assert len(records) == len(set(records)) == 2 * MINUTES * EACH


async def test_members_and_isolate_are_refused_for_a_group_that_is_not_managed(
    team: Place, zk_root: str, tmp_path: Path
) -> None:
    refused = await team.run("show", "--expect", "3")
    assert refused.code == 2
    assert "--expect can only be used with --assignment managed" in refused.err
    assert (await team.run("show")).code == 0
    for words in (("members",), ("isolate", "worker-1"), ("rejoin", "worker-1")):
        answer = await run(*words, AIOKCC_STORE=zk_root)
        assert answer.code == 1
        assert "is not managed" in answer.err
