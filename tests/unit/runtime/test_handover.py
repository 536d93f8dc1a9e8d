"""The cost of handing partitions over: the number of calls to the store, one after another, until they run elsewhere.

Every call takes a while of virtual time and nothing else takes any, so the clock counts the calls; those made side by side
count once. What runs here is all of a replay but Kafka itself: the records are numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from aiokcc.core.partitions import Partition
from aiokcc.core.run import Bounds
from aiokcc.kafka import reader
from aiokcc.kafka.consumer_policy import ConsumerPolicy
from aiokcc.kafka.fetch_loop import FetchLoop
from aiokcc.kafka.partition_consumer import PartitionConsumer
from aiokcc.kafka.partition_feed import PartitionFeed
from aiokcc.kafka.source_options import SourceOptions
from aiokcc.kafka.summary import Summary
from aiokcc.stores.memory import Call
from tests.unit.runtime.test_assignment_leader import idle_group, member, owners
from tests.unit.world import World
from tests.virtual import settle

TRIP = 1 / 64
PARTITIONS = 6
RECORDS = 30
"""The last of them in the period that stays open."""


class NoFetchLoop(FetchLoop):
    """Fetches nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def add(self, feeds: Mapping[Partition, PartitionFeed]) -> None:
        pass

    def remove(self, partitions: Any) -> None:
        pass

    async def run(self) -> None:
        await anyio.sleep_forever()


class NoKafka:
    """In place of aiokafka's consumer and of the cluster: starts and stops at once, and is asked nothing else."""

    def __init__(self, **_: Any) -> None:
        pass

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def ask(self, question: Awaitable[None], what: str) -> None:
        assert what == "connect to"
        await question


@pytest.fixture(autouse=True)
def no_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "AIOKafkaConsumer", NoKafka)
    monkeypatch.setattr(reader, "FetchLoop", NoFetchLoop)


class Process:
    """One process of a replay, with the product's reader. Each partition has ten records in each period, up to the one that
    stays open.
    """

    def __init__(self, world: World, name: str, *, commits: bool, periods: int) -> None:
        self._world = world
        self._source = SourceOptions(
            topics=("orders",), bootstrap_servers="", end=10**13, managed=True, commit=commits, offset_storage="store"
        )
        self._periods = periods
        self._name = name
        self.begun: dict[int, tuple[float, int]] = {}
        """The time and the offset at which each partition began to run here."""
        self.ready = asyncio.Event()
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        async def bounds() -> dict[Partition, Bounds]:
            return {World.partition(n): Bounds(0, 1000) for n in range(PARTITIONS)}

        async with self._world.connect(
            topics={"orders": PARTITIONS},
            offsets=bounds,
            assignment="managed",
            member=self._name,
            expect=3,
            session_timeout=60,
            clock=lambda: 0,  # the limit stays where the clock, and how far it may be ahead, let it be
            ahead=1000 * (self._periods - 1),
        ) as self.group:
            cluster: Any = NoKafka()
            self._reader = reader.Reader(self._source, ConsumerPolicy(), cluster, self.group, frozenset(), Summary())
            self.ready.set()
            await self._reader.read(self._work)

    async def _work(self, consumer: PartitionConsumer) -> None:
        self.begun[consumer.partition.number] = (self._world.time(), consumer.next_offset)
        while consumer.next_offset <= RECORDS:
            offset = consumer.next_offset
            ts = offset * 1000 * self._periods // RECORDS if offset < RECORDS else 10**12
            await consumer.gate.wait_until(ts, offset)
            consumer.next_offset = offset + 1
        await consumer.gate.rest(lambda: False, lambda: (None, 0))  # released: until it is taken away

    def leave(self) -> None:
        self._reader.stop()


@asynccontextmanager
async def processes(world: World, *, commits: bool = True, periods: int = 3) -> AsyncIterator[list[Process]]:
    """Three processes that have read all there is below the limit, the last part of it after the last commit."""
    everybody: list[Process] = []
    try:
        for name in "abc":
            everybody.append(Process(world, name, commits=commits, periods=periods))
            await everybody[-1].ready.wait()
        await asyncio.sleep(30)
        assert sorted(n for process in everybody for n in process.begun) == list(range(PARTITIONS))
        assert world.limit.value == 1000 * periods
        yield everybody
    finally:
        for process in everybody:
            process.leave()
        await asyncio.gather(*(process.task for process in everybody))


async def handed_over(world: World, everybody: list[Process], goes: Process, how: str) -> tuple[float, set[int]]:
    """Returns the number of calls, one after another, until this member's partitions run elsewhere, and their new owners."""
    lost = set(goes.begun)
    stay = [process for process in everybody if process is not goes]
    for process in stay:
        process.begun.clear()
    session, begun = world.session(goes.group), world.time()
    with world.server.intercept(before=lambda _: asyncio.sleep(TRIP)):
        if how == "leaves":
            goes.leave()
        else:
            world.server.freeze(session)
            world.server.expire(session)
        await asyncio.sleep(60)
    world.server.thaw(session)
    found = {number: start for process in stay for number, start in process.begun.items()}
    assert found.keys() == lost, "all of them, and nothing else has moved"
    return (max(at for at, _ in found.values()) - begun) / TRIP, {offset for _, offset in found.values()}


@pytest.mark.parametrize("periods", [1, 3], ids=["the first period", "a later period"])
@pytest.mark.parametrize(
    ("how", "leads", "commits", "calls"),
    [
        # give the locks and the registration back | the leader sees it, assigns | see that, claim, read the limit and the cut
        ("leaves", False, False, 6),
        ("leaves", True, False, 6),
        # the same after a commit; what is committed is read together with the limit
        ("leaves", False, True, 7),
        ("leaves", True, True, 7),
        ("dies", False, True, 5),
        # see that the leader is gone, take over, read in two steps | assign | see that, claim, read
        ("dies", True, True, 8),
    ],
)
async def test_partitions_run_elsewhere_after_a_few_round_trips(
    world: World, how: str, leads: bool, commits: bool, periods: int, calls: int
) -> None:
    async with processes(world, commits=commits, periods=periods) as everybody:
        goes = next(process for process in everybody if (process.group.epoch is not None) is leads)
        taken, starts = await handed_over(world, everybody, goes, how)
        assert taken <= calls + 0.1
        cut = (periods - 1) * RECORDS // periods
        assert starts == {RECORDS if commits and how == "leaves" else cut}, "what was committed, or the last cut"


async def test_after_a_release_it_is_a_few_round_trips_too(world: World) -> None:
    """There is no cut for the present limit then, and the last one has to be looked for."""
    async with processes(world) as everybody, world.store.session() as operator:
        node = world.node("period")
        assert node is not None
        await operator.set("period", b"off", node.version)
        await asyncio.sleep(30)
        assert everybody[0].group.released
        taken, _ = await handed_over(world, everybody, everybody[1], "leaves")
        assert taken <= 9.1


async def test_the_first_commit_of_a_member_reads_nothing_before(world: World) -> None:
    async with processes(world, periods=1) as everybody:
        calls: list[Call] = []
        session = everybody[1].group.membership.session
        with world.server.intercept(before=calls.append):
            everybody[1].leave()
            await settle()
        ours = [call for call in calls if call.session is session]
        assert [call.verb for call in ours][:2] == ["commit", "commit"]
        assert [path.split("/")[0] for path in ours[0].paths] == ["generation", "offsets", "offsets"]
        released = [path.split("/")[0] for path in ours[1].paths]
        assert released == ["generation", "assignments", "progress", "owners", "owners", "ids"]


# Whose locks they are


async def test_a_lock_that_is_no_longer_there_does_not_keep_us_from_leaving(world: World) -> None:
    async with contextlib.AsyncExitStack() as stack:
        await idle_group(world, stack, ["a", "b"], 6)
        async with member(world, "c", {f"orders.{n}": [10**12] for n in range(6)}, clock=lambda: 0, expect=3):
            await asyncio.sleep(60)
            gone = owners(world)["c"][0]
            async with world.store.session() as operator:
                await operator.delete(f"owners/orders/{gone}", -1)
        await asyncio.sleep(60)
        assert sorted(n for numbers in owners(world).values() for n in numbers) == list(range(6))
        assert owners(world).keys() == {"a", "b"}


async def test_a_member_that_leaves_on_an_old_assignment_does_not_delete_the_lock_of_the_new_owner(
    world: World,
) -> None:
    """Somebody has deleted its lock and given the partition to another by hand, and it has not heard of that."""
    logs = {f"orders.{n}": [10**12] for n in range(6)}
    async with contextlib.AsyncExitStack() as stack:
        await idle_group(world, stack, ["a", "b"], 6)
        async with member(world, "c", logs, clock=lambda: 0, expect=3) as c:
            await asyncio.sleep(60)
            before = owners(world)
            moved = before["c"][0]
            deaf = world.session(c)
            stack.enter_context(
                world.server.hold_request(lambda call: call.session is deaf and call.paths == ("assignments/orders",))
            )
            given = {**before, "b": [*before["b"], moved], "c": before["c"][1:]}
            content = "".join(f"{who}:{','.join(map(str, sorted(ns)))};" for who, ns in sorted(given.items()))
            async with world.store.session() as operator:
                await operator.delete(f"owners/orders/{moved}", -1)
                node = world.node("assignments/orders")
                assert node is not None
                await operator.set("assignments/orders", content.encode(), node.version)
            await settle()
            assert (world.owner(moved) or "").startswith("b-")
            deleted: list[Call] = []

            def note(call: Call) -> None:
                if call.session is deaf and f"owners/orders/{moved}" in call.paths and call.verb == "commit":
                    deleted.append(call)

            stack.enter_context(world.server.intercept(after=note))
        assert (world.owner(moved) or "").startswith("b-")
        assert len(deleted) == 1, "tried once, and refused with the assignment that it rests on"
