"""The faults that a test can cause in the memory store, and what the session and others see of them."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import AsyncIterator

import pytest

from aiokcc.errors import NoNodeError, OutcomeUnknownError, SessionLostError, StoreUnreachableError, UsageError
from aiokcc.stores import ANY_VERSION, STOP_FRACTION, Change, Check, Session, SessionState, Set
from aiokcc.stores.memory import Call, MemoryServer, MemoryStore

CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(f"faults-{uuid.uuid4().hex}")


@pytest.fixture
def server(store: MemoryStore) -> MemoryServer:
    store.server.clock = lambda: 100.0
    return store.server


@pytest.fixture
async def session(store: MemoryStore) -> AsyncIterator[Session]:
    async with store.session(timeout=9) as session:
        await session.ensure("")
        await session.create("a", b"0")
        yield session


@pytest.fixture
async def other(store: MemoryStore, session: Session) -> AsyncIterator[Session]:
    async with store.session(timeout=9) as other:
        yield other


async def settle() -> None:
    """Let every task run until it waits. No task here takes more iterations of the loop than this."""
    for _ in range(20):
        await asyncio.sleep(0)


async def touch(session: Session, path: str = "a") -> int:
    return await session.set(path, b"x", ANY_VERSION)


# Expiry


async def test_an_expired_session_is_lost_and_its_ephemeral_nodes_go(
    server: MemoryServer, session: Session, other: Session
) -> None:
    await session.create("lock", ephemeral=True)
    watch = other.watch()
    watch.add("lock")
    await watch.changes()
    server.expire(session)
    assert (session.state, session.stop_at) == (LOST, -math.inf)
    assert await session.until(CONNECTED) is LOST
    assert await watch.changes() == [Change("lock", None)]
    with pytest.raises(SessionLostError, match="expired"):
        await touch(session)
    assert server.sessions == (other,)
    server.expire(session)  # twice changes nothing


async def test_expiry_ends_the_waits_for_a_watch_or_a_state(server: MemoryServer, session: Session) -> None:
    watching = asyncio.create_task(session.watch().changes())
    waiting = asyncio.create_task(session.until(SUSPENDED))
    await settle()
    server.expire(session)
    assert await waiting is LOST
    with pytest.raises(SessionLostError):
        await watching


async def test_leaving_the_context_of_an_expired_session_raises_nothing(store: MemoryStore, session: Session) -> None:
    async with store.session() as expired:
        store.server.expire(expired)
    assert await session.find("a") is not None


# Suspension


async def test_calls_of_a_suspended_session_wait_and_then_run_in_order(
    server: MemoryServer, session: Session, other: Session
) -> None:
    server.suspend(session)
    assert session.state is SUSPENDED
    writes = [asyncio.create_task(touch(session)) for _ in range(3)]
    reading = asyncio.create_task(session.get("a"))
    await settle()
    assert not any(task.done() for task in (*writes, reading))
    assert (await other.get("a")).version == 0
    assert other.state is CONNECTED
    server.resume(session)
    assert await asyncio.gather(*writes) == [1, 2, 3]
    assert (await reading).version == 3
    assert session.state is CONNECTED


async def test_watches_catch_up_after_a_suspension(server: MemoryServer, session: Session, other: Session) -> None:
    watch = session.watch()
    watch.add("a")
    await watch.changes()
    server.suspend(session)
    following = asyncio.create_task(watch.changes())
    await touch(other)
    await touch(other)
    await settle()
    assert not following.done()
    server.resume(session)
    assert await following == [Change("a", await other.get("a"))]


async def test_stop_at_stands_still_while_suspended(server: MemoryServer, session: Session) -> None:
    assert session.stop_at == math.inf
    server.suspend(session)
    assert session.stop_at == 100 + STOP_FRACTION * 9
    server.clock = lambda: 200.0
    server.suspend(session)
    assert session.stop_at == 100 + STOP_FRACTION * 9
    server.suspend(session, stop_at=103.5)
    assert session.stop_at == 103.5
    server.resume(session)
    assert session.stop_at == math.inf
    server.suspend(session)
    assert session.stop_at == 200 + STOP_FRACTION * 9


async def test_a_suspended_session_keeps_its_nodes_until_it_is_expired(
    server: MemoryServer, session: Session, other: Session
) -> None:
    await session.create("lock", ephemeral=True)
    server.suspend(session)
    waiting = asyncio.create_task(touch(session))
    await settle()
    assert await other.find("lock") is not None
    server.expire(session)
    assert session.state is LOST
    assert await other.find("lock") is None
    with pytest.raises(SessionLostError):  # it was never sent: so it is known not to have been applied
        await waiting
    assert (await other.get("a")).version == 0


async def test_silence_for_the_whole_timeout_ends_a_session_on_an_injected_clock(
    server: MemoryServer, session: Session, other: Session
) -> None:
    server.suspend(session)
    server.clock = lambda: 108.9
    assert server.expire_overdue() == ()
    server.clock = lambda: 109.0
    assert server.expire_overdue() == (session,)
    assert (session.state, other.state) == (LOST, CONNECTED)


async def test_the_whole_server_can_be_unreachable(
    store: MemoryStore, server: MemoryServer, session: Session, other: Session
) -> None:
    server.suspend()
    assert {session.state, other.state} == {SUSPENDED}
    states = asyncio.gather(session.until(CONNECTED), other.until(CONNECTED))

    async def newcomer() -> bytes:
        async with store.session() as new:
            return (await new.get("a")).data

    opening = asyncio.create_task(newcomer())
    await settle()
    assert not opening.done()
    server.resume()
    assert set(await states) == {CONNECTED}
    assert await opening == b"0"


async def test_a_session_suspended_alone_stays_so_until_all_are_resumed(server: MemoryServer, session: Session) -> None:
    server.suspend(session)
    server.suspend()
    server.resume(session)
    assert session.state is SUSPENDED
    server.suspend(session)
    server.resume()
    assert session.state is CONNECTED


async def test_opening_a_session_fails_after_connect_timeout(store: MemoryStore, server: MemoryServer) -> None:
    server.suspend()
    with pytest.raises(StoreUnreachableError, match="suspended"):
        async with store.session(connect_timeout=1e-9):
            pass


async def test_leaving_while_suspended_is_quick_and_the_server_keeps_the_nodes(
    store: MemoryStore, server: MemoryServer, other: Session
) -> None:
    async with store.session() as leaving:
        await leaving.create("lock", ephemeral=True)
        server.suspend(leaving)
        waiting = asyncio.create_task(touch(leaving))
        await settle()
    assert leaving.state is LOST
    with pytest.raises(SessionLostError):
        await waiting
    assert await other.find("lock") is not None, "the server has not heard that it left"
    server.expire(leaving)
    assert await other.find("lock") is None


async def test_a_short_suspension_wakes_a_task_that_waits_for_it(server: MemoryServer, session: Session) -> None:
    waiting = asyncio.create_task(session.until(SUSPENDED))
    await settle()
    server.suspend(session)
    server.resume(session)
    assert await waiting is SUSPENDED


async def test_a_cancelled_call_leaves_the_queue(server: MemoryServer, session: Session) -> None:
    server.suspend(session)
    first, second = asyncio.create_task(touch(session)), asyncio.create_task(touch(session))
    await settle()
    first.cancel()
    server.resume(session)
    assert await second == 1
    assert first.cancelled()


# Zombies


async def test_a_frozen_session_still_shows_connected(server: MemoryServer, session: Session, other: Session) -> None:
    watch = session.watch()
    watch.add("a")
    await watch.changes()
    server.freeze(session, stop_at=50.0)
    assert (session.state, session.stop_at) == (CONNECTED, 50.0)
    writing, following = asyncio.create_task(touch(session)), asyncio.create_task(watch.changes())
    await touch(other)
    await settle()
    assert not writing.done()
    assert not following.done()
    server.thaw(session)
    assert await writing == 2
    assert [change.path for change in await following] == ["a"]
    assert (session.state, session.stop_at) == (CONNECTED, math.inf)


async def test_a_frozen_session_that_expired_finds_that_when_thawed_and_its_writes_are_refused(
    server: MemoryServer, session: Session, other: Session
) -> None:
    await session.create("lock", ephemeral=True)
    server.freeze(session)
    server.expire(session)
    await other.create("lock", b"other", ephemeral=True)  # somebody else holds it: two who believe so
    assert session.state is CONNECTED
    writing = asyncio.create_task(touch(session))
    await settle()
    assert not writing.done()
    server.thaw(session)
    assert (session.state, session.stop_at) == (LOST, -math.inf)
    with pytest.raises(SessionLostError):
        await writing
    with pytest.raises(SessionLostError):
        await touch(session)
    assert (await other.get("a")).version == 0
    assert (await other.get("lock")).owner == other.id


async def test_a_write_sent_before_the_freeze_is_still_applied(
    server: MemoryServer, session: Session, other: Session
) -> None:
    with server.hold_request() as held:
        writing = asyncio.create_task(touch(session))
        await held.reached()
        server.freeze(session)
    await settle()
    assert (await other.get("a")).version == 1
    assert not writing.done()
    server.thaw(session)
    assert await writing == 1


async def test_a_write_that_arrives_after_the_expiry_is_not_applied(
    server: MemoryServer, session: Session, other: Session
) -> None:
    with server.hold_request() as held:
        writing = asyncio.create_task(touch(session))
        await held.reached()
        server.freeze(session)
        server.expire(session)
    await settle()
    server.thaw(session)
    with pytest.raises(OutcomeUnknownError):  # its client cannot know
        await writing
    assert (await other.get("a")).version == 0


# Hooks


async def test_a_write_with_a_held_reply_is_applied_and_not_answered(
    server: MemoryServer, session: Session, other: Session
) -> None:
    with server.hold_reply(lambda call: call.touches("a")) as held:
        await session.find("a")  # a read does not match
        writing = asyncio.create_task(session.commit(Check("a", 0), Set("a", b"1", 0)))
        call = await held.reached()
        assert (call.session, call.verb, call.paths) == (session, "commit", ("a", "a"))
        assert (await other.get("a")).data == b"1"
        assert not writing.done()
        assert await touch(other) == 2, "only one call is held"
        held.release()
        assert await writing == [None, 1]


async def test_a_held_request_is_not_applied_yet(server: MemoryServer, session: Session, other: Session) -> None:
    with server.hold_request(lambda call: call.session is session) as held:
        writing = asyncio.create_task(session.set("a", b"1", 0))
        await held.reached()
        assert await other.set("a", b"2", 0) == 1
    with pytest.raises(Exception, match="another version"):
        await writing


async def test_later_calls_of_the_session_wait_behind_a_held_request(server: MemoryServer, session: Session) -> None:
    with server.hold_request() as held:
        first = asyncio.create_task(session.set("a", b"1", ANY_VERSION))
        await held.reached()
        second = asyncio.create_task(session.set("a", b"2", ANY_VERSION))
        await settle()
        assert not second.done()
    assert (await first, await second) == (1, 2)


@pytest.mark.parametrize("applied", [True, False])
async def test_a_write_overtaken_by_the_sessions_end_is_unknown(
    server: MemoryServer, session: Session, other: Session, applied: bool
) -> None:
    with server.hold_reply() if applied else server.hold_request() as held:
        writing = asyncio.create_task(touch(session))
        await held.reached()
        server.expire(session)
        with pytest.raises(OutcomeUnknownError, match="set a"):
            await writing
    assert (await other.get("a")).version == applied


async def test_a_read_overtaken_by_the_sessions_end_is_lost(server: MemoryServer, session: Session) -> None:
    with server.hold_reply() as held:
        reading = asyncio.create_task(session.get("a"))
        await held.reached()
        server.expire(session)
        with pytest.raises(SessionLostError):
            await reading


async def test_a_lost_reply_is_unknown_and_the_session_lives(server: MemoryServer, session: Session) -> None:
    with server.hold_reply() as held:
        writing = asyncio.create_task(touch(session))
        await held.reached()
        held.lose()
    with pytest.raises(OutcomeUnknownError):
        await writing
    assert (await session.get("a")).version == 1


async def test_a_refusal_can_be_held_like_another_reply(server: MemoryServer, session: Session) -> None:
    with server.hold_reply() as held:
        reading = asyncio.create_task(session.get("missing"))
        await held.reached()
    with pytest.raises(NoNodeError):
        await reading


async def test_a_hold_that_is_released_before_a_call_holds_none(server: MemoryServer, session: Session) -> None:
    with server.hold_request():
        pass
    assert await touch(session) == 1


async def test_hooks_see_every_call_and_may_delay_it(server: MemoryServer, session: Session) -> None:
    calls: list[tuple[str, tuple[str, ...], bool]] = []
    gate = asyncio.Event()

    def note(call: Call) -> None:
        calls.append((call.verb, call.paths, call.writes))

    with (
        server.intercept(before=note),
        server.intercept(after=lambda call: gate.wait() if call.verb == "get" else None),
    ):
        await session.create("b")
        await session.ensure("b/c")
        await session.children("")
        reading = asyncio.create_task(session.get("b"))
        await settle()
        assert not reading.done()
        gate.set()
        await reading
        await session.delete("b/c", 0)
    await session.find("b")  # no longer intercepted
    assert calls == [
        ("create", ("b",), True),
        ("ensure", ("b/c",), True),
        ("children", ("",), False),
        ("get", ("b",), False),
        ("delete", ("b/c",), True),
    ]


async def test_delays_of_several_calls_run_at_the_same_time(server: MemoryServer, session: Session) -> None:
    """A delay is a latency, not a queue: many requests can be under way at once."""
    waiting: list[asyncio.Event] = []

    def delay(_: Call) -> asyncio.Future[object]:
        waiting.append(event := asyncio.Event())
        return asyncio.ensure_future(event.wait())

    with server.intercept(before=delay):
        writes = [asyncio.create_task(session.set("a", b"%d" % number, ANY_VERSION)) for number in range(3)]
        await settle()
        assert len(waiting) == 3
        waiting[2].set()
        await settle()
        assert server.nodes()["/aiokcc/default/a"].version == 0, "applied in the order of the calls"
        waiting[0].set()
        waiting[1].set()
        assert await asyncio.gather(*writes) == [1, 2, 3]
    assert (await session.get("a")).data == b"2"


async def test_an_error_of_a_hook_is_raised_by_the_call(server: MemoryServer, session: Session) -> None:
    def fail(_: Call) -> None:
        raise OutcomeUnknownError("simulated")

    with server.intercept(before=fail), pytest.raises(OutcomeUnknownError):
        await touch(session)
    assert (await session.get("a")).version == 0
    with server.intercept(after=fail), pytest.raises(OutcomeUnknownError):
        await touch(session)
    assert (await session.get("a")).version == 1
    assert await touch(session) == 2


async def test_a_watch_can_be_late(server: MemoryServer, session: Session, other: Session) -> None:
    watch = session.watch()
    watch.add("a")
    await watch.changes()
    with server.hold_request(lambda call: call.verb == "watch") as held:
        following = asyncio.create_task(watch.changes())
        await touch(other)
        call = await held.reached()
        assert (call.session, call.paths, call.writes) == (session, ("a",), False)
        await touch(other)
        assert not following.done()
    assert await following == [Change("a", await other.get("a"))]


async def test_a_watch_can_report_an_old_state_but_not_as_its_last(
    server: MemoryServer, session: Session, other: Session
) -> None:
    watch = session.watch()
    watch.add("a")
    await watch.changes()
    with server.hold_reply(lambda call: call.verb == "watch") as held:
        following = asyncio.create_task(watch.changes())
        await touch(other)
        await held.reached()
        old = await other.get("a")
        await touch(other)
    assert await following == [Change("a", old)]
    assert await watch.changes() == [Change("a", await other.get("a"))]


async def test_a_held_report_that_is_cancelled_is_made_again(server: MemoryServer, session: Session) -> None:
    watch = session.watch()
    watch.add("a")
    with server.hold_reply() as held:
        following = asyncio.create_task(watch.changes())
        await held.reached()
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
    assert await watch.changes() == [Change("a", await session.get("a"))]


@pytest.mark.parametrize("end", ["close", "expire"])
async def test_a_held_report_ends_with_its_watch(server: MemoryServer, session: Session, end: str) -> None:
    watch = session.watch()
    watch.add("a")
    with server.hold_reply() as held:
        following = asyncio.create_task(watch.changes())
        await held.reached()
        if end == "close":
            watch.close()
        else:
            server.expire(session)
        with pytest.raises(SessionLostError):
            await following


async def test_a_path_removed_while_its_report_is_held_is_not_reported(
    server: MemoryServer, session: Session, other: Session
) -> None:
    watch = session.watch()
    watch.add("a")
    watch.add("b")
    with server.hold_reply() as held:
        following = asyncio.create_task(watch.changes())
        await held.reached()
        watch.remove("a")
    assert await following == [Change("b", None)]


# Looking


async def test_the_tree_can_be_read_without_a_session(
    store: MemoryStore, server: MemoryServer, session: Session
) -> None:
    await session.create("lock", b"x", ephemeral=True)
    nodes = server.nodes()
    assert list(nodes) == ["/aiokcc", "/aiokcc/default", "/aiokcc/default/a", "/aiokcc/default/lock"]
    assert nodes[store.describe("lock")].owner == session.id


async def test_times_come_from_the_servers_wall_clock(server: MemoryServer, session: Session) -> None:
    server.wall_clock = lambda: 5.5
    await session.create("b")
    server.wall_clock = lambda: 7.0
    await touch(session, "b")
    node = await session.get("b")
    assert (node.created, node.modified) == (5500, 7000)


async def test_a_server_refuses_the_sessions_of_others(server: MemoryServer) -> None:
    async with MemoryStore("elsewhere").session() as stranger:
        with pytest.raises(UsageError, match="not a session of"):
            server.expire(stranger)


async def test_an_operation_takes_one_iteration_of_the_loop(session: Session) -> None:
    """Another task can run between any two operations."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    before = turns
    for _ in range(10):
        await session.get("a")
    assert turns - before == 10
    counting.cancel()
