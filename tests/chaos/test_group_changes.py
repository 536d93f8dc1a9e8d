"""Fifty random changes of the membership, in a replay of real processes. The result is compared record by record.

Processes are killed, leave in good order, are stopped for longer than their session and go on, are cut off from ZooKeeper but
not from Kafka, are isolated and rejoin, and come back. ``AIOKCC_CHAOS_SEED`` repeats a run's choices.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from aiokcc import local
from aiokcc.errors import UsageError
from aiokcc.runtime.operator import isolate, rejoin
from aiokcc.stores import open_store
from tests.chaos.sharing import Process, Sharing, sharing

SEED = int(os.environ.get("AIOKCC_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
CHANGES = int(os.environ.get("AIOKCC_CHAOS_CHANGES", "50"))
SESSION = 2.0


class Operator:
    """Chooses the next change, and the member it happens to. At least one member is left alone."""

    def __init__(self, group: Sharing, chance: random.Random) -> None:
        self._group, self._chance = group, chance
        self.done: dict[str, int] = {}

    async def change(self) -> None:
        group, chance = self._group, self._chance
        away = [process for process in group.processes if not process.alive]
        here = [process for process in group.processes if process.alive and not process.stopped]
        if away and (len(here) < 2 or chance.random() < 0.5):
            self._count("start")
            await chance.choice(away).start()
            return
        victim = chance.choice(here)
        what = chance.choices(["kill", "restart", "leave", "stop", "cut off", "isolate"], weights=[3, 3, 4, 1, 1, 3])[0]
        self._count(what)
        if what == "kill":
            await victim.kill()
        elif what == "restart":
            await victim.kill()
            await victim.start()  # within its session: the same member
        elif what == "leave":
            await victim.leave()
        elif what == "isolate":
            await self._isolate(victim)
        elif what == "stop":
            victim.stop()
            await asyncio.sleep(SESSION * 1.5)  # longer than its session: time is the fault
            victim.go_on()
        else:
            victim.proxy.blackhole("both")
            await asyncio.sleep(SESSION * 1.5)
            victim.proxy.heal()

    async def _isolate(self, victim: Process) -> None:
        store = open_store(self._group.url)
        async with store.session(timeout=10) as session:
            try:
                await isolate(store, session, victim.spec.name, by="a test", now=time.time_ns() // 1_000_000)
                await self._group.progress(1)
                await rejoin(store, session, victim.spec.name)
            except UsageError:  # it has not joined yet, or the run is over
                return

    def _count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("storage", "changes"), [("kafka", CHANGES), ("store", CHANGES // 4)])
async def test_random_membership_changes(
    kafka: local.Kafka, zookeeper: local.ZooKeeper, tmp_path: Path, storage: str, changes: int
) -> None:
    """The long run is stopped after the last change; the short one continues to its end."""
    print(f"AIOKCC_CHAOS_SEED={SEED}")
    chance = random.Random(SEED)
    whole = changes < CHANGES
    async with sharing(
        kafka,
        zookeeper,
        tmp_path,
        members=5,
        partitions=8,
        periods=changes * (100 if whole else 400),
        chance=chance,
        session_timeout=SESSION,
        offset_storage=storage,
        group_id=f"group-{SEED}" if storage == "kafka" else None,
    ) as group:
        for process in group.processes[:3]:
            await process.start()
        await group.progress()
        operator = Operator(group, chance)
        begun = time.monotonic()
        done = 0
        while done < changes and not group.over:
            await operator.change()
            done += 1
            await group.progress(chance.randrange(1, 20))
        print(f"{done} changes in {time.monotonic() - begun:.0f} s: {operator.done}")
        await (group.finish() if whole else group.leave())
    cuts, generation = len(group.observer.cuts), group.observer.generation.number
    print(f"{cuts} cuts, generation {generation}, over after {time.monotonic() - begun:.0f} s")
    assert done == changes, f"the run was over after {done} changes"
    group.check()
