"""Offsets in Kafka and in the store: where a run resumes, where a new one starts, what a former owner may still do."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

import aiokcc
from aiokcc import local
from aiokcc.core import paths
from aiokcc.core.committed_offset import CommittedOffset
from aiokcc.core.partitions import Partition
from aiokcc.kafka.offset_committer import KafkaOffsets
from aiokcc.kafka.partition_tasks import PartitionTasks
from aiokcc.runtime.store_offsets import StoreOffsets, list_offsets, write_offsets
from tests import kafka_topics
from tests.replays import all_places, at, cuts, partition, places, replaying, topic

both = pytest.mark.parametrize("storage", ["kafka", "store"])


def kept(storage: str, name: str, **more: Any) -> dict[str, Any]:
    """Settings of a replay that keeps its offsets there."""
    settings: dict[str, Any] = {"offset_storage": storage, "assignment": "fixed", **more}
    return settings if storage == "store" else {**settings, "group_id": f"group-{name}"}


async def stored(kafka: local.Kafka, root: str, storage: str, name: str) -> dict[int, CommittedOffset]:
    """Returns the committed offsets, by partition."""
    if storage == "store":
        store = aiokcc.open_store(root)
        async with store.session() as session:
            return {p.number: commit for p, commit in (await list_offsets(store, session)).items()}
    async with kafka_topics.admin(kafka.bootstrap) as client:
        found = await client.list_consumer_group_offsets(f"group-{name}")
    return {tp.partition: CommittedOffset.from_kafka(*commit) for tp, commit in found.items()}


async def store_by_hand(
    kafka: local.Kafka, root: str, storage: str, name: str, commits: dict[int, CommittedOffset]
) -> None:
    """Write offsets as whoever wants to may."""
    if storage == "store":
        store = aiokcc.open_store(root)
        async with store.session() as session:
            await write_offsets(store, session, {Partition(name, n): commit for n, commit in commits.items()})
        return
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id=f"group-{name}", enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign([TopicPartition(name, n) for n in commits])
        await consumer.commit(
            {TopicPartition(name, n): (commit.offset, commit.metadata) for n, commit in commits.items()}
        )
    finally:
        await consumer.stop()


class Worker:
    """A process of a replay, and what it has handled."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.handled: list[tuple[int, int]] = []

    async def waiting(self) -> None:
        """Return when it waits before the record it was told."""
        assert self.process.stdout is not None
        while line := (await self.process.stdout.readline()).decode().split():
            if line == ["waiting"]:
                return
            self.handled.append((int(line[1]), int(line[2])))
        assert self.process.stderr is not None
        raise AssertionError((await self.process.stderr.read()).decode())

    async def ended(self) -> str:
        """Let it go on to its end, and return what it has written to stderr."""
        out, err = await self.process.communicate(b"\n")
        self.handled += [(int(p), int(o)) for _, p, o in map(str.split, out.decode().splitlines())]
        return err.decode()


@asynccontextmanager
async def working(kafka: local.Kafka, name: str, root: str, **spec: Any) -> AsyncIterator[Worker]:
    settings = {
        "bootstrap_servers": kafka.bootstrap,
        "store": root,
        "period": "1m",
        "end": "now",
        "topic": name,
        **spec,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.offset_worker",
        json.dumps(settings),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Worker(process)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def unowned(root: str, name: str, number: int) -> None:
    """Wait until nobody holds the partition."""
    async with aiokcc.open_store(root).session() as session:
        with session.watch() as watch:
            watch.add(paths.owner(partition(name, number)))
            async for change in watch:
                if change.now is None:
                    return


@both
async def test_at_the_end_they_stand_where_the_logs_do_with_run_generation_and_member(
    kafka: local.Kafka, zk_root: str, storage: str
) -> None:
    name = await topic(kafka, [at(m) for m in range(4)], [at(0), at(0), at(3)], [])
    async with replaying(kafka, name, store=zk_root, member="worker", **kept(storage, name)) as replay:
        await replay.run(lambda _: None)
        founded = replay._member.founded
    found = await stored(kafka, zk_root, storage, name)
    assert {n: commit.offset for n, commit in found.items()} == {0: 4, 1: 3, 2: 0}
    assert {commit.run for commit in found.values()} == {founded}
    assert all(commit.generation and commit.at and (commit.by or "").startswith("worker-") for commit in found.values())


@both
async def test_they_are_committed_as_periods_close_and_not_past_the_cut(
    kafka: local.Kafka, zk_root: str, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await topic(kafka, [at(m / 3) for m in range(12)])
    committed: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
    kind: Any = KafkaOffsets if storage == "kafka" else StoreOffsets
    commit = kind.commit

    async def commit_and_tell(self: Any, us: Any, offsets: dict[Partition, int]) -> None:
        await commit(self, us, offsets)
        committed[offsets[partition(name, 0)]].set()

    async def handle(record: Any) -> None:
        if record.offset == 10:  # the third period has closed, and this record is the second of the fourth
            await committed[9].wait()
            assert (await stored(kafka, zk_root, storage, name))[0].offset == 9

    monkeypatch.setattr(kind, "commit", commit_and_tell)
    async with replaying(kafka, name, store=zk_root, **kept(storage, name)) as replay:
        await replay.run(handle)
    assert {offset for offset, event in committed.items() if event.is_set()} <= {0, 3, 6, 9, 12}


@both
async def test_killed_in_the_middle_of_a_period_nothing_is_lost_and_only_the_open_period_comes_again(
    kafka: local.Kafka, zk_root: str, storage: str
) -> None:
    name = await topic(kafka, [at(m / 3) for m in range(12)], [at(m / 3) for m in range(12)])
    settings = kept(storage, name, session_timeout=2)
    async with working(kafka, name, zk_root, stop_at=(0, 7), **settings) as worker:
        await worker.waiting()
        worker.process.kill()
        await worker.ended()
    seen: list[Any] = []
    async with replaying(kafka, name, store=zk_root, **settings) as replay:
        await replay.run(seen.append)
    again = {(r.partition, r.offset) for r in seen}
    assert {*worker.handled, *again} == {(p, offset) for _, p, offset in all_places(name, 12, 12)}
    assert min(offset for _, offset in again) >= 6, "the first two periods had closed"
    assert {n: commit.offset for n, commit in (await stored(kafka, zk_root, storage, name)).items()} == {0: 12, 1: 12}


@both
async def test_the_commit_of_a_stopped_process_is_refused_once_another_has_gone_on(
    kafka: local.Kafka, zk_root: str, storage: str
) -> None:
    """It is stopped in a handler for longer than its session lasts. Another replays the rest; then it goes on."""
    name = await topic(kafka, [at(m) for m in range(10)])
    settings = kept(storage, name, session_timeout=2)
    async with working(kafka, name, zk_root, stop_at=(0, 5), **settings) as zombie:
        await zombie.waiting()
        zombie.process.send_signal(signal.SIGSTOP)
        await unowned(zk_root, name, 0)
        seen: list[Any] = []
        async with replaying(kafka, name, store=zk_root, member="successor", **settings) as replay:
            await replay.run(seen.append)
        assert [r.offset for r in seen] == [5, 6, 7, 8, 9]
        before = await stored(kafka, zk_root, storage, name)
        zombie.process.send_signal(signal.SIGCONT)
        await zombie.ended()
    after = await stored(kafka, zk_root, storage, name)
    assert before[0].offset == after[0].offset == 10
    assert (before[0].by or "").startswith("successor-")


@both
async def test_a_commit_that_comes_too_late_counts_for_nothing(kafka: local.Kafka, zk_root: str, storage: str) -> None:
    """Kafka cannot refuse it from a process stopped right before it was sent. The last cut is the floor, in both."""
    name = await topic(kafka, [at(m) for m in range(10)])
    settings = kept(storage, name, session_timeout=2)
    async with working(kafka, name, zk_root, stop_at=(0, 5), **settings) as worker:
        await worker.waiting()
        worker.process.kill()
        await worker.ended()
    async with aiokcc.open_store(zk_root).session() as session:
        founded = (await session.get(paths.RUN)).created
    stale = CommittedOffset(1, founded, 1, 1, "worker")
    await store_by_hand(kafka, zk_root, storage, name, {0: stale})
    cut = max((await cuts(zk_root)).items())[1].find(partition(name, 0))
    assert cut is not None
    assert cut.offset == 5
    seen: list[Any] = []
    async with replaying(kafka, name, store=zk_root, **settings) as replay:
        await replay.run(seen.append)
    assert [r.offset for r in seen] == [5, 6, 7, 8, 9]


@both
async def test_offsets_of_others_never_hide_a_record_from_a_run(kafka: local.Kafka, zk_root: str, storage: str) -> None:
    name = await topic(kafka, [at(m) for m in range(5)])
    await store_by_hand(kafka, zk_root, storage, name, {0: CommittedOffset(4, run=1, generation=99, by="another")})
    seen: list[Any] = []
    async with replaying(kafka, name, store=zk_root, **kept(storage, name)) as replay:
        await replay.run(seen.append)
    assert [r.offset for r in seen] == [0, 1, 2, 3, 4]


@both
async def test_a_new_run_starts_at_what_is_stored_and_at_the_earliest_where_nothing_is(
    kafka: local.Kafka, zk_root: str, storage: str
) -> None:
    name = await topic(kafka, [at(m) for m in range(5)], [at(m) for m in range(3)], [at(m) for m in range(2)])
    await store_by_hand(kafka, zk_root, storage, name, {0: CommittedOffset(3), 2: CommittedOffset(2, by="operator")})
    seen: list[Any] = []
    async with replaying(kafka, name, store=zk_root, start="committed", **kept(storage, name)) as replay:
        await replay.run(seen.append)
    assert sorted(places(seen)) == [(name, 0, 3), (name, 0, 4), (name, 1, 0), (name, 1, 1), (name, 1, 2)]


@both
async def test_a_stored_offset_whose_record_is_deleted_means_the_earliest_there_is(
    kafka: local.Kafka, zk_root: str, storage: str
) -> None:
    from aiokafka.admin import RecordsToDelete

    name = await topic(kafka, [at(m) for m in range(5)])
    await store_by_hand(kafka, zk_root, storage, name, {0: CommittedOffset(1)})
    async with kafka_topics.admin(kafka.bootstrap) as client:
        await client.delete_records({TopicPartition(name, 0): RecordsToDelete(before_offset=3)})
    seen: list[Any] = []
    async with replaying(kafka, name, store=zk_root, start="committed", **kept(storage, name)) as replay:
        await replay.run(seen.append)
    assert [r.offset for r in seen] == [3, 4]


async def test_offsets_that_another_program_keeps_in_zookeeper_are_understood(kafka: local.Kafka, zk_root: str) -> None:
    """A node with nothing but a number, as consumers of old have left it."""
    name = await topic(kafka, [at(m) for m in range(5)])
    async with aiokcc.open_store(zk_root).session() as session:
        await session.ensure(f"offsets/{name}")
        await session.create(f"offsets/{name}/0", b"3")
    seen: list[Any] = []
    async with replaying(kafka, name, store=zk_root, start="committed", **kept("store", name)) as replay:
        await replay.run(seen.append)
    assert [r.offset for r in seen] == [3, 4]


async def test_a_node_that_cannot_be_read_stops_who_would_start_there(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(m) for m in range(5)])
    async with aiokcc.open_store(zk_root).session() as session:
        await session.ensure(f"offsets/{name}")
        await session.create(f"offsets/{name}/0", b"minus three")
    with pytest.raises(aiokcc.CorruptNodeError, match=f"offsets/{name}/0 holds 'minus three'; expected an offset"):
        async with replaying(kafka, name, store=zk_root, start="committed", **kept("store", name)):
            pass


@both
@pytest.mark.parametrize("assignment", ["group", "managed"])
async def test_a_partition_that_moves_in_the_middle_of_a_period_is_committed_before_it_is_released(
    kafka: local.Kafka, zk_root: str, storage: str, assignment: str
) -> None:
    """All records are of one period, so no cut helps: the next owner goes on where the last one stopped, record by record."""
    name = await topic(kafka, *([at(0, n) for n in range(1500)] for _ in range(4)))
    seen: list[Any] = []
    helped: list[Any] = []
    begun = asyncio.Event()

    async def handle(record: Any) -> None:
        seen.append(record)
        if len(seen) == 40:
            begun.set()
        if not helped:
            await asyncio.sleep(0.002)  # the work takes its time, until there is help

    async def help_out(record: Any) -> None:
        helped.append(record)
        seen.append(record)

    async def member(member: str, handler: Any) -> None:
        settings = {"offset_storage": storage, "assignment": assignment, "heartbeat_interval_ms": 300}
        if assignment == "group" or storage == "kafka":
            settings["group_id"] = f"group-{name}"
        async with replaying(kafka, name, store=zk_root, member=member, session_timeout=5, **settings) as replay:
            await replay.run(handler)

    one = asyncio.ensure_future(member("one", handle))
    await begun.wait()
    await asyncio.gather(one, member("two", help_out))
    assert helped
    assert sorted(places(seen)) == all_places(name, 1500, 1500, 1500, 1500), "nothing lost, nothing twice"


async def test_under_lookahead_what_is_handed_over_is_not_committed_past_a_boundary_that_is_open(
    kafka: local.Kafka, zk_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next owner would start behind the crossing, and the cut would hold records of later periods."""
    name = await topic(kafka, [at(m / 2) for m in range(12)], [at(0), at(5)])
    ahead, revoked = asyncio.Event(), asyncio.Event()
    stop = PartitionTasks.stop

    async def stop_and_tell(self: PartitionTasks, partitions: Iterable[Partition]) -> None:
        revoked.set()
        await stop(self, partitions)

    async def handle(record: Any) -> None:
        if (record.partition, record.offset) == (1, 0):
            await ahead.wait()
            joining.append(asyncio.ensure_future(member("two", lambda _: None)))
            await revoked.wait()  # with partition 0 two periods ahead, and both on their way to somebody else
        elif record.offset == 5:
            ahead.set()

    async def member(member: str, handler: Any) -> None:
        settings = {"group_id": f"group-{name}", "lookahead": 2, "heartbeat_interval_ms": 300}
        async with replaying(kafka, name, store=zk_root, member=member, session_timeout=5, **settings) as replay:
            await replay.run(handler)

    joining: list[asyncio.Future[None]] = []
    monkeypatch.setattr(PartitionTasks, "stop", stop_and_tell)
    await member("one", handle)
    await asyncio.gather(*joining)
    marks = {cut.limit: cut.find(partition(name, 0)) for cut in (await cuts(zk_root)).values()}
    for minute in range(1, 6):
        mark = marks[at(minute)]
        assert mark is not None
        assert mark.offset == 2 * minute


async def test_members_of_one_run_keep_their_offsets_in_the_same_place(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(0), at(1)])
    async with replaying(kafka, name, store=zk_root, **kept("store", name)):
        with pytest.raises(aiokcc.GroupMismatchError, match="offsets=zookeeper"):
            async with replaying(kafka, name, store=zk_root, **kept("kafka", name)):
                pass


async def test_in_zookeeper_without_commit_nothing_is_stored(kafka: local.Kafka, zk_root: str) -> None:
    name = await topic(kafka, [at(0), at(1)])
    async with replaying(kafka, name, store=zk_root, commit=False, **kept("store", name)) as replay:
        await replay.run(lambda _: None)
    assert await stored(kafka, zk_root, "store", name) == {}


@both
async def test_after_a_lost_session_it_commits_again_in_the_next(kafka: local.Kafka, storage: str) -> None:
    from aiokcc.stores.memory import MemoryStore

    name = await topic(kafka, [at(m) for m in range(6)])
    store = MemoryStore(f"offsets-{name}")

    async def handle(record: Any) -> None:
        if record.offset == 3:
            session = replay._member.session
            store.server.expire(session)  # type: ignore[arg-type]
            while replay._member.session is session or replay._member.member_session is None:
                await replay._member.moved.wait()

    async with replaying(kafka, name, store=store, **kept(storage, name)) as replay:
        await replay.run(handle)
        if storage == "store":
            async with store.session() as session:
                found = (await list_offsets(store, session))[partition(name, 0)]
    if storage == "kafka":
        found = (await stored(kafka, "", storage, name))[0]
    assert found.offset == 6
