"""Changes that a listener takes where they arrive, and writes sent without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from aiokcc.errors import BadVersionError, NoNodeError, UsageError
from aiokcc.stores import ANY_VERSION, Change, Check, Create, Created, Node, Session, Set
from aiokcc.stores.kafka.session import KafkaSession
from aiokcc.stores.memory import MemorySession
from aiokcc.stores.zookeeper.session import ZooKeeperSession
from tests.conformance.seen import PATIENCE, Seen


class Listened(Seen):
    """Records what a listener took and what ``changes()`` reported, in one log."""

    def __init__(self, session: Session, *, takes: bool) -> None:
        super().__init__(session.watch())
        self.taken: list[Change] = []
        self._heard = asyncio.Event()
        self._takes = takes
        self.watch.listener = self._listen

    def _listen(self, change: Change) -> bool:
        if self._takes:
            self.taken.append(change)
            self._heard.set()
        return self._takes

    async def until_either(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds for what either of them has."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._heard.clear()
                more, heard = asyncio.ensure_future(self.more()), asyncio.ensure_future(self._heard.wait())
                await asyncio.wait({more, heard}, return_when=asyncio.FIRST_COMPLETED)
                for waiting in (more, heard):
                    waiting.cancel()
                await asyncio.wait({more, heard})

    @property
    def all(self) -> list[Change]:
        return [*self.taken, *self.log]


def contents(changes: list[Change], path: str) -> list[bytes | None]:
    return [c.now.data if isinstance(c.now, Node) else None for c in changes if c.path == path]


@pytest.mark.parametrize("takes", [False, True])
async def test_the_last_content_is_reported_once_by_the_one_or_the_other(
    session: Session, other: Session, takes: bool
) -> None:
    await session.create("n", b"0")
    seen = Listened(session, takes=takes)
    seen.watch.add("n")
    for number in range(1, 20):
        await other.set("n", str(number).encode(), ANY_VERSION)
    await seen.until_either(lambda: b"19" in contents(seen.all, "n"))
    found = contents(seen.all, "n")
    assert found == sorted(set(found), key=lambda data: int(data or b"0"))
    if not takes:
        assert not seen.taken


async def test_a_change_after_an_unreported_one_waits_behind_it(session: Session, other: Session) -> None:
    """The listener takes creations only; a creation that comes after an unreported change must not overtake it."""
    await session.create("n", b"0")
    await session.create("d")
    taken: list[Change] = []

    def listen(change: Change) -> bool:
        if isinstance(change, Created) and change.name is not None:
            taken.append(change)
            return True
        return False

    seen = Seen(session.watch())
    seen.watch.listener = listen
    seen.watch.add("n")
    seen.watch.add_created("d")
    await seen.until(lambda: Created("d") in seen.log and bool(contents(seen.log, "n")))
    await other.set("n", b"1", 0)
    await other.create("d/a")
    await session.sync()
    await seen.until(lambda: b"1" in contents(seen.log, "n"))
    if Created("d", name="a") not in taken:
        await seen.until(lambda: Created("d", name="a") in seen.log)
        assert seen.log.index(Created("d", name="a")) > contents(seen.log, "n").index(b"1")


async def test_a_listener_that_writes_is_told_of_its_own_write(session: Session) -> None:
    await session.create("n", b"0")
    seen = Listened(session, takes=True)
    listen = seen._listen

    def write_once(change: Change) -> bool:
        if contents([change], "n") == [b"0"]:
            assert session.send_set("n", b"1", 0) is not None
        return listen(change)

    seen.watch.listener = write_once
    seen.watch.add("n")
    await seen.until_either(lambda: bool(contents(seen.all, "n")))
    await seen.until_either(lambda: b"1" in contents(seen.all, "n"))
    assert contents(seen.taken, "n") == [b"0", b"1"]


async def test_a_write_that_is_sent_is_applied_in_the_order_of_the_calls(session: Session) -> None:
    await session.create("n", b"0")
    first = session.send_set("n", b"1", 0)
    assert first is not None
    second = session.send_commit(Set("n", b"2", 1), Check("n", 2), Create("m", b"new"))
    assert second is not None
    third = asyncio.ensure_future(session.get("n"))
    assert (await third).data == b"2"
    assert await first == 1
    assert await second == [2, None, "m"]


async def test_a_write_that_is_sent_is_refused_as_any_other(session: Session) -> None:
    await session.create("n", b"0")
    sent = session.send_set("n", b"1", 7)
    assert sent is not None
    with pytest.raises(BadVersionError):
        await sent
    commit = session.send_commit(Set("n", b"1", 0), Check("gone", 0))
    assert commit is not None
    with pytest.raises(NoNodeError) as caught:
        await commit
    assert caught.value.index == 1
    assert (await session.get("n")).version == 0
    with pytest.raises(UsageError):
        session.send_set("/n", b"1", 0)
    with pytest.raises(UsageError):
        session.send_commit(Set("n", b"1", -5))


async def test_nothing_is_sent_at_once_while_there_is_no_connection(session: Session) -> None:
    await session.create("n", b"0")
    if isinstance(session, ZooKeeperSession):
        assert session._connection is not None
        session._connection.abort("broken by the test")
    elif isinstance(session, MemorySession):
        session._server.suspend(session)
    elif isinstance(session, KafkaSession):
        session._on_contact(False)  # as after a read that failed
    assert session.send_set("n", b"1", 0) is None
    assert session.send_commit(Set("n", b"1", 0)) is None
    if isinstance(session, MemorySession):
        session._server.resume(session)
    elif isinstance(session, KafkaSession):
        session._on_contact(True)
    assert (await session.get("n")).data == b"0"
