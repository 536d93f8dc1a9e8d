"""``aiokcc replay`` stops in good order on the first signal and at once on the second, also if only a worker gets the signal,
or if the command is killed. On a real Kafka and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from aiokcc import local
from tests.integration.cli.commands import AIOKCC, environment, in_foreground, session_of
from tests.integration.cli.test_replay import (
    EACH,
    HANDLERS,
    MINUTE,
    MINUTES,
    START,
    Place,
    create_place,
    handled,
    place,
)

__all__ = ["place"]

pytestmark = pytest.mark.timeout(120)

ALL = 2 * MINUTES * EACH
WAITING = """
import sys, threading

HALF = 1767225600000 + 5 * 60_000 + 500

def wait_for_go():
    os.close(os.open("go", os.O_RDONLY))  # a named pipe: opened as soon as somebody has it open for writing

async def work(record):
    if record.timestamp >= HALF:
        print("working", os.getpid())
        await asyncio.to_thread(wait_for_go)
    show(record)

def work_in_batches(records):
    if records[-1].timestamp >= HALF:
        print("working", os.getpid())
        wait_for_go()
    for record in records:
        show(record)

def block(record):
    if record.timestamp >= HALF:
        print("working", os.getpid())
        threading.Event().wait()
    show(record)
"""
LOADING = """
if "worker" in sys.argv[0]:
    print("loading", os.getpid())
    wait_for_go()
"""
STOPPING = b"Stopping when the running handlers have returned; a second Ctrl-C stops at once.\n"


@pytest.fixture
def stage(place: Place) -> Place:
    """Return a place whose handlers work on a record of the fifth minute until ``go``."""
    (place.directory / "handlers.py").write_text(HANDLERS + WAITING)
    os.mkfifo(place.directory / "go")
    return place


@contextmanager
def go(place: Place) -> Iterator[None]:
    """Let all handlers return while the block runs."""
    opened = os.open(place.directory / "go", os.O_RDWR)
    try:
        yield
    finally:
        os.close(opened)


async def working(process: asyncio.subprocess.Process, number: int, word: str = "working") -> tuple[str, list[int]]:
    """Read until this number of handlers works; return what was read, and the pids of their processes."""
    assert process.stdout is not None
    seen, pids = "", list[int]()
    while len(pids) < number:
        line = (await process.stdout.readline()).decode()
        assert line, f"it ended: {seen}"
        seen += line
        if line.startswith(word):
            pids.append(int(line.split()[1]))
    return seen, pids


async def said(process: asyncio.subprocess.Process, text: bytes) -> None:
    assert process.stderr is not None
    seen = b""
    while text not in seen:
        line = await process.stderr.readline()
        assert line, f"it ended without {text!r}: {seen!r}"
        seen += line


def once_each(*outputs: str) -> bool:
    """Return whether every record was handled exactly once."""
    times = Counter(record for out in outputs for record in handled(out))
    return len(times) == ALL and set(times.values()) == {1}


COMMITTING = [
    ("work", ["--offset-storage", "store", "--processes", "3"]),
    ("work", ["--group-id", "fresh", "--processes", "3"]),
    ("work", ["--offset-storage", "store"]),
    ("work", ["--offset-storage", "store", "--assignment", "managed", "--processes", "2"]),
    ("work_in_batches", ["--batches", "--group-id", "fresh", "--processes", "2"]),
]


class TestFirstSignal:
    @pytest.mark.parametrize(("handler", "more"), COMMITTING, ids=lambda value: "".join(value).replace("--", "-"))
    async def test_handlers_end_and_the_same_command_resumes_with_the_next_record(
        self, stage: Place, handler: str, more: list[str]
    ) -> None:
        more = [f"billing-{stage.topics[0]}" if word == "fresh" else word for word in more]
        batches = handler == "work_in_batches"
        async with stage.started(handler, *more) as process:
            first, _ = await working(process, 2 if batches else 3)  # a plain function keeps its process to itself
            process.send_signal(signal.SIGINT)
            await said(process, STOPPING)
            with go(stage):
                out, err = (part.decode() for part in await process.communicate())
        assert process.returncode == 130, err
        assert "Traceback" not in err
        minutes = [int(ts) // MINUTE - START // MINUTE for *_, ts in handled(out)]
        assert set(minutes) == {5}, "the records that were being worked on, and none after them"
        assert batches or len(minutes) == 3
        assert re.search(r"^Stopped: \d+ records in 5 periods", err, re.MULTILINE)
        promise, command = err.splitlines()[-2:]
        assert promise == "The same command resumes with the next record:"
        assert command.strip() == f"aiokcc {' '.join(stage.words(handler, *more))}"
        with go(stage):
            again = await stage.run(handler, *more)
        assert again.code == 0, again.err
        assert once_each(first + out, again.out)

    async def test_without_commits_the_message_says_that_records_come_again(self, stage: Place) -> None:
        async with stage.started("work", "--processes", "3") as process:
            first, _ = await working(process, 3)
            process.send_signal(signal.SIGTERM)
            await said(process, STOPPING.replace(b"Ctrl-C", b"SIGTERM"))
            with go(stage):
                out, err = (part.decode() for part in await process.communicate())
        assert process.returncode == 143
        assert (
            "The same command resumes at 2026-01-01T00:05:00Z; "
            "records handled since then come again, because no offsets are committed:"
        ) in err.splitlines()
        with go(stage):
            again = await stage.run("work", "--processes", "3")
        times = Counter(handled(first + out) + handled(again.out))
        assert len(times) == ALL
        assert {int(ts) // MINUTE - START // MINUTE for (*_, ts), n in times.items() if n > 1} == {5}

    async def test_a_run_in_memory_commits_to_kafka(self, stage: Place) -> None:
        more = ("--store", "memory://once", "--group-id", f"billing-{stage.topics[0]}")
        async with stage.started("work", *more) as process:
            first, _ = await working(process, 3)
            process.send_signal(signal.SIGINT)
            await said(process, STOPPING)
            with go(stage):
                out, err = (part.decode() for part in await process.communicate())
        assert process.returncode == 130
        assert err.endswith("the same command with --from committed.\n")
        with go(stage):
            again = await stage.run("work", *more, "--from", "committed")
        assert again.code == 0
        assert once_each(first + out, again.out)

    async def test_two_signals_with_one_cause_count_as_one(self, stage: Place) -> None:
        """`timeout` sends SIGTERM to the process and to its group."""
        async with stage.started("work", "--offset-storage", "store") as process:
            await working(process, 3)
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
                process.send_signal(number)
            await said(process, b"Stopping when the running handlers have returned")
            with go(stage):
                out, _ = await process.communicate()
        assert len(handled(out.decode())) == 3

    async def test_a_service_manager_signals_all_processes(self, stage: Place) -> None:
        more = ("--offset-storage", "store", "--processes", "3")
        async with stage.started("work", *more) as process:
            first, pids = await working(process, 3)
            for pid in (*pids, process.pid):
                os.kill(pid, signal.SIGTERM)
            await said(process, b"a second SIGTERM stops at once.\n")
            with go(stage):
                out, err = (part.decode() for part in await process.communicate())
                again = await stage.run("work", *more)
        assert process.returncode == 143, err
        assert once_each(first + out, again.out)

    async def test_a_signal_to_one_worker_stops_all_workers(self, stage: Place) -> None:
        more = ("--offset-storage", "store", "--processes", "3")
        async with stage.started("work", *more) as process:
            first, (pid, *_) = await working(process, 3)
            os.kill(pid, signal.SIGTERM)
            with go(stage):
                out, err = (part.decode() for part in await process.communicate())
                again = await stage.run("work", *more)
        assert process.returncode == 143
        assert re.search(
            r"^worker-\d was told to stop, and the others cannot go on without it: all stop\.$", err, re.MULTILINE
        )
        assert "The same command resumes with the next record:" in err
        assert once_each(first + out, again.out)

    async def test_a_signal_before_the_workers_have_joined(self, stage: Place) -> None:
        (stage.directory / "handlers.py").write_text(HANDLERS + WAITING + LOADING)
        async with stage.started("show", "--processes", "3") as process:
            await working(process, 3, "loading")
            process.send_signal(signal.SIGINT)
            await said(process, b"Stopping; a second Ctrl-C stops at once.\n")
            with go(stage):
                out, err = (part.decode() for part in await process.communicate())
                again = await stage.run("show", "--processes", "3")
        assert (process.returncode, out) == (130, "")
        assert "Nothing was started. The same command starts it:" in err
        assert "Traceback" not in err
        assert again.code == 0
        assert once_each(again.out)

    async def test_a_worker_that_is_killed_meanwhile_does_not_stop_the_others_at_once(self, stage: Place) -> None:
        more = ("--offset-storage", "store", "--processes", "3")
        async with stage.started("work", *more) as process:
            first, (pid, *_) = await working(process, 3)
            process.send_signal(signal.SIGINT)
            await said(process, STOPPING)
            os.kill(pid, signal.SIGKILL)
            await said(process, b"stopping: waits for worker-")
            with go(stage):
                out, err = (part.decode() for part in await process.communicate())
                again = await stage.run("work", *more)
        assert process.returncode == 1
        assert re.search(r"^aiokcc: worker-\d was killed by SIGKILL", err, re.MULTILINE)
        assert len(handled(out)) == 2, "the others finished the records that they had started"
        times = Counter(handled(first + out) + handled(again.out))
        assert len(times) == ALL

    async def test_a_stop_is_graceful_although_stderr_is_closed(self, stage: Place) -> None:
        """As in `aiokcc replay … 2>&1 | tee log`, where Ctrl-C ends tee too."""
        more = ("--offset-storage", "store", "--processes", "3")
        reading, writing = os.pipe()
        process = await asyncio.create_subprocess_exec(
            AIOKCC,
            *stage.words("work", *more),
            cwd=stage.directory,
            stdout=asyncio.subprocess.PIPE,
            stderr=writing,
            env=environment(**stage.variables),
        )
        os.close(writing)
        try:
            first, _ = await working(process, 3)
            os.close(reading)
            process.send_signal(signal.SIGINT)
            with go(stage):
                out, _ = await process.communicate()
                again = await stage.run("work", *more)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        assert process.returncode == 130
        assert once_each(first + out.decode(), again.out)


class TestStopTimeout:
    @pytest.mark.parametrize("more", [(), ("--processes", "3")], ids=["one process", "three processes"])
    async def test_handlers_that_hang_are_cancelled_when_the_time_is_over(
        self, stage: Place, more: tuple[str, ...]
    ) -> None:
        async with stage.started("stop_in_minute_five", *more, "--stop-timeout", "1s") as process:
            await working(process, 1, "waiting")
            process.send_signal(signal.SIGTERM)
            begun = asyncio.get_running_loop().time()
            _, err = (part.decode() for part in await process.communicate())
            took = asyncio.get_running_loop().time() - begun
        assert process.returncode == 143
        assert 1 <= took < 8
        assert "Not all handlers have returned within 1.0s (--stop-timeout).\nStopping at once.\n" in err
        assert "The same command resumes at 2026-01-01T00:05:00Z:" in err

    async def test_a_stop_in_time_commits_releases_and_leaves(self, stage: Place) -> None:
        more = ("--processes", "3", "--offset-storage", "store", "--stop-timeout", "30s")
        async with stage.started("work", *more) as process:
            first, _ = await working(process, 3)
            process.send_signal(signal.SIGTERM)
            await said(process, STOPPING.replace(b"Ctrl-C", b"SIGTERM"))
            with go(stage):
                out, err = (part.decode() for part in await process.communicate())
        assert process.returncode == 143
        assert "--stop-timeout)" not in err
        async with session_of(stage.variables["AIOKCC_STORE"]) as session:
            assert await session.children("ids") == ()
            for topic in stage.topics:
                assert await session.children(f"owners/{topic}") == ()
        with go(stage):
            again = await stage.run("work", *more)
        assert again.code == 0, again.err
        assert once_each(first + out, again.out)


class TestTheSecond:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    async def test_handlers_that_hang_are_cancelled(self, stage: Place, number: signal.Signals, code: int) -> None:
        async with stage.started("stop_in_minute_five", "--processes", "3") as process:
            seen, _ = await working(process, 1, "waiting")
            process.send_signal(number)
            await said(process, b"stops at once.\n")
            process.send_signal(number)
            out, err = (part.decode() for part in await process.communicate())
        assert process.returncode == code
        assert "Traceback" not in err
        assert re.search(r"^Stopped: \d+ records in \d+ periods", err, re.MULTILINE)
        promise, command = err.splitlines()[-2:]
        assert promise == "The same command resumes at 2026-01-01T00:05:00Z:"
        assert command.strip() == f"aiokcc {' '.join(stage.words('stop_in_minute_five', '--processes', '3'))}"
        (stage.directory / "handlers.py").write_text(HANDLERS.replace("+ 5 * 60_000 + 500", "* 2"))
        again = await stage.run("stop_in_minute_five", "--processes", "3")
        assert again.code == 0
        assert "everything before 2026-01-01T00:05:00Z is done" in again.err
        times = Counter(handled(seen + out) + handled(again.out))
        assert len(times) == ALL
        assert {int(ts) // MINUTE - START // MINUTE for (*_, ts), n in times.items() if n > 1} <= {5}

    @pytest.mark.parametrize("more", [(), ("--processes", "2", "--assignment", "managed")])
    async def test_workers_whose_handlers_block_the_event_loop_are_killed(
        self, stage: Place, more: tuple[str, ...]
    ) -> None:
        async with stage.started("block", *more) as process:
            await working(process, 1)
            process.send_signal(signal.SIGINT)
            await said(process, STOPPING)
            process.send_signal(signal.SIGINT)
            _, err = (part.decode() for part in await process.communicate())
        assert process.returncode == 130
        assert re.search(r"^Stopped: at least \d+ records? in ", err, re.MULTILINE)
        assert "take over" not in err

    async def test_a_third_signal_kills_the_command_and_the_workers_end(self, stage: Place) -> None:
        async with stage.started("block") as process:
            await working(process, 1)
            process.send_signal(signal.SIGTERM)
            await said(process, b"a second SIGTERM stops at once.\n")
            process.send_signal(signal.SIGTERM)
            await said(process, b"Stopping at once.\n")
            process.send_signal(signal.SIGTERM)
            assert process.stdout is not None
            await process.stdout.read()  # ends when the worker, which holds the pipe too, is gone
            await process.wait()
        assert process.returncode == -signal.SIGTERM

    async def test_blocked_workers_do_not_outlive_a_command_that_is_killed(self, stage: Place) -> None:
        async with stage.started("block", "--processes", "2") as process:
            await working(process, 2)
            process.kill()
            assert process.stdout is not None
            await process.stdout.read()


async def test_ctrl_c_at_a_terminal(stage: Place) -> None:
    more = ("--offset-storage", "store", "--processes", "2")
    async with in_foreground(stage.directory, *stage.words("work", *more), **stage.variables) as terminal:
        await terminal.shows("working")
        terminal.type("\x03")
        await terminal.shows("Stopping when the running handlers have returned; a second Ctrl-C stops at once.")
        await terminal.shows("  stopping")
        with go(stage):
            await terminal.shows("The same command resumes with the next record:")
            assert await terminal.process.wait() == 130
    async with in_foreground(stage.directory, *stage.words("work", *more), **stage.variables) as terminal:
        await terminal.shows("working")
        terminal.type("\x03")
        await terminal.shows("a second Ctrl-C stops at once.")
        terminal.type("\x03")
        await terminal.shows("The same command resumes at 2026-01-01T00:0")
        assert await terminal.process.wait() == 130


class TestAServiceIsAway:
    """Nothing can be committed. The command says so, ends, and does not promise to resume with the next record."""

    async def test_zookeeper(self, kafka: local.Kafka, private_zookeeper: local.ZooKeeper, tmp_path: Path) -> None:
        place = await create_place(tmp_path, kafka, private_zookeeper.url("replay"))
        err = await self.stopped_without(place, private_zookeeper.server, "--offset-storage", "store")
        assert err.splitlines()[-2] == "The same command resumes where the last period closed:"

    async def test_kafka(self, private_kafka: local.Kafka, zk_root: str, tmp_path: Path) -> None:
        place = await create_place(tmp_path, private_kafka, zk_root)
        err = await self.stopped_without(place, private_kafka, "--group-id", "billing")
        assert err.splitlines()[-2] == "The same command resumes at 2026-01-01T00:05:00Z:"

    async def stopped_without(self, place: Place, service: local.Kafka | local.ZooKeeperServer, *more: str) -> str:
        (place.directory / "handlers.py").write_text(HANDLERS + WAITING)
        os.mkfifo(place.directory / "go")
        async with place.started("work", *more) as process:
            await working(process, 3)
            await service.kill()
            process.send_signal(signal.SIGINT)
            await said(process, STOPPING)
            with go(place):
                out, err = (part.decode() for part in await process.communicate())
        assert process.returncode == 130, err
        assert len(handled(out)) == 3
        assert "Traceback" not in err
        assert re.search(r"^worker-1: could not commit offsets: ", err, re.MULTILINE)
        return err
