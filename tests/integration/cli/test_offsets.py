"""``aiokcc offsets`` as an operator runs it, on a real Kafka and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import aiokcc
from aiokcc import local
from tests.integration.cli.commands import AIOKCC, Ended, environment
from tests.replays import at, replaying, topic


@dataclass
class Operator:
    """Runs ``aiokcc offsets``; the store and Kafka are given in the environment."""

    kafka: local.Kafka
    root: str
    name: str

    @property
    def group(self) -> str:
        return f"group-{self.name}"

    async def says(self, *words: str, stdin: str = "", **extra: str) -> Ended:
        variables = {"AIOKCC_STORE": self.root, "AIOKCC_BOOTSTRAP_SERVERS": self.kafka.bootstrap, **extra}
        process = await asyncio.create_subprocess_exec(
            AIOKCC,
            "offsets",
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(**{name: value for name, value in variables.items() if value}),
        )
        out, err = await process.communicate(stdin.encode())
        assert "Traceback" not in err.decode()
        return Ended(process.returncode, out.decode(), err.decode())

    async def does(self, *words: str, **more: Any) -> str:
        """Run a command that must succeed, and return its output."""
        ended = await self.says(*words, **more)
        assert (ended.code, ended.err) == (0, "")
        return ended.out

    async def offsets(self, *words: str) -> dict[int, int | None]:
        """Return the offsets that ``show`` prints, by partition."""
        shown = json.loads(await self.does("show", "--json", *words))
        return {entry["partition"]: entry["offset"] for entry in shown["offsets"]}

    async def replay(self, root: str, **settings: Any) -> list[tuple[int, int]]:
        """Replay the topic to its end, and return the records that were handled."""
        seen: list[tuple[int, int]] = []
        async with replaying(self.kafka, self.name, store=root, assignment="fixed", **settings) as replay:
            await replay.run(lambda r: seen.append((r.partition, r.offset)))
        return sorted(seen)


@pytest.fixture
async def operator(kafka: local.Kafka, zk_root: str) -> Operator:
    """Create a topic with two partitions, of five and three records."""
    return Operator(kafka, zk_root, await topic(kafka, [at(m) for m in range(5)], [at(m) for m in range(3)]))


@pytest.fixture(params=["kafka", "store"])
def kept(request: pytest.FixtureRequest, operator: Operator) -> list[str]:
    """Return the arguments that name the storage."""
    return ["--group-id", operator.group] if request.param == "kafka" else []


async def test_show_prints_offset_lag_time_and_author(operator: Operator) -> None:
    await operator.replay(operator.root, offset_storage="store", member="worker")
    out = await operator.does("show")
    where, head, *rows, note = out.splitlines()
    assert where == operator.root
    assert head.split() == ["TOPIC", "PARTITION", "OFFSET", "LAG", "WHEN", "BY"]
    form = rf"  {operator.name}\s+(\d)\s+(\d)\s+0  20\S+Z \(\S+ ago\)  worker"
    assert [re.fullmatch(form, row).groups() for row in rows] == [("0", "5"), ("1", "3")]  # type: ignore[union-attr]
    assert note.strip() == "0 records behind in all"
    alone = await operator.does("show", AIOKCC_BOOTSTRAP_SERVERS="")
    assert "The lag is shown with Kafka's address" in alone


async def test_show_as_json(operator: Operator, kept: list[str]) -> None:
    await operator.does("set", operator.name, "0", "2", *kept)
    shown = json.loads(await operator.does("show", "--json", *kept))
    assert (shown["format"], shown["storage"]) == (1, "kafka" if kept else "store")
    (entry,) = shown["offsets"]
    assert (entry["topic"], entry["partition"], entry["offset"]) == (operator.name, 0, 2)
    assert (entry["end"], entry["lag"], entry["run"]) == (5, 3, None)
    assert "@" in entry["by"]
    assert entry["at"] > 1_700_000_000_000
    assert await operator.offsets("--topic", operator.name, *kept) == {0: 2, 1: None}, (
        "those without an offset, if asked for"
    )


async def test_show_without_offsets(operator: Operator, kept: list[str]) -> None:
    assert (await operator.does("show", *kept)).startswith("There are no offsets in ")
    assert json.loads(await operator.does("export", *kept))["offsets"] == []


async def test_a_new_run_starts_at_the_offsets_that_were_set(operator: Operator, kept: list[str]) -> None:
    out = await operator.does("set", operator.name, "0", "3", *kept)
    assert re.search(rf"{operator.name}\s+0\s+—\s+3", out)
    await operator.does("set", operator.name, "1", "3", *kept)
    out = await operator.does("set", operator.name, "1", "1", *kept)
    assert re.search(rf"{operator.name}\s+1\s+3\s+1", out), "before and now"
    where = {"group_id": operator.group} if kept else {"offset_storage": "store"}
    assert await operator.replay(operator.root, start="committed", **where) == [(0, 3), (0, 4), (1, 1), (1, 2)]


@pytest.mark.parametrize(
    ("to", "offsets"),
    [
        ("earliest", {0: 0, 1: 0}),
        ("latest", {0: 5, 1: 3}),
        (str(at(2)), {0: 2, 1: 2}),
        ("2023-11-14T22:17:00.001Z", {0: 4, 1: 3}),  # after the fourth minute's record, past the end of the other
    ],
)
async def test_reset_to_a_time_the_earliest_and_the_latest(
    operator: Operator, kept: list[str], to: str, offsets: dict[int, int]
) -> None:
    assert at(3) == 1_700_000_220_000  # 22:17:00
    await operator.does("reset", to, "--topic", operator.name, *kept)
    assert await operator.offsets(*kept) == offsets


async def test_reset_without_topics_takes_those_that_have_offsets(operator: Operator) -> None:
    ended = await operator.says("reset", "earliest")
    assert ended.code == 1
    assert "there are no offsets in" in ended.err
    assert "--topic" in ended.err
    await operator.replay(operator.root, offset_storage="store")
    await operator.does("reset", "earliest")
    assert await operator.offsets() == {0: 0, 1: 0}


async def test_a_dry_run_writes_nothing(operator: Operator, kept: list[str]) -> None:
    out = await operator.does("reset", "latest", "--topic", operator.name, "--dry-run", *kept)
    assert "Nothing was written" in out
    assert await operator.offsets(*kept) == {}


@pytest.mark.parametrize("form", ["json", "csv"])
async def test_what_is_exported_can_be_imported_elsewhere(
    operator: Operator, kept: list[str], form: str, zookeeper: local.ZooKeeper, tmp_path: Path
) -> None:
    await operator.does("reset", str(at(2)), "--topic", operator.name, *kept)
    text = await operator.does("export", "--format", form, *kept)
    file = tmp_path / f"offsets.{form}"
    file.write_text(text)
    other = zookeeper.url(f"{operator.name}-{form}")
    await operator.does("import", str(file), other)
    assert await operator.offsets(other) == {0: 2, 1: 2}
    await operator.does("import", "-", "--group-id", f"{operator.group}-{form}", stdin=text)
    assert await operator.offsets("--group-id", f"{operator.group}-{form}") == {0: 2, 1: 2}


async def test_offsets_migrate_to_the_store_and_back(operator: Operator, zookeeper: local.ZooKeeper) -> None:
    """The first run commits to Kafka, the second to the store, the third to Kafka again: no record is read twice."""
    first, second, third = (zookeeper.url(f"{operator.name}-{n}") for n in (1, 2, 3))
    assert len(await operator.replay(first, group_id=operator.group)) == 8
    there = ("migrate", "--to", "store", "--group-id", operator.group, second)
    out = await operator.does(*there)
    assert re.search(rf"{operator.name}\s+0\s+—\s+5", out)
    assert f"The offsets in Kafka, group {operator.group} stay as they are." in out
    await operator.does(*there)  # again changes nothing
    assert await operator.offsets(second) == {0: 5, 1: 3}
    await _append(operator, 0, 5)
    assert await operator.replay(second, start="committed", offset_storage="store") == [(0, 5)]
    assert await operator.offsets("--group-id", operator.group) == {0: 5, 1: 3}, "what was copied stays as it was"
    await operator.does("migrate", "--to", "kafka", "--group-id", operator.group, second)
    assert await operator.offsets("--group-id", operator.group) == {0: 6, 1: 3}
    await _append(operator, 1, 3)
    assert await operator.replay(third, start="committed", group_id=operator.group) == [(1, 3)]


async def _append(operator: Operator, number: int, offset: int) -> None:
    from tests.replays import append

    await append(operator.kafka, operator.name, number, [at(10 + offset)], offset)


# Refused


async def test_writing_is_refused_while_members_run_and_until_the_run_has_ended(
    operator: Operator, kept: list[str]
) -> None:
    words = ("set", operator.name, "0", "1", *kept)
    where: dict[str, Any] = {"group_id": operator.group} if kept else {"offset_storage": "store"}
    async with replaying(
        operator.kafka, operator.name, store=operator.root, assignment="fixed", member="worker", **where
    ):
        ended = await operator.says(*words)
        assert ended.code == 1
        assert "1 member of the run under" in ended.err
        assert "(worker)" in ended.err
        assert "Stop them first" in ended.err
        assert await operator.offsets(*kept, *(() if kept else ("--topic", operator.name))) in ({}, {0: None, 1: None})
        assert "Nothing was written" in await operator.does(*words, "--dry-run")
    ended = await operator.says(*words)
    assert ended.code == 1
    assert "has not ended" in ended.err
    assert "resumes from its own cuts and commits" in ended.err
    await operator.does(*words, "--force")
    assert (await operator.offsets(*kept))[0] == 1
    assert len(await operator.replay(operator.root, **where)) == 8, "the run has not lost a record"
    await operator.does(*words)  # it has ended now


async def test_kafka_takes_no_offsets_for_a_group_that_has_members(operator: Operator) -> None:
    """Kafka itself refuses the offsets, whatever the store holds."""
    assigned = asyncio.Event()

    async def handle(_: Any) -> None:
        assigned.set()
        await asyncio.Event().wait()

    async with replaying(operator.kafka, operator.name, group_id=operator.group) as replay:
        running = asyncio.ensure_future(replay.run(handle))
        await assigned.wait()
        ended = await operator.says(
            "reset", "latest", "--topic", operator.name, "--group-id", operator.group, "--force"
        )
        running.cancel()
        await asyncio.wait([running])
    assert ended.code == 1
    assert f"Kafka's group {operator.group} has 1 member" in ended.err
    assert "stop them first" in ended.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["set", "no-such-topic", "0", "1"], "Kafka has no topic 'no-such-topic'; it has "),
        (["set", "{}", "2", "1"], "{}.2 does not exist; {} has 2 partitions, from 0 up"),
        (["set", "{}", "0", "6"], "offset 6 is not in the log of {}.0, which begins at 0 and ends at 5"),
        (["reset", "earliest", "--topic", "no-such-topic"], "Kafka has no topic 'no-such-topic'"),
        (["show", "--topic", "no-such-topic"], "Kafka has no topic 'no-such-topic'"),
        (["export", "--topic", "no-such-topic"], "Kafka has no topic 'no-such-topic'"),
        (["migrate", "--to", "kafka", "--group-id", "nobody"], "holds no offsets"),
        (["migrate", "--to", "store", "--group-id", "nobody"], "Kafka, group nobody holds no offsets"),
        (["import", "/nowhere/offsets.json"], "there is no file /nowhere/offsets.json"),
    ],
)
async def test_an_action_that_is_impossible_is_explained(operator: Operator, words: list[str], message: str) -> None:
    ended = await operator.says(*(word.format(operator.name) for word in words))
    assert ended.code in {1, 2}
    assert ended.out == ""
    assert message.replace("{}", operator.name) in ended.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "standard input holds no offsets"),
        ("{", "is not JSON"),
        ('{"format": 2, "offsets": []}', "has the format 2; this version reads 1"),
        ('{"offsets": 1}', "is not a list of offsets"),
        ("topic,partition\nT,0\n", "line 2: offset is missing"),
        ("topic,partition,offset\nT,0,-1\n", "line 2: offset '-1' is not valid"),
        ("topic,partition,offset\nT,x,1\n", "line 2: topic 'T' is given the partition 'x'"),
        ("topic,partition,offset\nT,0,1\nT,0,2\n", "line 3: T.0 occurs twice"),
        ("topic,partition,offset\nT,0,1\nT,7,1\n", "T.7 does not exist; T has 2 partitions, from 0 up"),
        ('[{"topic": "T", "partition": 0, "offset": 9}]', "offset 9 lies past the log of T.0, which ends at 5"),
        ('[{"topic": "T", "partition": 0, "offset": true}]', "entry 1: offset True is not valid"),
    ],
)
async def test_an_invalid_file_changes_nothing(operator: Operator, text: str, message: str) -> None:
    ended = await operator.says(
        "import", "-", stdin=text.replace('"T"', f'"{operator.name}"').replace("T,", f"{operator.name},")
    )
    assert ended.code == 1
    assert re.sub(re.escape(operator.name), "T", ended.err).find(message) >= 0, ended.err
    assert await operator.offsets() == {}


async def test_a_node_that_cannot_be_read_is_named(operator: Operator) -> None:
    async with aiokcc.open_store(operator.root).session() as session:
        await session.ensure("offsets/orders")
        await session.create("offsets/orders/0", b"rubbish")
    ended = await operator.says("show")
    assert ended.code == 1
    assert "offsets/orders/0 holds 'rubbish'; expected an offset" in ended.err


async def test_an_address_without_kafka_is_an_error(operator: Operator) -> None:
    ended = await operator.says(
        "show", "--group-id", "g", "--timeout", "1s", "--bootstrap-servers", "127.0.0.1:1", AIOKCC_STORE=""
    )
    assert ended.code == 1
    assert "could not connect to Kafka at 127.0.0.1:1" in ended.err


async def test_without_aiokafka_the_offsets_in_the_store_are_shown_without_lag(
    operator: Operator, tmp_path: Path
) -> None:
    """Kafka's address stands in the environment for other commands; without aiokafka only the lag is missing."""
    await operator.replay(operator.root, offset_storage="store")
    (tmp_path / "aiokafka.py").write_text("raise ModuleNotFoundError('not installed', name='aiokafka')\n")
    base = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    shown = await operator.does("show", **base)
    assert re.search(rf"^  {operator.name} +0 +5 +— ", shown, re.MULTILINE), shown
    assert shown.endswith("The lag is shown with: pip install 'aiokcc[kafka]'\n")
    exported = json.loads(await operator.does("export", **base))
    assert [entry["offset"] for entry in exported["offsets"]] == [5, 3]
    for words in (["show", "--group-id", operator.group], ["set", operator.name, "0", "1"]):
        refused = await operator.says(*words, **base)
        assert refused.code == 2
        assert "pip install 'aiokcc[kafka]'" in refused.err
