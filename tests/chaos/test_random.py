"""Half a minute of random faults of all kinds, twice: eight processes, and the history is checked afterwards.

``AIOKCC_CHAOS_SECONDS`` makes it longer, ``AIOKCC_CHAOS_SEED`` repeats a run's choices.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from aiokcc import local
from tests.chaos.group import Group, Worker
from tests.faults import Op

SECONDS = float(os.environ.get("AIOKCC_CHAOS_SECONDS", "30"))
SEED = int(os.environ.get("AIOKCC_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
SESSION = 2.0


class Monkey:
    """Chooses a fault, causes it, and ends it after a while. It waits for time, because a fault has a duration."""

    def __init__(self, group: Group, zookeeper: local.ZooKeeper, chance: random.Random) -> None:
        self._group, self._zookeeper, self._chance = group, zookeeper, chance
        self.done: dict[str, int] = {}

    async def act(self) -> None:
        worker = self._chance.choice(self._group.workers)
        assert worker.proxy is not None
        name = self._chance.choices(
            ["cut", "hole", "slow", "refuse", "lost reply", "torn", "freeze", "kill", "server"],
            weights=[4, 3, 2, 2, 6, 3, 3, 1, 1],
        )[0]
        self.done[name] = self.done.get(name, 0) + 1
        lasting = self._chance.choice([0.05, 0.3, 1.0, SESSION * 1.5])
        if name == "cut":
            worker.proxy.cut(reset=self._chance.random() < 0.5)
        elif name == "lost reply":
            worker.proxy.drop_reply(self._chance.choice([Op.SET_DATA, Op.MULTI, Op.GET_DATA]))
        elif name == "torn":
            worker.proxy.cut_in_message(self._chance.choice(["up", "down"]))
        elif name == "kill":
            await worker.kill()
            await worker.start()
        elif name == "server":
            await self._zookeeper.server.kill()
            await self._zookeeper.server.start()
        else:
            await self._last(name, worker, lasting)

    async def _last(self, name: str, worker: Worker, seconds: float) -> None:
        assert worker.proxy is not None
        if name == "freeze":
            worker.freeze()
        elif name == "hole":
            worker.proxy.blackhole(self._chance.choice(["up", "down", "both"]))
        elif name == "slow":
            worker.proxy.delay(0.2)
        else:
            worker.proxy.refuse()
        await asyncio.sleep(seconds)
        if name == "freeze":
            worker.thaw()
        else:
            worker.proxy.heal()


@pytest.mark.timeout(SECONDS + 180)
@pytest.mark.parametrize("lookahead", [0, 8])
async def test_random_faults(private_zookeeper: local.ZooKeeper, tmp_path: Path, lookahead: int) -> None:
    print(f"AIOKCC_CHAOS_SEED={SEED}")
    chance = random.Random(SEED + lookahead)
    zk = private_zookeeper
    group = Group(
        zk.url("chaos"),
        zk.connection,
        tmp_path,
        members=8,
        partitions=3,
        session_timeout=SESSION,
        lookahead=lookahead,
    )
    async with group:
        await group.progress()
        monkey = Monkey(group, zk, chance)
        stop = time.monotonic() + SECONDS
        limits = []
        while time.monotonic() < stop:
            for _ in range(chance.randrange(1, 4)):
                await monkey.act()
            await group.progress(1)  # between the faults the limit moves
            limits.append(group.observer.limit.value)
        await group.progress(10)
        print(f"{len(limits)} rounds, limit {limits[0]} to {limits[-1]}, faults {monkey.done}")
        assert limits[-1] > limits[0]
