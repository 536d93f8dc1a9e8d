"""A replay with ``store="kafka"``: nothing runs but a Kafka."""

from __future__ import annotations

import asyncio
from typing import Any

import aiokcc
from aiokcc import local
from aiokcc.stores import SessionState
from tests import kafka_topics
from tests.integration.cli.commands import run
from tests.kafka_topics import Row

MINUTE = 60_000
FIRST = 1_700_000_040_000


async def test_three_members_replay_in_step_with_nothing_but_kafka(kafka: local.Kafka) -> None:
    topic = await kafka_topics.create_fresh(kafka.bootstrap, partitions=6)
    rows = [Row(p, FIRST + m * MINUTE + p, b"%d" % m) for p in range(6) for m in range(50)]
    await kafka_topics.write(kafka.bootstrap, topic, rows)
    seen: list[tuple[int, int]] = []

    async def member(number: int) -> None:
        async def handle(record: Any) -> None:
            seen.append((record.timestamp // MINUTE, record.partition))

        async with aiokcc.replay(
            topic,
            bootstrap_servers=kafka.bootstrap,
            store="kafka",
            period="1m",
            partitions={topic: [number, number + 3]},
            member=f"m{number}",
        ) as replay:
            await replay.run(handle)

    async with asyncio.timeout(50), asyncio.TaskGroup() as tasks:
        for number in range(3):
            tasks.create_task(member(number))
    assert len(seen) == 300
    assert [minute for minute, _ in seen] == sorted(minute for minute, _ in seen)
    async with aiokcc.open_store(f"kafka://{kafka.bootstrap}/{topic}").session() as session:
        assert (await session.get("coordinator")).data == b"end"


async def test_a_managed_group_hands_over_and_its_verbs_work(kafka: local.Kafka) -> None:
    """One of two members is cancelled without a farewell to the other; that one takes its partitions over."""
    topic = await kafka_topics.create_fresh(kafka.bootstrap, partitions=4)
    rows = [Row(p, FIRST + m * MINUTE + p, b"%d" % m) for p in range(4) for m in range(60)]
    await kafka_topics.write(kafka.bootstrap, topic, rows)
    url = f"kafka://{kafka.bootstrap}/{topic}"
    seen: list[tuple[str, int, int, int]] = []
    shared, handed_over = asyncio.Event(), asyncio.Event()

    async def member(name: str) -> None:
        async def handle(record: Any) -> None:
            seen.append((name, record.timestamp // MINUTE, record.partition, record.offset))
            if len(seen) == 80:
                shared.set()
            if shared.is_set() and not handed_over.is_set():
                await handed_over.wait()

        managed: dict[str, Any] = {"assignment": "managed", "member": name, "expect": 2, "session_timeout": 2}
        async with aiokcc.replay(
            topic, bootstrap_servers=kafka.bootstrap, store="kafka", period="1m", **managed
        ) as replay:
            await replay.run(handle)

    async with asyncio.timeout(60):
        one, two = asyncio.ensure_future(member("one")), asyncio.ensure_future(member("two"))
        await shared.wait()
        listed = await run("members", url)
        assert listed.code == 0, listed.err
        assert {"one", "two"} <= set(listed.out.split())
        one.cancel()
        handed_over.set()
        await asyncio.wait([one])
        await two
    assert {name for name, *_ in seen} == {"one", "two"}
    assert {(partition, offset) for *_, partition, offset in seen} == {(p, m) for p in range(4) for m in range(60)}
    minutes = [minute for _, minute, *_ in seen]
    assert minutes == sorted(minutes)


async def test_the_command_line_replays_and_shows_the_status(kafka: local.Kafka) -> None:
    topic = await kafka_topics.create_fresh(kafka.bootstrap, partitions=2)
    await kafka_topics.write(kafka.bootstrap, topic, [Row(p, FIRST + m * MINUTE) for p in range(2) for m in range(10)])
    words = ["replay", "builtins:id", "--topic", topic, "--bootstrap-servers", kafka.bootstrap, "--period", "1m"]
    done = await run(*words, "--store", "kafka", "--processes", "2")
    assert done.code == 0, done.err
    assert "20 records" in done.err
    shown = await run("status", f"kafka://{kafka.bootstrap}/{topic}")
    assert shown.code == 0, shown.err
    assert "end" in shown.out


async def test_no_command_but_replay_makes_a_topic_for_a_mistyped_root(kafka: local.Kafka) -> None:
    root = kafka_topics.fresh_name("mistyped")
    url = f"kafka://{kafka.bootstrap}/{root}"
    async with kafka_topics.admin(kafka.bootstrap) as client:
        before = set(await client.list_topics())
        for words in (
            ("status",),
            ("status", "--watch"),
            ("members",),
            ("hold",),
            ("delete", "--yes"),
            ("describe",),
            ("offsets", "show"),
            ("pipeline", "status"),
        ):
            refused = await run(*words, "--store", url)
            assert refused.code == 1, (words, refused)
            assert f"there is no group under /{root}; a member founds one when it connects" in refused.err, words
        assert set(await client.list_topics()) == before
    listed = await run("list", "--store", url)
    assert (listed.code, listed.out) == (0, f"There is no group under /{root}.\n"), listed.err


async def test_offsets_in_kafka_can_be_shown_before_the_group_exists(kafka: local.Kafka) -> None:
    topic = await kafka_topics.create_fresh(kafka.bootstrap, partitions=1)
    url = f"kafka://{kafka.bootstrap}/{kafka_topics.fresh_name('later')}"
    words = ("offsets", "show", "--group-id", "g", "--topic", topic, "--bootstrap-servers", kafka.bootstrap)
    shown = await run(*words, "--store", url)
    assert shown.code == 0, shown.err
    assert topic in shown.out
    copied = await run("offsets", "migrate", *words[2:4], *words[6:], "--to", "store", "--store", url)
    assert (copied.code, "there is no group under" in copied.err) == (1, True), copied.err


async def test_brokers_that_create_topics_by_themselves_do_not_make_it_without_its_settings() -> None:
    async with local.kafka(settings={"auto.create.topics.enable": "true"}) as kafka:
        url = f"kafka://{kafka.bootstrap}/replay"
        assert (await run("status", url)).code == 1
        async with kafka_topics.admin(kafka.bootstrap) as client:
            assert "__aiokcc.replay" not in await client.list_topics()
        async with aiokcc.open_store(url).session(timeout=4) as session:
            await session.ensure("")
            async with kafka_topics.admin(kafka.bootstrap) as client:
                await client.delete_topics(["__aiokcc.replay"])
                async with asyncio.timeout(30):
                    assert await session.until(SessionState.LOST) is SessionState.LOST
                assert "__aiokcc.replay" not in await client.list_topics(), "asking for its leader does not make it"
        async with aiokcc.open_store(url).session() as session:
            await session.ensure("")
