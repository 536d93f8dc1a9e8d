"""The sockets by which the processes of a host find each other; and groups of one host, on a real ZooKeeper."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aiokcc
from aiokcc.errors import CoordinationError
from aiokcc.runtime.host.channel import ProcessChannel
from aiokcc.runtime.host.place import SocketPlace, check_directory, runtime_directory
from aiokcc.stores import open_store

TIMEOUTS = (10.0, None)


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a directory for sockets; its path is short."""
    with tempfile.TemporaryDirectory(prefix="h-") as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        yield Path(name) / "aiokcc"


def place(root: str = "a") -> SocketPlace:
    return SocketPlace(open_store(f"zk://127.0.0.1:1/{root}"), TIMEOUTS)


async def answers(here: SocketPlace) -> bool:
    """Return whether a service can be reached."""
    channel = await here.connect()
    if channel is None:
        return False
    gone = asyncio.Event()
    channel.closed = gone.set
    channel.close()
    await asyncio.wait_for(gone.wait(), 10)
    return True


async def test_the_socket_is_open_to_this_user_alone(directory: Path) -> None:
    here = place()
    listening = await here.listen(lambda channel: None)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert here.path.stat().st_mode & 0o777 == 0o600
    listening.close()
    assert list(directory.glob("*.sock")) == []


async def test_messages_arrive_in_order_until_one_side_closes(directory: Path) -> None:
    here, served = place(), asyncio.Event()
    got: list[dict[str, Any]] = []
    theirs: list[ProcessChannel] = []

    def taken(channel: ProcessChannel) -> None:
        theirs.append(channel)
        channel.received, channel.closed = got.append, served.set

    listening = await here.listen(taken)
    ours = await here.connect()
    assert ours is not None
    for n in range(1000):
        ours.send({"n": n, "text": "ä" * 100})
    ours.close()
    await asyncio.wait_for(served.wait(), 10)
    assert [message["n"] for message in got] == list(range(1000))
    assert theirs[0].ended_by_peer
    listening.close()


async def test_what_is_no_message_closes_the_connection(directory: Path) -> None:
    here = place()
    listening = await here.listen(lambda channel: None)
    for line in (b"hello\n", b"[1]\n", b"\xff\xfe\n"):
        reader, writer = await asyncio.open_unix_connection(str(here.path))
        writer.write(line)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        await writer.wait_closed()
    listening.close()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
async def test_a_directory_that_others_may_enter_is_refused(directory: Path, mode: int) -> None:
    directory.mkdir(mode=0o700)
    directory.chmod(mode)
    with pytest.raises(CoordinationError, match=f"mode {mode:o}.*chmod 700"):
        runtime_directory()


async def test_a_directory_of_another_user_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime_directory()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(CoordinationError, match="belongs to user"):
        check_directory(directory)


async def test_a_link_is_no_directory(directory: Path, tmp_path: Path) -> None:
    directory.symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(CoordinationError, match="is not a directory"):
        runtime_directory()


async def test_users_and_roots_and_timeouts_have_sockets_of_their_own(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [place("a").path, place("b").path]
    paths.append(SocketPlace(open_store("zk://127.0.0.1:1/a"), (5.0, None)).path)
    paths.append(SocketPlace(open_store("zk://127.0.0.1:2/a"), TIMEOUTS).path)
    real = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: real + 1)
    paths.append(SocketPlace(open_store("zk://127.0.0.1:1/a"), TIMEOUTS, directory).path)
    assert len(set(paths)) == 5
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(tempfile, "tempdir", str(directory.parent))
    with pytest.raises(CoordinationError, match=f"aiokcc-{real + 1} belongs to user"):
        runtime_directory()


async def test_a_socket_that_a_dead_process_has_left_is_in_nobodys_way(directory: Path) -> None:
    here = place()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(here.path))
    assert here.path.exists()
    assert not await answers(here)
    listening = await here.listen(lambda channel: None)
    assert await answers(here)
    listening.close()


async def test_a_file_in_the_place_of_the_socket_is_replaced(directory: Path) -> None:
    here = place()
    here.path.write_text("nothing")
    assert not await answers(here)
    listening = await here.listen(lambda channel: None)
    assert await answers(here)
    listening.close()


async def test_a_service_that_was_replaced_leaves_the_socket_of_its_successor(directory: Path) -> None:
    here = place()
    first = await here.listen(lambda channel: None)
    second = await here.listen(lambda channel: None)
    first.close()
    assert await answers(here)
    second.close()
    assert not await answers(here)


async def test_one_process_at_a_time_begins_to_serve(directory: Path) -> None:
    one, other = place(), place()
    assert one.reserve()
    assert not other.reserve()
    one.end_reservation()
    assert other.reserve()
    other.end_reservation()


async def test_all_that_wait_for_a_reservation_are_woken_when_it_ends(directory: Path) -> None:
    one = place()
    assert one.reserve()
    waiting = [asyncio.ensure_future(place().wait_reserved()) for _ in range(3)]
    cancelled = waiting.pop()
    done, _ = await asyncio.wait(waiting, timeout=0.1)
    assert not done
    cancelled.cancel()
    await asyncio.wait([cancelled])
    one.end_reservation()
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting)
        while not one.reserve():  # a thread that has just been woken may hold it for a moment
            await one.wait_reserved()
    one.end_reservation()


async def finish(group: aiokcc.Group, numbers: list[int]) -> None:
    async def one(number: int) -> None:
        async with group.gate("orders", number) as gate:
            for offset in range(20):
                await gate.wait_until(offset * 1000, offset)
            gate.finish(20)

    async with asyncio.TaskGroup() as tasks:
        for number in numbers:
            tasks.create_task(one(number))


async def test_two_roots_on_one_host_are_two_groups(zk_root: str, directory: Path) -> None:
    settings: dict[str, Any] = {"topics": {"orders": 2}, "start": 0, "period": 1000, "share_host": True}
    async with (
        aiokcc.connect(f"{zk_root}-1", **settings, member="a") as a,
        aiokcc.connect(f"{zk_root}-1", **settings, member="b") as b,
        aiokcc.connect(f"{zk_root}-2", **settings) as c,
        asyncio.TaskGroup() as tasks,
    ):
        assert len(list(directory.glob("*.sock"))) == 2
        for group, numbers in ((a, [0]), (b, [1]), (c, [0, 1])):
            tasks.create_task(finish(group, numbers))
        status = await a.status()
        assert len(status.members) == 1
        assert [process.name for process in status.members[0].processes] in ([], ["a", "b"])  # written a moment later
    assert list(directory.glob("*.sock")) == []
