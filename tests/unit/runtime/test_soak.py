"""Random faults on virtual time: members come and go, sessions end, the network stalls, partitions move.

The history is checked. Every choice comes from one seed, so that a run that fails can be repeated; SOAK_SEEDS sets how many.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random

import pytest

import aiokcc
from aiokcc.errors import AiokccError
from aiokcc.stores.memory import Call
from tests.unit.world import PERIOD, World
from tests.virtual import settle

SEEDS = range(int(os.environ.get("SOAK_SEEDS", "12")))
MEMBERS, PARTITIONS, RECORDS = 4, 6, 40
STORM = 150.0
"""Seconds of faults; then everything must come to its end."""
CALM = 1200.0


class Soak:
    """One run: who lives, and what happens to them."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.chance = world, random.Random(seed)
        self.live: dict[str, aiokcc.Group] = {}
        self.stormy = True
        self.lookahead = self.chance.choice([0, 0, 1, 3, 8])
        self.logs = {f"orders.{n}": self._log() for n in range(PARTITIONS)}
        self.offences = 0
        world.server.intercept(before=self._delay, after=self._delay)

    def _log(self) -> list[int]:
        ts, stamps = self.chance.randrange(PERIOD), []
        for _ in range(self.chance.randrange(RECORDS)):
            ts += int(self.chance.expovariate(1 / 700)) + (50 * PERIOD if self.chance.random() < 0.03 else 0)
            stamps.append(ts)
        return stamps

    async def _delay(self, call: Call) -> None:
        if self.chance.random() < 0.2:
            await asyncio.sleep(self.chance.random() * (0.5 if self.stormy else 0.01))

    # -- who takes part ---------------------------------------------------------------------------------------------------

    async def member(self, name: str) -> None:
        """A process that is started again whenever it ends."""
        while True:
            try:
                async with self.world.connect(
                    topics={"orders": PARTITIONS},
                    member=name,
                    lookahead=self.lookahead,
                    session_timeout=6,
                    claim_timeout=500,
                    connect_timeout=10_000,
                ) as group:
                    self.live[name] = group
                    try:
                        while self.stormy:
                            await asyncio.sleep(self.chance.uniform(5, 120))
                            if self.stormy and self.chance.random() < 0.5:
                                raise _CrashError
                        while not group.ended:  # noqa: ASYNC110 - time is virtual
                            await asyncio.sleep(1)
                        return
                    finally:
                        del self.live[name]
            except _CrashError:
                await asyncio.sleep(self.chance.random() * 5)
            except aiokcc.RunEnded:
                return

    async def partition(self, number: int) -> None:
        """Run one partition on whoever lives, and move it now and then."""
        while True:
            while not self.live:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            group = self.live[self.chance.choice(sorted(self.live))]
            patience = self.chance.uniform(1, 60) if self.stormy else None
            try:
                async with asyncio.timeout(patience):
                    await self.world.process(group, number, self.logs, takes=self._work)
                # If the member crashes before a cut holds this, it is to be done again.
                while group in self.live.values():  # noqa: ASYNC110
                    await asyncio.sleep(0.5)
                if group.ended:
                    return
            except (TimeoutError, AiokccError):
                self.offences += 1
                await asyncio.sleep(self.chance.random())

    def _work(self) -> float:
        return self.chance.choice([0, 0, 0.01, 0.2, 2])

    # -- what happens to them -----------------------------------------------------------------------------------------------

    async def storm(self) -> None:
        server, over = self.world.server, self.world.time() + STORM
        while self.world.time() < over:
            await asyncio.sleep(self.chance.expovariate(1 / 3))
            if not server.sessions:
                continue
            session = self.chance.choice(server.sessions)
            fault = self.chance.choice(["expire", "suspend", "freeze", "away", "calm"])
            if fault == "expire":
                server.expire(session)
            elif fault == "suspend":
                server.suspend(session)
                self._later(server.resume, session)
            elif fault == "freeze":
                server.freeze(session)
                self._later(server.thaw, session)
            elif fault == "away":
                server.suspend()
                self._later(server.resume)
        self.stormy = False

    def _later(self, repair: object, *who: object) -> None:
        asyncio.get_running_loop().call_later(self.chance.uniform(0, 9), repair, *who)  # type: ignore[arg-type]

    async def reap(self) -> None:
        """The server's own clock."""
        while True:
            await asyncio.sleep(0.5)
            self.world.server.expire_overdue()


class _CrashError(Exception):
    """A process ends in the middle of its work."""


@pytest.mark.parametrize("seed", SEEDS)
async def test_soak(world: World, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    soak = Soak(world, seed)
    reaper = asyncio.create_task(soak.reap())
    async with asyncio.timeout(STORM + CALM), asyncio.TaskGroup() as tasks:
        tasks.create_task(soak.storm())
        for number in range(MEMBERS):
            tasks.create_task(soak.member(f"m{number}"))
        for number in range(PARTITIONS):
            tasks.create_task(soak.partition(number))
    reaper.cancel()
    await settle()
    assert world.data("coordinator") == b"end"
    world.history.check(soak.logs)
