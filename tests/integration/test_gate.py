"""The gate on a real ZooKeeper: what goes wrong around it, and what its users are told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

import aiokcc
from aiokcc.core import paths
from aiokcc.core.partitions import Partition
from aiokcc.stores import ANY_VERSION, Node, Session, SessionState, open_store
from tests.faults import Proxy

PERIOD = 1000


def join(url: str, *, partitions: int = 1, **settings: Any) -> AbstractAsyncContextManager[aiokcc.Group]:
    return aiokcc.connect(url, **{"topics": {"orders": partitions}, "period": PERIOD, "start": 0, **settings})


@asynccontextmanager
async def looking(url: str, **options: object) -> AsyncIterator[Session]:
    """A session beside the group's, for an operator who edits nodes by hand."""
    async with open_store(url, **options).session() as session:
        yield session


async def cross(gate: aiokcc.Gate, *periods: int) -> None:
    """One record in each of these periods."""
    for period in periods:
        await gate.wait_until(period * PERIOD + 1, period)


# -- one process, many partitions -------------------------------------------------------------------------------------


async def test_hundreds_of_partitions_in_one_process(zk_root: str) -> None:
    done: list[int] = []

    async def consume(group: aiokcc.Group, number: int) -> None:
        async with group.gate("orders", number) as gate:
            for period in range(5):
                await gate.wait_until(period * PERIOD + number, period)
                done.append(period)
            gate.finish(5)

    async with join(zk_root, partitions=300) as group, asyncio.TaskGroup() as tasks:
        for number in range(300):
            tasks.create_task(consume(group, number))
    assert done == sorted(done), "a record was processed before an earlier period was complete"
    assert len(done) == 1500
    assert group.ended


async def test_an_error_of_the_users_clock_comes_out_wherever_it_is_asked(zk_root: str) -> None:
    """The leader decides, and takes the answer to an advance, outside of tasks: there, too, it must not be lost."""
    asked = 0
    for last in range(3, 30, 3):
        calls = 0

        def clock(last: int = last) -> int:
            nonlocal calls
            calls += 1
            if calls > last:
                raise ArithmeticError(last)
            return 10**12

        async with asyncio.timeout(20):
            with pytest.raises(ArithmeticError):
                async with join(f"{zk_root}/{last}", clock=clock) as group, group.gate("orders", 0) as gate:
                    await cross(gate, *range(100))
        asked += calls
    assert asked > 100


async def test_an_empty_day_of_seconds_is_one_advance(zk_root: str) -> None:
    async with (
        join(zk_root, period="1s") as group,
        group.gate("orders", 0) as gate,
        looking(zk_root) as session,
    ):
        await gate.wait_until(500)
        before = (await session.get(paths.COORDINATOR)).version
        await gate.wait_until(86_400 * 1000 + 500)
        assert (await session.get(paths.COORDINATOR)).version == before + 1
        assert gate.limit == 86_401_000


async def test_the_nodes_are_readable_in_any_shell(zk_root: str) -> None:
    async with (
        join(zk_root, partitions=2, member="worker") as group,
        group.gate("orders", 0) as first,
        group.gate("orders", 1) as second,
        looking(zk_root) as session,
    ):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(cross(first, 0, 1))
            tasks.create_task(cross(second, 0, 1))
        texts = {
            path: (await session.get(path)).data.decode()
            for path in (paths.COORDINATOR, paths.PERIOD, paths.GENERATION, paths.TOPIC_PARTITIONS, "cuts/1")
        }
        (member_session,) = await session.children(paths.PROGRESS)
        assert texts == {
            paths.COORDINATOR: "2000",
            paths.PERIOD: "1000",
            paths.GENERATION: f"1 {member_session} took office",
            paths.TOPIC_PARTITIONS: "orders:0,1;",
            "cuts/1": f"1 0 1000 1\n{member_session} orders:0,1; 1,1;",
        }
        assert (await session.get(paths.owner(Partition("orders", 1)))).data.decode() == member_session


# -- the store goes away ------------------------------------------------------------------------------------------------


async def test_everything_below_the_known_limit_goes_on_while_the_store_is_away(
    zookeeper: object, zk_root: str
) -> None:
    upstream, root = zk_root.removeprefix("zk://").split("/")
    async with (
        Proxy(upstream) as proxy,
        join(f"zk://{proxy.connection}/{root}", session_timeout=20) as group,
        group.gate("orders", 0) as gate,
    ):
        session = group.membership.session
        assert isinstance(session, Session)
        proxy.refuse()
        proxy.cut()
        assert await session.until(SessionState.SUSPENDED) is SessionState.SUSPENDED
        for ts in range(PERIOD):
            await gate.wait_until(ts, ts)
        assert not gate.is_open(PERIOD)
        blocked = asyncio.ensure_future(gate.wait_until(PERIOD, PERIOD))
        await asyncio.wait([blocked], timeout=0.2)  # time is the event: nothing may happen for a while
        assert not blocked.done(), "a record passed a limit that nobody could have moved"
        proxy.accept()
        await blocked
        assert group.membership.session is session, "the session was lost for nothing"


async def test_nothing_starts_past_the_deadline_and_an_answer_lifts_it(zk_root: str) -> None:
    upstream, root = zk_root.removeprefix("zk://").split("/")
    async with (
        Proxy(upstream) as proxy,
        join(f"zk://{proxy.connection}/{root}", session_timeout=1.5) as group,
        group.gate("orders", 0) as gate,
    ):
        session = group.membership.session
        assert isinstance(session, Session)
        await gate.wait_until(1)
        proxy.blackhole()
        await session.until(SessionState.LOST)  # by our own clock: no server has told us
        assert not gate.is_open(2)
        waiting = asyncio.ensure_future(gate.wait_until(2))
        await asyncio.wait([waiting], timeout=0.2)
        assert not waiting.done(), "a record started although the session was over"
        proxy.heal()
        await waiting  # joined again, with the lock taken again
        assert group.membership.session is not session


async def test_a_server_that_cannot_be_reached_is_named_with_what_was_waited(zookeeper: object) -> None:
    with pytest.raises(aiokcc.StoreUnreachableError, match=r"within 0\.5 s \(127\.0\.0\.1:1: "):
        async with join("zk://127.0.0.1:1/replay", connect_timeout=0.5):
            pass


# -- somebody meddles with the nodes --------------------------------------------------------------------------------------

GARBAGE = {
    "empty": b"",
    "words": b"not a limit",
    "binary": b"\xff\x00\xfe",
    "negative": b"-5",
    "enormous": b"9" * 900_000,
}


@pytest.mark.parametrize("content", list(GARBAGE.values()), ids=list(GARBAGE))
@pytest.mark.parametrize("path", [paths.COORDINATOR, paths.GENERATION])
async def test_garbage_in_a_node_that_carries_the_agreement(zk_root: str, path: str, content: bytes) -> None:
    with pytest.raises(aiokcc.CorruptNodeError, match=f"/{path} holds .*; expected "):
        async with (
            join(zk_root, partitions=2) as group,
            group.gate("orders", 0) as gate,
            join(zk_root, partitions=2) as other,
            other.gate("orders", 1) as second,
            looking(zk_root) as session,
        ):
            limit = gate.limit
            await session.set(path, content, ANY_VERSION)
            await asyncio.gather(gate.wait_until(PERIOD), second.wait_until(PERIOD))  # only the error can end this
    assert gate.limit == second.limit == limit


@pytest.mark.parametrize("content", list(GARBAGE.values()), ids=list(GARBAGE))
async def test_garbage_in_the_operators_request_holds_the_limit_until_it_is_replaced(
    zk_root: str, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "aiokcc.runtime")
    async with join(zk_root) as group, group.gate("orders", 0) as gate, looking(zk_root) as session:
        await gate.wait_until(1)
        await session.set(paths.PERIOD, content, ANY_VERSION)
        waiting = asyncio.ensure_future(gate.wait_until(PERIOD))
        status = await group.status()
        while status.limit == PERIOD and not caplog.records:  # the leader reads it when its watch fires
            status = await group.status()
        assert status.state == "unreadable"
        assert any("/period holds" in problem for problem in status.problems)
        assert not waiting.done()
        assert gate.limit == PERIOD
        await group.set_period("1s")
        await waiting


@pytest.mark.parametrize("content", [b"garbage", b"\xff" * 900_000, b"1 1000 99999\norders:1;\n99999;\n5;"])
async def test_a_report_that_cannot_be_read_never_moves_the_limit(zk_root: str, content: bytes) -> None:
    """The last of them can be read, but its first line and its entries are of another generation."""
    async with (
        join(zk_root, partitions=2) as group,
        group.gate("orders", 0) as gate,
        looking(zk_root) as session,
    ):
        await session.create(paths.progress("stranger"), content.replace(b"1 ", b"0 ", 1), ephemeral=True)
        waiting = asyncio.ensure_future(gate.wait_until(PERIOD))
        done, _ = await asyncio.wait([waiting], timeout=0.3)  # time is the event: nothing may happen
        assert not done
        assert (await group.status()).limit == PERIOD
        waiting.cancel()


@pytest.mark.parametrize("path", [paths.COORDINATOR, paths.GENERATION])
async def test_a_deleted_node_is_named(zk_root: str, path: str) -> None:
    with pytest.raises(aiokcc.MissingNodeError, match=f"/{path} was deleted"):
        async with join(zk_root) as group, group.gate("orders", 0) as gate, looking(zk_root) as session:
            await gate.wait_until(1)
            await session.delete(path, ANY_VERSION)
            await cross(gate, *range(1, 1000))


async def test_our_own_report_and_candidate_may_be_deleted(zk_root: str) -> None:
    async with join(zk_root) as group, group.gate("orders", 0) as gate, looking(zk_root) as session:
        await cross(gate, 0, 1, 2)
        (name,) = await session.children(paths.PROGRESS)
        (candidate,) = await session.children(paths.LEADER)
        await session.delete(paths.progress(name), ANY_VERSION)
        await cross(gate, 3, 4)
        await session.delete(f"{paths.LEADER}/{candidate}", ANY_VERSION)
        await cross(gate, 5, 6)
        assert gate.limit == 7 * PERIOD


# -- permissions ------------------------------------------------------------------------------------------------------------


async def test_no_permission_is_an_error_that_says_so(zk_root: str) -> None:
    async with join(zk_root, auth=("alice", "secret"), acl="creator", member="alice") as group:
        async with group.gate("orders", 0) as gate:
            await gate.wait_until(1)
            with pytest.raises(aiokcc.NoAuthError, match="no permission"):
                async with join(zk_root, member="mallory"):
                    pass
            await cross(gate, 1, 2)  # and nothing was lost by it
        async with join(zk_root, auth=("alice", "secret"), acl="creator", member="second") as second:
            assert second.limit == group.limit


# -- members that do not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "both"),
    [
        ({"period": "2s"}, "period is 1s there and 2s here"),
        ({"start": "1970-01-01T00:01Z"}, "start is 1970-01-01T00:00:00Z there and 1970-01-01T00:01:00Z here"),
        ({"topics": {"orders": 3}}, "partitions is orders:0; there and orders:0,1,2; here"),
        ({"lookahead": 2}, "lookahead is 0 there and 2 here"),
        ({"end": "2026-01-01T00:00Z"}, "end is None there and 2026-01-01T00:00:00Z here"),
    ],
)
async def test_a_member_with_other_settings_is_told_both(zk_root: str, settings: dict[str, Any], both: str) -> None:
    async with join(zk_root):
        with pytest.raises(aiokcc.GroupMismatchError, match=both):
            async with join(zk_root, **settings):
                pass


async def test_a_partition_another_member_holds_is_handed_over_or_refused(zk_root: str) -> None:
    async with join(zk_root, member="first") as first, join(zk_root, member="second", claim_timeout=0.3) as second:
        async with first.gate("orders", 0) as gate:
            await cross(gate, 0, 1, 2)
            with pytest.raises(aiokcc.PartitionOwnedError, match=r"orders\.0 is held by first-"):
                async with second.gate("orders", 0):
                    pass
            await cross(gate, 3)
        async with second.gate("orders", 0) as gate:
            assert gate.resume_offset == 3
            await cross(gate, 4)


async def test_a_run_that_has_ended_is_refused(zk_root: str) -> None:
    async with join(zk_root) as group, group.gate("orders", 0) as gate:
        await cross(gate, 0, 1)
        gate.finish(2)
    with pytest.raises(aiokcc.RunEnded, match="choose another root"):
        async with join(zk_root):
            pass


async def test_a_member_that_starts_behind_the_limit(zk_root: str) -> None:
    """It is told where the closed periods end. What it brings from before passes at once, and is counted as late."""
    async with join(zk_root, partitions=2, member="first") as first, first.gate("orders", 0) as one:
        async with first.gate("orders", 1) as two, asyncio.TaskGroup() as tasks:
            tasks.create_task(cross(one, 0, 1, 50))
            tasks.create_task(cross(two, 0, 1, 50))
        async with join(zk_root, partitions=2, member="late") as late, late.gate("orders", 1) as gate:
            assert late.limit == 51 * PERIOD
            assert gate.resume_offset == 50
            await gate.wait_until(1, 0)
            await gate.wait_until(50 * PERIOD + 2, 51)
            assert gate.late == 1


async def test_the_watch_is_one_per_member(zk_root: str) -> None:
    """A follower reads the limit once per period, however many partitions it has: its server counts."""
    async with join(zk_root) as group, group.gate("orders", 0) as gate, looking(zk_root) as session:
        await cross(gate, 0)
        node = await session.get(paths.COORDINATOR)
        assert isinstance(node, Node)
        await cross(gate, *range(1, 20))
        after = await session.get(paths.COORDINATOR)
        assert after.version == node.version + 19, "one write to the limit per period"
