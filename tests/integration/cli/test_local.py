"""``aiokcc local`` as a user runs it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from aiokcc import local
from tests.integration.cli.commands import (
    group_of,
    line_with,
    run,
    started,
)


class TestLocal:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    async def test_it_prints_a_url_that_works_and_ends_on_a_signal(
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

    async def test_a_port_in_use_is_an_error(self, zookeeper: local.ZooKeeper) -> None:
        ended = await run("local", "zookeeper", "--port", str(zookeeper.server.port))
        assert ended.code == 1
        assert "Address already in use" in ended.err

    async def test_a_server_that_dies_is_an_error(self, tmp_path: Path, zookeeper: local.ZooKeeper) -> None:
        async with started("local", "zookeeper", "--data", str(tmp_path)) as process:
            await line_with(process, f"data in {tmp_path}")
            await line_with(process, "Stop it with Ctrl-C")
            pids = await asyncio.create_subprocess_exec("pgrep", "-f", str(tmp_path / "zoo.cfg"), stdout=-1)
            for pid in (await pids.communicate())[0].split():
                os.kill(int(pid), signal.SIGKILL)
            _, err = await process.communicate()
            assert process.returncode == 1
            assert b"aiokcc: zookeeper ended by itself" in err


class TestSpark:
    async def test_the_death_of_a_worker_does_not_end_the_cluster(self, tmp_path: Path) -> None:
        async with started("local", "spark", "--workers", "2", "--data", str(tmp_path)) as process:
            await line_with(process, "Stop it with Ctrl-C")
            pids = await asyncio.create_subprocess_exec("pgrep", "-f", str(tmp_path / "spark-worker-1"), stdout=-1)
            for pid in (await pids.communicate())[0].split():
                os.kill(int(pid), signal.SIGKILL)
            assert process.stderr is not None
            told = await process.stderr.readline()
            assert told == b"spark-worker-1 ended by itself; the cluster continues with 1 worker.\n"
            process.send_signal(signal.SIGINT)
            await line_with(process, "has stopped.")
            assert await process.wait() == 130
