"""The partitions that a process reads, on the memory store and virtual time: claims, revocation, drain, commits, release."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

import aiokcc
from aiokcc.core.partitions import Partition
from aiokcc.core.run import Bounds
from aiokcc.exception_groups import unwrapped
from aiokcc.kafka.consumer_policy import ConsumerPolicy
from aiokcc.kafka.fetch_loop import FetchLoop
from aiokcc.kafka.offset_committer import Committer
from aiokcc.kafka.partition_consumer import PartitionConsumer
from aiokcc.kafka.partition_feed import PartitionFeed
from aiokcc.kafka.partition_tasks import PartitionTasks, commit_after_release, run_fixed
from aiokcc.kafka.source_options import SourceOptions
from aiokcc.kafka.summary import Summary
from tests.unit.world import PERIOD, World
from tests.virtual import settle

ZERO, ONE = World.partition(0), World.partition(1)


class FakeFetchLoop(FetchLoop):
    """Notes what it is to fetch, and fetches nothing."""

    def __init__(self, events: list[str]) -> None:
        self._events = events
        self.feeds: dict[Partition, PartitionFeed] = {}

    def add(self, feeds: Mapping[Partition, PartitionFeed]) -> None:
        self.feeds.update(feeds)

    def remove(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            del self.feeds[partition]

    async def find_coordinator(self) -> None:
        self._events.append("coordinator")


class FakeStorage:
    """Keeps what is committed."""

    def __init__(self, events: list[str]) -> None:
        self._events = events
        self.offsets: dict[Partition, int] = {}
        self.commits: list[dict[Partition, int]] = []

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {p: self.offsets[p] for p in partitions if p in self.offsets}

    async def commit(self, us: Any, offsets: Mapping[Partition, int]) -> None:
        self._events += [f"commit {p} at {offset}" for p, offset in sorted(offsets.items())]
        self.commits.append(dict(offsets))


class Process:
    """One process of a group of two partitions. The work on a partition passes the timestamps that a test gives it.

    The handler of a record takes ``takes`` seconds. What happens is noted in ``events``.
    """

    def __init__(self, world: World, group: aiokcc.Group, tasks: Any, **settings: Any) -> None:
        self.world = world
        self.group = group
        self.events: list[str] = []
        self.timestamps: dict[Partition, list[int]] = {ZERO: [], ONE: []}
        self.takes = 0.0
        self.finishes = False
        self.fetch_loop = FakeFetchLoop(self.events)
        self.storage = FakeStorage(self.events)
        self.committer = Committer(self.storage, group.membership, Summary(), enabled=True)
        source = SourceOptions(topics=("orders",), bootstrap_servers="", **settings)
        self.partition_tasks = PartitionTasks(
            source, ConsumerPolicy(), group, self.fetch_loop, self.committer, Summary(), self._work, tasks
        )
        tasks.start_soon(self.committer.run)

    async def _work(self, consumer: PartitionConsumer) -> None:
        self.events.append(f"begin {consumer.partition} at {consumer.next_offset}")
        for ts in self.timestamps[consumer.partition]:
            await consumer.gate.wait_until(ts, consumer.next_offset)
            self.events.append(f"start {consumer.partition} {ts}")
            if self.takes:
                await asyncio.sleep(self.takes)
            self.events.append(f"end {consumer.partition} {ts}")
            consumer.next_offset += 1
        if self.finishes:
            consumer.gate.finish(consumer.next_offset)
        else:
            await consumer.gate.rest(lambda: False, lambda: (None, 0))

    def owners(self) -> list[str | None]:
        return [self.world.owner(number) for number in (0, 1)]

    def note_releases(self) -> None:
        """Note from now on when a lock goes."""
        before = set(self.world.below("owners/orders"))

        def noted(call: Any) -> None:
            nonlocal before
            now = set(self.world.below("owners/orders"))
            self.events.extend(f"release orders.{number}" for number in sorted(before - now))
            before = now

        self.world.server.intercept(after=noted)


async def bounds() -> dict[Partition, Bounds]:
    return {ZERO: Bounds(0, 100), ONE: Bounds(0, 100)}


@asynccontextmanager
async def process(world: World, *, connect: Mapping[str, Any] | None = None, **settings: Any) -> AsyncIterator[Process]:
    """Open a process. At the end of the block its tasks are cancelled and its gates are closed, as a replay does it."""
    async with world.connect(offsets=bounds, **(connect or {})) as group, reading(world, group, **settings) as opened:
        yield opened


@asynccontextmanager
async def reading(world: World, group: aiokcc.Group, **settings: Any) -> AsyncIterator[Process]:
    """As :func:`process`, in a group that is left later: so a test can look at the locks after the end of this block."""
    opened: Process | None = None
    try:
        async with unwrapped() as tasks:
            opened = Process(world, group, tasks, **settings)
            yield opened
            tasks.cancel_scope.cancel()
    finally:
        if opened is not None:
            await opened.partition_tasks.close()
            await settle()


class TestStart:
    async def test_partitions_begin_when_all_locks_are_ours(self, world: World) -> None:
        async with world.connect(offsets=bounds, member="other") as other, process(world) as ours:
            async with other.gate("orders", 1):
                starting = asyncio.ensure_future(ours.partition_tasks.start([ZERO, ONE]))
                await asyncio.sleep(5)
                assert (ours.events, ours.fetch_loop.feeds) == ([], {})
            await starting
            await settle()
            assert ours.events == ["begin orders.0 at 0", "begin orders.1 at 0"]
            assert ours.fetch_loop.feeds.keys() == {ZERO, ONE}
            assert ours.partition_tasks.partitions == {ZERO, ONE}

    async def test_a_start_that_is_cancelled_releases_what_it_has_claimed(self, world: World) -> None:
        async with (
            world.connect(offsets=bounds, member="other") as other,
            process(world) as ours,
            other.gate("orders", 1),
        ):
            starting = asyncio.ensure_future(ours.partition_tasks.start([ZERO, ONE]))
            await asyncio.sleep(5)
            assert ours.owners()[0] is not None
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            await settle()
            assert ours.owners()[0] is None
            assert ours.partition_tasks.partitions == frozenset()

    async def test_each_partition_begins_when_its_own_lock_is_ours(self, world: World) -> None:
        async with world.connect(offsets=bounds, member="other") as other, process(world) as ours:
            async with other.gate("orders", 1):
                starting = asyncio.ensure_future(ours.partition_tasks.start_each([ZERO, ONE]))
                await asyncio.sleep(5)
                assert ours.events == ["begin orders.0 at 0"]
                assert not starting.done()
            await starting
            await settle()
            assert ours.events == ["begin orders.0 at 0", "begin orders.1 at 0"]

    async def test_partitions_that_are_being_read_stay_when_the_rest_is_cancelled(self, world: World) -> None:
        async with (
            world.connect(offsets=bounds, member="other") as other,
            process(world) as ours,
            other.gate("orders", 1),
        ):
            starting = asyncio.ensure_future(ours.partition_tasks.start_each([ZERO, ONE]))
            await asyncio.sleep(5)
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            await asyncio.sleep(5)
            assert ours.partition_tasks.partitions == {ZERO}
            assert ours.owners()[0] is not None

    @pytest.mark.parametrize("start", ["start", "start_each"])
    async def test_a_lock_that_is_ours_is_released_if_the_partition_did_not_begin(
        self, world: World, start: str
    ) -> None:
        async def no_answer(partitions: Iterable[Partition]) -> dict[Partition, int]:
            await asyncio.sleep(1000)
            return {}

        async with process(world) as ours:
            ours.storage.committed = no_answer
            starting = asyncio.ensure_future(getattr(ours.partition_tasks, start)([ZERO]))
            await asyncio.sleep(5)
            assert ours.owners()[0] is not None
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            await settle()
            assert ours.owners()[0] is None

    async def test_a_partition_begins_at_what_was_committed(self, world: World) -> None:
        async with process(world) as ours:
            ours.storage.offsets = {ONE: 7}
            await ours.partition_tasks.start([ZERO, ONE])
            await settle()
            assert ours.events == ["begin orders.0 at 0", "begin orders.1 at 7"]
            assert [ours.fetch_loop.feeds[p].position for p in (ZERO, ONE)] == [0, 7]

    @pytest.mark.parametrize(
        ("settings", "looked_up"), [({}, 0), ({"group_id": "g"}, 1), ({"group_id": "g", "by_group": True}, 0)]
    )
    async def test_with_a_group_id_of_our_own_the_coordinator_is_known_before_a_partition_begins(
        self, world: World, settings: dict[str, Any], looked_up: int
    ) -> None:
        async with process(world, **settings) as ours:
            await ours.partition_tasks.start([ZERO])
            await settle()
            assert ours.events == ["coordinator"] * looked_up + ["begin orders.0 at 0"]


class TestStop:
    async def test_the_handler_ends_then_the_offset_is_committed_then_the_lock_is_released(self, world: World) -> None:
        async with process(world) as ours:
            ours.timestamps[ZERO], ours.takes = [1, 2, 3], 10
            await ours.partition_tasks.start([ZERO, ONE])
            await asyncio.sleep(15)
            ours.events.clear()
            ours.note_releases()
            stopping = asyncio.ensure_future(ours.partition_tasks.stop([ZERO]))
            await settle()
            assert ours.fetch_loop.feeds.keys() == {ONE}
            assert (ours.events, ours.owners()[0] is None) == ([], False)
            await stopping
            assert ours.events == ["end orders.0 2", "commit orders.0 at 2", "release orders.0"]
            assert ours.partition_tasks.partitions == {ONE}
            assert ours.owners()[1] is not None

    async def test_revoke_starts_no_further_record_and_leaves_the_rest_to_stop(self, world: World) -> None:
        async with process(world) as ours:
            ours.timestamps[ZERO], ours.takes = [1, 2, 3], 10
            await ours.partition_tasks.start([ZERO, ONE])
            await asyncio.sleep(5)
            ours.partition_tasks.revoke()
            await asyncio.sleep(60)
            assert ours.events[-1] == "end orders.0 1"
            assert ours.partition_tasks.done
            assert ours.owners()[0] is not None
            await ours.partition_tasks.stop([ZERO, ONE])
            assert ours.owners() == [None, None]

    async def test_a_gathered_period_that_is_not_processed_is_not_committed(self, world: World) -> None:
        async with process(world) as ours:
            ours.timestamps[ZERO] = [1]
            await ours.partition_tasks.start([ZERO])
            await settle()
            ours.group.membership.progress.withheld_from = 0
            await ours.partition_tasks.stop([ZERO])
            assert ours.storage.commits == []
            assert ours.owners()[0] is None

    async def test_a_stop_that_is_cancelled_leaves_the_partitions_to_close(self, world: World) -> None:
        async with process(world) as ours:
            ours.timestamps[ZERO], ours.takes = [1], 10
            await ours.partition_tasks.start([ZERO])
            await settle()
            stopping = asyncio.ensure_future(ours.partition_tasks.stop([ZERO]))
            await asyncio.sleep(1)
            stopping.cancel()
            with suppress(asyncio.CancelledError):
                await stopping
            assert ours.partition_tasks.partitions == {ZERO}
            assert ours.owners()[0] is not None
        assert world.owner(0) is None

    async def test_partitions_that_are_not_being_read_are_passed_over(self, world: World) -> None:
        async with process(world) as ours:
            await ours.partition_tasks.start([ZERO])
            await ours.partition_tasks.stop([ONE])
            assert ours.partition_tasks.partitions == {ZERO}
            assert ours.storage.commits == []

    async def test_an_error_of_the_work_ends_the_task_group(self, world: World) -> None:
        class OwnError(Exception):
            """Raised by the work on a partition."""

        async def broken(consumer: PartitionConsumer) -> None:
            raise OwnError

        with pytest.raises(OwnError):
            async with process(world) as ours:
                ours.partition_tasks._work = broken
                await ours.partition_tasks.start([ZERO])
                await asyncio.sleep(1)
                raise AssertionError("the error of the task has cancelled this block")


class TestPositions:
    """The offset at which another member may resume."""

    async def test_it_follows_the_last_record_that_was_handled(self, world: World) -> None:
        async with process(world) as ours:
            ours.timestamps[ZERO] = [1, 2, PERIOD]
            await ours.partition_tasks.start([ZERO, ONE])
            await settle()
            assert ours.partition_tasks.positions() == {ZERO: 2, ONE: 0}

    async def test_under_lookahead_it_does_not_pass_an_open_boundary(self, world: World) -> None:
        """The crossing is the cut to come. A member that starts behind it could not report it."""
        async with process(world, connect={"lookahead": 2}) as ours:
            ours.timestamps[ZERO] = [1, PERIOD + 1, PERIOD + 2, 9 * PERIOD]
            ours.timestamps[ONE] = [1, 2, 3]
            await ours.partition_tasks.start([ZERO, ONE])
            await asyncio.sleep(5)
            assert [event for event in ours.events if event.startswith("end orders.0")] == [
                "end orders.0 1",
                "end orders.0 1001",
                "end orders.0 1002",
            ]
            assert ours.partition_tasks.positions() == {ZERO: 1, ONE: 3}

    async def test_it_does_not_lie_before_the_last_cut(self, world: World) -> None:
        async with process(world) as ours:
            await ours.partition_tasks.start([ZERO])
            await settle()
            ours.partition_tasks._running[ZERO].gate.resume_offset = 9
            assert ours.partition_tasks.positions() == {ZERO: 9}


class TestDone:
    async def test_it_waits_until_there_are_partitions_and_all_have_ended(self, world: World) -> None:
        async with process(world) as ours:
            ours.finishes = True
            ours.timestamps[ONE] = [PERIOD]
            waiting = asyncio.ensure_future(ours.partition_tasks.wait_done(at_least=2))
            await ours.partition_tasks.start([ZERO])
            await asyncio.sleep(5)
            assert ours.partition_tasks.done
            assert not waiting.done()
            await ours.partition_tasks.start([ONE])
            await waiting
            assert ours.events[-1] == "end orders.1 1000"

    async def test_fixed_partitions_run_until_a_cut_holds_their_ends(self, world: World) -> None:
        async with process(world) as ours:
            ours.finishes = True
            await run_fixed(ours.partition_tasks, [ZERO, ONE], ours.group)
            assert world.cuts()[-1].number


class TestClose:
    async def test_finished_partitions_keep_their_reports(self, world: World) -> None:
        async with world.connect(offsets=bounds) as group:
            async with reading(world, group) as ours:
                ours.finishes = True
                await ours.partition_tasks.start([ZERO, ONE])
                await ours.partition_tasks.wait_done()
            assert None not in ours.owners()

    async def test_if_one_has_not_finished_all_are_released(self, world: World) -> None:
        """Without the others no cut would hold the finished one, and its next owner says again that it has finished."""
        async with world.connect(offsets=bounds) as group:
            async with reading(world, group) as ours:
                ours.finishes = True
                ours.timestamps[ONE], ours.takes = [1], 1000
                await ours.partition_tasks.start([ZERO, ONE])
                await asyncio.sleep(1)
            assert ours.owners() == [None, None]
            assert ours.partition_tasks.partitions == frozenset()

    async def test_locks_are_released_also_while_we_are_being_cancelled(self, world: World) -> None:
        async with world.connect(offsets=bounds) as group:
            with anyio.CancelScope() as scope:
                async with reading(world, group) as ours:
                    ours.finishes = True
                    ours.timestamps[ONE], ours.takes = [1], 1000
                    await ours.partition_tasks.start([ZERO, ONE])
                    await settle()
                    scope.cancel()
                    await asyncio.sleep(1)
            await settle()
            assert ours.owners() == [None, None]

    @pytest.mark.parametrize(("managed", "committed"), [(True, [{ZERO: 2}]), (False, [])])
    async def test_only_a_managed_group_commits_here(self, world: World, managed: bool, committed: object) -> None:
        """There the next owner begins at once, wherever this one ends."""
        async with world.connect(offsets=bounds) as group:
            async with reading(world, group, managed=managed) as ours:
                ours.timestamps[ZERO] = [1, 2]
                await ours.partition_tasks.start([ZERO])
                await settle()
            assert ours.storage.commits == committed

    async def test_a_gathered_period_that_is_not_processed_is_not_committed(self, world: World) -> None:
        async with world.connect(offsets=bounds) as group:
            async with reading(world, group, managed=True) as ours:
                ours.timestamps[ZERO] = [1, 2]
                await ours.partition_tasks.start([ZERO])
                await settle()
                group.membership.progress.withheld_from = 0
            assert ours.storage.commits == []

    async def test_a_store_that_does_not_answer_delays_the_end_for_two_seconds(self, world: World) -> None:
        closed: list[float] = []
        async with world.connect(offsets=bounds) as group:
            with world.server.intercept(before=lambda call: asyncio.sleep(60 * call.writes * bool(closed))):
                async with reading(world, group) as ours:
                    await ours.partition_tasks.start([ZERO])
                    await settle()
                    closed.append(world.time())
                    ours.partition_tasks.at_close = lambda: closed.append(world.time())
        assert closed == [closed[0], pytest.approx(closed[0] + 2, abs=0.01)]

    async def test_leaving_stops_every_partition(self, world: World) -> None:
        async with process(world) as ours:
            ours.timestamps[ZERO] = [1]
            await ours.partition_tasks.start([ZERO, ONE])
            await settle()
            await ours.partition_tasks.leave()
            assert ours.storage.commits == [{ZERO: 1, ONE: 0}]
            assert ours.owners() == [None, None]
            assert ours.partition_tasks.partitions == frozenset()


class TestCommitAfterRelease:
    async def test_it_commits_each_second_what_has_changed(self, world: World) -> None:
        async with process(world) as ours:
            ours.timestamps[ZERO], ours.takes = [1, 2, 3], 5
            released = asyncio.Event()
            member = ours.group.membership
            await ours.partition_tasks.start([ZERO])
            committing = asyncio.ensure_future(
                commit_after_release(ours.partition_tasks, ours.committer, member, released)
            )
            await asyncio.sleep(7)
            assert ours.storage.commits == [], "until the release each period that closes is committed"
            released.set()
            await asyncio.sleep(2)
            assert ours.storage.commits == [{ZERO: 1}]
            member.progress.withheld_from = 0
            await asyncio.sleep(4)
            assert ours.storage.commits == [{ZERO: 1}], "a period that was gathered is not processed yet"
            member.progress.withheld_from = None
            await asyncio.sleep(5)
            assert ours.storage.commits == [{ZERO: 1}, {ZERO: 2}, {ZERO: 3}]
            committing.cancel()
            with suppress(asyncio.CancelledError):
                await committing
