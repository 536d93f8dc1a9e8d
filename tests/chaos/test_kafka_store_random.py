"""Random faults on three real brokers: six processes keep their agreement on ``kafka://``, and their history is checked.

Leaders are killed and frozen, so are other brokers and the controller; replicas in sync are lost and come back; processes are
killed, and frozen for less and for more than their session. Workers and brokers are on one machine, and clients reach a broker
at the address that it names, so a broker that is cut off is one that is frozen: it answers neither clients nor other brokers.

``AIOKCC_CHAOS_SEED`` repeats a run's choices.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from aiokcc import local
from aiokcc.stores import open_store
from aiokcc.stores.kafka import KafkaStore
from tests.chaos.group import Group

SEED = int(os.environ.get("AIOKCC_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
SESSION = 4.0
MEMBERS = 6


class Monkey:
    """Chooses a fault, causes it, and ends it after a while. It waits for time, because a fault has a duration."""

    def __init__(self, group: Group, cluster: local.KafkaCluster, topic: str, chance: random.Random) -> None:
        self._group, self._cluster, self._topic, self._chance = group, cluster, topic, chance
        self._next: list[str] = []
        self.done: dict[str, int] = {}

    async def act(self) -> None:
        """Cause the next fault. Each kind comes once before any comes twice."""
        if not self._next:
            self._next = [
                "kill leader",
                "freeze leader",
                "freeze broker",
                "replicas",
                "kill",
                "freeze",
                "freeze long",
                "controller",
            ]
            self._chance.shuffle(self._next)
        name = self._next.pop()
        self.done[name] = self.done.get(name, 0) + 1
        cluster, worker = self._cluster, self._chance.choice(self._group.workers)
        if name in ("kill", "freeze", "freeze long"):
            if name == "kill":
                await worker.kill()
                await worker.start()
            else:
                worker.freeze()
                await asyncio.sleep(SESSION * 1.5 if name == "freeze long" else SESSION / 4)
                worker.thaw()
            return
        leader = await cluster.leader(self._topic)
        others = [broker for broker in cluster.brokers if broker is not leader]
        if name == "controller":
            await cluster.controller.kill()
            await cluster.controller.start()
        elif name == "kill leader":
            await leader.kill()
            await leader.start()
        elif name == "replicas":  # two of three are gone: nothing may be acknowledged
            await asyncio.gather(*(broker.kill() for broker in others))
            await asyncio.gather(*(broker.start() for broker in others))
        else:
            victim = leader if name == "freeze leader" else self._chance.choice(others)
            victim.freeze()
            await asyncio.sleep(self._chance.choice([0.3, 1.0, 4.0]))
            victim.thaw()
        await cluster.wait_in_sync(self._topic)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("faults", [6, pytest.param(40, marks=pytest.mark.long)])
async def test_random_faults_on_three_brokers(kafka_cluster: local.KafkaCluster, tmp_path: Path, faults: int) -> None:
    print(f"AIOKCC_CHAOS_SEED={SEED}")
    chance = random.Random(SEED)
    url = f"kafka://{kafka_cluster.bootstrap}/chaos"
    store = open_store(url)
    assert isinstance(store, KafkaStore)
    how = {"members": MEMBERS, "partitions": 2, "session_timeout": SESSION, "proxies": False}
    async with Group(url, "", tmp_path, **how) as group:  # type: ignore[arg-type]
        await group.progress()
        monkey = Monkey(group, kafka_cluster, store.topic, chance)
        began = time.monotonic()
        limits = []
        for _ in range(faults):
            await monkey.act()
            await group.progress(10)  # between the faults the limit moves
            limits.append(group.observer.limit.value)
        await group.progress(10)
        took = time.monotonic() - began
        print(f"{took:.0f} s, limit {limits[0]} to {limits[-1]}, faults {monkey.done}")
        assert limits[-1] > limits[0]
        lines = [line for worker in group.workers for line in worker.lines]
        for named in ("another history or state", "lost acknowledged records", "does not count", "OutcomeUnknown"):
            assert not any(named in line for line in lines), f"{named}: Kafka keeps what it acknowledges in this test"
