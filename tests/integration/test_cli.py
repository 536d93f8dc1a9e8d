"""The command line as its user meets it: the installed program, in a process of its own, on a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import aiokcc
from aiokcc import local
from aiokcc.stores import ANY_VERSION, Node, Session

AIOKCC = str(Path(sys.executable).with_name("aiokcc"))
MINUTE = 60_000


@dataclass
class Ended:
    """What a command left behind."""

    code: int | None
    out: str
    err: str


def environment(**extra: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if name not in {"AIOKCC_STORE", "NO_COLOR", "FORCE_COLOR"}
    }
    return {**kept, **extra}


async def run(*words: str, **extra: str) -> Ended:
    """Run it to its end."""
    process = await asyncio.create_subprocess_exec(
        AIOKCC,
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**extra),
    )
    out, err = await process.communicate()
    assert "Traceback" not in err.decode() or "--verbose" in words
    return Ended(process.returncode, out.decode(), err.decode())


@asynccontextmanager
async def started(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run it while the body lasts; its output can be read line by line."""
    process = await asyncio.create_subprocess_exec(
        AIOKCC, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment()
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def line_with(process: asyncio.subprocess.Process, text: str) -> str:
    """Read until a line has this in it."""
    assert process.stdout is not None
    seen = []
    while line := (await process.stdout.readline()).decode():
        seen.append(line)
        if text in line:
            return line
    raise AssertionError(f"it ended without {text!r}: {''.join(seen)}")


class Terminal:
    """A pseudo terminal with a command on it, and all that the command has written there."""

    def __init__(self, process: asyncio.subprocess.Process, end: int) -> None:
        self.process, self.screen = process, ""
        self._end, self._news = end, asyncio.Event()
        asyncio.get_running_loop().add_reader(end, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._end, 65536)
        except OSError:  # the other end is closed
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._end)
        self.screen += data.decode(errors="replace")
        self._news.set()

    async def shows(self, text: str) -> None:
        while text not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.screen):
            self._news.clear()
            await self._news.wait()

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())


@asynccontextmanager
async def on_terminal(*words: str, **extra: str) -> AsyncIterator[Terminal]:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        AIOKCC,
        *words,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(**{"TERM": "xterm", "COLUMNS": "120", "LINES": "50", **extra}),
        start_new_session=True,
    )
    os.close(theirs)
    terminal = Terminal(process, ours)
    try:
        yield terminal
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)


@asynccontextmanager
async def session_of(store: str) -> AsyncIterator[Session]:
    async with aiokcc.open_store(store).session() as session:
        yield session


async def until_holds(session: Session, path: str, content: bytes) -> None:
    """Wait until a node's content has this in it."""
    with session.watch() as watch:
        watch.add(path)
        async for change in watch:
            if isinstance(change.now, Node) and content in change.now.data:
                return


class Group:
    """Two members in this process: ``alpha`` runs orders.0, ``beta`` payments.0. Their records are handed to them here."""

    def __init__(self, store: str, alpha: aiokcc.Group, orders: aiokcc.Gate, payments: aiokcc.Gate) -> None:
        self.store, self.alpha, self.orders, self.payments = store, alpha, orders, payments

    async def slow(self) -> None:
        """Return when beta has said that payments.0 is slow."""
        async with session_of(self.store) as session:
            names = await session.children("progress")
            beta = next(name for name in names if name.startswith("beta-"))
            await until_holds(session, f"progress/{beta}", b"payments.0:running")


@asynccontextmanager
async def group_of(store: str, **options: object) -> AsyncIterator[Group]:
    settings = {"topics": {"orders": 1, "payments": 1}, "start": 0, "period": "1m", **options}
    async with (
        aiokcc.connect(store, member="alpha", **settings) as alpha,  # type: ignore[arg-type]
        alpha.gate("orders", 0) as orders,
        aiokcc.connect(store, member="beta", **settings) as beta,  # type: ignore[arg-type]
        beta.gate("payments", 0) as payments,
    ):
        yield Group(store, alpha, orders, payments)


@asynccontextmanager
async def waiting(gate: aiokcc.Gate, ts: int) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(gate.wait_until(ts))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class TestStatus:
    async def test_it_says_which_partition_blocks_on_which_member_for_how_long(self, zk_root: str) -> None:
        async with group_of(zk_root) as group, waiting(group.orders, 5 * MINUTE):
            await group.slow()
            shown = await run("status", zk_root)
            strict = await run("status", zk_root, "--stuck-after", "1ms")
            data = json.loads((await run("status", "--json", "--store", zk_root)).out)
        assert shown.code == 0
        where, verdict, *_ = shown.out.splitlines()
        assert where == zk_root
        assert re.fullmatch(
            r"Blocked for \S+s by payments.0 on beta, which still has records before the limit\.", verdict
        )
        assert re.search(r"^\* payments.0  beta +\S+s +still has records before the limit$", shown.out, re.MULTILINE)
        assert re.search(r"^limit +1970-01-01T00:01:00Z +60000$", shown.out, re.MULTILINE)
        assert re.search(r"^leader +alpha   epoch 1$", shown.out, re.MULTILINE)
        assert re.search(r"^  orders.0 +alpha +waiting +1970-01-01T00:05:00Z$", shown.out, re.MULTILINE)
        assert strict.code == 3
        assert data["verdict"] == "blocked"
        assert [(b["partition"], b["member"].rpartition("-")[0]) for b in data["blocking"]] == [("payments.0", "beta")]
        assert data["waiting_seconds"] > 0.5

    async def test_a_partition_in_nobodys_hands(self, zk_root: str) -> None:
        settings = {"topics": {"orders": 2}, "start": 0, "period": "1m", "member": "alpha"}
        async with aiokcc.connect(zk_root, **settings) as alpha, alpha.gate("orders", 0) as gate:  # type: ignore[arg-type]
            async with waiting(gate, MINUTE):
                shown = await run("status", "--stuck-after", "1ms", AIOKCC_STORE=zk_root)
        assert shown.code == 3
        assert "orders.1 is unowned (nobody has run it yet)" in shown.out

    async def test_colours_on_a_terminal_and_none_in_a_pipe_or_on_a_dumb_one(self, zk_root: str) -> None:
        async with group_of(zk_root):
            async with on_terminal("status", zk_root) as terminal:
                await terminal.shows("payments.0")
                assert await terminal.process.wait() == 0
                assert "\x1b[1m" in terminal.screen
            assert "\x1b" not in (await run("status", zk_root)).out
            async with on_terminal("status", zk_root, TERM="dumb") as terminal:
                await terminal.shows("payments.0")
                assert "\x1b" not in terminal.screen

    async def test_an_unreadable_request_is_told_and_repaired_by_a_new_one(self, zk_root: str) -> None:
        async with group_of(zk_root) as group, session_of(zk_root) as session:
            await session.set("period", b"\xff soon", ANY_VERSION)
            broken = await run("status", zk_root)
            repaired = await run("period", "2m", zk_root)
            async with waiting(group.orders, MINUTE), waiting(group.payments, MINUTE) as passed:
                await passed
        assert broken.code == 3
        assert "/period holds" in broken.out
        assert repaired.code == 0
        assert "could not be read" in repaired.out

    async def test_no_group(self, zk_root: str) -> None:
        for verb in (["status"], ["hold"], ["period", "1m"], ["release", "--yes"]):
            ended = await run(*verb, zk_root)
            assert (ended.code, ended.out) == (1, "")
            assert ended.err.startswith("aiokcc: there is no group under /")

    async def test_no_server(self) -> None:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))  # bound, but nobody listens
            url = f"zk://127.0.0.1:{held.getsockname()[1]}/x"
            ended = await run("status", url, "--timeout", "300ms")
            followed = await run("status", "--watch", url, "--timeout", "300ms")
            verbose = await run("status", url, "--timeout", "300ms", "--verbose")
        assert (ended.code, ended.out) == (followed.code, followed.out) == (1, "")
        assert "0.3 s" in ended.err
        assert "aiokcc local zookeeper" in ended.err
        assert ended.err == followed.err
        assert "Traceback" in verbose.err

    async def test_no_permission(self, zk_root: str) -> None:
        async with group_of(zk_root, auth=("ann", "s3cret"), acl="creator"):
            refused = await run("status", zk_root)
            not_held = await run("hold", zk_root)
            mine = zk_root.replace("zk://", "zk://ann:s3cret@")
            shown = await run("status", mine)
            held = await run("hold", mine)
        for ended in (refused, not_held):
            assert ended.code == 1
            assert "no permission" in ended.err
            assert "zk://USER:PASSWORD@" in ended.err
        assert (shown.code, held.code) == (0, 0)
        assert "s3cret" not in shown.out + held.out


class TestWatch:
    async def test_it_follows_and_ends_with_the_run(self, zk_root: str) -> None:
        async with started("status", "--watch", zk_root) as process:
            await line_with(process, "there is no group under")
            async with group_of(zk_root) as group:
                await line_with(process, "1970-01-01T00:01:00Z")
                async with waiting(group.orders, 7 * MINUTE), waiting(group.payments, 7 * MINUTE) as passed:
                    await passed
                await line_with(process, "1970-01-01T00:08:00Z")
                group.orders.finish()
                group.payments.finish()
            await line_with(process, "The run has ended")
            assert await process.wait() == 0

    async def test_json_gives_an_object_a_line(self, zk_root: str) -> None:
        async with group_of(zk_root) as group, started("status", "--watch", "--json", zk_root) as process:
            assert json.loads(await line_with(process, '"limit": 60000,'))["state"] == "running"
            await group.alpha.hold()
            assert json.loads(await line_with(process, '"state": "held"'))["limit"] == 60000
            await group.alpha.release()
            assert json.loads(await line_with(process, '"state": "released"'))["limit"] is None

    async def test_a_terminal_is_redrawn_in_place_and_given_back_on_ctrl_c(self, zk_root: str) -> None:
        async with group_of(zk_root) as group, on_terminal("status", "--watch", zk_root) as terminal:
            await terminal.shows("Ctrl-C ends this")
            await group.alpha.hold()
            await terminal.shows("On hold.")
            os.kill(terminal.process.pid, signal.SIGINT)
            assert await terminal.process.wait() == 130
        assert terminal.screen.count("\x1b[?1049h") == terminal.screen.count("\x1b[?1049l") == 1
        assert "On hold." in terminal.screen.rpartition("\x1b[?1049l")[2]

    async def test_only_the_clock_ticks_by_itself(self, zk_root: str) -> None:
        async with group_of(zk_root) as group, waiting(group.orders, 5 * MINUTE):
            async with on_terminal("status", "--watch", zk_root) as terminal:
                await terminal.shows("Blocked for 3.")
                await terminal.shows("Blocked for 4.")

    async def test_it_survives_the_store(self, private_zookeeper: local.ZooKeeper) -> None:
        store = private_zookeeper.url("group")
        async with group_of(store) as group, started("status", "--watch", store) as process:
            await line_with(process, "1970-01-01T00:01:00Z")
            await private_zookeeper.server.kill()
            await line_with(process, "the store does not answer; trying again")
            await private_zookeeper.server.start()
            async with waiting(group.orders, 7 * MINUTE), waiting(group.payments, 7 * MINUTE) as passed:
                await passed
            await line_with(process, "1970-01-01T00:08:00Z")

    async def test_sigterm(self, zk_root: str) -> None:
        async with group_of(zk_root), started("status", "--watch", zk_root) as process:
            await line_with(process, "1970-01-01T00:01:00Z")
            process.terminate()
            assert await process.wait() == 143


class TestSteering:
    async def test_a_hold_says_how_to_go_on_and_that_works(self, zk_root: str) -> None:
        async with group_of(zk_root, period="90s") as group:
            held = await run("hold", zk_root)
            again = await run("hold", AIOKCC_STORE=zk_root)
            shown = await run("status", zk_root)
            async with waiting(group.orders, 10 * MINUTE), waiting(group.payments, 10 * MINUTE) as passed:
                command = next(line.strip() for line in held.out.splitlines() if "aiokcc period" in line)
                assert group.alpha.limit == 90_000
                gone_on = await run(*command.split()[1:])
                await passed
        assert held.out.startswith("Held: the limit stays at 1970-01-01T00:01:30Z.")
        assert command == f"aiokcc period {zk_root} 1m30s"
        assert again.out.startswith("Held already")
        assert "    aiokcc period 1m30s\n" in again.out
        assert shown.code == 0
        assert f"go on with: {command}" in shown.out
        assert gone_on.out == "The hold is over: the limit moves again, by 1m30s at a time.\n"

    async def test_the_period_changes_while_the_group_runs(self, zk_root: str) -> None:
        async with group_of(zk_root) as group:
            changed = await run("period", "5m", AIOKCC_STORE=zk_root)
            same = await run("period", "5m", "--store", zk_root)
            async with waiting(group.orders, MINUTE), waiting(group.payments, MINUTE) as passed:
                await passed
            assert group.payments.limit == 5 * MINUTE
        assert changed.out == "The period is 5m from the next boundary on (before: 1m).\n"
        assert same.out == "The period is 5m already; nothing was changed.\n"

    async def test_a_request_to_a_group_that_sleeps_is_left_for_the_next_leader(self, zk_root: str) -> None:
        async with group_of(zk_root):
            pass
        ended = await run("period", "5m", zk_root)
        assert ended.code == 0
        assert "No member is there at present" in ended.out

    async def test_release_is_final(self, zk_root: str) -> None:
        async with group_of(zk_root) as group, waiting(group.orders, 10**12) as passed:
            unsure = await run("release", zk_root)
            assert not passed.done()
            released = await run("release", "--yes", zk_root)
            await passed
            again = await run("release", "--yes", zk_root)
            refused = await run("hold", zk_root)
            shown = await run("status", zk_root)
        assert unsure.code == 2
        assert (released.code, released.out) == (0, "Released: every record passes from now on.\n")
        assert (again.code, again.out) == (0, "Released already; nothing was changed.\n")
        assert refused.code == 1
        assert "final" in refused.err
        assert "Released: every record passes" in shown.out

    async def test_release_asks_on_a_terminal(self, zk_root: str) -> None:
        async with group_of(zk_root) as group:
            async with on_terminal("release", zk_root) as terminal:
                await terminal.shows("Release? [y/N]")
                terminal.type("\n")
                await terminal.shows("Nothing was changed.")
                assert await terminal.process.wait() == 1
            assert not group.alpha.released
            async with on_terminal("release", zk_root) as terminal:
                await terminal.shows("Release? [y/N]")
                terminal.type("yes\n")
                await terminal.shows("Released:")
                assert await terminal.process.wait() == 0


class TestLocal:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    async def test_it_prints_a_url_that_works_and_ends_when_told(
        self, number: signal.Signals, code: int, zookeeper: local.ZooKeeper
    ) -> None:
        async with started("local", "zookeeper") as process:
            url = (await line_with(process, "export AIOKCC_STORE=")).strip().partition("=")[2]
            await line_with(process, f"Stop it with Ctrl-C, or: kill {process.pid}")
            async with group_of(url):
                assert (await run("status", url)).code == 0
            process.send_signal(number)
            await line_with(process, "ZooKeeper has stopped.")
            assert await process.wait() == code
        assert (await run("status", url, "--timeout", "200ms")).code == 1

    async def test_a_port_that_is_taken(self, zookeeper: local.ZooKeeper) -> None:
        ended = await run("local", "zookeeper", "--port", str(zookeeper.server.port))
        assert ended.code == 1
        assert "Address already in use" in ended.err

    async def test_a_server_that_dies_is_told(self, tmp_path: Path, zookeeper: local.ZooKeeper) -> None:
        async with started("local", "zookeeper", "--data", str(tmp_path)) as process:
            await line_with(process, f"data in {tmp_path}")
            await line_with(process, "Stop it with Ctrl-C")
            pids = await asyncio.create_subprocess_exec("pgrep", "-f", str(tmp_path / "zoo.cfg"), stdout=-1)
            for pid in (await pids.communicate())[0].split():
                os.kill(int(pid), signal.SIGKILL)
            _, err = await process.communicate()
            assert process.returncode == 1
            assert b"aiokcc: zookeeper ended by itself" in err


async def test_a_closed_pipe_is_no_drama(zk_root: str) -> None:
    async with group_of(zk_root), started("status", "--watch", "--json", zk_root) as process:
        assert process.stdout is not None
        await process.stdout.readline()
        process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        async with session_of(zk_root) as session:
            await session.set("period", b"120000", ANY_VERSION)
        assert process.stderr is not None
        assert await process.stderr.read() == b""
        assert await process.wait() == 1
