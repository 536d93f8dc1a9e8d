"""``aiokcc status`` as a user runs it, on a real ZooKeeper."""

from __future__ import annotations

import json
import os
import re
import signal
import socket

import aiokcc
from aiokcc import local
from aiokcc.stores import ANY_VERSION
from tests.integration.cli.commands import (
    MINUTE,
    group_of,
    line_with,
    on_terminal,
    run,
    session_of,
    started,
    waiting,
)


class TestStatus:
    async def test_it_names_the_blocking_partition_its_member_and_the_time(self, zk_root: str) -> None:
        async with group_of(zk_root) as group, waiting(group.orders, 5 * MINUTE):
            await group.slow()
            shown = await run("status", zk_root)
            strict = await run("status", zk_root, "--stuck-after", "1ms")
            data = json.loads((await run("status", "--json", "--store", zk_root)).out)
        assert shown.code == 0
        where, health, *_ = shown.out.splitlines()
        assert where == zk_root
        assert re.fullmatch(
            r"Blocked for \S+s by payments.0 on beta, which still has records before the limit\.", health
        )
        assert re.search(r"^\* payments.0  beta +\S+s +still has records before the limit$", shown.out, re.MULTILINE)
        assert re.search(r"^limit +1970-01-01T00:01:00Z +60000$", shown.out, re.MULTILINE)
        assert re.search(r"^leader +alpha   epoch 1$", shown.out, re.MULTILINE)
        assert re.search(r"^  orders.0 +alpha +waiting +1970-01-01T00:05:00Z$", shown.out, re.MULTILINE)
        assert strict.code == 3
        assert data["verdict"] == "blocked"
        assert [(b["partition"], b["member"].rpartition("-")[0]) for b in data["blocking"]] == [("payments.0", "beta")]
        assert data["waiting_seconds"] > 0.5

    async def test_an_unowned_partition(self, zk_root: str) -> None:
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

    async def test_an_unreadable_request_is_shown_and_repaired_by_a_new_one(self, zk_root: str) -> None:
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

    async def test_without_a_group_every_verb_fails(self, zk_root: str) -> None:
        for verb in (["status"], ["hold"], ["period", "1m"], ["release", "--yes"]):
            ended = await run(*verb, zk_root)
            assert (ended.code, ended.out) == (1, "")
            assert ended.err.startswith("aiokcc: there is no group under /")

    async def test_without_a_server_it_fails_after_the_timeout(self) -> None:
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

    async def test_without_permission_it_shows_how_to_give_a_password(self, zk_root: str) -> None:
        async with group_of(zk_root, auth=("ann", "s3cret"), acl="creator"):
            refused = await run("status", zk_root)
            not_held = await run("hold", zk_root)
            mine = zk_root.replace("zk://", "zk://ann:s3cret@")
            shown = await run("status", mine)
            held = await run("hold", mine)
        for ended in (refused, not_held):
            assert ended.code == 1
            assert "no permission" in ended.err
            assert "?auth=env:NAME" in ended.err
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

    async def test_json_prints_one_object_per_line(self, zk_root: str) -> None:
        async with group_of(zk_root) as group, started("status", "--watch", "--json", zk_root) as process:
            assert json.loads(await line_with(process, '"limit": 60000,'))["state"] == "running"
            await group.alpha.hold()
            assert json.loads(await line_with(process, '"state": "held"'))["limit"] == 60000
            await group.alpha.release()
            assert json.loads(await line_with(process, '"state": "released"'))["limit"] is None

    async def test_a_terminal_is_redrawn_in_place_and_restored_on_ctrl_c(self, zk_root: str) -> None:
        async with group_of(zk_root) as group, on_terminal("status", "--watch", zk_root) as terminal:
            await terminal.shows("Ctrl-C ends this")
            await group.alpha.hold()
            await terminal.shows("On hold.")
            os.kill(terminal.process.pid, signal.SIGINT)
            assert await terminal.process.wait() == 130
        assert terminal.screen.count("\x1b[?1049h") == terminal.screen.count("\x1b[?1049l") == 1
        assert "On hold." in terminal.screen.rpartition("\x1b[?1049l")[2]

    async def test_the_elapsed_time_is_redrawn_although_nothing_changes(self, zk_root: str) -> None:
        async with group_of(zk_root) as group, waiting(group.orders, 5 * MINUTE):
            async with on_terminal("status", "--watch", zk_root) as terminal:
                await terminal.shows_different(r"Blocked for [\d.]+s", least=3)

    async def test_it_continues_when_the_store_is_back(self, private_zookeeper: local.ZooKeeper) -> None:
        store = private_zookeeper.url("group")
        async with group_of(store) as group, started("status", "--watch", store) as process:
            await line_with(process, "1970-01-01T00:01:00Z")
            await private_zookeeper.server.kill()
            await line_with(process, "the store does not answer; trying again")
            await private_zookeeper.server.start()
            async with waiting(group.orders, 7 * MINUTE), waiting(group.payments, 7 * MINUTE) as passed:
                await passed
            await line_with(process, "1970-01-01T00:08:00Z")

    async def test_sigterm_ends_it(self, zk_root: str) -> None:
        async with group_of(zk_root), started("status", "--watch", zk_root) as process:
            await line_with(process, "1970-01-01T00:01:00Z")
            process.terminate()
            assert await process.wait() == 143


async def test_a_closed_pipe_ends_it_without_a_message(zk_root: str) -> None:
    async with group_of(zk_root), started("status", "--watch", "--json", zk_root) as process:
        assert process.stdout is not None
        await process.stdout.readline()
        process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        async with session_of(zk_root) as session:
            await session.set("period", b"120000", ANY_VERSION)
        assert process.stderr is not None
        assert await process.stderr.read() == b""
        assert await process.wait() == 1
