"""``aiokcc list``, ``describe``, ``delete`` and ``prune`` on a real ZooKeeper."""

from __future__ import annotations

import json
from typing import Any

import pytest

import aiokcc
from aiokcc import local
from aiokcc.core.partitions import Partition
from aiokcc.core.run import Bounds
from aiokcc.errors import UsageError
from aiokcc.runtime.roots import delete_root
from aiokcc.stores import ANY_VERSION
from tests.integration.cli.commands import on_terminal, run, session_of, until_holds
from tests.joining import joining
from tests.kafka_topics import fresh_name

pytestmark = pytest.mark.service
SETTINGS: dict[str, Any] = {"topics": {"t": 1}, "period": "1m", "start": 0}


async def run_to_its_end(store: str) -> None:
    async with aiokcc.connect(store, end=60_000, **SETTINGS) as group, session_of(store) as session:
        async with group.gate("t", 0) as gate:
            await gate.wait_until(1)
            gate.finish()
            await until_holds(session, "coordinator", b"end")


async def test_roots_in_kafka(kafka: local.Kafka) -> None:
    """Each root is a topic of its own. Its name does not tell dots from slashes, but the topic holds the root."""
    top = f"kafka://{kafka.bootstrap}/{fresh_name('team')}"
    ended, dotted = f"{top}/ended", f"{top}/of.group"
    await run_to_its_end(ended)
    async with aiokcc.connect(dotted, member="alive", **SETTINGS):
        listed = await run("list", top, "--json")
        rows = {row["root"].rsplit("/", 1)[1]: row for row in json.loads(listed.out)}
        assert {name: (row["state"], row["members"]) for name, row in rows.items()} == {
            "ended": ("ended", 0),
            "of.group": ("running", 1),
        }
        everywhere = await run("list", f"kafka://{kafka.bootstrap}")
        assert "/of.group  " in everywhere.out
        gone = await run("prune", top, "--keep-ended", "1ms", "--yes")
        assert "1 run deleted, 1 kept." in gone.out, gone.err
    left = await run("list", top, "--json")
    assert [row["root"].rsplit("/", 1)[1] for row in json.loads(left.out)] == ["of.group"]


async def test_a_life(zk_root: str) -> None:
    one, two = f"{zk_root}/one", f"{zk_root}/deep/er/two"
    await run_to_its_end(two)
    async with aiokcc.connect(one, member="alive", **SETTINGS), session_of(one) as session:
        await session.ensure("offsets/t")
        await session.create("offsets/t/0", b"5")
        listed = await run("list", zk_root, "--json")
        rows = {row["root"].rsplit("/", 1)[1]: row for row in json.loads(listed.out)}
        assert rows.keys() == {"one", "two"}
        assert (rows["one"]["state"], rows["one"]["members"]) == ("running", 1)
        assert (rows["two"]["state"], rows["two"]["members"], rows["two"]["done"]) == ("ended", 0, 1.0)
        shown = await run("list", zk_root)
        assert "ROOT" in shown.out
        assert "deep/er/two" in shown.out
        everywhere = await run("list", zk_root.rsplit("/", 1)[0])
        assert f"/{zk_root.rsplit('/', 1)[1]}/one" in everywhere.out
        refused = await run("delete", one, "--yes")
        assert refused.code == 1
        assert "is alive, with alive-" in refused.err
    async with session_of(one) as session:
        await session.ensure("settings/of/another/program")
    deleted = await run("delete", one, "--yes")
    assert deleted.code == 0, deleted.err
    assert deleted.out.endswith("What does not belong to the group stays below it: settings.\n")
    async with session_of(one) as session:
        assert await session.children("") == ("settings",), "offsets are gone too"
    again = await run("delete", one, "--yes")
    assert again.code == 1
    assert "there is no group under" in again.err
    kept = await run("prune", zk_root, "--keep-ended", "7d", "--yes")
    assert "0 runs deleted, 1 kept." in kept.out
    dry = await run("prune", zk_root, "--keep-ended", "1ms", "--dry-run")
    assert "Would delete" in dry.out
    gone = await run("prune", zk_root, "--keep-ended", "1ms", "--yes")
    assert "1 run deleted, 0 kept." in gone.out
    assert "There is no group" in (await run("list", zk_root)).out


async def test_a_member_that_joins_meanwhile_keeps_the_group(zk_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with aiokcc.connect(zk_root, **SETTINGS):
        pass
    store = aiokcc.open_store(zk_root)
    async with store.session() as session:
        commit = session.commit

        async def too_late(*ops: Any) -> Any:
            async with aiokcc.connect(zk_root, member="late", **SETTINGS):
                return await commit(*ops)

        monkeypatch.setattr(session, "commit", too_late)
        with pytest.raises(UsageError, match="nothing was deleted"):
            await delete_root(store, session)
        assert await session.find("run") is not None
        assert await session.find("coordinator") is not None
    async with aiokcc.connect(zk_root, **SETTINGS) as group:  # it can still be joined
        assert (await group.status()).state == "running"


async def test_the_rest_stays_if_a_new_run_begins_meanwhile(zk_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with aiokcc.connect(zk_root, **SETTINGS):
        pass
    store = aiokcc.open_store(zk_root)
    async with store.session() as session:
        await session.ensure("offsets/t")
        commit, calls = session.commit, 0

        async def founded_between(*ops: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 2:
                async with aiokcc.connect(zk_root, member="new", **SETTINGS):
                    return await commit(*ops)
            return await commit(*ops)

        monkeypatch.setattr(session, "commit", founded_between)
        with pytest.raises(aiokcc.CoordinationError, match="somebody has begun a new one"):
            await delete_root(store, session)
        assert await session.find("offsets/t") is not None
        assert await session.find("run") is not None


async def test_delete_asks(zk_root: str) -> None:
    async with aiokcc.connect(zk_root, **SETTINGS):
        pass
    silent = await run("delete", zk_root)
    assert silent.code == 2
    assert "add --yes" in silent.err
    async with on_terminal("delete", zk_root) as terminal:
        await terminal.shows("Delete? [y/N]")
        terminal.type("n\n")
        assert await terminal.process.wait() == 1
    async with session_of(zk_root) as session:
        await session.delete("period", ANY_VERSION)
    assert (await run("delete", zk_root, "--yes")).code == 0, "a group with a missing node can be deleted too"


async def test_describe_shows_the_agreement(zk_root: str) -> None:
    async def bounds() -> dict[Partition, Bounds]:
        return {Partition("t", 0): Bounds(3, 9)}

    async with joining(zk_root, offsets=bounds, **SETTINGS):
        shown = await run("describe", zk_root)
        assert "period      1m" in shown.out
        assert "t.0  offsets 3 to 9" in shown.out
        found = json.loads((await run("describe", zk_root, "--json")).out)
        assert found["partitions"] == {"t.0": {"start": 3, "end": 9}}
    for verb in ("describe", "status"):
        missing = await run(verb, f"{zk_root}-none")
        assert missing.code == 1
        assert "there is no group under" in missing.err
    nowhere = await run("list", f"{zk_root}-none")
    assert nowhere.code == 1
    assert "there is no node" in nowhere.err
